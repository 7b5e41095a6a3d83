//! With `batch = "global"` an annotated program follows the course of a single process: the same tokens, compiled twice.
use std::path::PathBuf;

use anyhow::{Context, Result, bail, ensure};
use ddp_runtime::data::ShardedIter2;
use tch::data::{Iter2, TextData};
use tch::nn::{self, ModuleT, OptimizerConfig};
use tch::{Device, Kind, Tensor};

use super::compare::close;

const SAMPLES: i64 = 100;
const EPOCHS: i64 = 3;
/// In f64, after some twenty steps.
const LIMIT: f64 = 1e-10;

/// Compiles `$train` as it is, and again with the attribute.
macro_rules! both {
    ($name:ident { $($train:tt)* }) => {
        mod $name {
            pub(super) mod plain {
                #[allow(unused_imports)]
                use super::super::*;
                $($train)*
            }
            pub(super) mod shared {
                #[allow(unused_imports)]
                use super::super::*;
                #[ddp_runtime::distributed(batch = "global")]
                $($train)*
            }
        }
    };
}

/// What a program is made of.
struct Task {
    model: fn(&nn::Path) -> nn::SequentialT,
    optimizer: fn(&nn::VarStore) -> Result<nn::Optimizer>,
    batch: i64,
    x: Tensor,
    y: Tensor,
}

/// As tch's `cross_entropy_for_logits`, which always computes in f32, but in the dtype of the logits.
fn cross_entropy(logits: &Tensor, y: &Tensor) -> Tensor {
    logits.log_softmax(-1, logits.kind()).nll_loss(y)
}

/// Smooth: rounding does not flip an activation.
fn mlp(root: &nn::Path) -> nn::SequentialT {
    nn::seq_t()
        .add(nn::linear(root / "in", 12, 32, Default::default()))
        .add_fn(Tensor::tanh)
        .add(nn::linear(root / "out", 32, 5, Default::default()))
}

fn conv(root: &nn::Path) -> nn::SequentialT {
    nn::seq_t()
        .add_fn(|x| x.view([-1, 1, 3, 4]))
        .add(nn::conv2d(
            root / "conv",
            1,
            6,
            3,
            nn::ConvConfig { padding: 1, ..Default::default() },
        ))
        .add_fn(|x| x.tanh().flatten(1, -1))
        .add(nn::linear(root / "out", 72, 5, Default::default()))
}

fn adam(store: &nn::VarStore) -> Result<nn::Optimizer> {
    Ok(nn::Adam::default().build(store, 1e-2)?)
}

fn sgd(store: &nn::VarStore) -> Result<nn::Optimizer> {
    Ok(nn::Sgd { momentum: 0.9, wd: 1e-4, ..Default::default() }.build(store, 0.1)?)
}

/// The labels have something to do with the inputs, so that weights move.
fn task(model: &str, optimizer: &str, batch: i64) -> Result<Task> {
    tch::manual_seed(3);
    let x = Tensor::randn([SAMPLES, 12], (Kind::Double, Device::Cpu));
    let y = x.narrow(1, 0, 5).argmax(1, false);
    let model = match model {
        "mlp" => mlp,
        "conv" => conv,
        _ => bail!("no model is called {model}"),
    };
    let optimizer = match optimizer {
        "adam" => adam,
        "sgd" => sgd,
        _ => bail!("no optimizer is called {optimizer}"),
    };
    Ok(Task { model, optimizer, batch, x, y })
}

both!(epochs {
    pub(in super::super) fn train(task: &Task) -> Result<Vec<Tensor>> {
        tch::manual_seed(7);
        let mut vs = nn::VarStore::new(Device::Cpu);
        let net = (task.model)(&vs.root());
        vs.double();
        let mut opt = (task.optimizer)(&vs)?;
        for _epoch in 0..EPOCHS {
            let mut batches = Iter2::new(&task.x, &task.y, task.batch);
            for (x, y) in batches.shuffle().return_smaller_last_batch() {
                opt.backward_step(&cross_entropy(&net.forward_t(&x, true), &y));
            }
        }
        Ok(vs.trainable_variables())
    }
});

both!(unseeded {
    pub(in super::super) fn train(task: &Task) -> Result<Vec<Tensor>> {
        let mut vs = nn::VarStore::new(Device::Cpu);
        let net = (task.model)(&vs.root());
        vs.double();
        let mut opt = (task.optimizer)(&vs)?;
        for _epoch in 0..EPOCHS {
            for (x, y) in Iter2::new(&task.x, &task.y, task.batch).shuffle() {
                opt.backward_step(&cross_entropy(&net.forward_t(&x, true), &y));
            }
        }
        Ok(vs.trainable_variables())
    }
});

// Other draws from the generator, a reseeding, no shuffle, gradients that accumulate, a loop left early and a step on all data
// after it.
both!(mixed {
    pub(in super::super) fn train(task: &Task) -> Result<Vec<Tensor>> {
        tch::manual_seed(7);
        let mut vs = nn::VarStore::new(Device::Cpu);
        let net = (task.model)(&vs.root());
        vs.double();
        let mut opt = (task.optimizer)(&vs)?;
        for epoch in 0..EPOCHS {
            let order = Tensor::randperm(SAMPLES, (Kind::Int64, Device::Cpu));
            println!("an order of the program's own begins with {}", order.int64_value(&[0]));
            if epoch == 1 {
                tch::manual_seed(11);
            }
            for (step, (x, y)) in Iter2::new(&task.x, &task.y, task.batch).shuffle().enumerate() {
                (cross_entropy(&net.forward_t(&x, true), &y) / 2.0).backward();
                if step % 2 == 1 {
                    opt.step();
                    opt.zero_grad();
                }
            }
            opt.zero_grad();
            for (x, y) in Iter2::new(&task.x, &task.y, task.batch).take(2) {
                opt.backward_step(&cross_entropy(&net.forward_t(&x, true), &y));
            }
            opt.backward_step(&cross_entropy(&net.forward_t(&task.x, true), &task.y));
        }
        Ok(vs.trainable_variables())
    }
});

both!(text {
    pub(in super::super) fn train(corpus: &TextData) -> Result<Vec<Tensor>> {
        tch::manual_seed(7);
        let mut vs = nn::VarStore::new(Device::Cpu);
        let labels = corpus.labels();
        let embedding = nn::embedding(vs.root() / "in", labels, 16, Default::default());
        let head = nn::linear(vs.root() / "out", 16, labels, Default::default());
        vs.double();
        let mut opt = sgd(&vs)?;
        for _epoch in 0..EPOCHS {
            for window in corpus.iter_shuffle(9, 16) {
                let window = window.to_kind(Kind::Int64);
                let logits = window.narrow(1, 0, 8).apply(&embedding).tanh().apply(&head);
                let loss = cross_entropy(&logits.flatten(0, 1), &window.narrow(1, 1, 8).flatten(0, 1));
                opt.backward_step(&loss);
            }
        }
        Ok(vs.trainable_variables())
    }
});

/// Batches that are drawn ahead: the weights of the parts cannot be told.
#[ddp_runtime::distributed(batch = "global")]
fn ahead(task: &Task) -> Result<Vec<Tensor>> {
    tch::manual_seed(7);
    let mut vs = nn::VarStore::new(Device::Cpu);
    let net = (task.model)(&vs.root());
    vs.double();
    let mut opt = (task.optimizer)(&vs)?;
    let batches: Vec<(Tensor, Tensor)> = Iter2::new(&task.x, &task.y, task.batch).collect();
    for (x, y) in &batches {
        opt.backward_step(&cross_entropy(&net.forward_t(x, true), y));
    }
    Ok(vs.trainable_variables())
}

/// Every second backward is averaged, together with the one before it, which `quietly` keeps on this rank.
fn in_pairs(
    task: &Task,
    batches: impl Fn() -> Batches,
    enter: impl FnOnce(&nn::VarStore) -> Result<()>,
    quietly: impl Fn(&dyn Fn()),
) -> Result<Vec<Tensor>> {
    let mut vs = nn::VarStore::new(Device::Cpu);
    let net = (task.model)(&vs.root());
    vs.double();
    enter(&vs)?;
    let mut opt = (task.optimizer)(&vs)?;
    for _epoch in 0..EPOCHS {
        for (step, (x, y)) in batches().enumerate() {
            let backward = || (cross_entropy(&net.forward_t(&x, true), &y) / 2.0).backward();
            if step % 2 == 0 {
                quietly(&backward);
            } else {
                backward();
                opt.step();
                opt.zero_grad();
            }
        }
    }
    Ok(vs.trainable_variables())
}

type Batches = Box<dyn Iterator<Item = (Tensor, Tensor)>>;

/// Without the attribute: the same through public API, and backwards that are averaged later.
fn by_hand(task: &Task) -> Result<()> {
    let plain = || -> Batches {
        let mut batches = Iter2::new(&task.x, &task.y, task.batch);
        batches.shuffle().return_smaller_last_batch();
        Box::new(batches)
    };
    tch::manual_seed(7);
    let expected = in_pairs(task, plain, |_| Ok(()), |backward| backward())?;
    tch::manual_seed(7);
    let scope = ddp_runtime::init()?;
    let split = || -> Batches {
        let mut batches = ShardedIter2::split(&task.x, &task.y, task.batch, scope.share());
        batches.shuffle().return_smaller_last_batch();
        Box::new(batches)
    };
    let quietly = |backward: &dyn Fn()| scope.no_sync(backward);
    let found = in_pairs(task, split, |vs| Ok(scope.register(vs)?), quietly)?;
    scope.finish()?;
    close("by hand", &found, &expected, LIMIT)
}

mod inner {
    use super::{Task, epochs};

    /// The option on the inner function alone.
    #[ddp_runtime::distributed]
    pub(super) fn train(task: &Task) -> anyhow::Result<Vec<tch::Tensor>> {
        epochs::shared::train(task)
    }
}

type Train = fn(&Task) -> Result<Vec<Tensor>>;

pub(super) fn run(args: &[String]) -> Result<()> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["text"] => follow_text(),
        ["by-hand"] => by_hand(&task("mlp", "adam", 13)?),
        ["sizes"] => {
            let mut task = task("mlp", "sgd", 16)?;
            let rows = SAMPLES - ddp_runtime::rank() as i64;
            (task.x, task.y) = (task.x.narrow(0, 0, rows), task.y.narrow(0, 0, rows));
            epochs::shared::train(&task).map(drop)
        }
        ["inner"] => inner::train(&task("mlp", "sgd", 16)?).map(drop),
        ["ahead", batch] => ahead(&task("mlp", "sgd", batch.parse()?)?).map(drop),
        ["ragged", batch] => epochs::shared::train(&task("mlp", "sgd", batch.parse()?)?).map(drop),
        ["seeded-apart", model, optimizer] => {
            let task = task(model, optimizer, 16)?;
            tch::manual_seed(1000);
            let expected = unseeded::plain::train(&task)?;
            // As a program that seeds by the clock: what rank 0 draws counts.
            tch::manual_seed(1000 + ddp_runtime::rank() as i64);
            close("seeded apart", &unseeded::shared::train(&task)?, &expected, LIMIT)
        }
        [program, model, optimizer, batch] => {
            let (plain, shared): (Train, Train) = match *program {
                "epochs" => (epochs::plain::train, epochs::shared::train),
                "mixed" => (mixed::plain::train, mixed::shared::train),
                _ => bail!("no program is called {program}"),
            };
            follow(program, plain, shared, &task(model, optimizer, batch.parse()?)?)
        }
        _ => bail!("expected a program, a model, an optimizer and a batch size, got {args:?}"),
    }
}

fn follow(what: &str, plain: Train, shared: Train, task: &Task) -> Result<()> {
    let expected = plain(task)?;
    let found = shared(task)?;
    close(what, &found, &expected, LIMIT)
}

fn follow_text() -> Result<()> {
    let path: PathBuf = std::env::temp_dir().join(format!("ddp-global-{}.txt", std::process::id()));
    std::fs::write(
        &path,
        "the quick brown fox jumps over the lazy dog, and goes its way. ".repeat(2),
    )
    .with_context(|| format!("writing {}", path.display()))?;
    let corpus = TextData::new(&path);
    std::fs::remove_file(&path)?;
    let corpus = corpus?;
    let expected = text::plain::train(&corpus)?;
    ensure!(expected.len() == 3, "{} variables", expected.len());
    close("text", &text::shared::train(&corpus)?, &expected, LIMIT)
}
