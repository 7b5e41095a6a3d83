//! What a batch is: something of whose samples a rank can take its part.

use tch::Tensor;

use super::DataError;
use super::tuples::each_tuple;

/// How many samples something has, as far as it is a batch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchSize {
    /// This many.
    Samples(i64),
    /// None of its own: a number, a name, a tensor without dimensions. Beside samples every rank gets it whole.
    Whole,
    /// Nothing to train on: `None`, or an `Err` in a batch's place. Every rank gets it.
    Nothing,
}

/// A batch that the ranks can share: each takes its part of the samples.
///
/// With `batch = "global"` the items of a loop marked `#[ddp(shard)]` are batches, and every rank gets its part of each. By
/// hand [`split`](super::split) does the same. Two rules say where the samples are:
///
/// * What has a length of its own is a list of samples: [`Vec`], slices (so `rows.chunks(32)` gives batches), `Box<[T]>`. Also a
///   `Vec<Tensor>`: each tensor is a sample.
/// * What has a fixed number of parts is made of columns, each with a value for every sample: tuples, arrays, structs that
///   derive `SplitBatch`. A list of columns becomes an array: `<[Tensor; 3]>::try_from(columns)`.
///
/// A tensor has its samples along the first dimension. Columns may nest, and must have one number of samples; beside them every
/// rank gets whole what has none of its own ([`BatchSize::Whole`]), as in the item `(usize, (Tensor, Tensor))` of an
/// `enumerate`. `Some` and `Ok` are what they hold.
///
/// References are no batches, as there is nobody to own their parts: `.map(|(x, y)| (x.shallow_clone(), y.shallow_clone()))`
/// makes owned ones without a copy.
///
/// # Batches of your own
///
/// A struct of columns derives it. A field marked `#[batch(whole)]` goes to every rank as it is, whatever its type.
///
/// ```
/// use ddp_runtime::SplitBatch;
/// use tch::Tensor;
///
/// #[derive(SplitBatch)]
/// struct Sentences {
///     tokens: Tensor, // [sentences, length]
///     translations: Vec<String>,
///     #[batch(whole)]
///     language: Language,
/// }
/// # struct Language;
/// ```
///
/// Anything else implements it, as this batch does, whose samples lie along the second dimension:
///
/// ```
/// use ddp_runtime::SplitBatch;
/// use ddp_runtime::data::{BatchSize, DataError};
/// use tch::Tensor;
///
/// struct Sequences(Tensor); // [time, batch, features]
///
/// impl SplitBatch for Sequences {
///     fn batch_size(&self) -> Result<BatchSize, DataError> {
///         Ok(BatchSize::Samples(self.0.size3()?.1))
///     }
///     fn into_samples(self, start: i64, length: i64) -> Result<Self, DataError> {
///         Ok(Self(self.0.f_narrow(1, start, length)?))
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a batch that the ranks can share",
    label = "the ranks cannot share `{Self}`",
    note = "with `batch = \"global\"` each rank takes its part of every item of a loop marked `#[ddp(shard)]`",
    note = "a struct of tensors and lists can `#[derive(SplitBatch)]`; of references make owned batches, as in \
            `.map(|(x, y)| (x.shallow_clone(), y.shallow_clone()))`"
)]
pub trait SplitBatch: Sized {
    /// How many samples it has.
    ///
    /// # Errors
    /// [`DataError::UnequalColumns`] where its columns do not have one number of samples.
    fn batch_size(&self) -> Result<BatchSize, DataError>;

    /// The batch of `length` of its samples, from `start` on; both lie within its size. What has no samples of its own is
    /// returned as it is.
    ///
    /// # Errors
    /// [`DataError::Tch`] where libtorch cannot take them.
    fn into_samples(self, start: i64, length: i64) -> Result<Self, DataError>;
}

impl BatchSize {
    /// The size of a batch with these columns, each with its name.
    ///
    /// # Errors
    /// [`DataError::UnequalColumns`] names the first two that differ.
    pub fn of_columns<'a>(
        columns: impl IntoIterator<Item = (&'a str, BatchSize)>,
    ) -> Result<Self, DataError> {
        let mut size = BatchSize::Whole;
        let mut first = "";
        for (name, other) in columns {
            match (size, other) {
                (BatchSize::Samples(samples), BatchSize::Samples(others)) if samples != others => {
                    return Err(DataError::UnequalColumns {
                        first: first.to_owned(),
                        first_samples: samples,
                        other: name.to_owned(),
                        other_samples: others,
                    });
                }
                (BatchSize::Samples(_), _) | (_, BatchSize::Whole) => {}
                _ => (size, first) = (other, name),
            }
        }
        Ok(size)
    }

    /// The size of a list of `length` samples.
    fn of_list(length: usize) -> Result<Self, DataError> {
        // No list is longer than `isize::MAX`.
        Ok(BatchSize::Samples(i64::try_from(length).unwrap_or(i64::MAX)))
    }
}

impl SplitBatch for Tensor {
    fn batch_size(&self) -> Result<BatchSize, DataError> {
        Ok(if self.defined() && self.dim() > 0 {
            BatchSize::Samples(self.size()[0])
        } else {
            BatchSize::Whole
        })
    }

    fn into_samples(self, start: i64, length: i64) -> Result<Self, DataError> {
        match self.batch_size()? {
            BatchSize::Samples(_) => Ok(self.f_narrow(0, start, length)?),
            _ => Ok(self),
        }
    }
}

/// The places of samples in a list of `length`: within it, whatever was asked for.
fn places(start: i64, length: i64, of: usize) -> std::ops::Range<usize> {
    let within = |place: i64| usize::try_from(place).unwrap_or(0).min(of);
    within(start)..within(start.saturating_add(length.max(0)))
}

impl<T> SplitBatch for Vec<T> {
    fn batch_size(&self) -> Result<BatchSize, DataError> {
        BatchSize::of_list(self.len())
    }

    fn into_samples(mut self, start: i64, length: i64) -> Result<Self, DataError> {
        let places = places(start, length, self.len());
        self.truncate(places.end);
        self.drain(..places.start);
        Ok(self)
    }
}

impl<T> SplitBatch for Box<[T]> {
    fn batch_size(&self) -> Result<BatchSize, DataError> {
        BatchSize::of_list(self.len())
    }

    fn into_samples(self, start: i64, length: i64) -> Result<Self, DataError> {
        Ok(self.into_vec().into_samples(start, length)?.into_boxed_slice())
    }
}

impl<T> SplitBatch for &[T] {
    fn batch_size(&self) -> Result<BatchSize, DataError> {
        BatchSize::of_list(self.len())
    }

    fn into_samples(self, start: i64, length: i64) -> Result<Self, DataError> {
        Ok(&self[places(start, length, self.len())])
    }
}

impl<T> SplitBatch for &mut [T] {
    fn batch_size(&self) -> Result<BatchSize, DataError> {
        BatchSize::of_list(self.len())
    }

    fn into_samples(self, start: i64, length: i64) -> Result<Self, DataError> {
        let places = places(start, length, self.len());
        Ok(&mut self[places])
    }
}

impl<T: SplitBatch> SplitBatch for Box<T> {
    fn batch_size(&self) -> Result<BatchSize, DataError> {
        T::batch_size(self)
    }

    fn into_samples(self, start: i64, length: i64) -> Result<Self, DataError> {
        (*self).into_samples(start, length).map(Box::new)
    }
}

impl<T: SplitBatch> SplitBatch for Option<T> {
    fn batch_size(&self) -> Result<BatchSize, DataError> {
        self.as_ref().map_or(Ok(BatchSize::Nothing), T::batch_size)
    }

    fn into_samples(self, start: i64, length: i64) -> Result<Self, DataError> {
        self.map(|batch| batch.into_samples(start, length)).transpose()
    }
}

impl<T: SplitBatch, E> SplitBatch for Result<T, E> {
    fn batch_size(&self) -> Result<BatchSize, DataError> {
        self.as_ref().map_or(Ok(BatchSize::Nothing), T::batch_size)
    }

    fn into_samples(self, start: i64, length: i64) -> Result<Self, DataError> {
        match self {
            Ok(batch) => batch.into_samples(start, length).map(Ok),
            Err(error) => Ok(Err(error)),
        }
    }
}

impl<T: SplitBatch, const N: usize> SplitBatch for [T; N] {
    fn batch_size(&self) -> Result<BatchSize, DataError> {
        let names: Vec<String> = (0..N).map(|column| column.to_string()).collect();
        let sizes: Vec<BatchSize> = self.iter().map(T::batch_size).collect::<Result<_, _>>()?;
        BatchSize::of_columns(names.iter().map(String::as_str).zip(sizes))
    }

    fn into_samples(self, start: i64, length: i64) -> Result<Self, DataError> {
        let columns = self.into_iter().map(|column| column.into_samples(start, length));
        match <[T; N]>::try_from(columns.collect::<Result<Vec<_>, _>>()?) {
            Ok(columns) => Ok(columns),
            Err(_) => unreachable!("there are as many columns as before"),
        }
    }
}

macro_rules! whole {
    ($($type:ty),*) => {$(
        impl SplitBatch for $type {
            fn batch_size(&self) -> Result<BatchSize, DataError> {
                Ok(BatchSize::Whole)
            }

            fn into_samples(self, _start: i64, _length: i64) -> Result<Self, DataError> {
                Ok(self)
            }
        }
    )*};
}
whole!(i8, i16, i32, i64, i128, isize, u8, u16, u32, u64, u128, usize, f32, f64, bool, char, ());
whole!(String, &str, std::path::PathBuf, &std::path::Path);

macro_rules! columns {
    ($($column:ident $place:tt),*) => {
        impl<$($column: SplitBatch),*> SplitBatch for ($($column,)*) {
            fn batch_size(&self) -> Result<BatchSize, DataError> {
                BatchSize::of_columns([$((stringify!($place), self.$place.batch_size()?)),*])
            }

            fn into_samples(self, start: i64, length: i64) -> Result<Self, DataError> {
                Ok(($(self.$place.into_samples(start, length)?,)*))
            }
        }
    };
}
each_tuple!(columns);
