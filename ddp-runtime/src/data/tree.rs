//! Batches taken apart into their tensors and put together again, to be sent to other ranks.

use tch::Tensor;

use super::tuples::each_tuple;

/// A batch that is made of tensors and nothing else: a tensor, or a tuple or array of such batches.
///
/// Implement it for a batch type of your own by naming its tensors in one order both ways.
pub trait TensorTree: Sized {
    /// Gives its tensors away, in order.
    fn flatten(self, leaves: &mut Vec<Tensor>);

    /// Takes as many tensors as it has; `None` if there are too few.
    fn unflatten(leaves: &mut dyn Iterator<Item = Tensor>) -> Option<Self>;
}

impl TensorTree for Tensor {
    fn flatten(self, leaves: &mut Vec<Tensor>) {
        leaves.push(self);
    }

    fn unflatten(leaves: &mut dyn Iterator<Item = Tensor>) -> Option<Self> {
        leaves.next()
    }
}

impl<T: TensorTree, const N: usize> TensorTree for [T; N] {
    fn flatten(self, leaves: &mut Vec<Tensor>) {
        self.into_iter().for_each(|part| part.flatten(leaves));
    }

    fn unflatten(leaves: &mut dyn Iterator<Item = Tensor>) -> Option<Self> {
        let parts: Vec<T> = (0..N).map(|_| T::unflatten(leaves)).collect::<Option<_>>()?;
        parts.try_into().ok()
    }
}

macro_rules! tuples {
    ($($part:ident $place:tt),+) => {
        impl<$($part: TensorTree),+> TensorTree for ($($part,)+) {
            fn flatten(self, leaves: &mut Vec<Tensor>) {
                $(self.$place.flatten(leaves);)+
            }

            fn unflatten(leaves: &mut dyn Iterator<Item = Tensor>) -> Option<Self> {
                Some(($($part::unflatten(leaves)?,)+))
            }
        }
    };
}
each_tuple!(tuples);

#[cfg(test)]
mod tests {
    use tch::Tensor;

    use super::TensorTree;

    #[test]
    fn a_batch_is_put_together_as_it_was() {
        type Batch = (Tensor, [Tensor; 2], (Tensor,));
        let t = |k: i64| Tensor::from(k);
        let batch: Batch = (t(1), [t(2), t(3)], (t(4),));
        let mut leaves = Vec::new();
        batch.flatten(&mut leaves);
        let mut rest = leaves.into_iter();
        let (a, [b, c], (d,)) = Batch::unflatten(&mut rest).unwrap();
        assert_eq!([a, b, c, d].map(|leaf| leaf.int64_value(&[])), [1, 2, 3, 4]);
        assert!(rest.next().is_none() && Batch::unflatten(&mut rest).is_none());
    }
}
