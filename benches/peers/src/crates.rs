//! Peers that are crates, and the system's malloc.

use std::alloc::Layout;
use std::ffi::{CStr, c_void};
use std::ptr::NonNull;

use anyhow::{Context as _, Result, bail};
use ash::vk;
use gpu_allocator::MemoryLocation;
use gpu_allocator::vulkan::{
    Allocation, AllocationCreateDesc, AllocationScheme, Allocator, AllocatorCreateDesc,
};

use crate::peer::Peer;

/// What all allocators align to.
const ALIGNMENT: u64 = 256;

/// Address space without memory behind it until it is written to.
fn reserve(capacity: u64) -> Result<NonNull<[u8]>> {
    let bytes = usize::try_from(capacity)?;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
    // SAFETY: a new mapping changes nothing that exists.
    let at =
        unsafe { libc::mmap(std::ptr::null_mut(), bytes, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
    if at == libc::MAP_FAILED {
        bail!("mmap of {bytes} bytes: {}", std::io::Error::last_os_error());
    }
    let at = NonNull::new(at.cast::<u8>()).context("mmap returned NULL")?;
    Ok(NonNull::slice_from_raw_parts(at, bytes))
}

pub struct GpuAllocator(Allocator);

impl Peer for GpuAllocator {
    type Piece = Allocation;

    fn open(_capacity: u64, touched: bool) -> Result<Self> {
        if touched {
            bail!("it hands out device memory only");
        }
        // SAFETY: only the functions below are called, with these handles.
        let instance = unsafe { ash::Instance::load_with(vulkan_function, vk::Instance::null()) };
        // SAFETY: as above.
        let device = unsafe { ash::Device::load_with(vulkan_function, vk::Device::null()) };
        let mut debug_settings = gpu_allocator::AllocatorDebugSettings::default();
        debug_settings.log_leaks_on_shutdown = false;
        let desc = AllocatorCreateDesc {
            instance,
            device,
            physical_device: vk::Handle::from_raw(1),
            debug_settings,
            buffer_device_address: false,
            allocation_sizes: gpu_allocator::AllocationSizes::default(),
        };
        Ok(Self(Allocator::new(&desc)?))
    }

    #[inline]
    fn alloc(&mut self, bytes: u64) -> Option<Allocation> {
        let requirements = vk::MemoryRequirements { size: bytes, alignment: ALIGNMENT, memory_type_bits: 1 };
        let desc = AllocationCreateDesc {
            name: "",
            requirements,
            location: MemoryLocation::GpuOnly,
            linear: true,
            allocation_scheme: AllocationScheme::GpuAllocatorManaged,
        };
        self.0.allocate(&desc).ok()
    }

    #[inline]
    fn free(&mut self, piece: Allocation, _bytes: u64) {
        let _ = self.0.free(piece);
    }

    fn addr(&self, piece: &Allocation) -> u64 {
        // SAFETY: the memory is not freed through this handle.
        let memory = unsafe { piece.memory() };
        // A block's handle is its number: there is room for 1 TiB in each.
        (vk::Handle::as_raw(memory) << 40) + piece.offset()
    }
}

/// The few functions of Vulkan that gpu-allocator calls. The others stay NULL, and `ash` panics in their place.
fn vulkan_function(name: &CStr) -> *const c_void {
    match name.to_bytes() {
        b"vkAllocateMemory" => allocate_memory as *const c_void,
        b"vkFreeMemory" => free_memory as *const c_void,
        b"vkGetPhysicalDeviceMemoryProperties" => memory_properties as *const c_void,
        b"vkGetPhysicalDeviceProperties" => properties as *const c_void,
        _ => std::ptr::null(),
    }
}

unsafe extern "system" fn allocate_memory(
    _device: vk::Device,
    _info: *const vk::MemoryAllocateInfo<'_>,
    _callbacks: *const vk::AllocationCallbacks<'_>,
    memory: *mut vk::DeviceMemory,
) -> vk::Result {
    use std::sync::atomic::{AtomicU64, Ordering};
    static NEXT: AtomicU64 = AtomicU64::new(1);
    // SAFETY: the caller has room for the handle.
    unsafe { memory.write(vk::Handle::from_raw(NEXT.fetch_add(1, Ordering::Relaxed))) };
    vk::Result::SUCCESS
}

unsafe extern "system" fn free_memory(
    _device: vk::Device,
    _memory: vk::DeviceMemory,
    _callbacks: *const vk::AllocationCallbacks<'_>,
) {
}

unsafe extern "system" fn memory_properties(
    _device: vk::PhysicalDevice,
    properties: *mut vk::PhysicalDeviceMemoryProperties,
) {
    let mut one = vk::PhysicalDeviceMemoryProperties {
        memory_type_count: 1,
        memory_heap_count: 1,
        ..Default::default()
    };
    one.memory_types[0].property_flags = vk::MemoryPropertyFlags::DEVICE_LOCAL;
    one.memory_heaps[0].size = 1 << 40;
    // SAFETY: the caller has room for the answer.
    unsafe { properties.write(one) };
}

unsafe extern "system" fn properties(
    _device: vk::PhysicalDevice,
    properties: *mut vk::PhysicalDeviceProperties,
) {
    let limits = vk::PhysicalDeviceLimits { buffer_image_granularity: 1, ..Default::default() };
    // SAFETY: the caller has room for the answer.
    unsafe { properties.write(vk::PhysicalDeviceProperties { limits, ..Default::default() }) };
}

pub struct OffsetAllocator(offset_allocator::Allocator);

impl Peer for OffsetAllocator {
    type Piece = offset_allocator::Allocation;

    fn open(capacity: u64, touched: bool) -> Result<Self> {
        if touched {
            bail!("it hands out offsets only");
        }
        let units = u32::try_from(capacity / ALIGNMENT).context("more than its 32 bits hold")?;
        Ok(Self(offset_allocator::Allocator::with_max_allocs(units, 4 << 20)))
    }

    #[inline]
    fn alloc(&mut self, bytes: u64) -> Option<Self::Piece> {
        self.0.allocate(u32::try_from(bytes.div_ceil(ALIGNMENT)).ok()?)
    }

    #[inline]
    fn free(&mut self, piece: Self::Piece, _bytes: u64) {
        self.0.free(piece);
    }

    fn addr(&self, piece: &Self::Piece) -> u64 {
        u64::from(piece.offset) * ALIGNMENT
    }
}

/// Blocks of up to 1 TiB.
pub struct Rlsf(rlsf::Tlsf<'static, u64, u32, 36, 32>);

impl Peer for Rlsf {
    type Piece = NonNull<u8>;

    fn open(capacity: u64, _touched: bool) -> Result<Self> {
        let mut tlsf = rlsf::Tlsf::new();
        // SAFETY: the mapping is used for nothing else, and stays.
        unsafe { tlsf.insert_free_block_ptr(reserve(capacity)?) }
            .context("it takes no block of this size")?;
        Ok(Self(tlsf))
    }

    #[inline]
    fn alloc(&mut self, bytes: u64) -> Option<NonNull<u8>> {
        self.0.allocate(Layout::from_size_align(bytes as usize, ALIGNMENT as usize).ok()?)
    }

    #[inline]
    fn free(&mut self, piece: NonNull<u8>, _bytes: u64) {
        // SAFETY: `alloc` returned it, with this alignment.
        unsafe { self.0.deallocate(piece, ALIGNMENT as usize) };
    }

    fn addr(&self, piece: &NonNull<u8>) -> u64 {
        piece.as_ptr() as u64
    }
}

/// Declares a peer by its aligned malloc and its free.
macro_rules! malloc {
    ($name:ident, |$bytes:ident| $alloc:expr, |$ptr:ident, $size:ident| $free:expr) => {
        pub struct $name;

        impl Peer for $name {
            type Piece = NonNull<c_void>;

            fn open(_capacity: u64, touched: bool) -> Result<Self> {
                if !touched {
                    bail!("it takes real memory, and is timed where that is written to");
                }
                Ok(Self)
            }

            #[inline]
            fn alloc(&mut self, $bytes: u64) -> Option<NonNull<c_void>> {
                let $bytes = $bytes as usize;
                // SAFETY: the size is not 0 and the alignment a power of two.
                NonNull::new(unsafe { $alloc })
            }

            #[inline]
            fn free(&mut self, piece: NonNull<c_void>, $size: u64) {
                let ($ptr, _) = (piece.as_ptr(), $size);
                // SAFETY: `alloc` returned it.
                unsafe { $free };
            }

            fn addr(&self, piece: &NonNull<c_void>) -> u64 {
                piece.as_ptr() as u64
            }
        }
    };
}

malloc!(Mimalloc, |bytes| libmimalloc_sys::mi_malloc_aligned(bytes, ALIGNMENT as usize), |ptr, _bytes| {
    libmimalloc_sys::mi_free(ptr)
});
malloc!(
    Jemalloc,
    |bytes| tikv_jemalloc_sys::mallocx(bytes, tikv_jemalloc_sys::MALLOCX_ALIGN(ALIGNMENT as usize)),
    |ptr, _bytes| tikv_jemalloc_sys::dallocx(ptr, 0)
);
malloc!(
    Glibc,
    |bytes| libc::aligned_alloc(ALIGNMENT as usize, bytes.next_multiple_of(256)),
    |ptr, _bytes| libc::free(ptr)
);

/// A planted fault: every other piece begins inside the one before.
pub struct Overlapping(u64);

impl Peer for Overlapping {
    type Piece = u64;

    fn open(_capacity: u64, touched: bool) -> Result<Self> {
        if touched {
            bail!("it has no memory");
        }
        Ok(Self(1 << 40))
    }

    fn alloc(&mut self, bytes: u64) -> Option<u64> {
        let addr = self.0;
        self.0 += bytes.next_multiple_of(512) / 2;
        Some(addr)
    }

    fn free(&mut self, _piece: u64, _bytes: u64) {}

    fn addr(&self, piece: &u64) -> u64 {
        *piece
    }
}
