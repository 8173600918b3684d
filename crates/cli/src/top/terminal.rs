//! The terminal of `bfc top`: drawing, keys, and restoring it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use ratatui::crossterm::event::{self, Event};

use super::app::App;
use super::screen;
use bfc_readers::published::reader::Reading;

/// Set by a signal that ends the command.
static HAS_TO_END: AtomicBool = AtomicBool::new(false);

extern "C" fn end(_: libc::c_int) {
    HAS_TO_END.store(true, Ordering::Relaxed);
}

/// The longest delay of a signal.
const PATIENCE: Duration = Duration::from_millis(250);

/// Shows the screen until a key or a signal ends it.
pub fn show(read: impl Fn() -> Reading, first: Reading, interval: Duration) -> Result<()> {
    let handler: extern "C" fn(libc::c_int) = end;
    for signal in [libc::SIGTERM, libc::SIGHUP] {
        // SAFETY: the handler only stores a flag.
        unsafe { libc::signal(signal, handler as *const () as libc::sighandler_t) };
    }
    // It restores the terminal in a panic, too.
    let mut terminal = ratatui::try_init().context("cannot prepare the terminal")?;
    let shown = run(&mut terminal, read, first, interval);
    ratatui::try_restore().context("cannot restore the terminal")?;
    shown
}

fn run(
    terminal: &mut ratatui::DefaultTerminal,
    read: impl Fn() -> Reading,
    first: Reading,
    interval: Duration,
) -> Result<()> {
    let mut app = App::new();
    app.take(first);
    let mut next = Instant::now() + interval;
    loop {
        terminal.draw(|frame| screen::draw(frame, &app)).context("cannot draw")?;
        let wait = next.saturating_duration_since(Instant::now()).min(PATIENCE);
        if HAS_TO_END.load(Ordering::Relaxed) {
            return Ok(());
        }
        match event::poll(wait) {
            Ok(true) => {
                if let Event::Key(key) = event::read().context("cannot read a key")?
                    && !app.press(key)
                {
                    return Ok(());
                }
            }
            Ok(false) => {}
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error).context("cannot read the terminal"),
        }
        if Instant::now() >= next {
            app.take(read());
            next = Instant::now() + interval;
        }
    }
}
