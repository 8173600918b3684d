//! The types of cuda.h.
#![allow(missing_docs)] // NVIDIA's manual documents them.

use std::ffi::{c_char, c_int, c_uchar, c_uint, c_ulonglong, c_ushort, c_void};

/// A type as data, to be compared with the headers.
#[derive(Clone, Copy, Debug)]
pub struct Type {
    /// Its name in cuda.h.
    pub name: &'static str,
    /// Its size in bytes.
    pub size: usize,
}

/// The layout of a struct as data.
#[derive(Clone, Copy, Debug)]
pub struct Struct {
    /// Its name in cuda.h.
    pub name: &'static str,
    /// Its size in bytes.
    pub size: usize,
    /// Its alignment in bytes.
    pub alignment: usize,
    /// Its fields.
    pub fields: &'static [Field],
}

/// A field of a struct, as data.
#[derive(Clone, Copy, Debug)]
pub struct Field {
    /// Its name; if it is a keyword of Rust, an underscore is appended that cuda.h does not have.
    pub name: &'static str,
    /// Its offset in bytes.
    pub offset: usize,
    /// Its size in bytes.
    pub size: usize,
}

macro_rules! types {
    ($($name:ident = $type:ty;)*) => {
        $(pub type $name = $type;)*

        /// Every type of this module that is an alias of a plain one.
        pub const TYPES: &[Type] = &[$(Type { name: stringify!($name), size: size_of::<$name>() },)*];
    };
}

macro_rules! handles {
    ($($name:ident = *mut $target:ident;)*) => {
        $(
            #[repr(C)]
            pub struct $target {
                _private: [u8; 0],
            }
            pub type $name = *mut $target;
        )*

        /// Every handle that is a pointer.
        pub const HANDLES: &[Type] = &[$(Type { name: stringify!($name), size: size_of::<$name>() },)*];
    };
}

macro_rules! structs {
    ($($name:ident { $($field:ident: $type:ty,)* })*) => {
        $(
            #[derive(Clone, Copy, Debug)]
            #[repr(C)]
            pub struct $name {
                $(pub $field: $type,)*
            }

            impl Default for $name {
                /// All bytes zero.
                fn default() -> Self {
                    // SAFETY: integers, pointers, and arrays and structs of them may be all zero bytes.
                    unsafe { std::mem::zeroed() }
                }
            }
        )*

        /// Every struct of this module.
        pub const STRUCTS: &[Struct] = &[$(Struct {
            name: stringify!($name),
            size: size_of::<$name>(),
            alignment: align_of::<$name>(),
            fields: &[$(Field {
                name: stringify!($field),
                offset: std::mem::offset_of!($name, $field),
                size: size_of::<$type>(),
            },)*],
        },)*];
    };
}

types! {
    CUresult = c_int;
    CUdevice = c_int;
    CUdeviceptr = u64;
    cuuint32_t = u32;
    cuuint64_t = u64;
    CUmemGenericAllocationHandle = c_ulonglong;
    CUdevice_attribute = c_uint;
    CUdevice_P2PAttribute = c_uint;
    CUctx_flags = c_uint;
    CUgreenCtxCreate_flags = c_uint;
    CUdevResourceType = c_uint;
    CUlimit = c_uint;
    CUexecAffinityType = c_uint;
    CUcigDataType = c_uint;
    CUstream_flags = c_uint;
    CUstreamCaptureMode = c_uint;
    CUstreamCaptureStatus = c_uint;
    CUevent_flags = c_uint;
    CUevent_record_flags = c_uint;
    CUevent_wait_flags = c_uint;
    CUmemorytype = c_uint;
    CUarray_format = c_uint;
    CUstreamWaitValue_flags = c_uint;
    CUstreamWriteValue_flags = c_uint;
    CUpointer_attribute = c_uint;
    CUmemAllocationType = c_uint;
    CUmemAllocationHandleType = c_uint;
    CUmemLocationType = c_uint;
    CUmemAccess_flags = c_uint;
    CUmemAllocationGranularity_flags = c_uint;
    CUmemRangeHandleType = c_uint;
    CUmemPool_attribute = c_uint;
    CUgraphMem_attribute = c_uint;
    CUgraphInstantiate_flags = c_uint;
    CUgraphInstantiateResult = c_uint;
    CUfunction_attribute = c_uint;
    CUjit_option = c_uint;
    CUlibraryOption = c_uint;
    CUdriverProcAddress_flags = c_uint;
    CUdriverProcAddressQueryResult = c_uint;
    CUhostFn = Option<unsafe extern "C" fn(user_data: *mut c_void)>;
    CUgraphRecaptureCallback = Option<
        unsafe extern "C" fn(
            data: *mut c_void,
            node: CUgraphNode,
            original_params: *const c_void,
            recapture_params: *const c_void,
            status: c_uint,
        ) -> CUresult,
    >;
    CUstreamCallback = Option<unsafe extern "C" fn(stream: CUstream, status: CUresult, user_data: *mut c_void)>;
}

handles! {
    CUcontext = *mut CUctx_st;
    CUgreenCtx = *mut CUgreenCtx_st;
    CUdevResourceDesc = *mut CUdevResourceDesc_st;
    CUmodule = *mut CUmod_st;
    CUfunction = *mut CUfunc_st;
    CUlibrary = *mut CUlib_st;
    CUstream = *mut CUstream_st;
    CUarray = *mut CUarray_st;
    CUmipmappedArray = *mut CUmipmappedArray_st;
    CUkernel = *mut CUkern_st;
    CUevent = *mut CUevent_st;
    CUgraph = *mut CUgraph_st;
    CUgraphNode = *mut CUgraphNode_st;
    CUgraphExec = *mut CUgraphExec_st;
    CUmemoryPool = *mut CUmemPoolHandle_st;
}

structs! {
    CUuuid {
        bytes: [c_char; 16],
    }
    CUipcEventHandle {
        reserved: [c_char; 64],
    }
    CUipcMemHandle {
        reserved: [c_char; 64],
    }
    CUexecAffinityParam {
        type_: CUexecAffinityType,
        // A union of one: the number of multiprocessors.
        param: c_uint,
    }
    CUctxCigParam {
        sharedDataType: CUcigDataType,
        sharedData: *mut c_void,
    }
    CUctxCreateParams {
        execAffinityParams: *mut CUexecAffinityParam,
        numExecAffinityParams: c_int,
        cigParams: *mut CUctxCigParam,
    }
    // Its field is a pointer to a struct that no function of the list needs.
    CUstreamCigCaptureParams {
        streamCigParams: *mut c_void,
    }
    // Its contents depend on its type and on the version: the number of multiprocessors is at offset 96.
    CUdevResource {
        type_: CUdevResourceType,
        reserved: [c_uchar; 140],
    }
    CUmemLocation {
        type_: CUmemLocationType,
        id: c_int,
    }
    CUmemAllocationProp {
        type_: CUmemAllocationType,
        requestedHandleTypes: CUmemAllocationHandleType,
        location: CUmemLocation,
        win32HandleMetaData: *mut c_void,
        allocFlags: CUmemAllocationPropFlags,
    }
    // In cuda.h it has no name: it is the type of the field above.
    CUmemAllocationPropFlags {
        compressionType: c_uchar,
        gpuDirectRDMACapable: c_uchar,
        usage: c_ushort,
        reserved: [c_uchar; 4],
    }
    CUmemAccessDesc {
        location: CUmemLocation,
        flags: CUmemAccess_flags,
    }
    CUmemPoolProps {
        allocType: CUmemAllocationType,
        handleTypes: CUmemAllocationHandleType,
        location: CUmemLocation,
        win32SecurityAttributes: *mut c_void,
        maxSize: usize,
        usage: c_ushort,
        reserved: [c_uchar; 54],
    }
    CUmemPoolPtrExportData {
        reserved: [c_uchar; 64],
    }
    CUlaunchConfig {
        gridDimX: c_uint,
        gridDimY: c_uint,
        gridDimZ: c_uint,
        blockDimX: c_uint,
        blockDimY: c_uint,
        blockDimZ: c_uint,
        sharedMemBytes: c_uint,
        hStream: CUstream,
        // Its type is a struct that no function of the list needs.
        attrs: *mut c_void,
        numAttrs: c_uint,
    }
    CUDA_MEMCPY2D {
        srcXInBytes: usize,
        srcY: usize,
        srcMemoryType: CUmemorytype,
        srcHost: *const c_void,
        srcDevice: CUdeviceptr,
        srcArray: CUarray,
        srcPitch: usize,
        dstXInBytes: usize,
        dstY: usize,
        dstMemoryType: CUmemorytype,
        dstHost: *mut c_void,
        dstDevice: CUdeviceptr,
        dstArray: CUarray,
        dstPitch: usize,
        WidthInBytes: usize,
        Height: usize,
    }
    CUDA_MEMCPY3D {
        srcXInBytes: usize,
        srcY: usize,
        srcZ: usize,
        srcLOD: usize,
        srcMemoryType: CUmemorytype,
        srcHost: *const c_void,
        srcDevice: CUdeviceptr,
        srcArray: CUarray,
        reserved0: *mut c_void,
        srcPitch: usize,
        srcHeight: usize,
        dstXInBytes: usize,
        dstY: usize,
        dstZ: usize,
        dstLOD: usize,
        dstMemoryType: CUmemorytype,
        dstHost: *mut c_void,
        dstDevice: CUdeviceptr,
        dstArray: CUarray,
        reserved1: *mut c_void,
        dstPitch: usize,
        dstHeight: usize,
        WidthInBytes: usize,
        Height: usize,
        Depth: usize,
    }
    CUDA_MEMCPY3D_PEER {
        srcXInBytes: usize,
        srcY: usize,
        srcZ: usize,
        srcLOD: usize,
        srcMemoryType: CUmemorytype,
        srcHost: *const c_void,
        srcDevice: CUdeviceptr,
        srcArray: CUarray,
        srcContext: CUcontext,
        srcPitch: usize,
        srcHeight: usize,
        dstXInBytes: usize,
        dstY: usize,
        dstZ: usize,
        dstLOD: usize,
        dstMemoryType: CUmemorytype,
        dstHost: *mut c_void,
        dstDevice: CUdeviceptr,
        dstArray: CUarray,
        dstContext: CUcontext,
        dstPitch: usize,
        dstHeight: usize,
        WidthInBytes: usize,
        Height: usize,
        Depth: usize,
    }
    CUDA_ARRAY_DESCRIPTOR {
        Width: usize,
        Height: usize,
        Format: CUarray_format,
        NumChannels: c_uint,
    }
    CUDA_ARRAY3D_DESCRIPTOR {
        Width: usize,
        Height: usize,
        Depth: usize,
        Format: CUarray_format,
        NumChannels: c_uint,
        Flags: c_uint,
    }
    CUmulticastObjectProp {
        numDevices: c_uint,
        size: usize,
        handleTypes: c_ulonglong,
        flags: c_ulonglong,
    }
    CUDA_KERNEL_NODE_PARAMS {
        func: CUfunction,
        gridDimX: c_uint,
        gridDimY: c_uint,
        gridDimZ: c_uint,
        blockDimX: c_uint,
        blockDimY: c_uint,
        blockDimZ: c_uint,
        sharedMemBytes: c_uint,
        kernelParams: *mut *mut c_void,
        extra: *mut *mut c_void,
        kern: CUkernel,
        ctx: CUcontext,
    }
    CUDA_MEMSET_NODE_PARAMS {
        dst: CUdeviceptr,
        pitch: usize,
        value: c_uint,
        elementSize: c_uint,
        width: usize,
        height: usize,
    }
    CUDA_HOST_NODE_PARAMS {
        fn_: CUhostFn,
        userData: *mut c_void,
    }
    CUDA_MEM_ALLOC_NODE_PARAMS {
        poolProps: CUmemPoolProps,
        accessDescs: *const CUmemAccessDesc,
        accessDescCount: usize,
        bytesize: usize,
        dptr: CUdeviceptr,
    }
    CUgraphEdgeData {
        from_port: c_uchar,
        to_port: c_uchar,
        type_: c_uchar,
        reserved: [c_uchar; 5],
    }
    CUDA_GRAPH_INSTANTIATE_PARAMS {
        flags: cuuint64_t,
        hUploadStream: CUstream,
        hErrNode_out: CUgraphNode,
        result_out: CUgraphInstantiateResult,
    }
}
