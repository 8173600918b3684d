//! Green contexts. They retain the primary context of their device, and are contexts with default streams of their own.

mod common;
use common::*;

use std::ptr::{null, null_mut};

const SM: CUdevResourceType = CU_DEV_RESOURCE_TYPE_SM;

/// The number of multiprocessors of a resource.
fn count(resource: &CUdevResource) -> u32 {
    let at = 96 - size_of::<CUdevResourceType>();
    u32::from_ne_bytes(resource.reserved[at..at + 4].try_into().unwrap())
}

impl Machine {
    fn resource(&self, device: CUdevice) -> Answer<CUdevResource> {
        let function = self.driver.cuDeviceGetDevResource().unwrap();
        let mut resource = CUdevResource::default();
        // SAFETY: the result lives.
        answer(unsafe { function(device, &raw mut resource, SM) })?;
        Ok(resource)
    }

    fn resource_of(&self, green: CUgreenCtx) -> Answer<CUdevResource> {
        let function = self.driver.cuGreenCtxGetDevResource().unwrap();
        let mut resource = CUdevResource::default();
        // SAFETY: the result lives.
        answer(unsafe { function(green, &raw mut resource, SM) })?;
        Ok(resource)
    }

    /// The groups, and what remains.
    fn split(
        &self,
        input: &CUdevResource,
        groups: u32,
        least: u32,
    ) -> Answer<(Vec<CUdevResource>, CUdevResource)> {
        let function = self.driver.cuDevSmResourceSplitByCount().unwrap();
        let (mut found, mut rest) =
            (vec![CUdevResource::default(); groups as usize], CUdevResource::default());
        let mut number = groups;
        // SAFETY: as many results as are said live.
        answer(unsafe { function(found.as_mut_ptr(), &raw mut number, input, &raw mut rest, 0, least) })?;
        found.truncate(number as usize);
        Ok((found, rest))
    }

    /// A green context with the whole device.
    fn green_of(&self, device: CUdevice) -> CUgreenCtx {
        let mut all = self.resource(device).unwrap();
        let descriptor = self.descriptor(&raw mut all, 1).unwrap();
        self.green(descriptor, device, CU_GREEN_CTX_DEFAULT_STREAM).unwrap()
    }

    /// Makes a green context current.
    fn enter_green(&self, green: CUgreenCtx) -> CUcontext {
        let context = self.context_of_green(green).unwrap();
        self.push(context).unwrap();
        context
    }

    /// What cuStreamGetCtx_v2 and cuStreamGetGreenCtx say.
    fn of_stream(&self, stream: CUstream) -> Answer<(CUcontext, CUgreenCtx)> {
        let (mut context, mut green, mut again) = (null_mut(), null_mut(), null_mut());
        let both = self.driver.cuStreamGetCtx_v2().unwrap();
        // SAFETY: the results live.
        answer(unsafe { both(stream, &raw mut context, &raw mut green) })?;
        // SAFETY: the result lives.
        answer(unsafe { self.driver.cuStreamGetGreenCtx().unwrap()(stream, &raw mut again) })?;
        assert_eq!(green, again);
        Ok((context, green))
    }

    fn plain_of_stream(&self, stream: CUstream) -> Answer<CUcontext> {
        let mut context = null_mut();
        // SAFETY: the result lives.
        answer(unsafe { self.driver.cuStreamGetCtx().unwrap()(stream, &raw mut context) }).map(|()| context)
    }

    fn is_active(&self, device: CUdevice) -> bool {
        let (mut flags, mut active) = (0, 0);
        let function = self.driver.cuDevicePrimaryCtxGetState().unwrap();
        // SAFETY: the results live.
        answer(unsafe { function(device, &raw mut flags, &raw mut active) }).unwrap();
        active != 0
    }
}

/// "This API will retain the primary context on device dev, which will is released when the green context is destroyed"
/// (cuGreenCtxCreate).
#[test]
fn a_green_context_retains_the_primary_one() {
    let machine = machine(1);
    let green = machine.green_of(0);
    assert!(machine.is_active(0));
    assert_eq!(machine.steer.live(steer::RETAINS), 1);
    assert_eq!(machine.current(), Ok(null_mut()), "\"The API does not set the green context current\"");
    let primary = machine.enter(0);
    let context = machine.enter_green(green);
    assert_ne!(context, primary);
    assert_eq!(machine.context_of_green(green), Ok(context));
    let memory = machine.alloc(512).unwrap();
    machine.primary_release(0).unwrap();
    assert!(machine.is_active(0));
    assert_eq!(machine.free(memory), Ok(()));
    let memory = machine.alloc(512).unwrap();
    machine.green_destroy(green).unwrap();
    assert!(!machine.is_active(0));
    assert_eq!(machine.steer.used(0), 0, "the memory was the primary context's");
    assert_eq!(machine.free(memory), Err(CUDA_ERROR_CONTEXT_IS_DESTROYED));
    machine.was_well_used();
    assert_eq!(machine.green_destroy(green), Err(CUDA_ERROR_INVALID_CONTEXT));
    assert_eq!(machine.steer.misuses(), 1);
}

/// "Destroying pContext via cuCtxDestroy is undefined behavior" (cuCtxFromGreenCtx), and "passing a green context to such
/// APIs will fail with CUDA_ERROR_INVALID_CONTEXT".
#[test]
fn its_handles_are_not_mixed_up() {
    let machine = ready();
    let green = machine.green_of(0);
    let context = machine.context_of_green(green).unwrap();
    assert_eq!(machine.context_destroy(context), Err(CUDA_ERROR_INVALID_CONTEXT));
    assert_eq!(machine.push(green.cast()), Err(CUDA_ERROR_INVALID_CONTEXT));
    assert_eq!(machine.steer.misuses(), 2);
    assert_eq!(machine.push(context), Ok(()));
    assert_eq!(machine.current_device(), Ok(0));
    assert_eq!(machine.green(null_mut(), 0, CU_GREEN_CTX_DEFAULT_STREAM), Err(CUDA_ERROR_INVALID_VALUE));
    let mut all = machine.resource(0).unwrap();
    let descriptor = machine.descriptor(&raw mut all, 1).unwrap();
    assert_eq!(machine.green(descriptor, 0, 0), Err(CUDA_ERROR_INVALID_VALUE));
}

/// cuStreamGetCtx_v2 returns "the green context in pGreenCtx and the primary context of the associated device in pCtx";
/// cuStreamGetCtx of CUDA 13 what "is equivalent to the one returned by cuCtxFromGreenCtx", and that of CUDA 12
/// "CUDA_ERROR_NOT_SUPPORTED for streams created via the API cuGreenCtxStreamCreate".
#[test]
fn its_streams_name_both_contexts() {
    let machine = machine(1);
    let primary = machine.enter(0);
    let green = machine.green_of(0);
    let ordinary = machine.stream(0).unwrap();
    assert_eq!(machine.of_stream(ordinary), Ok((primary, null_mut())));
    assert_eq!(machine.green_stream(green, 0, 0), Err(CUDA_ERROR_INVALID_VALUE), "it must be non-blocking");
    let own = machine.green_stream(green, CU_STREAM_NON_BLOCKING, 0).unwrap();
    assert_eq!(machine.of_stream(own), Ok((primary, green)), "whatever is current");
    let context = machine.enter_green(green);
    let created = machine.stream(0).unwrap();
    for stream in [own, created, LEGACY, CU_STREAM_LEGACY] {
        assert_eq!(machine.of_stream(stream), Ok((primary, green)));
        assert_eq!(machine.plain_of_stream(stream), Ok(context));
    }
    // "Note that specifying CU_STREAM_PER_THREAD [...] will return CUDA_ERROR_INVALID_HANDLE if a green context is current".
    assert_eq!(machine.of_stream(CU_STREAM_PER_THREAD), Err(CUDA_ERROR_INVALID_HANDLE));
    machine.steer.set(steer::DRIVER_VERSION, 12090);
    assert_eq!(machine.plain_of_stream(own), Err(CUDA_ERROR_NOT_SUPPORTED));
    machine.was_well_used();
}

/// "Creates a default stream to use inside the green context" (CU_GREEN_CTX_DEFAULT_STREAM): it is not the primary
/// context's. "If the current context is the primary context, green contexts that have been created will also be
/// synchronized" (cuCtxSynchronize).
#[test]
fn its_default_stream_is_its_own() {
    let machine = ready();
    let (green, memory) = (machine.green_of(0), machine.alloc(512).unwrap());
    machine.hold(LEGACY);
    machine.fill(LEGACY, memory, 8, 1).unwrap();
    machine.enter_green(green);
    machine.hold(LEGACY);
    machine.fill(LEGACY, memory + 256, 8, 2).unwrap();
    assert_eq!(machine.steer.pending(LEGACY.cast()), 1);
    machine.synchronize().unwrap();
    assert_eq!((machine.byte(memory), machine.byte(memory + 256)), (0, 2), "only its own work is waited for");
    machine.fill(LEGACY, memory + 256, 8, 3).unwrap();
    machine.pop().unwrap();
    machine.synchronize().unwrap();
    assert_eq!((machine.byte(memory), machine.byte(memory + 256)), (1, 3));
    machine.was_well_used();
}

/// "If the context passed to hCtx is the primary context, hEvent will capture all the activities of the primary context
/// and its green contexts. If the context passed to hCtx is a context converted from green context [...], hEvent will
/// capture only the activities of the green context" (cuCtxRecordEvent; cuGreenCtxRecordEvent likewise).
#[test]
fn an_event_of_a_context_covers_its_green_contexts() {
    let machine = machine(1);
    let primary = machine.enter(0);
    let (green, memory) = (machine.green_of(0), machine.alloc(512).unwrap());
    let context = machine.context_of_green(green).unwrap();
    let (own, other) = (machine.green_stream(green, CU_STREAM_NON_BLOCKING, 0).unwrap(), stream(&machine));
    let [all, some, same] = [(); 3].map(|()| machine.event(CU_EVENT_DISABLE_TIMING).unwrap());
    machine.hold(own);
    machine.hold(other);
    machine.fill(own, memory, 8, 1).unwrap();
    machine.fill(other, memory + 256, 8, 1).unwrap();
    machine.context_record(primary, all).unwrap();
    machine.context_record(context, some).unwrap();
    machine.green_record(green, same).unwrap();
    let states = || [all, some, same].map(|event| machine.event_query(event));
    assert_eq!(states(), [Err(CUDA_ERROR_NOT_READY); 3]);
    machine.release(own);
    assert_eq!(states(), [Err(CUDA_ERROR_NOT_READY), Ok(()), Ok(())]);
    machine.release(other);
    assert_eq!(states(), [Ok(()); 3]);
    machine.was_well_used();
}

/// "Makes all future work submitted to context hCtx wait for all work captured in hEvent"; for the primary context, "the
/// primary context and its green contexts will wait" (cuCtxWaitEvent; cuGreenCtxWaitEvent).
#[test]
fn a_context_waits_for_an_event() {
    let machine = machine(1);
    let primary = machine.enter(0);
    let (green, memory) = (machine.green_of(0), machine.alloc(512).unwrap());
    let (own, other) = (machine.green_stream(green, CU_STREAM_NON_BLOCKING, 0).unwrap(), stream(&machine));
    let (held, event) = (stream(&machine), machine.event(CU_EVENT_DISABLE_TIMING).unwrap());
    let wait_and_fill = |wait: &dyn Fn() -> Answer| {
        machine.hold(held);
        machine.fill(held, memory, 8, 1).unwrap();
        machine.record(event, held).unwrap();
        wait().unwrap();
        machine.fill(own, memory + 128, 8, 1).unwrap();
        machine.fill(other, memory + 256, 8, 1).unwrap();
        let pending = [own, other].map(|stream| machine.steer.pending(stream.cast()));
        machine.release(held);
        assert_eq!([own, other].map(|stream| machine.steer.pending(stream.cast())), [0, 0]);
        pending
    };
    assert_eq!(wait_and_fill(&|| machine.green_wait(green, event)), [1, 0]);
    assert_eq!(wait_and_fill(&|| machine.context_wait(primary, event)), [1, 1]);
    machine.was_well_used();
}

/// Also for an event that lies before another one of the same stream.
#[test]
fn a_context_waits_for_each_event() {
    let machine = machine(1);
    let primary = machine.enter(0);
    let (memory, held, other) = (machine.alloc(512).unwrap(), stream(&machine), stream(&machine));
    let [first, second] = [0; 2].map(|_| machine.event(CU_EVENT_DISABLE_TIMING).unwrap());
    machine.hold(held);
    for (event, place) in [(first, memory), (second, memory + 128)] {
        machine.fill(held, place, 8, 1).unwrap();
        machine.record(event, held).unwrap();
    }
    machine.context_wait(primary, second).unwrap();
    machine.context_wait(primary, first).unwrap();
    machine.fill(other, memory + 256, 8, 1).unwrap();
    machine.step(held, 2);
    assert_eq!(machine.event_query(first), Ok(()));
    assert_eq!(machine.steer.pending(other.cast()), 1, "the second event has not come");
    machine.release(held);
    assert_eq!(machine.steer.pending(other.cast()), 0);
    machine.was_well_used();
}

/// "The API does not destroy streams [...]. Once the green context is destroyed, any subsequent API calls involving these
/// streams will return CUDA_ERROR_STREAM_DETACHED with the exception of [...] cuStreamDestroy. Additionally, the API will
/// invalidate all active captures on these streams" (cuGreenCtxDestroy).
#[test]
fn its_streams_are_detached_when_it_is_destroyed() {
    let machine = ready();
    let (green, memory) = (machine.green_of(0), machine.alloc(512).unwrap());
    let own = machine.green_stream(green, CU_STREAM_NON_BLOCKING, 0).unwrap();
    let joined = stream(&machine);
    let event = machine.event(CU_EVENT_DISABLE_TIMING).unwrap();
    machine.fill(own, memory, 8, 1).unwrap();
    machine.begin_capture(joined, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL).unwrap();
    machine.record(event, joined).unwrap();
    machine.stream_wait(own, event, 0).unwrap();
    machine.green_destroy(green).unwrap();
    assert_eq!(machine.end_capture(joined), Err(CUDA_ERROR_STREAM_CAPTURE_INVALIDATED));
    assert_eq!(machine.fill(own, memory, 8, 1), Err(CUDA_ERROR_STREAM_DETACHED));
    assert_eq!(machine.stream_synchronize(own), Err(CUDA_ERROR_STREAM_DETACHED));
    assert_eq!(machine.stream_destroy(own), Ok(()));
    machine.was_well_used();
}

/// "On Compute Architecture 9.0+: The minimum count is 8 SMs and must be a multiple of 8"; "the output results cannot be
/// split again without first creating a descriptor and a green context"; resources "must be outputs [...] from the same
/// split API instance, otherwise CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION is returned".
#[test]
fn the_multiprocessors_are_split() {
    let machine = ready();
    let all = machine.resource(0).unwrap();
    assert_eq!((all.type_, count(&all)), (SM, 16));
    let (mut groups, rest) = machine.split(&all, 1, 3).unwrap();
    assert_eq!((groups.len(), count(&groups[0]), count(&rest)), (1, 8, 8));
    let (both, rest) = machine.split(&all, 5, 8).unwrap();
    assert_eq!((both.len(), rest.type_), (2, CU_DEV_RESOURCE_TYPE_INVALID));
    assert_eq!(machine.split(&groups[0], 1, 1).err(), Some(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION));
    assert_eq!(machine.split(&all, 1, 17).err(), Some(CUDA_ERROR_INVALID_VALUE));
    let mut mixed = [groups[0], both[0]];
    let refused = Err(CUDA_ERROR_INVALID_RESOURCE_CONFIGURATION);
    assert_eq!(machine.descriptor(mixed.as_mut_ptr(), 2), refused);
    let descriptor = machine.descriptor(groups.as_mut_ptr(), 1).unwrap();
    let green = machine.green(descriptor, 0, CU_GREEN_CTX_DEFAULT_STREAM).unwrap();
    let own = machine.resource_of(green).unwrap();
    assert_eq!((count(&own), machine.split(&own, 1, 8).unwrap().0.len()), (8, 1));
    assert_eq!(machine.resource(1).err(), Some(CUDA_ERROR_INVALID_DEVICE));
    let invalid = CUdevResource::default();
    assert_eq!(machine.split(&invalid, 1, 1).err(), Some(CUDA_ERROR_INVALID_RESOURCE_TYPE));
    assert_eq!(machine.descriptor(null::<CUdevResource>().cast_mut(), 1), Err(CUDA_ERROR_INVALID_VALUE));
    machine.was_well_used();
}

/// "A green context can be current to only one thread at a time" (cuGreenCtxCreate up to CUDA 12.9).
#[test]
fn before_cuda_13_it_is_current_to_one_thread() {
    let machine = ready();
    machine.steer.set(steer::DRIVER_VERSION, 12090);
    let green = machine.green_of(0);
    let context = machine.enter_green(green) as usize;
    let elsewhere =
        || std::thread::scope(|scope| scope.spawn(|| machine.push(context as CUcontext)).join().unwrap());
    assert_eq!(elsewhere(), Err(CUDA_ERROR_INVALID_CONTEXT));
    assert_eq!(machine.steer.misuses(), 1);
    machine.pop().unwrap();
    assert_eq!(elsewhere(), Ok(()));
}
