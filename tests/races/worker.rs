//! A thread that runs given tasks, one at a time, for things that only a thread itself can do, such as queueing
//! work on its own default stream. The caller waits, so that a program is the same at each run.

use crate::common::gpu::Gpu;
use std::sync::mpsc::{Sender, channel};
use std::thread::JoinHandle;

type Job = Box<dyn FnOnce() + Send>;

/// A thread with a device's primary context current.
pub struct Worker {
    jobs: Option<Sender<Job>>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts it.
    pub fn start(gpu: Gpu, context: u64) -> Worker {
        let (jobs, received) = channel::<Job>();
        let thread = std::thread::spawn(move || {
            gpu.set_current(context);
            received.into_iter().for_each(|job| job());
        });
        Worker { jobs: Some(jobs), thread: Some(thread) }
    }

    /// Runs work on it, and waits for the result.
    pub fn run<T: Send + 'static>(&self, work: impl FnOnce() -> T + Send + 'static) -> T {
        let (answer, answers) = channel();
        let job = Box::new(move || {
            let _ = answer.send(work());
        });
        self.jobs.as_ref().expect("it runs").send(job).expect("it runs");
        answers.recv().expect("it has not panicked")
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        drop(self.jobs.take());
        if let Some(thread) = self.thread.take() {
            let ended = thread.join();
            assert!(ended.is_ok() || std::thread::panicking());
        }
    }
}
