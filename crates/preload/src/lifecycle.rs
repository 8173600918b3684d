//! The beginning and the end of the process.

use crate::diagnostics::{check_log, report, trace};
use crate::pool::Pool;
use crate::settings;

/// Does not call CUDA, because most processes that load this library do not use it.
extern "C" fn loaded() {
    settings::read();
    check_log::loaded();
    report::loaded();
}

/// Runs after the program's own handlers. Other threads may continue to allocate.
extern "C" fn unloaded() {
    trace::finish();
    report::finish(Pool::all());
    report::say_next_step();
    check_log::exit(check_log::is_driver_mapped());
}

#[used]
#[unsafe(link_section = ".init_array")]
static LOADED: extern "C" fn() = loaded;

#[used]
#[unsafe(link_section = ".fini_array")]
static UNLOADED: extern "C" fn() = unloaded;
