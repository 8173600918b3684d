//! Which attributes compile an item for tests only.

use syn::punctuated::Punctuated;
use syn::{Attribute, Meta, Token};

/// Whether a `#[cfg(...)]` is false without `test`, or the item is a test itself.
pub fn is_test_only(attributes: &[Attribute]) -> bool {
    attributes.iter().any(|attribute| {
        let path = attribute.path();
        let holds =
            || attribute.parse_args::<Meta>().ok().and_then(|predicate| holds_outside_tests(&predicate));
        path.is_ident("test") || path.is_ident("cfg") && holds() == Some(false)
    })
}

/// What a predicate is where `test` is not set; `None` depends on other settings.
fn holds_outside_tests(predicate: &Meta) -> Option<bool> {
    let Meta::List(list) = predicate else {
        return predicate.path().is_ident("test").then_some(false);
    };
    let inner = list.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated).ok()?;
    let mut inner = inner.iter().map(holds_outside_tests);
    if list.path.is_ident("not") {
        return inner.next()?.map(|holds| !holds);
    }
    // `all` is decided by one that is false, `any` by one that is true; else by agreement.
    let decisive = list.path.is_ident("any");
    if !decisive && !list.path.is_ident("all") {
        return None;
    }
    let inner: Vec<_> = inner.collect();
    if inner.contains(&Some(decisive)) {
        return Some(decisive);
    }
    (!inner.contains(&None)).then_some(!decisive)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_item_is_for_tests_only_if_its_cfg_needs_test() {
        let is_test_only = |text: &str| {
            let item: syn::ItemFn = syn::parse_str(&format!("{text} fn f() {{}}")).expect("an item");
            is_test_only(&item.attrs)
        };
        for text in [
            "#[test]",
            "#[cfg(test)]",
            "#[cfg(all(test, unix))]",
            "#[cfg(any(test, all(unix, test)))]",
            "#[cfg(not(not(test)))]",
        ] {
            assert!(is_test_only(text), "{text}");
        }
        for text in [
            "",
            "#[cfg(unix)]",
            "#[cfg(not(test))]",
            "#[cfg(any(test, feature = \"mutations\"))]",
            "#[cfg(not(all(test, unix)))]",
            "#[inline]",
            "#[cfg_attr(test, allow(dead_code))]",
        ] {
            assert!(!is_test_only(text), "{text}");
        }
    }
}
