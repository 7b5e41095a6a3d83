//! What the shapes of loops train, and what one process makes of the same batches.
use anyhow::{Result, ensure};
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Device, Kind, Reduction, Tensor};

use crate::cases::compare::close;

/// Features of a sample.
pub(super) const FEATURES: i64 = 6;
/// What rounding may do in f64, after some twenty steps of Adam. One rank is allowed nothing.
const LIMIT: f64 = 1e-10;

pub(super) type Batch = (Tensor, Tensor);

/// Compiles a function as it is, and again with the attribute: `name::plain::train` and `name::shared::train`.
macro_rules! both {
    ($name:ident: $(#[$attribute:meta])* fn $($train:tt)*) => {
        mod $name {
            pub(super) mod plain {
                #[allow(unused_imports)]
                use super::super::*;
                $(#[$attribute])*
                pub(in super::super) fn $($train)*
            }
            pub(super) mod shared {
                #[allow(unused_imports)]
                use super::super::*;
                #[ddp_runtime::distributed]
                $(#[$attribute])*
                pub(in super::super) fn $($train)*
            }
        }
    };
}
pub(super) use both;

/// Smooth, so that rounding flips no activation.
pub(super) struct Net {
    hidden: nn::Linear,
    out: nn::Linear,
}

impl Net {
    pub(super) fn new(root: &nn::Path) -> Self {
        Self {
            hidden: nn::linear(root / "hidden", FEATURES, 8, Default::default()),
            out: nn::linear(root / "out", 8, 1, Default::default()),
        }
    }

    pub(super) fn forward(&self, x: &Tensor) -> Tensor {
        self.out.forward(&self.hidden.forward(x).tanh())
    }

    pub(super) fn loss(&self, x: &Tensor, y: &Tensor) -> Tensor {
        self.forward(x).mse_loss(y, Reduction::Mean)
    }
}

/// A model in f64 and its store, made outside of the marked function.
pub(super) struct Model {
    pub(super) vs: nn::VarStore,
    pub(super) net: Net,
}

impl Model {
    /// The same weights in every process and at every call.
    pub(super) fn seeded() -> Self {
        tch::manual_seed(7);
        let mut vs = nn::VarStore::new(Device::Cpu);
        let net = Net::new(&vs.root());
        vs.double();
        Self { vs, net }
    }

    /// The optimizer of all programs here that have no reason to take another.
    pub(super) fn adam(vs: &nn::VarStore) -> Result<nn::Optimizer, tch::TchError> {
        nn::Adam::default().build(vs, 1e-2)
    }
}

/// `rows` samples in f64, with something to learn in them.
pub(super) fn data(rows: i64) -> Batch {
    tch::manual_seed(3);
    let x = Tensor::randn([rows, FEATURES], (Kind::Double, Device::Cpu));
    let y = x.narrow(1, 0, 2).sum_dim_intlist(1, true, Kind::Double).sin();
    (x, y)
}

/// Consecutive batches of `size` rows; the last one may be smaller.
pub(super) fn items((x, y): &Batch, size: i64) -> Vec<Batch> {
    let rows = x.size()[0];
    let mut items = Vec::new();
    let mut start = 0;
    while start < rows {
        let length = size.min(rows - start);
        items.push((x.narrow(0, start, length), y.narrow(0, start, length)));
        start += length;
    }
    items
}

/// Items dealt out one to each rank; what is left over is dropped.
pub(super) fn rounds(items: &[Batch]) -> Vec<Vec<Batch>> {
    let share = |(x, y): &Batch| (x.shallow_clone(), y.shallow_clone());
    let round = |round: &[Batch]| round.iter().map(share).collect();
    items.chunks_exact(ddp_runtime::world_size()).map(round).collect()
}

/// Requires that the store has the weights of one process whose steps take the mean over the batches of a round.
///
/// # Errors
/// Names the first tensor that is too far off; also when nothing was trained.
pub(super) fn follows(what: &str, vs: &nn::VarStore, rounds: &[Vec<Batch>]) -> Result<()> {
    ensure!(!rounds.is_empty(), "{what}: no rounds to compare with");
    let model = Model::seeded();
    let mut opt = Model::adam(&model.vs)?;
    for round in rounds {
        let losses: Vec<Tensor> = round.iter().map(|(x, y)| model.net.loss(x, y)).collect();
        opt.backward_step(&Tensor::stack(&losses, 0).mean(Kind::Double));
    }
    equal(what, &vs.trainable_variables(), &model.vs.trainable_variables())
}

/// Requires the same tensors: on one rank number for number, on several to rounding.
///
/// # Errors
/// Names the first tensor that is too far off.
pub(super) fn equal(what: &str, found: &[Tensor], expected: &[Tensor]) -> Result<()> {
    let limit = if ddp_runtime::world_size() == 1 { 0.0 } else { LIMIT };
    close(what, found, expected, limit)
}

/// The tensor of every rank, in the order of the ranks.
///
/// # Errors
/// As [`ddp_runtime::Scope::all_gather`].
pub(super) fn of_all_ranks(tensor: &Tensor) -> Result<Vec<Tensor>> {
    let scope = ddp_runtime::init()?;
    let all = scope.all_gather(tensor)?;
    scope.finish()?;
    Ok(all)
}

/// Requires that every rank has these numbers, bit for bit.
///
/// # Errors
/// Names the rank that has others.
pub(super) fn alike(what: &str, numbers: &[f64]) -> Result<()> {
    for (rank, other) in of_all_ranks(&Tensor::from_slice(numbers))?.iter().enumerate() {
        let other = Vec::<f64>::try_from(other)?;
        ensure!(other == numbers, "{what}: here {numbers:?}, on rank {rank} {other:?}");
    }
    Ok(())
}
