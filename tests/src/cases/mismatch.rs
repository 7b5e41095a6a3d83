//! Ranks that do different things.
use anyhow::{Result, bail, ensure};
use ddp_runtime::Scope;
use tch::nn::{self, Module};
use tch::{Device, Kind, Tensor};

fn net(root: &nn::Path) -> nn::Linear {
    nn::linear(root / "layer", 3, 3, Default::default())
}

fn backward(net: &nn::Linear) -> Result<()> {
    let loss = net.forward(&Tensor::ones([2, 3], (Kind::Float, Device::Cpu))).sum(Kind::Float);
    Ok(loss.f_backward()?)
}

fn begin() -> Result<(Scope, nn::VarStore, nn::Linear)> {
    let scope = ddp_runtime::init()?;
    let store = nn::VarStore::new(Device::Cpu);
    let net = net(&store.root());
    scope.register(&store)?;
    Ok((scope, store, net))
}

/// p34: the last rank has another parameter.
fn parameters() -> Result<()> {
    let scope = ddp_runtime::init()?;
    let store = nn::VarStore::new(Device::Cpu);
    let last = scope.rank() + 1 == scope.world_size();
    let _ = net(&store.root());
    let _ = nn::linear(store.root() / "head", 3, if last { 5 } else { 4 }, Default::default());
    scope.register(&store)?;
    Ok(())
}

/// p34: leaves that no store holds, which a backward reaches, are of another size on rank 1.
fn leaves() -> Result<()> {
    let scope = ddp_runtime::init()?;
    let size = 3 + scope.rank() as i64;
    let leaf = Tensor::ones([size], (Kind::Float, Device::Cpu)).set_requires_grad(true);
    leaf.square().sum(Kind::Float).f_backward()?;
    scope.finish()?;
    Ok(())
}

/// p02: rank 1 has fewer batches.
fn fewer_steps() -> Result<()> {
    let (scope, _store, net) = begin()?;
    for _ in 0..if scope.rank() == 1 { 3 } else { 5 } {
        backward(&net)?;
    }
    scope.finish()?;
    Ok(())
}

fn own_steps() -> u32 {
    if ddp_runtime::rank() == 1 { 3 } else { 5 }
}

/// As `fewer_steps`, under the attribute, which has no error to return.
#[ddp_runtime::distributed]
fn fewer_steps_annotated() {
    let store = nn::VarStore::new(Device::Cpu);
    let net = net(&store.root());
    // In a function of its own: the attribute refuses a loop that depends on the rank before its eyes.
    let mut left = own_steps();
    #[ddp(each)]
    while left > 0 {
        net.forward(&Tensor::ones([2, 3], (Kind::Float, Device::Cpu))).sum(Kind::Float).backward();
        left -= 1;
    }
}

/// p01: rank 0 waits where nobody comes.
fn lone_barrier() -> Result<()> {
    let (scope, _store, net) = begin()?;
    backward(&net)?;
    if scope.rank() == 0 {
        scope.barrier()?;
    }
    backward(&net)?;
    Ok(())
}

/// A collective with tensors of different shapes.
fn shapes() -> Result<()> {
    let scope = ddp_runtime::init()?;
    let size = if scope.rank() == 0 { 3 } else { 4 };
    let tensor = Tensor::ones([size], (Kind::Float, Device::Cpu));
    scope.all_reduce(&tensor, ddp_runtime::ReduceOp::Sum)?;
    Ok(())
}

/// A step on a thread of its own.
fn thread() -> Result<()> {
    let (_scope, _store, net) = begin()?;
    let result = std::thread::spawn(move || backward(&net)).join();
    match result {
        Ok(result) => result,
        Err(_) => bail!("the thread panicked"),
    }
}

/// A gradient that has no dense form.
fn sparse() -> Result<()> {
    let scope = ddp_runtime::init()?;
    let store = nn::VarStore::new(Device::Cpu);
    let config = nn::EmbeddingConfig { sparse: true, ..Default::default() };
    let table = nn::embedding(store.root(), 10, 4, config);
    scope.register(&store)?;
    let rows = table.forward(&Tensor::from_slice(&[1_i64, 2]));
    Ok(rows.sum(Kind::Float).f_backward()?)
}

/// After an error the group is unusable, and says what the first error was.
fn poisoned() -> Result<()> {
    let (scope, _store, net) = begin()?;
    let size = if scope.rank() == 0 { 3 } else { 4 };
    let tensor = Tensor::ones([size], (Kind::Float, Device::Cpu));
    ensure!(scope.all_reduce(&tensor, ddp_runtime::ReduceOp::Sum).is_err(), "the shapes differ");
    backward(&net)
}

pub(super) fn run(args: &[String]) -> Result<()> {
    match args.first().map(String::as_str) {
        Some("parameters") => parameters(),
        Some("leaves") => leaves(),
        Some("fewer-steps") => fewer_steps(),
        Some("fewer-steps-annotated") => {
            fewer_steps_annotated();
            Ok(())
        }
        Some("lone-barrier") => lone_barrier(),
        Some("shapes") => shapes(),
        Some("thread") => thread(),
        Some("sparse") => sparse(),
        Some("poisoned") => poisoned(),
        _ => bail!("no case of mismatch is called {args:?}"),
    }
}
