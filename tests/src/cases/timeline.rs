//! A short training, whose timeline the suite reads.
use anyhow::{Result, bail};
use ddp_runtime::{Options, Scope};
use tch::nn::{self, Module, OptimizerConfig};
use tch::{Device, Kind, Tensor};

/// The batches of [`train`] on two ranks.
const ROWS: i64 = 5 * 2 * 4;

#[ddp_runtime::distributed]
fn train(fails_at: Option<usize>) -> Result<()> {
    let vs = nn::VarStore::new(Device::Cpu);
    let net = nn::linear(vs.root(), 8, 4, Default::default());
    let mut opt = nn::Sgd::default().build(&vs, 0.1)?;
    let xs = Tensor::randn([ROWS, 8], (Kind::Float, Device::Cpu));
    let ys = Tensor::randn([ROWS, 4], (Kind::Float, Device::Cpu));
    for (step, (x, y)) in tch::data::Iter2::new(&xs, &ys, 4).enumerate() {
        if Some(step) == fails_at && ddp_runtime::rank() == 1 {
            bail!("a bad batch");
        }
        opt.backward_step(&net.forward(&x).mse_loss(&y, tch::Reduction::Mean));
    }
    Ok(())
}

/// Rank 0 alone has the option.
fn lonely(path: &str) -> Result<()> {
    let trace = (ddp_runtime::rank() == 0).then(|| path.into());
    let scope = Scope::with_options("lonely", Options { trace, ..Options::default() })?;
    train(None)?;
    Ok(scope.finish()?)
}

/// Trains: five steps on two ranks, or until the step given, in which rank 1 fails.
pub(super) fn run(args: &[String]) -> Result<()> {
    match args {
        [] => train(None),
        [what, path] if what == "lonely" => lonely(path),
        [step] => train(Some(step.parse()?)),
        _ => bail!("timeline [STEP | lonely PATH]"),
    }
}
