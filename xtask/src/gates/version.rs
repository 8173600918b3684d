//! The library's name for the linker.

/// The SONAME of a version: its first number.
pub fn soname(version: &str) -> String {
    let major = version.split('.').next().unwrap_or(version);
    format!("libbfc.so.{major}")
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_soname_has_the_first_number() {
        assert_eq!(super::soname("3.1.20"), "libbfc.so.3");
    }
}
