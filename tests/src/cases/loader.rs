//! The data loader on several ranks: who gets which samples, and that training with it follows one process.
use std::path::Path;

use anyhow::{Context, Result, bail, ensure};
use ddp_runtime::data::{
    BoxError, DataLoader, Dataset, Dispatch, Indices, IterableDataset, LoaderState, Order,
    RandomSampler, Remainder, Sampler, SamplerError, Samples, Share, TensorDataset,
    WeightedSampler, dispatch, shard,
};
use ddp_runtime::{Scope, main_only, sum};
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Device, Kind, Tensor, kind};

use super::compare::close;

/// What a pass over any loader gives this rank, as numbers.
fn drawn(loader: &DataLoader<Tensor>) -> Result<Vec<Vec<i64>>> {
    loader.iter().map(|batch| Ok(Vec::<i64>::try_from(batch?)?)).collect()
}

fn numbers(len: i64) -> Vec<i64> {
    (0..len).collect()
}

/// Every rank's numbers, in the order of the ranks; fewer than 1000 of each.
fn gathered(scope: &Scope, own: &[i64]) -> Result<Vec<Vec<i64>>> {
    let mut padded = own.to_vec();
    padded.resize(1000, -1);
    let all = scope.all_gather(&Tensor::from_slice(&padded))?;
    all.iter()
        .map(|rank| Ok(Vec::<i64>::try_from(rank)?.into_iter().filter(|&k| k >= 0).collect()))
        .collect()
}

/// The ranks' k-th batches are one stretch of the order, which is that of one process, and another in each epoch.
fn shares() -> Result<()> {
    let loader = DataLoader::builder(numbers(50)).batch_size(4).shuffle(true).seed(3);
    let loader = loader.num_workers(2).build()?;
    // Made before the scope, and used on one rank: everything.
    let alone = [drawn(&loader)?.concat(), drawn(&loader)?.concat()];
    let scope = ddp_runtime::init()?;
    let world = scope.world_size();
    for (epoch, order) in alone.iter().enumerate() {
        loader.set_epoch(epoch as u64);
        let batches = drawn(&loader)?;
        ensure!(batches.len() == loader.len(), "{} batches of {}", batches.len(), loader.len());
        let ranks = gathered(&scope, &batches.concat())?;
        let rounds = 50_usize.div_ceil(world);
        let joint: Vec<i64> = (0..rounds * world).map(|k| ranks[k % world][k / world]).collect();
        let padded: Vec<i64> = order.iter().copied().cycle().take(rounds * world).collect();
        ensure!(joint == padded, "epoch {epoch}: {joint:?} is not {padded:?}");
    }
    let whole = DataLoader::builder(numbers(9)).batch_size(9).whole().build()?;
    ensure!(drawn(&whole)? == [numbers(9)], "a whole loader gives everything");
    let weighted = WeightedSampler::with_replacement(vec![1.0; 50], 40)?;
    let weighted = DataLoader::builder(numbers(50)).sampler(weighted).remainder(Remainder::Drop);
    let own = drawn(&weighted.batch_size(3).build()?)?.concat();
    ensure!(own.len() == 40 / world, "{} draws", own.len());
    let ranks = gathered(&scope, &own)?;
    ensure!(world == 1 || ranks[0] != ranks[1], "two ranks drew alike");
    scope.finish()?;
    Ok(())
}

const FEATURES: i64 = 6;

/// Rows with something to learn, in f64.
fn rows(samples: i64) -> Result<TensorDataset<(Tensor, Tensor)>> {
    tch::manual_seed(5);
    let x = Tensor::randn([samples, FEATURES], (Kind::Double, Device::Cpu));
    let y = x.narrow(1, 0, 2).sum_dim_intlist(1, true, Kind::Double).tanh();
    Ok(TensorDataset::new((x, y))?)
}

fn weights(store: &nn::VarStore) -> Vec<Tensor> {
    store.trainable_variables().iter().map(Tensor::copy).collect()
}

/// Compiles `$train` as it is, and with the attribute for each meaning of a batch size.
macro_rules! thrice {
    ($($train:tt)*) => {
        mod plain {
            use super::*;
            $($train)*
        }
        mod per_rank {
            use super::*;
            #[ddp_runtime::distributed]
            $($train)*
        }
        mod global {
            use super::*;
            #[ddp_runtime::distributed(batch = "global")]
            $($train)*
        }
    };
}
thrice! {
    pub(super) fn train(loader: &DataLoader<(Tensor, Tensor)>, epochs: u64) -> Result<Vec<Tensor>> {
        tch::manual_seed(11);
        let mut store = nn::VarStore::new(Device::Cpu);
        let net = nn::linear(store.root() / "in", FEATURES, 1, Default::default());
        store.double();
        let mut opt = nn::Sgd { momentum: 0.9, ..Default::default() }.build(&store, 0.05)?;
        for epoch in 0..epochs {
            let mut seen = 0;
            for batch in loader.iter() {
                let (x, y) = batch?;
                seen += x.size()[0];
                let loss = (net.forward(&x) - &y).square().mean(Kind::Double);
                opt.backward_step(&loss);
            }
            ensure!(seen > 0, "epoch {epoch} has no samples");
        }
        Ok(weights(&store))
    }
}

/// A random order, repeated from its start up to this length: what PyTorch's `DistributedSampler` deals out.
#[derive(Debug)]
struct Padded(RandomSampler, usize);

impl Sampler for Padded {
    fn len(&self) -> usize {
        self.1
    }

    fn indices(&self, order: Order) -> Result<Indices, SamplerError> {
        let order: Vec<i64> = self.0.indices(order)?.iter().map(|index| index as i64).collect();
        Indices::listed(order.iter().copied().cycle().take(self.1).collect::<Vec<_>>())
    }
}

/// The annotated program follows the plain one: on the ranks' joint batches, or on the very same batches.
fn course(rule: &str) -> Result<()> {
    let ranks = ddp_runtime::world_size();
    let builder = |batch, samples| -> Result<_> {
        let builder = DataLoader::builder(rows(samples)?).batch_size(batch).shuffle(true).seed(2);
        Ok(builder.num_workers(1).build()?)
    };
    let (found, expected) = match rule {
        // A joint batch is whole where the ranks divide the samples.
        "per-rank" => {
            let samples = 26 * ranks as i64;
            let found = per_rank::train(&builder(4, samples)?, 3)?;
            (found, plain::train(&builder(4 * ranks, samples)?, 3)?)
        }
        // Samples that the ranks do not divide are repeated, for all to take seven steps.
        "padded" => {
            let samples = 24 * ranks as i64 + 1;
            let found = per_rank::train(&builder(4, samples)?, 3)?;
            let order = Padded(RandomSampler::new(samples as usize), 25 * ranks);
            let joint = DataLoader::builder(rows(samples)?).batch_size(4 * ranks);
            (found, plain::train(&joint.sampler(order).seed(2).build()?, 3)?)
        }
        // 37 samples leave a ragged last batch of 5, which 2 and 3 ranks do not divide, nor 8.
        "global" => (global::train(&builder(8, 37)?, 3)?, plain::train(&builder(8, 37)?, 3)?),
        _ => bail!("no rule is called {rule}"),
    };
    close(rule, &found, &expected, 1e-12)
}

/// p06: figures over the samples and ranks of an evaluation loader are those of one process.
fn evaluation() -> Result<()> {
    let data = rows(53)?;
    let figure = |loader: &DataLoader<(Tensor, Tensor)>| -> Result<(f64, f64)> {
        let (mut total, mut count) = (0.0, 0.0);
        for batch in loader {
            let (x, y) = batch?;
            total += (x.select(1, 0) - y.squeeze_dim(1)).abs().sum(Kind::Double).double_value(&[]);
            count += x.size()[0] as f64;
        }
        Ok((sum(total), sum(count)))
    };
    let builder = || DataLoader::builder(data.clone()).batch_size(4).num_workers(2);
    let loader = builder().evaluation().build()?;
    let (total, count) = figure(&loader)?;
    let scope = ddp_runtime::init()?;
    let (shared, shared_count) = figure(&loader)?;
    ensure!(shared_count == count && count == 53.0, "{shared_count} samples of {count}");
    ensure!((shared - total).abs() < 1e-10 * total, "{shared} is not {total}");
    scope.finish()?;
    Ok(())
}

/// A stream that is longer the higher the rank, of batches of 2.
struct Longer;

impl IterableDataset for Longer {
    type Sample = f64;
    type Error = BoxError;

    fn read(&self, share: Share, _epoch: u64) -> Samples<f64, BoxError> {
        let rank = ddp_runtime::rank();
        let readers = share.world_size() / ddp_runtime::world_size();
        // Each rank's readers have ten samples together, and four more for each rank before it.
        let mine = (10 + 4 * rank) / readers;
        Box::new((0..mine).map(|k| Ok(k as f64)))
    }
}

/// p02: a stream ends on all ranks with the first that has no more, so that all take the same steps.
#[ddp_runtime::distributed]
fn stream(workers: usize) -> Result<u32> {
    let loader = DataLoader::stream(Longer).batch_size(2).num_workers(workers).build()?;
    let vs = nn::VarStore::new(Device::Cpu);
    let net = nn::linear(vs.root(), 1, 1, Default::default());
    let mut opt = nn::Sgd::default().build(&vs, 0.1)?;
    let mut steps = 0;
    for batch in &loader {
        let x = batch?.to_kind(Kind::Float).unsqueeze(1);
        opt.backward_step(&net.forward(&x).square().mean(Kind::Float));
        steps += 1;
    }
    Ok(steps)
}

/// A loop that deals out what the loader has dealt out already.
#[ddp_runtime::distributed]
fn twice() -> Result<()> {
    let loader = DataLoader::builder(rows(40)?).batch_size(4).build()?;
    let vs = nn::VarStore::new(Device::Cpu);
    let net = nn::linear(vs.root(), FEATURES, 1, Default::default());
    let mut opt = nn::Sgd::default().build(&vs, 0.1)?;
    #[ddp(shard)]
    for batch in loader.iter() {
        let (x, _) = batch?;
        opt.backward_step(&net.forward(&x.to_kind(Kind::Float)).mean(Kind::Float));
    }
    Ok(())
}

/// Batches that only rank 0 can read.
fn dispatched(how: Dispatch) -> Result<()> {
    let scope = ddp_runtime::init()?;
    let (rank, world) = (scope.rank() as i64, scope.world_size() as i64);
    let items = || {
        assert!(main_only(|| ()).is_some(), "another rank reads");
        (0..7).map(|k| {
            let x = Tensor::arange(12, kind::FLOAT_CPU).view([6, 2]) + 100 * k;
            Ok::<_, BoxError>((x, Tensor::full([6], k, kind::INT64_CPU)))
        })
    };
    let mut got = Vec::new();
    for batch in dispatch(items, how) {
        let (x, y) = batch?;
        ensure!(x.size()[0] == y.size()[0] && x.kind() == Kind::Float, "{x:?} {y:?}");
        let k = y.int64_value(&[0]);
        let first = match how {
            // Six rows; the first ranks have one more where the ranks do not divide them.
            Dispatch::Split => rank * (6 / world) + rank.min(6 % world),
            Dispatch::Whole => 0,
        };
        ensure!(x.double_value(&[0, 1]) == (100 * k + 2 * first + 1) as f64, "rank {rank}: {k}");
        got.push((k, x.size()[0]));
    }
    let expected: Vec<(i64, i64)> = match how {
        Dispatch::Split => {
            let rows = 6 / world + i64::from(rank < 6 % world);
            (0..7).map(|k| (k, rows)).collect()
        }
        Dispatch::Whole => (0..7 / world).map(|round| (round * world + rank, 6)).collect(),
    };
    ensure!(got == expected, "{got:?} is not {expected:?}");
    scope.finish()?;
    Ok(())
}

/// What the main rank cannot read ends the pass on every rank.
fn dispatched_badly() -> Result<()> {
    let scope = ddp_runtime::init()?;
    let items = || {
        let torn = Err::<Tensor, BoxError>("line 7 is torn".into());
        [Ok(Tensor::zeros([6, 2], kind::FLOAT_CPU)), torn]
    };
    for batch in dispatch(items, Dispatch::Split) {
        drop(batch?);
    }
    scope.finish()?;
    Ok(())
}

/// One stretch of an epoch, from where the state in `file` stands to `batches` further on, with what was seen appended.
fn resumed(file: &Path, batch: usize, batches: usize) -> Result<()> {
    let scope = ddp_runtime::init()?;
    let loader = DataLoader::builder(numbers(101)).sampler(RandomSampler::new(101)).seed(8);
    let loader = loader.batch_size(batch).num_workers(2).remainder(Remainder::Drop).build()?;
    let state = file.with_extension("state");
    if state.exists() {
        let saved: LoaderState = serde_json::from_str(&std::fs::read_to_string(&state)?)?;
        loader.resume(saved)?;
    }
    scope.barrier()?;
    let mut own = Vec::new();
    for batch in loader.iter().take(batches) {
        own.extend(Vec::<i64>::try_from(batch?)?);
    }
    let seen = gathered(&scope, &own)?.concat();
    if scope.is_main() {
        let mut all: Vec<i64> = match std::fs::read_to_string(file) {
            Ok(text) => serde_json::from_str(&text)?,
            Err(_) => Vec::new(),
        };
        all.extend(seen);
        std::fs::write(file, serde_json::to_string(&all)?)?;
        std::fs::write(&state, serde_json::to_string(&loader.state()?)?)?;
    }
    scope.finish()?;
    Ok(())
}

/// Rows, one of which cannot be read on rank 1.
struct Torn(TensorDataset<(Tensor, Tensor)>, bool);

impl Dataset for Torn {
    type Sample = (Tensor, Tensor);
    type Error = BoxError;

    fn len(&self) -> usize {
        self.0.len()
    }

    fn get(&self, index: usize) -> Result<Self::Sample, BoxError> {
        if ddp_runtime::rank() == 1 && index == 61 {
            if self.1 {
                panic!("row 61 is torn");
            }
            return Err("row 61 is torn".into());
        }
        Ok(self.0.get(index)?)
    }
}

/// A worker of one rank fails in the middle of the training of all.
#[ddp_runtime::distributed]
fn torn(panics: bool) -> Result<()> {
    let loader = DataLoader::builder(Torn(rows(200)?, panics)).batch_size(4).num_workers(2);
    let loader = loader.build()?;
    let vs = nn::VarStore::new(Device::Cpu);
    let net = nn::linear(vs.root(), FEATURES, 1, Default::default());
    let mut opt = nn::Sgd::default().build(&vs, 0.1)?;
    for batch in loader.batches() {
        let (x, y) = batch.context("loading")?;
        let loss = (net.forward(&x.to_kind(Kind::Float)) - y).square().mean(Kind::Float);
        opt.backward_step(&loss);
    }
    Ok(())
}

/// Loops that read items which every rank has, by a mark that says so, still may.
fn shard_of_whole() -> Result<()> {
    let scope = ddp_runtime::init()?;
    let loader = DataLoader::builder(numbers(8)).whole().build()?;
    let share = Share::new(scope.rank(), scope.world_size())?;
    let own = shard(loader.iter(), share).count();
    ensure!(own == 8 / scope.world_size(), "{own} items");
    scope.finish()?;
    Ok(())
}

pub(super) fn run(args: &[String]) -> Result<()> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["shares"] => shares(),
        ["course", rule] => course(rule),
        ["evaluation"] => evaluation(),
        ["stream", workers] => {
            println!("{} steps", stream(workers.parse()?)?);
            Ok(())
        }
        ["twice"] => twice(),
        ["shard-of-whole"] => shard_of_whole(),
        ["dispatch", "split"] => dispatched(Dispatch::Split),
        ["dispatch", "whole"] => dispatched(Dispatch::Whole),
        ["dispatch", "torn"] => dispatched_badly(),
        ["resume", file, batch, batches] => {
            resumed(Path::new(file), batch.parse()?, batches.parse()?)
        }
        ["torn", how] => torn(how == "panic"),
        _ => bail!("no case of the loader is called {args:?}"),
    }
}
