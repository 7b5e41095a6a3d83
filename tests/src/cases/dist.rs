//! Collectives that a program calls by itself, on tensors and on values.
use std::collections::BTreeMap;

use anyhow::{Result, bail, ensure};
use ddp_runtime::{ReduceOp, dist};
use serde::{Deserialize, Serialize};
use tch::{Device, Kind, Tensor, nn};

use super::compare::close;

/// What rank `rank` has: `rows` rows of two, all different.
fn part(rank: usize, rows: i64) -> Tensor {
    let count = Tensor::arange(2 * rows, (Kind::Double, Device::Cpu)).view([rows, 2]);
    count + 100.0 * (rank as f64 + 1.0)
}

fn tensors() -> Result<()> {
    let scope = ddp_runtime::init()?;
    let (rank, world) = (scope.rank(), scope.world_size());
    println!("over {:?}", dist::backend());
    let total: Tensor = (0..world).map(|rank| part(rank, 4)).sum();
    for root in 0..world {
        let own = part(rank, 4);
        dist::reduce(&own, root, ReduceOp::Sum)?;
        let expected = if rank == root { total.copy() } else { part(rank, 4) };
        close("reduce", &[own], &[expected], 0.0)?;
        // Ragged, and without a row on rank 0.
        let ragged = |rank: usize| part(rank, rank as i64);
        let all: Vec<Tensor> = (0..world).map(ragged).collect();
        close("all_gather", &dist::all_gather(&ragged(rank))?, &all, 0.0)?;
        match dist::gather(&ragged(rank), root)? {
            Some(found) => {
                ensure!(rank == root, "rank {rank} has what rank {root} is to have");
                close("gather", &found, &all, 0.0)?;
            }
            None => ensure!(rank != root, "the root has nothing"),
        }
        let parts = (rank == root).then_some(&all[..]);
        close("scatter", &[dist::scatter(parts, root)?], &[ragged(rank)], 0.0)?;
    }
    let rows = 2 * world as i64;
    let total: Tensor = (0..world).map(|rank| part(rank, rows)).sum();
    let own = dist::reduce_scatter(&part(rank, rows), ReduceOp::Sum)?;
    close("reduce_scatter", &[own], &[total.narrow(0, 2 * rank as i64, 2)], 0.0)?;
    let scalar = Tensor::from(rank as i64);
    let found: Vec<i64> =
        dist::all_gather(&scalar)?.iter().map(|one| one.int64_value(&[])).collect();
    ensure!(found == (0..world as i64).collect::<Vec<_>>(), "scalars {found:?}");
    ensure!(dist::reduce(&scalar, world, ReduceOp::Sum).is_err(), "there is no such root");
    means(rank, world)?;
    dist::barrier()?;
    scope.finish()?;
    Ok(())
}

/// Of numbers that have a mean, and only of those.
fn means(rank: usize, world: usize) -> Result<()> {
    let expected = (0..world).map(|rank| part(rank, 4)).sum::<Tensor>() / world as f64;
    let scope = ddp_runtime::init()?;
    for kind in [Kind::Double, Kind::Float, Kind::BFloat16, Kind::Half] {
        let own = part(rank, 4).to_kind(kind);
        scope.all_reduce(&own, ReduceOp::Avg)?;
        // A half has 8 bits of fraction or more, and the sum is rounded before it is divided.
        let limit = if matches!(kind, Kind::Double) { 1e-14 } else { 0.02 };
        close("a mean", &[own.to_kind(Kind::Double)], &[expected.copy()], limit)?;
    }
    if world > 1 {
        let whole = Tensor::from(rank as i64);
        let refused = dist::reduce(&whole, 0, ReduceOp::Avg);
        let text = refused.err().map(|error| error.to_string()).unwrap_or_default();
        ensure!(text.contains("the mean of tensors of kind Int64"), "said: {text}");
    }
    scope.finish()?;
    Ok(())
}

/// What a rank has of a long tensor, exact in every dtype.
fn long(rank: usize, elements: i64, kind: Kind) -> Tensor {
    let ramp = Tensor::arange(elements, (Kind::Int64, Device::Cpu)).remainder(10);
    (ramp * (rank as i64 + 1)).to_kind(kind)
}

/// Tensors that travel in pieces, to the last byte.
fn pieces() -> Result<()> {
    let scope = ddp_runtime::init()?;
    let (rank, world) = (scope.rank(), scope.world_size());
    let megabyte = 1 << 20;
    for (elements, kind) in [
        (megabyte / 4, Kind::Float),
        (megabyte / 4 + 1, Kind::Float),
        (5 * megabyte / 2 + 3, Kind::BFloat16),
        (3 * megabyte + 7, Kind::Uint8),
        (megabyte, Kind::Int64),
    ] {
        let what = format!("{elements} of {kind:?}");
        let own = long(rank, elements, kind);
        scope.all_reduce(&own, ReduceOp::Sum)?;
        // 1 + 2 + ... times what rank 0 has.
        let total = long(world * (world + 1) / 2 - 1, elements, kind);
        ensure!(own.equal(&total), "the sum of {what}");
        let own = long(rank, elements, kind);
        scope.broadcast(&own, world - 1)?;
        ensure!(own.equal(&long(world - 1, elements, kind)), "the last rank's {what}");
    }
    // On one rank in a bucket, on the others elsewhere.
    let store = nn::VarStore::new(Device::Cpu);
    let weight = store.root().zeros("weight", &[megabyte + 1]);
    scope.register(&store)?;
    (&weight * 3.0).sum(Kind::Float).f_backward()?;
    let gradient = if rank == 0 { weight.grad() } else { weight.grad().copy() };
    scope.all_reduce(&gradient, ReduceOp::Sum)?;
    ensure!(gradient.eq(3.0 * world as f64).all().f_int64_value(&[])? == 1, "the gradient's sum");
    scope.finish()?;
    Ok(())
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Facts {
    name: String,
    best: f64,
    words: BTreeMap<String, Vec<u64>>,
}

fn facts(rank: usize) -> Facts {
    let words =
        BTreeMap::from([("a".to_owned(), vec![u64::MAX; 300 * rank]), (String::new(), vec![])]);
    Facts { name: format!("rank {rank}"), best: f64::NEG_INFINITY, words }
}

fn objects() -> Result<()> {
    let scope = ddp_runtime::init()?;
    let (rank, world) = (scope.rank(), scope.world_size());
    let all: Vec<Facts> = (0..world).map(facts).collect();
    ensure!(dist::all_gather_object(&facts(rank))? == all, "all_gather_object");
    for root in 0..world {
        let sent = dist::broadcast_object((rank == root).then(|| facts(root)), root)?;
        ensure!(sent == facts(root), "broadcast_object from {root}");
        let found = dist::gather_object(&facts(rank), root)?;
        ensure!(found == (rank == root).then(|| all.clone()), "gather_object to {root}");
        let own = dist::scatter_object((rank == root).then(|| all.clone()), root)?;
        ensure!(own == facts(rank), "scatter_object from {root}");
    }
    scope.finish()?;
    Ok(())
}

/// What the root does not give is an error on all ranks, at once.
fn nothing() -> Result<()> {
    let scope = ddp_runtime::init()?;
    dist::broadcast_object(None::<u8>, 0)?;
    scope.finish()?;
    Ok(())
}

fn too_few() -> Result<()> {
    let scope = ddp_runtime::init()?;
    let one = [part(0, 1)];
    drop(dist::scatter((scope.rank() == 0).then_some(&one[..]), 0)?);
    scope.finish()?;
    Ok(())
}

/// Rank 1 is elsewhere.
fn elsewhere(how: &str) -> Result<()> {
    let scope = ddp_runtime::init()?;
    let odd = scope.rank() == 1;
    match how {
        "barrier" if odd => dist::barrier()?,
        "object" if odd => drop(dist::all_gather_object(&1)?),
        "root" => drop(dist::broadcast_object(Some(1), scope.rank())?),
        "shape" => drop(dist::all_gather(&part(0, 2).narrow(1, 0, if odd { 1 } else { 2 }))?),
        _ => drop(dist::broadcast_object(Some(1), 0)?),
    }
    scope.finish()?;
    Ok(())
}

pub(super) fn run(args: &[String]) -> Result<()> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        ["tensors"] => tensors(),
        ["pieces"] => pieces(),
        ["objects"] => objects(),
        ["nothing"] => nothing(),
        ["too-few"] => too_few(),
        ["elsewhere", how] => elsewhere(how),
        _ => bail!("no case of dist is called {args:?}"),
    }
}
