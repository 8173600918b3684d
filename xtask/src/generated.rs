//! Files of the project that are generated, and checked in.

use anyhow::{Result, ensure};

use crate::files;
use crate::workspace::Workspace;

/// A file of the project that is generated.
pub struct Generated {
    /// Its path in the project.
    pub path: String,
    /// What it is to contain.
    pub text: String,
}

impl Generated {
    /// Writes it, and prints whether anything changed.
    pub fn write(&self, workspace: &Workspace) -> Result<()> {
        let Self { path, text } = self;
        if files::read(&workspace.path(path)).is_ok_and(|old| old == *text) {
            println!("{path} is up to date");
            return Ok(());
        }
        files::write(&workspace.path(path), text)?;
        println!("{path} is new; look at it with `git diff {path}`");
        Ok(())
    }

    /// Returns an error with the first line that differs, unless the file is up to date.
    pub fn check(&self, workspace: &Workspace) -> Result<()> {
        let Self { path, text } = self;
        let checked_in = files::read(&workspace.path(path))?;
        let same = checked_in.lines().zip(text.lines()).take_while(|(old, new)| old == new).count();
        let line = |text: &str| text.lines().nth(same).unwrap_or("(the end)").to_owned();
        ensure!(
            checked_in == *text,
            "{path} is not the generated file, run `cargo xtask header`, `hooks` or `licenses`; line {}:\n  - {}\n  + {}",
            same + 1,
            line(&checked_in),
            line(text)
        );
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_that_is_not_the_generated_one_is_an_error_with_the_line() {
        let workspace = Workspace::find().expect("a checkout");
        let path = "LICENSE-MIT".to_owned();
        let text = files::read(&workspace.path(&path)).expect("it is there");
        let check = |text: &str| Generated { path: path.clone(), text: text.to_owned() }.check(&workspace);
        check(&text).expect("the same");
        let changed = text.replacen('\n', "\nmore\n", 1);
        assert!(check(&changed).unwrap_err().to_string().contains("line 2:\n"));
        for changed in [format!("{text}more"), text.replace('\n', "\r\n"), String::new()] {
            assert!(check(&changed).is_err());
        }
    }
}
