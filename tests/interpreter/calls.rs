//! The steps of a program: one call each, and the conditions on its result.

use super::hostile::{size, struct_size};
use super::model::{Kind, allocated_size, allocation_id, read_stats, requested_size};
use super::order::Order;
use super::{DEVICES, Place, World, say};
use crate::common::*;
use arbitrary::{Result, Unstructured};

/// A request with a tail that a later version might have.
#[repr(C)]
struct LongRequest {
    known: bfc_request_t,
    tail: [u64; 4],
}

#[repr(C)]
struct LongStats {
    known: bfc_stats_t,
    tail: [u64; 4],
}

impl World {
    pub(super) fn alloc(&mut self, place: usize, input: &mut Unstructured<'_>) -> Result<()> {
        let device = self.places[place].device;
        let bytes = size(input)?;
        let mut alignment = 0;
        let mut freed_before = 0;
        let (what, result) = match input.int_in_range(0..=9u8)? {
            0..=4 => ("alloc", alloc(device, bytes as usize)),
            5 | 6 => {
                alignment = *input.choose(&[
                    0,
                    1,
                    2,
                    32,
                    256,
                    512,
                    4096,
                    65536,
                    1 << 20,
                    1 << 40,
                    1 << 63,
                    3,
                    257,
                    u64::MAX,
                ])?;
                ("alloc_aligned", alloc_aligned(device, bytes as usize, alignment as usize))
            }
            7 | 8 => {
                freed_before = input.int_in_range(
                    0..=self.places[place].model.as_ref().map_or(3, |model| model.last_stamp + 2),
                )?;
                ("alloc_freed_before", alloc_freed_before(device, bytes as usize, freed_before))
            }
            _ => return self.alloc_ex(place, bytes, input),
        };
        say(format!(
            "{what} {device}: {bytes:#x} bytes, alignment {alignment}, freed before {freed_before}: {result:x?}"
        ));
        let bad_alignment = what == "alloc_aligned" && !alignment.is_power_of_two();
        self.judge(
            place,
            bytes,
            alignment,
            freed_before,
            bad_alignment,
            what == "alloc_freed_before",
            result,
        );
        Ok(())
    }

    fn alloc_ex(&mut self, place: usize, bytes: u64, input: &mut Unstructured<'_>) -> Result<()> {
        let device = self.places[place].device;
        let mut long = LongRequest { known: request(bytes as usize), tail: [0; 4] };
        long.known.struct_size = struct_size(input, size_of::<bfc_request_t>())?;
        long.known.alignment = *input.choose(&[0, 0, 0, 256, 4096, 1 << 20, 5])?;
        long.known.freed_before = if input.ratio(1, 4)? { input.int_in_range(0..=9)? } else { 0 };
        long.known.flags = *input.choose(&[0, 0, 0, 1, 2, 3, 4, 8, 9, u32::MAX])?;
        long.known.stream = pointer(*input.choose(&[0, 1, 2, 0x1000, 0x2000])?);
        long.known.reserved = input.ratio(1, 16)?.into();
        if input.ratio(1, 16)? {
            long.tail[0] = 1;
        }
        let mut out = pointer(1);
        // SAFETY: the struct has as many bytes as its size field, or a size that is refused by its value;
        // the out-pointer is valid.
        let status = unsafe { bfc_alloc_ex(device, std::ptr::from_ref(&long).cast(), &mut out) };
        say(format!("alloc_ex {device}: {bytes:#x} bytes: {status} {out:?}"));
        let name = Order::name(Some(long.known.stream));
        if let Some(model) = self.places[place].model.as_mut().filter(|_| long.known.flags != 0) {
            model.order.asks(name);
        }
        if status != BFC_OK {
            assert!(out.is_null());
            return Ok(());
        }
        // The part of a short struct that the library read.
        let sees = |offset| long.known.struct_size > offset;
        let bytes = if sees(std::mem::offset_of!(bfc_request_t, bytes)) { bytes } else { 0 };
        let alignment = if sees(std::mem::offset_of!(bfc_request_t, alignment)) {
            long.known.alignment as u64
        } else {
            0
        };
        let before =
            if sees(std::mem::offset_of!(bfc_request_t, freed_before)) { long.known.freed_before } else { 0 };
        let flags = if sees(std::mem::offset_of!(bfc_request_t, flags)) { long.known.flags } else { 0 };
        let known_flags = BFC_REQUEST_ON_STREAM | BFC_REQUEST_NO_GROWTH | BFC_REQUEST_SIZE_512;
        assert_eq!(flags & !known_flags, 0, "an unknown flag was taken");
        if flags & BFC_REQUEST_SIZE_512 != 0 && !out.is_null() {
            let size = allocated_size(device, out as u64).expect("it lives");
            // A chunk that was not split may be of any size, but is never smaller.
            assert!(size >= bytes.next_multiple_of(512), "{bytes} bytes took {size}");
        }
        let on_stream = flags & BFC_REQUEST_ON_STREAM != 0;
        if let Some(model) = self.places[place].model.as_mut().filter(|_| on_stream && !out.is_null()) {
            assert!(!model.stamps(), "streams and stamps");
            model.asks = Some(name);
        }
        self.judge(place, bytes, alignment, before, false, before != 0, Ok(out as u64));
        Ok(())
    }

    /// The permitted results of a request.
    #[allow(clippy::too_many_arguments)]
    fn judge(
        &mut self,
        place: usize,
        bytes: u64,
        alignment: u64,
        freed_before: u64,
        bad: bool,
        needs_stamps: bool,
        result: std::result::Result<u64, Status>,
    ) {
        let Place { device, model, .. } = &mut self.places[place];
        let device = *device;
        let Some(model) = model else {
            let expected = if bad { BFC_ERROR_INVALID_ARGUMENT } else { BFC_ERROR_NO_ALLOCATOR };
            return assert_eq!(result, Err(expected));
        };
        let newest = if freed_before == 0 { u64::MAX } else { freed_before };
        let name = model.asks.take().unwrap_or_else(|| Order::name(None));
        model.order.asks(name);
        match result {
            Ok(0) => assert_eq!(bytes, 0),
            Ok(address) => {
                assert!(!bad && (model.stamps() || !needs_stamps) && bytes != 0);
                model.served(device, address, bytes, alignment, newest, name);
            }
            Err(BFC_ERROR_INVALID_ARGUMENT) => assert!(bad, "{}", last_error()),
            Err(BFC_ERROR_UNSUPPORTED) => assert!(needs_stamps && !model.stamps(), "{}", last_error()),
            Err(BFC_ERROR_BACKEND_FAILED) => {
                assert!(matches!(model.kind, Kind::Custom(_)), "{}", last_error())
            }
            Err(BFC_ERROR_OUT_OF_MEMORY) => {
                assert_ne!(bytes, 0);
                let largest = read_stats(device).largest_free_block_bytes;
                // With streams the largest chunk may belong to another stream.
                let plain = alignment <= 256 && freed_before == 0 && !model.order.tells_apart();
                let wanted = bytes.checked_next_multiple_of(256).unwrap_or(u64::MAX);
                assert!(!plain || largest < wanted, "{wanted} bytes would have fitted in {largest}");
            }
            Err(status) => panic!("status {status}: {}", last_error()),
        }
    }

    /// Many allocations of one size, so that tables grow.
    pub(super) fn burst(&mut self, place: usize, input: &mut Unstructured<'_>) -> Result<()> {
        let device = self.places[place].device;
        let count = input.int_in_range(1..=255u8)?;
        let bytes = 256 * input.int_in_range(1..=4u64)?;
        say(format!("{count} times alloc {device}: {bytes} bytes"));
        for _ in 0..count {
            let result = alloc(device, bytes as usize);
            self.judge(place, bytes, 0, 0, false, false, result);
            if result.is_err() {
                break;
            }
        }
        Ok(())
    }

    /// Frees every n-th live allocation.
    pub(super) fn sweep(&mut self, place: usize, input: &mut Unstructured<'_>) -> Result<()> {
        let Place { device, model, .. } = &mut self.places[place];
        let step = input.int_in_range(1..=5u8)?.into();
        say(format!("free every one of {step} of {device}"));
        let Some(model) = model else { return Ok(()) };
        let addresses: Vec<u64> = model.live.iter().map(|(address, ..)| address).step_by(step).collect();
        for address in addresses {
            model.verify_contents_of(address);
            assert_eq!(free(*device, address), BFC_OK, "{}", last_error());
            model.released(address);
        }
        Ok(())
    }

    /// A pointer of any kind.
    fn some_pointer(&self, place: usize, input: &mut Unstructured<'_>) -> Result<u64> {
        let from = if input.ratio(7, 8)? { place } else { input.choose_index(DEVICES)? };
        let Place { model, stale, .. } = &self.places[from];
        let live = model.as_ref().filter(|model| !model.live.is_empty());
        let start = match live {
            Some(model) => {
                let nth = input.choose_index(model.live.len())?;
                model.live.nth(nth).unwrap_or(0)
            }
            None => 0,
        };
        Ok(match input.int_in_range(0..=15u8)? {
            0..=9 => start,
            10 => start.wrapping_add(input.int_in_range(1..=600)?),
            11 => start.wrapping_add(256 * input.int_in_range(1..=64u64)?),
            12 => start.wrapping_sub(input.int_in_range(1..=600)?),
            13 if !stale.is_empty() => stale[input.choose_index(stale.len())?],
            14 => input.arbitrary()?,
            _ => *input.choose(&[0, 1, 255, 256, u64::MAX, u64::MAX - 255, 1 << 47, 1 << 63])?,
        })
    }

    pub(super) fn free(&mut self, place: usize, input: &mut Unstructured<'_>) -> Result<()> {
        let address = self.some_pointer(place, input)?;
        let Place { device, model, stale } = &mut self.places[place];
        say(format!("free {device}: {address:#x}"));
        let Some(model) = model else {
            let expected = if address == 0 { BFC_OK } else { BFC_ERROR_NO_ALLOCATOR };
            assert_eq!(free(*device, address), expected);
            return Ok(());
        };
        let is_live = model.live.get(address).is_some();
        if is_live {
            model.verify_contents_of(address);
        }
        match free(*device, address) {
            BFC_OK if address == 0 => {}
            BFC_OK => {
                assert!(is_live, "{address:#x} was freed, which is no live allocation");
                model.released(address);
                stale.push(address);
            }
            BFC_ERROR_DOUBLE_FREE => {
                assert!(
                    model.live.around(address).is_none() && address.is_multiple_of(256),
                    "{}",
                    last_error()
                );
            }
            status => assert_eq!((status, is_live), (BFC_ERROR_INVALID_POINTER, false), "{}", last_error()),
        }
        Ok(())
    }

    pub(super) fn ask(&mut self, place: usize, input: &mut Unstructured<'_>) -> Result<()> {
        let address = self.some_pointer(place, input)?;
        let Place { device, model, .. } = &self.places[place];
        let device = *device;
        say(format!("ask {device} about {address:#x}"));
        let (mut chunk, mut region, mut chunk_bytes, mut region_bytes) = (pointer(1), pointer(1), 1, 1);
        let at = pointer(address);
        // SAFETY: the four out-pointers are valid for writing.
        let status = unsafe {
            bfc_address_range(device, at, &mut chunk, &mut chunk_bytes, &mut region, &mut region_bytes)
        };
        let answers = [
            allocated_size(device, address),
            requested_size(device, address),
            allocation_id(device, address),
        ];
        let Some(model) = model else {
            assert_eq!((status, answers), (BFC_ERROR_NO_ALLOCATOR, [Err(BFC_ERROR_NO_ALLOCATOR); 3]));
            return Ok(());
        };
        match model.live.get(address) {
            Some((bytes, live)) => assert_eq!(answers, [Ok(*bytes), Ok(live.requested), Ok(live.id)]),
            None => assert_eq!(answers, [Err(BFC_ERROR_INVALID_POINTER); 3]),
        }
        let (chunk, chunk_bytes) = (chunk as u64, chunk_bytes as u64);
        let (region, region_bytes) = (region as u64, region_bytes as u64);
        match model.live.around(address) {
            Some((start, bytes, _)) => {
                assert_eq!((status, chunk, chunk_bytes), (BFC_OK, start, bytes), "{}", last_error());
                assert!(region <= start && start + bytes <= region + region_bytes);
                assert_eq!(owner(address), Ok(device), "{}", last_error());
            }
            None => {
                assert_eq!(status, BFC_ERROR_INVALID_POINTER);
                assert_eq!((chunk, chunk_bytes, region, region_bytes), (0, 0, 0, 0));
            }
        }
        Ok(())
    }

    pub(super) fn trim(&mut self, place: usize, input: &mut Unstructured<'_>) -> Result<()> {
        let keep = if input.ratio(1, 2)? { 0 } else { size(input)? };
        let Place { device, model, .. } = &mut self.places[place];
        say(format!("trim {device} to {keep:#x}"));
        let mut released = u64::MAX;
        let Some(model) = model else {
            // SAFETY: the out-pointer is valid for writing.
            let status = unsafe { bfc_trim(*device, keep, &mut released) };
            assert_eq!((status, released), (BFC_ERROR_NO_ALLOCATOR, 0));
            return Ok(());
        };
        let before = read_stats(*device).pool_bytes;
        // SAFETY: the out-pointer is valid for writing.
        let status = unsafe { bfc_trim(*device, keep, &mut released) };
        let after = read_stats(*device).pool_bytes;
        assert_eq!((status, before - after), (BFC_OK, released), "{}", last_error());
        if released != 0 {
            model.order.regions_went();
        }
        assert!(after >= keep.min(before), "{keep} were to be kept of {before}, {after} are left");
        Ok(())
    }

    pub(super) fn frontier(&mut self, place: usize, input: &mut Unstructured<'_>) -> Result<()> {
        let Place { device, model, .. } = &mut self.places[place];
        let mut last = u64::MAX;
        // SAFETY: the out-pointer is valid for writing.
        let status = unsafe { bfc_timestamp(*device, &mut last) };
        let Some(model) = model.as_mut().filter(|model| model.stamps()) else {
            let fine = [BFC_ERROR_NO_ALLOCATOR, BFC_ERROR_UNSUPPORTED];
            assert!(fine.contains(&status) && fine.contains(&bfc_set_safe_frontier(*device, 1)) && last == 0);
            return Ok(());
        };
        assert_eq!((status, last), (BFC_OK, model.last_stamp));
        let to = if input.ratio(1, 16)? { input.arbitrary()? } else { input.int_in_range(0..=last + 1)? };
        // A frontier above the last stamp would declare future frees safe. This is allowed, but leaves nothing to test.
        let to = to.min(last + 1);
        say(format!("frontier {device}: {to}"));
        assert_eq!(bfc_set_safe_frontier(*device, to), BFC_OK);
        model.frontier = model.frontier.max(to);
        Ok(())
    }

    /// Reports into buffers of any size.
    pub(super) fn look(&mut self, place: usize, input: &mut Unstructured<'_>) -> Result<()> {
        let Place { device, model, .. } = &self.places[place];
        let capacity = input.int_in_range(0..=3000usize)?;
        let mut buffer = vec![0x55u8; capacity + 1];
        let mut length = usize::MAX;
        let functions = [bfc_occupancy, bfc_memory_map, bfc_report];
        let which = input.choose_index(3)?;
        say(format!("report {which} of {device} into {capacity} bytes"));
        // SAFETY: the buffer has more than `capacity` bytes; the out-pointer is valid.
        let status = unsafe { functions[which](*device, buffer.as_mut_ptr().cast(), capacity, &mut length) };
        assert_eq!(status, if model.is_some() { BFC_OK } else { BFC_ERROR_NO_ALLOCATOR });
        assert_eq!(buffer[capacity], 0x55, "written past the end");
        if capacity > 0 {
            let end = length.min(capacity - 1);
            assert!(buffer[end] == 0 && buffer[..end].iter().all(|&byte| byte != 0x55));
        }
        Ok(())
    }

    pub(super) fn statistics(&mut self, place: usize, input: &mut Unstructured<'_>) -> Result<()> {
        let Place { device, model, .. } = &mut self.places[place];
        let mut long = LongStats { known: stats(), tail: [0x5555; 4] };
        long.known.struct_size = struct_size(input, size_of::<bfc_stats_t>())?;
        let claimed = long.known.struct_size;
        say(format!("stats {device} of size {claimed}"));
        // SAFETY: the struct has as many bytes as its size field, or a size that is refused by its value.
        let status = unsafe { bfc_stats(*device, std::ptr::from_mut(&mut long).cast()) };
        assert_eq!(long.known.struct_size, claimed, "struct_size is the caller's");
        match (status, &model) {
            (BFC_OK, Some(model)) if claimed >= size_of::<bfc_stats_t>() => {
                assert_eq!(long.known.bytes_in_use, model.live.bytes());
            }
            (BFC_OK, Some(_)) | (BFC_ERROR_NO_ALLOCATOR, None) | (BFC_ERROR_INVALID_ARGUMENT, _) => {}
            (status, _) => panic!("status {status}: {}", last_error()),
        }
        for (place, &word) in long.tail.iter().enumerate() {
            let end = size_of::<bfc_stats_t>() + 8 * (place + 1);
            let theirs = claimed < end || status == BFC_ERROR_INVALID_ARGUMENT;
            assert_eq!(word, if theirs { 0x5555 } else { 0 }, "word {place} of the tail");
        }
        if input.ratio(1, 4)? {
            let reset = bfc_reset_stats(*device);
            assert_eq!(reset, if model.is_some() { BFC_OK } else { BFC_ERROR_NO_ALLOCATOR });
            if let Some(model) = model {
                (model.allocs, model.frees) = (0, 0);
            }
        }
        Ok(())
    }

    /// A call that names a stream.
    pub(super) fn streams(&mut self, place: usize, input: &mut Unstructured<'_>) -> Result<()> {
        let address = self.some_pointer(place, input)?;
        let Place { device, model, stale } = &mut self.places[place];
        let stream = *input.choose(&[0, 1, 2, 0x1000, 0x2000, 0x3000])?;
        let (device, name) = (*device, Order::name(Some(pointer(stream))));
        let what = input.int_in_range(0..=11u8)?;
        say(format!("stream call {what} of {device}: {address:#x}, stream {stream:#x}"));
        if what <= 4 {
            let bytes = size(input)?;
            let result = alloc_async(device, bytes as usize, stream);
            if model.as_ref().is_some_and(super::Model::stamps) {
                assert_eq!(result, Err(BFC_ERROR_UNSUPPORTED));
                return Ok(());
            }
            say(format!("  {bytes:#x} bytes: {result:x?}"));
            if let Some(model) = model {
                model.asks = Some(name);
            }
            self.judge(place, bytes, 0, 0, false, false, result);
            return Ok(());
        }
        let is_live = model.as_ref().is_some_and(|model| model.live.get(address).is_some());
        let status = match what {
            5..=8 => free_async(device, address, stream),
            9 => bfc_record_stream(device, pointer(address), pointer(stream)),
            10 => bfc_forget_stream(device, pointer(stream)),
            _ => bfc_stream_synchronized(device, pointer(stream)),
        };
        if address == 0 && what <= 8 {
            assert_eq!(status, BFC_OK, "free of NULL");
            return Ok(());
        }
        let Some(model) = model else {
            assert_eq!(status, BFC_ERROR_NO_ALLOCATOR);
            return Ok(());
        };
        if model.stamps() {
            assert_eq!(status, BFC_ERROR_UNSUPPORTED);
            return Ok(());
        }
        match (what, status) {
            (5..=8, BFC_OK) => {
                assert!(is_live, "{address:#x} was freed, which is no live allocation");
                model.released_on(address, Some(name));
                stale.push(address);
            }
            (5..=8, BFC_ERROR_DOUBLE_FREE) => {
                assert!(model.live.around(address).is_none() && address.is_multiple_of(256));
            }
            (5..=9, BFC_ERROR_INVALID_POINTER) => assert!(!is_live, "{}", last_error()),
            (9, BFC_OK) => {
                assert!(is_live, "{address:#x} is no live allocation");
                model.order.record(address, name);
            }
            (10, BFC_OK) => model.order.forget(name),
            (11, BFC_OK) => model.order.synchronized(name),
            _ => panic!("status {status}: {}", last_error()),
        }
        Ok(())
    }

    /// Invalid ordinals, and NULL out-pointers.
    pub(super) fn nobody(&mut self, input: &mut Unstructured<'_>) -> Result<()> {
        let device = *input.choose(&[-1, i32::MIN, 1024, i32::MAX])?;
        let bytes = size(input)? as usize;
        say(format!("nobody {device}"));
        let wrong = [
            create(device, Some(&options())),
            alloc(device, bytes).err().unwrap_or(BFC_OK),
            free(device, 256),
            bfc_destroy(device),
            bfc_check(device),
            bfc_reset_stats(device),
        ];
        assert_eq!(wrong, [BFC_ERROR_INVALID_ARGUMENT; 6]);
        let device = self.places[0].device;
        let null = std::ptr::null_mut();
        // SAFETY: NULL is the tested value.
        let null_alloc = unsafe { bfc_alloc(device, bytes, null) };
        // SAFETY: as above.
        let null_request = unsafe { bfc_alloc_ex(device, std::ptr::null(), null) };
        // SAFETY: as above.
        let null_trim = unsafe { bfc_trim(device, 0, std::ptr::null_mut()) };
        // SAFETY: as above.
        let null_stats = unsafe { bfc_stats(device, std::ptr::null_mut()) };
        assert_eq!([null_alloc, null_request, null_trim, null_stats], [BFC_ERROR_INVALID_ARGUMENT; 4]);
        Ok(())
    }
}
