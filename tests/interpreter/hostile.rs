//! Arguments that a program may pass: valid, borderline and nonsensical ones.

use super::grants::{Grants, Manner};
use super::model::{Kind, Model};
use crate::common::*;
use arbitrary::{Result, Unstructured};
use std::ffi::CString;
use std::fmt;

/// Options with the referents of their pointers, and a tail that a later version might have.
pub(crate) struct Choice {
    options: bfc_options_t,
    name: Option<CString>,
    functions: Option<bfc_suballocator_t>,
    grants: Box<Grants>,
    tail: [u64; 4],
}

#[repr(C)]
struct WithTail<T> {
    known: T,
    tail: [u64; 4],
}

impl Choice {
    pub(crate) fn create(&self, device: i32) -> Status {
        let mut options = self.options;
        options.name = self.name.as_ref().map_or(std::ptr::null(), |name| name.as_ptr());
        options.suballocator = self.functions.as_ref().map_or(std::ptr::null(), std::ptr::from_ref);
        let whole = WithTail { known: options, tail: self.tail };
        // SAFETY: the struct has as many bytes as its size field, at least as far as the library may
        // accept it: sizes beyond the tail are refused by their value.
        unsafe { bfc_create(device, std::ptr::from_ref(&whole).cast()) }
    }

    /// The data that the model needs once the library has accepted the options.
    pub(crate) fn into_model(self) -> Model {
        // A short struct means zeros for the rest.
        let known = |offset: usize| self.options.struct_size > offset;
        let flags = if known(std::mem::offset_of!(bfc_options_t, flags)) { self.options.flags } else { 0 };
        let kind = match self.options.backend {
            BFC_BACKEND_HOST | BFC_BACKEND_HOST_VMM => Kind::Host,
            BFC_BACKEND_CUSTOM => Kind::Custom(self.grants),
            other => panic!("backend {other} on an ordinal of the caller's"),
        };
        Model::new(kind, flags)
    }
}

impl fmt::Debug for Choice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let o = &self.options;
        write!(
            f,
            "size {} backend {} flags {:#x} limit {:#x} ",
            o.struct_size, o.backend, o.flags, o.memory_limit
        )?;
        write!(f, "fractions {} {} ", o.memory_fraction, o.fragmentation_fraction)?;
        write!(
            f,
            "initial {:#x} retry {} reserved {} ",
            o.initial_region_bytes, o.retry_timeout_ms, o.reserved
        )?;
        write!(
            f,
            "name {:?} coalesces {} limit there {:#x}",
            self.name, self.grants.coalesces, self.grants.limit
        )
    }
}

const KNOWN_FLAGS: u32 =
    BFC_ALLOW_GROWTH | BFC_GARBAGE_COLLECTION | BFC_TIMESTAMPS | BFC_SPLIT_ALWAYS | BFC_QUARANTINE;

/// A size in bytes of any magnitude, often at an edge.
pub(crate) fn size(input: &mut Unstructured<'_>) -> Result<u64> {
    let edge = input.int_in_range(-2..=2i64)?;
    let near = |value: u64| value.wrapping_add_signed(edge);
    Ok(match input.int_in_range(0..=15u8)? {
        0..=5 => input.int_in_range(0..=4096)?,
        6..=8 => near(256 * input.int_in_range(1..=4096u64)?),
        9 | 10 => near(1 << input.int_in_range(8..=26u32)?),
        11 => near(1 << input.int_in_range(8..=63u32)?),
        12 => u64::MAX - input.int_in_range(0..=600u64)?,
        // About the largest chunk.
        13 => ((1u64 << 46) - 512) + input.int_in_range(0..=1024u64)?,
        14 => input.int_in_range(0..=64 << 20)?,
        _ => input.arbitrary()?,
    })
}

/// A `struct_size` for a struct of `right` bytes: usually the right one.
pub(crate) fn struct_size(input: &mut Unstructured<'_>, right: usize) -> Result<usize> {
    Ok(match input.int_in_range(0..=9u8)? {
        0..=4 => right,
        5 | 6 => input.int_in_range(0..=right)?,
        7 => right + 8 * input.int_in_range(0..=4usize)?,
        8 => right + input.int_in_range(0..=32usize)?,
        // Too large: refused without reading the tail.
        _ => *input.choose(&[1 << 20, usize::MAX, usize::MAX / 2, 1 << 16 | 1])?,
    })
}

fn limit(input: &mut Unstructured<'_>) -> Result<u64> {
    Ok(match input.int_in_range(0..=7u8)? {
        0 => size(input)?.max(1),
        1 => input.int_in_range(1..=1024u64)?,
        2 => *input.choose(&[u64::MAX, 1 << 40, 2 << 40, 1 << 49])?,
        _ => 256 * input.int_in_range(16..=262_144u64)?,
    })
}

fn grants(input: &mut Unstructured<'_>, device: i32, limit: u64) -> Result<Box<Grants>> {
    let count = input.int_in_range(0..=6)?;
    let manners = (0..count).map(|_| Manner::read(input)).collect::<Result<Vec<_>>>()?;
    let capacity = if input.ratio(1, 3)? { limit / 2 } else { u64::MAX };
    Ok(Grants::new(device, manners, capacity, limit, input.ratio(1, 3)?))
}

/// Options that must be accepted.
pub(crate) fn sound_options(input: &mut Unstructured<'_>, device: i32) -> Result<Choice> {
    let mut wanted = options();
    wanted.memory_limit = limit(input)?;
    wanted.flags = input.arbitrary::<u32>()? & KNOWN_FLAGS;
    if wanted.flags & BFC_TIMESTAMPS == 0 {
        wanted.flags &= !BFC_QUARANTINE;
    }
    wanted.fragmentation_fraction =
        *input.choose(&[0.0, 0.0, 0.0, 1e-9, 0.001, 0.5, 1.0, f64::MIN_POSITIVE])?;
    wanted.initial_region_bytes = if input.ratio(1, 2)? { 0 } else { size(input)? };
    wanted.retry_timeout_ms = input.ratio(1, 16)?.into();
    let grants = grants(input, device, wanted.memory_limit)?;
    let host = input.ratio(1, 3)?;
    wanted.backend = if host { BFC_BACKEND_HOST } else { BFC_BACKEND_CUSTOM };
    let functions = (!host).then(|| grants.functions());
    Ok(Choice { options: wanted, name: None, functions, grants, tail: [0; 4] })
}

/// Options that may be anything.
pub(crate) fn any_options(input: &mut Unstructured<'_>, device: i32) -> Result<Choice> {
    let mut choice = sound_options(input, device)?;
    let fractions =
        [0.0, -0.0, 0.5, 1.0, 1.0000001, -1.0, f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 1e-300];
    for _ in 0..input.int_in_range(1..=3u8)? {
        let o = &mut choice.options;
        match input.int_in_range(0..=11u8)? {
            0 => o.struct_size = struct_size(input, size_of::<bfc_options_t>())?,
            1 => o.backend = *input.choose(&[0, 1, 2, 3, 4, 5, 6, 7, u32::MAX])?,
            2 => o.flags = input.arbitrary()?,
            3 => o.memory_fraction = *input.choose(&fractions)?,
            4 => o.fragmentation_fraction = *input.choose(&fractions)?,
            5 => o.reserved = input.arbitrary()?,
            6 => choice.tail[input.choose_index(4)?] = input.arbitrary()?,
            7 => {
                let name: Vec<u8> = (0..input.int_in_range(0..=40)?)
                    .map(|_| input.int_in_range(1..=255))
                    .collect::<Result<_>>()?;
                choice.name = CString::new(name).ok();
            }
            8 => choice.functions = Some(choice.grants.functions()),
            9 => choice.functions = None,
            _ => {
                let mut functions = choice.grants.functions();
                match input.int_in_range(0..=3u8)? {
                    0 => functions.alloc = None,
                    1 => functions.free = None,
                    2 => functions.reserved = input.arbitrary()?,
                    // One that claims more than its size would be read beyond its end.
                    _ => functions.struct_size = input.int_in_range(0..=size_of::<bfc_suballocator_t>())?,
                }
                choice.functions = Some(functions);
            }
        }
    }
    // A sub-allocator's struct without its last fields does not coalesce.
    if let Some(functions) = &choice.functions
        && functions.struct_size <= std::mem::offset_of!(bfc_suballocator_t, supports_coalescing)
    {
        choice.grants.coalesces = false;
    }
    // A struct that ends before the limit has none. With growth the callbacks are the limit.
    if choice.options.struct_size <= std::mem::offset_of!(bfc_options_t, memory_limit) {
        choice.grants.limit = u64::MAX;
    }
    Ok(choice)
}
