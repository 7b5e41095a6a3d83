//! Numbers: what NCCL's types are, and how they are combined.
use half::{bf16, f16};

/// Combines two numbers by NCCL's code.
trait Number: Copy {
    fn combine(self, other: Self, op: u32) -> Self;
    fn over(self, count: usize) -> Self;
}

macro_rules! whole {
    ($($type:ty),*) => {$(
        impl Number for $type {
            fn combine(self, other: Self, op: u32) -> Self {
                match op {
                    1 => self.wrapping_mul(other),
                    2 => self.max(other),
                    3 => self.min(other),
                    _ => self.wrapping_add(other),
                }
            }

            fn over(self, count: usize) -> Self {
                self / count as $type
            }
        }
    )*};
}
whole!(i8, u8, i32, u32, i64, u64);

macro_rules! broken {
    ($($type:ty: $from:expr;)*) => {$(
        impl Number for $type {
            fn combine(self, other: Self, op: u32) -> Self {
                match op {
                    1 => self * other,
                    2 => self.max(other),
                    3 => self.min(other),
                    _ => self + other,
                }
            }

            fn over(self, count: usize) -> Self {
                self / $from(count)
            }
        }
    )*};
}
broken! {
    f32: |count| count as f32;
    f64: |count| count as f64;
    f16: |count| f16::from_f64(count as f64);
    bf16: |count| bf16::from_f64(count as f64);
}

/// Bytes of one element of NCCL's type.
pub(crate) fn size(kind: u32) -> usize {
    match kind {
        0 | 1 => 1,
        2 | 3 | 7 => 4,
        6 | 9 => 2,
        _ => 8,
    }
}

/// Combines the ranks' elements in the order of the ranks. `op`: 0 sum, 1 product, 2 largest, 3 smallest, 4 mean.
pub(crate) fn combine(kind: u32, op: u32, parts: &[&[u8]], out: &mut [u8]) {
    match kind {
        0 => typed::<i8>(op, parts, out),
        1 => typed::<u8>(op, parts, out),
        2 => typed::<i32>(op, parts, out),
        3 => typed::<u32>(op, parts, out),
        4 => typed::<i64>(op, parts, out),
        5 => typed::<u64>(op, parts, out),
        6 => typed::<f16>(op, parts, out),
        7 => typed::<f32>(op, parts, out),
        9 => typed::<bf16>(op, parts, out),
        _ => typed::<f64>(op, parts, out),
    }
}

fn typed<T: Number>(op: u32, parts: &[&[u8]], out: &mut [u8]) {
    let size = size_of::<T>();
    for (index, out) in out.chunks_exact_mut(size).enumerate() {
        let read = |part: &[u8]| {
            let bytes = &part[index * size..][..size];
            // SAFETY: as many bytes as a number has, of any alignment; every pattern is a number.
            unsafe { bytes.as_ptr().cast::<T>().read_unaligned() }
        };
        let mut value = read(parts[0]);
        for part in &parts[1..] {
            value = value.combine(read(part), op);
        }
        if op == 4 {
            value = value.over(parts.len());
        }
        // SAFETY: as above.
        unsafe { out.as_mut_ptr().cast::<T>().write_unaligned(value) };
    }
}
