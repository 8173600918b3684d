//! The numbers of a file, which need not be aligned.

/// A field of a structure at the beginning of bytes.
macro_rules! field {
    ($bytes:expr, $of:ty, $($field:ident).+, $as:ty) => {
        $crate::history::fields::number::<{ size_of::<$as>() }>($bytes, std::mem::offset_of!($of, $($field).+)) as $as
    };
}
pub(super) use field;

/// A number of the file. The caller has checked that it is there.
pub(super) fn number<const BYTES: usize>(bytes: &[u8], at: usize) -> u64 {
    let mut word = [0; 8];
    word[..BYTES].copy_from_slice(&bytes[at..at + BYTES]);
    u64::from_le_bytes(word)
}
