//! Data that the attribute asks about: index arithmetic, own loaders, streams side by side, streams of unknown length.
use std::sync::mpsc::{self, Receiver};

use anyhow::{Result, bail, ensure};
use ddp_runtime::{distributed, should_stop};
use tch::data::Iter2;
use tch::{Tensor, nn};

use super::one_process::{Batch, Model, Net, alike, data, follows, items, rounds};

const BATCH: i64 = 8;

#[distributed]
fn step_by(vs: &nn::VarStore, net: &Net, xs: &Tensor, ys: &Tensor) -> Result<usize> {
    let mut opt = Model::adam(vs)?;
    let n = xs.size()[0];
    let mut steps = 0;
    #[ddp(shard)]
    for start in (0..n).step_by(BATCH as usize) {
        let rows = BATCH.min(n - start);
        opt.backward_step(&net.loss(&xs.narrow(0, start, rows), &ys.narrow(0, start, rows)));
        steps += 1;
    }
    Ok(steps)
}

#[distributed]
fn by_number(vs: &nn::VarStore, net: &Net, xs: &Tensor, ys: &Tensor) -> Result<usize> {
    let mut opt = Model::adam(vs)?;
    let n = xs.size()[0];
    let mut steps = 0;
    #[ddp(shard)]
    for i in 0..n / BATCH {
        let x = xs.narrow(0, i * BATCH, BATCH);
        opt.backward_step(&net.loss(&x, &ys.narrow(0, i * BATCH, BATCH)));
        steps += 1;
    }
    Ok(steps)
}

/// A game: what was seen, and how it ended.
struct Game(Vec<f64>, f64);

fn to_tensors(games: &[Game]) -> Batch {
    let seen: Vec<Tensor> = games.iter().map(|game| Tensor::from_slice(&game.0)).collect();
    let ends: Vec<f64> = games.iter().map(|game| game.1).collect();
    (Tensor::stack(&seen, 0), Tensor::from_slice(&ends).view([-1, 1]))
}

/// The numbers of the chunks that this rank took.
#[distributed]
fn chunks(vs: &nn::VarStore, net: &Net, games: &[Game]) -> Result<Vec<usize>> {
    let mut opt = Model::adam(vs)?;
    let mut taken = Vec::new();
    #[ddp(shard)]
    for (i, part) in games.chunks(BATCH as usize).enumerate() {
        let (x, y) = to_tensors(part);
        opt.backward_step(&net.loss(&x, &y));
        taken.push(i);
    }
    Ok(taken)
}

#[distributed]
fn by_while(vs: &nn::VarStore, net: &Net, xs: &Tensor, ys: &Tensor) -> Result<()> {
    let mut opt = Model::adam(vs)?;
    let mut start = 0;
    #[ddp(same)]
    while start + BATCH <= xs.size()[0] {
        let x = xs.narrow(0, start, BATCH);
        opt.backward_step(&net.loss(&x, &ys.narrow(0, start, BATCH)));
        start += BATCH;
    }
    Ok(())
}

/// 7 batches and a ragged one; 8; 9, the last ragged: on two and on three ranks rounds are dropped, or end raggedly.
pub(super) fn s23_index_arithmetic(_: &[&str]) -> Result<()> {
    for rows in [53, 60, 68] {
        let all = data(rows);
        let (x, y) = &all;
        let shared = rounds(&items(&all, BATCH));

        let model = Model::seeded();
        let steps = step_by(&model.vs, &model.net, x, y)?;
        ensure!(steps == shared.len(), "{steps} steps over {rows} rows");
        follows("step_by", &model.vs, &shared)?;

        let whole: Vec<Batch> = items(&all, BATCH).drain(..(rows / BATCH) as usize).collect();
        let model = Model::seeded();
        let steps = by_number(&model.vs, &model.net, x, y)?;
        ensure!(steps == whole.len() / ddp_runtime::world_size(), "{steps} steps by number");
        follows("0..n / b", &model.vs, &rounds(&whole))?;

        let games: Vec<Game> = (0..rows)
            .map(|row| {
                Ok(Game(Vec::<f64>::try_from(x.get(row))?, f64::try_from(y.get(row).squeeze())?))
            })
            .collect::<Result<_>>()?;
        let model = Model::seeded();
        let taken = chunks(&model.vs, &model.net, &games)?;
        let (rank, world) = (ddp_runtime::rank(), ddp_runtime::world_size());
        let expected: Vec<usize> = (0..shared.len()).map(|round| round * world + rank).collect();
        ensure!(taken == expected, "took the chunks {taken:?}, not {expected:?}");
        follows("chunks", &model.vs, &shared)?;

        let model = Model::seeded();
        by_while(&model.vs, &model.net, x, y)?;
        // All ranks take all batches: the work of one process.
        let one_each: Vec<Vec<Batch>> = whole.into_iter().map(|item| vec![item]).collect();
        follows("while", &model.vs, &one_each)?;
    }
    Ok(())
}

/// A loader of the program's own, that reads as it goes and may fail at any batch.
struct Loader {
    batches: Vec<Batch>,
    broken: Option<usize>,
}

impl Loader {
    fn open(rows: i64, broken: Option<usize>) -> Result<Self> {
        ensure!(rows > 0, "nothing to load");
        Ok(Self { batches: items(&data(rows), BATCH), broken })
    }

    /// The positions of the batches in an epoch: equal in all processes.
    fn order(&self, epoch: usize) -> Vec<usize> {
        let length = self.batches.len();
        (0..length).map(|position| (position * 5 + epoch) % length).collect()
    }

    fn shuffled(self, epoch: usize) -> Batches {
        Batches { positions: self.order(epoch).into_iter(), loader: self }
    }

    /// Every rank's own part, split by the loader itself.
    fn part(self, rank: usize, world: usize) -> Batches {
        let mine = self.order(0).chunks_exact(world).map(|round| round[rank]).collect::<Vec<_>>();
        Batches { positions: mine.into_iter(), loader: self }
    }
}

struct Batches {
    loader: Loader,
    positions: std::vec::IntoIter<usize>,
}

impl Iterator for Batches {
    type Item = std::io::Result<Batch>;

    fn next(&mut self) -> Option<Self::Item> {
        let position = self.positions.next()?;
        if self.loader.broken == Some(position) {
            return Some(Err(std::io::Error::other(format!("batch {position} is torn"))));
        }
        let (x, y) = &self.loader.batches[position];
        Some(Ok((x.shallow_clone(), y.shallow_clone())))
    }
}

#[distributed]
fn own_loader(vs: &nn::VarStore, net: &Net, rows: i64, broken: Option<usize>) -> Result<()> {
    let mut opt = Model::adam(vs)?;
    for epoch in 0..2 {
        #[ddp(shard)]
        for batch in Loader::open(rows, broken)?.shuffled(epoch) {
            let (x, y) = batch?;
            opt.backward_step(&net.loss(&x, &y));
        }
    }
    Ok(())
}

#[distributed]
fn split_loader(vs: &nn::VarStore, net: &Net, rows: i64) -> Result<()> {
    let mut opt = Model::adam(vs)?;
    let (rank, world) = (ddp_runtime::rank(), ddp_runtime::world_size());
    #[ddp(each)]
    for batch in Loader::open(rows, None)?.part(rank, world) {
        let (x, y) = batch?;
        opt.backward_step(&net.loss(&x, &y));
    }
    Ok(())
}

/// Seven batches a pass; with the argument `torn` one cannot be read.
pub(super) fn s24_own_loader(args: &[&str]) -> Result<()> {
    let rows = 7 * BATCH - 3;
    let model = Model::seeded();
    if args == ["torn"] {
        return own_loader(&model.vs, &model.net, rows, Some(3));
    }
    own_loader(&model.vs, &model.net, rows, None)?;
    let loader = Loader::open(rows, None)?;
    let pass = |epoch| -> Vec<Batch> {
        let copy = |position: usize| {
            let (x, y) = &loader.batches[position];
            (x.shallow_clone(), y.shallow_clone())
        };
        loader.order(epoch).into_iter().map(copy).collect()
    };
    let mut expected = rounds(&pass(0));
    expected.extend(rounds(&pass(1)));
    follows("own loader", &model.vs, &expected)?;

    let model = Model::seeded();
    split_loader(&model.vs, &model.net, rows)?;
    follows("split loader", &model.vs, &rounds(&pass(0)))
}

#[distributed]
fn zipped(vs: &nn::VarStore, net: &Net, xs: &Tensor, ys: &Tensor, hints: &Tensor) -> Result<()> {
    let mut opt = Model::adam(vs)?;
    #[ddp(shard)]
    for ((x, y), (_, hint)) in Iter2::new(xs, ys, BATCH).zip(Iter2::new(xs, hints, BATCH)) {
        opt.backward_step(&net.loss(&x, &(y + hint * 0.5)));
    }
    Ok(())
}

#[distributed]
fn zipped_from_variables(
    vs: &nn::VarStore,
    net: &Net,
    xs: &Tensor,
    ys: &Tensor,
    hints: &Tensor,
) -> Result<()> {
    let mut opt = Model::adam(vs)?;
    let batches = Iter2::new(xs, ys, BATCH);
    let aside = Iter2::new(xs, hints, BATCH);
    #[ddp(shard)]
    for ((x, y), (_, hint)) in batches.zip(aside) {
        opt.backward_step(&net.loss(&x, &(y + hint * 0.5)));
    }
    Ok(())
}

pub(super) fn s25_side_by_side(_: &[&str]) -> Result<()> {
    let (x, y) = data(9 * BATCH);
    let hints = x.narrow(1, 3, 1).cos();
    let joined = (x.shallow_clone(), &y + &hints * 0.5);
    let expected = rounds(&items(&joined, BATCH));
    for (what, train) in [
        ("zip", zipped as fn(&_, &_, &_, &_, &_) -> _),
        ("zip of variables", zipped_from_variables),
    ] {
        let model = Model::seeded();
        train(&model.vs, &model.net, &x, &y, &hints)?;
        follows(what, &model.vs, &expected)?;
    }
    Ok(())
}

#[distributed]
fn received(vs: &nn::VarStore, net: &Net, receiver: &Receiver<Batch>) -> Result<()> {
    let mut opt = Model::adam(vs)?;
    #[ddp(each)]
    while let Ok((x, y)) = receiver.recv() {
        opt.backward_step(&net.loss(&x, &y));
    }
    Ok(())
}

#[distributed]
fn received_by_vote(vs: &nn::VarStore, net: &Net, receiver: &Receiver<Batch>) -> Result<usize> {
    let mut opt = Model::adam(vs)?;
    let mut steps = 0;
    #[ddp(each)]
    loop {
        let batch = receiver.recv().ok();
        if should_stop(batch.is_none()) {
            break;
        }
        let Some((x, y)) = batch else { break };
        opt.backward_step(&net.loss(&x, &y));
        steps += 1;
    }
    Ok(steps)
}

/// Every rank's own batches, sent from another thread.
fn stream(count: usize) -> Receiver<Batch> {
    let (sender, receiver) = mpsc::channel();
    let (rank, world) = (ddp_runtime::rank(), ddp_runtime::world_size());
    let all = items(&data(BATCH * (9 * world as i64)), BATCH);
    let mine: Vec<Batch> = all.into_iter().skip(rank).step_by(world).take(count).collect();
    std::thread::spawn(move || mine.into_iter().try_for_each(|batch| sender.send(batch)));
    receiver
}

/// `equal`: streams of five batches. `vote`, `unequal`: rank 0's has five, each next rank's one more.
pub(super) fn s26_stream(args: &[&str]) -> Result<()> {
    let model = Model::seeded();
    let expected = || {
        let all = items(&data(BATCH * (9 * ddp_runtime::world_size() as i64)), BATCH);
        rounds(&all).drain(..5).collect::<Vec<_>>()
    };
    match args {
        ["equal"] => {
            received(&model.vs, &model.net, &stream(5))?;
            follows("stream", &model.vs, &expected())
        }
        ["vote"] => {
            let receiver = stream(5 + ddp_runtime::rank());
            let steps = received_by_vote(&model.vs, &model.net, &receiver)?;
            alike("steps", &[steps as f64])?;
            follows("stream by vote", &model.vs, &expected())
        }
        ["unequal"] => received(&model.vs, &model.net, &stream(5 + ddp_runtime::rank())),
        _ => bail!("expected equal, vote or unequal"),
    }
}
