//! What a name does not say and a type does: stores behind pointers, bars of iterators, results under other names.
#![allow(clippy::unwrap_used, reason = "the programs of these shapes are written like this")]
use std::cell::RefCell;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, RwLock};

use anyhow::{Result, bail, ensure};
use ddp_runtime::{distributed, rank0, sum};
use indicatif::{ProgressBar, ProgressBarIter, ProgressDrawTarget};
use tch::{Device, TchError, nn};

use super::one_process::{Batch, Model, Net, alike, data};
use super::output::Screen;

fn store() -> nn::VarStore {
    let vs = nn::VarStore::new(Device::Cpu);
    let _ = vs.root().zeros("w", &[2]);
    vs
}

/// A table of the program's own, which every rank writes.
struct Table(Vec<String>);

impl Table {
    fn save(&mut self, path: &Path) -> usize {
        self.0.push(path.display().to_string());
        self.0.len()
    }
}

/// Saves through every pointer of std to a folder that only the main rank has.
#[distributed]
fn behind_pointers(own: &Path, table: &mut Table) -> Result<(), TchError> {
    let (locked, read) = (Mutex::new(store()), RwLock::new(store()));
    let (cell, rc) = (RefCell::new(store()), Rc::new(store()));
    let (arc, mut boxed) = (Arc::new(store()), Box::new(store()));
    let guard = locked.lock().unwrap();
    guard.save(own.join("mutex.ot"))?;
    read.read().unwrap().save(own.join("read.ot"))?;
    read.write().unwrap().save(own.join("write.ot"))?;
    cell.borrow().save(own.join("ref.ot"))?;
    cell.borrow_mut().save(own.join("ref_mut.ot"))?;
    (&rc).save(own.join("rc.ot"))?;
    arc.save(own.join("arc.ot"))?;
    let held = &mut boxed;
    held.save(own.join("boxed.ot"))?;
    let rows = table.save(own);
    assert_eq!(rows, 1);
    Ok(())
}

/// The argument is a folder.
pub(super) fn s36_behind_pointers(args: &[&str]) -> Result<()> {
    let Some(folder) = args.last() else { bail!("expected a folder") };
    let name = format!("{}-{}", ddp_runtime::world_size(), ddp_runtime::rank());
    let own = Path::new(folder).join(name);
    if ddp_runtime::is_main() {
        std::fs::create_dir_all(&own)?;
    }
    let mut table = Table(Vec::new());
    behind_pointers(&own, &mut table)?;
    ensure!(table.0 == [own.display().to_string()], "the table has {:?}", table.0);
    let files = if own.exists() { std::fs::read_dir(&own)?.count() } else { 0 };
    let expected = if ddp_runtime::is_main() { 8 } else { 0 };
    ensure!(files == expected, "{files} files in {}", own.display());
    Ok(())
}

/// Makes a folder on every rank, and one on the main rank.
#[distributed]
fn folders(run: &Path) -> (io::Result<()>, Option<io::Result<()>>) {
    (std::fs::create_dir(run), rank0(|| std::fs::create_dir(run.join("main"))))
}

/// The argument is a folder.
pub(super) fn s36_folder_of_all_ranks(args: &[&str]) -> Result<()> {
    let Some(folder) = args.last() else { bail!("expected a folder") };
    let run = Path::new(folder).join(format!("run-{}", ddp_runtime::world_size()));
    let (made, of_main) = folders(&run);
    ensure!(of_main.is_some() == ddp_runtime::is_main());
    if let Err(error) = &made {
        ensure!(error.kind() == io::ErrorKind::AlreadyExists, "{error}");
        ensure!(error.to_string().contains("main_first"), "{error}");
    }
    let count = count_of_all(made.is_ok());
    ensure!(count == 1.0, "{count} ranks have made the folder");
    Ok(())
}

#[distributed]
fn count_of_all(own: bool) -> f64 {
    sum(f64::from(u8::from(own)))
}

/// Something that makes its own bar.
struct Watched(Screen);

impl Watched {
    fn progress(&self) -> ProgressBarIter<std::ops::Range<u64>> {
        let target = ProgressDrawTarget::term_like(Box::new(self.0.clone()));
        ProgressBar::with_draw_target(Some(4), target).wrap_iter(0..4)
    }
}

#[distributed]
fn with_iterator(watched: &Watched) -> u64 {
    let mut last = 0;
    for item in watched.progress() {
        last += item;
    }
    last
}

pub(super) fn s34_bars_of_iterators(_: &[&str]) -> Result<()> {
    let watched = Watched(Screen::default());
    ensure!(with_iterator(&watched) == 6);
    let writes = watched.0.writes().load(Ordering::Relaxed);
    // What it writes before it is hidden is nothing: a bar is drawn by its first item.
    ensure!((writes > 0) == ddp_runtime::is_main(), "the bar has written {writes} times");
    Ok(())
}

/// A name that does not say that it is a result.
type Outcome = Result<f64>;

#[distributed]
fn under_another_name(vs: &nn::VarStore, net: &Net, (xs, ys): &Batch, fails: bool) -> Outcome {
    let mut opt = Model::adam(vs)?;
    for (x, y) in tch::data::Iter2::new(xs, ys, 4) {
        opt.backward_step(&net.loss(&x, &y));
    }
    if fails { Err(anyhow::anyhow!("alias: diverged at the end")) } else { Ok(1.0) }
}

/// `fails`: rank 1 does.
pub(super) fn s44_alias_of_a_result(args: &[&str]) -> Result<()> {
    let (model, fails) = (Model::seeded(), args == ["fails"] && ddp_runtime::rank() == 1);
    let value = under_another_name(&model.vs, &model.net, &data(24), fails)?;
    alike("value", &[value])
}
