//! Gradients as 16-bit floats on the wire: half the traffic of f32.
use std::collections::VecDeque;

use tch::Kind;

use super::{AVERAGING, CommHook, GradBucket, HookComm, Reduction};
use crate::comm::ReduceOp;
use crate::error::{During, Result};

/// A hook that sends a bucket as another dtype.
#[derive(Debug)]
struct Cast {
    kind: Kind,
    under_way: VecDeque<Reduction>,
}

impl Cast {
    fn new(kind: Kind) -> Self {
        Self { kind, under_way: VecDeque::new() }
    }

    fn start(&mut self, bucket: &GradBucket, comm: &HookComm<'_>) -> Result<()> {
        let small = bucket.flat.f_to_kind(self.kind).during(AVERAGING)?;
        self.under_way.push_back(comm.all_reduce(&small, ReduceOp::Sum)?);
        Ok(())
    }

    fn finish(&mut self, bucket: &GradBucket, comm: &HookComm<'_>) -> Result<()> {
        match self.under_way.pop_front() {
            Some(reduction) => {
                let sum = comm.wait(reduction)?;
                bucket.flat.shallow_clone().f_copy_(&sum).during(AVERAGING)
            }
            None => Ok(()),
        }
    }
}

macro_rules! cast_hook {
    ($(#[$doc:meta])* $name:ident, $text:literal, $kind:expr) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name(Cast);

        impl $name {
            /// The hook.
            #[must_use]
            pub fn new() -> Self {
                Self(Cast::new($kind))
            }
        }

        impl Default for $name {
            fn default() -> Self {
                Self::new()
            }
        }

        impl CommHook for $name {
            fn name(&self) -> String {
                $text.to_owned()
            }

            fn start(&mut self, bucket: &GradBucket, comm: &HookComm<'_>) -> Result<()> {
                self.0.start(bucket, comm)
            }

            fn finish(&mut self, bucket: &GradBucket, comm: &HookComm<'_>) -> Result<()> {
                self.0.finish(bucket, comm)
            }
        }
    };
}

cast_hook!(
    /// Gradients as bf16 on the wire, as PyTorch's `bf16_compress_hook`: the range of f32 with 8 bits of precision. Divided by the
    /// world size before they are rounded.
    Bf16Compress,
    "bf16",
    Kind::BFloat16
);
cast_hook!(
    /// Gradients as f16 on the wire, as PyTorch's `fp16_compress_hook`: 11 bits of precision, nothing above 65504. Divided by the
    /// world size before they are rounded, so that the sum of what fits fits.
    Fp16Compress,
    "fp16",
    Kind::Half
);
