//! Which of NCCL's types carries which tensor: pure.
use cudarc::nccl::sys::{ncclDataType_t, ncclRedOp_t};
use tch::Kind;

use super::fault::Fault;
use crate::comm::ReduceOp;

/// How a tensor is reduced: NCCL's type, how many of them one element is, and the operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reduction {
    pub(super) kind: ncclDataType_t,
    pub(super) per_element: usize,
    pub(super) op: ncclRedOp_t,
}

/// How elements of this kind are combined. Truth values count as bytes: any for a sum, all for a product. Complex numbers can
/// only be added, part by part. Both as in PyTorch.
pub(super) fn reduction(kind: Kind, op: ReduceOp) -> Result<Reduction, Fault> {
    use ncclDataType_t::{
        ncclBfloat16, ncclFloat16, ncclFloat32, ncclFloat64, ncclInt8, ncclInt32, ncclInt64,
        ncclUint8,
    };
    let plain = match op {
        ReduceOp::Sum => ncclRedOp_t::ncclSum,
        ReduceOp::Min => ncclRedOp_t::ncclMin,
        ReduceOp::Max => ncclRedOp_t::ncclMax,
        ReduceOp::Product => ncclRedOp_t::ncclProd,
        ReduceOp::Avg => ncclRedOp_t::ncclAvg,
    };
    let one = |kind| Ok(Reduction { kind, per_element: 1, op: plain });
    let parts = |kind| Ok(Reduction { kind, per_element: 2, op: plain });
    match (kind, op) {
        (Kind::Uint8, _) => one(ncclUint8),
        (Kind::Int8, _) => one(ncclInt8),
        (Kind::Int, _) => one(ncclInt32),
        (Kind::Int64, _) => one(ncclInt64),
        (Kind::Half, _) => one(ncclFloat16),
        (Kind::BFloat16, _) => one(ncclBfloat16),
        (Kind::Float, _) => one(ncclFloat32),
        (Kind::Double, _) => one(ncclFloat64),
        (Kind::Bool, ReduceOp::Sum | ReduceOp::Max) => {
            Ok(Reduction { kind: ncclUint8, per_element: 1, op: ncclRedOp_t::ncclMax })
        }
        (Kind::Bool, ReduceOp::Product | ReduceOp::Min) => {
            Ok(Reduction { kind: ncclUint8, per_element: 1, op: ncclRedOp_t::ncclMin })
        }
        (Kind::ComplexFloat, ReduceOp::Sum | ReduceOp::Avg) => parts(ncclFloat32),
        (Kind::ComplexDouble, ReduceOp::Sum | ReduceOp::Avg) => parts(ncclFloat64),
        _ => Err(Fault::Unsupported {
            what: format!("NCCL cannot combine tensors of kind {kind:?} by {op:?}"),
            cure: "convert them to Float or Int64 and back, or combine them on the CPU",
        }),
    }
}

/// NCCL's type for data that is only copied: bytes, whatever they mean.
pub(super) const BYTES: ncclDataType_t = ncclDataType_t::ncclUint8;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_that_nccl_has_is_reduced_as_itself() {
        let kinds = [
            (Kind::Uint8, 1),
            (Kind::Int8, 0),
            (Kind::Int, 2),
            (Kind::Int64, 4),
            (Kind::Half, 6),
            (Kind::Float, 7),
            (Kind::Double, 8),
            (Kind::BFloat16, 9),
        ];
        // The numbers are those of nccl.h.
        for (kind, number) in kinds {
            let reduction = reduction(kind, ReduceOp::Product).unwrap();
            assert_eq!((reduction.kind as u32, reduction.per_element), (number, 1), "{kind:?}");
            assert_eq!(reduction.op as u32, 1);
        }
    }

    #[test]
    fn truth_values_and_complex_numbers_are_as_in_pytorch() {
        let any = reduction(Kind::Bool, ReduceOp::Sum).unwrap();
        assert_eq!((any.kind, any.op), (ncclDataType_t::ncclUint8, ncclRedOp_t::ncclMax));
        let all = reduction(Kind::Bool, ReduceOp::Product).unwrap();
        assert_eq!(all.op, ncclRedOp_t::ncclMin);
        let complex = reduction(Kind::ComplexDouble, ReduceOp::Sum).unwrap();
        assert_eq!((complex.kind, complex.per_element), (ncclDataType_t::ncclFloat64, 2));
    }

    #[test]
    fn what_nccl_lacks_is_refused_with_the_cure() {
        for (kind, op) in [(Kind::Int16, ReduceOp::Sum), (Kind::ComplexFloat, ReduceOp::Max)] {
            let text = reduction(kind, op).unwrap_err().to_string();
            assert!(text.contains(&format!("{kind:?} by {op:?}")) && text.contains("; convert"));
        }
    }
}
