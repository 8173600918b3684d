//! A checked-in file is the generated one.

/// Where two texts part.
pub fn differences(name: &str, checked_in: &str, generated: &str) -> Vec<String> {
    if checked_in == generated {
        return Vec::new();
    }
    let (mut ours, mut theirs) = (checked_in.lines(), generated.lines());
    let mut number = 0;
    let first = loop {
        number += 1;
        match (ours.next(), theirs.next()) {
            (None, None) => break "they differ in how their lines end".to_owned(),
            (old, new) if old == new => {}
            (old, new) => {
                let shown = |line: Option<&str>| line.unwrap_or("(the end)").to_owned();
                break format!("line {number}:\n  - {}\n  + {}", shown(old), shown(new));
            }
        }
    };
    vec![format!("{name} is not what is generated: run `cargo xtask header`; {first}")]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn equal_texts_pass() {
        assert!(differences("bfc.h", "int a;\n", "int a;\n").is_empty());
    }

    #[test]
    fn a_changed_a_missing_and_a_further_line_fail() {
        let changed = differences("bfc.h", "int a;\nint b;\n", "int a;\nint c;\n");
        assert!(changed[0].contains("line 2:\n  - int b;\n  + int c;"), "{changed:?}");
        assert_eq!(differences("bfc.h", "int a;\n", "int a;\nint b;\n").len(), 1);
        assert_eq!(differences("bfc.h", "int a;\nint b;\n", "int a;\n").len(), 1);
        assert_eq!(differences("bfc.h", "int a;\n", "int a;\r\n").len(), 1);
        assert_eq!(differences("bfc.h", "", "int a;").len(), 1);
    }
}
