//! The file that is mapped at an address, by its absolute path. The dynamic loader knows a library by the name that was
//! used to open it, which may be relative to a folder that the program has left.

use os::descriptors::Descriptor;
use std::mem::MaybeUninit;

/// The longest line that is read, with a path of 1000 bytes. It is kept short because the program's stack may be small.
pub(crate) const MOST_LINE: usize = 1100;

/// Returns the path of the file that is mapped at an address, in `line`. `None` if no file is mapped there, or if its
/// path is too long.
pub(crate) fn mapped_path(address: u64, line: &mut [u8; MOST_LINE]) -> Option<&[u8]> {
    let maps = Descriptor::open(c"/proc/self/maps", libc::O_RDONLY).ok()?;
    let mut buffer = [MaybeUninit::uninit(); 256];
    let mut length = 0;
    loop {
        let read = maps.read(&mut buffer).ok().filter(|read| !read.is_empty())?;
        for &byte in read {
            if byte != b'\n' {
                if let Some(place) = line.get_mut(length) {
                    *place = byte;
                }
                length += 1;
            } else if line.get(..length).is_some_and(|line| is_at(line, address)) {
                return path_in(&line[..length]);
            } else {
                length = 0;
            }
        }
    }
}

/// Returns whether a line such as `7f00-7f10 r-xp 00000000 08:01 1234  /lib/a.so` is about an address.
fn is_at(line: &[u8], address: u64) -> bool {
    let mut ends =
        line.splitn(2, |&byte| byte == b' ').next().unwrap_or_default().split(|&byte| byte == b'-');
    let mut end = || u64::from_str_radix(str::from_utf8(ends.next()?).ok()?, 16).ok();
    let range = end().zip(end());
    range.is_some_and(|(from, to)| (from..to).contains(&address))
}

fn path_in(line: &[u8]) -> Option<&[u8]> {
    let path = &line[line.iter().position(|&byte| byte == b'/')?..];
    Some(path.strip_suffix(b" (deleted)").unwrap_or(path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_function_is_in_the_file_of_its_program() {
        let mut line = [0; MOST_LINE];
        let own = std::env::current_exe().unwrap();
        let path = mapped_path(a_function_is_in_the_file_of_its_program as *const () as u64, &mut line);
        assert_eq!(path, Some(own.as_os_str().as_encoded_bytes()));
        let on_the_stack = (&raw const own) as u64;
        assert_eq!(mapped_path(on_the_stack, &mut line), None);
        assert_eq!(mapped_path(0, &mut line), None);
    }

    #[test]
    fn a_file_that_was_removed_has_the_path_that_it_had() {
        let line = b"7f00-7f10 r-xp 00000000 08:01 1234                  /tmp/a b.so (deleted)";
        assert!(is_at(line, 0x7f00) && is_at(line, 0x7f0f) && !is_at(line, 0x7f10));
        assert_eq!(path_in(line), Some(&b"/tmp/a b.so"[..]));
        assert_eq!(path_in(b"7f00-7f10 r-xp 00000000 00:00 0  [vdso]"), None);
    }
}
