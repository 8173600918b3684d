//! Hill climbing: programs are changed at random, and of each kind of call the one that runs most basic blocks is kept and
//! changed further.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use anyhow::Result;

use super::program::{Program, Random};
use super::runner::Runner;

/// How often a line says how far the search is.
const PROGRESS: Duration = Duration::from_secs(10);

/// Instructions in a basic block at most, as measured: rows take 2 to 7.
const IN_A_BLOCK: u64 = 8;

/// Blocks for each chunk that are as bad as anything.
const ENOUGH: u64 = 500;

/// How long a find may be made simpler.
const SIMPLIFYING: Duration = Duration::from_secs(2);

/// The worst call of a kind so far.
#[derive(Clone)]
pub struct Find {
    pub program: Program,
    pub blocks: u64,
    pub call: u64,
}

impl Find {
    /// Whether it may take that many instructions, so that counting them is worth while.
    pub fn may_exceed(&self, instructions: u64) -> bool {
        self.blocks * IN_A_BLOCK > instructions
    }
}

/// When a search ends: whatever comes first.
pub struct Limits {
    pub time: Duration,
    pub programs: u64,
}

/// A search at a number of chunks.
pub struct Search<'a, 'b> {
    pub runner: &'a mut Runner<'b>,
    pub scale: u64,
    pub found: BTreeMap<String, Find>,
}

impl Search<'_, '_> {
    /// Tries seeds and what comes of them. The same seed tries the same programs, as far as it gets.
    pub fn run(&mut self, seeds: &[Program], seed: u64, limits: &Limits) -> Result<()> {
        for program in seeds {
            self.attempt(program)?;
        }
        let (start, mut random) = (Instant::now(), Random(seed));
        let (mut ran, mut said) = (0, start);
        while start.elapsed() < limits.time && ran < limits.programs && !self.found.is_empty() {
            let mut any = || self.found.values().nth(random.below(self.found.len()));
            let (Some(one), Some(second)) = (any(), any()) else {
                break;
            };
            let program = one.program.mutated(&mut random, &second.program);
            self.attempt(&program)?;
            ran += 1;
            if said.elapsed() > PROGRESS {
                said = Instant::now();
                let most = self.found.values().map(|find| find.blocks).max().unwrap_or_default();
                let kinds = self.found.len();
                let seconds = start.elapsed().as_secs();
                println!(
                    "   {seconds} s: {ran} programs, {kinds} kinds of calls, at most {most} basic blocks"
                );
            }
        }
        println!(
            "Tried {ran} programs in {:.0} s, {} kinds of calls",
            start.elapsed().as_secs_f64(),
            self.found.len()
        );
        Ok(())
    }

    fn attempt(&mut self, program: &Program) -> Result<()> {
        for worst in self.runner.worst(program, self.scale)? {
            // They give back whatever there is, in proportion to it.
            if worst.kind.starts_with("trim") || worst.kind.starts_with("limit") {
                continue;
            }
            let before = self.found.get(&worst.kind);
            if before.is_none_or(|before| self.is_better(worst.blocks, before.blocks)) {
                let find = Find { program: program.clone(), blocks: worst.blocks, call: worst.call };
                self.found.insert(worst.kind, find);
            }
        }
        Ok(())
    }

    /// Whether so many instructions are as bad as anything.
    pub fn is_enough(&self, instructions: u64) -> bool {
        instructions > ENOUGH * self.scale
    }

    /// More blocks are better, up to so many that it takes long to run what comes of such a program: then fewer are.
    fn is_better(&self, blocks: u64, than: u64) -> bool {
        let enough = ENOUGH * self.scale;
        if than > enough { blocks > enough && blocks < than / 4 } else { blocks > than }
    }

    /// The find with all left out of its program that nearly nothing depends on.
    pub fn simplified(&mut self, kind: &str, find: &Find) -> Result<Find> {
        let (mut best, least, mut at) = (find.clone(), (find.blocks / 20 * 19).min(ENOUGH * self.scale), 0);
        let start = Instant::now();
        // What goes makes way for what comes next at the same place.
        while let Some(program) = best.program.simpler().into_iter().nth(at) {
            if start.elapsed() > SIMPLIFYING {
                break;
            }
            let all = self.runner.worst(&program, self.scale)?;
            match all.into_iter().find(|worst| worst.kind == kind && worst.blocks >= least) {
                Some(worst) => best = Find { program, blocks: worst.blocks, call: worst.call },
                None => at += 1,
            }
        }
        Ok(best)
    }
}
