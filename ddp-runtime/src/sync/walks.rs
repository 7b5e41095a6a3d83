//! Which leaves a backward reaches, and what is reduced for them: found once, remembered, and forgotten with the leaves.
use std::sync::Arc;

use tch::Tensor;

use crate::error::Result;
use crate::hash::hash_of;
use crate::sync::pass::{Plan, Walk};
use crate::sync::reducer::Reducer;

/// How many different sequences of leaves are remembered: a model has few kinds of backward.
const WALKS: usize = 16;

impl Reducer {
    /// Looks for new variables, and frees those of stores that are no more.
    pub(super) fn absorb(&mut self) -> Result<()> {
        if !self.keeps_all && self.stores.forget_dropped() {
            self.sweep()?;
        }
        self.stores.absorb(&mut self.table)
    }

    /// The numbers of the leaves of a backward, remembered from the last time where it was the same.
    pub(super) fn walk(&mut self, leaves: &[(usize, &Tensor)]) -> Result<Arc<Walk>> {
        let same = |walk: &&Arc<Walk>| {
            walk.identities.len() == leaves.len()
                && walk.identities.iter().zip(leaves).all(|(known, (now, _))| known == now)
        };
        if let Some(walk) = self.walks.iter().find(same) {
            return Ok(Arc::clone(walk));
        }
        let is_new =
            |identity| self.table.find(identity).is_none() && !self.table.is_ignored(identity);
        if leaves.iter().any(|(identity, _)| is_new(*identity)) {
            // A program that makes leaves outside stores may make them again and again.
            self.sweep()?;
        }
        let mut ids = Vec::with_capacity(leaves.len());
        for (identity, tensor) in leaves {
            if self.table.is_ignored(*identity) {
                continue;
            }
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
        if walk.ids.len() < leaves.len() {
            // What is left out may be gone tomorrow, and another leaf have its address.
            return Ok(walk);
        }
        if self.walks.len() == WALKS {
            self.walks.remove(0);
        }
        self.walks.push(Arc::clone(&walk));
        Ok(walk)
    }

    pub(super) fn plan_for(&mut self, ids: &[u32], hash: u64) -> Arc<Plan> {
        if let Some(plan) = self.plans.get(&hash).filter(|plan| plan.ids == ids) {
            return Arc::clone(plan);
        }
        let runs = self.layout.runs(|id| ids.binary_search(&id).is_ok());
        let plan = Arc::new(Plan::new(ids.to_vec(), runs));
        self.plans.insert(hash, Arc::clone(&plan));
        plan
    }

    /// The leaves that this backward averages: those it reaches, and those with gradients from backwards that averaged none.
    pub(super) fn with_pending(&self, reached: &Arc<Walk>) -> Arc<Walk> {
        let pending = self.accumulation.pending(&self.table);
        if pending.iter().all(|id| reached.ids.binary_search(id).is_ok()) {
            return Arc::clone(reached);
        }
        let mut ids = [reached.ids.as_slice(), &pending].concat();
        ids.sort_unstable();
        ids.dedup();
        Arc::new(Walk::over(ids))
    }

    /// Frees what the program has let go of: its leaves, and the buckets that held nothing else.
    pub(super) fn sweep(&mut self) -> Result<()> {
        if self.keeps_all {
            return Ok(());
        }
        let swept = self.table.sweep()?;
        if !swept.is_empty() {
            self.layout.sweep(&self.table);
            self.walks.retain(|walk| !walk.ids.iter().any(|id| self.table.get(*id).gone));
            self.plans.clear();
        }
        Ok(())
    }
}
