//! Inputs of several replicas: cut along dimension 0, as `torch.chunk` cuts.
use tch::{Device, Tensor};

use crate::error::{During, Error, Result};

/// What can be shared among replicas: tensors are cut along dimension 0; numbers and texts go to each as they are; tuples,
/// vectors, arrays and options are cut piece by piece.
///
/// A type of one's own passes both methods on to its parts.
pub trait Scatter: Sized {
    /// The length of dimension 0, the same for all tensors inside; nothing where there is none.
    ///
    /// # Errors
    /// [`Error::Unsupported`] when the tensors differ in it, or one has no dimensions.
    fn rows(&self) -> Result<Option<i64>>;

    /// The parts, one a device, of `sizes` rows each.
    ///
    /// # Errors
    /// [`Error::Torch`] when a part cannot be moved to its device.
    fn scatter(&self, sizes: &[i64], devices: &[Device]) -> Result<Vec<Self>>;
}

/// The parts of an input: as many as there are devices, or fewer for a small batch.
pub(super) fn parts<I: Scatter>(input: &I, devices: &[Device]) -> Result<Vec<I>> {
    let sizes = match input.rows()? {
        Some(rows) => chunks(rows, devices.len()),
        None => vec![0; devices.len()],
    };
    input.scatter(&sizes, &devices[..sizes.len()])
}

/// The sizes of the parts that `torch.chunk(count)` cuts `rows` into: all of the same size, rounded up, the last one with
/// what is left. No rows are `count` parts of none.
fn chunks(rows: i64, count: usize) -> Vec<i64> {
    if rows == 0 {
        return vec![0; count];
    }
    // A list of devices is no longer than an i64 tells.
    let size = (rows as u64).div_ceil(count.max(1) as u64) as i64;
    let mut sizes = vec![size; (rows / size) as usize];
    sizes.extend((rows % size != 0).then_some(rows % size));
    sizes
}

/// The rows of two pieces of an input.
fn both(a: Option<i64>, b: Option<i64>) -> Result<Option<i64>> {
    match (a, b) {
        (Some(a), Some(b)) if a != b => Err(Error::unsupported(
            format!("the inputs of a DataParallel have {a} and {b} rows"),
            "pass tensors with as many rows as each other, and what belongs to no row inside the model",
        )),
        _ => Ok(a.or(b)),
    }
}

impl Scatter for Tensor {
    fn rows(&self) -> Result<Option<i64>> {
        match self.size().first() {
            Some(&rows) => Ok(Some(rows)),
            None => Err(Error::unsupported(
                "a tensor without dimensions cannot be shared among replicas",
                "pass it as a number, or with a row for each sample",
            )),
        }
    }

    fn scatter(&self, sizes: &[i64], devices: &[Device]) -> Result<Vec<Self>> {
        let parts = self.f_split_with_sizes(sizes, 0).during(SCATTERING)?;
        parts
            .into_iter()
            .zip(devices)
            .map(|(part, &device)| part.f_to_device(device).during(SCATTERING))
            .collect()
    }
}

const SCATTERING: &str = "sharing an input among replicas";

/// What every replica gets whole.
macro_rules! whole {
    ($($type:ty),*) => {$(
        impl Scatter for $type {
            fn rows(&self) -> Result<Option<i64>> {
                Ok(None)
            }

            fn scatter(&self, sizes: &[i64], _: &[Device]) -> Result<Vec<Self>> {
                Ok(sizes.iter().map(|_| self.clone()).collect())
            }
        }
    )*};
}
whole!(
    (),
    bool,
    f32,
    f64,
    i8,
    i16,
    i32,
    i64,
    isize,
    u8,
    u16,
    u32,
    u64,
    usize,
    String,
    &'static str
);

macro_rules! tuples {
    ($(($($part:ident $at:tt)+))*) => {$(
        impl<$($part: Scatter),+> Scatter for ($($part,)+) {
            fn rows(&self) -> Result<Option<i64>> {
                let mut rows = None;
                $(rows = both(rows, self.$at.rows()?)?;)+
                Ok(rows)
            }

            fn scatter(&self, sizes: &[i64], devices: &[Device]) -> Result<Vec<Self>> {
                $(
                    #[allow(non_snake_case)]
                    let mut $part = self.$at.scatter(sizes, devices)?.into_iter();
                )+
                Ok(std::iter::from_fn(|| Some(($($part.next()?,)+))).collect())
            }
        }
    )*};
}
tuples!((A 0) (A 0 B 1) (A 0 B 1 C 2) (A 0 B 1 C 2 D 3) (A 0 B 1 C 2 D 3 E 4) (A 0 B 1 C 2 D 3 E 4 F 5));

impl<T: Scatter> Scatter for Vec<T> {
    fn rows(&self) -> Result<Option<i64>> {
        self.iter().try_fold(None, |rows, piece| both(rows, piece.rows()?))
    }

    fn scatter(&self, sizes: &[i64], devices: &[Device]) -> Result<Vec<Self>> {
        let mut parts: Vec<Self> = sizes.iter().map(|_| Vec::with_capacity(self.len())).collect();
        for piece in self {
            for (part, piece) in parts.iter_mut().zip(piece.scatter(sizes, devices)?) {
                part.push(piece);
            }
        }
        Ok(parts)
    }
}

impl<T: Scatter> Scatter for Option<T> {
    fn rows(&self) -> Result<Option<i64>> {
        self.as_ref().map_or(Ok(None), Scatter::rows)
    }

    fn scatter(&self, sizes: &[i64], devices: &[Device]) -> Result<Vec<Self>> {
        match self {
            Some(value) => Ok(value.scatter(sizes, devices)?.into_iter().map(Some).collect()),
            None => Ok(sizes.iter().map(|_| None).collect()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tch::Kind;

    proptest! {
        #[test]
        fn parts_are_those_of_torch_chunk(rows in 0_i64..40, count in 1_usize..9) {
            let truth = Tensor::zeros([rows, 2], (Kind::Float, Device::Cpu)).chunk(count as i64, 0);
            let truth: Vec<i64> = truth.iter().map(|part| part.size()[0]).collect();
            prop_assert_eq!(chunks(rows, count), truth);
        }
    }

    #[test]
    fn a_nested_input_is_cut_piece_by_piece() {
        let xs = Tensor::arange(5, (Kind::Int64, Device::Cpu));
        let input = (xs.copy(), vec![(xs.copy() + 10, 0.5)], Some(xs + 20), None::<Tensor>, "a");
        let parts = parts(&input, &[Device::Cpu; 4]).unwrap();
        let facts: Vec<_> = parts
            .iter()
            .map(|(a, b, c, d, e)| {
                let list = |t: &Tensor| Vec::<i64>::try_from(t).unwrap();
                (list(a), list(&b[0].0), b[0].1, c.as_ref().map(list), d.is_none(), *e)
            })
            .collect();
        assert_eq!(
            facts,
            [
                (vec![0, 1], vec![10, 11], 0.5, Some(vec![20, 21]), true, "a"),
                (vec![2, 3], vec![12, 13], 0.5, Some(vec![22, 23]), true, "a"),
                (vec![4], vec![14], 0.5, Some(vec![24]), true, "a"),
            ]
        );
    }

    #[test]
    fn inputs_that_cannot_be_cut_alike_are_refused() {
        let rows = |n| Tensor::zeros([n, 2], (Kind::Float, Device::Cpu));
        let error = parts(&(rows(4), vec![rows(4), rows(3)]), &[Device::Cpu; 2]).unwrap_err();
        assert!(error.to_string().contains("4 and 3 rows"), "{error}");
        let error = parts(&Tensor::from(1.0), &[Device::Cpu; 2]).unwrap_err();
        assert!(error.to_string().contains("without dimensions"), "{error}");
        assert_eq!(parts(&(1.5, "all"), &[Device::Cpu; 3]).unwrap(), [(1.5, "all"); 3]);
    }
}
