//! Another interposer in the same process, before ours or behind it.
//!
//! Whoever comes first in LD_PRELOAD comes first, and goes on to the second only if it looks the next function up by
//! RTLD_NEXT. Ours goes on to the driver itself.

use anyhow::Result;

use super::reach::{BYPASSED, NOTHING_SEEN};
use super::stage::{Link, Stage};
use crate::suites::context::Context;

/// One that exports the allocation function, and one that exports dlsym as well.
pub fn run(context: &mut Context, stage: &Stage) -> Result<()> {
    let symbol = stage.compile(context, "libchain.so", "chain.c", Link::Library, &[])?;
    let dlsym =
        stage.compile(context, "libchain_dlsym.so", "chain.c", Link::Library, &["-DEXPORTS_DLSYM"])?;
    let flags = ["-DEXPORTS_DLSYM", "-DGOES_STRAIGHT"];
    let by_handle = stage.compile(context, "libchain_straight.so", "chain.c", Link::Library, &flags)?;
    let linked = stage.compile(context, "chained_linked", "chained.c", Link::Driver, &["-DLINKED"])?;
    let looks_up = stage.compile(context, "chained", "chained.c", Link::Nothing, &[])?;
    // Whether our pool serves, and how many of the program's two allocations the other one sees.
    let cases = [
        ("a linked program, another before us", &linked, &symbol, true, ["1", "2"]),
        ("a linked program, another behind us", &linked, &symbol, false, ["1", "0"]),
        ("a program with dlsym, another before us", &looks_up, &symbol, true, ["1", "0"]),
        ("a program with dlsym, another behind us", &looks_up, &symbol, false, ["1", "0"]),
        ("a linked program, one with dlsym before us", &linked, &dlsym, true, ["1", "2"]),
        ("a linked program, one with dlsym behind us", &linked, &dlsym, false, ["1", "0"]),
        ("a program with dlsym, one with dlsym before us", &looks_up, &dlsym, true, ["1", "2"]),
        ("a program with dlsym, one with dlsym behind us", &looks_up, &dlsym, false, ["1", "0"]),
        (
            "a linked program, behind us one that goes straight to the driver",
            &linked,
            &by_handle,
            false,
            ["1", "0"],
        ),
        (
            "a program with dlsym, behind us one that goes straight to the driver",
            &looks_up,
            &by_handle,
            false,
            ["1", "0"],
        ),
    ];
    for (name, program, other, before, arguments) in cases {
        let (front, back) =
            if before { (vec![other.as_path()], vec![]) } else { (vec![], vec![other.as_path()]) };
        let mut run = stage.run_among(context, program, &front, &back)?;
        run.command.args(arguments);
        stage.served(context, &format!("two interposers: {name}"), run);
    }
    let mut run = stage.run_among(context, &looks_up, &[&by_handle], &[])?;
    run.command.args(["0", "2"]);
    let name = "bypassed, and said so: a program with dlsym, before us one that goes straight to the driver";
    stage.expect(context, &format!("two interposers: {name}"), run, &BYPASSED, &NOTHING_SEEN);
    Ok(())
}
