//! `bfc generate`: man pages and shell completions, which follow from the command's definition.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::Path;

use anyhow::{Context, Result};
use clap::Command;
use clap_complete::Shell;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

/// Writes those of the whole command below `share`, in the folders that man and the shells search.
pub fn generate(whole: Command, share: &Path) -> Result<()> {
    let folder = |inside: &str| {
        let folder = share.join(inside);
        fs::create_dir_all(&folder).with_context(|| format!("cannot create {}", folder.display()))?;
        anyhow::Ok(folder)
    };
    // Without this subcommand: man pages leave out what is hidden, completions do not.
    let visible = whole.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    let mut shown = Command::new("bfc")
        .version("")
        .args(whole.get_arguments().cloned())
        .subcommands(visible.collect::<Vec<_>>());
    write_pages(whole, &folder("man/man1")?)?;
    for (shell, inside) in [
        (Shell::Bash, "bash-completion/completions"),
        (Shell::Zsh, "zsh/site-functions"),
        (Shell::Fish, "fish/vendor_completions.d"),
    ] {
        clap_complete::generate_to(shell, &mut shown, "bfc", folder(inside)?)?;
    }
    Ok(())
}

/// Writes the man page of a command, and those of its subcommands.
fn write_pages(command: Command, folder: &Path) -> Result<()> {
    let mut command = command.disable_help_subcommand(true);
    // The names of subcommands then begin with those of their commands.
    command.build();
    let subcommands = command.get_subcommands().filter(|command| !command.is_hide_set()).cloned();
    for command in subcommands.chain([command.clone()]) {
        let page = folder.join(Man::new(command.clone()).get_filename());
        File::create(&page)
            .and_then(|mut file| write_page(&command, &mut file))
            .with_context(|| format!("cannot write {}", page.display()))?;
    }
    Ok(())
}

/// Writes a page. The text after the options gets sections of its own, whose lines stay as they are. clap_mangen would
/// reflow them, in one section named EXTRA.
fn write_page(command: &Command, out: &mut dyn Write) -> io::Result<()> {
    let man = Man::new(command.clone()).source(concat!("bfc ", env!("CARGO_PKG_VERSION")));
    man.render_title(out)?;
    man.render_name_section(out)?;
    man.render_synopsis_section(out)?;
    man.render_description_section(out)?;
    man.render_options_section(out)?;
    if command.has_subcommands() {
        man.render_subcommands_section(out)?;
    }
    let end = command.get_after_long_help().or(command.get_after_help()).map(ToString::to_string);
    let mut sections = Roff::new();
    for paragraph in end.unwrap_or_default().split("\n\n") {
        match paragraph.split_once(":\n") {
            Some(("Exit codes", lines)) => as_is(&mut sections, "EXIT STATUS", lines),
            Some((heading, lines)) => as_is(&mut sections, &heading.to_uppercase(), lines),
            None => {
                sections.control("PP", []).text([roman(paragraph)]);
            }
        }
    }
    sections.to_writer(out)?;
    if command.get_version().is_some() { man.render_version_section(out) } else { Ok(()) }
}

fn as_is(sections: &mut Roff, heading: &str, lines: &str) {
    sections.control("SH", [heading]).control("nf", []).text([roman(lines)]).control("fi", []);
}
