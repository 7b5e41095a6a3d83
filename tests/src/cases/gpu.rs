//! What `cargo xtask gpu` runs on a GPU, on one rank or on two that share it; the suite runs it on the stand-in.
use std::time::{Duration, Instant};

use anyhow::{Result, bail, ensure};
use ddp_runtime::{Options, Scope, distributed};
use tch::nn::{self, Module, ModuleT, OptimizerConfig};
use tch::{Cuda, Device, Kind, Tensor};

use super::compare::close;

pub(super) fn run(args: &[String]) -> Result<()> {
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["gradients"] => gradients(),
        ["batch-norm"] => batch_norm(),
        ["race", rounds] => race(rounds.parse()?),
        ["hang"] => hang(),
        ["step", "plain"] => plain_steps(),
        ["step", "ours"] => our_steps(),
        _ => bail!("no case of gpu is called {args:?}"),
    }
}

/// Waits until the device has done what it was told.
fn settle(device: Device) {
    if let Device::Cuda(ordinal) = device {
        Cuda::synchronize(ordinal as i64);
    }
}

/// Convolutions and linear layers in f64, whose gradients on W ranks are those of one process on the joined batch.
fn gradients() -> Result<()> {
    const BATCH: i64 = 6;
    let options = Options { bucket_bytes: Some(4096), ..Options::default() };
    let scope = Scope::with_options("gpu", options)?;
    let device = scope.device();
    let build = || {
        let mut vs = nn::VarStore::new(device);
        let root = vs.root();
        let net = nn::seq_t()
            .add(nn::conv2d(&root / "conv", 3, 8, 3, Default::default()))
            .add_fn(|x| x.tanh().adaptive_avg_pool2d([4, 4]).flatten(1, -1))
            .add(nn::linear(&root / "fc", 128, 5, Default::default()));
        vs.double();
        (vs, net)
    };
    let ((vs, net), (mut reference, reference_net)) = (build(), build());
    scope.register(&vs)?;
    reference.copy(&vs)?;
    tch::manual_seed(3);
    let rows = BATCH * scope.world_size() as i64;
    let x = Tensor::randn([rows, 3, 12, 12], (Kind::Double, Device::Cpu)).to_device(device);
    let y = Tensor::randint(5, [rows], (Kind::Int64, Device::Cpu)).to_device(device);
    let loss = |net: &nn::SequentialT, x: &Tensor, y: &Tensor| {
        net.forward_t(x, true).log_softmax(-1, Kind::Double).nll_loss(y)
    };
    let expected = Tensor::run_backward(
        &[loss(&reference_net, &x, &y)],
        &reference.trainable_variables(),
        false,
        false,
    );
    let own = |t: &Tensor| t.narrow(0, scope.rank() as i64 * BATCH, BATCH);
    for round in 0..3 {
        vs.trainable_variables().iter_mut().for_each(Tensor::zero_grad);
        loss(&net, &own(&x), &own(&y)).backward();
        let found: Vec<Tensor> = vs.trainable_variables().iter().map(Tensor::grad).collect();
        close(&format!("gradients, round {round}"), &found, &expected, 1e-10)?;
    }
    scope.finish()?;
    Ok(())
}

/// Synchronised BatchNorm on parts of unequal size: outputs, gradients and running statistics are those of one process on the
/// joined batch, in f64 and in f32; buckets are so small that there are several among the layers.
fn batch_norm() -> Result<()> {
    for (kind, limit) in [(Kind::Double, 1e-10), (Kind::Float, 1e-4)] {
        batch_norm_in(kind, limit)?;
    }
    Ok(())
}

fn batch_norm_in(kind: Kind, limit: f64) -> Result<()> {
    let options = Options { sync_batch_norm: true, bucket_bytes: Some(256), ..Options::default() };
    let scope = Scope::with_options("gpu", options)?;
    let device = scope.device();
    let build = || {
        let mut vs = nn::VarStore::new(device);
        let root = vs.root();
        // A bias before a BatchNorm has no gradient but rounding.
        let unbiased = nn::ConvConfig { bias: false, ..Default::default() };
        let plain = nn::LinearConfig { bias: false, ..Default::default() };
        let net = nn::seq_t()
            .add(nn::conv2d(&root / "conv", 3, 8, 3, unbiased))
            .add(nn::batch_norm2d(&root / "bn", 8, Default::default()))
            .add_fn(|x| x.tanh().flatten(1, -1))
            .add(nn::linear(&root / "fc", 8 * 36, 5, plain))
            .add(nn::batch_norm1d(&root / "bn2", 5, Default::default()));
        vs.set_kind(kind);
        (vs, net)
    };
    let ((vs, net), (mut reference, reference_net)) = (build(), build());
    ddp_runtime::local_batch_norm(&reference);
    scope.register(&vs)?;
    reference.copy(&vs)?;
    // Rank r has r + 2 rows.
    let (rank, ranks) = (scope.rank() as i64, scope.world_size() as i64);
    let first_of = |rank: i64| rank * (rank + 3) / 2;
    let rows = first_of(ranks);
    tch::manual_seed(5);
    let x = Tensor::randn([rows, 3, 8, 8], (kind, Device::Cpu)).to_device(device);
    let own = x.narrow(0, first_of(rank), rank + 2);
    // The mean over ranks of these sums is the mean over all rows.
    let share = ranks as f64 / rows as f64;
    for round in 0..3 {
        vs.trainable_variables().iter_mut().for_each(Tensor::zero_grad);
        let expected = reference_net.forward_t(&x, true);
        let gradients = Tensor::run_backward(
            &[(expected.square() * expected.sigmoid()).sum(kind) / rows as f64],
            &reference.trainable_variables(),
            false,
            false,
        );
        let found = net.forward_t(&own, true);
        ((found.square() * found.sigmoid()).sum(kind) * share).backward();
        close(
            &format!("outputs, round {round}"),
            &[found],
            &[expected.narrow(0, first_of(rank), rank + 2)],
            limit,
        )?;
        let found: Vec<Tensor> = vs.trainable_variables().iter().map(Tensor::grad).collect();
        close(&format!("gradients, round {round}"), &found, &gradients, limit)?;
    }
    let running = |vs: &nn::VarStore| -> Vec<Tensor> {
        let mut all: Vec<(String, Tensor)> =
            vs.variables().into_iter().filter(|(name, _)| name.contains("running")).collect();
        all.sort_by(|a, b| a.0.cmp(&b.0));
        all.into_iter().map(|(_, tensor)| tensor).collect()
    };
    ensure!(running(&vs).len() == 4, "two layers have running statistics");
    close("running statistics", &running(&vs), &running(&reference), limit)?;
    scope.finish()?;
    Ok(())
}

/// Gradients that are known exactly, while work of random length keeps the streams of the ranks apart.
fn race(rounds: u32) -> Result<()> {
    let options = Options { bucket_bytes: Some(64 << 10), ..Options::default() };
    let scope = Scope::with_options("gpu", options)?;
    let device = scope.device();
    let vs = nn::VarStore::new(device);
    let sizes = [7, 40_000, 300, 20_000, 1];
    let weights: Vec<Tensor> =
        sizes.iter().enumerate().map(|(k, &n)| vs.root().zeros(&format!("w{k}"), &[n])).collect();
    scope.register(&vs)?;
    let noise = Tensor::randn([512, 512], (Kind::Float, device));
    let mut state = 0x9E37_79B9 + scope.rank() as u64;
    let mut random = |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 33) % below
    };
    let ranks = scope.world_size() as f64;
    for round in 0..rounds {
        vs.trainable_variables().iter_mut().for_each(Tensor::zero_grad);
        let own = f64::from(round % 1000) + scope.rank() as f64;
        let loss = weights.iter().map(|w| (w * own).sum(Kind::Float)).sum::<Tensor>();
        // Before the backward, and between it and what reads the gradients.
        for _ in 0..random(20) {
            let _ = noise.matmul(&noise);
        }
        loss.backward();
        // The device's own copy comes right behind the backward, without the host in between.
        let copies: Vec<Tensor> = weights.iter().map(|w| w.grad() * 1.0).collect();
        let mean = f64::from(round % 1000) + (ranks - 1.0) / 2.0;
        for (k, copy) in copies.iter().enumerate() {
            let (low, high) = (copy.min().double_value(&[]), copy.max().double_value(&[]));
            ensure!(
                low == mean && high == mean,
                "round {round}, w{k}: {low} to {high}, not {mean}"
            );
        }
    }
    settle(device);
    scope.finish()?;
    println!("{rounds} rounds");
    Ok(())
}

/// Rank 1's device is busy for much longer than the limit, so that rank 0's collective waits for it: both have to end.
fn hang() -> Result<()> {
    let scope = Scope::with_options("gpu", Options::default())?;
    let device = scope.device();
    ensure!(matches!(device, Device::Cuda(_)), "only a GPU has work queued behind the host");
    let vs = nn::VarStore::new(device);
    let weight = vs.root().zeros("w", &[1000]);
    scope.register(&vs)?;
    (&weight * 2.0).sum(Kind::Float).backward();
    settle(device);
    if scope.rank() == 1 {
        let big = Tensor::ones([8192, 8192], (Kind::Double, device));
        let one = || {
            let _ = big.matmul(&big);
        };
        one();
        settle(device);
        let start = Instant::now();
        one();
        settle(device);
        // Less than the queue of a device holds, so that the host gets past it.
        let count = (60.0 / start.elapsed().as_secs_f64()).clamp(1.0, 500.0);
        for _ in 0..count as u32 {
            one();
        }
    }
    (&weight * 2.0).sum(Kind::Float).backward();
    println!("the host goes on");
    settle(device);
    scope.finish()?;
    bail!("a collective that hangs went unnoticed")
}

struct Subject {
    vs: nn::VarStore,
    net: nn::Sequential,
    x: Tensor,
    y: Tensor,
}

/// 27 million parameters, batch 64.
fn subject(device: Device) -> Subject {
    let vs = nn::VarStore::new(device);
    let sizes = [784, 2048, 2048, 2048, 2048, 2048, 2048, 2048, 10];
    let mut net = nn::seq();
    for (k, pair) in sizes.windows(2).enumerate() {
        if k > 0 {
            net = net.add_fn(Tensor::relu);
        }
        net = net.add(nn::linear(vs.root() / k, pair[0], pair[1], Default::default()));
    }
    let x = Tensor::randn([64, 784], (Kind::Float, device));
    let y = Tensor::randint(10, [64], (Kind::Int64, device));
    Subject { vs, net, x, y }
}

/// The same tokens with and without the attribute.
macro_rules! steps {
    ($(#[$attribute:meta])* $name:ident) => {
        $(#[$attribute])*
        fn $name() -> Result<()> {
            let subject = subject(Device::cuda_if_available());
            let mut opt = nn::Sgd::default().build(&subject.vs, 0.01)?;
            let mut times = Vec::new();
            for step in 0..220 {
                let start = Instant::now();
                let loss = subject.net.forward(&subject.x).cross_entropy_for_logits(&subject.y);
                opt.backward_step(&loss);
                settle(subject.vs.device());
                if step >= 20 {
                    times.push(start.elapsed());
                }
            }
            report(times);
            Ok(())
        }
    };
}
steps!(plain_steps);
steps!(
    #[distributed]
    our_steps
);

fn report(mut times: Vec<Duration>) {
    times.sort_unstable();
    println!("{{\"median_ms\": {}}}", 1e3 * times[times.len() / 2].as_secs_f64());
}
