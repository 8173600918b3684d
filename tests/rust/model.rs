//! A model of what a pool must answer to a random program.

use crate::programs::{How, Program, STREAMS, Settings, Step, Wanted, program};
use crate::{cases, host_pool};
use bfc::{
    BackendKind, Block, ChunkState, Error, ErrorKind, FailureCause, Flags, HostBlock, HostPool, OutOfMemory,
    Request, Stream,
};
use proptest::prelude::*;

/// A stream, counted from 1 over the whole program, or 0 for none.
type Queue = usize;

enum Memory<'a> {
    Host(HostBlock<'a, u8>),
    /// That of a stream.
    Plain(Block<'a>),
}

struct Live<'a> {
    memory: Memory<'a>,
    value: u8,
    queue: Queue,
    uses: Vec<Queue>,
}

impl<'a> Live<'a> {
    fn block(&self) -> &Block<'a> {
        match &self.memory {
            Memory::Host(block) => block.as_block(),
            Memory::Plain(block) => block,
        }
    }

    fn into_block(self) -> Block<'a> {
        match self.memory {
            Memory::Host(block) => block.into_block(),
            Memory::Plain(block) => block,
        }
    }

    fn contents(&self) -> &[u8] {
        match &self.memory {
            Memory::Host(block) => block,
            // SAFETY: a live block of host memory, which was filled when it was allocated.
            Memory::Plain(block) => unsafe {
                std::slice::from_raw_parts(block.as_ptr().as_ptr(), block.len())
            },
        }
    }

    fn check_contents(&self) {
        let bytes = self.contents();
        let is_right = |byte: &u8| *byte == self.value;
        assert!(bytes.iter().step_by(253).all(is_right) && bytes.last().is_none_or(is_right), "overwritten");
    }
}

/// Freed memory, with the queues whose work may use it still.
struct Pending {
    start: u64,
    end: u64,
    queues: Vec<Queue>,
}

struct Model<'p> {
    pool: &'p HostPool,
    settings: Settings,
    backend: BackendKind,
    allocs: u64,
    frees: u64,
    failures: u64,
    peak: u64,
    limit: u64,
    pending: Vec<Pending>,
    last_value: u8,
}

impl<'p> Model<'p> {
    /// Allocates, and checks the memory or the failure.
    fn alloc<'a>(&mut self, wanted: Wanted, stream: Option<(&'a Stream<'p>, Queue)>) -> Option<Live<'a>>
    where
        'p: 'a,
    {
        let request = Request::new(wanted.bytes).alignment(wanted.alignment);
        let request = if wanted.in_512 { request.multiple_of_512() } else { request };
        let request = if wanted.no_growth { request.no_growth() } else { request };
        let request = if wanted.short_lived { request.short_lived() } else { request };
        let is_plain = (wanted.in_512, wanted.no_growth, wanted.short_lived, wanted.alignment)
            == (false, false, false, 0);
        self.last_value = self.last_value.wrapping_add(1).max(1);
        let value = self.last_value;
        let allocated = match stream {
            None if is_plain => self.pool.alloc(wanted.bytes).map(|block| Memory::Host(block.filled(value))),
            None => self.pool.alloc_with(&request).map(|block| Memory::Host(block.filled(value))),
            Some((stream, _)) => {
                let block = if is_plain { stream.alloc(wanted.bytes) } else { stream.alloc_with(&request) };
                block.map(|block| {
                    // SAFETY: the block owns these bytes of host memory.
                    unsafe { block.as_ptr().as_ptr().write_bytes(value, block.len()) };
                    Memory::Plain(block)
                })
            }
        };
        let queue = stream.map_or(0, |(_, queue)| queue);
        match allocated {
            Ok(memory) => {
                let live = Live { memory, value, queue, uses: Vec::new() };
                self.served(&live, wanted);
                Some(live)
            }
            Err(error) => {
                self.failed(wanted, stream, &error);
                None
            }
        }
    }

    fn served(&mut self, live: &Live<'_>, wanted: Wanted) {
        let block = live.block();
        assert_eq!(block.len(), wanted.bytes);
        let address = block.as_ptr().addr().get();
        if block.is_empty() {
            assert_eq!((block.address(), address % 256, block.capacity().unwrap()), (0, 0, 0));
            return;
        }
        let capacity = block.capacity().unwrap();
        assert_eq!(block.address(), address as u64);
        assert!(address.is_multiple_of(wanted.alignment.max(256)), "{address:#x} for {wanted:?}");
        let unit = if wanted.in_512 { 512 } else { 256 };
        assert!(capacity >= wanted.bytes.next_multiple_of(unit), "{capacity} bytes for {wanted:?}");
        self.allocs += 1;
        self.take(block.address(), capacity as u64, live.queue);
    }

    /// Checks that no other queue's work may use memory that was handed out.
    fn take(&mut self, start: u64, bytes: u64, queue: Queue) {
        let end = start + bytes;
        let (taken, mut rest): (Vec<_>, Vec<_>) =
            self.pending.drain(..).partition(|pending| pending.start < end && start < pending.end);
        for Pending { start: from, end: to, queues } in taken {
            assert!(
                self.may_differ() || queues.iter().all(|&other| other == queue),
                "{from:#x} to {to:#x} waits for {queues:?}, and went to {queue}"
            );
            for (start, end) in [(from, start), (end, to)].into_iter().filter(|(start, end)| start < end) {
                rest.push(Pending { start, end, queues: queues.clone() });
            }
        }
        self.pending = rest;
    }

    /// Whether there may be other memory at an address than before: a region that was given back during a request, or
    /// granules that were moved.
    fn may_differ(&self) -> bool {
        self.settings.collects || self.backend == BackendKind::HostVmm
    }

    fn failed(&mut self, wanted: Wanted, stream: Option<(&Stream<'p>, Queue)>, error: &Error) {
        if wanted.alignment != 0 && !wanted.alignment.is_power_of_two() {
            assert_eq!((error.kind(), error.out_of_memory()), (ErrorKind::InvalidArgument, None));
            return;
        }
        assert_eq!(error.kind(), ErrorKind::OutOfMemory, "{error}");
        if wanted.no_growth {
            // The caller has other ways, but none to what nothing can serve.
            let is_refused = |numbers: &OutOfMemory| {
                matches!(numbers.cause, FailureCause::Alignment | FailureCause::Other)
            };
            assert!(error.out_of_memory().is_none_or(is_refused), "{error}");
            return;
        }
        self.failures += 1;
        let numbers = *error.out_of_memory().expect("numbers");
        let stats = self.pool.stats().unwrap();
        assert_eq!(numbers.requested, wanted.bytes as u64);
        assert_eq!(numbers.limit, stats.bytes_limit.max(stats.pool_bytes));
        assert_eq!(numbers.free + numbers.waiting, stats.pool_bytes - stats.bytes_in_use);
        assert!(numbers.largest_free <= numbers.free);
        // Others may have been refused before their stream was known to the pool, and with it what it may reuse.
        if !matches!(numbers.cause, FailureCause::Exhaustion | FailureCause::Fragmentation) {
            return;
        }
        let Some(bytes) = numbers.would_fit() else {
            assert!(wanted.alignment > 256);
            return;
        };
        assert!(bytes < wanted.bytes, "{error}, {numbers:?}");
        let fits = Wanted { bytes, ..wanted };
        let served = self.alloc(fits, stream).unwrap_or_else(|| panic!("{error}, {numbers:?}"));
        self.end(served, How::Drop, &[]);

        // Free memory may be given back or moved together for a larger request.
        if !self.may_differ() {
            let request = Request::new(bytes + 513).attempt();
            let larger = match stream {
                None => self.pool.alloc_with(&request).map(drop),
                Some((stream, _)) => stream.alloc_with(&request).map(drop),
            };
            assert!(larger.is_err(), "{error}, {numbers:?}");
        }
    }

    fn end(&mut self, live: Live<'_>, how: How, streams: &[(&Stream<'p>, Queue)]) {
        live.check_contents();
        let (mut queues, mut order) = (live.uses.clone(), live.queue);
        let block = live.into_block();
        let (address, bytes) = (block.address(), block.capacity().unwrap() as u64);
        match how {
            How::Drop => drop(block),
            How::Free => block.free().unwrap(),
            How::FreeOn(at) => {
                let (stream, queue) = streams[at];
                order = queue;
                block.free_on(stream).unwrap();
            }
        }
        if address != 0 {
            self.frees += 1;
            queues.push(order);
            self.pending.push(Pending { start: address, end: address + bytes, queues });
        }
    }

    fn end_all(&mut self, live: Vec<Live<'_>>) {
        live.into_iter().for_each(|live| self.end(live, How::Drop, &[]));
    }

    fn synchronized(&mut self, queue: Queue) {
        self.pending.iter_mut().for_each(|pending| pending.queues.retain(|&other| other != queue));
    }

    /// Forgets what waits in memory that was given back.
    fn released(&mut self) {
        let regions = self.pool.regions().unwrap();
        self.pending.retain(|pending| {
            regions
                .iter()
                .any(|region| region.address <= pending.start && pending.end <= region.address + region.size)
        });
    }

    fn verify<'a>(&mut self, live: impl Iterator<Item = &'a Live<'a>>) {
        self.pool.check().unwrap();
        let mut live: Vec<_> = live.inspect(|live| live.check_contents()).map(Live::block).collect();
        live.retain(|block| !block.is_empty());
        live.sort_by_key(|block| block.address());

        let regions = self.pool.regions().unwrap();
        assert!(regions.is_sorted_by(|one, next| one.address + one.size <= next.address), "{regions:?}");
        for region in &regions {
            let mut at = region.address;
            for chunk in region.chunks() {
                assert_eq!(chunk.address, at, "{region:?}");
                at += chunk.size;
            }
            assert_eq!(at, region.address + region.size, "{region:?}");
        }
        let chunks = || regions.iter().flat_map(|region| region.chunks());
        let in_use: Vec<_> = chunks().filter(|chunk| chunk.state == ChunkState::InUse).collect();
        assert_eq!(in_use.len(), live.len());
        for (chunk, block) in in_use.iter().zip(&live) {
            assert_eq!((chunk.address, chunk.requested), (block.address(), block.len() as u64));
            assert_eq!(chunk.size, block.capacity().unwrap() as u64);
        }

        let sum = |is: fn(ChunkState) -> bool| chunks().filter(|c| is(c.state)).map(|c| c.size).sum::<u64>();
        let stats = self.pool.stats().unwrap();
        assert_eq!(stats.bytes_in_use, sum(|state| state == ChunkState::InUse));
        assert_eq!(stats.bytes_requested, live.iter().map(|block| block.len() as u64).sum::<u64>());
        assert_eq!(stats.pool_bytes, sum(|state| state != ChunkState::Unmapped));
        assert_eq!(stats.num_regions, regions.len() as u64);
        assert_eq!((stats.num_allocs, stats.num_frees), (self.allocs, self.frees));
        assert_eq!(stats.num_failures, self.failures);
        assert_eq!(stats.bytes_limit, self.limit);
        self.peak = self.peak.max(stats.bytes_in_use);
        assert!(stats.peak_bytes_in_use >= self.peak);
    }
}

fn run(program: &Program, backend: BackendKind) {
    let settings = program.settings;
    let mut flags = Flags::ALLOW_GROWTH | Flags::SPLIT_ALWAYS;
    flags.set(Flags::GARBAGE_COLLECTION, settings.collects);
    let pool = host_pool(|builder| {
        let builder = builder.backend(backend).flags(flags).memory_limit(settings.limit);
        builder.initial_region(settings.initial_region)
    });
    let mut model = Model {
        pool: &pool,
        settings,
        backend,
        allocs: 0,
        frees: 0,
        failures: 0,
        peak: 0,
        limit: settings.limit,
        pending: Vec::new(),
        last_value: 0,
    };
    let mut common = Vec::new();
    for (number, steps) in program.phases.iter().enumerate() {
        run_phase(&mut model, &mut common, number, steps);
        model.verify(common.iter());
    }
    model.end_all(common);
    model.verify(std::iter::empty());
    assert_eq!(pool.stats().unwrap().bytes_in_use, 0);
    pool.destroy().unwrap();
}

fn run_phase<'p>(model: &mut Model<'p>, common: &mut Vec<Live<'p>>, number: usize, steps: &[Step]) {
    let streams: [_; STREAMS] = std::array::from_fn(|_| model.pool.stream());
    let named: [_; STREAMS] = std::array::from_fn(|at| (&streams[at], 1 + number * STREAMS + at));
    let mut ordered: Vec<Live<'_>> = Vec::new();
    for step in steps {
        match *step {
            Step::Alloc { request, stream: Some(at) } => {
                ordered.extend(model.alloc(request, Some(named[at])))
            }
            Step::Alloc { request, stream: None } => common.extend(model.alloc(request, None)),
            Step::AllocZeroed { bytes } => common.extend(alloc_zeroed(model, bytes)),
            Step::End { which, how } if !(common.is_empty() && ordered.is_empty()) => {
                let at = which % (common.len() + ordered.len());
                match at.checked_sub(common.len()) {
                    None => model.end(common.swap_remove(at), how, &named),
                    Some(at) => model.end(ordered.swap_remove(at), how, &named),
                }
            }
            Step::RecordUse { which, stream } if !(common.is_empty() && ordered.is_empty()) => {
                let at = which % (common.len() + ordered.len());
                let (stream, queue) = named[stream];
                let used = match at.checked_sub(common.len()) {
                    None => {
                        common[at].block().record_use(stream).unwrap();
                        &mut common[at].uses
                    }
                    Some(at) => {
                        ordered[at].block().record_use(stream).unwrap();
                        &mut ordered[at].uses
                    }
                };
                used.push(queue);
            }
            Step::End { .. } | Step::RecordUse { .. } => {}
            Step::Synchronized { stream } => {
                named[stream].0.synchronized().unwrap();
                model.synchronized(named[stream].1);
            }
            Step::SynchronizedUnordered => {
                model.pool.default_stream().synchronized().unwrap();
                model.synchronized(0);
            }
            Step::Trim { keep } => {
                let before = model.pool.stats().unwrap().pool_bytes;
                let given_back = model.pool.trim(keep).unwrap();
                let after = model.pool.stats().unwrap().pool_bytes;
                assert_eq!(before - given_back, after);
                assert!(after >= keep.min(before));
                model.released();
            }
            Step::SetMemoryLimit { bytes } => {
                model.pool.set_memory_limit(bytes).unwrap();
                model.limit = bytes;
                model.released();
            }
            Step::ResetStats => {
                model.pool.reset_stats().unwrap();
                (model.allocs, model.frees, model.failures, model.peak) = (0, 0, 0, 0);
            }
        }
        model.verify(common.iter().chain(&ordered));
    }
    model.end_all(ordered);
    // The end of a stream is that of its work, also for what is freed later.
    let queues = named.map(|(_, queue)| queue);
    drop(streams);
    for queue in queues {
        model.synchronized(queue);
        common.iter_mut().for_each(|live| live.uses.retain(|&other| other != queue));
    }
    if number.is_multiple_of(2) {
        model.end_all(std::mem::take(common));
        model.pool.default_stream().synchronized().unwrap();
        model.pending.clear();
        model.pool.trim(0).unwrap();
        assert_eq!(model.pool.stats().unwrap().pool_bytes, 0);
    }
}

fn alloc_zeroed<'p>(model: &mut Model<'p>, bytes: usize) -> Option<Live<'p>> {
    let wanted = Wanted { bytes, alignment: 0, in_512: false, no_growth: false, short_lived: false };
    match model.pool.alloc_zeroed(bytes) {
        Ok(block) => {
            assert!(block.iter().all(|&byte| byte == 0));
            let live = Live { memory: Memory::Host(block), value: 0, queue: 0, uses: Vec::new() };
            model.served(&live, wanted);
            Some(live)
        }
        Err(error) => {
            model.failed(wanted, None, &error);
            None
        }
    }
}

proptest! {
    #![proptest_config(cases())]

    #[test]
    fn a_pool_of_host_memory_agrees_with_the_model(program in program()) {
        run(&program, BackendKind::Host);
    }

    #[test]
    fn a_pool_of_granules_agrees_with_the_model(program in program()) {
        run(&program, BackendKind::HostVmm);
    }
}
