//! What a library of the wheel needs of the system, read from what `nm` prints.

/// Looks at what `nm -D --undefined-only` prints for symbols of a glibc newer than `newest`.
pub fn glibc(nm: &str, newest: (u32, u32)) -> Vec<String> {
    let needed: Vec<(&str, &str)> = nm
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .filter_map(|symbol| symbol.split_once("@GLIBC_"))
        .map(|(symbol, version)| (symbol, version.trim_start_matches('@')))
        .collect();
    if needed.is_empty() {
        return vec!["no symbol of glibc is needed: this is not what nm prints of libbfc.so".into()];
    }
    needed
        .iter()
        .filter(|(_, version)| parse(version).is_none_or(|version| version > newest))
        .map(|(symbol, version)| {
            let (major, minor) = newest;
            format!("{symbol} needs GLIBC_{version}; the newest allowed is {major}.{minor}")
        })
        .collect()
}

/// `2.34` or `2.3.4`; nothing for `PRIVATE`, which no library of ours may need.
fn parse(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_old_glibc_passes() {
        let nm =
            "   U malloc@GLIBC_2.2.5\n   w gnu_get@GLIBC_2.3.4\n   U dlsym@GLIBC_2.34\n   w __gmon_start__\n";
        assert!(glibc(nm, (2, 34)).is_empty());
    }

    #[test]
    fn a_new_a_private_and_no_glibc_fail() {
        let new = glibc("   U strlcpy@GLIBC_2.38\n   U malloc@GLIBC_2.2.5\n", (2, 34));
        assert!(new.len() == 1 && new[0].contains("strlcpy needs GLIBC_2.38"), "{new:?}");
        assert_eq!(glibc("   w pidfd@GLIBC_2.39\n", (2, 34)).len(), 1);
        assert_eq!(glibc("   U x@GLIBC_3.0\n", (2, 34)).len(), 1);
        assert_eq!(glibc("   U _dl_x@GLIBC_PRIVATE\n", (2, 34)).len(), 1);
        assert_eq!(glibc("nm: no such file\n", (2, 34)).len(), 1);
    }
}
