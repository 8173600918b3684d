//! Programs of C ABI calls with hostile arguments: see `tests/interpreter`, which `tests/programs.rs` runs
//! on seeds.

#![no_main]

#[path = "../../tests/common/mod.rs"]
mod common;
#[path = "../../tests/interpreter/mod.rs"]
mod interpreter;

libfuzzer_sys::fuzz_target!(
    init: {
        // libFuzzer's own hook ends the process at any panic, one that the library catches too.
        let abort = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            interpreter::show_steps();
            abort(info);
        }));
    },
    |program: &[u8]| interpreter::run(program, [258, 259, 1023])
);
