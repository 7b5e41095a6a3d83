//! The arithmetic: combines the same stretch of every rank's memory, and writes the result to all of them.
//!
//! In one pass, block by block so that a block stays in the cache between reading and writing, always in the order of the
//! ranks, so that all ranks hold the same bits whoever computed them.
use half::{bf16, f16};
use tch::Kind;

use crate::bridge::BridgeError;
use crate::comm::ReduceOp;

/// Elements of a block: 16 KiB of f32.
const BLOCK: usize = 4096;

/// What can be combined.
trait Number: Copy + Default {
    fn combine(op: ReduceOp, a: Self, b: Self) -> Self;
}

macro_rules! numbers {
    ($($kind:ty: $add:expr, $times:expr;)*) => {$(
        impl Number for $kind {
            #[inline(always)]
            fn combine(op: ReduceOp, a: Self, b: Self) -> Self {
                match op {
                    ReduceOp::Sum | ReduceOp::Avg => $add(a, b),
                    ReduceOp::Product => $times(a, b),
                    ReduceOp::Min => if b < a || b != b { b } else { a },
                    ReduceOp::Max => if b > a || b != b { b } else { a },
                }
            }
        }
    )*};
}
numbers! {
    f32: |a, b| a + b, |a, b| a * b;
    f64: |a, b| a + b, |a, b| a * b;
    f16: |a: f16, b: f16| f16::from_f32(a.to_f32() + b.to_f32()), |a: f16, b: f16| f16::from_f32(a.to_f32() * b.to_f32());
    bf16: |a: bf16, b: bf16| bf16::from_f32(a.to_f32() + b.to_f32()), |a: bf16, b: bf16| bf16::from_f32(a.to_f32() * b.to_f32());
    i64: i64::wrapping_add, i64::wrapping_mul;
    i32: i32::wrapping_add, i32::wrapping_mul;
    i16: i16::wrapping_add, i16::wrapping_mul;
    i8: i8::wrapping_add, i8::wrapping_mul;
    u8: u8::wrapping_add, u8::wrapping_mul;
}

/// Combines `elements` elements of `kind` at each of `parts`, in order, and writes the result to each.
///
/// # Errors
/// When the dtype has no arithmetic here.
///
/// # Safety
/// Each pointer spans that many elements, aligned for the kind; the stretches do not overlap, and nobody else touches them
/// during the call.
pub(super) unsafe fn reduce(
    kind: Kind,
    op: ReduceOp,
    parts: &[*mut u8],
    elements: usize,
) -> Result<(), BridgeError> {
    // SAFETY: passed on; the element type is that of the kind.
    unsafe {
        match kind {
            Kind::Float => each_op::<f32>(op, parts, elements),
            Kind::Double => each_op::<f64>(op, parts, elements),
            Kind::Half => each_op::<f16>(op, parts, elements),
            Kind::BFloat16 => each_op::<bf16>(op, parts, elements),
            Kind::Int64 => each_op::<i64>(op, parts, elements),
            Kind::Int => each_op::<i32>(op, parts, elements),
            Kind::Int16 => each_op::<i16>(op, parts, elements),
            Kind::Int8 => each_op::<i8>(op, parts, elements),
            Kind::Uint8 => each_op::<u8>(op, parts, elements),
            other => {
                return Err(BridgeError::new(format!(
                    "tensors of dtype {other:?} cannot be reduced; convert them to a number type"
                )));
            }
        }
    }
    Ok(())
}

/// # Safety
/// As [`reduce`].
unsafe fn each_op<T: Number>(op: ReduceOp, parts: &[*mut u8], elements: usize) {
    // The operation is a constant in each call, so that the loops below are compiled for it alone.
    // SAFETY: passed on.
    unsafe {
        match op {
            ReduceOp::Sum | ReduceOp::Avg => dispatch::<T>(ReduceOp::Sum, parts, elements),
            ReduceOp::Min => dispatch::<T>(ReduceOp::Min, parts, elements),
            ReduceOp::Max => dispatch::<T>(ReduceOp::Max, parts, elements),
            ReduceOp::Product => dispatch::<T>(ReduceOp::Product, parts, elements),
        }
    }
}

/// # Safety
/// As [`reduce`].
#[inline(always)]
unsafe fn dispatch<T: Number>(op: ReduceOp, parts: &[*mut u8], elements: usize) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has the feature; the rest is passed on.
        return unsafe { with_avx2::<T>(op, parts, elements) };
    }
    // SAFETY: passed on.
    unsafe { blocks::<T>(op, parts, elements) }
}

/// # Safety
/// As [`reduce`]; the processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn with_avx2<T: Number>(op: ReduceOp, parts: &[*mut u8], elements: usize) {
    // SAFETY: passed on.
    unsafe { blocks::<T>(op, parts, elements) }
}

/// # Safety
/// As [`reduce`].
#[inline(always)]
unsafe fn blocks<T: Number>(op: ReduceOp, parts: &[*mut u8], elements: usize) {
    let mut sum = [T::default(); BLOCK];
    let mut start = 0;
    while start < elements {
        let length = BLOCK.min(elements - start);
        // SAFETY: within the stretch of each part, which nobody else touches.
        let part = |part: *mut u8| unsafe {
            std::slice::from_raw_parts_mut(part.cast::<T>().add(start), length)
        };
        if let [first, second] = *parts {
            pair(op, part(first), part(second));
        } else if let [first, rest @ ..] = parts {
            let sum = &mut sum[..length];
            sum.copy_from_slice(part(*first));
            for &other in rest {
                for (sum, value) in sum.iter_mut().zip(part(other).iter()) {
                    *sum = T::combine(op, *sum, *value);
                }
            }
            for &target in parts {
                part(target).copy_from_slice(sum);
            }
        }
        start += length;
    }
}

/// Two ranks need no block in between.
#[inline(always)]
fn pair<T: Number>(op: ReduceOp, first: &mut [T], second: &mut [T]) {
    for (a, b) in first.iter_mut().zip(second.iter_mut()) {
        let value = T::combine(op, *a, *b);
        *a = value;
        *b = value;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run<T: Copy>(kind: Kind, op: ReduceOp, parts: &mut [Vec<T>]) -> Result<(), BridgeError> {
        let elements = parts[0].len();
        let pointers: Vec<*mut u8> =
            parts.iter_mut().map(|part| part.as_mut_ptr().cast()).collect();
        // SAFETY: each vector spans its elements and is borrowed here alone.
        unsafe { reduce(kind, op, &pointers, elements) }
    }

    #[test]
    fn every_operation_and_number_type() {
        let mut parts = [vec![1_i64, 5], vec![2, -3], vec![3, 4]];
        run(Kind::Int64, ReduceOp::Sum, &mut parts).unwrap();
        assert_eq!(parts, [[6, 6], [6, 6], [6, 6]]);
        let mut parts = [vec![2_u8], vec![3], vec![4]];
        run(Kind::Uint8, ReduceOp::Product, &mut parts).unwrap();
        assert_eq!(parts[2], [24]);
        let mut parts = [vec![f16::from_f32(1.5)], vec![f16::from_f32(2.0)]];
        run(Kind::Half, ReduceOp::Sum, &mut parts).unwrap();
        assert_eq!(parts[0], [f16::from_f32(3.5)]);
        let mut parts = [vec![bf16::from_f32(1.5)], vec![bf16::from_f32(2.0)]];
        run(Kind::BFloat16, ReduceOp::Max, &mut parts).unwrap();
        assert_eq!(parts[0], [bf16::from_f32(2.0)]);
        assert!(run(Kind::Bool, ReduceOp::Sum, &mut [vec![true], vec![false]]).is_err());
    }

    #[test]
    fn a_nan_is_neither_lost_in_a_minimum_nor_in_a_maximum() {
        for op in [ReduceOp::Min, ReduceOp::Max] {
            for position in 0..3 {
                let mut parts = [vec![1.0_f32], vec![2.0], vec![3.0]];
                parts[position][0] = f32::NAN;
                run(Kind::Float, op, &mut parts).unwrap();
                assert!(parts[0][0].is_nan(), "{op:?} {position}");
            }
        }
    }

    proptest! {
        #[test]
        fn sums_are_those_of_a_plain_loop_in_the_order_of_the_ranks(
            ranks in 2_usize..6,
            elements in prop_oneof![0_usize..40, 4090_usize..4110, 9000_usize..9010],
            seed in any::<u32>(),
        ) {
            let value = |rank: usize, index: usize| {
                ((seed as usize + rank * 7919 + index * 104_729) % 2003) as f32 / 7.0 - 100.0
            };
            let mut parts: Vec<Vec<f32>> = (0..ranks)
                .map(|rank| (0..elements).map(|index| value(rank, index)).collect())
                .collect();
            let expected: Vec<f32> = (0..elements)
                .map(|index| (1..ranks).fold(value(0, index), |sum, rank| sum + value(rank, index)))
                .collect();
            run(Kind::Float, ReduceOp::Sum, &mut parts).unwrap();
            for part in &parts {
                prop_assert_eq!(part, &expected);
            }
        }
    }
}
