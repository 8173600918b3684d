//! Contexts, primary and created, and the stack of each thread.

mod common;
use common::*;

#[test]
fn nothing_works_before_init_and_without_a_context() {
    let machine = machine(1);
    assert_eq!(machine.alloc(512), Err(CUDA_ERROR_INVALID_CONTEXT));
    assert_eq!(machine.synchronize(), Err(CUDA_ERROR_INVALID_CONTEXT));
    assert_eq!(machine.current(), Ok(std::ptr::null_mut()));
    assert_eq!(machine.pop(), Err(CUDA_ERROR_INVALID_CONTEXT));
    machine.steer.reset();
    assert_eq!(machine.primary(0), Err(CUDA_ERROR_NOT_INITIALIZED));
    assert_eq!(machine.device_count(), Err(CUDA_ERROR_NOT_INITIALIZED));
}

#[test]
fn the_primary_context_lives_as_long_as_it_is_retained() {
    let machine = machine(1);
    assert_eq!(machine.primary_release(0), Err(CUDA_ERROR_INVALID_CONTEXT));
    let context = machine.enter(0);
    assert_eq!(machine.primary(0), Ok(context));
    let memory = machine.alloc(512).unwrap();
    machine.primary_release(0).unwrap();
    assert_eq!(machine.steer.used(0), 512);
    machine.primary_release(0).unwrap();
    assert_eq!((machine.steer.used(0), machine.steer.live(steer::CONTEXTS)), (0, 0));
    // It stays on the stack, and is none: CUDA_ERROR_CONTEXT_IS_DESTROYED in cuda.h.
    assert_eq!(machine.current(), Ok(context));
    assert_eq!(machine.free(memory), Err(CUDA_ERROR_CONTEXT_IS_DESTROYED));
    assert_eq!(machine.primary(0), Ok(context));
    assert_eq!(machine.free(memory), Err(CUDA_ERROR_INVALID_VALUE));
    machine.was_well_used();
}

#[test]
fn a_reset_frees_everything_and_releases_nothing() {
    let machine = ready();
    let (stream, event) = (machine.stream(0).unwrap(), machine.event(0).unwrap());
    machine.alloc(512).unwrap();
    machine.primary_reset(0).unwrap();
    assert_eq!((machine.steer.used(0), machine.steer.live(steer::RETAINS)), (0, 1));
    assert_eq!(machine.alloc(512), Err(CUDA_ERROR_CONTEXT_IS_DESTROYED));
    let context = machine.primary(0).unwrap();
    machine.set_current(context).unwrap();
    machine.alloc(512).unwrap();
    machine.was_well_used();
    assert_eq!(machine.stream_query(stream), Err(CUDA_ERROR_INVALID_HANDLE));
    assert_eq!(machine.event_query(event), Err(CUDA_ERROR_INVALID_HANDLE));
    assert_eq!(machine.steer.misuses(), 2);
}

/// "The Id is unique for the life of the program", says the manual of cuCtxGetId; that a reset begins a new one is
/// believed.
#[test]
fn a_context_s_lives_have_numbers_of_their_own() {
    let machine = machine(2);
    let number = |context: CUcontext| {
        let function = machine.driver.cuCtxGetId().unwrap();
        let mut id = 0;
        // SAFETY: a context that lives or none, and a result that lives.
        answer(unsafe { function(context, &raw mut id) }).map(|()| id)
    };
    let first = machine.enter(0);
    let before = number(first).unwrap();
    assert_eq!(number(std::ptr::null_mut()), Ok(before), "the current one");
    let other = machine.primary(1).unwrap();
    let numbers = [before, number(other).unwrap()];
    machine.primary_reset(0).unwrap();
    assert_eq!(machine.enter(0), first, "the same handle");
    let after = number(first).unwrap();
    assert!(!numbers.contains(&after), "{after} was in {numbers:?}");
    assert_eq!(number(first), Ok(after));
}

#[test]
fn a_created_context_is_pushed_and_destroyed_for_all_threads() {
    let machine = ready();
    let primary = machine.current().unwrap();
    let context = machine.context(0, 0).unwrap();
    assert_eq!(machine.current(), Ok(context));
    let memory = machine.alloc(512).unwrap();
    let handle = context as usize;
    let (sender, receiver) = std::sync::mpsc::channel();
    std::thread::scope(|scope| {
        let (machine, (there, seen)) = (&machine, std::sync::mpsc::channel());
        scope.spawn(move || {
            machine.push(handle as CUcontext).unwrap();
            there.send(()).unwrap();
            receiver.recv().unwrap();
            // "ctx will remain current to those threads".
            assert_eq!(machine.alloc(512), Err(CUDA_ERROR_CONTEXT_IS_DESTROYED));
        });
        seen.recv().unwrap();
        machine.context_destroy(context).unwrap();
        sender.send(()).unwrap();
    });
    assert_eq!(machine.current(), Ok(primary));
    assert_eq!(machine.free(memory), Err(CUDA_ERROR_INVALID_VALUE));
    machine.was_well_used();
    assert_eq!(machine.push(context), Err(CUDA_ERROR_INVALID_CONTEXT));
    assert_eq!(machine.steer.misuses(), 1);
    assert!(machine.steer.misuse_texts()[0].contains("destroyed"));
}

#[test]
fn contexts_of_one_device_share_its_memory() {
    let machine = ready();
    let primary = machine.current().unwrap();
    let context = machine.context(0, 0).unwrap();
    let memory = machine.alloc(512).unwrap();
    machine.set_current(primary).unwrap();
    machine.fill(LEGACY, memory, 512, 1).unwrap();
    // An event belongs to its context, and is only recorded there.
    let event = machine.event(0).unwrap();
    machine.push(context).unwrap();
    let stream = machine.stream(0).unwrap();
    assert_eq!(machine.record(event, stream), Err(CUDA_ERROR_INVALID_HANDLE));
    machine.stream_wait(stream, event, 0).unwrap();
    assert_eq!(machine.pop(), Ok(context));
    machine.context_destroy(context).unwrap();
    assert_eq!(machine.steer.used(0), 0);
    machine.was_well_used();
}

/// "Decrements the usage count of the context ctx, and destroys the context if the usage count goes to 0. The context must
/// be a handle that was passed back by cuCtxCreate() or cuCtxAttach(), and must be current to the calling thread"
/// (cuCtxDetach).
#[test]
fn the_last_detach_destroys_a_context() {
    let machine = ready();
    let primary = machine.current().unwrap();
    let context = machine.context(0, 0).unwrap();
    assert_eq!(machine.context_attach(1), Err(CUDA_ERROR_INVALID_VALUE));
    assert_eq!(machine.context_attach(0), Ok(context));
    machine.alloc(512).unwrap();
    machine.context_detach(context).unwrap();
    assert_eq!((machine.current(), machine.steer.used(0)), (Ok(context), 512));
    machine.push(primary).unwrap();
    assert_eq!(machine.context_detach(context), Err(CUDA_ERROR_INVALID_CONTEXT), "it is not current");
    assert_eq!(machine.context_detach(primary), Err(CUDA_ERROR_INVALID_CONTEXT), "it was not created");
    machine.pop().unwrap();
    machine.context_detach(context).unwrap();
    assert_eq!((machine.current(), machine.steer.used(0)), (Ok(primary), 0));
    machine.was_well_used();
    assert_eq!(machine.context_detach(context), Err(CUDA_ERROR_INVALID_CONTEXT));
    assert_eq!(machine.steer.misuses(), 1);
}

/// The legacy default stream "synchronizes with all other streams in the same CUcontext", and the per-thread one is "local
/// to both the thread and the CUcontext" (Stream synchronization behavior): the same handles mean other streams in another
/// context of the device.
#[test]
fn each_context_has_default_streams_of_its_own() {
    let machine = ready();
    let memory = machine.alloc(512).unwrap();
    let (legacy, own) = (LEGACY, CU_STREAM_PER_THREAD);
    let pending = || [legacy, own].map(|stream| machine.steer.pending(stream.cast()));
    machine.hold(legacy);
    machine.fill(legacy, memory, 8, 1).unwrap();
    machine.fill(own, memory + 8, 8, 1).unwrap();
    assert_eq!(pending(), [1, 1], "the per-thread stream waits for the legacy one");
    let primary = machine.current().unwrap();
    let context = machine.context(0, 0).unwrap();
    assert_eq!(pending(), [0, 0]);
    machine.fill(legacy, memory + 16, 8, 1).unwrap();
    machine.fill(own, memory + 24, 8, 1).unwrap();
    assert_eq!((pending(), machine.byte(memory + 16), machine.byte(memory + 24)), ([0, 0], 1, 1));
    assert_eq!((machine.byte(memory), machine.byte(memory + 8)), (0, 0));
    machine.push(primary).unwrap();
    assert_eq!(pending(), [1, 1]);
    machine.release(legacy);
    assert_eq!(pending(), [0, 0]);
    machine.context_destroy(context).unwrap();
    machine.was_well_used();
}
