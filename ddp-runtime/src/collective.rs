//! Collectives that a program calls by itself: announced, compared, then carried out.
use std::hash::{DefaultHasher, Hash, Hasher};

use tch::Tensor;

use crate::bridge::data_alias;
use crate::comm::ReduceOp;
use crate::control::Operation;
use crate::error::{During, Error, Result};
use crate::session::Session;

/// A hash of what all ranks must agree on before a collective.
fn subject(name: &str, tensor: &Tensor, detail: usize) -> u64 {
    let mut hasher = DefaultHasher::new();
    (name, tensor.size(), tensor.kind() as i64, detail).hash(&mut hasher);
    hasher.finish()
}

/// Copies `values` over `tensor`, unseen by autograd.
fn write_back(tensor: &Tensor, values: &Tensor, operation: &str) -> Result<()> {
    let mut target = data_alias(tensor).during(operation)?;
    target.f_copy_(values).during(operation)
}

/// The values of a tensor in memory of their own, row by row.
fn contiguous_copy(tensor: &Tensor, operation: &str) -> Result<Tensor> {
    let alias = data_alias(tensor).during(operation)?;
    alias.f_contiguous().and_then(|values| values.f_detach_copy()).during(operation)
}

pub(crate) fn all_reduce(session: &Session, tensor: &Tensor, op: ReduceOp) -> Result<()> {
    let operation = "all_reduce";
    session.collective(Operation::Collective, subject(operation, tensor, op as usize), |group| {
        let values = contiguous_copy(tensor, operation)?;
        group.all_reduce(&values, op, operation)?;
        write_back(tensor, &values, operation)
    })
}

pub(crate) fn broadcast(session: &Session, tensor: &Tensor, root: usize) -> Result<()> {
    let operation = "broadcast";
    let world_size = session.topology().world_size;
    if root >= world_size {
        return Err(Error::unsupported(
            format!("broadcast from rank {root} of {world_size} ranks"),
            "ranks count from 0",
        ));
    }
    session.collective(Operation::Collective, subject(operation, tensor, root), |group| {
        let values = contiguous_copy(tensor, operation)?;
        group.broadcast(&values, root, operation)?;
        write_back(tensor, &values, operation)
    })
}

pub(crate) fn all_gather(session: &Session, tensor: &Tensor) -> Result<Vec<Tensor>> {
    let operation = "all_gather";
    session.collective(Operation::Collective, subject(operation, tensor, 0), |group| {
        let values = contiguous_copy(tensor, operation)?;
        let world_size = group.topology().world_size as i64;
        let mut size = vec![world_size];
        size.extend(values.size());
        let output = Tensor::f_zeros(&size, (values.kind(), values.device())).during(operation)?;
        group.all_gather(&output, &values, operation)?;
        output.f_unbind(0).during(operation)
    })
}
