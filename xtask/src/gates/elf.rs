//! What libbfc.so and libbfc_preload.so show the linker and the loader, read from what `nm` and `readelf` print.

use std::collections::BTreeSet;

/// The newest glibc whose symbols may be needed: that of RHEL 9 and Ubuntu 22.04.
pub const NEWEST_GLIBC: (u32, u32) = (2, 34);

/// What a library may load of the system's. A GPU driver is looked for at run time and never linked.
const LIBRARIES: [&str; 5] =
    ["libc.so.6", "libgcc_s.so.1", "libm.so.6", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"];

/// A list of what a library may export.
pub struct Exports<'a> {
    /// The library's name.
    pub library: &'a str,
    /// The file that the list is from.
    pub listed_in: &'a str,
    /// A name a line, `#` begins a remark.
    pub list: &'a str,
}

/// What a library's dynamic section has to say.
pub struct Dynamic<'a> {
    /// The library's name.
    pub library: &'a str,
    /// Its SONAME.
    pub soname: &'a str,
    /// Where it looks for others, if it may.
    pub runpath: Option<&'a str>,
    /// What it has to load beside what it may load of the system's.
    pub needed: &'a [&'a str],
}

/// Compares what `nm -D --defined-only` prints with the list.
pub fn exports(nm: &str, exports: &Exports<'_>) -> Vec<String> {
    let Exports { library, listed_in, list } = exports;
    // The third word is the name; its version, if any, follows an @.
    let names = nm.lines().filter_map(|line| line.split_whitespace().nth(2));
    let found: BTreeSet<&str> = names.map(|name| name.split('@').next().unwrap_or(name)).collect();
    let lines = list.lines().map(|line| line.split('#').next().unwrap_or("").trim());
    let names: Vec<&str> = lines.filter(|line| !line.is_empty()).collect();
    let listed: BTreeSet<&str> = names.iter().copied().collect();

    let mut wrong = Vec::new();
    if found.is_empty() {
        wrong.push(format!("{library} exports nothing at all"));
    }
    if names.len() != listed.len() {
        wrong.push(format!("{listed_in} names something twice"));
    }
    let missing =
        listed.difference(&found).map(|name| format!("{name} is listed in {listed_in} but not exported"));
    let extra = found.difference(&listed).map(|name| {
        format!(
            "{name} is exported but not listed in {listed_in}: add it there if it belongs there, else it \
             must not be visible"
        )
    });
    wrong.extend(missing);
    wrong.extend(extra);
    wrong
}

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

/// Looks at what `readelf -d` prints: the name, what is loaded with it and from where, and that it stays loaded.
pub fn dynamic(readelf: &str, expected: &Dynamic<'_>) -> Vec<String> {
    let Dynamic { library, soname, runpath, needed } = expected;
    let entries: Vec<(&str, &str)> = readelf.lines().filter_map(entry).collect();
    let of = |tag: &'static str| {
        let found = entries.iter().filter(move |(name, _)| *name == tag);
        found.map(|(_, value)| bracketed(value))
    };

    let mut wrong = Vec::new();
    let names: Vec<&str> = of("SONAME").collect();
    if names != [*soname] {
        wrong.push(format!("the SONAME is {names:?} and not {soname}"));
    }
    for (flag, why) in [
        ("NODELETE", "dlclose would unmap code that is still called"),
        ("NOW", "the loader would look functions up on the caller's stack, which may be small"),
    ] {
        if !of("FLAGS_1").any(|flags| flags.split_whitespace().any(|found| found == flag)) {
            wrong.push(format!("{flag} is not set: {why}"));
        }
    }
    for tag in ["RPATH", "TEXTREL"] {
        if let Some(value) = of(tag).next() {
            wrong.push(format!("{tag} is set: {value}"));
        }
    }
    let runpaths: Vec<&str> = of("RUNPATH").collect();
    if runpaths != runpath.as_slice() {
        wrong.push(format!("the RUNPATH is {runpaths:?} and not {runpath:?}"));
    }
    let found: Vec<&str> = of("NEEDED").collect();
    let missing = needed.iter().filter(|name| !found.contains(name));
    wrong.extend(missing.map(|name| format!("{name} is not loaded with {library}")));
    let others = found.iter().filter(|name| !LIBRARIES.contains(name) && !needed.contains(name));
    wrong.extend(others.map(|name| format!("{name} is loaded with {library}")));
    wrong
}

/// What stands in brackets, if anything does.
fn bracketed(value: &str) -> &str {
    let inside = value.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    inside.map_or(value, |(inside, _)| inside)
}

/// Compares what `rustc --print native-static-libs` says with the libraries that installed files name for
/// the archive.
pub fn archive_libraries(rustc: &str, named: &[&str]) -> Vec<String> {
    let mut lines = rustc.lines();
    let Some(found) = lines.find_map(|line| line.split_once("native-static-libs: ")) else {
        return vec!["rustc names no library: this is not what it prints".to_owned()];
    };
    let needed = found.1.split_whitespace();
    let names = needed.map(|flag| flag.trim_start_matches("-l"));
    // The compiler driver links the unwinder that fits; see SYSTEM_LIBRARIES.
    let missing = names.filter(|name| *name != "gcc_s" && !named.contains(name));
    missing.map(|name| format!("the archive needs -l{name}, which SYSTEM_LIBRARIES of xtask lacks")).collect()
}

/// A line of `readelf -d`: ` 0x000000000000000e (SONAME)  Library soname: [libbfc.so.0]`.
fn entry(line: &str) -> Option<(&str, &str)> {
    let (_, rest) = line.trim().strip_prefix("0x")?.split_once('(')?;
    let (tag, value) = rest.split_once(')')?;
    Some((tag, value.trim()))
}

/// `2.34` or `2.3.4`; nothing for `PRIVATE`, which no library of ours may need.
fn parse(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.split('.');
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exports(nm: &str, list: &str) -> Vec<String> {
        let listed = Exports { library: "libbfc.so", listed_in: "ffi-tests/symbols.txt", list };
        super::exports(nm, &listed)
    }

    const NM: &str = "0000000000038780 T bfc_alloc\n0000000000038990 T bfc_free\n";

    #[test]
    fn the_listed_exports_pass() {
        assert!(exports(NM, "# the C ABI\nbfc_free\nbfc_alloc # the first\n\n").is_empty());
        assert!(exports("0 T bfc_alloc@@BFC_0\n", "bfc_alloc").is_empty());
    }

    #[test]
    fn a_missing_an_unlisted_and_a_doubled_export_fail() {
        let missing = exports(NM, "bfc_alloc\nbfc_free\nbfc_trim\n");
        assert!(missing.len() == 1 && missing[0].starts_with("bfc_trim is listed"), "{missing:?}");
        let extra = exports(NM, "bfc_alloc\n");
        assert!(extra.len() == 1 && extra[0].starts_with("bfc_free is exported"), "{extra:?}");
        assert_eq!(exports(NM, "bfc_alloc\nbfc_free\nbfc_free\n").len(), 1);
        let leaked = format!("{NM}0 T rust_eh_personality\n");
        assert_eq!(exports(&leaked, "bfc_alloc\nbfc_free").len(), 1);
        assert!(!exports("", "").is_empty());
    }

    #[test]
    fn an_old_glibc_passes() {
        let nm =
            "   U malloc@GLIBC_2.2.5\n   w gnu_get@GLIBC_2.3.4\n   U dlsym@GLIBC_2.34\n   w __gmon_start__\n";
        assert!(glibc(nm, NEWEST_GLIBC).is_empty());
    }

    #[test]
    fn a_new_a_private_and_no_glibc_fail() {
        let new = glibc("   U strlcpy@GLIBC_2.38\n   U malloc@GLIBC_2.2.5\n", NEWEST_GLIBC);
        assert!(new.len() == 1 && new[0].contains("strlcpy needs GLIBC_2.38"), "{new:?}");
        assert_eq!(glibc("   w pidfd@GLIBC_2.39\n", NEWEST_GLIBC).len(), 1);
        assert_eq!(glibc("   U x@GLIBC_3.0\n", NEWEST_GLIBC).len(), 1);
        assert_eq!(glibc("   U _dl_x@GLIBC_PRIVATE\n", NEWEST_GLIBC).len(), 1);
        assert_eq!(glibc("nm: no such file\n", NEWEST_GLIBC).len(), 1);
    }

    #[test]
    fn libraries_of_the_archive_must_all_be_named() {
        let rustc = "note: link against\n\nnote: native-static-libs: -lgcc_s -lrt -lc\n\n";
        assert!(archive_libraries(rustc, &["rt", "m", "c"]).is_empty());
        let missing = archive_libraries(rustc, &["m", "c"]);
        assert!(missing.len() == 1 && missing[0].contains("-lrt"), "{missing:?}");
        assert_eq!(archive_libraries("error", &["rt", "c"]).len(), 1);
    }

    const READELF: &str = "
Dynamic section at offset 0x7d348 contains 29 entries:
  Tag        Type                         Name/Value
 0x0000000000000001 (NEEDED)             Shared library: [libgcc_s.so.1]
 0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]
 0x000000000000000e (SONAME)             Library soname: [libbfc.so.0]
 0x000000006ffffffb (FLAGS_1)            Flags: NOW NODELETE
";

    fn dynamic(readelf: &str, soname: &str) -> Vec<String> {
        super::dynamic(readelf, &Dynamic { library: "libbfc.so", soname, runpath: None, needed: &[] })
    }

    #[test]
    fn a_proper_dynamic_section_passes() {
        assert_eq!(dynamic(READELF, "libbfc.so.0"), [""; 0]);
    }

    #[test]
    fn a_library_that_needs_another_has_to_find_it_there() {
        let expected = Dynamic {
            library: "libbfc_preload.so",
            soname: "libbfc_preload.so.0",
            runpath: Some("$ORIGIN"),
            needed: &["libbfc.so.0"],
        };
        let good = "
 0x000000000000001d (RUNPATH)            Library runpath: [$ORIGIN]
 0x0000000000000001 (NEEDED)             Shared library: [libbfc.so.0]
 0x0000000000000001 (NEEDED)             Shared library: [libc.so.6]
 0x000000000000000e (SONAME)             Library soname: [libbfc_preload.so.0]
 0x000000006ffffffb (FLAGS_1)            Flags: NOW NODELETE
";
        assert_eq!(super::dynamic(good, &expected), [""; 0]);
        let faults = [
            ("[$ORIGIN]", "[/home/me/lib]"),
            ("(RUNPATH) ", "(RPATH) "),
            ("[libbfc.so.0]", "[libbfc.so]"),
            ("[libc.so.6]", "[libcudart.so.12]"),
        ];
        for (old, new) in faults {
            assert!(!super::dynamic(&good.replace(old, new), &expected).is_empty(), "{new}");
        }
    }

    #[test]
    fn each_fault_in_the_dynamic_section_fails() {
        let with = |old: &str, new: &str| dynamic(&READELF.replace(old, new), "libbfc.so.0");
        assert_eq!(dynamic(READELF, "libbfc.so.1").len(), 1);
        assert_eq!(with("soname: [libbfc.so.0]", "soname: [libbfc.so]").len(), 1);
        assert_eq!(with(" NODELETE", "").len(), 1);
        assert_eq!(with("NOW ", "").len(), 1);
        assert_eq!(with("[libgcc_s.so.1]", "[libcuda.so.1]").len(), 1);
        let path = " 0x000000000000001d (RUNPATH)            Library runpath: [/home]\n";
        assert_eq!(dynamic(&format!("{READELF}{path}"), "libbfc.so.0").len(), 1);
        assert_eq!(dynamic("", "libbfc.so.0").len(), 3);
    }
}
