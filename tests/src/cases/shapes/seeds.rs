//! Seeds: libtorch's generator, and those of the rand crate.
use anyhow::{Result, ensure};
use ddp_runtime::distributed;
use rand::SeedableRng;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};
use tch::data::Iter2;
use tch::{Device, Kind, Tensor, nn};

use super::one_process::{Batch, Model, Net, alike, both, data, follows, of_all_ranks, rounds};

const ROWS: i64 = 24;
const BATCH: i64 = 4;

/// What came of the seed.
struct Drawn {
    weights: Vec<Tensor>,
    rows: Vec<Tensor>,
    noise: Vec<f64>,
}

fn weights(vs: &nn::VarStore) -> Vec<Tensor> {
    vs.trainable_variables().iter().map(|weight| weight.detach().copy()).collect()
}

// The seed before or after the store, and once more in the middle of the second epoch.
both!(seeding: fn train((xs, ys): &Batch, early: bool) -> Result<Drawn> {
    if early {
        tch::manual_seed(42);
    }
    let mut vs = nn::VarStore::new(Device::Cpu);
    if !early {
        tch::manual_seed(42);
    }
    let net = Net::new(&vs.root());
    vs.double();
    let mut opt = Model::adam(&vs)?;
    let mut drawn = Drawn { weights: weights(&vs), rows: Vec::new(), noise: Vec::new() };
    for epoch in 0..3 {
        for (i, (x, y)) in Iter2::new(xs, ys, BATCH).shuffle().enumerate() {
            if (epoch, i) == (1, 1) {
                tch::manual_seed(43);
            }
            opt.backward_step(&net.loss(&x.dropout(0.3, true), &(&y / 24.0)));
            drawn.noise.push(Tensor::rand([1], (Kind::Double, Device::Cpu)).double_value(&[0]));
            drawn.rows.push(y.flatten(0, -1));
        }
    }
    Ok(drawn)
});

pub(super) fn s40_manual_seed(_: &[&str]) -> Result<()> {
    let row_numbers = Tensor::arange(ROWS, (Kind::Double, Device::Cpu)).view([-1, 1]);
    let data = (data(ROWS).0, row_numbers);
    for early in [true, false] {
        let plain = seeding::plain::train(&data, early)?;
        // Whatever was drawn before on some rank, the seed decides.
        let _ = Tensor::rand([1 + ddp_runtime::rank() as i64], (Kind::Double, Device::Cpu));
        let drawn = seeding::shared::train(&data, early)?;
        ensure!(drawn.weights == plain.weights, "the seed gives other weights");
        if ddp_runtime::world_size() == 1 {
            ensure!(drawn.rows == plain.rows && drawn.noise == plain.noise, "one rank differs");
            continue;
        }
        let noise = of_all_ranks(&Tensor::from_slice(&drawn.noise))?;
        for (rank, other) in noise.iter().enumerate() {
            let other = Vec::<f64>::try_from(other)?;
            // No number of one rank is drawn by another one in the same step, before the second seed or after it.
            let equal = other.iter().zip(&drawn.noise).filter(|(a, b)| a == b).count();
            let expected = if rank == ddp_runtime::rank() { drawn.noise.len() } else { 0 };
            ensure!(equal == expected, "{equal} numbers are those of rank {rank}");
        }
        let rows = of_all_ranks(&Tensor::stack(&drawn.rows, 0).view([3, -1]))?;
        let (sorted, _) = Tensor::cat(&rows, 1).sort(1, false);
        ensure!(sorted.get(2).view([-1, 1]) == data.1, "an epoch had other rows");
    }
    Ok(())
}

/// The train and test rows of a seeded split, after training on the former.
#[distributed]
fn split_and_shard(vs: &nn::VarStore, net: &Net, (xs, ys): &Batch) -> Result<(Vec<i64>, Vec<i64>)> {
    let mut rng = StdRng::seed_from_u64(7);
    let mut rows: Vec<i64> = (0..xs.size()[0]).collect();
    rows.shuffle(&mut rng);
    let (train, test) = rows.split_at(rows.len() * 4 / 5);
    let mut opt = Model::adam(vs)?;
    let mut order = train.to_vec();
    order.shuffle(&mut rng);
    #[ddp(shard)]
    for part in order.chunks(BATCH as usize) {
        let index = Tensor::from_slice(part);
        opt.backward_step(&net.loss(&xs.index_select(0, &index), &ys.index_select(0, &index)));
    }
    Ok((order, test.to_vec()))
}

/// The rows that this rank has drawn from a generator with its rank in the seed.
#[distributed]
fn draw_own(vs: &nn::VarStore, net: &Net, (xs, ys): &Batch) -> Result<Vec<i64>> {
    let mut rng = StdRng::seed_from_u64(7 + ddp_runtime::rank() as u64);
    let rows: Vec<i64> = (0..xs.size()[0]).collect();
    let mut opt = Model::adam(vs)?;
    let mut drawn = Vec::new();
    #[ddp(each)]
    for _step in 0..5 {
        let batch: Vec<i64> = rows.sample(&mut rng, 8).copied().collect();
        let index = Tensor::from_slice(&batch);
        opt.backward_step(&net.loss(&xs.index_select(0, &index), &ys.index_select(0, &index)));
        drawn.extend(batch);
    }
    Ok(drawn)
}

fn picked((xs, ys): &Batch, rows: &[i64]) -> Batch {
    let index = Tensor::from_slice(rows);
    (xs.index_select(0, &index), ys.index_select(0, &index))
}

pub(super) fn s41_rand_generators(_: &[&str]) -> Result<()> {
    let data = data(60);
    let model = Model::seeded();
    let (order, test) = split_and_shard(&model.vs, &model.net, &data)?;
    let both: Vec<f64> = order.iter().chain(&test).map(|row| *row as f64).collect();
    alike("split", &both)?;
    let batches: Vec<Batch> =
        order.chunks(BATCH as usize).map(|part| picked(&data, part)).collect();
    follows("seeded order", &model.vs, &rounds(&batches))?;

    let model = Model::seeded();
    let drawn = draw_own(&model.vs, &model.net, &data)?;
    let all: Vec<Vec<i64>> = of_all_ranks(&Tensor::from_slice(&drawn))?
        .iter()
        .map(|rows| Ok(Vec::<i64>::try_from(rows)?))
        .collect::<Result<_>>()?;
    for (rank, other) in all.iter().enumerate() {
        let own = rank == ddp_runtime::rank();
        ensure!((*other == drawn) == own, "rank {rank} has drawn {other:?}, this one {drawn:?}");
    }
    let step = |step: usize| {
        all.iter().map(|rows| picked(&data, &rows[8 * step..8 * (step + 1)])).collect()
    };
    follows("own draws", &model.vs, &(0..5).map(step).collect::<Vec<Vec<Batch>>>())
}
