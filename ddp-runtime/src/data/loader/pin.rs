//! Batches in pinned memory, which a GPU reads while the program goes on.

use std::collections::{BTreeMap, HashMap};
use std::sync::Once;

use tch::{Cuda, TchError, Tensor};

use super::error::LoaderError;
use crate::data::tuples::each_tuple;
use crate::device::device;
use crate::output;

/// A batch whose tensors can be moved to pinned memory (PyTorch: "a custom type with a `pin_memory` method").
pub trait PinMemory: Sized {
    /// The batch with all its CPU tensors in pinned memory; what is no tensor stays.
    ///
    /// # Errors
    /// Where libtorch or the driver refuses.
    fn pin_memory(self) -> Result<Self, TchError>;
}

impl PinMemory for Tensor {
    fn pin_memory(self) -> Result<Self, TchError> {
        if self.device().is_cuda() { Ok(self) } else { self.f_pin_memory(device()) }
    }
}

macro_rules! as_it_is {
    ($($kind:ty),*) => {$(
        impl PinMemory for $kind {
            fn pin_memory(self) -> Result<Self, TchError> {
                Ok(self)
            }
        }
    )*};
}
as_it_is!(String, &'static str);

macro_rules! tuples {
    ($($part:ident $place:tt),+) => {
        impl<$($part: PinMemory),+> PinMemory for ($($part,)+) {
            fn pin_memory(self) -> Result<Self, TchError> {
                Ok(($(self.$place.pin_memory()?,)+))
            }
        }
    };
}
each_tuple!(tuples);

impl<T: PinMemory> PinMemory for Vec<T> {
    fn pin_memory(self) -> Result<Self, TchError> {
        self.into_iter().map(T::pin_memory).collect()
    }
}

impl<T: PinMemory, const N: usize> PinMemory for [T; N] {
    fn pin_memory(self) -> Result<Self, TchError> {
        let pinned: Vec<T> = self.into_iter().map(T::pin_memory).collect::<Result<_, _>>()?;
        let found = pinned.len();
        pinned.try_into().map_err(|_| TchError::Shape(format!("{found} of {N} tensors")))
    }
}

impl<K: Ord, T: PinMemory> PinMemory for BTreeMap<K, T> {
    fn pin_memory(self) -> Result<Self, TchError> {
        self.into_iter().map(|(key, value)| Ok((key, value.pin_memory()?))).collect()
    }
}

impl<K: Eq + std::hash::Hash, T: PinMemory> PinMemory for HashMap<K, T> {
    fn pin_memory(self) -> Result<Self, TchError> {
        self.into_iter().map(|(key, value)| Ok((key, value.pin_memory()?))).collect()
    }
}

/// What a reader does with a batch that is to be pinned.
pub(super) fn pin<B: PinMemory>(batch: B) -> Result<B, LoaderError> {
    batch.pin_memory().map_err(LoaderError::Pin)
}

/// Whether batches can be pinned here. As in PyTorch the wish has no effect without a GPU, and is told so once.
pub(super) fn can_pin() -> bool {
    static ONCE: Once = Once::new();
    let can = Cuda::is_available();
    if !can {
        ONCE.call_once(|| {
            output::notice(format_args!(
                "a data loader is asked for pinned memory, and there is no GPU that would read it: no memory is pinned"
            ));
        });
    }
    can
}
