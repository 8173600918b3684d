//! Code on the pages that no test runs, each with its reason.

use super::Block;

/// A block that nobody runs.
pub struct Exception {
    /// From the checkout's root.
    pub page: &'static str,
    /// The block's first line, as it stands there without its indentation.
    pub first_line: &'static str,
}

impl Exception {
    /// Whether it is about that block.
    pub fn is_of(&self, page: &str, block: &Block) -> bool {
        self.page == page && self.first_line == block.first_line()
    }
}

/// All of them. A test fails if a block of one is gone.
pub const EXCEPTIONS: &[Exception] = &[
    Exception { page: "docs/python.md", first_line: "pip install ." },
    Exception {
        page: "docs/python.md",
        first_line: "cargo xtask wheel                # for systems like this one",
    },
];
