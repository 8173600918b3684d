//! Private pools by the names of the suite. The interface for Rust has objects instead, and no call for what C refuses:
//! an end without a beginning, or a release while a stream is routed.

use crate::c_abi::*;
use crate::pool::{Pool, code, refused};
use bfc::{PrivatePool, Route};
use std::collections::HashMap;

/// A private pool with its routes, by stream.
pub struct Private {
    /// Leaked, as the streams of the routes are, because routes borrow both.
    pool: &'static PrivatePool<'static>,
    routes: HashMap<u64, Route<'static>>,
}

impl Pool {
    /// `PrivatePool::route`.
    pub fn begin_private(&self, name: u64, stream: u64) -> Status {
        let mut all = self.private.lock().unwrap();
        let known = all.get(&name).map(|private| private.pool);
        let pool = known.unwrap_or_else(|| Box::leak(Box::new(self.pool.private_pool())));
        match pool.route(Box::leak(Box::new(self.stream(stream)))) {
            Ok(route) => {
                let private = all.entry(name).or_insert(Private { pool, routes: HashMap::new() });
                private.routes.insert(stream, route);
                BFC_OK
            }
            Err(error) => code(&error),
        }
    }

    /// Drops the route.
    pub fn end_private(&self, name: u64, stream: u64) -> Status {
        let mut all = self.private.lock().unwrap();
        let Some(private) = all.get_mut(&name) else {
            return refused(bfc_pool_end(self.device(), name, pointer(stream)));
        };
        let again = || bfc_pool_end(self.device(), private.pool.name(), pointer(stream));
        let Some(route) = private.routes.remove(&stream) else { return refused(again()) };
        drop(route);
        assert_eq!(again(), BFC_ERROR_INVALID_ARGUMENT, "dropping has ended it");
        BFC_OK
    }

    /// Drops the private pool.
    pub fn release_private(&self, name: u64) -> Status {
        let mut all = self.private.lock().unwrap();
        let Some(private) = all.remove(&name) else {
            return refused(bfc_pool_release(self.device(), name));
        };
        let again = || bfc_pool_release(self.device(), private.pool.name());
        if !private.routes.is_empty() {
            let status = refused(again());
            all.insert(name, private);
            return status;
        }
        // SAFETY: no route borrows it, and what was leaked is not used again.
        drop(unsafe { std::ptr::read(private.pool) });
        assert_eq!(again(), BFC_ERROR_INVALID_ARGUMENT, "dropping has released it");
        BFC_OK
    }
}
