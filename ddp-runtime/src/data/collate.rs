//! From samples to a batch, as PyTorch's `default_collate` does it.

use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, Hash};

use tch::{Kind, TchError, Tensor};

use super::tuples::each_tuple;

/// A sample of which the loader can make batches by itself.
///
/// | sample | batch |
/// | --- | --- |
/// | [`Tensor`] | one tensor with a new first dimension (`stack`); the shapes must be equal |
/// | number or `bool` | a tensor with one dimension, of the dtype of the number; `usize` becomes `Int64` |
/// | tuple `(A, B, ..)`, up to 6 | the tuple of the parts' batches |
/// | array `[T; N]` | an array of `N` batches |
/// | `Vec<T>` | as many batches as each sample has elements; all must have as many |
/// | [`BTreeMap`], [`HashMap`] | a map of batches; all must have the same keys |
/// | [`String`], `&'static str` | a `Vec` of them |
///
/// These are the rules of `torch.utils.data.default_collate`, with the dtypes that Rust's types have. Implement it for a
/// sample type of your own, or give the loader a [`collate`](super::Builder::collate) function.
///
/// ```
/// use ddp_runtime::data::Collate;
/// use tch::{Kind, Tensor};
///
/// let samples = vec![(Tensor::from_slice(&[1.0_f32, 2.0]), 7_i64), (Tensor::from_slice(&[3.0_f32, 4.0]), 9)];
/// let (xs, ys) = Collate::collate(samples)?;
/// assert_eq!((xs.size(), ys.size(), ys.kind()), (vec![2, 2], vec![2], Kind::Int64));
/// # Ok::<(), ddp_runtime::data::CollateError>(())
/// ```
pub trait Collate: Sized {
    /// The batch.
    type Batch;

    /// Makes a batch of at least one sample, in their order.
    ///
    /// # Errors
    /// [`CollateError`] where the samples do not fit together.
    fn collate(samples: Vec<Self>) -> Result<Self::Batch, CollateError>;
}

/// Samples that do not make a batch.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum CollateError {
    /// Tensors of unlike shape or dtype.
    #[error(
        "sample {at} of the batch has shape {other:?} and dtype {other_kind:?}, the first one {first:?} and {first_kind:?}; \
         make them alike, or give the loader a `collate` function that pads"
    )]
    Shape {
        /// The place in the batch.
        at: usize,
        /// The shape of the first sample.
        first: Vec<i64>,
        /// Its dtype.
        first_kind: Kind,
        /// The shape of this one.
        other: Vec<i64>,
        /// Its dtype.
        other_kind: Kind,
    },
    /// Lists of unlike length.
    #[error(
        "sample {at} of the batch has {other} elements, the first one {first}; make them alike, or give the loader a \
         `collate` function that pads"
    )]
    Length {
        /// The place in the batch.
        at: usize,
        /// Elements of the first sample.
        first: usize,
        /// Elements of this one.
        other: usize,
    },
    /// Maps with other keys.
    #[error(
        "sample {at} of the batch has not the keys of the first one; give every sample the same keys"
    )]
    Keys {
        /// The place in the batch.
        at: usize,
    },
    /// A number that the batch's dtype cannot hold.
    #[error("sample {at} of the batch is {value}, which a tensor of Int64 cannot hold")]
    Number {
        /// The place in the batch.
        at: usize,
        /// The number.
        value: usize,
    },
    /// A batch of nothing.
    #[error("a batch needs at least one sample")]
    Empty,
    /// libtorch refused.
    #[error("stacking samples: {0}")]
    Tch(#[from] TchError),
}

impl Collate for Tensor {
    type Batch = Tensor;

    fn collate(samples: Vec<Self>) -> Result<Tensor, CollateError> {
        let first = samples.first().ok_or(CollateError::Empty)?;
        let (size, kind) = (first.size(), first.kind());
        let unlike = |other: &Tensor| other.kind() != kind || other.size() != size;
        if let Some(at) = samples.iter().position(unlike) {
            return Err(CollateError::Shape {
                at,
                first: size,
                first_kind: kind,
                other: samples[at].size(),
                other_kind: samples[at].kind(),
            });
        }
        Ok(Tensor::f_stack(&samples, 0)?)
    }
}

macro_rules! numbers {
    ($($number:ty),*) => {$(
        impl Collate for $number {
            type Batch = Tensor;

            fn collate(samples: Vec<Self>) -> Result<Tensor, CollateError> {
                Ok(Tensor::f_from_slice(&samples)?)
            }
        }
    )*};
}
numbers!(u8, i8, i16, i32, i64, f32, f64, bool);

impl Collate for usize {
    type Batch = Tensor;

    fn collate(samples: Vec<Self>) -> Result<Tensor, CollateError> {
        let number = |(at, value): (usize, usize)| {
            i64::try_from(value).map_err(|_| CollateError::Number { at, value })
        };
        let numbers: Vec<i64> =
            samples.into_iter().enumerate().map(number).collect::<Result<_, _>>()?;
        Ok(Tensor::f_from_slice(&numbers)?)
    }
}

macro_rules! texts {
    ($($text:ty),*) => {$(
        impl Collate for $text {
            type Batch = Vec<Self>;

            fn collate(samples: Vec<Self>) -> Result<Vec<Self>, CollateError> {
                Ok(samples)
            }
        }
    )*};
}
texts!(String, &'static str);

macro_rules! tuples {
    ($($part:ident $place:tt),+) => {
        impl<$($part: Collate),+> Collate for ($($part,)+) {
            type Batch = ($($part::Batch,)+);

            // Each list has the name of its part's type.
            #[allow(non_snake_case)]
            fn collate(samples: Vec<Self>) -> Result<Self::Batch, CollateError> {
                $(let mut $part = Vec::with_capacity(samples.len());)+
                for sample in samples {
                    $($part.push(sample.$place);)+
                }
                Ok(($($part::collate($part)?,)+))
            }
        }
    };
}
each_tuple!(tuples);

/// Element by element: the `k`-th batch is that of the samples' `k`-th elements.
fn by_element<T: Collate>(
    samples: Vec<impl IntoIterator<Item = T>>,
    elements: usize,
) -> Result<Vec<T::Batch>, CollateError> {
    let mut columns: Vec<Vec<T>> =
        (0..elements).map(|_| Vec::with_capacity(samples.len())).collect();
    for sample in samples {
        for (column, element) in columns.iter_mut().zip(sample) {
            column.push(element);
        }
    }
    columns.into_iter().map(T::collate).collect()
}

impl<T: Collate, const N: usize> Collate for [T; N] {
    type Batch = [T::Batch; N];

    fn collate(samples: Vec<Self>) -> Result<Self::Batch, CollateError> {
        let batches = by_element(samples, N)?;
        let found = batches.len();
        // As many columns as were asked for.
        batches.try_into().map_err(|_| CollateError::Length { at: 0, first: N, other: found })
    }
}

impl<T: Collate> Collate for Vec<T> {
    type Batch = Vec<T::Batch>;

    fn collate(samples: Vec<Self>) -> Result<Self::Batch, CollateError> {
        let first = samples.first().ok_or(CollateError::Empty)?.len();
        match samples.iter().position(|sample| sample.len() != first) {
            Some(at) => Err(CollateError::Length { at, first, other: samples[at].len() }),
            None => by_element(samples, first),
        }
    }
}

macro_rules! maps {
    ($map:ident [$($extra:ident: $($bound:path),+)?] $($key:path),+) => {
        impl<K: Clone $(+ $key)+, T: Collate $(, $extra: $($bound +)+)?> Collate for $map<K, T $(, $extra)?> {
            type Batch = $map<K, T::Batch $(, $extra)?>;

            fn collate(samples: Vec<Self>) -> Result<Self::Batch, CollateError> {
                let first = samples.first().ok_or(CollateError::Empty)?;
                let other = |sample: &Self| {
                    sample.len() != first.len() || first.keys().any(|key| !sample.contains_key(key))
                };
                if let Some(at) = samples.iter().position(other) {
                    return Err(CollateError::Keys { at });
                }
                let mut columns: $map<K, Vec<T> $(, $extra)?> =
                    first.keys().map(|key| (key.clone(), Vec::with_capacity(samples.len()))).collect();
                for (key, value) in samples.into_iter().flatten() {
                    if let Some(column) = columns.get_mut(&key) {
                        column.push(value);
                    }
                }
                columns.into_iter().map(|(key, column)| Ok((key, T::collate(column)?))).collect()
            }
        }
    };
}
maps!(BTreeMap [] Ord);
maps!(HashMap [S: BuildHasher, Default] Eq, Hash);

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, HashMap};

    use tch::{Kind, Tensor};

    use super::{Collate, CollateError};

    #[test]
    fn tuples_arrays_and_maps_keep_their_form() {
        let sample = |k: i64| {
            let map = HashMap::from([("area", k as f32), ("count", 1.0)]);
            (Tensor::from_slice(&[k, k + 1]), [k, -k], map, format!("name {k}"))
        };
        let (xs, [plus, minus], map, names) = Collate::collate(vec![sample(1), sample(5)]).unwrap();
        assert_eq!(Vec::<Vec<i64>>::try_from(xs).unwrap(), [[1, 2], [5, 6]]);
        assert_eq!(Vec::<i64>::try_from(plus).unwrap(), [1, 5]);
        assert_eq!(Vec::<i64>::try_from(minus).unwrap(), [-1, -5]);
        assert_eq!(Vec::<f32>::try_from(&map["area"]).unwrap(), [1.0, 5.0]);
        assert_eq!(
            (map["count"].kind(), names),
            (Kind::Float, vec!["name 1".into(), "name 5".into()])
        );
    }

    #[test]
    fn six_parts_keep_their_order() {
        let sample = |k: u8| (k, k + 1, k + 2, k + 3, k + 4, k + 5);
        let (a, b, c, d, e, f) = Collate::collate(vec![sample(0), sample(10)]).unwrap();
        let firsts = [a, b, c, d, e, f].map(|part| part.int64_value(&[1]));
        assert_eq!(firsts, [10, 11, 12, 13, 14, 15]);
    }

    #[test]
    fn samples_that_do_not_fit_are_named() {
        let error = Tensor::collate(vec![Tensor::from(1.0), Tensor::from_slice(&[1.0])]);
        assert!(matches!(error, Err(CollateError::Shape { at: 1, .. })));
        let error =
            Tensor::collate(vec![Tensor::from(1.0), Tensor::from(1.0), Tensor::from(1_i64)]);
        assert!(matches!(error, Err(CollateError::Shape { at: 2, .. })));
        let error = Collate::collate(vec![vec![1.0], vec![], vec![1.0]]).unwrap_err();
        assert!(matches!(error, CollateError::Length { at: 1, first: 1, other: 0 }));
        let maps = vec![BTreeMap::from([("a", 1.0)]), BTreeMap::from([("b", 1.0)])];
        assert!(matches!(Collate::collate(maps), Err(CollateError::Keys { at: 1 })));
        let error = Collate::collate(vec![usize::MAX]).unwrap_err();
        assert!(matches!(error, CollateError::Number { at: 0, value: usize::MAX }));
        assert!(matches!(Tensor::collate(Vec::new()), Err(CollateError::Empty)));
    }
}
