//! Refusals of the driver that do not fail a call. They are collected during the call and logged after it.

use crate::backend::cuda::Cuda;
use crate::backend::cuda::calls::Failure;
use crate::error::{LastError, keeping_last_error};
use crate::log::{self, Level};
use std::ffi::c_int;

/// A refusal.
pub(super) enum Notice {
    /// The number of devices is not known.
    Uncounted { failure: Failure },
    /// It is not known whether the device can access the memory.
    Unanswered { ordinal: c_int, failure: Failure },
    /// The device has no access to new mappings. With `again`, access is requested again at the next mapping.
    Refused { ordinal: c_int, failure: Failure, again: bool },
    /// The flag for GPUDirect RDMA was refused.
    NoRdma { failure: Failure },
}

/// Refusals that are not logged yet.
#[derive(Default)]
pub(super) struct Notices(Vec<Notice>);

impl Notices {
    /// Adds a notice. Without host memory for it the message is lost.
    pub(super) fn add(&mut self, notice: Notice) {
        if self.0.try_reserve(1).is_ok() {
            self.0.push(notice);
        }
    }

    /// Takes the notices out, to be logged after the call.
    pub(super) fn take(&mut self) -> Self {
        std::mem::take(self)
    }

    /// Logs the notices. The thread's last error is not changed.
    pub(super) fn log(self, cuda: &Cuda) {
        if self.0.is_empty() {
            return;
        }
        keeping_last_error(|| self.0.iter().for_each(|notice| notice.log(cuda)));
    }
}

impl Notice {
    fn log(&self, cuda: &Cuda) {
        let own = cuda.ordinal;
        let (Self::Uncounted { failure }
        | Self::Unanswered { failure, .. }
        | Self::Refused { failure, .. }
        | Self::NoRdma { failure }) = self;
        // This sets the text as the thread's last error.
        let _ = failure.explain(cuda.driver);
        let warn = |message| log::emit(Level::Warn, message);
        match self {
            Self::Uncounted { .. } => warn(format_args!(
                "device {own}: its memory is not accessible to devices with higher ordinals: {LastError}"
            )),
            Self::Unanswered { ordinal, .. } => {
                warn(format_args!(
                    "device {own}: its memory is not accessible to device {ordinal}: {LastError}"
                ));
            }
            Self::Refused { ordinal, again: true, .. } => warn(format_args!(
                "device {own}: memory that was mapped is not accessible to device {ordinal}; the next mapping tries \
                     again: {LastError}"
            )),
            Self::Refused { ordinal, again: false, .. } => warn(format_args!(
                "device {own}: memory that is mapped from now on is not accessible to device {ordinal}: {LastError}"
            )),
            Self::NoRdma { .. } => warn(format_args!(
                "device {own}: memory is allocated without the flag for GPUDirect RDMA: {LastError}"
            )),
        }
    }
}
