//! One backward, from its header to its last all-reduce.
//!
//! # Note [The course of a backward]
//!
//! 1. `begin`: the engine has found the leaves that the backward will reach. This rank posts a header with a hash of them
//!    and goes on; where something about them is not settled yet (a leaf that has no place in a bucket, or whose value
//!    was never compared), it waits for the others' headers first.
//! 2. `ready`: a gradient is complete. It is moved into its bucket, times 1 / world size; a large one on the CPU is its bucket, and
//!    is multiplied while it is reduced. When the headers are there and all gradients of a run are, the run's all-reduce is
//!    launched, always in the order of the buckets, which all ranks share.
//! 3. Headers that differ: the ranks reached different leaves. They agree on the union; a leaf that this rank did not reach
//!    contributes what its gradient holds already, or zero.
//! 4. `end`: what is not launched yet is, and everything is waited for. After that every `.grad` is the mean over all ranks.
//!
//! Parts of one batch that are unequal count by their size (Note [The weight of a part]): `begin` returns the factor, and the
//! engine multiplies the gradient at the roots with it. In a backward where only rank 0 counts, since leaves turned out to
//! be unequal, its part stands for the whole batch and the factor is the other one.
//!
//! The mean of what was averaged before is itself, so a gradient that accumulates over several backwards stays right.
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use tch::Tensor;

use crate::bridge::{BackwardKind, GradState};
use crate::control::{Header, Operation};
use crate::data::weight::Counts;
use crate::error::{Error, Result};
use crate::group::Group;
use crate::hash::hash_of;
use crate::hook::CommHook;
use crate::options::{Debug, Options, Uneven};
use crate::sync::accumulate::Accumulation;
use crate::sync::agree;
use crate::sync::bucket::{Run, Shape};
use crate::sync::layout::Layout;
use crate::sync::leaf::LeafTable;
use crate::sync::pass::{Pass, Plan, Progress, Walk};
use crate::sync::stores::{Fresh, StoreSet, spread};
use crate::uneven;

pub(super) const REDUCING: &str = "averaging gradients";

/// The synchronisation of one scope.
pub(crate) struct Reducer {
    pub(super) table: LeafTable,
    pub(super) stores: StoreSet,
    pub(super) layout: Layout,
    pub(super) walks: Vec<Arc<Walk>>,
    pub(super) plans: HashMap<u64, Arc<Plan>>,
    pub(super) pass: Option<Pass>,
    pub(super) accumulation: Accumulation,
    pub(super) hook: Option<Box<dyn CommHook>>,
    debug: Debug,
    /// Passes that have averaged gradients.
    averaged: u64,
    /// What the backward under way reaches, which averages nothing.
    kept: Option<Arc<Walk>>,
    muted: bool,
    /// A rank that has returned shares in all that the others do with what they have: nothing is freed before the end.
    pub(super) keeps_all: bool,
}

impl Reducer {
    /// Nothing known yet; buckets lie in `layout`.
    pub(crate) fn new(options: &Options, layout: Layout) -> Self {
        Self {
            table: LeafTable::default(),
            stores: StoreSet::default(),
            layout,
            walks: Vec::new(),
            plans: HashMap::new(),
            pass: None,
            accumulation: Accumulation::new(options.accumulate),
            hook: options.compress.hook(),
            debug: options.debug,
            averaged: 0,
            kept: None,
            muted: false,
            keeps_all: options.uneven == Uneven::Join,
        }
    }

    /// The stores of the scope.
    pub(crate) fn stores(&mut self) -> &mut StoreSet {
        &mut self.stores
    }

    /// With `true`, backwards are left alone: gradients accumulate on each rank for itself.
    pub(crate) fn mute(&mut self, muted: bool) -> bool {
        std::mem::replace(&mut self.muted, muted)
    }

    /// A hash of all parameters that this rank knows.
    pub(crate) fn table_hash(&self) -> u64 {
        self.table.hash()
    }

    /// Copies one rank's parameters and buffers to all ranks.
    pub(crate) fn spread_weights(&self, group: &Group, root: usize) -> Result<()> {
        let leaves: Vec<&Tensor> =
            (0..self.table.len() as u32).map(|id| &self.table.get(id).tensor).collect();
        spread(group, &leaves, root, "making parameters equal")?;
        self.stores.spread_buffers(group, root)
    }

    /// Copies the lead's buffers to all ranks.
    pub(crate) fn spread_buffers(&self, group: &Group) -> Result<()> {
        if self.stores.has_buffers() {
            self.stores.spread_buffers(group, group.lead())
        } else {
            Ok(())
        }
    }

    /// Makes all variables equal that are new since the last call. Does nothing, without a message, if there are none.
    pub(crate) fn synchronize_stores(&mut self, group: &mut Group) -> Result<()> {
        self.absorb()?;
        let fresh: Vec<Fresh> = self.stores.take_fresh();
        if fresh.is_empty() {
            return Ok(());
        }
        let lines: Vec<&str> = fresh.iter().map(|fresh| fresh.description.as_str()).collect();
        let text = lines.join("\n");
        let headers = group.announce(Operation::Stores, hash_of(&text), 0)?;
        if headers.iter().any(|header| header.subject != headers[0].subject) {
            return Err(agree::different_parameters(group, &text)?);
        }
        let tensors: Vec<&Tensor> = fresh.iter().map(|fresh| &fresh.tensor).collect();
        spread(group, &tensors, group.lead(), "making variable stores equal")?;
        for leaf in fresh.iter().filter_map(|fresh| fresh.leaf) {
            self.table.get_mut(leaf).equal = true;
        }
        Ok(())
    }

    /// From now on buckets are averaged by `hook`.
    pub(crate) fn set_hook(&mut self, hook: Box<dyn CommHook>) {
        self.hook = Some(hook);
    }

    /// Whether a store has variables that are not equal yet.
    pub(crate) fn stores_have_grown(&self) -> bool {
        self.stores.have_grown()
    }

    /// Leaves this leaf out of all that is averaged: it is each rank's own.
    pub(crate) fn ignore(&mut self, leaf: &Tensor) -> Result<()> {
        self.walks.clear();
        self.table.ignore(leaf)
    }

    /// A backward is about to reach these leaves, and this rank's loss counts so much. Returns the factor for its roots.
    pub(crate) fn begin(
        &mut self,
        group: &mut Group,
        leaves: &[(usize, &Tensor)],
        counts: Counts,
        kind: BackwardKind,
    ) -> Result<f64> {
        group.count_backward();
        self.absorb()?;
        let reached = self.walk(leaves)?;
        if !self.accumulation.begin(&self.table, self.muted)? {
            // What accumulates now is averaged with a later backward, whose weight is another.
            self.layout.let_go(&mut self.table, &reached.ids)?;
            self.kept = Some(reached);
            return Ok(counts.factor);
        }
        let walk = self.with_pending(&reached);
        let header = Header {
            subject: walk.hash,
            table: self.table.hash(),
            extra: counts.word(),
            may_leave_undefined: kind.may_leave_undefined,
            batch_norms: kind.batch_norms as i64,
            ..Header::new(Operation::Backward, group.backwards())
        };
        let (control, watch) = group.control();
        let headers = control.post(watch, header)?;
        let settled = walk.ids.iter().all(|&id| {
            let leaf = self.table.get(id);
            leaf.place.is_some() && leaf.equal
        });
        let scale = 1.0 / group.topology().world_size as f64;
        self.pass = Some(Pass::new(
            Arc::clone(&walk),
            &reached.ids,
            Some(headers),
            self.table.len(),
            scale,
        ));
        if let Some(pass) = &mut self.pass {
            pass.layers_to_come = kind.fused_batch_norms;
        }
        if settled {
            let plan = self.plan_for(&walk.ids, walk.hash);
            self.follow(group, plan)?;
        } else {
            self.wait_for_headers(group)?;
        }
        let lead_alone = self.pass.as_ref().is_some_and(|pass| !pass.unequal.is_empty());
        Ok(if lead_alone { counts.alone } else { counts.factor })
    }

    /// Averages what has accumulated in a group of backwards that is not complete. Nothing, without a message, if there is no
    /// such group.
    pub(crate) fn average_accumulated(&mut self, group: &mut Group) -> Result<()> {
        self.check_accumulated()?;
        if !self.accumulation.is_open() {
            return Ok(());
        }
        self.average_pending(group)
    }

    /// Averages all gradients of backwards that averaged none. All ranks do.
    pub(crate) fn average_pending(&mut self, group: &mut Group) -> Result<()> {
        self.check_accumulated()?;
        let walk = Arc::new(Walk::over(self.accumulation.pending(&self.table)));
        let header = Header {
            subject: walk.hash,
            table: self.table.hash(),
            ..Header::new(Operation::Gradients, group.backwards())
        };
        let (control, watch) = group.control();
        let headers = control.post(watch, header)?;
        let scale = 1.0 / group.topology().world_size as f64;
        self.pass = Some(Pass::new(walk, &[], Some(headers), self.table.len(), scale));
        self.wait_for_headers(group)?;
        self.complete(group)
    }

    /// An error if gradients that were not averaged have been used.
    pub(crate) fn check_accumulated(&self) -> Result<()> {
        self.accumulation.check(&self.table)
    }

    /// This rank's part in a backward of the others: nothing. See Note [Standing aside]. `own` is what it announces meanwhile.
    pub(crate) fn accompany(
        &mut self,
        group: &mut Group,
        headers: &[Header],
        own: Header,
    ) -> Result<()> {
        group.count_backward();
        // A scale of zero takes out what this rank's gradients hold.
        let nowhere = Arc::new(Walk::over(Vec::new()));
        self.pass = Some(Pass::new(nowhere, &[], None, self.table.len(), 0.0));
        self.agree(group, headers)?;
        for _ in 0..headers[uneven::lead(headers)].batch_norms {
            let headers = group.announce_as(own)?;
            self.launch_agreed(group, &headers)?;
            group.accompany_in_pass(&headers)?;
        }
        self.complete(group)
    }

    /// Settles what the backward under way, if there is one, reduces: from then on all ranks send the same messages from inside it.
    pub(crate) fn settle(&mut self, group: &mut Group) -> Result<()> {
        self.wait_for_headers(group)
    }

    /// Whether a backward is under way that averages gradients.
    pub(crate) fn is_averaging(&self) -> bool {
        self.pass.is_some()
    }

    /// The gradient of a leaf is complete.
    pub(crate) fn ready(&mut self, group: &mut Group, id: u32) -> Result<()> {
        let Some(pass) = &self.pass else { return Ok(()) };
        let scale = pass.scale;
        if pass.progress_of(id) != Progress::Expected || self.table.get(id).place.is_none() {
            return Err(Error::unsupported(
                format!(
                    "a backward inside a backward reached `{}` by surprise",
                    self.table.get(id).name
                ),
                "run the two backwards one after the other",
            ));
        }
        let state = self.collect(group, id, scale)?;
        let Some(pass) = &mut self.pass else { return Ok(()) };
        if state == GradState::Undefined {
            if !pass.may_leave_undefined && pass.headers.is_none() {
                return Err(Error::unsupported(
                    format!(
                        "autograd reached `{}` but left it without a gradient",
                        self.table.get(id).name
                    ),
                    "detach it where it takes no part in the loss",
                ));
            }
            pass.undefined.push(id);
        }
        pass.progress[id as usize] = Progress::Ready;
        if !pass.placed.is_empty() {
            pass.order.push(id);
        }
        if let Some(&run) = pass.plan.run_of.get(&id) {
            pass.missing[run] -= 1;
        }
        self.advance(group)
    }

    /// The backward is over. After this every gradient it produced is the mean over all ranks.
    pub(crate) fn end(&mut self, group: &mut Group, failed: bool) -> Result<()> {
        if let Some(kept) = self.kept.take().filter(|_| !failed) {
            return self.accumulation.keep(&self.table, &kept.ids);
        }
        if self.pass.is_none() {
            return Ok(());
        }
        if failed {
            self.pass = None;
            return Err(Error::torch("backward", "it failed; its error was returned by libtorch"));
        }
        self.wait_for_headers(group)?;
        self.complete(group)
    }

    /// What is done once the gradients are averaged.
    pub(super) fn finish(&mut self, group: &mut Group, pass: &Pass) -> Result<()> {
        let lead = group.lead();
        if !pass.unequal.is_empty() {
            let tensors: Vec<&Tensor> =
                pass.unequal.iter().map(|&id| &self.table.get(id).tensor).collect();
            spread(group, &tensors, lead, "making parameters equal")?;
        }
        if !pass.placed.is_empty() {
            self.adopt_order(group, pass)?;
        }
        self.spread_buffers(group)?;
        self.averaged += 1;
        match self.debug {
            Debug::Checksum { every } if self.averaged.is_multiple_of(every.max(1)) => {
                agree::compare_replicas(group, &self.table, &self.stores)
            }
            _ => Ok(()),
        }
    }

    /// Takes up a plan, with the gradients that are there already.
    pub(super) fn follow(&mut self, group: &Group, plan: Arc<Plan>) -> Result<()> {
        let Some(pass) = &mut self.pass else { return Ok(()) };
        let ready =
            |run: &&Run| run.leaves.iter().any(|&id| pass.progress_of(id) == Progress::Ready);
        let in_use: HashSet<usize> = plan.runs.iter().filter(ready).map(|run| run.bucket).collect();
        for run in plan.runs.iter().filter(|run| !in_use.contains(&run.bucket)) {
            self.layout.refresh(&mut self.table, run.bucket, &in_group(group))?;
        }
        pass.missing = plan
            .runs
            .iter()
            .map(|run| {
                let expected = |id: &&u32| pass.progress_of(**id) == Progress::Expected;
                run.leaves.iter().filter(expected).count()
            })
            .collect();
        pass.plan = plan;
        Ok(())
    }

    pub(super) fn wait_for_headers(&mut self, group: &mut Group) -> Result<()> {
        let Some(headers) = self.pass.as_mut().and_then(|pass| pass.headers.take()) else {
            return Ok(());
        };
        let headers = group.settle(headers)?;
        self.agree(group, &headers)
    }
}

/// Memory for buckets, where the group's transport wants it.
pub(super) fn in_group(group: &Group) -> impl Fn(&Shape) -> Result<Tensor> {
    |shape| group.allocate(shape.elements, shape.kind, shape.device)
}
