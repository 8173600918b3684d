//! Lookup of functions by name and version, as documented for `cuGetProcAddress` in cuda.h.

use std::ffi::c_void;

use cuda_sys::{
    CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND,
    CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT, CUdriverProcAddressQueryResult,
};

use crate::state::function::Function;

/// Returns the newest function of a name that a program built for `version` can call, among those of a driver of
/// `driver`'s version.
pub(crate) fn find(
    functions: &[&'static Function],
    name: &str,
    version: i64,
    flags: u64,
    driver: i64,
) -> Result<*mut c_void, CUdriverProcAddressQueryResult> {
    let there = |since: i32| i64::from(since) <= driver;
    let known: Vec<_> = functions
        .iter()
        .filter(|function| function.name() == name && !function.is_per_thread() && there(function.since()))
        .collect();
    if known.is_empty() {
        return Err(CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    }
    let fit = known.into_iter().filter(|function| i64::from(function.since()) <= version);
    let Some(newest) = fit.max_by_key(|function| function.since()) else {
        return Err(CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    };
    let wants_twin = flags & u64::from(CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
    let is_twin = |symbol: &str| {
        let end = symbol.strip_prefix(newest.symbol());
        matches!(end, Some("_ptsz" | "_ptds"))
    };
    let twin = functions
        .iter()
        .find(|function| wants_twin && function.is_per_thread() && is_twin(function.symbol()))
        .filter(|twin| i64::from(twin.since()) <= version);
    Ok(twin.unwrap_or(newest).address())
}
