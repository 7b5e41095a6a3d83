//! Saving and loading: in every form, keeping the best, resuming.
#![allow(clippy::unwrap_used, reason = "the programs of these shapes are written like this")]
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail, ensure};
use ddp_runtime::{distributed, main_first, main_only};
use tch::data::Iter2;
use tch::{Tensor, nn};

use super::one_process::{Batch, Model, Net, alike, both, data, equal, of_all_ranks};

const ROWS: i64 = 24;
const BATCH: i64 = 4;

/// The folder of a job of this many ranks.
fn of_job(args: &[&str]) -> Result<PathBuf> {
    let Some(folder) = args.last() else { bail!("expected a folder") };
    let folder = Path::new(folder).join(ddp_runtime::world_size().to_string());
    std::fs::create_dir_all(&folder)?;
    Ok(folder)
}

/// The error of a folder that is not there, and the result of the last save as the function's own.
#[distributed]
fn all_forms(
    vs: &nn::VarStore,
    net: &Net,
    (xs, ys): &Batch,
    run: &Path,
    failure: &mut String,
) -> Result<(), tch::TchError> {
    let mut opt = Model::adam(vs)?;
    main_first(|| if run.exists() { Ok(()) } else { std::fs::create_dir(run) }).unwrap();
    for epoch in 0..2 {
        for (x, y) in Iter2::new(xs, ys, BATCH) {
            opt.backward_step(&net.loss(&x, &y));
        }
        vs.save(run.join("last.ot")).unwrap();
        if let Err(err) = vs.save(run.join(format!("{epoch}.safetensors"))) {
            eprintln!("{err}");
        }
        vs.save(run.join("sure.ot"))?;
    }
    match vs.save(run.join("missing").join("x.ot")) {
        Ok(()) => failure.push_str("none"),
        Err(err) => failure.push_str(&err.to_string()),
    }
    // Another path on each rank: only the main rank's is written.
    vs.save(run.join(format!("of-rank-{}.ot", ddp_runtime::rank())))?;
    // A writer of the program's own.
    if let Some(Err(err)) = main_only(|| std::fs::write(run.join("epoch.txt"), "2")) {
        eprintln!("{err}");
    }
    vs.save(run.join("end.ot"))
}

fn names(folder: &Path) -> Result<BTreeSet<String>> {
    let entries = std::fs::read_dir(folder)?.collect::<std::io::Result<Vec<_>>>()?;
    Ok(entries.iter().map(|entry| entry.file_name().to_string_lossy().into_owned()).collect())
}

pub(super) fn s36_forms_of_save(args: &[&str]) -> Result<()> {
    let run = of_job(args)?.join("run");
    let (model, mut failure) = (Model::seeded(), String::new());
    all_forms(&model.vs, &model.net, &data(ROWS), &run, &mut failure)?;
    ensure!(failure.contains("missing"), "the error of a missing folder is {failure:?}");
    let found = names(&run)?;
    let expected = [
        "0.safetensors",
        "1.safetensors",
        "end.ot",
        "epoch.txt",
        "last.ot",
        "of-rank-0.ot",
        "sure.ot",
    ];
    ensure!(found.iter().eq(expected.iter()), "the folder has {found:?}");
    for file in ["last.ot", "sure.ot", "end.ot", "1.safetensors"] {
        let mut read = Model::seeded();
        read.vs.load(run.join(file))?;
        let (found, expected) = (read.vs.trainable_variables(), model.vs.trainable_variables());
        ensure!(found == expected, "{file} has other weights");
    }
    Ok(())
}

fn whole_loss(net: &Net, xs: &Tensor, ys: &Tensor) -> f64 {
    tch::no_grad(|| net.loss(xs, ys).double_value(&[]))
}

/// What this rank alone thinks of the model, out of the attribute's sight.
fn own_opinion(epoch: usize) -> f64 {
    if ddp_runtime::rank() == 1 && epoch == 2 { 1e9 } else { 1.0 / (epoch + 1) as f64 }
}

/// Saves when the figure is the best so far; returns how often.
#[distributed]
fn keep_best(
    vs: &nn::VarStore,
    net: &Net,
    (xs, ys): &Batch,
    path: &Path,
    alone: bool,
) -> Result<usize> {
    let mut opt = Model::adam(vs)?;
    let (mut best, mut saves) = (f64::INFINITY, 0);
    for epoch in 0..4 {
        for (x, y) in Iter2::new(xs, ys, BATCH) {
            opt.backward_step(&net.loss(&x, &y));
        }
        let figure = if alone { own_opinion(epoch) } else { whole_loss(net, xs, ys) };
        if figure < best {
            best = figure;
            vs.save(path)?;
            saves += 1;
        }
    }
    Ok(saves)
}

/// `together` or `alone`, and a folder.
pub(super) fn s37_keep_the_best(args: &[&str]) -> Result<()> {
    let path = of_job(args)?.join("best.ot");
    let (model, data) = (Model::seeded(), data(ROWS));
    let saves = keep_best(&model.vs, &model.net, &data, &path, args.first() == Some(&"alone"))?;
    alike("saves", &[saves as f64])?;
    ensure!(saves > 1 && path.exists(), "saved {saves} times");
    let mut read = Model::seeded();
    read.vs.load(&path)?;
    let losses =
        [whole_loss(&read.net, &data.0, &data.1), whole_loss(&model.net, &data.0, &data.1)];
    ensure!(losses[0] <= losses[1], "the best loss is {}, the last {}", losses[0], losses[1]);
    alike("loss of the best", &losses)
}

// Goes on where the file ends, and loads each file right after it was written.
both!(resuming: fn train(vs: &mut nn::VarStore, net: &Net, (xs, ys): &Batch, batch: i64, path: &Path, epochs: i64) -> Result<i64> {
    let mut epoch_of_file = vs.root().zeros_no_train("epoch", &[]);
    vs.double();
    let mut start = 0;
    if path.exists() {
        vs.load(path)?;
        start = vs.root().get("epoch").map_or(0, |epoch| epoch.double_value(&[]) as i64);
    }
    let mut opt = Model::adam(vs)?;
    for epoch in start..epochs {
        for (x, y) in Iter2::new(xs, ys, batch) {
            opt.backward_step(&net.loss(&x, &y));
        }
        let _ = epoch_of_file.fill_((epoch + 1) as f64);
        vs.save(path)?;
        vs.load(path)?;
    }
    Ok(start)
});

/// Two runs of two epochs each, the second from the first one's file.
pub(super) fn s38_resume(args: &[&str]) -> Result<()> {
    let folder = of_job(args)?;
    let (data, world) = (data(ROWS), ddp_runtime::world_size());
    let (shared, own) =
        (folder.join("last.ot"), folder.join(format!("{}.ot", ddp_runtime::rank())));
    let mut weights = (Vec::new(), Vec::new());
    for run in 0..2 {
        let (first, last) = (2 * run, 2 * run + 2);
        let mut model = Model::seeded();
        let start =
            resuming::shared::train(&mut model.vs, &model.net, &data, BATCH, &shared, last)?;
        ensure!(start == first, "run {run} began in epoch {start}");
        weights.0 = model.vs.trainable_variables();
        let mut model = Model::seeded();
        let batch = BATCH * world as i64;
        resuming::plain::train(&mut model.vs, &model.net, &data, batch, &own, last)?;
        weights.1 = model.vs.trainable_variables();
    }
    equal("resumed", &weights.0, &weights.1)
}

/// The file of a first run can be seen by rank 0 alone.
pub(super) fn s38_seen_by_one(args: &[&str]) -> Result<()> {
    let path = of_job(args)?.join(format!("{}.ot", ddp_runtime::rank()));
    let data = data(ROWS);
    if ddp_runtime::rank() == 0 {
        let mut model = Model::seeded();
        resuming::plain::train(&mut model.vs, &model.net, &data, BATCH, &path, 2)?;
    }
    of_all_ranks(&Tensor::from(0.0))?;
    let mut model = Model::seeded();
    resuming::shared::train(&mut model.vs, &model.net, &data, BATCH, &path, 4).map(drop)
}
