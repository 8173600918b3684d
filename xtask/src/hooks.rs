//! The interposer's one list of hooks, which is part of its source.

#[path = "../../preload/src/list.rs"]
mod list;

macro_rules! names {
    ($($symbol:ident: $of:ident, $fate:ident, $why:literal;)*) => {
        &[$(stringify!($symbol)),*]
    };
}

/// The names of the driver's functions that libbfc_preload.so has.
pub const HOOKS: &[&str] = list::hooks!(names);
