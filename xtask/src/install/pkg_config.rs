//! Reading a pkg-config file where there is no pkg-config to ask: variables, and the fields that are
//! needed to compile and link.

use std::collections::BTreeMap;

use anyhow::{Context, Result, bail};

/// The flags that `pkg-config --cflags --libs` prints for a file in the folder `folder`; with
/// `link_statically` those of `--static`.
pub fn flags(text: &str, folder: &str, link_statically: bool) -> Result<Vec<String>> {
    let (_, fields) = parse(text, folder)?;
    let mut wanted = vec!["Cflags", "Libs"];
    if link_statically {
        wanted.push("Libs.private");
    }
    let mut found = Vec::new();
    for name in wanted {
        let field = fields.get(name).with_context(|| format!("there is no field {name}"))?;
        found.extend(field.split_whitespace().map(str::to_owned));
    }
    Ok(found)
}

/// What `pkg-config --variable=NAME` prints.
pub fn variable(text: &str, folder: &str, name: &str) -> Result<String> {
    let (mut variables, _) = parse(text, folder)?;
    variables.remove(name).with_context(|| format!("there is no variable {name}"))
}

type Values = BTreeMap<String, String>;

/// The variables and the fields.
fn parse(text: &str, folder: &str) -> Result<(Values, Values)> {
    let mut variables = BTreeMap::from([("pcfiledir".to_owned(), folder.to_owned())]);
    let mut fields = BTreeMap::new();
    for line in text.lines().map(str::trim) {
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        // Whichever comes first decides: a field's value may hold a `=`, a path a `:`.
        let at = line.find(['=', ':']).with_context(|| format!("neither a variable nor a field: {line}"))?;
        let (name, value) = (line[..at].trim(), line[at + 1..].trim());
        let value = expand(value, &variables)?;
        if line[at..].starts_with('=') {
            variables.insert(name.to_owned(), value);
        } else {
            fields.insert(name.to_owned(), value);
        }
    }
    Ok((variables, fields))
}

/// Puts in the variables' values.
fn expand(value: &str, variables: &BTreeMap<String, String>) -> Result<String> {
    let mut parts = value.split("${");
    let mut text = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let Some((name, rest)) = part.split_once('}') else {
            bail!("a variable without an end: {value}");
        };
        let value = variables.get(name).with_context(|| format!("the variable {name} is not set"))?;
        text.push_str(value);
        text.push_str(rest);
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FILE: &str = "# a remark\nprefix=${pcfiledir}/..\nName: x\nCflags: -I${prefix}/include -DA=1\nLibs: -L${prefix} -lx\nLibs.private: -lm\n";

    #[test]
    fn flags_are_expanded() {
        let shared = flags(FILE, "/p", false).expect("a good file");
        assert_eq!(shared, ["-I/p/../include", "-DA=1", "-L/p/..", "-lx"]);
        let archive = flags(FILE, "/p", true).expect("a good file");
        assert_eq!(archive.last().map(String::as_str), Some("-lm"));
    }

    #[test]
    fn variables_are_expanded() {
        assert_eq!(variable(FILE, "/p", "prefix").expect("it is there"), "/p/..");
        assert!(variable(FILE, "/p", "libdir").is_err());
    }

    #[test]
    fn a_bad_file_is_refused() {
        assert!(flags("Cflags: -I${prefix}\nLibs: -lx\n", "/p", false).is_err());
        assert!(flags("Cflags: -I${prefix\nLibs: -lx\n", "/p", false).is_err());
        assert!(flags("Cflags:\n", "/p", false).is_err());
        assert!(flags("Cflags\n", "/p", false).is_err());
        assert!(flags("Cflags:\nLibs:\n", "/p", true).is_err());
    }
}
