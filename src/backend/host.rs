//! Host memory. Nothing is reserved in advance. Pages become resident when the program touches them.

use super::memory::{Memory, ProcessMemory};
use super::{Backend, Granted};
use crate::error::ErrorKind;
use crate::log::{self, Level};
use crate::sys::host::{memory_available, memory_total, memory_total_now};
use crate::sys::huge_pages::{SystemSetting, system_setting};
use crate::sys::numa::{self, Placement};
use bfc_core::units::Span;
use bfc_hostmem::Mapping;
use bfc_hostmem::{HUGE_PAGE, advise, discard, populate};

/// Whether regions use huge pages. A region is then faulted in 2 MiB at a time instead of 4 KiB.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) enum HugePages {
    /// Where the system lets the program choose.
    #[default]
    Auto,
    /// Wherever the system allows it.
    Always,
    Never,
    /// In pages that the administrator has reserved, and as with `Always` once none are left.
    Hugetlb,
}

impl HugePages {
    pub(crate) const ALL: [Self; 4] = [Self::Auto, Self::Always, Self::Never, Self::Hugetlb];

    /// The name in the environment and in reports.
    pub(crate) fn name(self) -> &'static str {
        match self {
            HugePages::Auto => "auto",
            HugePages::Always => "always",
            HugePages::Never => "never",
            HugePages::Hugetlb => "hugetlb",
        }
    }
}

/// The advice given to the kernel about a region.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Advice {
    #[default]
    None,
    Huge,
    Small,
}

#[derive(Clone, Copy, Default)]
pub(crate) struct Host {
    advice: Advice,
    takes_reserved: bool,
    populates: bool,
    placement: Option<Placement>,
}

impl Host {
    /// Creates the backend. Settings that the system does not allow are ignored, with a warning.
    pub(crate) fn open(huge_pages: HugePages, placement: Option<Placement>) -> Self {
        let system = system_setting();
        let advice = match huge_pages {
            HugePages::Auto if system == SystemSetting::OnAdvice => Advice::Huge,
            HugePages::Auto => Advice::None,
            HugePages::Always | HugePages::Hugetlb => Advice::Huge,
            HugePages::Never => Advice::Small,
        };
        if huge_pages == HugePages::Always && system == SystemSetting::Never {
            log::emit(
                Level::Warn,
                format_args!(
                    "BFC_HUGE_PAGES=always has no effect: the system has no transparent huge pages, or they are \
                     switched off in /sys/kernel/mm/transparent_hugepage/enabled"
                ),
            );
        }
        let takes_reserved = huge_pages == HugePages::Hugetlb;
        let placement = placement.filter(|&placement| can_place(placement));
        Host { advice, takes_reserved, populates: false, placement }
    }

    /// Sets whether new regions are populated in the background. Reserved pages are allocated with the region anyway.
    pub(crate) fn populating(self, populates: bool) -> Self {
        Host { populates: populates && !self.takes_reserved, ..self }
    }

    fn map(&self, bytes: usize, alignment: usize) -> Option<Mapping> {
        if self.takes_reserved
            && let Ok(mapping) = Mapping::of_reserved_huge_pages(bytes, alignment)
        {
            return Some(mapping);
        }
        let is_huge = bytes >= HUGE_PAGE && self.advice != Advice::Small;
        let mapping = Mapping::new(bytes, if is_huge { alignment.max(HUGE_PAGE) } else { alignment }).ok()?;
        match self.advice {
            Advice::None => {}
            Advice::Huge if !is_huge => {}
            advice => advise(mapping.base() as u64, mapping.bytes() as u64, advice == Advice::Huge),
        }
        Some(mapping)
    }

    /// Returns the size of the mapping for a region. A mapping of reserved pages can be unmapped by whole pages only,
    /// so with them every region has such a size.
    fn extent(&self, bytes: u64) -> Option<u64> {
        if self.takes_reserved { bytes.checked_next_multiple_of(HUGE_PAGE as u64) } else { Some(bytes) }
    }
}

/// Returns whether the system accepts a placement. A container may forbid the call.
fn can_place(placement: Placement) -> bool {
    let probe =
        Mapping::new(1, 1).map(|page| numa::place(page.base() as u64, page.bytes() as u64, placement));
    let Ok(Err(errno)) = probe else { return true };
    log::emit(
        Level::Warn,
        format_args!("BFC_NUMA is ignored: the system refuses mbind for the process (errno {errno})"),
    );
    false
}

impl Backend for Host {
    fn alloc(&self, alignment: u64, bytes: u64) -> Result<Option<Granted>, ErrorKind> {
        let extent = self.extent(bytes).and_then(|extent| usize::try_from(extent).ok());
        let mapping = match (extent, usize::try_from(alignment)) {
            (Some(extent), Ok(alignment)) => self.map(extent, alignment),
            _ => None,
        };
        if let (Some(mapping), Some(placement)) = (&mapping, self.placement) {
            // The memory works without it. Whether the system accepts the placement was checked before.
            let _ = numa::place(mapping.base() as u64, mapping.bytes() as u64, placement);
        }
        // The region outlives this call. `free` turns it back into a mapping.
        Ok(mapping.map(|mapping| Granted { base: mapping.into_raw() as u64, bytes }))
    }

    fn free(&self, granted: Granted) -> Result<(), ErrorKind> {
        let extent = self.extent(granted.bytes).unwrap_or(granted.bytes);
        // SAFETY: the pool frees what `alloc` returned, once, and no chunk of it is in use.
        drop(unsafe { Mapping::from_raw(granted.base as *mut u8, extent as usize) });
        Ok(())
    }

    fn discards(&self) -> bool {
        !self.takes_reserved
    }

    fn populates(&self) -> bool {
        self.populates
    }

    fn populate(&self, span: Span) -> bool {
        populate(span.base, span.bytes)
    }

    /// Nine tenths of the memory that is left.
    fn populates_at_most(&self) -> u64 {
        memory_available() / 10 * 9
    }

    unsafe fn discard(&self, span: Span) -> Option<Span> {
        // Reserved pages stay: the system might give them to another program, and the next touch would end this one.
        if self.takes_reserved {
            return None;
        }
        // SAFETY: guaranteed by the caller. Regions are private anonymous memory.
        let (base, bytes) = unsafe { discard(span.base, span.bytes) }?;
        Some(Span { base, bytes })
    }

    /// A private mapping is copied on write, so the child has its own memory at the same addresses.
    fn may_synchronize(&self) -> bool {
        false
    }

    fn survives_fork(&self) -> bool {
        true
    }

    fn total_memory(&self) -> Option<u64> {
        Some(memory_total())
    }

    /// The limit of a control group may be changed at any time.
    fn total_may_change(&self) -> bool {
        true
    }

    fn total_now(&self) -> Option<u64> {
        memory_total_now()
    }

    fn name(&self) -> &'static str {
        "host"
    }

    fn memory(&self) -> Option<&dyn Memory> {
        Some(&ProcessMemory)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns how many of the first `bytes` bytes at an address are resident, using `mincore`.
    fn resident(base: u64, bytes: u64) -> u64 {
        let mut pages = vec![0_u8; bytes as usize / 4096];
        // SAFETY: the vector has an element for each page.
        let done = unsafe { libc::mincore(base as *mut libc::c_void, bytes as usize, pages.as_mut_ptr()) };
        assert_eq!(done, 0);
        pages.iter().filter(|&&page| page & 1 != 0).count() as u64 * 4096
    }

    #[test]
    fn gives_aligned_memory_that_works_and_takes_it_back() {
        for huge_pages in HugePages::ALL {
            let host = Host::open(huge_pages, Some(Placement::Interleave));
            for alignment in [256, 4096, 2 << 20, 1 << 24] {
                let granted = host.alloc(alignment, (5 << 20) + 256).unwrap().unwrap();
                assert_eq!((granted.base % alignment, granted.bytes), (0, (5 << 20) + 256));
                // SAFETY: the region has that many bytes.
                unsafe { (granted.base as *mut u8).write_bytes(1, granted.bytes as usize) };
                host.free(granted).unwrap();
            }
            assert_eq!(host.alloc(256, 1 << 62), Ok(None));
            assert_eq!(host.alloc(256, u64::MAX), Ok(None));
        }
    }

    #[test]
    fn large_regions_begin_with_a_huge_page() {
        let host = Host::open(HugePages::Always, None);
        let regions =
            [1 << 21, 1 << 22, (1 << 22) + 256].map(|bytes| host.alloc(256, bytes).unwrap().unwrap());
        for granted in regions {
            assert_eq!(granted.base % HUGE_PAGE as u64, 0);
            host.free(granted).unwrap();
        }
    }

    #[test]
    fn a_touch_brings_in_a_huge_page_if_they_are_wanted() {
        if system_setting() == SystemSetting::Never {
            eprintln!("skipped: the system has no transparent huge pages, or they are switched off");
            return;
        }
        for (huge_pages, expected) in [(HugePages::Always, HUGE_PAGE as u64), (HugePages::Never, 4096)] {
            let host = Host::open(huge_pages, None);
            let granted = host.alloc(256, 8 << 20).unwrap().unwrap();
            // SAFETY: the region has that many bytes.
            unsafe { (granted.base as *mut u8).write(1) };
            assert_eq!(resident(granted.base, 8 << 20), expected, "{huge_pages:?}");
            host.free(granted).unwrap();
        }
    }

    #[test]
    fn discarded_pages_are_not_resident_and_read_as_zero() {
        let host = Host::open(HugePages::Never, None);
        let granted = host.alloc(256, 1 << 20).unwrap().unwrap();
        let base = granted.base as *mut u8;
        // SAFETY: the region has that many bytes.
        unsafe { base.write_bytes(7, 1 << 20) };
        let span = Span { base: granted.base + 256, bytes: 3 * 4096 };
        // SAFETY: nothing else uses the region.
        let discarded = unsafe { host.discard(span) }.unwrap();
        assert_eq!((discarded.base, discarded.bytes), (granted.base + 4096, 2 * 4096));
        assert_eq!(resident(granted.base, 1 << 20), (1 << 20) - 2 * 4096);
        // SAFETY: the region has that many bytes.
        let byte = |at: usize| unsafe { base.wrapping_add(at).read() };
        assert_eq!([byte(4095), byte(4096), byte(3 * 4096 - 1), byte(3 * 4096)], [7, 0, 0, 7]);
        for (offset, bytes) in [(1, 4095), (4096, 0), (100, 4096)] {
            // SAFETY: as above.
            assert!(unsafe { host.discard(Span { base: granted.base + offset, bytes }) }.is_none());
        }
        host.free(granted).unwrap();
    }
}
