//! What the shapes of steps are compared with: the same program, compiled without the attribute, on the joined batches.
use anyhow::{Result, ensure};
use tch::nn::{self, OptimizerConfig};
use tch::vision::dataset::Dataset;
use tch::{Kind, TchError, Tensor};

use super::one_process::{Batch, Model, Net, alike, data, equal};

/// Rows of a rank's batch.
pub(super) const BATCH: i64 = 4;
/// Batches of a rank in one pass over the data.
pub(super) const STEPS: i64 = 7;
/// What the plain program, and rank 0, are seeded with.
const SEED: i64 = 7;

/// A program over batches of the size given; returns the variables that it trained.
pub(super) type Program = fn(&Batch, i64) -> Result<Vec<Tensor>>;
/// A program that shuffles: it also notes which batches it saw.
pub(super) type Shuffling = fn(&Batch, &mut Seen) -> Result<Vec<Tensor>>;

/// Compiles a file's `programs!` as they are, and again with the attribute where they say `$attribute`.
macro_rules! compile_twice {
    () => {
        mod plain {
            // What only several ranks can do has no plain course.
            #![allow(dead_code)]
            #[allow(unused_imports)]
            use super::*;
            programs!();
        }
        mod shared {
            #[allow(unused_imports)]
            use super::*;
            programs!(ddp_runtime::distributed);
        }
    };
}
pub(super) use compile_twice;

/// Samples for [`STEPS`] batches on every rank.
pub(super) fn all_rows() -> Batch {
    data(STEPS * BATCH * ddp_runtime::world_size() as i64)
}

/// Every rank draws other numbers: what starts equal was made equal.
pub(super) fn seed_apart() {
    tch::manual_seed(SEED + ddp_runtime::rank() as i64);
}

/// The rows as tch's data set; what it calls labels are numbers here.
pub(super) fn dataset((x, y): &Batch) -> Dataset {
    Dataset {
        train_images: x.shallow_clone(),
        train_labels: y.shallow_clone(),
        test_images: x.narrow(0, 0, BATCH),
        test_labels: y.narrow(0, 0, BATCH),
        labels: 1,
    }
}

/// All variables of a store, running statistics included, by name.
pub(super) fn sorted_variables(vs: &nn::VarStore) -> Vec<Tensor> {
    let mut variables: Vec<(String, Tensor)> = vs.variables().into_iter().collect();
    variables.sort_unstable_by(|(name, _), (other, _)| name.cmp(other));
    variables.into_iter().map(|(_, variable)| variable).collect()
}

/// All processes draw the numbers of the plain program.
pub(super) fn seed() {
    tch::manual_seed(SEED);
}

/// Requires that the ranks end where one process with the joined batches ends, whatever they started from.
///
/// # Errors
/// Names the first variable that is too far off; also when nothing was trained.
pub(super) fn follow(what: &str, plain: Program, shared: Program) -> Result<()> {
    follow_on(what, &all_rows(), plain, shared)
}

/// As [`follow`], on these rows.
///
/// # Errors
/// As [`follow`].
pub(super) fn follow_on(what: &str, rows: &Batch, plain: Program, shared: Program) -> Result<()> {
    seed();
    let expected = plain(rows, BATCH * ddp_runtime::world_size() as i64)?;
    ensure!(!expected.is_empty(), "{what}: nothing to compare");
    seed_apart();
    equal(what, &shared(rows, BATCH)?, &expected)
}

/// Requires that the ranks end where one process ends that takes the mean over the batches they saw in every step. On one
/// rank the course is the plain program's.
///
/// # Errors
/// Says what was shared wrongly, or names the first variable that is too far off.
pub(super) fn follow_seen(what: &str, plain: Shuffling, shared: Shuffling) -> Result<Seen> {
    follow_seen_with(what, plain, shared, |net, _, (x, y)| net.loss(x, y))
}

/// As [`follow_seen`], with another loss, which is given the rank whose batch it is.
///
/// # Errors
/// As [`follow_seen`].
pub(super) fn follow_seen_with(
    what: &str,
    plain: impl Fn(&Batch, &mut Seen) -> Result<Vec<Tensor>>,
    shared: impl Fn(&Batch, &mut Seen) -> Result<Vec<Tensor>>,
    loss: impl Fn(&Net, usize, &Batch) -> Tensor,
) -> Result<Seen> {
    let rows = all_rows();
    let mut seen = Seen::default();
    seed_apart();
    let found = shared(&rows, &mut seen)?;
    if ddp_runtime::world_size() == 1 {
        seed();
        equal(what, &found, &plain(&rows, &mut Seen::default())?)?;
    }
    equal(what, &found, &mean_course(&seen.rounds()?, loss)?)?;
    Ok(seen)
}

/// The optimizer of a [`Shuffling`] program. Not Adam: it takes no notice of a gradient's scale.
pub(super) fn sgd(vs: &nn::VarStore) -> Result<nn::Optimizer, TchError> {
    nn::Sgd { momentum: 0.9, ..Default::default() }.build(vs, 0.05)
}

/// The variables of one process that trains [`Model::seeded`] with [`sgd`] on the mean over the ranks' losses in each round.
///
/// # Errors
/// When the optimizer cannot be built, or nothing was trained.
pub(super) fn mean_course(
    rounds: &[Vec<Batch>],
    loss: impl Fn(&Net, usize, &Batch) -> Tensor,
) -> Result<Vec<Tensor>> {
    ensure!(!rounds.is_empty(), "no rounds to compare with");
    let Model { vs, net } = Model::seeded();
    let mut opt = sgd(&vs)?;
    for round in rounds {
        let losses: Vec<Tensor> =
            round.iter().enumerate().map(|(rank, batch)| loss(&net, rank, batch)).collect();
        opt.backward_step(&Tensor::stack(&losses, 0).mean(Kind::Double));
    }
    Ok(vs.trainable_variables())
}

/// Requires that all ranks have these tensors, bit for bit.
///
/// # Errors
/// Names the tensor and the rank that has another.
pub(super) fn equal_everywhere(tensors: &[Tensor]) -> Result<()> {
    let scope = ddp_runtime::init()?;
    for (index, tensor) in tensors.iter().enumerate() {
        for (rank, other) in scope.all_gather(tensor)?.iter().enumerate() {
            ensure!(other.equal(tensor), "tensor {index} is another one on rank {rank}");
        }
    }
    Ok(scope.finish()?)
}

/// The batches that a rank saw, in order.
#[derive(Default)]
pub(super) struct Seen(Vec<Batch>);

impl Seen {
    pub(super) fn note(&mut self, x: &Tensor, y: &Tensor) {
        self.0.push((x.copy(), y.copy()));
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// What all ranks saw, step by step.
    ///
    /// # Errors
    /// When the ranks took different numbers of steps.
    pub(super) fn rounds(&self) -> Result<Vec<Vec<Batch>>> {
        alike("steps", &[self.0.len() as f64])?;
        let scope = ddp_runtime::init()?;
        let mut rounds = Vec::new();
        for (x, y) in &self.0 {
            let (xs, ys) = (scope.all_gather(x)?, scope.all_gather(y)?);
            rounds.push(xs.into_iter().zip(ys).collect());
        }
        scope.finish()?;
        Ok(rounds)
    }

    /// Requires that each pass over `rows` took `steps` batches, had each row once, and that no two passes of all ranks had
    /// one order.
    ///
    /// # Errors
    /// Names the pass.
    pub(super) fn are_passes_over(&self, rows: &Batch, steps: i64) -> Result<()> {
        let rounds = self.rounds()?;
        ensure!(!rounds.is_empty() && rounds.len() % steps as usize == 0, "{} steps", rounds.len());
        let first_features = |x: &Tensor| Vec::<f64>::try_from(x.select(1, 0).contiguous());
        let mut all = first_features(&rows.0)?;
        all.sort_unstable_by(f64::total_cmp);
        let mut orders: Vec<Vec<f64>> = Vec::new();
        for (number, pass) in rounds.chunks(steps as usize).enumerate() {
            let mut order = Vec::new();
            for (x, _) in pass.iter().flatten() {
                order.extend(first_features(x)?);
            }
            let mut sorted = order.clone();
            sorted.sort_unstable_by(f64::total_cmp);
            ensure!(sorted == all, "pass {number} had {sorted:?}");
            ensure!(!orders.contains(&order), "pass {number} had the order of another one");
            orders.push(order);
        }
        Ok(())
    }
}
