//! Progress if standard error is not a terminal: a line after some seconds, and then one from time to time. For the bfc
//! command and the project's chores (xtask).

use std::io::{self, Write};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use indicatif::{ProgressDrawTarget, TermLike};

/// Work that takes less time shows nothing.
const FIRST: Duration = Duration::from_secs(5);

/// The time between two lines.
const EVERY: Duration = Duration::from_secs(20);

/// Standard error, for a bar that is made for a terminal.
#[derive(Debug)]
struct Lines(Mutex<State>);

#[derive(Debug)]
struct State {
    line: String,
    next: Instant,
}

/// Prints what a bar draws to standard error, rarely. Its template must have one line.
pub fn target() -> ProgressDrawTarget {
    let state = State { line: String::new(), next: Instant::now() + FIRST };
    ProgressDrawTarget::term_like_with_hz(Box::new(Lines(Mutex::new(state))), 1)
}

impl Lines {
    fn with(&self, change: impl FnOnce(&mut State) -> io::Result<()>) -> io::Result<()> {
        change(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl TermLike for Lines {
    fn width(&self) -> u16 {
        120
    }

    fn move_cursor_up(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_down(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_right(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn move_cursor_left(&self, _: usize) -> io::Result<()> {
        Ok(())
    }

    fn write_line(&self, text: &str) -> io::Result<()> {
        self.write_str(text)
    }

    fn write_str(&self, text: &str) -> io::Result<()> {
        self.with(|state| {
            state.line.push_str(text);
            Ok(())
        })
    }

    fn clear_line(&self) -> io::Result<()> {
        self.with(|state| {
            state.line.clear();
            Ok(())
        })
    }

    fn flush(&self) -> io::Result<()> {
        self.with(|state| {
            let line = std::mem::take(&mut state.line);
            let now = Instant::now();
            if now < state.next || line.trim().is_empty() {
                return Ok(());
            }
            state.next = now + EVERY;
            // In one piece, because lines of several processes must not mix.
            io::stderr().write_all(format!("{}\n", line.trim_end()).as_bytes())
        })
    }
}
