//! Concatenation of C strings that does not abort without memory.

use bfc_hostmem::HostMemoryExhausted;
use std::ffi::CString;

/// Joins parts to one C string, which ends at the first zero in them.
pub(crate) fn joined(parts: &[&[u8]]) -> Result<CString, HostMemoryExhausted> {
    let mut bytes = Vec::new();
    bytes.try_reserve_exact(parts.iter().map(|part| part.len()).sum::<usize>() + 1)?;
    parts.iter().for_each(|part| bytes.extend_from_slice(part));
    bytes.push(0);
    let length = bytes.iter().position(|&byte| byte == 0).unwrap_or(0);
    bytes.truncate(length + 1);
    CString::from_vec_with_nul(bytes).map_err(|_| HostMemoryExhausted)
}

/// Writes a number in decimal digits, without memory.
pub(crate) fn decimal(number: u64, digits: &mut [u8; 20]) -> &[u8] {
    let (mut left, mut at) = (number, digits.len());
    while at == digits.len() || left != 0 {
        at -= 1;
        digits[at] = b'0' + (left % 10) as u8;
        left /= 10;
    }
    &digits[at..]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_numbers_become_a_string() {
        let mut digits = [0; 20];
        assert_eq!(decimal(0, &mut digits), b"0");
        assert_eq!(decimal(u64::MAX, &mut digits), b"18446744073709551615");
        assert_eq!(joined(&[b"/a", b"/b"]).unwrap().as_c_str(), c"/a/b");
        assert_eq!(joined(&[]).unwrap().as_c_str(), c"");
        assert_eq!(joined(&[b"a\0b", b"c"]).unwrap().as_c_str(), c"a");
    }
}
