//! What a backward sends: runs of buckets, as soon as they are complete, in the one order of all ranks.
//!
//! # Note [Buckets and layers]
//!
//! A transport carries operations in one order, the same on all ranks. When a run is complete differs from rank to rank, so
//! collectives of synchronised layers that go by the data plane too, from inside the backward, need an order among the runs: the
//! header of each says how many runs its rank has complete, and the least of these numbers are launched before it, on all
//! ranks. Between two of them nothing is launched; after the last one each run is as soon as it is complete. PyTorch sends
//! both on one communicator and relies on all ranks completing buckets at the same points. A second communicator would need no
//! order, but NCCL lets two wait for each other where the device or the allocator waits for one of them.
use tch::Tensor;

use crate::control::Header;
use crate::error::{During, Error, Result};
use crate::group::Group;
use crate::hook::{GradBucket, Gradient, HookComm};
use crate::sync::bucket::Run;
use crate::sync::leaf::LeafTable;
use crate::sync::pass::{Launched, Pass, Progress};
use crate::sync::reducer::{REDUCING, Reducer};
use crate::trace;

impl Reducer {
    /// How many runs of the backward under way are complete; 0 where there is none.
    pub(crate) fn complete_runs(&self) -> usize {
        self.pass.as_ref().map_or(0, Pass::complete_runs)
    }

    /// Launches the runs that all ranks have complete, before a collective of a layer. See Note [Buckets and layers].
    pub(crate) fn launch_agreed(&mut self, group: &Group, headers: &[Header]) -> Result<()> {
        let present = headers.iter().filter(|header| !header.aside);
        let agreed = present.map(|header| header.extra).min().unwrap_or(0);
        self.launch_up_to(group, usize::try_from(agreed).unwrap_or(0))
    }

    /// A collective of a layer has been launched.
    pub(crate) fn layer_is_through(&mut self) {
        if let Some(pass) = &mut self.pass {
            pass.layers_to_come = pass.layers_to_come.saturating_sub(1);
        }
    }

    /// Launches what is complete, if the ranks have agreed by now.
    pub(super) fn advance(&mut self, group: &mut Group) -> Result<()> {
        let Some(pass) = &mut self.pass else { return Ok(()) };
        if let Some(headers) = &pass.headers {
            if !headers.poll(group.watch())? {
                return Ok(());
            }
            self.wait_for_headers(group)?;
        }
        match &self.pass {
            Some(pass) if pass.layers_to_come > 0 => group.progress(REDUCING),
            _ => self.launch_up_to(group, usize::MAX),
        }
    }

    /// Launches the runs that are complete, the first `limit` of all at most.
    fn launch_up_to(&mut self, group: &Group, limit: usize) -> Result<()> {
        let Some(pass) = &mut self.pass else { return Ok(()) };
        while let Some(run) = pass.plan.runs.get(pass.launched.len()) {
            let index = pass.launched.len();
            if index >= limit || pass.missing[index] > 0 {
                break;
            }
            let slice = self.layout.slice(run)?;
            let launched = match &mut self.hook {
                Some(hook) => {
                    let bucket = hook_bucket(&self.table, index, run, slice);
                    hook.start(&bucket, &HookComm::new(group))?;
                    Launched::Hook(bucket)
                }
                None => {
                    let work = group.data().sum_scaled(&slice, self.layout.scale(run));
                    let work = work.map_err(|error| group.watch().explain(REDUCING, &error))?;
                    Launched::Work(trace::all_reduce(index, work))
                }
            };
            pass.launched.push(launched);
        }
        group.progress(REDUCING)?;
        if trace::is_on() {
            // A timeline wants to know early when one has ended; errors come with the wait for it.
            for launched in &pass.launched {
                if let Launched::Work(work) = launched {
                    drop(work.is_done());
                }
            }
        }
        Ok(())
    }

    fn never_arrived(&self, pass: &Pass) -> Error {
        let missing = (0..self.table.len() as u32)
            .find(|&id| pass.progress_of(id) == Progress::Expected)
            .map_or("a parameter", |id| self.table.get(id).name.as_str());
        Error::unsupported(
            format!("the gradient of `{missing}` never came, though the graph leads to it"),
            "detach it where it takes no part in the loss",
        )
    }

    /// Launches what is left, and waits for everything.
    pub(super) fn complete(&mut self, group: &mut Group) -> Result<()> {
        self.launch_up_to(group, usize::MAX)?;
        let Some(pass) = self.pass.take() else { return Ok(()) };
        if pass.launched.len() < pass.plan.runs.len() {
            return Err(self.never_arrived(&pass));
        }
        for launched in &pass.launched {
            match launched {
                Launched::Work(work) => group.wait(work.as_ref(), REDUCING)?,
                Launched::Hook(bucket) => {
                    if let Some(hook) = &mut self.hook {
                        hook.finish(bucket, &HookComm::new(group))?;
                    }
                }
            }
        }
        self.rescale(&pass)?;
        self.give_gradients(group, &pass)?;
        self.accumulation.clear();
        self.finish(group, &pass)
    }

    /// The gradients were scaled for a mean over all ranks: makes it one over the ranks that took this step.
    fn rescale(&self, pass: &Pass) -> Result<()> {
        if pass.correction == 1.0 {
            return Ok(());
        }
        for run in &pass.plan.runs {
            let _ = self.layout.slice(run)?.f_mul_scalar_(pass.correction).during(REDUCING)?;
        }
        Ok(())
    }
}

/// A run, as a hook sees it.
fn hook_bucket(table: &LeafTable, index: usize, run: &Run, flat: Tensor) -> GradBucket {
    let gradient = |&parameter: &u32| {
        let value = table.get(parameter).place.as_ref()?.view.as_ref()?.shallow_clone();
        Some(Gradient { parameter, value })
    };
    GradBucket { index, flat, gradients: run.leaves.iter().filter_map(gradient).collect() }
}
