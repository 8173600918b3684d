//! One version, wherever it is said.

/// What names a version, and which.
pub struct Said {
    /// A file, or a function.
    pub place: String,
    /// `major.minor.patch`; nothing if none was found there.
    pub version: Option<String>,
}

impl Said {
    /// What was found at a place.
    pub fn new(place: &str, version: Option<String>) -> Self {
        let place = place.to_owned();
        Self { place, version }
    }
}

/// The SONAME of a version: its first number.
pub fn soname(version: &str) -> String {
    let major = version.split('.').next().unwrap_or(version);
    format!("libbfc.so.{major}")
}

/// Every place must say the version of Cargo.toml.
pub fn disagreements(version: &str, said: &[Said]) -> Vec<String> {
    said.iter()
        .filter(|said| said.version.as_deref() != Some(version))
        .map(|said| {
            let found = said.version.as_deref().unwrap_or("nothing");
            let place = &said.place;
            format!("{place} says {found}, Cargo.toml {version}")
        })
        .collect()
}

/// What bfc.h defines as BFC_VERSION_MAJOR, _MINOR and _PATCH.
pub fn of_header(text: &str) -> Option<String> {
    let number = |name: &str| {
        let define = format!("#define BFC_VERSION_{name} ");
        let mut found = text.lines().filter_map(|line| line.strip_prefix(&define));
        found.next().map(str::trim)
    };
    let [major, minor, patch] = [number("MAJOR")?, number("MINOR")?, number("PATCH")?];
    Some(format!("{major}.{minor}.{patch}"))
}

/// What a pkg-config file has as its Version.
pub fn of_pkg_config(text: &str) -> Option<String> {
    let mut found = text.lines().filter_map(|line| line.strip_prefix("Version:"));
    found.next().map(|version| version.trim().to_owned())
}

/// What a CMake version file sets as PACKAGE_VERSION.
pub fn of_cmake(text: &str) -> Option<String> {
    let set = "set(PACKAGE_VERSION \"";
    let mut found = text.lines().filter_map(|line| line.strip_prefix(set));
    let (version, _) = found.next()?.split_once('"')?;
    Some(version.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEADER: &str =
        "#define BFC_VERSION_MAJOR 0\n#define BFC_VERSION_MINOR 1\n#define BFC_VERSION_PATCH 20\n";

    #[test]
    fn versions_are_found_where_they_are_said() {
        assert_eq!(of_header(HEADER).as_deref(), Some("0.1.20"));
        assert_eq!(of_pkg_config("Name: bfc\nVersion: 0.1.20\n").as_deref(), Some("0.1.20"));
        let cmake = "# x\nset(PACKAGE_VERSION \"0.1.20\")\n";
        assert_eq!(of_cmake(cmake).as_deref(), Some("0.1.20"));
        assert_eq!(soname("3.1.20"), "libbfc.so.3");
    }

    #[test]
    fn a_place_without_a_version_has_none() {
        assert_eq!(of_header("#define BFC_VERSION_MAJOR 0\n"), None);
        assert_eq!(of_pkg_config("Name: bfc\n"), None);
        assert_eq!(of_cmake("set(PACKAGE_VERSION 1)\n"), None);
    }

    #[test]
    fn agreement_passes_and_another_or_no_version_fails() {
        let said = |version: Option<&str>| [Said::new("bfc.h", version.map(str::to_owned))];
        assert!(disagreements("0.1.20", &said(Some("0.1.20"))).is_empty());
        let other = disagreements("0.1.20", &said(Some("0.1.2")));
        assert_eq!(other, ["bfc.h says 0.1.2, Cargo.toml 0.1.20"]);
        assert_eq!(disagreements("0.1.20", &said(None)).len(), 1);
    }
}
