//! The devices that may access the memory of a range.
//!
//! NVIDIA's documentation:
//! - `cuMemMap`: "calling cuMemMap does not make the address accessible, the caller needs to update accessibility of a
//!   contiguous mapped VA range by calling cuMemSetAccess".
//! - CUDA Programming Guide, Virtual Memory Management, Access Rights: "Users must specifically select access control
//!   using the cuMemSetAccess function on source and accessing devices. This allows or restricts access for specific
//!   devices to a mapped address range". "cudaEnablePeerAccess forces all prior and future allocations made with
//!   cudaMalloc to be mapped to the target peer device". Unified Addressing in cuda.h names cuMemAlloc and
//!   cuMemAllocPitch. No other memory is affected.
//! - `CUmemLocationType`: for a device, "id is a device ordinal".
//! - `cuDeviceCanAccessPeer`: "1 if contexts on dev are capable of directly accessing memory from contexts on peerDev".
//!
//! A program that has enabled access between its devices expects access to all memory it is given, and libbfc does not
//! see that call. So all devices that can access the memory get access, with one call for all of them, like in NCCL's
//! ncclMemAlloc. Access for the memory's own device is required. A refused peer is left out.

use super::notices::{Notice, Notices};
use crate::backend::cuda::Cuda;
use crate::backend::cuda::calls::{self, Failure};
use crate::log::{self, Level};
use bfc_core::units::Span;
use bfc_hostmem::HostMemoryExhausted;
use cuda_sys::{CUDA_ERROR_OUT_OF_MEMORY, CUmemAccessDesc, Driver};
use std::ffi::c_int;
use std::fmt;

/// The devices that get access.
pub(super) struct Access {
    /// The memory's own device comes first.
    devices: Vec<CUmemAccessDesc>,
    /// The number of the driver's devices, with or without access, as far as it is known.
    count: usize,
    is_counted: bool,
}

impl Access {
    /// Queries the driver for each other device. A device without an answer is left out.
    pub(super) fn of(cuda: &Cuda, notices: &mut Notices) -> Result<Self, HostMemoryExhausted> {
        let own = c_int::from(cuda.ordinal);
        let counted = calls::device_count(cuda.driver);
        let is_counted = counted.is_ok();
        let count = counted.unwrap_or_else(|failure| {
            notices.add(Notice::Uncounted { failure });
            own + 1
        });
        let mut devices = Vec::new();
        let devices_known = usize::try_from(count).unwrap_or(1);
        devices.try_reserve_exact(devices_known)?;
        devices.push(calls::read_write(own));
        for ordinal in (0..count).filter(|&ordinal| ordinal != own) {
            let can = calls::device(cuda.driver, ordinal)
                .and_then(|peer| calls::can_access_peer(cuda.driver, peer, cuda.device));
            match can {
                Ok(true) => devices.push(calls::read_write(ordinal)),
                Ok(false) => {}
                Err(failure) => notices.add(Notice::Unanswered { ordinal, failure }),
            }
        }
        Ok(Self { devices, count: devices_known, is_counted })
    }

    /// Returns whether every device of the process gets access.
    pub(super) fn is_of_all_devices(&self) -> bool {
        self.is_counted && self.devices.len() == self.count
    }

    /// Logs which devices have access.
    pub(super) fn log(&self, own: u8) {
        if self.count > 1 {
            let peers = Peers(&self.devices[1..]);
            log::emit(Level::Info, format_args!("device {own}: devices with access to its memory: {peers}"));
        }
    }

    /// Gives the devices access to a mapped span. Fails if the memory's own device does not get access.
    pub(super) fn give(&mut self, driver: Driver, span: Span, notices: &mut Notices) -> Result<(), Failure> {
        let set = |devices: &[CUmemAccessDesc]| {
            // SAFETY: the span is wholly mapped, by calls for whole granules.
            unsafe { calls::set_access(driver, span.base, span.bytes, devices) }
        };
        match set(&self.devices) {
            Err(_) if self.devices.len() > 1 => {}
            done => return done,
        }
        // The driver does not report which device was refused.
        set(&self.devices[..1])?;
        let mut is_own = true;
        self.devices.retain(|&device| {
            if std::mem::take(&mut is_own) {
                return true;
            }
            let Err(failure) = set(&[device]) else { return true };
            // Page tables need memory, which may be available next time.
            let again = failure.is(CUDA_ERROR_OUT_OF_MEMORY);
            notices.add(Notice::Refused { ordinal: device.location.id, failure, again });
            again
        });
        Ok(())
    }
}

/// Formats the ordinals of other devices for a message.
struct Peers<'a>(&'a [CUmemAccessDesc]);

impl fmt::Display for Peers<'_> {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some((first, others)) = self.0.split_first() else { return formatter.write_str("no other") };
        write!(formatter, "{}", first.location.id)?;
        others.iter().try_for_each(|device| write!(formatter, ", {}", device.location.id))
    }
}
