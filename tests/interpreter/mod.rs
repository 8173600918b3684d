//! Runs programs of C ABI calls with hostile arguments, written as bytes, and compares them with a model.
//!
//! Shared by the fuzz target (`fuzz/`), which searches for bytes, and by `tests/programs.rs`, which generates
//! them from seeds. The model has intervals, stamps and the sub-allocator's grants, but no
//! bins, best fit or merging. Any disagreement is a panic that shows the steps.

#![allow(dead_code)] // each user has its own entry

mod calls;
mod grants;
mod hostile;
mod model;
mod order;
mod stamps;

use crate::common::*;
use arbitrary::{Result, Unstructured};
use model::{Kind, Model};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

/// The number of allocators that a program uses.
pub const DEVICES: usize = 3;

/// Runs the program on these ordinals, which nothing else uses meanwhile, and leaves nothing behind.
///
/// # Panics
/// If the library does anything that it must not do.
pub fn run(program: &[u8], ordinals: [i32; DEVICES]) {
    STEPS.with_borrow_mut(Vec::clear);
    let mut world = World { places: ordinals.map(Place::new), scopes: 0 };
    let result = catch_unwind(AssertUnwindSafe(|| world.run(&mut Unstructured::new(program))));
    if let Err(payload) = result {
        show_steps();
        world.clean_up();
        resume_unwind(payload);
    }
}

/// One ordinal, with the model of its allocator, if there is one.
pub(crate) struct Place {
    pub(crate) device: i32,
    pub(crate) model: Option<Model>,
    /// Pointers that were valid once.
    pub(crate) stale: Vec<u64>,
}

impl Place {
    fn new(device: i32) -> Place {
        Place { device, model: None, stale: Vec::new() }
    }

    fn forget(&mut self) {
        if let Some(model) = self.model.take() {
            self.stale.extend(model.live.iter().map(|(address, ..)| address));
        }
        self.stale.truncate(64);
    }
}

pub(crate) struct World {
    pub(crate) places: [Place; DEVICES],
    /// The number of scopes open in this thread.
    scopes: usize,
}

thread_local! {
    /// The steps of the program that this thread runs.
    static STEPS: RefCell<Vec<String>> = const { RefCell::new(Vec::new()) };
}

/// Records a step, to explain a failure.
pub(crate) fn say(step: String) {
    STEPS.with_borrow_mut(|steps| steps.push(step));
}

/// Shows the steps of this thread's program so far.
pub fn show_steps() {
    STEPS.with(|steps| {
        // The panic to be explained may come from here.
        let Ok(steps) = steps.try_borrow() else { return };
        eprintln!("the program was:\n  {}", steps.join("\n  "));
    });
}

impl World {
    fn run(&mut self, input: &mut Unstructured<'_>) {
        // If the input ends in the middle of a step, the program ends.
        while !input.is_empty() && self.step(input).is_ok() {}
        self.finish();
    }

    fn step(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let place = input.choose_index(DEVICES)?;
        let sound = input.ratio(7, 8)?;
        if self.places[place].model.is_none() && sound {
            return self.create(place, input, true);
        }
        match input.int_in_range(0..=63u8)? {
            0..=15 => self.alloc(place, input),
            16..=20 | 33..=36 | 59 => self.streams(place, input),
            21..=32 => self.free(place, input),
            37..=41 => self.ask(place, input),
            42..=44 => self.trim(place, input),
            45..=49 => self.frontier(place, input),
            50 | 51 => self.look(place, input),
            52 => self.statistics(place, input),
            53 | 54 => self.scope(input),
            55 | 56 => self.destroy(place, input),
            57 => self.create(place, input, false),
            58 => self.create(place, input, true),
            60 => self.nobody(input),
            61 => self.burst(place, input),
            62 => self.sweep(place, input),
            _ => {
                self.verify(place);
                Ok(())
            }
        }
    }

    fn create(&mut self, place: usize, input: &mut Unstructured<'_>, sound: bool) -> Result<()> {
        let device = self.places[place].device;
        let choice =
            if sound { hostile::sound_options(input, device)? } else { hostile::any_options(input, device)? };
        say(format!("create {device} {choice:?}"));
        let status = choice.create(device);
        let existed = self.places[place].model.is_some();
        match status {
            BFC_OK => {
                assert!(!existed, "a device was created twice");
                self.places[place].model = Some(choice.into_model());
            }
            BFC_ERROR_ALREADY_EXISTS => assert!(existed),
            BFC_ERROR_INVALID_ARGUMENT | BFC_ERROR_BACKEND_UNAVAILABLE => assert!(!sound, "{}", last_error()),
            other => panic!("create: status {other}, {}", last_error()),
        }
        Ok(())
    }

    fn destroy(&mut self, place: usize, input: &mut Unstructured<'_>) -> Result<()> {
        let forced: bool = input.arbitrary()?;
        let Place { device, model, .. } = &self.places[place];
        say(format!("destroy {device}, forced {forced}"));
        let expected = match model {
            None => BFC_ERROR_NO_ALLOCATOR,
            Some(model) if !forced && !model.live.is_empty() => BFC_ERROR_BUSY,
            Some(model) => {
                model.verify_contents();
                BFC_OK
            }
        };
        let status = if forced { bfc_destroy_forced(*device) } else { bfc_destroy(*device) };
        assert_eq!(status, expected, "{}", last_error());
        if status == BFC_OK {
            if let Some(Model { kind: Kind::Custom(grants), .. }) = model {
                grants.verify(true);
            }
            self.places[place].forget();
        }
        Ok(())
    }

    fn scope(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        if input.ratio(1, 2)? {
            let expected = if self.scopes == 0 { BFC_ERROR_INVALID_ARGUMENT } else { BFC_OK };
            assert_eq!(bfc_scope_end(), expected);
            self.scopes = self.scopes.saturating_sub(1);
            return Ok(());
        }
        let name =
            "operation ".repeat(input.int_in_range(0..=20)?) + &input.int_in_range(0..=9u8)?.to_string();
        let expected = if self.scopes == 8 { BFC_ERROR_INVALID_ARGUMENT } else { BFC_OK };
        assert_eq!(scope_begin(&name, input.arbitrary()?), expected);
        self.scopes = (self.scopes + 1).min(8);
        Ok(())
    }

    /// Compares everything for one device.
    pub(crate) fn verify(&mut self, place: usize) {
        let Place { device, model, .. } = &self.places[place];
        say(format!("verify {device}"));
        match model {
            None => assert_eq!(bfc_check(*device), BFC_ERROR_NO_ALLOCATOR),
            Some(model) => model.verify(*device),
        }
    }

    fn finish(&mut self) {
        (0..DEVICES).for_each(|place| self.verify(place));
        for place in &mut self.places {
            if let Some(model) = &place.model {
                assert_eq!(bfc_destroy_forced(place.device), BFC_OK, "{}", last_error());
                if let Kind::Custom(grants) = &model.kind {
                    grants.verify(true);
                }
                place.forget();
            }
        }
        (0..self.scopes).for_each(|_| assert_eq!(bfc_scope_end(), BFC_OK));
    }

    /// Cleans up after a panic, because other programs follow in this process.
    fn clean_up(&mut self) {
        for place in &mut self.places {
            bfc_destroy_forced(place.device);
            place.forget();
        }
        while bfc_scope_end() == BFC_OK {}
    }
}
