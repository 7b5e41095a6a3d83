//! What a program shows while it trains: prints, progress bars, logs, files of its own.
use std::cell::Cell;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicUsize, Ordering};

use anyhow::{Result, bail, ensure};
use ddp_runtime::{distributed, main_only, mean};
use indicatif::{ProgressBar, ProgressDrawTarget, TermLike};
use tch::data::Iter2;
use tch::{Device, Kind, Tensor, nn};

use super::one_process::{Batch, Model, Net, alike, both, data, of_all_ranks};

const ROWS: i64 = 24;
const BATCH: i64 = 4;

/// Text that the model makes: as many random numbers as asked for.
fn generate(net: &Net, letters: usize) -> String {
    let letter = |_| {
        let x = Tensor::rand([1, super::one_process::FEATURES], (Kind::Double, Device::Cpu));
        if net.forward(&x).double_value(&[0, 0]) > 0.0 { '+' } else { '-' }
    };
    (0..letters).map(letter).collect()
}

/// The figures of one rank: what its arguments were evaluated to, and what the ranks' mean was.
type Figures = Vec<(f64, f64)>;

both!(talking:
    #[allow(clippy::dbg_macro)]
    fn train(vs: &nn::VarStore, net: &Net, (xs, ys): &Batch, letters: usize, evaluated: &Cell<i64>) -> Result<(Figures, Tensor)> {
    let mut opt = Model::adam(vs)?;
    let mut figures = Figures::new();
    let mut seen = Vec::new();
    let once = |value: f64| {
        evaluated.set(evaluated.get() + 1);
        value
    };
    let report = |figure: f64| println!("loss {figure:.6}");
    for epoch in 0..3 {
        for (i, (x, y)) in Iter2::new(xs, ys, BATCH).shuffle().enumerate() {
            let loss = net.loss(&x, &(&y / 24.0));
            opt.backward_step(&loss);
            print!("\r{i}/{n}", n = once(6.0));
            std::io::stdout().flush()?;
            match i {
                0 => println!(),
                _ => print!("."),
            }
            report(once(f64::try_from(&loss)?));
            figures.push((f64::try_from(&loss)?, mean(f64::try_from(loss)?)));
            seen.push(y);
        }
        let text = String::from("moved");
        println!("{epoch}: {} {:.4}", { text }, f64::try_from(net.loss(xs, ys))?);
        println!("{}", generate(net, letters));
        let doubled = dbg!(2 * epoch);
        eprintln!("twice the epoch is {doubled}");
    }
    Ok((figures, Tensor::cat(&seen, 0).flatten(0, -1)))
});

/// `plain` or `shared`.
pub(super) fn s33_prints(args: &[&str]) -> Result<()> {
    let rows = Tensor::arange(ROWS, (Kind::Double, Device::Cpu)).view([-1, 1]);
    let data = (data(ROWS).0, rows);
    let (model, evaluated) = (Model::seeded(), Cell::new(0));
    let (vs, net) = (&model.vs, &model.net);
    // Each rank draws another number of random numbers in an argument.
    let letters = 5 + 2 * ddp_runtime::rank();
    let (figures, seen) = match args {
        ["plain"] => talking::plain::train(vs, net, &data, letters, &evaluated)?,
        ["shared"] => talking::shared::train(vs, net, &data, letters, &evaluated)?,
        _ => bail!("expected plain or shared"),
    };
    let steps = 3 * ROWS / BATCH / ddp_runtime::world_size() as i64;
    ensure!(evaluated.get() == 2 * steps, "{} arguments were evaluated", evaluated.get());
    let (own, means): (Vec<f64>, Vec<f64>) = figures.into_iter().unzip();
    alike("means", &means)?;
    let all = Tensor::stack(&of_all_ranks(&Tensor::from_slice(&own))?, 0);
    let expected = all.mean_dim(0, false, Kind::Double);
    ensure!(expected.allclose(&Tensor::from_slice(&means), 1e-14, 0.0, false), "a mean is off");
    // However many numbers were drawn, each epoch has each row once.
    let per_epoch: Vec<Tensor> =
        of_all_ranks(&seen)?.iter().map(|seen| seen.view([3, -1])).collect();
    let (sorted, _) = Tensor::cat(&per_epoch, 1).sort(1, false);
    for epoch in 0..3 {
        let rows = sorted.get(epoch).view([-1, 1]);
        ensure!(rows == data.1, "epoch {epoch} had other rows");
    }
    Ok(())
}

/// A terminal that counts what is written to it.
#[derive(Clone, Debug, Default)]
pub(super) struct Screen(Arc<AtomicUsize>);

impl Screen {
    /// How often something was written.
    pub(super) fn writes(&self) -> &AtomicUsize {
        &self.0
    }
}

impl TermLike for Screen {
    fn width(&self) -> u16 {
        80
    }
    fn move_cursor_up(&self, _: usize) -> io::Result<()> {
        Ok(())
    }
    fn move_cursor_down(&self, _: usize) -> io::Result<()> {
        Ok(())
    }
    fn move_cursor_right(&self, _: usize) -> io::Result<()> {
        Ok(())
    }
    fn move_cursor_left(&self, _: usize) -> io::Result<()> {
        Ok(())
    }
    fn write_line(&self, text: &str) -> io::Result<()> {
        self.write_str(text)
    }
    fn write_str(&self, _: &str) -> io::Result<()> {
        self.0.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
    fn clear_line(&self) -> io::Result<()> {
        Ok(())
    }
    fn flush(&self) -> io::Result<()> {
        Ok(())
    }
}

/// The loss on the whole set, as evaluated while the bar is suspended, and how far bars have come.
#[distributed]
fn with_bars(
    vs: &nn::VarStore,
    net: &Net,
    (xs, ys): &Batch,
    screen: &Screen,
) -> Result<(f64, [u64; 3])> {
    let mut opt = Model::adam(vs)?;
    let batches = Iter2::new(xs, ys, BATCH).count() as u64;
    let target = ProgressDrawTarget::term_like(Box::new(screen.clone()));
    let bar = ProgressBar::with_draw_target(Some(batches), target);
    for (x, y) in Iter2::new(xs, ys, BATCH).shuffle() {
        let loss = net.loss(&x, &y);
        opt.backward_step(&loss);
        bar.set_message(format!("{:.3}", loss.double_value(&[])));
        bar.inc(1);
        bar.tick();
    }
    let whole = bar.suspend(|| tch::no_grad(|| net.loss(xs, ys).double_value(&[])));
    let plain = ProgressBar::new(4);
    let mut steps = 0;
    for i in plain.wrap_iter(0..4) {
        let x = Tensor::rand([4, super::one_process::FEATURES], (Kind::Double, Device::Cpu));
        opt.backward_step(&net.loss(&x, &(x.sum_dim_intlist(1, true, Kind::Double) * i)));
        steps += 1;
    }
    ensure!(steps == 4, "the bar's iterator gave {steps} items");
    Ok((whole, [bar.position(), batches, plain.position()]))
}

pub(super) fn s34_progress_bars(_: &[&str]) -> Result<()> {
    let (model, screen) = (Model::seeded(), Screen::default());
    let (whole, positions) = with_bars(&model.vs, &model.net, &data(ROWS), &screen)?;
    let batches = (ROWS / BATCH) as u64 / ddp_runtime::world_size() as u64;
    ensure!(positions == [batches, batches, 4], "the bars stand at {positions:?}");
    alike("loss while suspended", &[whole])?;
    let writes = screen.0.load(Ordering::Relaxed);
    ensure!((writes > 0) == ddp_runtime::is_main(), "the bar has written {writes} times");
    Ok(())
}

/// A log that goes to the error stream, each line in one write, as loggers do: the lines of several ranks meet there.
struct Lines;

impl log::Log for Lines {
    fn enabled(&self, _: &log::Metadata) -> bool {
        true
    }
    fn log(&self, record: &log::Record) {
        let line = format!("{}: {}\n", record.level(), record.args());
        // A log has nowhere to report to.
        let _ = io::stderr().write_all(line.as_bytes());
    }
    fn flush(&self) {}
}

static EVALUATED: AtomicI64 = AtomicI64::new(0);

fn noted(value: i64) -> i64 {
    EVALUATED.fetch_add(1, Ordering::Relaxed);
    value
}

#[distributed]
fn with_files(vs: &nn::VarStore, net: &Net, (xs, ys): &Batch, folder: &Path) -> Result<()> {
    let mut opt = Model::adam(vs)?;
    for epoch in 0..2 {
        for (x, y) in Iter2::new(xs, ys, BATCH) {
            opt.backward_step(&net.loss(&x, &y));
        }
        log::info!("epoch {epoch} has ended");
        log::debug!("nobody asked for {}", noted(epoch));
        log::warn!("careful, epoch {epoch}");
        log::error!("not so good, epoch {}", noted(epoch));
        main_only(|| -> Result<()> {
            let mut table =
                OpenOptions::new().create(true).append(true).open(folder.join("table.csv"))?;
            writeln!(table, "{epoch}")?;
            let picture = Tensor::full([3, 4, 4], epoch, (Kind::Uint8, Device::Cpu));
            tch::vision::image::save(&picture, folder.join(format!("{epoch}.png")))?;
            Ok(())
        })
        .unwrap_or(Ok(()))?;
    }
    Ok(())
}

/// Levels, and files in the folder that is the argument.
pub(super) fn s35_logs_and_files(args: &[&str]) -> Result<()> {
    let [folder] = args else { bail!("expected a folder") };
    let folder = PathBuf::from(folder).join(ddp_runtime::world_size().to_string());
    std::fs::create_dir_all(&folder)?;
    log::set_logger(&Lines).map_err(anyhow::Error::msg)?;
    log::set_max_level(log::LevelFilter::Info);
    let model = Model::seeded();
    with_files(&model.vs, &model.net, &data(ROWS), &folder)?;
    let evaluated = EVALUATED.load(Ordering::Relaxed);
    ensure!(evaluated == 2, "arguments were evaluated {evaluated} times");
    let table = io::read_to_string(File::open(folder.join("table.csv"))?)?;
    ensure!(table == "0\n1\n", "the table is {table:?}");
    let picture = tch::vision::image::load(folder.join("1.png"))?;
    ensure!(picture.size() == [3, 4, 4], "a picture of {:?}", picture.size());
    Ok(())
}
