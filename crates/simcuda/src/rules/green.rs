//! Green contexts. One is a context with streams of its own, a default stream among them. Memory, events and modules that
//! are created while it is current belong to the primary context of its device, which it retains.

use cuda_sys::{CUDA_ERROR_INVALID_CONTEXT, CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, CUgreenCtx};

use crate::abi::Answer;
use crate::handles::Kind;
use crate::options::Choice;
use crate::sim::{self, Sim};
use crate::state::context::{Context, primary};
use crate::state::green::{Green, Multiprocessors};
use crate::state::stream::{Point, Role, Stream};
use crate::system;

/// Since this version a green context may be current to several threads.
const CURRENT_TO_SEVERAL: i64 = 13000;

impl Sim {
    /// Creates a green context and returns its handle.
    pub(crate) fn make_green(&mut self, resource: Multiprocessors) -> Answer<u64> {
        let device = resource.device;
        self.retain_primary(device)?;
        let (handle, context) = (self.handle(Kind::Green), self.handle(Kind::Context));
        let legacy = self.add_stream(Stream::new(context, device, Role::Legacy, 0, 0));
        let flags = self.device(device)?.flags();
        let unique = self.contexts.get(&primary(device)).map_or(0, Context::unique);
        let new = Context::new(device, flags, legacy, unique).of_primary(primary(device));
        self.contexts.insert(context, new);
        let unique = self.number();
        self.greens.insert(handle, Green { context, unique, resource });
        Ok(handle)
    }

    /// Returns the green context with a handle.
    pub(crate) fn green(&mut self, handle: CUgreenCtx) -> Answer<&Green> {
        let handle = handle.addr() as u64;
        if !self.greens.contains_key(&handle) && handle != 0 {
            self.stale(Kind::Green, handle);
        }
        self.greens.get(&handle).ok_or(CUDA_ERROR_INVALID_CONTEXT)
    }

    /// Returns the handle of the green context that a context represents.
    pub(crate) fn green_of(&self, context: u64) -> Option<u64> {
        self.greens.iter().find(|(_, green)| green.context == context).map(|(handle, _)| *handle)
    }

    /// Returns whether all activities of context `of` are such of `context`: those of its green contexts are.
    pub(crate) fn covers(&self, context: u64, of: u64) -> bool {
        of == context || self.root(of) == context
    }

    /// Ends a green context. Its streams are detached: nothing can be done with them, while their work goes on as the
    /// primary context's. Captures that began on one end, and others that one has joined are
    /// invalidated (cuGreenCtxDestroy).
    pub(crate) fn end_green(&mut self, handle: CUgreenCtx) -> Answer {
        let Green { context, resource, .. } = *self.green(handle)?;
        let handle = handle.addr() as u64;
        let primary = self.root(context);
        let own = self.streams.iter().filter(|(_, stream)| stream.context() == context);
        let own: Vec<(u64, Role)> = own.map(|(number, stream)| (*number, stream.role())).collect();
        for (number, role) in own {
            let Some(stream) = self.streams.get_mut(&number) else { continue };
            stream.detach(primary);
            self.leave_capture(number);
            if !matches!(role, Role::Created(_)) {
                self.destroy_stream(number);
            }
        }
        if self.contexts.remove(&context).is_some() {
            self.retire(Kind::Context, context);
        }
        self.greens.remove(&handle);
        self.retire(Kind::Green, handle);
        sim::wake();
        // The program may have released more than its own.
        let _ = self.release_primary(resource.device);
        Ok(())
    }

    /// Checks that a context may become current to the calling thread. Up to CUDA 12.9, "a green context can be current
    /// to only one thread at a time" (cuGreenCtxCreate).
    pub(crate) fn may_enter(&mut self, context: u64) -> Answer {
        let thread = system::thread();
        let is_elsewhere =
            || self.threads.iter().any(|(other, there)| *other != thread && there.current() == Some(context));
        let is_limited = self.options.get(Choice::DriverVersion) < CURRENT_TO_SEVERAL;
        if is_limited && self.root(context) != context && is_elsewhere() {
            self.record.misuse(format!("green context {context:#x} becomes current to a second thread"));
            return Err(CUDA_ERROR_INVALID_CONTEXT);
        }
        Ok(())
    }

    /// Makes later work of a context wait for an event. "The API will return
    /// CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED and invalidate the capture if the specified event hEvent is part of an
    /// ongoing capture sequence or if the specified context hCtx has a stream in the capture mode" (cuCtxWaitEvent).
    pub(crate) fn wait_in_context(&mut self, context: u64, event: u64) -> Answer {
        let there = self.event(event)?;
        let (point, captured) = (there.recorded(), there.captured().map(|(capture, _)| *capture));
        if let Some(capture) = captured {
            self.invalidate(capture);
            return Err(CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        }
        self.forbid_captured_in(context)?;
        if let Some(point) = point.filter(|_| !self.options.is_on(Choice::EventsLie)) {
            self.add_gate(context, point);
        }
        Ok(())
    }

    /// Makes later work of a context wait for a point.
    pub(crate) fn add_gate(&mut self, context: u64, point: Point) {
        let gates = std::mem::take(&mut self.gates);
        let implies = |one: &Point, other: &Point| one.stream == other.stream && one.item >= other.item;
        let is_implied = gates.iter().any(|(other, gate)| *other == context && implies(gate, &point));
        let matters = |(other, gate): &(u64, Point)| {
            let is_implied = *other == context && *gate != point && implies(&point, gate);
            !is_implied && (!self.is_done(*gate) || self.is_in_order(*gate))
        };
        self.gates = gates.into_iter().filter(matters).collect();
        if !is_implied {
            self.gates.push((context, point));
        }
    }
}
