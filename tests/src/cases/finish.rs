//! The end of a scope: all ranks leave together, and nothing of it is left behind.
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail, ensure};
use tch::nn::{self, Module};
use tch::{Device, Kind, Tensor};

/// How long ranks are busy that another one must not wait for.
const BUSY: Duration = Duration::from_secs(10);

/// Milliseconds, by the clock that all ranks of a host share.
fn now() -> Result<i64> {
    Ok(i64::try_from(SystemTime::now().duration_since(UNIX_EPOCH)?.as_millis())?)
}

/// No rank leaves before the last one comes to the end.
fn together() -> Result<()> {
    let scope = ddp_runtime::init()?;
    std::thread::sleep(Duration::from_millis(700 * scope.rank() as u64));
    let came = now()?;
    scope.finish()?;
    let left = now()?;
    let scope = ddp_runtime::init()?;
    let times = scope.all_gather(&Tensor::from_slice(&[came, left]))?;
    let times: Vec<Vec<i64>> =
        times.iter().map(|pair| Ok(Vec::<i64>::try_from(pair)?)).collect::<Result<_>>()?;
    let last = times.iter().map(|pair| pair[0]).max().unwrap_or_default();
    for (rank, pair) in times.iter().enumerate() {
        ensure!(pair[1] >= last, "rank {rank} left {} ms before the last one came", last - pair[1]);
    }
    Ok(scope.finish()?)
}

/// What this process has in use: threads, open files, and memory that processes share.
fn in_use() -> Result<[usize; 3]> {
    let entries = |folder| -> Result<usize> { Ok(std::fs::read_dir(folder)?.count()) };
    let maps = std::fs::read_to_string("/proc/self/maps")?;
    let shared = maps.lines().filter(|line| line.contains("/dev/shm/")).count();
    Ok([entries("/proc/self/task")?, entries("/proc/self/fd")?, shared])
}

/// Scopes one after another: what they take they give back.
fn nothing_left() -> Result<()> {
    let mut used = [0; 3];
    for round in 0..5 {
        let scope = ddp_runtime::init()?;
        let store = nn::VarStore::new(Device::Cpu);
        let net = nn::linear(store.root(), 4, 4, Default::default());
        scope.register(&store)?;
        let x = Tensor::ones([2, 4], (Kind::Float, Device::Cpu));
        net.forward(&x).mean(Kind::Float).f_backward()?;
        scope.barrier()?;
        scope.finish()?;
        drop(store);
        drop(net);
        if round == 0 {
            // The engine's threads and the store's connections stay for the next scope.
            used = in_use()?;
        }
    }
    // A thread that has ended is listed for a moment more, here and in the first count.
    let more = |left: [usize; 3]| left.iter().zip(used).any(|(left, used)| *left > used);
    let started = Instant::now();
    while more(in_use()?) && started.elapsed() < Duration::from_secs(3) {
        std::thread::sleep(Duration::from_millis(20));
    }
    let left = in_use()?;
    ensure!(
        !more(left),
        "threads, files and shared memory: {left:?} after 5 scopes, {used:?} after one"
    );
    Ok(())
}

/// Rank 0 fails inside a backward that the others have not come to, since they are busy.
fn given_up() -> Result<()> {
    let scope = ddp_runtime::init()?;
    let store = nn::VarStore::new(Device::Cpu);
    let weight = store.root().ones("weight", &[1000]);
    scope.register(&store)?;
    // The first backward waits for the others in any case, to settle where gradients lie.
    weight.exp().sum(Kind::Float).f_backward()?;
    if scope.rank() > 0 {
        std::thread::sleep(BUSY);
    }
    let saved = weight.exp();
    if scope.rank() == 0 {
        // The graph has saved these values for its backward.
        tch::no_grad(|| drop(saved.shallow_clone().fill_(0.0)));
    }
    saved.sum(Kind::Float).f_backward()?;
    Ok(scope.finish()?)
}

pub(super) fn run(args: &[String]) -> Result<()> {
    match args.first().map(String::as_str) {
        Some("together") => together(),
        Some("nothing-left") => nothing_left(),
        Some("given-up") => given_up(),
        _ => bail!("no case of finish is called {args:?}"),
    }
}
