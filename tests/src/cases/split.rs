//! With `batch = "global"` the items of a marked loop are batches that the ranks share: the same tokens, compiled twice, follow
//! the course of a single process.
use anyhow::{Result, bail, ensure};
use ddp_runtime::{SplitBatch, distributed};
use tch::data::Iter2;
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Device, Kind, Reduction, Tensor};

use super::compare::close;

/// Three ranks do not divide a batch of 16, and the last batch of 100 rows has 4.
const ROWS: i64 = 100;
const BATCH: i64 = 16;
const EPOCHS: i64 = 2;
/// In f64, after some fifteen steps.
const LIMIT: f64 = 1e-10;

/// Compiles `$train` as it is, and again with the options given. A mark in it is written under a condition that never holds:
/// the attribute sees it, the plain program does not.
macro_rules! both {
    ($name:ident[$($option:tt)*] { $($train:tt)* }) => {
        mod $name {
            pub(super) mod plain {
                #[allow(unused_imports)]
                use super::super::*;
                $($train)*
            }
            pub(super) mod shared {
                #[allow(unused_imports)]
                use super::super::*;
                #[distributed($($option)*)]
                $($train)*
            }
        }
    };
}

/// A model in f64, smooth, so that rounding flips nothing. SGD takes notice of a gradient's scale.
struct Model {
    vs: nn::VarStore,
    hidden: nn::Linear,
    out: nn::Linear,
}

impl Model {
    fn seeded() -> Self {
        tch::manual_seed(7);
        let mut vs = nn::VarStore::new(Device::Cpu);
        let hidden = nn::linear(vs.root() / "hidden", 6, 12, Default::default());
        let out = nn::linear(vs.root() / "out", 12, 1, Default::default());
        vs.double();
        Self { vs, hidden, out }
    }

    fn loss(&self, x: &Tensor, y: &Tensor, reduction: Reduction) -> Tensor {
        self.out.forward(&self.hidden.forward(x).tanh()).mse_loss(y, reduction)
    }

    fn mean(&self, x: &Tensor, y: &Tensor) -> Tensor {
        self.loss(x, y, Reduction::Mean)
    }

    fn sgd(&self, rate: f64) -> Result<nn::Optimizer> {
        Ok(nn::Sgd { momentum: 0.9, ..Default::default() }.build(&self.vs, rate)?)
    }
}

type Pair = (Tensor, Tensor);

fn rows(count: i64) -> Pair {
    tch::manual_seed(3);
    let x = Tensor::randn([count, 6], (Kind::Double, Device::Cpu));
    let y = x.narrow(1, 0, 2).sum_dim_intlist(1, true, Kind::Double).sin();
    (x, y)
}

/// The batches of an epoch, which begin elsewhere in each.
fn batches((x, y): &Pair, epoch: i64) -> impl Iterator<Item = Pair> + use<> {
    let (x, y) = (x.roll(epoch * 7, 0), y.roll(epoch * 7, 0));
    let count = x.size()[0];
    (0..count.unsigned_abs()).step_by(BATCH as usize).map(move |start| {
        let start = start.cast_signed();
        let length = BATCH.min(count - start);
        (x.narrow(0, start, length), y.narrow(0, start, length))
    })
}

both!(tuples[batch = "global"] {
    pub(in super::super) fn train(model: &Model, all: &Pair) -> Result<()> {
        let mut opt = model.sgd(0.05)?;
        for epoch in 0..EPOCHS {
            #[cfg_attr(any(), ddp(shard))]
            for (x, y) in batches(all, epoch) {
                opt.backward_step(&model.mean(&x, &y));
            }
        }
        Ok(())
    }
});

both!(fallible[batch = "global"] {
    pub(in super::super) fn train(model: &Model, all: &Pair) -> Result<()> {
        let mut opt = model.sgd(0.05)?;
        let read = batches(all, 0).map(|(x, y)| Ok::<_, std::io::Error>([x, y]));
        let mut steps = 0;
        #[cfg_attr(any(), ddp(shard))]
        for (number, batch) in read.enumerate() {
            let [x, y] = batch?;
            ensure!(number == steps, "batch {number} in step {steps}");
            opt.backward_step(&model.mean(&x, &y));
            steps += 1;
        }
        ensure!(steps == 7, "{steps} steps");
        Ok(())
    }
});

/// A sample of the program's own: what was seen, and how it ended.
struct Game(Tensor, f64);

both!(lists[batch = "global"] {
    pub(in super::super) fn train(model: &Model, all: &Pair) -> Result<()> {
        let mut opt = model.sgd(0.05)?;
        let game = |row| Ok(Game(all.0.get(row), f64::try_from(all.1.get(row).squeeze())?));
        let games = (0..ROWS).map(game).collect::<Result<Vec<Game>>>()?;
        #[cfg_attr(any(), ddp(shard))]
        for part in games.chunks(BATCH as usize) {
            let seen: Vec<&Tensor> = part.iter().map(|game| &game.0).collect();
            let ends: Vec<f64> = part.iter().map(|game| game.1).collect();
            let x = Tensor::stack(&seen, 0);
            opt.backward_step(&model.mean(&x, &Tensor::from_slice(&ends).view([-1, 1])));
        }
        Ok(())
    }
});

/// A batch of the program's own.
#[derive(SplitBatch)]
struct Readings {
    values: Vec<Tensor>,
    targets: Option<Box<Tensor>>,
    #[batch(whole)]
    scale: Scale,
}

struct Scale(f64);

both!(own_type[batch = "global"] {
    pub(in super::super) fn train(model: &Model, all: &Pair) -> Result<()> {
        let mut opt = model.sgd(0.05)?;
        let read = batches(all, 1).map(|(x, y)| Readings {
            values: x.unbind(0),
            targets: Some(Box::new(y)),
            scale: Scale(0.5),
        });
        #[cfg_attr(any(), ddp(shard))]
        for Readings { values, targets, scale } in read {
            let Some(targets) = targets else { bail!("a batch without targets") };
            opt.backward_step(&(model.mean(&Tensor::stack(&values, 0), &targets) * scale.0));
        }
        Ok(())
    }
});

// The shuffled batches that feed a marked loop have one order on all ranks, epoch after epoch.
both!(shuffled[batch = "global"] {
    pub(in super::super) fn train(model: &Model, all: &Pair) -> Result<()> {
        let mut opt = model.sgd(0.05)?;
        for _epoch in 0..EPOCHS {
            let mut drawn = Iter2::new(&all.0, &all.1, BATCH);
            drawn.shuffle().return_smaller_last_batch();
            #[cfg_attr(any(), ddp(shard))]
            for (x, y) in drawn.map(|(x, y)| (x * 0.5, y)) {
                opt.backward_step(&model.mean(&x, &y));
            }
        }
        Ok(())
    }
});

both!(sums[batch = "global", loss = "sum"] {
    pub(in super::super) fn train(model: &Model, all: &Pair) -> Result<()> {
        let mut opt = model.sgd(0.002)?;
        for epoch in 0..EPOCHS {
            #[cfg_attr(any(), ddp(shard))]
            for (x, y) in batches(all, epoch) {
                opt.backward_step(&model.loss(&x, &y, Reduction::Sum));
            }
            // Two backwards a step, the last one alone.
            for (step, (x, y)) in Iter2::new(&all.0, &all.1, BATCH).shuffle().enumerate() {
                (model.loss(&x, &y, Reduction::Sum) / 2.0).backward();
                if step % 2 == 1 {
                    opt.step();
                    opt.zero_grad();
                }
            }
            // Nothing is shared here: every rank has the whole sum.
            opt.backward_step(&(model.loss(&all.0, &all.1, Reduction::Sum) / 50.0));
        }
        Ok(())
    }
});

/// Batches of a sum that are drawn ahead: equal parts or not, nobody knows that they are parts.
#[distributed(batch = "global", loss = "sum")]
fn ahead(model: &Model, all: &Pair) -> Result<()> {
    let mut opt = model.sgd(0.002)?;
    let drawn: Vec<Pair> = Iter2::new(&all.0, &all.1, BATCH).collect();
    for (x, y) in &drawn {
        opt.backward_step(&model.loss(x, y, Reduction::Sum));
    }
    Ok(())
}

/// Without `batch` in the attribute: the environment may say it.
#[distributed]
fn references(model: &Model, all: &Pair) -> Result<usize> {
    let mut opt = model.sgd(0.05)?;
    let drawn: Vec<Pair> = batches(all, 0).collect();
    let mut steps = 0;
    #[ddp(shard)]
    for (x, y) in &drawn {
        opt.backward_step(&model.mean(x, y));
        steps += 1;
    }
    Ok(steps)
}

#[distributed]
fn numbers(model: &Model, all: &Pair) -> Result<()> {
    let mut opt = model.sgd(0.05)?;
    #[ddp(shard)]
    for start in (0..ROWS).step_by(BATCH as usize) {
        let length = BATCH.min(ROWS - start);
        opt.backward_step(
            &model.mean(&all.0.narrow(0, start, length), &all.1.narrow(0, start, length)),
        );
    }
    Ok(())
}

#[distributed]
fn from_outside(model: &Model, all: &Pair) -> Result<()> {
    let mut opt = model.sgd(0.05)?;
    for epoch in 0..EPOCHS {
        #[ddp(shard)]
        for (x, y) in batches(all, epoch) {
            opt.backward_step(&model.mean(&x, &y));
        }
    }
    Ok(())
}

#[distributed(batch = "global")]
fn columns(model: &Model, batch: Pair) -> Result<()> {
    let mut opt = model.sgd(0.05)?;
    #[ddp(shard)]
    for (x, y) in [batch] {
        opt.backward_step(&model.mean(&x, &y));
    }
    Ok(())
}

#[distributed(loss = "sum")]
fn sum_of_own_batches(model: &Model, all: &Pair) -> Result<()> {
    model.sgd(0.05)?.backward_step(&model.mean(&all.0, &all.1));
    Ok(())
}

type Train = fn(&Model, &Pair) -> Result<()>;

const PROGRAMS: &[(&str, Train, Train)] = &[
    ("tuples", tuples::plain::train, tuples::shared::train),
    ("fallible", fallible::plain::train, fallible::shared::train),
    ("lists", lists::plain::train, lists::shared::train),
    ("own type", own_type::plain::train, own_type::shared::train),
    ("shuffled", shuffled::plain::train, shuffled::shared::train),
    ("sums", sums::plain::train, sums::shared::train),
];

fn follow(what: &str, plain: Train, shared: Train) -> Result<()> {
    let all = rows(ROWS);
    let (expected, found) = (Model::seeded(), Model::seeded());
    tch::manual_seed(11);
    plain(&expected, &all)?;
    tch::manual_seed(11);
    shared(&found, &all)?;
    let untrained = Model::seeded().vs.trainable_variables();
    let (expected, found) = (expected.vs.trainable_variables(), found.vs.trainable_variables());
    ensure!(close("untrained", &untrained, &expected, LIMIT).is_err(), "{what} trains nothing");
    close(what, &found, &expected, LIMIT)
}

pub(super) fn run(args: &[String]) -> Result<()> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let model = Model::seeded();
    match args.as_slice() {
        ["follow"] => {
            PROGRAMS.iter().try_for_each(|(what, plain, shared)| follow(what, *plain, *shared))
        }
        ["from-outside"] => follow("from outside", tuples::plain::train, from_outside),
        ["ahead"] => ahead(&model, &rows(ROWS)),
        ["too-small"] => tuples::shared::train(&model, &rows(33)),
        ["sizes"] => tuples::shared::train(&model, &rows(15 - ddp_runtime::rank() as i64)),
        ["columns"] => columns(&model, (rows(16).0, rows(15).1)),
        ["references"] => references(&model, &rows(ROWS)).map(|steps| println!("{steps} steps")),
        ["numbers"] => numbers(&model, &rows(ROWS)),
        ["sum-of-own-batches"] => sum_of_own_batches(&model, &rows(BATCH)),
        _ => bail!("no case is called {args:?}"),
    }
}
