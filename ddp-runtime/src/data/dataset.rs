//! Data sets: samples by number, samples in a stream, and tensors whose rows are samples.

use std::convert::Infallible;
use std::fmt;
use std::sync::Arc;

use tch::{TchError, Tensor};

use super::{Collate, Share, SharedTensor};

/// What a data set's own errors must be: anything that `Box<dyn Error + Send + Sync>` can be made from, such as
/// `std::io::Error`, `anyhow::Error` or `String`.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Samples that have numbers: PyTorch's map-style `Dataset`.
///
/// The loader's threads share it, so it is `Sync`. Tensors in tch are not: keep those that samples are read from in a
/// [`SharedTensor`], or take a [`TensorDataset`].
///
/// ```
/// use ddp_runtime::data::{Dataset, SharedTensor};
/// use tch::{Kind, TchError, Tensor};
///
/// /// Windows of a text, each with the one that is a character further on.
/// struct Windows {
///     text: SharedTensor,
///     len: usize,
/// }
///
/// impl Dataset for Windows {
///     type Sample = (Tensor, Tensor);
///     type Error = TchError;
///
///     fn len(&self) -> usize {
///         self.text.rows() - self.len
///     }
///     fn get(&self, index: usize) -> Result<Self::Sample, TchError> {
///         let (text, at, len) = (self.text.alias(), index as i64, self.len as i64);
///         Ok((text.f_narrow(0, at, len)?, text.f_narrow(0, at + 1, len)?))
///     }
/// }
/// ```
pub trait Dataset: Send + Sync {
    /// One sample.
    type Sample;
    /// Why a sample cannot be had.
    type Error: Into<BoxError>;

    /// How many samples there are; they are numbered from 0. The same on all ranks.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Sample `index`, which is below [`len`](Self::len). Called on the loader's threads, several at a time.
    ///
    /// What is drawn at random here should come from a generator seeded with [`sample_seed`](super::sample_seed).
    ///
    /// # Errors
    /// Whatever goes wrong; the loader's error names the index.
    fn get(&self, index: usize) -> Result<Self::Sample, Self::Error>;

    /// A whole batch at once, where that is faster than sample by sample; the result must be that of
    /// [`Collate::collate`] on the samples. `None`, as here, where it is not. Asked by loaders without a `collate` function
    /// of their own (PyTorch's `__getitems__`, with the collation).
    fn get_batch(
        &self,
        indices: &[usize],
    ) -> Option<Result<<Self::Sample as Collate>::Batch, Self::Error>>
    where
        Self::Sample: Collate,
    {
        let _ = indices;
        None
    }
}

impl<D: Dataset + ?Sized> Dataset for Arc<D> {
    type Sample = D::Sample;
    type Error = D::Error;

    fn len(&self) -> usize {
        (**self).len()
    }

    fn get(&self, index: usize) -> Result<Self::Sample, Self::Error> {
        (**self).get(index)
    }

    fn get_batch(
        &self,
        indices: &[usize],
    ) -> Option<Result<<Self::Sample as Collate>::Batch, Self::Error>>
    where
        Self::Sample: Collate,
    {
        (**self).get_batch(indices)
    }
}

/// The elements of a vector.
impl<T: Clone + Send + Sync> Dataset for Vec<T> {
    type Sample = T;
    type Error = Infallible;

    fn len(&self) -> usize {
        Vec::len(self)
    }

    fn get(&self, index: usize) -> Result<T, Infallible> {
        Ok(self[index].clone())
    }
}

/// Samples in a stream, without numbers: PyTorch's `IterableDataset`.
///
/// The loader reads it by several readers at a time: the threads of each rank, over all ranks. Each of them is told which
/// it is, and gives out its own part of the samples, which in PyTorch every data set has to see to by itself:
///
/// * data in parts (files, shards, partitions): the parts `k` with `k % share.world_size() == share.rank()`;
/// * a stream that must be read from its start: [`shard(items, share)`](fn@super::shard), which reads all of it and keeps
///   every so many-th item; as all readers do so, nothing is gained by more of them;
/// * a stream that only one rank can read: [`dispatch`](fn@super::dispatch).
pub trait IterableDataset: Send + Sync {
    /// One sample.
    type Sample;
    /// Why a sample cannot be had.
    type Error: Into<BoxError>;

    /// The samples of reader `share.rank()` of `share.world_size()`, in epoch `epoch`. Called and used on the reader's
    /// thread; what it needs of the data set it takes with it.
    fn read(&self, share: Share, epoch: u64) -> Samples<Self::Sample, Self::Error>;
}

/// The samples of one reader of an [`IterableDataset`], in order.
pub type Samples<S, E> = Box<dyn Iterator<Item = Result<S, E>>>;

impl<D: IterableDataset + ?Sized> IterableDataset for Arc<D> {
    type Sample = D::Sample;
    type Error = D::Error;

    fn read(&self, share: Share, epoch: u64) -> Samples<Self::Sample, Self::Error> {
        (**self).read(share, epoch)
    }
}

/// Tensors with one row a sample: PyTorch's `TensorDataset`.
///
/// A sample is the rows of that number, in the form in which the tensors were given: a tensor, a tuple or an array. Batches
/// are gathered from the tensors at once, without a tensor for each sample.
///
/// ```
/// use ddp_runtime::data::{DataLoader, TensorDataset};
/// use tch::{Tensor, kind};
///
/// let (xs, ys) = (Tensor::zeros([100, 8], kind::FLOAT_CPU), Tensor::arange(100, kind::INT64_CPU));
/// let loader = DataLoader::builder(TensorDataset::new((xs, ys))?).batch_size(32).build()?;
/// for batch in &loader {
///     let (x, y) = batch?;
///     assert_eq!(x.size()[0], y.size()[0]);
/// }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub struct TensorDataset<T: Rows> {
    tensors: T::Shared,
    len: usize,
}

impl<T: Rows> Clone for TensorDataset<T> {
    fn clone(&self) -> Self {
        Self { tensors: self.tensors.clone(), len: self.len }
    }
}

impl<T: Rows> fmt::Debug for TensorDataset<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TensorDataset").field("tensors", &self.tensors).finish_non_exhaustive()
    }
}

impl<T: Rows> TensorDataset<T> {
    /// The rows of these tensors, which keep their memory and device and lose their history.
    ///
    /// # Errors
    /// [`TchError::Shape`] if a tensor has no first dimension, or not as many rows as the first one.
    pub fn new(tensors: T) -> Result<Self, TchError> {
        let tensors = T::share(tensors)?;
        let counts = T::counts(&tensors);
        match counts.iter().position(|count| *count != counts[0]) {
            Some(at) => Err(TchError::Shape(format!(
                "tensor {at} of a data set has {} rows, the first one {}",
                counts[at], counts[0]
            ))),
            None => Ok(Self { len: counts[0], tensors }),
        }
    }
}

impl<T: Rows> Dataset for TensorDataset<T> {
    type Sample = T;
    type Error = TchError;

    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, index: usize) -> Result<T, TchError> {
        T::row(&self.tensors, index)
    }

    fn get_batch(&self, indices: &[usize]) -> Option<Result<T::Batch, TchError>> {
        Some(T::rows(&self.tensors, indices))
    }
}

/// A tensor, or a tuple or array of them, whose rows are samples; see [`TensorDataset`].
pub trait Rows: Collate<Batch = Self> {
    /// The same for several threads.
    #[doc(hidden)]
    type Shared: Clone + fmt::Debug + Send + Sync;
    #[doc(hidden)]
    fn share(self) -> Result<Self::Shared, TchError>;
    #[doc(hidden)]
    fn counts(shared: &Self::Shared) -> Vec<usize>;
    #[doc(hidden)]
    fn row(shared: &Self::Shared, index: usize) -> Result<Self, TchError>;
    #[doc(hidden)]
    fn rows(shared: &Self::Shared, indices: &[usize]) -> Result<Self, TchError>;
}

impl Rows for Tensor {
    type Shared = SharedTensor;

    fn share(self) -> Result<SharedTensor, TchError> {
        if self.dim() == 0 {
            return Err(TchError::Shape(
                "a data set of a tensor without a first dimension".to_owned(),
            ));
        }
        SharedTensor::f_new(&self)
    }

    fn counts(shared: &SharedTensor) -> Vec<usize> {
        vec![shared.rows()]
    }

    fn row(shared: &SharedTensor, index: usize) -> Result<Tensor, TchError> {
        shared.row(index)
    }

    fn rows(shared: &SharedTensor, indices: &[usize]) -> Result<Tensor, TchError> {
        shared.gather(indices)
    }
}

impl<const N: usize> Rows for [Tensor; N] {
    type Shared = [SharedTensor; N];

    fn share(self) -> Result<Self::Shared, TchError> {
        if N == 0 {
            return Err(TchError::Shape("a data set of no tensors".to_owned()));
        }
        in_array(self.map(Rows::share))
    }

    fn counts(shared: &Self::Shared) -> Vec<usize> {
        shared.iter().map(SharedTensor::rows).collect()
    }

    fn row(shared: &Self::Shared, index: usize) -> Result<Self, TchError> {
        in_array(shared.each_ref().map(|tensor| tensor.row(index)))
    }

    fn rows(shared: &Self::Shared, indices: &[usize]) -> Result<Self, TchError> {
        in_array(shared.each_ref().map(|tensor| tensor.gather(indices)))
    }
}

/// All results of an array, or the first error.
fn in_array<T, const N: usize>(results: [Result<T, TchError>; N]) -> Result<[T; N], TchError> {
    let values: Vec<T> = results.into_iter().collect::<Result<_, _>>()?;
    let found = values.len();
    values.try_into().map_err(|_| TchError::Shape(format!("{found} of {N} tensors")))
}

macro_rules! tuples {
    ($($part:ident $place:tt),+) => {
        impl Rows for ($($part!(Tensor),)+) {
            type Shared = ($($part!(SharedTensor),)+);

            fn share(self) -> Result<Self::Shared, TchError> {
                Ok(($(Rows::share(self.$place)?,)+))
            }

            fn counts(shared: &Self::Shared) -> Vec<usize> {
                vec![$(shared.$place.rows()),+]
            }

            fn row(shared: &Self::Shared, index: usize) -> Result<Self, TchError> {
                Ok(($(shared.$place.row(index)?,)+))
            }

            fn rows(shared: &Self::Shared, indices: &[usize]) -> Result<Self, TchError> {
                Ok(($(shared.$place.gather(indices)?,)+))
            }
        }
    };
}
/// The type it is given, once for each part of a tuple.
macro_rules! of {
    ($kind:ident) => {
        $kind
    };
}
tuples!(of 0);
tuples!(of 0, of 1);
tuples!(of 0, of 1, of 2);
tuples!(of 0, of 1, of 2, of 3);

#[cfg(test)]
mod tests {
    use tch::{Kind, Tensor, kind};

    use super::{Dataset, TensorDataset};
    use crate::data::Collate;

    fn numbered(n: i64) -> (Tensor, Tensor) {
        let ys = Tensor::arange(n, kind::INT64_CPU);
        (ys.to_kind(Kind::Float).unsqueeze(1).repeat([1, 3]), ys)
    }

    #[test]
    fn a_batch_at_once_is_that_of_its_samples() {
        let indices = [4, 0, 4, 2];
        let data = TensorDataset::new(numbered(5)).unwrap();
        let (x, y) = data.get_batch(&indices).unwrap().unwrap();
        let samples = indices.iter().map(|&index| data.get(index).unwrap()).collect();
        let (sx, sy): (Tensor, Tensor) = Collate::collate(samples).unwrap();
        assert_eq!((x, y), (sx, sy));
        let (x, y) = numbered(5);
        let triple = TensorDataset::new([x.shallow_clone(), y, x]).unwrap();
        let batch = triple.get_batch(&indices).unwrap().unwrap();
        let samples = indices.iter().map(|&index| triple.get(index).unwrap()).collect();
        assert_eq!(batch, Collate::collate(samples).unwrap());
    }

    #[test]
    fn tensors_of_unlike_length_are_no_data_set() {
        let (x, y) = (numbered(5).0, numbered(4).1);
        let error = TensorDataset::new((x, y)).unwrap_err().to_string();
        assert!(error.contains("tensor 1 of a data set has 4 rows, the first one 5"), "{error}");
        assert!(TensorDataset::new(Tensor::from(1.0)).is_err());
        assert!(TensorDataset::<[Tensor; 0]>::new([]).is_err());
    }

    #[test]
    fn a_vector_is_a_data_set() {
        let data = vec!["a", "b"];
        assert_eq!((Dataset::len(&data), data.get(1)), (2, Ok("b")));
    }
}
