//! Checkpoints: runs that are killed and go on, damaged files, other numbers of ranks, ranks that see other files.
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use ddp_runtime::{Checkpoints, Progress, distributed, should_stop};
use tch::data::Iter2;
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Device, Kind, Tensor};

use super::compare::close;

const ROWS: i64 = 48;
const BATCH: i64 = 2;

/// Rows that carry their number, and what is to be learned of them.
fn data() -> (Tensor, Tensor) {
    let numbers = Tensor::arange(ROWS, (Kind::Float, Device::Cpu));
    let xs = Tensor::stack(&[(&numbers * 0.7).sin(), (&numbers * 1.3).cos(), numbers], 1);
    let ys = (xs.select(1, 0) * 2.0 + xs.select(1, 1)).unsqueeze(1);
    (xs, ys)
}

struct Net {
    first: nn::Linear,
    second: nn::Linear,
}

impl Net {
    fn new(vs: &nn::Path) -> Self {
        Self {
            first: nn::linear(vs / "first", 2, 8, Default::default()),
            second: nn::linear(vs / "second", 8, 1, Default::default()),
        }
    }

    /// With dropout and noise, so that a wrong random number is seen in the weights.
    fn loss(&self, xs: &Tensor, ys: &Tensor) -> Tensor {
        let xs = xs.narrow(1, 0, 2);
        let hidden = self.first.forward(&(&xs + xs.randn_like() * 0.1)).tanh().dropout(0.3, true);
        (self.second.forward(&hidden) - ys).square().mean(Kind::Float)
    }
}

/// All bits of all variables in one number.
fn digest(vs: &nn::VarStore) -> Result<String> {
    let mut hasher = DefaultHasher::new();
    for variable in vs.trainable_variables() {
        for value in Vec::<f32>::try_from(variable.view(-1))? {
            value.to_bits().hash(&mut hasher);
        }
    }
    Ok(format!("{:016x}", hasher.finish()))
}

/// Kills this process some time from now, wherever it is.
fn kill_after(millis: u64) {
    std::thread::spawn(move || {
        std::thread::sleep(Duration::from_millis(millis));
        let me = std::process::id().to_string();
        Command::new("kill").args(["-KILL", &me]).status()
    });
}

/// How a run is disturbed.
#[derive(Clone, Copy, Default)]
struct Plan {
    epochs: u64,
    /// Rank `victim` is killed so many steps from where it begins, and then so many milliseconds later.
    kill: Option<(usize, u64, u64)>,
    /// The step after which the run saves and ends.
    stop: Option<u64>,
    /// Milliseconds that a step takes at least.
    pause: u64,
}

/// Trains, with a checkpoint every three steps and one at the end of each epoch. Returns the digest and the rows it has seen.
#[distributed]
fn train(folder: &Path, plan: Plan, seen: &mut Vec<i64>) -> Result<String> {
    tch::manual_seed(5);
    let (xs, ys) = data();
    let vs = nn::VarStore::new(Device::Cpu);
    let net = Net::new(&vs.root());
    let mut opt = nn::Adam::default().build(&vs, 1e-2)?;
    let checkpoints = Checkpoints::new(folder).keep(2);
    let mut best = f64::INFINITY;
    let progress = checkpoints.resume(|saved| {
        saved.store("model", &vs)?;
        saved.optimizer("adam", &mut opt)?;
        best = saved.value("best")?;
        Ok(())
    })?;
    if progress.is_resumed() {
        eprintln!("resumed at epoch {} step {}", progress.epoch(), progress.step());
    }
    let begun = progress.step();
    let save = |opt: &nn::Optimizer, best: f64, progress: &Progress| {
        checkpoints.save(progress, |to| {
            to.store("model", &vs)?;
            to.optimizer("adam", opt)?;
            to.value("best", &best)
        })
    };
    for epoch in progress.epochs(plan.epochs) {
        opt.set_lr(1e-2 / (1.0 + epoch as f64));
        for (x, y) in progress.batches(Iter2::new(&xs, &ys, BATCH).shuffle()) {
            let loss = net.loss(&x, &y);
            opt.backward_step(&loss);
            best = best.min(ddp_runtime::mean(f64::try_from(&loss)?));
            seen.extend(Vec::<f64>::try_from(x.select(1, 2))?.into_iter().map(|row| row as i64));
            std::thread::sleep(Duration::from_millis(plan.pause));
            if let Some((victim, steps, millis)) = plan.kill
                && victim == ddp_runtime::rank()
                && progress.step() == begun + steps
            {
                kill_after(millis);
            }
            let stop = plan.stop == Some(progress.step());
            if stop || progress.step() % 3 == 0 {
                save(&opt, best, &progress)?;
            }
            if should_stop(stop) {
                return digest(&vs);
            }
        }
        save(&opt, best, &progress)?;
    }
    ensure!(best.is_finite(), "the best loss was forgotten");
    digest(&vs)
}

fn number(text: &str) -> Result<u64> {
    Ok(text.parse()?)
}

/// Prints the digest at the end and the rows seen, on every rank.
fn run_plan(folder: &str, plan: Plan) -> Result<()> {
    let mut seen = Vec::new();
    let digest = train(Path::new(folder), plan, &mut seen)?;
    let rows: Vec<String> = seen.iter().map(i64::to_string).collect();
    println!("rows {}", rows.join(" "));
    println!("weights {digest}");
    Ok(())
}

/// A small run in one process, with two checkpoints; returns the weights of both.
fn two_checkpoints(checkpoints: &Checkpoints) -> Result<[Tensor; 2]> {
    let vs = nn::VarStore::new(Device::Cpu);
    let weight = vs.root().randn_standard("weight", &[3]);
    let mut opt = nn::Adam::default().build(&vs, 0.1)?;
    let progress = checkpoints.resume(|_| Ok(()))?;
    let mut weights = Vec::new();
    for _ in progress.batches(0..2) {
        opt.backward_step(&weight.square().sum(Kind::Float));
        checkpoints.save(&progress, |to| {
            to.store("model", &vs)?;
            to.optimizer("adam", &opt)
        })?;
        weights.push(weight.detach().copy());
    }
    Ok([weights.remove(0), weights.remove(0)])
}

/// What a run that resumes gets: its weights, or the error.
fn resumed_weights(folder: &Path) -> ddp_runtime::Result<Tensor> {
    let vs = nn::VarStore::new(Device::Cpu);
    let weight = vs.root().zeros("weight", &[3]);
    let mut opt = nn::Adam::default().build(&vs, 0.1).expect("Adam can be built");
    Checkpoints::new(folder).resume(|saved| {
        saved.store("model", &vs)?;
        saved.optimizer("adam", &mut opt)
    })?;
    Ok(weight.detach().copy())
}

/// Changes every byte of the newest checkpoint, one at a time: what is resumed is the one before it.
fn damage(folder: &str) -> Result<()> {
    let folder = Path::new(folder);
    let [older, newer] = two_checkpoints(&Checkpoints::new(folder))?;
    ensure!(
        resumed_weights(folder)? == newer && older != newer,
        "the newest is not the one resumed"
    );
    let newest = folder.join("000002-step-2");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(&newest)?.map(|file| Ok(file?.path())).collect::<Result<_>>()?;
    files.sort();
    ensure!(files.len() == 4, "a checkpoint of {files:?}");
    for path in files {
        let bytes = std::fs::read(&path)?;
        let name = path.display();
        // Every byte of the weights, and a sample of the others. (Of the manifest its own unit test takes every bit.)
        let every = bytes.len().div_ceil(120);
        for at in (0..bytes.len()).step_by(every) {
            let mut damaged = bytes.clone();
            damaged[at] ^= 1 << (at % 8);
            std::fs::write(&path, &damaged)?;
            ensure!(resumed_weights(folder)? == older, "byte {at} of {name} went unseen");
        }
        for cut in [0, 1, bytes.len() / 2, bytes.len() - 1] {
            std::fs::write(&path, &bytes[..cut])?;
            ensure!(resumed_weights(folder)? == older, "{name} of {cut} bytes went unseen");
        }
        std::fs::remove_file(&path)?;
        ensure!(resumed_weights(folder)? == older, "{name} is missing, unseen");
        std::fs::write(&path, &bytes)?;
    }
    ensure!(resumed_weights(folder)? == newer, "the files were put back");
    for checkpoint in ["000001-step-1", "000002-step-2"] {
        std::fs::write(folder.join(checkpoint).join("checkpoint.json"), "{}")?;
    }
    let Err(error) = resumed_weights(folder) else {
        bail!("began anew beside damaged checkpoints")
    };
    let text = error.to_string();
    ensure!(text.contains("none of the checkpoints is whole"), "{text}");
    Ok(())
}

/// A program that has changed since: nothing is filled by halves, and the first difference is named.
fn changed(folder: &str) -> Result<()> {
    let checkpoints = Checkpoints::new(folder);
    let _ = two_checkpoints(&checkpoints)?;
    let refused = |build: &dyn Fn(&nn::Path) -> Tensor, said: &str| {
        let vs = nn::VarStore::new(Device::Cpu);
        let weight = build(&vs.root());
        let before = weight.detach().copy();
        let Err(error) = checkpoints.resume(|saved| saved.store("model", &vs)) else {
            bail!("accepted, where `{said}` was expected");
        };
        ensure!(error.to_string().contains(said), "`{said}` is not in: {error}");
        ensure!(weight == before, "filled by halves");
        Ok(())
    };
    refused(
        &|path| path.zeros("weight", &[4]),
        "variable `weight` of store `model` is [3] of Float in it",
    )?;
    refused(&|path| path.zeros("bias", &[3]), "it has no variable `bias` of store `model`")?;
    let more = |path: &nn::Path| {
        let _ = path.zeros("weight", &[3]);
        path.zeros("bias", &[3])
    };
    refused(&more, "it has no variable `bias`")?;
    refused(&|_| Tensor::zeros([1], (Kind::Float, Device::Cpu)), "it has a variable `weight`")?;
    let vs = nn::VarStore::new(Device::Cpu);
    let _ = vs.root().zeros("weight", &[3]);
    let mut sgd = nn::Sgd::default().build(&vs, 0.1)?;
    let outcome = checkpoints.resume(|saved| {
        saved.store("model", &vs)?;
        saved.optimizer("adam", &mut sgd)
    });
    let text = outcome.err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(text.contains("the optimizer `adam` is Adam in it and SGD in the program"), "{text}");
    let outcome = checkpoints.resume(|saved| saved.value::<f64>("best").map(drop));
    let text = outcome.err().map(|error| error.to_string()).unwrap_or_default();
    ensure!(text.contains("it has no value `best`"), "{text}");
    Ok(())
}

/// The weights that `VarStore::load` reads, without any scope.
fn plain_file(folder: &str) -> Result<()> {
    let [_, newer] = two_checkpoints(&Checkpoints::new(folder))?;
    let path = Path::new(folder).join("000002-step-2").join("model.safetensors");
    let mut vs = nn::VarStore::new(Device::Cpu);
    let weight = vs.root().zeros("weight", &[3]);
    vs.load(&path)?;
    close("VarStore::load", &[weight], &[newer], 0.0)
}

/// Each rank looks into a folder of its own; rank 0's has a checkpoint.
fn apart(folder: &str) -> Result<()> {
    let own = Path::new(folder).join(ddp_runtime::rank().to_string());
    if ddp_runtime::rank() == 0 {
        let _ = two_checkpoints(&Checkpoints::new(&own))?;
    }
    let scope = ddp_runtime::init()?;
    Checkpoints::new(&own).resume(|_| Ok(()))?;
    scope.finish()?;
    Ok(())
}

/// Each rank names a folder of its own: whoever writes is seen by it.
fn writers(folder: &str) -> Result<()> {
    let scope = ddp_runtime::init()?;
    let own = Path::new(folder).join(scope.rank().to_string());
    let checkpoints = Checkpoints::new(&own);
    let progress = checkpoints.resume(|_| Ok(()))?;
    let vs = nn::VarStore::new(Device::Cpu);
    let _ = vs.root().zeros("weight", &[3]);
    let saved = checkpoints.save(&progress, |to| to.store("model", &vs))?;
    scope.barrier()?;
    ensure!(own.exists() == scope.is_main(), "rank {} has {}", scope.rank(), own.display());
    let expected = Path::new(folder).join("0").join("000001-step-0");
    ensure!(saved == expected, "rank {} was told {}", scope.rank(), saved.display());
    scope.finish()?;
    Ok(())
}

/// A folder that cannot be made: all ranks get the error, and go on.
fn unwritable(folder: &str) -> Result<()> {
    let scope = ddp_runtime::init()?;
    let path = Path::new(folder).join("file");
    ddp_runtime::main_only(|| std::fs::write(&path, "in the way")).transpose()?;
    scope.barrier()?;
    let elsewhere = Checkpoints::new(Path::new(folder).join("good"));
    let progress = elsewhere.resume(|_| Ok(()))?;
    let outcome = Checkpoints::new(&path).save(&progress, |to| to.value("one", &1));
    let Err(error) = outcome else { bail!("saved into a file") };
    ensure!(error.to_string().contains("file"), "{error}");
    // What one rank's closure refuses, none saves.
    let rank = scope.rank();
    let outcome = elsewhere.save(&progress, |to| {
        to.value("one", &1)?;
        if rank == 1 { to.value("one", &1) } else { Ok(()) }
    });
    let Err(error) = outcome else { bail!("saved what rank 1 refused") };
    ensure!(error.to_string().contains("rank 1"), "{error}");
    let saved = elsewhere.save(&progress, |to| to.value("one", &1))?;
    ensure!(saved.exists(), "{} is not there", saved.display());
    scope.finish()?;
    Ok(())
}

/// Rank 1 saves other parts, or is in a barrier.
fn differ(folder: &str, how: &str) -> Result<()> {
    let scope = ddp_runtime::init()?;
    let checkpoints = Checkpoints::new(folder);
    let progress = checkpoints.resume(|_| Ok(()))?;
    let odd = scope.rank() == 1;
    if how == "barrier" && odd {
        scope.barrier()?;
    } else {
        let name = if odd { "other" } else { "one" };
        checkpoints.save(&progress, |to| to.value(name, &1))?;
    }
    scope.finish()?;
    Ok(())
}

pub(super) fn run(args: &[String]) -> Result<()> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["train", folder, epochs] => {
            run_plan(folder, Plan { epochs: number(epochs)?, ..Plan::default() })
        }
        ["killed", folder, epochs, victim, steps, millis] => {
            let victim = usize::try_from(number(victim)?)?;
            let kill = Some((victim, number(steps)?, number(millis)?));
            run_plan(folder, Plan { epochs: number(epochs)?, kill, pause: 10, stop: None })
        }
        ["stop", folder, epochs, step] => {
            let stop = Some(number(step)?);
            run_plan(folder, Plan { epochs: number(epochs)?, stop, ..Plan::default() })
        }
        ["damage", folder] => damage(folder),
        ["changed", folder] => changed(folder),
        ["plain-file", folder] => plain_file(folder),
        ["apart", folder] => apart(folder),
        ["writers", folder] => writers(folder),
        ["unwritable", folder] => unwritable(folder),
        ["differ", folder, how] => differ(folder, how),
        _ => bail!("no case of checkpoint is called {args:?}"),
    }
}
