//! A program as a child of this command.

use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use anyhow::Result;

use super::program::Program;
use super::settings::Settings;
use super::signals;
use super::verdict::Ended;

/// What is added to the number of the signal that ended a program, as in a shell.
const BY_SIGNAL: i32 = 128;

/// Runs the program as a child and waits for it, passing on signals. Returns its number and how it ended.
pub fn wait_for(program: &Program, settings: &Settings) -> Result<(u32, Ended)> {
    let mut pid = 0;
    let status = signals::wait(|held| {
        // SAFETY: release only calls what is allowed between fork and exec.
        let child = unsafe { program.spawn(settings, move || held.release()) }?;
        pid = child.id();
        Ok(child)
    })?;
    Ok((pid, ended(status)))
}

fn ended(status: ExitStatus) -> Ended {
    status.code().map_or_else(|| Ended::Signal(status.signal().unwrap_or(0)), Ended::Code)
}

/// A shell's exit code for a program that ended in this way.
pub fn code(ended: Ended) -> u8 {
    let code = match ended {
        Ended::Code(code) => code,
        Ended::Signal(signal) => BY_SIGNAL + signal,
    };
    u8::try_from(code).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_of_a_program_is_an_exit_code() {
        assert_eq!(code(ended(ExitStatus::from_raw(5 << 8))), 5);
        assert_eq!(code(ended(ExitStatus::from_raw(libc::SIGTERM))), 143);
    }
}
