//! The events of an allocator, listed for each queue in the order of their points.
//!
//! An event belongs to one free, and is done when the work queued before that free is done. It has one owner at a time:
//! the queue's list, then the threads that query or wait for it with the lock open ([`Events::hold`]), then the list of
//! spare events. It moves to the spare list only when no thread holds it any more, and is then recorded for another
//! free.
//!
//! PyTorch and RMM record events at the free too (`insert_events` in c10/cuda/CUDACachingAllocator.cpp, `do_deallocate`
//! in rmm/mr/detail/stream_ordered_memory_resource.hpp). RMM has one event per stream and so waits for later frees too.

mod held;
mod spare;

use self::held::HeldEvents;
use self::spare::{Spare, keep};
use super::mutation;
use crate::backend::order::{Context, Event};
use bfc_core::arena::Arena;
use bfc_core::stream_id::Stream;
use bfc_core::streams::QueueId;
use bfc_core::streams::{QueueProgress, Work};
use bfc_core::tables::shrink;
use bfc_hostmem::HostMemoryExhausted;
use std::collections::VecDeque;

/// An event that is done when a queue's work up to a point is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Marker {
    pub(super) point: u64,
    pub(super) event: Event,
    pub(super) kind: Kind,
}

/// When an event was recorded, which decides what it may be used for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    /// Recorded at the free of its point. It may be dropped once no free chunk waits for that point any more.
    Exact,
    /// Recorded at the free of a chunk that also waits for recorded uses and is therefore in no list. It is kept until
    /// it is done, or until a search shows that no such chunk needs it.
    Kept,
    /// Recorded when the program declared that the stream is about to end, with all its work queued. It covers every
    /// free there that has no event, and there is no later work.
    Last,
    /// Recorded some time after the free, behind work that may itself wait for what other streams do next. It may be
    /// queried, but not waited for.
    Late,
}

/// The events of a queue, and what is known about its stream.
#[derive(Default)]
pub(super) struct Queue {
    /// The stream of the queue. The position may later be reused for another stream, perhaps of the same name.
    stream: Stream,
    is_forgotten: bool,
    /// Unknown until something is recorded on the stream.
    pub(super) context: Option<Context>,
    /// The oldest point first.
    markers: VecDeque<Marker>,
    /// The number of markers from which on the list is searched for markers that nothing needs any more.
    crowded: usize,
}

impl Queue {
    const FEW: usize = 16;

    /// Inserts a marker by its point, usually at the end.
    fn insert(&mut self, marker: Marker) -> Result<(), HostMemoryExhausted> {
        self.markers.try_reserve(1).map_err(|_| HostMemoryExhausted)?;
        let place = self.markers.iter().rposition(|other| other.point <= marker.point);
        self.markers.insert(place.map_or(0, |place| place + 1), marker);
        Ok(())
    }
}

#[derive(Default)]
pub(super) struct Events {
    /// Indexed by the position of a queue in the arena.
    queues: Vec<Queue>,
    /// The only stream so far, and its context.
    sole: Option<(Stream, Context)>,
    /// The streams that were captured when they were last queried, and may still be, with the number of that notice.
    captured: Vec<(Stream, u64)>,
    /// The events that threads query or wait for with the lock open.
    held: HeldEvents,
    spare: Spare,
}

impl Events {
    /// Returns the entry of a queue, and creates or resets it if need be. Returns `None` without host memory for it.
    pub(super) fn queue(&mut self, queue_id: QueueId, of: QueueProgress) -> Option<&mut Queue> {
        let QueueProgress { stream, forgotten, .. } = of;
        let place = queue_id.index();
        if self.queues.len() <= place {
            self.queues.try_reserve(place + 1 - self.queues.len()).ok()?;
            self.queues.resize_with(place + 1, Queue::default);
        }
        let Events { queues, sole, .. } = self;
        let queue = &mut queues[place];
        if queue.stream != stream || queue.is_forgotten && !forgotten {
            // The markers of the previous stream have points that are done.
            (queue.stream, queue.is_forgotten) = (stream, forgotten);
            queue.context = sole.filter(|&(other, _)| other == stream).map(|(_, context)| context);
        }
        Some(queue)
    }

    /// Returns the context of a queue's stream, if it is known.
    pub(super) fn context_of(&self, queue_id: QueueId, of: QueueProgress) -> Option<Context> {
        let QueueProgress { stream, forgotten, .. } = of;
        if stream.is_default() {
            return Some(Context::OWN);
        }
        let is_same = |queue: &&Queue| queue.stream == stream && (forgotten || !queue.is_forgotten);
        let queue = self.queues.get(queue_id.index()).filter(is_same);
        let sole = || self.sole.filter(|&(other, _)| other == stream).map(|(_, context)| context);
        queue.map_or_else(sole, |queue| queue.context)
    }

    /// Returns whether the context of the only stream is known.
    pub(super) fn knows_sole(&self, stream: Stream) -> bool {
        stream.is_default() || self.sole.is_some_and(|(other, _)| other == stream)
    }

    /// Returns whether the only stream is, or may be, of another context than the device's own.
    pub(super) fn is_of_other_context(&self, sole: Stream) -> bool {
        let is_own = |&(other, context): &(Stream, Context)| other == sole && context == Context::OWN;
        !sole.is_default() && !self.sole.as_ref().is_some_and(is_own)
    }

    /// Stores the context of a stream that had a queue when the driver was queried, unless that queue is reused by now.
    pub(super) fn learn(&mut self, arena: &Arena, queue_id: QueueId, stream: Stream, context: Context) {
        let progress = arena.streams().progress_of(queue_id);
        if progress.stream == stream
            && !progress.forgotten
            && let Some(queue) = self.queue(queue_id, progress)
        {
            queue.context = Some(context);
        }
    }

    pub(super) fn learn_sole(&mut self, stream: Stream, context: Context) {
        self.sole = Some((stream, context));
    }

    /// Returns an event for some work that may be waited for, because it covers nothing later.
    pub(super) fn to_wait_for(&self, work: Work) -> Option<Marker> {
        let markers = &self.queues.get(work.queue.index())?.markers;
        let first = markers.partition_point(|marker| marker.point < work.point);
        let mut same = markers.range(first..).take_while(|marker| marker.point == work.point);
        let is_late = mutation::is("late-event");
        let exact = same.find(|marker| marker.kind != Kind::Late || is_late);
        // An older marker is left over from another stream, whose queue had this position.
        let stands_for_it =
            |marker: &&Marker| marker.point >= work.point && (marker.kind == Kind::Last || is_late);
        exact.or_else(|| markers.back().filter(stands_for_it)).copied()
    }

    /// Returns whether the newest event of a queue covers the given work.
    pub(super) fn covers(&self, work: Work) -> bool {
        let newest = self.queues.get(work.queue.index()).and_then(|queue| queue.markers.back());
        newest.is_some_and(|marker| marker.point >= work.point)
    }

    /// Returns whether a stream was captured when it was last queried, and the context of its queue is unknown.
    pub(super) fn is_unknown(&self, queue_id: QueueId, stream: Stream) -> bool {
        let queue = self.queues.get(queue_id.index());
        let is_unknown = |queue: &Queue| queue.stream == stream && queue.context.is_none();
        queue.is_some_and(is_unknown) && self.is_noted_captured(stream)
    }

    /// Returns the streams that were captured when they were last queried.
    pub(super) fn captured(&self) -> impl Iterator<Item = Stream> + '_ {
        let may_be = |queue: &&Queue| !queue.is_forgotten && mutation::is("dead-stream");
        let captured = self.captured.iter().map(|&(stream, _)| stream);
        captured.chain(self.queues.iter().filter(may_be).map(|queue| queue.stream))
    }

    /// Notes that a stream is captured, as the notice with a number. The default stream is always queried. Without host
    /// memory the capture is noticed another time.
    pub(super) fn note_capture(&mut self, stream: Stream, number: u64) {
        if mutation::is("forgotten-capture") {
            return self.note_no_capture(stream, u64::MAX);
        }
        let stream = stream.in_pool(0);
        if let Some((_, last)) = self.captured.iter_mut().find(|(other, _)| *other == stream) {
            *last = number;
        } else if stream != Stream::DEFAULT && self.captured.try_reserve(1).is_ok() {
            self.captured.push((stream, number));
        }
    }

    /// Notes that a stream was not captured after the notice with a number.
    pub(super) fn note_no_capture(&mut self, stream: Stream, after: u64) {
        let stream = stream.in_pool(0);
        self.captured.retain(|&(other, number)| other != stream || number > after);
    }

    /// Returns whether a stream is noted as captured.
    pub(super) fn is_noted_captured(&self, stream: Stream) -> bool {
        let stream = stream.in_pool(0);
        self.captured.iter().any(|&(other, _)| other == stream)
    }

    /// Takes a spare event of a context, if there is one.
    pub(super) fn take_spare(&mut self, context: Context) -> Option<Event> {
        self.spare.take(context)
    }

    /// Adds an event that was recorded for some work. Without host memory the event becomes spare, and the work has
    /// none.
    pub(super) fn insert(&mut self, arena: &Arena, work: Work, event: Event, kind: Kind) {
        let progress = arena.streams().progress_of(work.queue);
        let inserted = match self.queue(work.queue, progress) {
            Some(queue) => queue.insert(Marker { point: work.point, event, kind }),
            None => Err(HostMemoryExhausted),
        };
        match inserted {
            Ok(()) => self.prune(arena, work.queue, progress),
            Err(HostMemoryExhausted) => self.recycle(event),
        }
    }

    /// Removes the markers of work that is done, and now and then those that nothing waits for. Each chunk that a queue
    /// reuses itself leaves such a marker.
    fn prune(&mut self, arena: &Arena, queue_id: QueueId, progress: QueueProgress) {
        self.drop_done(queue_id, progress.done);
        let Events { queues, held, spare, .. } = self;
        let queue = &mut queues[queue_id.index()];
        if queue.markers.len() < queue.crowded.max(Queue::FEW) {
            return;
        }
        let newest = queue.markers.back().map(|marker| marker.point);
        let mut needed = arena.streams().points_waited_for(queue_id).peekable();
        let kept = queue.markers.iter().filter(|marker| marker.kind == Kind::Kept).count();
        let waiting = arena.streams().points_with_uses(queue_id, kept.saturating_sub(Queue::FEW));
        queue.markers.retain(|marker| {
            while needed.next_if(|&point| point < marker.point).is_some() {}
            let is_kept =
                || waiting.as_ref().is_none_or(|points| points.binary_search(&marker.point).is_ok());
            let stays = marker.kind == Kind::Last
                || marker.kind == Kind::Kept && is_kept()
                || needed.peek() == Some(&marker.point)
                || newest == Some(marker.point);
            if !stays && !held.contains(marker.event) {
                spare.add(marker.event);
            }
            stays
        });
        queue.crowded = 2 * queue.markers.len();
    }

    /// Removes the events of work that is done, up to a point.
    pub(super) fn drop_done(&mut self, queue_id: QueueId, done: u64) {
        let Some(queue) = self.queues.get_mut(queue_id.index()) else { return };
        let count = queue.markers.partition_point(|marker| marker.point <= done);
        for marker in queue.markers.drain(..count) {
            if !self.held.contains(marker.event) {
                self.spare.add(marker.event);
            }
        }
    }

    /// Removes a marker whose event covers no work. The event becomes spare, or is lost with its context.
    pub(super) fn discard(&mut self, queue_id: QueueId, event: Event, is_spare: bool) {
        let Some(queue) = self.queues.get_mut(queue_id.index()) else { return };
        let before = queue.markers.len();
        queue.markers.retain(|marker| marker.event != event);
        if !is_spare {
            self.held.lose(event);
        } else if queue.markers.len() != before {
            self.recycle(event);
        }
    }

    /// Appends the markers of a queue between two points, both exclusive. If there are more than `most`, it appends an
    /// evenly spread sample that includes the first and the last. Returns whether any were left out.
    pub(super) fn sample(
        &self,
        queue_id: QueueId,
        (after, before): (u64, u64),
        most: usize,
        into: &mut Vec<Marker>,
    ) -> bool {
        let Some(queue) = self.queues.get(queue_id.index()) else { return false };
        let first = queue.markers.partition_point(|marker| marker.point <= after);
        let end = queue.markers.partition_point(|marker| marker.point < before);
        let count = end.saturating_sub(first);
        let taken = count.min(most);
        if taken == 0 || into.try_reserve(taken).is_err() {
            return false;
        }
        let spread = |at: usize| if taken == 1 { 0 } else { at * (count - 1) / (taken - 1) };
        into.extend((0..taken).map(|at| queue.markers[first + spread(at)]));
        taken < count
    }

    /// Holds events that a thread queries or waits for with the lock open. Until released they are not recorded again.
    pub(super) fn hold(
        &mut self,
        events: impl Iterator<Item = Event> + Clone,
    ) -> Result<(), HostMemoryExhausted> {
        if mutation::is("shared-event") {
            return Ok(());
        }
        self.held.add(events)
    }

    /// Releases a held event of some work. The event becomes spare if it is in no list and not lost.
    pub(super) fn release(&mut self, work: Work, event: Event) {
        if mutation::is("shared-event") {
            return;
        }
        let is_lost = self.held.remove(event);
        let is_listed = self.queues.get(work.queue.index()).is_some_and(|queue| {
            let first = queue.markers.partition_point(|marker| marker.point < work.point);
            let same = queue.markers.range(first..).take_while(|marker| marker.point == work.point);
            same.into_iter().any(|marker| marker.event == event)
        });
        if !is_listed && !is_lost {
            self.recycle(event);
        }
    }

    /// Notes that a stream is about to end, or has ended. Its handle may be given to another stream, in another
    /// context. The context of its forgotten queues stays as it is.
    pub(super) fn forget(&mut self, arena: &Arena, stream: Stream) {
        for queue_id in arena.streams().forgotten_queues(stream) {
            if let Some(queue) = self.queue(queue_id, arena.streams().progress_of(queue_id)) {
                queue.is_forgotten = true;
            }
        }
        self.sole = self.sole.filter(|&(other, _)| other != stream);
        self.note_no_capture(stream, u64::MAX);
    }

    /// Removes the queues whose position in the arena was given up, and frees their memory.
    pub(super) fn forget_past(&mut self, arena: &Arena) {
        let Events { queues, held, spare, .. } = self;
        let gone = queues.drain(arena.streams().queue_count().min(queues.len())..);
        // All work of those queues is done.
        let markers = gone.flat_map(|queue| queue.markers);
        markers.filter(|marker| !held.contains(marker.event)).for_each(|marker| spare.add(marker.event));
        shrink(queues);
    }

    /// Takes the spare events of other contexts, which may be about to end.
    pub(super) fn take_foreign_spare(&mut self) -> Vec<Event> {
        self.spare.take_foreign()
    }

    /// Takes the events of other contexts from a queue, except those that threads hold.
    pub(super) fn take_foreign(&mut self, queue_id: QueueId, foreign: &mut Vec<Event>) {
        let Events { queues, held, .. } = self;
        if let Some(queue) = queues.get_mut(queue_id.index()) {
            queue.markers.retain(|&Marker { event, .. }| {
                let stays = event.context == Context::OWN || held.contains(event);
                if !stays {
                    keep(foreign, event);
                }
                stays
            });
        }
    }

    /// Returns the newest event of a queue.
    pub(super) fn newest(&self, queue_id: QueueId) -> Option<Marker> {
        self.queues.get(queue_id.index())?.markers.back().copied()
    }

    /// Makes an event spare that covers no work any more. If threads hold it, the last release does so.
    pub(super) fn recycle(&mut self, event: Event) {
        if !self.held.contains(event) {
            self.spare.add(event);
        }
    }

    /// Takes all events, for the end of the allocator.
    pub(super) fn take_all(&mut self) -> Vec<Event> {
        let Events { queues, mut spare, .. } = std::mem::take(self);
        let mut all = spare.take_all();
        for queue in queues {
            queue.markers.into_iter().for_each(|marker| keep(&mut all, marker.event));
        }
        all
    }
}
