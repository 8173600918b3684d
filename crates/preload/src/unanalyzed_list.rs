//! Functions through which work of one context may use another device's memory without peer access, and whose arguments
//! the interposer does not analyze. From the first call of one of them, every pool waits for every context.
//!
//! docs/hooks.md names their kinds. The suite `cuda-headers` reads the lists in Python.

/// Passes the list to `$callback!`. An entry is `SYMBOL as "NAME" since VERSION, "why";`. SYMBOL is exported by
/// libcuda.so.1, NAME is the argument of `cuGetProcAddress`, and VERSION is the first one for which that returns this
/// function.
macro_rules! unanalyzed {
    ($callback:ident) => {
        $callback! {
        // Copies and fills.
        cuMemcpyBatchAsync as "cuMemcpyBatchAsync" since 12080, "copies of any addresses";
        cuMemcpyBatchAsync_ptsz as "cuMemcpyBatchAsync" since 12080, "the same";
        cuMemcpyBatchAsync_v2 as "cuMemcpyBatchAsync" since 13000, "the same";
        cuMemcpyBatchAsync_v2_ptsz as "cuMemcpyBatchAsync" since 13000, "the same";
        cuMemcpy3DBatchAsync as "cuMemcpy3DBatchAsync" since 12080, "the same";
        cuMemcpy3DBatchAsync_ptsz as "cuMemcpy3DBatchAsync" since 12080, "the same";
        cuMemcpy3DBatchAsync_v2 as "cuMemcpy3DBatchAsync" since 13000, "the same";
        cuMemcpy3DBatchAsync_v2_ptsz as "cuMemcpy3DBatchAsync" since 13000, "the same";
        cuMemcpyWithAttributesAsync as "cuMemcpyWithAttributesAsync" since 13020, "a copy of any addresses";
        cuMemcpyWithAttributesAsync_ptsz as "cuMemcpyWithAttributesAsync" since 13020, "the same";
        cuMemcpy3DWithAttributesAsync as "cuMemcpy3DWithAttributesAsync" since 13020, "the same";
        cuMemcpy3DWithAttributesAsync_ptsz as "cuMemcpy3DWithAttributesAsync" since 13020, "the same";
        cuMemBatchDecompressAsync as "cuMemBatchDecompressAsync" since 12060, "reads and writes any addresses";
        cuMemBatchDecompressAsync_ptsz as "cuMemBatchDecompressAsync" since 12060, "the same";
        cuMemcpyDtoA_v2 as "cuMemcpyDtoA" since 3020, "a copy between memory and an array";
        cuMemcpyDtoA_v2_ptds as "cuMemcpyDtoA" since 7000, "the same";
        cuMemcpyAtoD_v2 as "cuMemcpyAtoD" since 3020, "the same";
        cuMemcpyAtoD_v2_ptds as "cuMemcpyAtoD" since 7000, "the same";
        cuMemsetD2D8_v2 as "cuMemsetD2D8" since 3020, "fills a rectangle";
        cuMemsetD2D8_v2_ptds as "cuMemsetD2D8" since 7000, "the same";
        cuMemsetD2D8Async as "cuMemsetD2D8Async" since 3020, "the same";
        cuMemsetD2D8Async_ptsz as "cuMemsetD2D8Async" since 7000, "the same";
        cuMemsetD2D16_v2 as "cuMemsetD2D16" since 3020, "fills a rectangle";
        cuMemsetD2D16_v2_ptds as "cuMemsetD2D16" since 7000, "the same";
        cuMemsetD2D16Async as "cuMemsetD2D16Async" since 3020, "the same";
        cuMemsetD2D16Async_ptsz as "cuMemsetD2D16Async" since 7000, "the same";
        cuMemsetD2D32_v2 as "cuMemsetD2D32" since 3020, "fills a rectangle";
        cuMemsetD2D32_v2_ptds as "cuMemsetD2D32" since 7000, "the same";
        cuMemsetD2D32Async as "cuMemsetD2D32Async" since 3020, "the same";
        cuMemsetD2D32Async_ptsz as "cuMemsetD2D32Async" since 7000, "the same";
        // Values.
        cuStreamWriteValue32 as "cuStreamWriteValue32" since 8000, "writes to any address";
        cuStreamWriteValue32_ptsz as "cuStreamWriteValue32" since 8000, "the same";
        cuStreamWriteValue32_v2 as "cuStreamWriteValue32" since 11070, "the same";
        cuStreamWriteValue32_v2_ptsz as "cuStreamWriteValue32" since 11070, "the same";
        cuStreamWaitValue32 as "cuStreamWaitValue32" since 8000, "reads any address";
        cuStreamWaitValue32_ptsz as "cuStreamWaitValue32" since 8000, "the same";
        cuStreamWaitValue32_v2 as "cuStreamWaitValue32" since 11070, "the same";
        cuStreamWaitValue32_v2_ptsz as "cuStreamWaitValue32" since 11070, "the same";
        cuStreamWriteValue64 as "cuStreamWriteValue64" since 9000, "writes to any address";
        cuStreamWriteValue64_ptsz as "cuStreamWriteValue64" since 9000, "the same";
        cuStreamWriteValue64_v2 as "cuStreamWriteValue64" since 11070, "the same";
        cuStreamWriteValue64_v2_ptsz as "cuStreamWriteValue64" since 11070, "the same";
        cuStreamWaitValue64 as "cuStreamWaitValue64" since 9000, "reads any address";
        cuStreamWaitValue64_ptsz as "cuStreamWaitValue64" since 9000, "the same";
        cuStreamWaitValue64_v2 as "cuStreamWaitValue64" since 11070, "the same";
        cuStreamWaitValue64_v2_ptsz as "cuStreamWaitValue64" since 11070, "the same";
        cuStreamBatchMemOp as "cuStreamBatchMemOp" since 8000, "writes to and reads any addresses";
        cuStreamBatchMemOp_ptsz as "cuStreamBatchMemOp" since 8000, "the same";
        cuStreamBatchMemOp_v2 as "cuStreamBatchMemOp" since 11070, "the same";
        cuStreamBatchMemOp_v2_ptsz as "cuStreamBatchMemOp" since 11070, "the same";
        // Graphs.
        cuGraphAddNode as "cuGraphAddNode" since 12020, "a node of any kind, which runs wherever the graph is launched";
        cuGraphAddNode_v2 as "cuGraphAddNode" since 12030, "the same";
        cuGraphAddNode_v3 as "cuGraphAddNode" since 13040, "the same";
        cuGraphNodeSetParams as "cuGraphNodeSetParams" since 12020, "the same";
        cuGraphNodeSetParams_v2 as "cuGraphNodeSetParams" since 13040, "the same";
        cuGraphExecNodeSetParams as "cuGraphExecNodeSetParams" since 12020, "a node that runs wherever the graph is launched";
        cuGraphMemcpyNodeSetParams as "cuGraphMemcpyNodeSetParams" since 10000, "the same";
        cuGraphAddMemsetNode as "cuGraphAddMemsetNode" since 10000, "the same";
        cuGraphMemsetNodeSetParams as "cuGraphMemsetNodeSetParams" since 10000, "the same";
        cuGraphExecMemsetNodeSetParams as "cuGraphExecMemsetNodeSetParams" since 10020, "the same";
        cuGraphAddBatchMemOpNode as "cuGraphAddBatchMemOpNode" since 11070, "the same";
        cuGraphBatchMemOpNodeSetParams as "cuGraphBatchMemOpNodeSetParams" since 11070, "the same";
        cuGraphExecBatchMemOpNodeSetParams as "cuGraphExecBatchMemOpNodeSetParams" since 11070, "the same";
        // Mappings.
        cuLogicalEndpointBindAddr as "cuLogicalEndpointBindAddr" since 13030, "other devices may use the bound memory";
        cuImportExternalMemory as "cuImportExternalMemory" since 10000, "may be pooled memory that was exported";
        }
    };
}
pub(crate) use unanalyzed;

/// Functions that copy, write or map too, but are neither hooked nor in the list above, with the reasons. Several names
/// are separated by spaces. A `*` stands for any text.
pub(crate) const HARMLESS: &[(&str, &str)] = &[
    (
        "cuMemcpyHtoD cuMemcpyDtoH cuMemcpyDtoD cuMemcpyDtoA cuMemcpyAtoD cuMemcpyHtoDAsync cuMemcpyDtoHAsync \
         cuMemcpyDtoDAsync cuMemcpy2D cuMemcpy2DUnaligned cuMemcpy2DAsync cuMemcpy3D cuMemcpy3DAsync cuMemsetD8 cuMemsetD16 \
         cuMemsetD32 cuMemsetD2D8 cuMemsetD2D16 cuMemsetD2D32",
        "the 32-bit functions of CUDA before 3.2: pooled memory has no 32-bit addresses",
    ),
    (
        "cuMemcpyAtoA* cuMemcpyAtoH* cuMemcpyHtoA*",
        "between arrays and the host: neither arrays nor another device's host memory are pooled",
    ),
    ("cuMemPrefetch* cuMemDiscard*", "managed memory, which is not pooled"),
    (
        "cuGraphAddKernelNode* cuGraphKernelNodeSetParams* cuGraphExecKernelNodeSetParams*",
        "kernels reach another device's memory by peer access or mappings only",
    ),
    (
        "cuGraphAddHostNode cuGraphHostNodeSetParams cuGraphExecHostNodeSetParams",
        "host functions, which must not call CUDA",
    ),
    (
        "cuGraphAddEmptyNode cuGraphAddEvent* cuGraphAddExternalSemaphores* cuGraphExternalSemaphores* \
         cuGraphExecExternalSemaphores*",
        "ordering only",
    ),
    (
        "cuGraphAddChildGraphNode cuGraphExecChildGraphNodeSetParams",
        "the nodes of the child graph were seen when they were added",
    ),
    ("cuGraphAddMemAllocNode cuGraphAddMemFreeNode", "memory that a graph owns"),
    (
        "cuLogicalEndpointBindMem",
        "takes a memory handle; for pooled memory only cuMemRetainAllocationHandle returns one, which is hooked",
    ),
];

/// The names of functions through which work may use memory: they copy, fill, write values or map, or add or change graph
/// nodes. A `*` stands for any text.
pub(crate) const TOUCHING: [&str; 16] = [
    "cuMemcpy*",
    "cuMemset*",
    "cuMemBatchDecompress*",
    "cuMemPrefetch*",
    "cuMemDiscard*",
    "cuMemSetAccess*",
    "cuMemRetainAllocationHandle*",
    "cuStreamWriteValue*",
    "cuStreamWaitValue*",
    "cuStreamBatchMemOp*",
    "cuGraphLaunch*",
    "cuMulticastBind*",
    "cuLogicalEndpointBind*",
    "cuImportExternalMemory*",
    "cuGraphAdd*Node*",
    "cuGraph*NodeSetParams*",
];
