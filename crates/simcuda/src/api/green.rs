//! Green contexts, and the resources that they are made of.

use std::ffi::{c_int, c_uint, c_ulonglong};

use cuda_sys::*;

use crate::abi::{Answer, get, get_all, put, put_if};
use crate::handles::Kind;
use crate::sim::{self, Sim};
use crate::state::green::{MULTIPROCESSORS, Multiprocessors};
use crate::state::stream::{Role, Stream};

use super::event::record_activities;

// Resources. What tells a split's results apart is in the part of the structure that is not documented.

/// Where the fields are in `CUdevResource::reserved`, which begins after the type.
const DEVICE: usize = 0;
const SPLIT: usize = 4;
const COUNT: usize = 92;

fn seen(resource: Multiprocessors) -> CUdevResource {
    let mut seen = CUdevResource { type_: CU_DEV_RESOURCE_TYPE_SM, ..CUdevResource::default() };
    seen.reserved[DEVICE..DEVICE + 4].copy_from_slice(&resource.device.to_ne_bytes());
    seen.reserved[SPLIT..SPLIT + 8].copy_from_slice(&resource.split.to_ne_bytes());
    seen.reserved[COUNT..COUNT + 4].copy_from_slice(&resource.count.to_ne_bytes());
    seen
}

fn read(seen: &CUdevResource) -> Answer<Multiprocessors> {
    if seen.type_ != CU_DEV_RESOURCE_TYPE_SM {
        return Err(CUDA_ERROR_INVALID_RESOURCE_TYPE);
    }
    let byte = |at: usize| seen.reserved.get(at).copied().unwrap_or_default();
    Ok(Multiprocessors {
        device: CUdevice::from_ne_bytes(std::array::from_fn(|index| byte(DEVICE + index))),
        count: u32::from_ne_bytes(std::array::from_fn(|index| byte(COUNT + index))),
        split: u64::from_ne_bytes(std::array::from_fn(|index| byte(SPLIT + index))),
    })
}

fn put_resource(to: *mut CUdevResource, kind: CUdevResourceType, resource: Multiprocessors) -> Answer {
    if kind != CU_DEV_RESOURCE_TYPE_SM {
        return Err(CUDA_ERROR_INVALID_RESOURCE_TYPE);
    }
    put(to, seen(resource))
}

pub(crate) fn cuDeviceGetDevResource(
    device: CUdevice,
    resource: *mut CUdevResource,
    kind: CUdevResourceType,
) -> Answer {
    sim::lock().device(device)?;
    put_resource(resource, kind, Multiprocessors { device, count: MULTIPROCESSORS, split: 0 })
}

pub(crate) fn cuCtxGetDevResource(
    context: CUcontext,
    resource: *mut CUdevResource,
    kind: CUdevResourceType,
) -> Answer {
    let mut sim = sim::lock();
    let context = sim.context(context)?;
    let device = sim.contexts[&context].device();
    let green = sim.green_of(context).and_then(|green| sim.greens.get(&green));
    let all = Multiprocessors { device, count: MULTIPROCESSORS, split: 0 };
    put_resource(resource, kind, green.map_or(all, |green| green.resource))
}

pub(crate) fn cuGreenCtxGetDevResource(
    green: CUgreenCtx,
    resource: *mut CUdevResource,
    kind: CUdevResourceType,
) -> Answer {
    let there = sim::lock().green(green)?.resource;
    put_resource(resource, kind, there)
}

/// The least number of multiprocessors in a group, and its alignment: "On Compute Architecture 9.0+: The minimum count is
/// 8 SMs and must be a multiple of 8." A flag lowers them.
fn least(flags: c_uint) -> u32 {
    if flags & CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING != 0 { 2 } else { 8 }
}

/// "A limitation of the API is that the output results cannot be split again without first creating a descriptor and a
/// green context with that descriptor."
pub(crate) fn cuDevSmResourceSplitByCount(
    groups: *mut CUdevResource,
    number: *mut c_uint,
    input: *const CUdevResource,
    remainder: *mut CUdevResource,
    flags: c_uint,
    wanted: c_uint,
) -> Answer {
    let input = read(&get(input)?)?;
    let most = get(number.cast_const())?;
    let known =
        CU_DEV_SM_RESOURCE_SPLIT_IGNORE_SM_COSCHEDULING | CU_DEV_SM_RESOURCE_SPLIT_MAX_POTENTIAL_CLUSTER_SIZE;
    if wanted > input.count || flags & !known != 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let size = wanted.max(1).next_multiple_of(least(flags));
    let possible = input.count / size;
    if input.split != 0 || possible == 0 {
        return Err(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
    }
    if groups.is_null() {
        return put(number, possible);
    }
    let split = sim::lock().number();
    let made = possible.min(most);
    for index in 0..made {
        let group = seen(Multiprocessors { count: size, split, ..input });
        put(groups.wrapping_add(index as usize), group)?;
    }
    put(number, made)?;
    let left = input.count - made * size;
    let rest = if left > 0 {
        seen(Multiprocessors { count: left, split, ..input })
    } else {
        CUdevResource::default()
    };
    put_if(remainder, rest);
    Ok(())
}

/// Resources must be "from the same split API instance, otherwise CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION is returned",
/// and likewise from the same device.
pub(crate) fn cuDevResourceGenerateDesc(
    descriptor: *mut CUdevResourceDesc,
    resources: *mut CUdevResource,
    number: c_uint,
) -> Answer {
    if descriptor.is_null() || number == 0 {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let resources = get_all(resources.cast_const(), number as usize)?;
    let resources = resources.iter().map(read).collect::<Answer<Vec<_>>>()?;
    let Some(&first) = resources.first() else { return Err(CUDA_ERROR_INVALID_VALUE) };
    let differs = |other: &Multiprocessors| (other.device, other.split) != (first.device, first.split);
    if resources.iter().any(differs) || (first.split == 0 && number > 1) {
        return Err(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
    }
    let count = resources.iter().map(|resource| resource.count).sum();
    let mut sim = sim::lock();
    let handle = sim.handle(Kind::Descriptor);
    // The context's resource can be split again.
    sim.descriptors.insert(handle, Multiprocessors { device: first.device, count, split: 0 });
    put(descriptor, handle as CUdevResourceDesc)
}

// Green contexts.

/// "CU_GREEN_CTX_DEFAULT_STREAM is required" up to CUDA 12.9, and here.
pub(crate) fn cuGreenCtxCreate(
    green: *mut CUgreenCtx,
    descriptor: CUdevResourceDesc,
    device: CUdevice,
    flags: c_uint,
) -> Answer {
    let mut sim = sim::lock();
    sim.device(device)?;
    let resource = sim.descriptors.get(&(descriptor.addr() as u64)).copied();
    let resource = resource.filter(|resource| resource.device == device).ok_or(CUDA_ERROR_INVALID_VALUE)?;
    if green.is_null() || flags != CU_GREEN_CTX_DEFAULT_STREAM {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let handle = sim.make_green(resource)?;
    put(green, handle as CUgreenCtx)
}

pub(crate) fn cuGreenCtxDestroy(green: CUgreenCtx) -> Answer {
    sim::lock().end_green(green)
}

pub(crate) fn cuCtxFromGreenCtx(context: *mut CUcontext, green: CUgreenCtx) -> Answer {
    let there = sim::lock().green(green)?.context;
    put(context, there as CUcontext)
}

/// NULL is the current one.
pub(crate) fn cuGreenCtxGetId(green: CUgreenCtx, id: *mut c_ulonglong) -> Answer {
    let mut sim = sim::lock();
    let handle = match green.is_null() {
        true => current_green(&mut sim)?.ok_or(CUDA_ERROR_INVALID_CONTEXT)? as CUgreenCtx,
        false => green,
    };
    let unique = sim.green(handle)?.unique;
    put(id, unique)
}

fn current_green(sim: &mut Sim) -> Answer<Option<u64>> {
    let current = sim.current()?;
    Ok(sim.green_of(current))
}

/// "The API ignores the context that is current to the calling thread"; "CU_STREAM_NON_BLOCKING: This must be specified."
pub(crate) fn cuGreenCtxStreamCreate(
    stream: *mut CUstream,
    green: CUgreenCtx,
    flags: c_uint,
    priority: c_int,
) -> Answer {
    let mut sim = sim::lock();
    let (context, device) = sim.green(green).map(|green| (green.context, green.resource.device))?;
    if !sim.contexts.contains_key(&context) {
        return Err(CUDA_ERROR_INVALID_CONTEXT);
    }
    if stream.is_null() || flags != CU_STREAM_NON_BLOCKING {
        return Err(CUDA_ERROR_INVALID_VALUE);
    }
    let handle = sim.handle(Kind::Stream);
    sim.add_stream(Stream::new(context, device, Role::Created(handle), flags, priority.clamp(-5, 0)));
    put(stream, handle as CUstream)
}

/// "If during stream creation the context that was active in the calling thread was obtained with cuCtxFromGreenCtx, that
/// green context is returned"; NULL otherwise. Of the per-thread default stream it does not say anything: INVALID_HANDLE,
/// as for cuStreamGetCtx_v2.
pub(crate) fn cuStreamGetGreenCtx(stream: CUstream, green: *mut CUgreenCtx) -> Answer {
    let mut context = std::ptr::null_mut();
    super::stream::cuStreamGetCtx_v2(stream, &raw mut context, green)
}

/// "Captures in hEvent all the activities of the green context of hCtx at the time of this call. hEvent and hCtx must be
/// from the same primary context otherwise CUDA_ERROR_INVALID_HANDLE is returned."
pub(crate) fn cuGreenCtxRecordEvent(green: CUgreenCtx, event: CUevent) -> Answer {
    let mut sim = sim::lock();
    let context = sim.green(green)?.context;
    record_activities(sim, context, event)
}

pub(crate) fn cuGreenCtxWaitEvent(green: CUgreenCtx, event: CUevent) -> Answer {
    let mut sim = sim::lock();
    let context = sim.green(green)?.context;
    sim.wait_in_context(context, event.addr() as u64)
}
