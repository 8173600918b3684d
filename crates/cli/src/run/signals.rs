//! Signals while the command waits for a program: passed on, so that a signal that ends the command ends the program too.

use std::io;
use std::mem::MaybeUninit;
use std::process::{Child, ExitStatus};
use std::ptr;
use std::sync::atomic::{AtomicI32, Ordering};

use anyhow::{Context, Result};
use libc::{c_int, c_void, pid_t, siginfo_t};

/// The signals that a shell, a supervisor or a user sends to end a program, or to notify it.
const PASSED_ON: [c_int; 6] =
    [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM, libc::SIGUSR1, libc::SIGUSR2];

/// The child, or 0.
static CHILD: AtomicI32 = AtomicI32::new(0);

extern "C" fn pass_on(signal: c_int, info: *mut siginfo_t, _: *mut c_void) {
    // SAFETY: the system gives a valid siginfo_t to a handler installed with SA_SIGINFO.
    let code = unsafe { (*info).si_code };
    let child = CHILD.load(Ordering::Relaxed);
    // The child gets a terminal's signals (code SI_KERNEL, above 0) too, because it is in the same process group.
    if child > 0 && code <= 0 {
        // SAFETY: takes nothing; the place of this thread's errno.
        let errno = unsafe { libc::__errno_location() };
        // SAFETY: valid for this thread. The interrupted code may be about to look at it.
        let before = unsafe { *errno };
        // SAFETY: allowed in a handler; the number is that of a child which is not waited for yet, so it is no other process's.
        unsafe { libc::kill(child, signal) };
        // SAFETY: as above.
        unsafe { *errno = before };
    }
}

/// Signals that wait until there is a child to pass them on to.
#[derive(Clone, Copy)]
pub struct Held {
    before: libc::sigset_t,
}

impl Held {
    fn new() -> Result<Self> {
        Ok(Self { before: mask(libc::SIG_BLOCK, &passed_on()).context("cannot change the signal mask")? })
    }

    /// In the child: restores the original handling of signals.
    pub fn release(&self) {
        for signal in PASSED_ON {
            if action(signal).is_ok_and(|action| action.sa_sigaction == handler()) {
                // SAFETY: the usual effect of a signal, for which no other handler was installed.
                unsafe { libc::signal(signal, libc::SIG_DFL) };
            }
        }
        // It can only fail for wrong arguments.
        let _ = mask(libc::SIG_SETMASK, &self.before);
    }
}

/// Starts a child and waits for its end, passing on signals from the first moment. The child must `release` the held
/// signals.
pub fn wait(start: impl FnOnce(Held) -> Result<Child>) -> Result<ExitStatus> {
    let held = Held::new()?;
    for signal in PASSED_ON {
        listen(signal).context("cannot listen to signals")?;
    }
    let started = start(held);
    if let Ok(child) = &started {
        CHILD.store(pid_t::try_from(child.id()).unwrap_or(0), Ordering::Relaxed);
    }
    mask(libc::SIG_SETMASK, &held.before).context("cannot change the signal mask")?;
    let mut child = started?;
    until_ended(&child);
    CHILD.store(0, Ordering::Relaxed);
    child.wait().context("cannot wait for the program")
}

/// Waits, and keeps the number of the child reserved.
fn until_ended(child: &Child) {
    loop {
        let mut info = MaybeUninit::<siginfo_t>::zeroed();
        // SAFETY: the buffer is of the type that is written.
        let result = unsafe {
            libc::waitid(libc::P_PID, child.id(), info.as_mut_ptr(), libc::WEXITED | libc::WNOWAIT)
        };
        // The following wait reports any failure other than an interruption.
        if result == 0 || io::Error::last_os_error().kind() != io::ErrorKind::Interrupted {
            return;
        }
    }
}

/// Installs the handler, unless the signal was ignored when the command started, as under nohup. The program then
/// ignores it as well.
fn listen(signal: c_int) -> io::Result<()> {
    if action(signal)?.sa_sigaction == libc::SIG_IGN {
        return Ok(());
    }
    // SAFETY: all zeros is a valid value of this type of plain numbers.
    let mut new: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    new.sa_sigaction = handler();
    new.sa_flags = libc::SA_SIGINFO | libc::SA_RESTART;
    // SAFETY: the handler has the signature that SA_SIGINFO asks for, and only reads an atomic and calls kill.
    let set = unsafe { libc::sigaction(signal, &raw const new, ptr::null_mut()) };
    if set == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// What a signal does now.
fn action(signal: c_int) -> io::Result<libc::sigaction> {
    // SAFETY: all zeros is a valid value of this type of plain numbers.
    let mut action: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: asks only; the buffer is of the type that is written.
    let asked = unsafe { libc::sigaction(signal, ptr::null(), &raw mut action) };
    if asked == 0 { Ok(action) } else { Err(io::Error::last_os_error()) }
}

fn handler() -> libc::sighandler_t {
    pass_on as extern "C" fn(c_int, *mut siginfo_t, *mut c_void) as libc::sighandler_t
}

fn passed_on() -> libc::sigset_t {
    // SAFETY: all zeros is a valid value of this type of plain numbers; on Linux it is the empty set.
    let mut set: libc::sigset_t = unsafe { MaybeUninit::zeroed().assume_init() };
    for signal in PASSED_ON {
        // SAFETY: a valid set, and a signal that exists.
        unsafe { libc::sigaddset(&raw mut set, signal) };
    }
    set
}

/// Changes the thread's mask, and returns the previous one.
fn mask(how: c_int, set: &libc::sigset_t) -> io::Result<libc::sigset_t> {
    // SAFETY: all zeros is a valid value of this type of plain numbers.
    let mut old: libc::sigset_t = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: both sets are valid, and of this frame.
    let error = unsafe { libc::pthread_sigmask(how, set, &raw mut old) };
    if error == 0 { Ok(old) } else { Err(io::Error::from_raw_os_error(error)) }
}
