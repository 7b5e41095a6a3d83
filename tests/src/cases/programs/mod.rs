//! tch's example programs in small, one file each: with the attribute and `batch = "global"` they follow their plain selves.
//!
//! Each keeps the shape of its original. What differs is said at its head; common to all: sizes are small, numbers are f64, and a
//! loss is computed in the dtype of the logits, where tch's `cross_entropy_for_logits` goes through f32.
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use tch::data::TextData;
use tch::vision::dataset::Dataset;
use tch::{Device, Kind, Tensor};

use super::compare::close;

mod char_rnn;
mod cifar;
mod gan;
mod min_gpt;
mod mnist_conv;
mod mnist_linear;
mod mnist_nn;
mod transfer;
mod vae;

/// In f64, after some twenty steps of Adam, whose first steps enlarge what rounding did to small gradients.
const LIMIT: f64 = 1e-8;
const TRAINING: i64 = 100;
const TESTING: i64 = 40;

/// Compiles `$train` as it is, with the attribute alone, and with the options given. A mark is written under a condition that
/// never holds: the attribute sees it, the plain program does not.
macro_rules! program {
    ([$($option:tt)*] $($train:tt)*) => {
        pub(super) mod plain {
            #[allow(unused_imports)]
            use super::*;
            $($train)*
        }
        pub(super) mod per_rank {
            #[allow(unused_imports)]
            use super::*;
            #[ddp_runtime::distributed]
            $($train)*
        }
        pub(super) mod global {
            #[allow(unused_imports)]
            use super::*;
            #[ddp_runtime::distributed($($option)*)]
            $($train)*
        }
    };
}
use program;

/// What a program is given.
struct Task {
    /// Digits of 8x8 pixels, in f64.
    digits: Dataset,
    text: TextData,
    epochs: i64,
    /// Whether another process is to be followed: what is drawn for each sample by itself is left out then.
    follow: bool,
    /// Whether images are augmented, by tch's functions, which draw from generators that nobody can seed.
    augment: bool,
}

impl Task {
    fn new(epochs: i64, follow: bool, augment: bool) -> Result<Self> {
        let all = ddp_examples::data::load(None)?;
        let images = |images: &Tensor, rows| images.narrow(0, 0, rows).to_kind(Kind::Double);
        let digits = Dataset {
            train_images: images(&all.train_images, TRAINING),
            train_labels: all.train_labels.narrow(0, 0, TRAINING),
            test_images: images(&all.test_images, TESTING),
            test_labels: all.test_labels.narrow(0, 0, TESTING),
            labels: all.labels,
        };
        Ok(Self { digits, text: text()?, epochs, follow, augment })
    }

    /// The chance of a dropout that is `chance` in the original.
    fn dropout(&self, chance: f64) -> f64 {
        if self.follow { 0.0 } else { chance }
    }
}

/// Some sixty windows of a text.
fn text() -> Result<TextData> {
    let path = temporary("txt");
    let line = "the quick brown fox jumps over the lazy dog; ";
    std::fs::write(&path, line.repeat(2)).with_context(|| format!("writing {}", path.display()))?;
    let text = TextData::new(&path);
    std::fs::remove_file(&path)?;
    Ok(text?)
}

/// A file of this process.
fn temporary(extension: &str) -> PathBuf {
    std::env::temp_dir().join(format!("ddp-programs-{}.{extension}", std::process::id()))
}

/// As tch's `cross_entropy_for_logits`, in the dtype of the logits.
fn cross_entropy(logits: &Tensor, labels: &Tensor) -> Tensor {
    logits.log_softmax(-1, logits.kind()).nll_loss(labels)
}

/// A program over a task; returns the variables that it trained.
type Program = fn(&Task) -> Result<Vec<Tensor>>;

const PROGRAMS: &[(&str, Program, Program, Program)] = &[
    (
        "mnist-linear",
        mnist_linear::plain::train,
        mnist_linear::per_rank::train,
        mnist_linear::global::train,
    ),
    ("mnist-nn", mnist_nn::plain::train, mnist_nn::per_rank::train, mnist_nn::global::train),
    (
        "mnist-conv",
        mnist_conv::plain::train,
        mnist_conv::per_rank::train,
        mnist_conv::global::train,
    ),
    ("cifar", cifar::plain::train, cifar::per_rank::train, cifar::global::train),
    ("char-rnn", char_rnn::plain::train, char_rnn::per_rank::train, char_rnn::global::train),
    ("min-gpt", min_gpt::plain::train, min_gpt::per_rank::train, min_gpt::global::train),
    ("vae", vae::plain::train, vae::per_rank::train, vae::global::train),
    ("gan", gan::plain::train, gan::per_rank::train, gan::global::train),
    ("transfer", transfer::plain::train, transfer::per_rank::train, transfer::global::train),
];

/// What the plain program, and rank 0, are seeded with.
const SEED: i64 = 7;

/// Zero in place of what is nothing but rounding: the bias of a transformer's keys has no gradient but that.
fn rounded(variables: Vec<Tensor>) -> Vec<Tensor> {
    let noise = |variable: &Tensor| variable.abs().max().double_value(&[]) < 1e-9;
    variables.into_iter().map(|one| if noise(&one) { one.zeros_like() } else { one }).collect()
}

/// With `batch = "global"` the ranks end where one process ends.
fn follow(what: &str, plain: Program, global: Program) -> Result<()> {
    let task = Task::new(2, true, false)?;
    tch::manual_seed(SEED);
    let expected = rounded(plain(&task)?);
    tch::manual_seed(SEED);
    close(what, &rounded(global(&task)?), &expected, LIMIT)?;
    tch::manual_seed(SEED);
    let untrained = rounded(plain(&Task { epochs: 0, ..task })?);
    ensure!(close("untrained", &untrained, &expected, LIMIT).is_err(), "{what} trains nothing");
    Ok(())
}

/// With batches of their own, and seeded apart, the ranks have one course; one rank has that of the plain program.
fn together(what: &str, plain: Program, per_rank: Program) -> Result<()> {
    let task = Task::new(2, false, ddp_runtime::world_size() > 1)?;
    tch::manual_seed(SEED + ddp_runtime::rank() as i64);
    let found = per_rank(&task)?;
    let scope = ddp_runtime::init()?;
    for (index, tensor) in found.iter().enumerate() {
        ensure!(bool::try_from(tensor.isfinite().all())?, "{what}: tensor {index} is not finite");
        for (rank, other) in scope.all_gather(tensor)?.iter().enumerate() {
            ensure!(other.equal(tensor), "{what}: tensor {index} is another one on rank {rank}");
        }
    }
    let alone = scope.world_size() == 1;
    scope.finish()?;
    tch::manual_seed(SEED);
    let epochs = if alone { task.epochs } else { 0 };
    let other = plain(&Task { epochs, ..task })?;
    let same = close(what, &found, &other, 0.0);
    if alone {
        return same;
    }
    ensure!(same.is_err(), "{what} trains nothing");
    Ok(())
}

pub(super) fn run(args: &[String]) -> Result<()> {
    let [mode, names @ ..] = args else { bail!("expected `global` or `per-rank`, and programs") };
    for name in names {
        let known = PROGRAMS.iter().find(|(known, ..)| known == name);
        let Some((what, plain, per_rank, global)) = known else {
            bail!("no program is called {name}")
        };
        match mode.as_str() {
            "global" => follow(what, *plain, *global)?,
            "per-rank" => together(what, *plain, *per_rank)?,
            _ => bail!("expected `global` or `per-rank`, got {mode}"),
        }
    }
    Ok(())
}
