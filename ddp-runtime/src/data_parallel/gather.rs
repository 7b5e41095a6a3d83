//! Outputs of several replicas: joined along dimension 0.
use tch::{Device, Tensor};

use crate::error::{During, Error, Result};

/// What can be joined out of the replicas' outputs: tensors along dimension 0; tuples, vectors and options piece by piece.
///
/// Tensors without dimensions (losses computed inside the model) become a vector with one entry a replica.
pub trait Gather: Sized {
    /// Joins the parts, which are in the order of the replicas, on `device`.
    ///
    /// # Errors
    /// [`Error::Torch`] when libtorch cannot join them, [`Error::Unsupported`] when they differ in form.
    fn gather(parts: Vec<Self>, device: Device) -> Result<Self>;

    /// The output of the only replica there is, on `device`.
    ///
    /// # Errors
    /// [`Error::Torch`] when it cannot be moved there.
    fn moved(self, device: Device) -> Result<Self>;
}

const GATHERING: &str = "joining the outputs of replicas";

fn unlike(what: impl Into<String>) -> Error {
    Error::unsupported(what, "return the same form of output from every replica")
}

impl Gather for Tensor {
    fn gather(parts: Vec<Self>, device: Device) -> Result<Self> {
        let scalars = parts.iter().all(|part| part.dim() == 0);
        let parts: Vec<Tensor> =
            parts.into_iter().map(|part| part.moved(device)).collect::<Result<_>>()?;
        let joined = if scalars { Tensor::f_stack(&parts, 0) } else { Tensor::f_cat(&parts, 0) };
        joined.during(GATHERING)
    }

    fn moved(self, device: Device) -> Result<Self> {
        self.f_to_device(device).during(GATHERING)
    }
}

impl Gather for () {
    fn gather(_: Vec<Self>, _: Device) -> Result<Self> {
        Ok(())
    }

    fn moved(self, _: Device) -> Result<Self> {
        Ok(())
    }
}

macro_rules! tuples {
    ($(($($part:ident $at:tt)+))*) => {$(
        impl<$($part: Gather),+> Gather for ($($part,)+) {
            fn gather(parts: Vec<Self>, device: Device) -> Result<Self> {
                $(
                    #[allow(non_snake_case)]
                    let mut $part = Vec::with_capacity(parts.len());
                )+
                for part in parts {
                    $($part.push(part.$at);)+
                }
                Ok(($(Gather::gather($part, device)?,)+))
            }

            fn moved(self, device: Device) -> Result<Self> {
                Ok(($(self.$at.moved(device)?,)+))
            }
        }
    )*};
}
tuples!((A 0) (A 0 B 1) (A 0 B 1 C 2) (A 0 B 1 C 2 D 3) (A 0 B 1 C 2 D 3 E 4) (A 0 B 1 C 2 D 3 E 4 F 5));

impl<T: Gather> Gather for Vec<T> {
    fn gather(parts: Vec<Self>, device: Device) -> Result<Self> {
        let length = parts.first().map_or(0, Vec::len);
        let mut pieces: Vec<Vec<T>> =
            (0..length).map(|_| Vec::with_capacity(parts.len())).collect();
        for part in parts {
            if part.len() != length {
                let lengths = format!("{length} and of {} tensors", part.len());
                return Err(unlike(format!("replicas returned lists of {lengths}")));
            }
            for (piece, part) in pieces.iter_mut().zip(part) {
                piece.push(part);
            }
        }
        pieces.into_iter().map(|parts| T::gather(parts, device)).collect()
    }

    fn moved(self, device: Device) -> Result<Self> {
        self.into_iter().map(|piece| piece.moved(device)).collect()
    }
}

impl<T: Gather> Gather for Option<T> {
    fn gather(parts: Vec<Self>, device: Device) -> Result<Self> {
        let count = parts.len();
        let present: Vec<T> = parts.into_iter().flatten().collect();
        match present.len() {
            0 => Ok(None),
            n if n == count => T::gather(present, device).map(Some),
            n => Err(unlike(format!("{n} of {count} replicas returned an optional output"))),
        }
    }

    fn moved(self, device: Device) -> Result<Self> {
        self.map(|value| value.moved(device)).transpose()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn list(t: &Tensor) -> Vec<i64> {
        Vec::try_from(t).unwrap()
    }

    #[test]
    fn parts_are_joined_in_their_order() {
        let part = |a: &[i64]| (Tensor::from_slice(a), vec![Tensor::from(a[0])], None::<Tensor>);
        let (all, firsts, none) =
            Gather::gather(vec![part(&[3, 1]), part(&[2])], Device::Cpu).unwrap();
        assert_eq!((list(&all), list(&firsts[0])), (vec![3, 1, 2], vec![3, 2]));
        assert!(none.is_none());
    }

    #[test]
    fn outputs_of_different_form_are_refused() {
        let one = Tensor::from(1);
        let lists = vec![vec![one.copy()], vec![one.copy(), one.copy()]];
        let error = Vec::gather(lists, Device::Cpu).unwrap_err().to_string();
        assert!(error.contains("1 and of 2 tensors"), "{error}");
        let error = Option::gather(vec![Some(one), None], Device::Cpu).unwrap_err().to_string();
        assert!(error.contains("1 of 2 replicas"), "{error}");
    }
}
