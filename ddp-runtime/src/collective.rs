//! Collectives that a program calls by itself: announced, compared, then carried out.
use tch::{Device, Kind, Tensor};

use crate::bridge::data_alias;
use crate::comm::ReduceOp;
use crate::control::Operation;
use crate::error::{During, Error, Result};
use crate::group::{Group, check_mean};
use crate::hash::hash_of;
use crate::session::Session;

/// A hash of what all ranks must agree on before a collective.
fn subject(name: &str, tensor: &Tensor, detail: usize) -> u64 {
    hash_of(&(name, tensor.size(), tensor.kind() as i64, detail))
}

/// Copies `values` over `tensor`, unseen by autograd.
pub(crate) fn write_back(tensor: &Tensor, values: &Tensor, operation: &str) -> Result<()> {
    let mut target = data_alias(tensor).during(operation)?;
    target.f_copy_(values).during(operation)
}

/// The values of a tensor in memory of their own, row by row, without history.
pub(crate) fn contiguous_copy(tensor: &Tensor, operation: &str) -> Result<Tensor> {
    let alias = data_alias(tensor).during(operation)?;
    alias.f_contiguous().and_then(|values| values.f_detach_copy()).during(operation)
}

/// Combines the ranks' tensors in place; of those that do not stand aside.
pub(crate) fn all_reduce(session: &Session, tensor: &Tensor, op: ReduceOp) -> Result<()> {
    let operation = "all_reduce";
    check_mean(op, tensor.kind(), operation)?;
    session.collective(Operation::AllReduce, subject(operation, tensor, op as usize), |group| {
        let alias = data_alias(tensor).during(operation)?;
        let in_place = alias.is_contiguous();
        let values = if in_place { alias } else { contiguous_copy(tensor, operation)? };
        if group.asides().next().is_some() {
            let mut words = vec![op as i64, values.kind() as i64];
            words.extend(values.size());
            describe(group, &words)?;
        }
        group.all_reduce(&values, op, operation)?;
        if in_place { Ok(()) } else { write_back(tensor, &values, operation) }
    })
}

/// Tells ranks that stand aside what the others reduce. All ranks call this; those pass no words.
fn describe(group: &mut Group, words: &[i64]) -> Result<Vec<i64>> {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let lead = group.lead();
    let (control, watch) = group.control();
    let all = control.gather_bytes(watch, &bytes)?;
    let (words, _) = all[lead].as_chunks();
    Ok(words.iter().map(|word| i64::from_le_bytes(*word)).collect())
}

/// The dtypes that can be reduced.
const KINDS: [Kind; 10] = [
    Kind::Float,
    Kind::Double,
    Kind::Half,
    Kind::BFloat16,
    Kind::Int64,
    Kind::Int,
    Kind::Int16,
    Kind::Int8,
    Kind::Uint8,
    Kind::Bool,
];

/// The dtype of that number.
pub(crate) fn kind_of(number: i64) -> Kind {
    KINDS.into_iter().find(|known| *known as i64 == number).unwrap_or(Kind::Double)
}

/// This rank's part in an all-reduce of the others: what changes nothing.
pub(crate) fn accompany_all_reduce(group: &mut Group) -> Result<()> {
    let operation = "all_reduce";
    let words = describe(group, &[])?;
    let [op, kind, size @ ..] = &words[..] else {
        return Err(Error::mismatch(
            "an all-reduce without a tensor",
            "start all ranks from one and the same binary",
        ));
    };
    let op = [ReduceOp::Min, ReduceOp::Max, ReduceOp::Product, ReduceOp::Avg]
        .into_iter()
        .find(|known| *known as i64 == *op)
        .unwrap_or(ReduceOp::Sum);
    let kind = kind_of(*kind);
    let device = crate::device::device();
    group.all_reduce(&neutral(op, size, kind, device)?, op, operation)
}

/// A tensor that leaves what it is combined with as it is.
fn neutral(op: ReduceOp, size: &[i64], kind: Kind, device: Device) -> Result<Tensor> {
    let operation = "all_reduce";
    let options = (kind, device);
    match op {
        ReduceOp::Sum | ReduceOp::Avg => Tensor::f_zeros(size, options),
        ReduceOp::Product => Tensor::f_ones(size, options),
        ReduceOp::Min => extreme(size, kind, device, true),
        ReduceOp::Max => extreme(size, kind, device, false),
    }
    .during(operation)
}

/// The largest or smallest value of a dtype.
fn extreme(
    size: &[i64],
    kind: Kind,
    device: Device,
    largest: bool,
) -> std::result::Result<Tensor, tch::TchError> {
    let whole = |low: i64, high: i64| if largest { high } else { low };
    let number = match kind {
        Kind::Bool => whole(0, 1),
        Kind::Uint8 => whole(0, u8::MAX.into()),
        Kind::Int8 => whole(i8::MIN.into(), i8::MAX.into()),
        Kind::Int16 => whole(i16::MIN.into(), i16::MAX.into()),
        Kind::Int => whole(i32::MIN.into(), i32::MAX.into()),
        Kind::Int64 => whole(i64::MIN, i64::MAX),
        _ => {
            let infinity = if largest { f64::INFINITY } else { f64::NEG_INFINITY };
            return Tensor::f_full(size, infinity, (kind, device));
        }
    };
    Tensor::f_full(size, number, (kind, device))
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
