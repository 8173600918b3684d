//! `bfc generate`: man pages and shell completions, which follow from the command's definition.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use clap::{Command, CommandFactory};
use clap_complete::Shell;

/// Writes them below `share`, in the folders in which man and the shells look.
pub fn generate(share: &Path) -> Result<()> {
    let folder = |inside: &str| {
        let folder = share.join(inside);
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        anyhow::Ok(folder)
    };
    let whole = crate::Cli::command();
    // Without this subcommand: man pages leave out what is hidden, completions do not.
    let visible = whole.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    let mut shown = Command::new("bfc")
        .version("")
        .args(whole.get_arguments().cloned())
        .subcommands(visible.collect::<Vec<_>>());
    clap_mangen::generate_to(whole, folder("man/man1")?)?;
    for (shell, inside) in [
        (Shell::Bash, "bash-completion/completions"),
        (Shell::Zsh, "zsh/site-functions"),
        (Shell::Fish, "fish/vendor_completions.d"),
    ] {
        clap_complete::generate_to(shell, &mut shown, "bfc", folder(inside)?)?;
    }
    Ok(())
}
