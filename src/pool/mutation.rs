//! Defects of device order that can be switched on, to show that the tests detect them. `tests/races/library/mutations.rs`
//! lists them. They exist only with the feature `mutations`, which no build for users has.

/// Returns whether a defect is switched on.
#[cfg(feature = "mutations")]
pub(super) fn is(name: &str) -> bool {
    use std::sync::OnceLock;
    static ACTIVE: OnceLock<Option<String>> = OnceLock::new();
    let active = ACTIVE.get_or_init(|| std::env::var("LIBBFC_MUTATION").ok());
    active.as_deref() == Some(name)
}

/// Returns false, because no defect can be switched on.
#[cfg(not(feature = "mutations"))]
#[inline(always)]
pub(super) const fn is(_name: &str) -> bool {
    false
}
