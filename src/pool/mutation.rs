//! Defects of device order that tests switch on, to show that the tests see them: `tests/races/mutations.rs` lists them.
//! Without the feature `mutations`, which no build for users has, none of them exists.

/// Whether a defect is switched on.
#[cfg(feature = "mutations")]
pub(super) fn is(name: &str) -> bool {
    use std::sync::OnceLock;
    static ACTIVE: OnceLock<Option<String>> = OnceLock::new();
    let active = ACTIVE.get_or_init(|| std::env::var("LIBBFC_MUTATION").ok());
    active.as_deref() == Some(name)
}

/// None is.
#[cfg(not(feature = "mutations"))]
#[inline(always)]
pub(super) const fn is(_name: &str) -> bool {
    false
}
