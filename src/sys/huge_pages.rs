//! Huge pages: the system's setting.

use super::host::read_file;

/// The system's setting for anonymous memory (`/sys/kernel/mm/transparent_hugepage/enabled`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum SystemSetting {
    /// It uses huge pages wherever it can.
    Always,
    /// It uses them where `madvise` requests it.
    OnAdvice,
    /// It uses none, or supports none.
    Never,
}

pub(crate) fn system_setting() -> SystemSetting {
    let mut buffer = [0; 128];
    let text = read_file(c"/sys/kernel/mm/transparent_hugepage/enabled", &mut buffer);
    setting_in(text.unwrap_or_default())
}

/// Finds the word in brackets, as in `always [madvise] never`.
fn setting_in(text: &str) -> SystemSetting {
    match text.split_once('[').and_then(|(_, rest)| rest.split_once(']')) {
        Some(("always", _)) => SystemSetting::Always,
        Some(("madvise", _)) => SystemSetting::OnAdvice,
        _ => SystemSetting::Never,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_is_the_word_in_brackets() {
        for (text, setting) in [
            ("always [madvise] never\n", SystemSetting::OnAdvice),
            ("[always] madvise never\n", SystemSetting::Always),
            ("always madvise [never]\n", SystemSetting::Never),
            ("always madvise never", SystemSetting::Never),
            ("]madvise[", SystemSetting::Never),
            ("", SystemSetting::Never),
        ] {
            assert_eq!(setting_in(text), setting, "{text}");
        }
    }
}
