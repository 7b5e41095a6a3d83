//! Functions of every form: main, methods, traits, generics, and results of each kind.
#![allow(clippy::unwrap_used, reason = "the programs of these shapes are written like this")]
use std::cell::{Cell, RefCell};
use std::path::{Path, PathBuf};
use std::sync::Mutex;

use anyhow::{Result, bail, ensure};
use ddp_runtime::distributed;
use tch::data::Iter2;
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Device, TchError};

use super::one_process::{Batch, Model, Net, alike, data, follows, items};

const ROWS: i64 = 24;
const BATCH: i64 = 4;

/// The batches of one process that takes those of all ranks together.
fn joined() -> Vec<Vec<Batch>> {
    let batch = BATCH * ddp_runtime::world_size() as i64;
    items(&data(ROWS), batch).into_iter().map(|item| vec![item]).collect()
}

/// A program's `main`, with attributes, a statement under `cfg`, and an argument by position.
mod program {
    use super::*;

    #[distributed]
    #[allow(clippy::too_many_lines)]
    #[must_use = "what main returns"]
    pub(super) fn main() -> anyhow::Result<()> {
        #[cfg(any())]
        let device = "no device at all";
        #[cfg(not(any()))]
        let device = Device::cuda_if_available();
        #[cfg(any())]
        println!("never");
        match std::env::args().nth(1) {
            Some(name) => train(&name, device),
            None => bail!("usage: program NAME"),
        }
    }

    #[distributed]
    fn train(name: &str, device: Device) -> anyhow::Result<()> {
        tch::manual_seed(7);
        let mut vs = nn::VarStore::new(device);
        let net = Net::new(&vs.root());
        vs.double();
        let mut opt = Model::adam(&vs)?;
        let (xs, ys) = data(ROWS);
        for (x, y) in Iter2::new(&xs, &ys, BATCH) {
            opt.backward_step(&net.loss(&x, &y));
        }
        println!("trained {name}");
        *TRAINED.lock().unwrap() = Some(vs);
        Ok(())
    }
}

/// What the program's `main`, which returns nothing, has trained.
static TRAINED: Mutex<Option<nn::VarStore>> = Mutex::new(None);

pub(super) fn s42_main(_: &[&str]) -> Result<()> {
    program::main()?;
    let Some(vs) = TRAINED.lock().unwrap().take() else { bail!("main has trained nothing") };
    follows("main", &vs, &joined())
}

trait Learner: Sized {
    fn parts(&mut self) -> (&nn::VarStore, &Net);

    #[distributed]
    fn fit<C>(&mut self, config: C, data: &Batch) -> Result<f64>
    where
        C: OptimizerConfig + Clone,
    {
        let (vs, net) = self.parts();
        let mut opt = config.clone().build(vs, 1e-2)?;
        let mut last = f64::NAN;
        for (x, y) in Iter2::new(&data.0, &data.1, BATCH) {
            let loss = net.loss(&x, &y);
            opt.backward_step(&loss);
            last = loss.double_value(&[]);
        }
        Ok(last)
    }
}

struct Trainer {
    model: Model,
    steps: usize,
}

impl Trainer {
    const LR: f64 = 1e-2;

    fn new() -> Self {
        Self { model: Model::seeded(), steps: 0 }
    }

    /// `Self`, a lifetime, a const generic and an `impl Trait` argument.
    #[distributed]
    fn run<'a, const EPOCHS: usize>(
        &'a mut self,
        batches: impl Fn() -> &'a Batch,
        note: &mut impl FnMut(usize),
    ) -> Result<&'a Self> {
        let mut opt = nn::Adam::default().build(&self.model.vs, Self::LR)?;
        for epoch in 0..EPOCHS {
            let (xs, ys) = batches();
            for (x, y) in Iter2::new(xs, ys, BATCH) {
                opt.backward_step(&self.model.net.loss(&x, &y));
                self.steps += 1;
            }
            note(epoch);
        }
        Ok(self)
    }
}

impl Learner for Trainer {
    fn parts(&mut self) -> (&nn::VarStore, &Net) {
        (&self.model.vs, &self.model.net)
    }
}

trait Train {
    fn train(&self, data: &Batch) -> Result<usize>;
}

impl Train for Model {
    #[distributed]
    fn train(&self, (xs, ys): &Batch) -> Result<usize> {
        let mut opt = Model::adam(&self.vs)?;
        let mut steps = 0;
        for (x, y) in Iter2::new(xs, ys, BATCH) {
            opt.backward_step(&self.net.loss(&x, &y));
            steps += 1;
        }
        Ok(steps)
    }
}

pub(super) fn s43_methods(_: &[&str]) -> Result<()> {
    let data = data(ROWS);
    let mut trainer = Trainer::new();
    let loss = trainer.fit(nn::Adam::default(), &data)?;
    ensure!(loss.is_finite(), "the last loss is {loss}");
    follows("trait with a default body", &trainer.model.vs, &joined())?;

    let mut trainer = Trainer::new();
    let mut epochs = Vec::new();
    let steps = trainer.run::<2>(|| &data, &mut |epoch| epochs.push(epoch))?.steps;
    ensure!(epochs == [0, 1] && steps == 2 * joined().len(), "{steps} steps in {epochs:?}");
    let mut twice = joined();
    twice.extend(joined());
    follows("generic method", &trainer.model.vs, &twice)?;

    let model = Model::seeded();
    let steps = (&model as &dyn Train).train(&data)?;
    ensure!(steps == joined().len(), "{steps} steps");
    follows("trait object", &model.vs, &joined())
}

#[distributed]
fn unit(vs: &nn::VarStore, net: &Net, (xs, ys): &Batch) {
    let Ok(mut opt) = Model::adam(vs) else { return };
    for (x, y) in Iter2::new(xs, ys, BATCH) {
        opt.backward_step(&net.loss(&x, &y));
    }
}

#[distributed]
fn value(vs: &nn::VarStore, net: &Net, (xs, ys): &Batch) -> f64 {
    let mut opt = nn::Adam::default().build(vs, 1e-2).unwrap();
    for (x, y) in Iter2::new(xs, ys, BATCH) {
        opt.backward_step(&net.loss(&x, &y));
    }
    tch::no_grad(|| net.loss(xs, ys)).double_value(&[])
}

#[distributed]
fn result_of_save(
    vs: &nn::VarStore,
    net: &Net,
    (xs, ys): &Batch,
    path: &Path,
) -> Result<f64, TchError> {
    let mut opt = Model::adam(vs)?;
    let mut best = f64::INFINITY;
    for (x, y) in Iter2::new(xs, ys, BATCH) {
        opt.backward_step(&net.loss(&x, &y));
    }
    best = best.min(tch::no_grad(|| net.loss(xs, ys)).double_value(&[]));
    Ok(vs.save(path).map(|_| best)?)
}

/// The model itself, as some module.
#[distributed]
fn module((xs, ys): &Batch) -> impl Module + use<> {
    tch::manual_seed(7);
    let mut vs = nn::VarStore::new(Device::Cpu);
    let net = nn::linear(vs.root(), super::one_process::FEATURES, 1, Default::default());
    vs.double();
    let mut opt = nn::Sgd::default().build(&vs, 0.1).unwrap();
    for (x, y) in Iter2::new(xs, ys, BATCH) {
        opt.backward_step(&net.forward(&x).mse_loss(&y, tch::Reduction::Mean));
    }
    net
}

/// The argument is a folder.
pub(super) fn s44_results(args: &[&str]) -> Result<()> {
    let [folder] = args else { bail!("expected a folder") };
    let path = PathBuf::from(folder).join(format!("{}.ot", ddp_runtime::world_size()));
    let data = data(ROWS);
    let model = Model::seeded();
    unit(&model.vs, &model.net, &data);
    follows("()", &model.vs, &joined())?;

    let model = Model::seeded();
    let loss = value(&model.vs, &model.net, &data);
    follows("value", &model.vs, &joined())?;

    let model = Model::seeded();
    let saved = result_of_save(&model.vs, &model.net, &data, &path)?;
    alike("losses", &[loss, saved])?;
    ensure!(loss == saved && path.exists(), "{loss} and {saved}");

    let outputs = Vec::<f64>::try_from(module(&data).forward(&data.0).flatten(0, -1))?;
    alike("outputs of the module", &outputs)
}

/// Trains for ever.
struct Endless {
    model: Model,
    batches: Batch,
    opt: RefCell<nn::Optimizer>,
    rounds: Cell<usize>,
    /// Whether the ranks but the first panic in their third round.
    stumbles: bool,
}

impl Endless {
    fn superbatch(&self) {
        for (x, y) in items(&self.batches, BATCH) {
            self.opt.borrow_mut().backward_step(&self.model.net.loss(&x, &y));
        }
        self.rounds.set(self.rounds.get() + 1);
        let well = !self.stumbles || self.rounds.get() < 3 || ddp_runtime::rank() == 0;
        assert!(well, "out of luck");
    }

    #[distributed]
    fn train(&self) {
        println!("begun");
        loop {
            self.superbatch()
        }
    }
}

/// Never returns, unless the argument is `panic`.
pub(super) fn s44_endless(args: &[&str]) -> Result<()> {
    let model = Model::seeded();
    let opt = RefCell::new(Model::adam(&model.vs)?);
    let (batches, stumbles) = (data(ROWS), args == ["panic"]);
    Endless { model, batches, opt, rounds: Cell::new(0), stumbles }.train();
    Ok(())
}
