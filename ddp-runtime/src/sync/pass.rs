//! What is remembered of a backward: the leaves it reaches, what all ranks reduce for them, and how far it is.
use std::collections::HashMap;
use std::sync::Arc;

use crate::comm::Work;
use crate::control::PendingHeaders;
use crate::hash::hash_of;
use crate::hook::GradBucket;
use crate::sync::bucket::Run;

/// The leaves of one kind of backward on this rank.
pub(super) struct Walk {
    /// What the engine saw.
    pub(super) identities: Vec<usize>,
    /// Their numbers, ascending.
    pub(super) ids: Vec<u32>,
    /// A hash of `ids`.
    pub(super) hash: u64,
}

/// What all ranks reduce for one set of leaves.
pub(super) struct Plan {
    pub(super) ids: Vec<u32>,
    pub(super) runs: Vec<Run>,
    /// The run of each leaf.
    pub(super) run_of: HashMap<u32, usize>,
}

/// Where a leaf stands in the backward under way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Progress {
    /// This backward does not reach it on this rank.
    #[default]
    Outside,
    /// Its gradient is still to come.
    Expected,
    /// Its gradient lies in the bucket.
    Ready,
}

/// How a run is averaged.
pub(super) enum Launched {
    /// By an all-reduce.
    Work(Box<dyn Work>),
    /// By the hook, as this bucket.
    Hook(GradBucket),
}

/// The backward under way.
pub(super) struct Pass {
    pub(super) walk: Arc<Walk>,
    pub(super) headers: Option<PendingHeaders>,
    pub(super) plan: Arc<Plan>,
    /// By leaf.
    pub(super) progress: Vec<Progress>,
    /// By run: gradients still to come.
    pub(super) missing: Vec<usize>,
    pub(super) launched: Vec<Launched>,
    /// Collectives of layers still to come among the runs. See Note [Buckets and layers].
    pub(super) layers_to_come: usize,
    /// What each gradient is multiplied with on its way into the bucket.
    pub(super) scale: f64,
    /// What the sums are multiplied with in the end, where some ranks stand aside.
    pub(super) correction: f64,
    /// On some rank a leaf may be left without a gradient.
    pub(super) may_leave_undefined: bool,
    /// Leaves that this rank has nothing for.
    pub(super) undefined: Vec<u32>,
    /// Leaves whose values differed between the ranks: rank 0's are spread when the backward is over.
    pub(super) unequal: Vec<u32>,
    /// Leaves that got their places in this pass, and the order in which gradients came.
    pub(super) placed: Vec<u32>,
    pub(super) order: Vec<u32>,
}

impl Plan {
    pub(super) fn empty() -> Self {
        Self::new(Vec::new(), Vec::new())
    }

    pub(super) fn new(ids: Vec<u32>, runs: Vec<Run>) -> Self {
        let run_of = runs
            .iter()
            .enumerate()
            .flat_map(|(index, run)| run.leaves.iter().map(move |&leaf| (leaf, index)))
            .collect();
        Self { ids, runs, run_of }
    }
}

impl Walk {
    /// What averages the gradients of these leaves, ascending, whichever backward they came from.
    pub(super) fn over(ids: Vec<u32>) -> Self {
        Self { identities: Vec::new(), hash: hash_of(&ids), ids }
    }
}

impl Pass {
    /// A pass along `walk`, of which the `expected` gradients are yet to come; `leaves` are known.
    pub(super) fn new(
        walk: Arc<Walk>,
        expected: &[u32],
        headers: Option<PendingHeaders>,
        leaves: usize,
        scale: f64,
    ) -> Self {
        let mut progress = vec![Progress::Outside; leaves];
        for &id in expected {
            progress[id as usize] = Progress::Expected;
        }
        Self {
            walk,
            headers,
            plan: Arc::new(Plan::empty()),
            progress,
            missing: Vec::new(),
            launched: Vec::new(),
            layers_to_come: 0,
            scale,
            correction: 1.0,
            may_leave_undefined: false,
            undefined: Vec::new(),
            unequal: Vec::new(),
            placed: Vec::new(),
            order: Vec::new(),
        }
    }

    /// How many runs could have been launched by now: those before the first that misses a gradient.
    pub(super) fn complete_runs(&self) -> usize {
        self.missing.iter().take_while(|missing| **missing == 0).count()
    }

    pub(super) fn progress_of(&self, id: u32) -> Progress {
        // A leaf that was numbered after this pass began is outside it.
        self.progress.get(id as usize).copied().unwrap_or_default()
    }
}
