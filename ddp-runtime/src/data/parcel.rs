//! Tensors as one flat tensor of bytes and a list of words that describes them: what goes over in one broadcast.

use tch::{Device, Kind, TchError, Tensor};

/// The dtypes that can be sent, by their number.
const KINDS: [Kind; 10] = [
    Kind::Uint8,
    Kind::Int8,
    Kind::Int16,
    Kind::Int,
    Kind::Int64,
    Kind::Half,
    Kind::BFloat16,
    Kind::Float,
    Kind::Double,
    Kind::Bool,
];

/// Where a tensor begins: at a multiple of what any dtype needs.
const ALIGNMENT: i64 = 16;

/// What is known of a tensor before its bytes arrive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Label {
    pub(super) kind: Kind,
    pub(super) size: Vec<i64>,
}

impl Label {
    /// Of a tensor; `None` if its dtype cannot be sent.
    pub(super) fn of(tensor: &Tensor) -> Option<Self> {
        let kind = tensor.kind();
        KINDS.contains(&kind).then(|| Self { kind, size: tensor.size() })
    }

    fn bytes(&self) -> Option<i64> {
        let width = self.kind.elt_size_in_bytes() as i64;
        self.size.iter().try_fold(width, |bytes, &size| bytes.checked_mul(size))
    }

    /// Its bytes with those that keep the next tensor aligned.
    fn room(&self) -> Option<i64> {
        Some(self.bytes()?.checked_add(ALIGNMENT - 1)? / ALIGNMENT * ALIGNMENT)
    }

    fn write(&self, words: &mut Vec<i64>) {
        let kind = KINDS.iter().position(|kind| *kind == self.kind).unwrap_or(0);
        words.extend([kind as i64, self.size.len() as i64]);
        words.extend(&self.size);
    }

    fn read(words: &mut impl Iterator<Item = i64>) -> Option<Self> {
        let kind = *KINDS.get(usize::try_from(words.next()?).ok()?)?;
        let dims = usize::try_from(words.next()?).ok()?;
        let size: Vec<i64> = words.take(dims).filter(|&size| size >= 0).collect();
        (size.len() == dims).then_some(Self { kind, size })
    }
}

/// The labels as words.
pub(super) fn write_labels(labels: &[Label]) -> Vec<i64> {
    let mut words = vec![labels.len() as i64];
    labels.iter().for_each(|label| label.write(&mut words));
    words
}

/// The labels that words hold; `None` if they are none.
pub(super) fn read_labels(words: &[i64]) -> Option<Vec<Label>> {
    let (&count, rest) = words.split_first()?;
    let mut rest = rest.iter().copied();
    let labels = (0..count).map(|_| Label::read(&mut rest)).collect::<Option<Vec<_>>>()?;
    rest.next().is_none().then_some(labels)
}

/// The bytes that tensors with these labels need; `None` if they cannot be counted.
pub(super) fn total(labels: &[Label]) -> Option<i64> {
    labels.iter().try_fold(0_i64, |total, label| total.checked_add(label.room()?))
}

/// A tensor of this many bytes.
pub(super) fn empty(bytes: i64) -> Result<Tensor, TchError> {
    Tensor::f_empty([bytes], (Kind::Uint8, Device::Cpu))
}

/// Writes tensors one after the other, where [`unpack`] finds them.
pub(super) fn pack(tensors: &[Tensor], labels: &[Label]) -> Result<Tensor, TchError> {
    let packed = empty(total(labels).unwrap_or(0))?;
    let mut start = 0;
    for (tensor, label) in tensors.iter().zip(labels) {
        place(&packed, start, label)?.f_copy_(&tensor.f_detach()?)?;
        start += label.room().unwrap_or(0);
    }
    Ok(packed)
}

/// Tensors over the bytes of `packed`, which they share.
pub(super) fn unpack(packed: &Tensor, labels: &[Label]) -> Result<Vec<Tensor>, TchError> {
    let mut start = 0;
    let tensor = |label: &Label| {
        let tensor = place(packed, start, label);
        start += label.room().unwrap_or(0);
        tensor
    };
    labels.iter().map(tensor).collect()
}

/// The bytes from `start` on, as a tensor.
fn place(packed: &Tensor, start: i64, label: &Label) -> Result<Tensor, TchError> {
    let bytes = packed.f_narrow(0, start, label.bytes().unwrap_or(0))?;
    bytes.f_view_dtype(label.kind)?.f_view(&label.size[..])
}

#[cfg(test)]
mod tests {
    use tch::{Kind, Tensor, kind};

    use super::{KINDS, Label, pack, read_labels, total, unpack, write_labels};

    fn labels(tensors: &[Tensor]) -> Vec<Label> {
        tensors.iter().map(|tensor| Label::of(tensor).unwrap()).collect()
    }

    #[test]
    fn tensors_of_any_dtype_and_shape_arrive_as_they_were() {
        let mut tensors: Vec<Tensor> = KINDS
            .iter()
            .map(|kind| {
                Tensor::arange(15, kind::INT64_CPU).remainder(2).view([3, 5]).to_kind(*kind)
            })
            .collect();
        tensors.push(Tensor::arange(6, kind::FLOAT_CPU).view([2, 3]).tr());
        tensors.push(Tensor::zeros([0, 4], kind::DOUBLE_CPU));
        tensors.push(Tensor::from(2.5));
        tensors.push(Tensor::ones([2], kind::FLOAT_CPU).set_requires_grad(true));
        let labels = labels(&tensors);
        assert_eq!(read_labels(&write_labels(&labels)), Some(labels.clone()));
        let packed = pack(&tensors, &labels).unwrap();
        assert_eq!(packed.numel() as i64, total(&labels).unwrap());
        for (sent, got) in tensors.iter().zip(unpack(&packed, &labels).unwrap()) {
            assert_eq!((sent.kind(), sent.size()), (got.kind(), got.size()));
            assert!(sent.equal(&got) && !got.requires_grad());
        }
    }

    #[test]
    fn what_cannot_be_described_is_refused() {
        let complex = Tensor::zeros([2], (Kind::ComplexFloat, tch::Device::Cpu));
        assert_eq!(Label::of(&complex), None);
        let wide = Label { kind: Kind::Double, size: vec![i64::MAX, 3] };
        assert_eq!(total(&[wide]), None);
        for words in [&[][..], &[1], &[1, 99, 0], &[1, 0, 1, -4], &[0, 7]] {
            assert_eq!(read_labels(words), None, "{words:?}");
        }
    }
}
