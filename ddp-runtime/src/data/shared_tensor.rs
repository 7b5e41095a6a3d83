//! A tensor that many threads read.
// tch's tensors cannot be shared between threads, since a handle can be written through. This one cannot.
#![allow(unsafe_code)]

use std::fmt;

use tch::{Device, TchError, Tensor};

/// A tensor for several threads to read samples from.
///
/// A [`Tensor`] is not `Sync`, as what its handle points to can be changed through it. This handle gives nothing away but
/// copies of rows and handles of the reader's own, each for one thread. They share the memory, as all handles in tch do:
/// whoever writes to it in place while others read gets torn values, exactly as with
/// [`shallow_clone`](Tensor::shallow_clone) and two threads.
pub struct SharedTensor {
    tensor: Tensor,
    rows: usize,
}

// SAFETY: through `&self` only `detach`, `select`, `index_select` and questions about size, dtype and device are called:
// they read the tensor and make new ones, and libtorch's functions that do not change a tensor may run on one tensor on
// several threads (its reference counts are atomic). The tensor is detached, so no autograd state is touched.
unsafe impl Sync for SharedTensor {}

impl SharedTensor {
    /// A handle for many threads to what `tensor` holds, without its history.
    ///
    /// # Errors
    /// Where libtorch cannot detach it.
    pub fn f_new(tensor: &Tensor) -> Result<Self, TchError> {
        let tensor = tensor.f_detach()?;
        let rows = tensor.size().first().map_or(0, |&rows| usize::try_from(rows).unwrap_or(0));
        Ok(Self { tensor, rows })
    }

    /// As [`f_new`](Self::f_new).
    ///
    /// # Panics
    /// Where `f_new` returns an error.
    #[must_use]
    #[track_caller]
    pub fn new(tensor: &Tensor) -> Self {
        match Self::f_new(tensor) {
            Ok(shared) => shared,
            Err(error) => panic!("{error}"),
        }
    }

    /// A handle of the caller's own, on the same memory.
    ///
    /// # Panics
    /// Where libtorch cannot make one: it is out of memory.
    pub fn alias(&self) -> Tensor {
        self.tensor.detach()
    }

    /// How many rows there are: the size of the first dimension, 0 for a single number.
    #[must_use]
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// The sizes of all dimensions.
    #[must_use]
    pub fn size(&self) -> Vec<i64> {
        self.tensor.size()
    }

    /// A copy of one row.
    ///
    /// # Errors
    /// Where there is no such row.
    pub fn row(&self, index: usize) -> Result<Tensor, TchError> {
        self.tensor.f_select(0, index as i64)?.f_detach_copy()
    }

    /// A copy of the rows with these numbers, in this order.
    ///
    /// # Errors
    /// Where one of them does not exist.
    pub fn gather(&self, indices: &[usize]) -> Result<Tensor, TchError> {
        let places: Vec<i64> = indices.iter().map(|&index| index as i64).collect();
        let places = Tensor::f_from_slice(&places)?;
        let places = match self.tensor.device() {
            Device::Cpu => places,
            device => places.f_to_device(device)?,
        };
        self.tensor.f_index_select(0, &places)
    }
}

impl Clone for SharedTensor {
    fn clone(&self) -> Self {
        Self { tensor: self.tensor.detach(), rows: self.rows }
    }
}

impl fmt::Debug for SharedTensor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.tensor.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use tch::{Kind, Tensor, kind};

    use super::SharedTensor;

    #[test]
    fn threads_read_rows_side_by_side() {
        let shared = SharedTensor::new(&Tensor::arange(400, kind::INT64_CPU).view([100, 4]));
        std::thread::scope(|scope| {
            for thread in 0..4_usize {
                let shared = &shared;
                scope.spawn(move || {
                    for row in 0..100 {
                        let index = (row * 7 + thread) % 100;
                        assert_eq!(
                            shared.row(index).unwrap().int64_value(&[3]),
                            index as i64 * 4 + 3
                        );
                        let two = shared.gather(&[index, 0]).unwrap();
                        assert_eq!(two.int64_value(&[0, 0]), index as i64 * 4);
                        assert_eq!(shared.alias().size(), [100, 4]);
                    }
                });
            }
        });
    }

    #[test]
    fn rows_are_copies_without_a_history() {
        let leaf = Tensor::zeros([3, 2], kind::FLOAT_CPU).set_requires_grad(true);
        let shared = SharedTensor::new(&leaf);
        let mut row = shared.row(1).unwrap();
        assert!(!row.requires_grad());
        let _ = row.fill_(5.0);
        assert_eq!(shared.alias().sum(Kind::Double).double_value(&[]), 0.0);
        assert!(shared.row(3).is_err() && shared.gather(&[3]).is_err());
        assert_eq!((shared.rows(), SharedTensor::new(&Tensor::from(2.0)).rows()), (3, 0));
    }
}
