//! Whose a page is: the suite that runs the code on it.

/// A page, and the suite that runs its code.
pub struct Owner {
    /// From the checkout's root.
    pub page: &'static str,
    /// A name of suites/mod.rs.
    pub suite: &'static str,
}

/// The pages of suites that are no tests of pytest's. One with the code of a framework is the framework's suite's: it calls
/// [`Owned::of_suite`](super::owned::Owned::of_suite) and runs all of it.
pub const OWNERS: &[Owner] = &[
    Owner { page: "docs/handlers.md", suite: "cuda-headers" },
    Owner { page: "docs/python.md", suite: "python" },
];
