//! What a pass averages, settled once the headers of all ranks are there; and what is left to settle at its end.
use std::collections::HashSet;
use std::sync::Arc;

use crate::bridge::{GradState, grad_into_view, set_grad};
use crate::control::Header;
use crate::data::weight::Counts;
use crate::error::{During, Error, Result};
use crate::group::Group;
use crate::hash::hash_of;
use crate::sync::agree;
use crate::sync::leaf::Place;
use crate::sync::pass::{Pass, Progress};
use crate::sync::reducer::{REDUCING, Reducer, in_group};
use crate::uneven;

/// The cure where weights differ and the backward cannot make up for it.
const MAKE_EQUAL: &str =
    "make its variable store equal before the first step, with `sync` or `Scope::register`";

impl Reducer {
    /// All headers are here: settles what this backward reduces.
    pub(super) fn agree(&mut self, group: &mut Group, headers: &[Header]) -> Result<()> {
        if headers.iter().any(|header| header.table != headers[0].table) {
            return Err(agree::different_parameters(group, &self.table.describe())?);
        }
        agree::share_one_batch(headers)?;
        check_batch_norms(headers)?;
        let Some(pass) = &mut self.pass else { return Ok(()) };
        let walk = Arc::clone(&pass.walk);
        pass.correction = correction(headers);
        pass.may_leave_undefined = headers.iter().any(|header| header.may_leave_undefined);
        let same =
            headers.iter().all(|header| header.subject == headers[0].subject && !header.aside);
        let ids =
            if same { walk.ids.clone() } else { agree::union(group, self.table.len(), &walk.ids)? };
        if let Some(&id) = ids.iter().find(|&&id| self.table.get(id).gone) {
            return Err(self.dropped_here(group.topology().rank, id));
        }
        self.compare_values(group, &ids, headers[uneven::lead(headers)].batch_norms)?;
        self.place_new(group, &ids)?;
        let plan = self.plan_for(&ids, hash_of(&ids));
        self.follow(group, plan)?;
        self.contribute_for_absent(group, &ids)
    }

    /// Compares the values of leaves that are seen for the first time. Where they differ, only rank 0's gradients count
    /// in this backward, and its values are spread after it: until then the graph may still read the old ones. Statistics over
    /// all ranks (`batch_norms`) would make its gradients depend on the others' weights: refused.
    fn compare_values(&mut self, group: &mut Group, ids: &[u32], batch_norms: i64) -> Result<()> {
        let unequal = agree::compare_values(group, &mut self.table, ids)?;
        if let Some(&id) = unequal.iter().find(|&&id| !self.table.get(id).in_store)
            && self.table.knows_a_store()
        {
            return Err(self.not_a_parameter(id));
        }
        if let Some(pass) = self.pass.as_mut().filter(|_| !unequal.is_empty()) {
            if batch_norms > 0 {
                let name = &self.table.get(unequal[0]).name;
                return Err(Error::unsupported(
                    format!(
                        "`{name}` differs between the ranks in a backward through synchronised BatchNorm layers"
                    ),
                    MAKE_EQUAL,
                ));
            }
            if pass.progress.contains(&Progress::Ready) {
                // Another rank reached the leaf; this one was sure of its own and has averaged some of them already.
                let name = &self.table.get(unequal[0]).name;
                return Err(Error::unsupported(
                    format!("`{name}` differs between the ranks, and only some of them reached it"),
                    MAKE_EQUAL,
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
    fn contribute_for_absent(&mut self, group: &Group, ids: &[u32]) -> Result<()> {
        let Some(pass) = &self.pass else { return Ok(()) };
        let scale = pass.scale;
        let absent = |id: &u32| pass.progress_of(*id) == Progress::Outside;
        let absent: Vec<u32> = ids.iter().copied().filter(absent).collect();
        for id in absent {
            if self.collect(group, id, scale)? == GradState::Undefined
                && let Some(pass) = &mut self.pass
            {
                pass.undefined.push(id);
            }
        }
        Ok(())
    }

    /// Brings what a leaf has for a gradient into its bucket, times `scale`; zero if it has none. See Note [Gradients that stay
    /// where they are made].
    pub(super) fn collect(&mut self, group: &Group, id: u32, scale: f64) -> Result<GradState> {
        let alone = self.layout.prepare(&mut self.table, id, &in_group(group))?;
        let leaf = self.table.get(id);
        let Some(Place { bucket, view: Some(view) }) = &leaf.place else {
            return Ok(GradState::Undefined);
        };
        let defer = alone && self.hook.is_none();
        let state = grad_into_view(&leaf.tensor, view, scale, defer).during(REDUCING)?;
        if alone {
            self.layout.set_scale(*bucket, if state == GradState::Unscaled { scale } else { 1.0 });
        }
        Ok(state)
    }

    /// Gives each leaf that this rank had nothing for the mean of the others. Where no rank had anything it stays without a
    /// gradient, so that momentum and weight decay leave it alone, as on one device.
    pub(super) fn give_gradients(&mut self, group: &mut Group, pass: &Pass) -> Result<()> {
        let without: HashSet<u32> = pass.undefined.iter().copied().collect();
        let ids = &pass.plan.ids;
        // Where each leaf of the plan was reached by a rank that cannot leave it without one, nobody need be asked.
        let exist = if pass.may_leave_undefined {
            let own: Vec<u32> = ids.iter().copied().filter(|id| !without.contains(id)).collect();
            agree::with_gradient(group, ids, &own)?
        } else {
            ids.clone()
        };
        for &id in exist.iter().filter(|id| without.contains(*id)) {
            let leaf = self.table.get(id);
            if let Some(Place { view: Some(view), .. }) = &leaf.place {
                set_grad(&leaf.tensor, Some(view)).during(REDUCING)?;
            }
        }
        Ok(())
    }

    fn dropped_here(&self, rank: usize, id: u32) -> Error {
        Error::mismatch(
            format!(
                "rank {rank} has dropped `{}`, which another rank still trains",
                self.table.get(id).name
            ),
            "keep a model as long on all ranks",
        )
    }

    /// Beside stores that the scope knows, a leaf outside them that differs may be a parameter or data.
    fn not_a_parameter(&self, id: u32) -> Error {
        Error::mismatch(
            format!(
                "`{}`, which a backward reached, differs between the ranks, and no store that was registered holds it",
                self.table.get(id).name
            ),
            "if it is a parameter, register its store (`sync(&vs)`), or copy rank 0's values over it \
             (`Scope::broadcast`); if it is data, such as an input or an activation that was detached, say so with \
             `ignore(&tensor)`, or take its gradient by `Tensor::run_backward`",
        )
    }

    /// Lays new leaves out in the order in which rank 0's gradients came, which the next backward will follow.
    pub(super) fn adopt_order(&mut self, group: &mut Group, pass: &Pass) -> Result<()> {
        let order = agree::order_of_gradients(group, &pass.placed, &pass.order)?;
        self.plans.clear();
        self.layout.replace(&mut self.table, &order, &in_group(group))?;
        group.data().trim();
        Ok(())
    }
}

/// Refuses backwards that pass different numbers of synchronised layers, before any gradient is reduced: a rank that waits for
/// a bucket would not hear of another that waits for its statistics.
fn check_batch_norms(headers: &[Header]) -> Result<()> {
    let lead = uneven::lead(headers);
    let expected = headers[lead].batch_norms;
    let other = |header: &Header| !header.aside && header.batch_norms != expected;
    let Some(rank) = headers.iter().position(other) else { return Ok(()) };
    Err(Error::mismatch(
        format!(
            "the backward of rank {lead} passes {expected} synchronised BatchNorm layers, that of rank {rank} {}",
            headers[rank].batch_norms
        ),
        "let the losses of all ranks depend on the same layers, or keep their store local with `local_batch_norm`",
    ))
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
