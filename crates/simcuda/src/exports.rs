//! The driver's symbols, for all of cuda-sys's list. A function that is in no file of `api` exists nevertheless. It is
//! logged and returns CUDA_ERROR_NOT_SUPPORTED.

use std::ffi::*;

use cuda_sys::*;

use crate::abi::Word;
use crate::gate::call;
use crate::state::function::Function;

/// The result of functions that are not simulated.
mod absent {
    use super::*;
    use crate::abi::Answer;

    macro_rules! absent {
        ($(fn $symbol:ident as $name:literal since $since:literal $(twin $twin:ident)?
            ($($argument:ident: $type:ty),*);)*) => {
            $(#[allow(dead_code, clippy::too_many_arguments)]
            pub(crate) fn $symbol($(_: $type),*) -> Answer {
                Err(CUDA_ERROR_NOT_SUPPORTED)
            })*
        };
    }
    cuda_sys::driver_functions!(absent);
}

/// The functions that search the table of all functions. They are here and not in `api`, because `api` is below the
/// table.
mod entry_points {
    use super::*;
    use crate::abi::{Answer, put, put_if, text};
    use crate::options::Choice;
    use crate::{lookup, sim};

    /// As documented by CUDA 11.3: a function that is not found is CUDA_ERROR_NOT_FOUND.
    pub(crate) fn cuGetProcAddress(
        symbol: *const c_char,
        pfn: *mut *mut c_void,
        version: c_int,
        flags: cuuint64_t,
    ) -> Answer {
        let mut status = CU_GET_PROC_ADDRESS_SUCCESS;
        cuGetProcAddress_v2(symbol, pfn, version, flags, &raw mut status)?;
        if status == CU_GET_PROC_ADDRESS_SUCCESS { Ok(()) } else { Err(CUDA_ERROR_NOT_FOUND) }
    }

    /// As documented by CUDA 12: a function that is not found is success with NULL, and the status gives the reason.
    pub(crate) fn cuGetProcAddress_v2(
        symbol: *const c_char,
        pfn: *mut *mut c_void,
        version: c_int,
        flags: cuuint64_t,
        status: *mut CUdriverProcAddressQueryResult,
    ) -> Answer {
        let driver = sim::lock().options.get(Choice::DriverVersion);
        let found = lookup::find(FUNCTIONS, &text(symbol)?, version.into(), flags, driver);
        put(pfn, found.unwrap_or(std::ptr::null_mut()))?;
        put_if(status, found.err().unwrap_or(CU_GET_PROC_ADDRESS_SUCCESS));
        Ok(())
    }
}

/// An exported function: its entry in the table, and the symbol.
macro_rules! export {
    ($symbol:ident, $name:literal, $since:expr, $per_thread:literal, $does:ident, ($($argument:ident: $type:ty),*)) => {
        #[allow(non_camel_case_types)]
        mod $symbol {
            use super::*;

            pub(super) static FUNCTION: Function =
                Function::new(stringify!($symbol), $name, $since, $per_thread, super::$symbol as *const ());

            #[allow(unused_imports, clippy::too_many_arguments)]
            pub(super) fn body($($argument: $type),*) -> crate::abi::Answer {
                use super::absent::*;
                {
                    // Names of an inner scope take precedence: a simulated function is taken, and any other is absent.
                    use crate::api::*;
                    use super::entry_points::*;
                    $does($($argument),*)
                }
            }
        }

        #[unsafe(no_mangle)]
        #[allow(clippy::too_many_arguments)]
        extern "C" fn $symbol($($argument: $type),*) -> CUresult {
            call(&$symbol::FUNCTION, &[$($argument.word()),*], || $symbol::body($($argument),*))
        }
    };
}

macro_rules! export_both {
    ($symbol:ident, $name:literal, $since:literal, [], $arguments:tt) => {
        export!($symbol, $name, $since, false, $symbol, $arguments);
    };
    ($symbol:ident, $name:literal, $since:literal, [$twin:ident], $arguments:tt) => {
        export!($symbol, $name, $since, false, $symbol, $arguments);
        export!($twin, $name, later($since), true, $symbol, $arguments);
    };
}

macro_rules! exports {
    ($(fn $symbol:ident as $name:literal since $since:literal $(twin $twin:ident)?
        ($($argument:ident: $type:ty),*);)*) => {
        $(export_both!($symbol, $name, $since, [$($twin)?], ($($argument: $type),*));)*

        /// Every exported function of the driver.
        pub(crate) static FUNCTIONS: &[&Function] =
            &[$(&$symbol::FUNCTION, $(&$twin::FUNCTION,)?)*];
    };
}

/// Twins exist since CUDA 7.
const fn later(since: i32) -> i32 {
    if since > 7000 { since } else { 7000 }
}

cuda_sys::driver_functions!(exports);

/// Returns the functions that a test means by a name.
pub(crate) fn named(name: &str) -> impl Iterator<Item = &'static Function> {
    FUNCTIONS.iter().copied().filter(move |function| function.is_named(name))
}
