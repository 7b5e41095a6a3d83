//! One backward, from its header to its last all-reduce.
//!
//! # Note [The course of a backward]
//!
//! 1. `begin`: the engine has found the leaves that the backward will reach. This rank posts a header with a hash of them
//!    and goes on; where something about them is not settled yet (a leaf that has no place in a bucket, or whose value
//!    was never compared), it waits for the others' headers first.
//! 2. `ready`: a gradient is complete. It is moved into its bucket, times 1 / world size. When the headers are there and all
//!    gradients of a run are, the run's all-reduce is launched, always in the order of the buckets, which all ranks share.
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

use crate::bridge::{GradState, grad_into_view, set_grad};
use crate::comm::ReduceOp;
use crate::control::{Header, Operation};
use crate::data::weight::Counts;
use crate::error::{During, Error, Result};
use crate::group::Group;
use crate::sync::agree;
use crate::sync::bucket::{Run, Shape};
use crate::sync::layout::Layout;
use crate::sync::leaf::LeafTable;
use crate::sync::pass::{Pass, Plan, Progress, Walk, hash_of};
use crate::sync::stores::{Fresh, StoreSet, spread};
use crate::trace;

/// How many different sequences of leaves are remembered: a model has few kinds of backward.
const WALKS: usize = 16;
const REDUCING: &str = "averaging gradients";

/// The synchronisation of one scope.
pub(crate) struct Reducer {
    table: LeafTable,
    stores: StoreSet,
    layout: Layout,
    walks: Vec<Arc<Walk>>,
    plans: HashMap<u64, Arc<Plan>>,
    pass: Option<Pass>,
    muted: bool,
}

impl Reducer {
    /// Nothing known yet; buckets close at `bucket_bytes`.
    pub(crate) fn new(bucket_bytes: usize) -> Self {
        Self {
            table: LeafTable::default(),
            stores: StoreSet::default(),
            layout: Layout::new(bucket_bytes),
            walks: Vec::new(),
            plans: HashMap::new(),
            pass: None,
            muted: false,
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

    /// Makes all variables equal that are new since the last call. Does nothing, without a message, if there are none.
    pub(crate) fn synchronize_stores(&mut self, group: &mut Group) -> Result<()> {
        self.stores.absorb(&mut self.table)?;
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

    /// A backward is about to reach these leaves, and this rank's loss counts so much. Returns the factor for its roots.
    pub(crate) fn begin(
        &mut self,
        group: &mut Group,
        leaves: &[(usize, &Tensor)],
        counts: Counts,
    ) -> Result<f64> {
        group.count_backward();
        if self.muted {
            // What accumulates now is averaged with a later backward, whose weight is another.
            return Ok(counts.factor);
        }
        self.stores.absorb(&mut self.table)?;
        let walk = self.walk(leaves)?;
        let header = Header {
            operation: Operation::Backward,
            backwards: group.backwards(),
            subject: walk.hash,
            table: self.table.hash(),
            extra: counts.word(),
            aside: false,
        };
        let (control, watch) = group.control();
        let headers = control.post(watch, header)?;
        let settled = walk.ids.iter().all(|&id| {
            let leaf = self.table.get(id);
            leaf.place.is_some() && leaf.equal
        });
        let scale = 1.0 / group.topology().world_size as f64;
        self.pass = Some(Pass::new(Arc::clone(&walk), Some(headers), self.table.len(), scale));
        if settled {
            let plan = self.plan_for(&walk.ids, walk.hash);
            self.follow(group, plan)?;
        } else {
            self.wait_for_headers(group)?;
        }
        let lead_alone = self.pass.as_ref().is_some_and(|pass| !pass.unequal.is_empty());
        Ok(if lead_alone { counts.alone } else { counts.factor })
    }

    /// This rank's part in a backward of the others: nothing. See Note [Standing aside].
    pub(crate) fn accompany(&mut self, group: &mut Group, headers: &[Header]) -> Result<()> {
        group.count_backward();
        // A scale of zero takes out what this rank's gradients hold.
        self.pass = Some(Pass::new(Arc::new(Walk::nowhere()), None, self.table.len(), 0.0));
        self.agree(group, headers)?;
        self.launch_ready(group)?;
        let Some(pass) = self.pass.take() else { return Ok(()) };
        for work in &pass.launched {
            group.wait(work.as_ref(), REDUCING)?;
        }
        self.finish(group, &pass)
    }

    /// The gradient of a leaf is complete.
    pub(crate) fn ready(&mut self, group: &mut Group, id: u32) -> Result<()> {
        let Some(pass) = &mut self.pass else { return Ok(()) };
        let leaf = self.table.get(id);
        let slot = pass.progress.get_mut(id as usize);
        let (Some(slot @ Progress::Expected), Some(place)) = (slot, &leaf.place) else {
            return Err(Error::unsupported(
                format!("a backward inside a backward reached `{}` by surprise", leaf.name),
                "run the two backwards one after the other",
            ));
        };
        let state = grad_into_view(&leaf.tensor, &place.view, pass.scale).during(REDUCING)?;
        if state == GradState::Undefined {
            return Err(Error::unsupported(
                format!("autograd reached `{}` but left it without a gradient", leaf.name),
                "detach it where it takes no part in the loss",
            ));
        }
        *slot = Progress::Ready;
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
        if self.pass.is_none() {
            return Ok(());
        }
        if failed {
            self.pass = None;
            return Err(Error::torch("backward", "it failed; its error was returned by libtorch"));
        }
        self.wait_for_headers(group)?;
        self.launch_ready(group)?;
        let Some(pass) = self.pass.take() else { return Ok(()) };
        if pass.launched.len() < pass.plan.runs.len() {
            return Err(self.never_arrived(&pass));
        }
        for work in &pass.launched {
            group.wait(work.as_ref(), REDUCING)?;
        }
        self.rescale(&pass)?;
        for &id in &pass.plan.ids {
            let leaf = self.table.get(id);
            if let (Progress::Outside, Some(place)) = (pass.progress_of(id), &leaf.place) {
                set_grad(&leaf.tensor, Some(&place.view)).during(REDUCING)?;
            }
        }
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

    /// What is done once the gradients are averaged.
    fn finish(&mut self, group: &mut Group, pass: &Pass) -> Result<()> {
        let lead = group.lead();
        if !pass.unequal.is_empty() {
            let tensors: Vec<&Tensor> =
                pass.unequal.iter().map(|&id| &self.table.get(id).tensor).collect();
            spread(group, &tensors, lead, "making parameters equal")?;
        }
        if !pass.placed.is_empty() {
            self.adopt_order(group, pass)?;
        }
        if self.stores.has_buffers() {
            self.stores.spread_buffers(group, lead)?;
        }
        Ok(())
    }

    /// The numbers of the leaves of a backward, remembered from the last time where it was the same.
    fn walk(&mut self, leaves: &[(usize, &Tensor)]) -> Result<Arc<Walk>> {
        let same = |walk: &&Arc<Walk>| {
            walk.identities.len() == leaves.len()
                && walk.identities.iter().zip(leaves).all(|(known, (now, _))| known == now)
        };
        if let Some(walk) = self.walks.iter().find(same) {
            return Ok(Arc::clone(walk));
        }
        let mut ids = Vec::with_capacity(leaves.len());
        for (identity, tensor) in leaves {
            let id = match self.table.find(*identity) {
                Some(id) => id,
                None => self.table.add(*identity, tensor, None),
            };
            self.table.watch(id)?;
            ids.push(id);
        }
        ids.sort_unstable();
        let identities = leaves.iter().map(|(identity, _)| *identity).collect();
        let walk = Arc::new(Walk { identities, hash: hash_of(&ids), ids });
        if self.walks.len() == WALKS {
            self.walks.remove(0);
        }
        self.walks.push(Arc::clone(&walk));
        Ok(walk)
    }

    fn plan_for(&mut self, ids: &[u32], hash: u64) -> Arc<Plan> {
        if let Some(plan) = self.plans.get(&hash).filter(|plan| plan.ids == ids) {
            return Arc::clone(plan);
        }
        let runs = self.layout.runs(|id| ids.binary_search(&id).is_ok());
        let plan = Arc::new(Plan::new(ids.to_vec(), runs));
        self.plans.insert(hash, Arc::clone(&plan));
        plan
    }

    /// Takes up a plan, with the gradients that are there already.
    fn follow(&mut self, group: &Group, plan: Arc<Plan>) -> Result<()> {
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

    fn wait_for_headers(&mut self, group: &mut Group) -> Result<()> {
        let Some(headers) = self.pass.as_mut().and_then(|pass| pass.headers.take()) else {
            return Ok(());
        };
        let headers = group.settle(headers)?;
        self.agree(group, &headers)
    }

    /// Launches what is complete, if the ranks have agreed by now.
    fn advance(&mut self, group: &mut Group) -> Result<()> {
        let Some(pass) = &mut self.pass else { return Ok(()) };
        if let Some(headers) = &pass.headers {
            if !headers.poll(group.watch())? {
                return Ok(());
            }
            self.wait_for_headers(group)?;
        }
        self.launch_ready(group)
    }

    fn launch_ready(&mut self, group: &Group) -> Result<()> {
        let Some(pass) = &mut self.pass else { return Ok(()) };
        while let Some(run) = pass.plan.runs.get(pass.launched.len()) {
            if pass.missing[pass.launched.len()] > 0 {
                break;
            }
            let slice = self.layout.slice(run)?;
            let work = group
                .data()
                .all_reduce(&slice, ReduceOp::Sum)
                .map_err(|error| group.watch().explain(REDUCING, &error))?;
            pass.launched.push(trace::all_reduce(pass.launched.len(), work));
        }
        if trace::is_on() {
            // A timeline wants to know early when one has ended; errors come with the wait for it.
            pass.launched.iter().for_each(|work| drop(work.is_done()));
        }
        group.progress(REDUCING)
    }

    /// All headers are here: settles what this backward reduces.
    fn agree(&mut self, group: &mut Group, headers: &[Header]) -> Result<()> {
        if headers.iter().any(|header| header.table != headers[0].table) {
            return Err(agree::different_parameters(group, &self.table.describe())?);
        }
        agree::share_one_batch(headers)?;
        let Some(pass) = &mut self.pass else { return Ok(()) };
        let walk = Arc::clone(&pass.walk);
        pass.correction = correction(headers);
        let same =
            headers.iter().all(|header| header.subject == headers[0].subject && !header.aside);
        let ids =
            if same { walk.ids.clone() } else { agree::union(group, self.table.len(), &walk.ids)? };
        self.compare_values(group, &ids)?;
        self.place_new(group, &ids)?;
        let plan = self.plan_for(&ids, hash_of(&ids));
        self.follow(group, plan)?;
        self.contribute_for_absent(&ids)
    }

    /// Compares the values of leaves that are seen for the first time. Where they differ, only rank 0's gradients count
    /// in this backward, and its values are spread after it: until then the graph may still read the old ones.
    fn compare_values(&mut self, group: &mut Group, ids: &[u32]) -> Result<()> {
        let unequal = agree::compare_values(group, &mut self.table, ids)?;
        if let Some(pass) = self.pass.as_mut().filter(|_| !unequal.is_empty()) {
            if pass.progress.contains(&Progress::Ready) {
                // Another rank reached the leaf; this one was sure of its own and has averaged some of them already.
                let name = &self.table.get(unequal[0]).name;
                return Err(Error::unsupported(
                    format!("`{name}` differs between the ranks, and only some of them reached it"),
                    "make its variable store equal before the first step, with `sync` or `Scope::register`",
                ));
            }
            pass.scale = if group.is_lead() { 1.0 } else { 0.0 };
            pass.correction = 1.0;
            pass.unequal = unequal;
        }
        Ok(())
    }

    /// Gives new leaves their first places: in the reverse order of their numbers, since gradients come from the end.
    fn place_new(&mut self, group: &Group, ids: &[u32]) -> Result<()> {
        let new: Vec<u32> =
            ids.iter().rev().copied().filter(|&id| self.table.get(id).place.is_none()).collect();
        if new.is_empty() {
            return Ok(());
        }
        self.layout.place(&mut self.table, &new, &in_group(group))?;
        self.plans.clear();
        if let Some(pass) = &mut self.pass {
            pass.placed = new;
        }
        Ok(())
    }

    /// Puts into the buckets what this rank has to say for leaves that only others reached.
    fn contribute_for_absent(&mut self, ids: &[u32]) -> Result<()> {
        let Some(pass) = &self.pass else { return Ok(()) };
        for &id in ids {
            let leaf = self.table.get(id);
            if let (Progress::Outside, Some(place)) = (pass.progress_of(id), &leaf.place) {
                grad_into_view(&leaf.tensor, &place.view, pass.scale).during(REDUCING)?;
            }
        }
        Ok(())
    }

    /// Lays new leaves out in the order in which rank 0's gradients came, which the next backward will follow.
    fn adopt_order(&mut self, group: &mut Group, pass: &Pass) -> Result<()> {
        let order = agree::order_of_gradients(group, &pass.placed, &pass.order)?;
        self.plans.clear();
        self.layout.replace(&mut self.table, &order, &in_group(group))
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
}

/// What a mean over all ranks has to be multiplied with where some of them stand aside. The words say what the ranks' parts
/// count (Note [The weight of a part]), which on average is 1 where nobody does. A sum needs no correction.
fn correction(headers: &[Header]) -> f64 {
    let present = headers.iter().filter(|header| !header.aside);
    let weights: Option<Vec<f64>> =
        present.map(|header| Counts::mean_weight(header.extra, headers.len())).collect();
    let Some(weights) = weights else { return 1.0 };
    let total: f64 = weights.iter().sum();
    // Without any weight there is no gradient either.
    if weights.len() == headers.len() || total == 0.0 { 1.0 } else { headers.len() as f64 / total }
}

/// Memory for buckets, where the group's transport wants it.
fn in_group(group: &Group) -> impl Fn(&Shape) -> Result<Tensor> {
    |shape| group.allocate(shape.elements, shape.kind, shape.device)
}
