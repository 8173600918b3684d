//! The simulated CUDA driver (crates/simcuda), a simulation and no device: each test that uses it runs in a
//! process of its own, where it serves as `libcuda.so.1`.

pub use steer;

use super::{cargo, child};
use cuda_sys::{CUresult, Driver};
use std::env;
use std::ffi::CString;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::OnceLock;
use steer::{ALLOCATIONS, EVENTS, RETAINS, Steer};

/// The simulation in this process.
#[derive(Clone, Copy)]
pub struct Simulation(Steer);

impl Deref for Simulation {
    type Target = Steer;

    fn deref(&self) -> &Steer {
        &self.0
    }
}

/// Runs `body` in a child process with the simulation; `test` is the name of the calling test.
#[track_caller]
pub fn simulated(test: &str, body: impl FnOnce(Simulation)) {
    simulated_with(test, &[], body);
}

/// Like [`simulated`], with variables for the simulation.
#[track_caller]
pub fn simulated_with(test: &str, variables: &[(&str, &str)], body: impl FnOnce(Simulation)) {
    simulated_saying(test, variables, body);
}

/// Like [`simulated_with`]. Returns the child's output.
#[track_caller]
pub fn simulated_saying(test: &str, variables: &[(&str, &str)], body: impl FnOnce(Simulation)) -> String {
    if child::is_child(test) {
        body(Simulation::load());
        return String::new();
    }
    let library = ("SIMCUDA_LIBRARY", library().to_str().expect("UTF-8"));
    child::expect_success(test, &[&[library], variables].concat()).text
}

/// Returns the simulation's file: the one that SIMCUDA_LIBRARY names, or else one that is built if necessary.
pub fn library() -> &'static PathBuf {
    static LIBRARY: OnceLock<PathBuf> = OnceLock::new();
    LIBRARY.get_or_init(|| {
        let named = env::var_os("SIMCUDA_LIBRARY").map(PathBuf::from);
        named.unwrap_or_else(|| cargo::built("simcuda", "libsimcuda.so", &[]))
    })
}

impl Simulation {
    /// Loads the file of SIMCUDA_LIBRARY. Every later open of libcuda.so.1 returns it, because that is its SONAME.
    pub fn load() -> Simulation {
        Simulation(Steer::load().expect("the simulation"))
    }

    /// Returns the driver, loaded like in a program.
    pub fn driver(self) -> Driver {
        Driver::load().expect("the simulation is a driver")
    }

    /// Makes the nth call from now of a function, or of any, fail with a code.
    pub fn fail(self, function: Option<&str>, nth: u64, code: CUresult) {
        let name = function.map(|name| CString::new(name).expect("no NUL"));
        let status = self.0.fail(name.as_ref().map_or(std::ptr::null(), |name| name.as_ptr()), nth, code);
        assert_eq!(status, 0, "no function is named {function:?}");
    }

    /// Returns how often a function was called.
    pub fn calls(self, function: &str) -> u64 {
        self.calls_of(&CString::new(function).expect("no NUL"))
    }

    /// Checks that nothing is left: no memory, no event, no context, and no misuse that a real device would punish.
    #[track_caller]
    pub fn assert_clean(self) {
        assert_eq!(self.misuse_texts(), [""; 0]);
        let left = [ALLOCATIONS, EVENTS, RETAINS].map(|kind| self.live(kind));
        assert_eq!(left, [0; 3], "allocations, events, retains");
    }
}
