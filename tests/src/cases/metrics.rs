//! Figures of an evaluation whose samples the ranks share.
use anyhow::{Result, ensure};
use ddp_runtime::data::EvalSampler;
use ddp_runtime::metric::{Accuracy, Extreme, Mean, Metric};
use tch::{Device, Kind, Tensor};

/// Not divisible by any of the numbers of ranks, so that their parts differ in size.
const SAMPLES: usize = 103;
const BATCH: usize = 8;

/// Logits and classes; the last ones are the hard ones.
fn data() -> (Tensor, Tensor) {
    let numbers = Tensor::arange(3 * SAMPLES as i64, (Kind::Double, Device::Cpu));
    let logits = (&numbers * 1.7).sin().view([-1, 3]) * (numbers.view([-1, 3]) / 50.0).exp();
    let classes = Tensor::arange(SAMPLES as i64, (Kind::Int64, Device::Cpu)).remainder(3);
    (logits, classes)
}

fn figures(rows: &[i64]) -> Result<[f64; 5]> {
    let (logits, classes) = data();
    let (mut loss, mut each) = (Mean::new(), Mean::new());
    let (mut accuracy, mut largest, mut smallest) =
        (Accuracy::new(), Extreme::max(), Extreme::min());
    for batch in rows.chunks(BATCH) {
        let index = Tensor::from_slice(batch);
        let (logits, classes) = (logits.index_select(0, &index), classes.index_select(0, &index));
        let log_p = logits.log_softmax(-1, Kind::Double);
        let losses = -log_p.gather(1, &classes.unsqueeze(1), false).squeeze_dim(1);
        loss.update(losses.mean(Kind::Double).double_value(&[]), batch.len() as i64);
        each.update_each(&losses)?;
        accuracy.update(&logits, &classes)?;
        largest.update_each(&losses)?;
        smallest.update_each(&losses)?;
    }
    Ok([
        loss.compute()?,
        each.compute()?,
        accuracy.compute()?,
        largest.compute()?,
        smallest.compute()?,
    ])
}

/// p06: the figures are those of one process, computed here before the scope begins.
pub(super) fn run(_args: &[String]) -> Result<()> {
    let all: Vec<i64> = (0..SAMPLES as i64).collect();
    let expected = figures(&all)?;
    let (logits, classes) = data();
    let truth =
        logits.cross_entropy_loss::<Tensor>(&classes, None, tch::Reduction::Mean, -100, 0.0);
    ensure!((truth.double_value(&[]) - expected[0]).abs() < 1e-12, "{truth} is not {expected:?}");
    let scope = ddp_runtime::init()?;
    let found = figures(&EvalSampler::new(SAMPLES, scope.share()).indices())?;
    for (found, expected) in found.iter().zip(expected) {
        ensure!((found - expected).abs() <= 1e-12 * expected.abs(), "{found} is not {expected}");
    }
    let words: Vec<String> =
        found.iter().map(|figure| format!("{:016x}", figure.to_bits())).collect();
    println!("{}", words.join(" "));
    scope.finish()?;
    Ok(())
}
