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
    /// As libtorch multiplies a tensor with a scalar; only of floating-point numbers.
    fn times(self, scale: f64) -> Self;
}

macro_rules! numbers {
    ($($kind:ty: $add:expr, $times:expr, $scale:expr;)*) => {$(
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

            #[inline(always)]
            fn times(self, scale: f64) -> Self {
                $scale(self, scale)
            }
        }
    )*};
}
numbers! {
    f32: |a, b| a + b, |a, b| a * b, |a, s| a * s as f32;
    f64: |a, b| a + b, |a, b| a * b, |a, s| a * s;
    f16: |a: f16, b: f16| f16::from_f32(a.to_f32() + b.to_f32()), |a: f16, b: f16| f16::from_f32(a.to_f32() * b.to_f32()), |a: f16, s| f16::from_f32(a.to_f32() * s as f32);
    bf16: |a: bf16, b: bf16| bf16::from_f32(a.to_f32() + b.to_f32()), |a: bf16, b: bf16| bf16::from_f32(a.to_f32() * b.to_f32()), |a: bf16, s| bf16::from_f32(a.to_f32() * s as f32);
    i64: i64::wrapping_add, i64::wrapping_mul, |a, _| a;
    i32: i32::wrapping_add, i32::wrapping_mul, |a, _| a;
    i16: i16::wrapping_add, i16::wrapping_mul, |a, _| a;
    i8: i8::wrapping_add, i8::wrapping_mul, |a, _| a;
    u8: u8::wrapping_add, u8::wrapping_mul, |a, _| a;
}

/// Combines `elements` elements of `kind` at each of `parts`, in order, and writes the result to each. In a sum each part is
/// multiplied with its one of `scales` first, which are 1 for all else.
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
    scales: &[f64],
    elements: usize,
) -> Result<(), BridgeError> {
    // SAFETY: passed on; the element type is that of the kind.
    unsafe {
        match kind {
            Kind::Float => each_op::<f32>(op, parts, scales, elements),
            Kind::Double => each_op::<f64>(op, parts, scales, elements),
            Kind::Half => each_op::<f16>(op, parts, scales, elements),
            Kind::BFloat16 => each_op::<bf16>(op, parts, scales, elements),
            Kind::Int64 => each_op::<i64>(op, parts, scales, elements),
            Kind::Int => each_op::<i32>(op, parts, scales, elements),
            Kind::Int16 => each_op::<i16>(op, parts, scales, elements),
            Kind::Int8 => each_op::<i8>(op, parts, scales, elements),
            Kind::Uint8 => each_op::<u8>(op, parts, scales, elements),
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
unsafe fn each_op<T: Number>(op: ReduceOp, parts: &[*mut u8], scales: &[f64], elements: usize) {
    // The operation is a constant in each call, so that the loops below are compiled for it alone.
    let plain = |_: usize| |value: T| value;
    let scaled = |rank: usize| {
        let scale = scales[rank];
        move |value: T| value.times(scale)
    };
    // SAFETY: passed on.
    unsafe {
        match op {
            ReduceOp::Sum | ReduceOp::Avg if scales.iter().any(|&scale| scale != 1.0) => {
                dispatch(ReduceOp::Sum, parts, scaled, elements);
            }
            ReduceOp::Sum | ReduceOp::Avg => dispatch(ReduceOp::Sum, parts, plain, elements),
            ReduceOp::Min => dispatch(ReduceOp::Min, parts, plain, elements),
            ReduceOp::Max => dispatch(ReduceOp::Max, parts, plain, elements),
            ReduceOp::Product => dispatch(ReduceOp::Product, parts, plain, elements),
        }
    }
}

/// # Safety
/// As [`reduce`].
#[inline(always)]
unsafe fn dispatch<T: Number, F: Fn(T) -> T>(
    op: ReduceOp,
    parts: &[*mut u8],
    scale: impl Fn(usize) -> F,
    elements: usize,
) {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has the feature; the rest is passed on.
        return unsafe { with_avx2(op, parts, scale, elements) };
    }
    // SAFETY: passed on.
    unsafe { blocks(op, parts, scale, elements) }
}

/// # Safety
/// As [`reduce`]; the processor has AVX2.
#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
#[inline]
unsafe fn with_avx2<T: Number, F: Fn(T) -> T>(
    op: ReduceOp,
    parts: &[*mut u8],
    scale: impl Fn(usize) -> F,
    elements: usize,
) {
    // SAFETY: passed on.
    unsafe { blocks(op, parts, scale, elements) }
}

/// # Safety
/// As [`reduce`].
#[inline(always)]
unsafe fn blocks<T: Number, F: Fn(T) -> T>(
    op: ReduceOp,
    parts: &[*mut u8],
    scale: impl Fn(usize) -> F,
    elements: usize,
) {
    let mut sum = [T::default(); BLOCK];
    let mut start = 0;
    while start < elements {
        let length = BLOCK.min(elements - start);
        // SAFETY: within the stretch of each part, which nobody else touches.
        let part = |part: *mut u8| unsafe {
            std::slice::from_raw_parts_mut(part.cast::<T>().add(start), length)
        };
        if let [first, second] = *parts {
            let (a, b) = (scale(0), scale(1));
            pair(part(first), part(second), |x, y| T::combine(op, a(x), b(y)));
        } else if let [first, rest @ ..] = parts {
            let sum = &mut sum[..length];
            let scaled = scale(0);
            for (sum, value) in sum.iter_mut().zip(part(*first).iter()) {
                *sum = scaled(*value);
            }
            for (index, &other) in rest.iter().enumerate() {
                let scaled = scale(index + 1);
                for (sum, value) in sum.iter_mut().zip(part(other).iter()) {
                    *sum = T::combine(op, *sum, scaled(*value));
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
fn pair<T: Number>(first: &mut [T], second: &mut [T], combine: impl Fn(T, T) -> T) {
    for (a, b) in first.iter_mut().zip(second.iter_mut()) {
        let value = combine(*a, *b);
        *a = value;
        *b = value;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run<T: Copy>(kind: Kind, op: ReduceOp, parts: &mut [Vec<T>]) -> Result<(), BridgeError> {
        run_scaled(kind, op, &vec![1.0; parts.len()], parts)
    }

    fn run_scaled<T: Copy>(
        kind: Kind,
        op: ReduceOp,
        scales: &[f64],
        parts: &mut [Vec<T>],
    ) -> Result<(), BridgeError> {
        let elements = parts[0].len();
        let pointers: Vec<*mut u8> =
            parts.iter_mut().map(|part| part.as_mut_ptr().cast()).collect();
        // SAFETY: each vector spans its elements and is borrowed here alone.
        unsafe { reduce(kind, op, &pointers, scales, elements) }
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
            let mut scaled = parts.clone();
            run(Kind::Float, ReduceOp::Sum, &mut parts).unwrap();
            for part in &parts {
                prop_assert_eq!(part, &expected);
            }
            let scales: Vec<f64> = (0..ranks).map(|rank| 1.0 / (rank + 2) as f64).collect();
            let times = |rank: usize, index: usize| value(rank, index) * scales[rank] as f32;
            let expected: Vec<f32> = (0..elements)
                .map(|index| (1..ranks).fold(times(0, index), |sum, rank| sum + times(rank, index)))
                .collect();
            run_scaled(Kind::Float, ReduceOp::Sum, &scales, &mut scaled).unwrap();
            for part in &scaled {
                prop_assert_eq!(part, &expected);
            }
        }
    }
}
