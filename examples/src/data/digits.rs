//! The 1,797 digits of 8x8 pixels that are embedded in the programs (see `examples/data/README.md`).

use std::io::Read;

use flate2::read::GzDecoder;
use tch::vision::dataset::Dataset;
use tch::{Kind, Tensor};

use super::error::DataError;

const PACKED: &[u8] = include_bytes!("../../data/digits.csv.gz");
/// Its name in errors.
const NAME: &str = "digits.csv.gz";
const PIXELS: usize = 64;
/// Pixels are 0 to 16.
const BRIGHTEST: f64 = 16.0;
/// Of the 1,797; the other 360 are held out.
const TRAINING: i64 = 1_437;

/// The embedded digits: 1,437 to train on and 360 held out, the same ones each time.
///
/// # Errors
/// When the embedded file is damaged, or libtorch cannot make a tensor.
pub fn digits() -> Result<Dataset, DataError> {
    let (pixels, labels) = parse(&unpack()?)?;
    let order = Tensor::f_from_slice(&order(labels.len()))?;
    let images = Tensor::f_from_slice(&pixels)?.f_view([-1, PIXELS as i64])?;
    let images = (images.f_to_kind(Kind::Float)? / BRIGHTEST).f_index_select(0, &order)?;
    let labels =
        Tensor::f_from_slice(&labels)?.f_to_kind(Kind::Int64)?.f_index_select(0, &order)?;
    let held_out = labels.size()[0] - TRAINING;
    Ok(Dataset {
        train_images: images.f_narrow(0, 0, TRAINING)?.f_contiguous()?,
        train_labels: labels.f_narrow(0, 0, TRAINING)?.f_contiguous()?,
        test_images: images.f_narrow(0, TRAINING, held_out)?.f_contiguous()?,
        test_labels: labels.f_narrow(0, TRAINING, held_out)?.f_contiguous()?,
        labels: 10,
    })
}

fn unpack() -> Result<String, DataError> {
    let mut text = String::new();
    let read = GzDecoder::new(PACKED).read_to_string(&mut text);
    read.map_err(|source| DataError::Read { file: NAME.into(), source })?;
    Ok(text)
}

/// All pixels in one row after another, and the labels.
fn parse(text: &str) -> Result<(Vec<u8>, Vec<u8>), DataError> {
    let (mut pixels, mut labels) = (Vec::new(), Vec::new());
    for (index, line) in text.lines().enumerate() {
        let wrong = || DataError::damaged(NAME, format!("line {} is no digit", index + 1));
        let mut numbers: Vec<u8> = line
            .split(',')
            .map(|number| number.parse().map_err(|_| wrong()))
            .collect::<Result<_, _>>()?;
        let label = numbers.pop().filter(|&label| label < 10 && numbers.len() == PIXELS);
        labels.push(label.ok_or_else(wrong)?);
        pixels.append(&mut numbers);
    }
    Ok((pixels, labels))
}

/// A fixed shuffle of `0..len`, apart from any generator that training seeds: Fisher and Yates, over a
/// linear congruential generator (Knuth's MMIX constants) whose upper half is used.
fn order(len: usize) -> Vec<i64> {
    let mut order: Vec<i64> = (0..).take(len).collect();
    let mut state = 1_u64;
    for last in (1..len).rev() {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let pick = (state >> 33) as usize % (last + 1);
        order.swap(last, pick);
    }
    order
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_split_has_the_right_sizes_ranges_and_is_always_the_same() {
        let data = digits().unwrap();
        assert_eq!(data.train_images.size(), [1_437, 64]);
        assert_eq!(data.test_images.size(), [360, 64]);
        assert_eq!(data.train_images.max().double_value(&[]), 1.0);
        assert_eq!(data.train_images.min().double_value(&[]), 0.0);
        let counts: Vec<i64> =
            Vec::try_from(data.test_labels.bincount::<Tensor>(None, 10)).unwrap();
        assert!(counts.iter().all(|&count| count > 20), "every digit is held out: {counts:?}");
        assert_eq!(data.test_images, digits().unwrap().test_images);
    }

    #[test]
    fn the_order_holds_every_index_once_and_is_shuffled() {
        let mut shuffled = order(1_797);
        assert!(shuffled.windows(2).filter(|pair| pair[1] == pair[0] + 1).count() < 20);
        shuffled.sort_unstable();
        assert!(shuffled.into_iter().eq(0..1_797));
    }

    #[test]
    fn a_damaged_line_is_named() {
        let good = vec!["1"; 65].join(",");
        assert!(parse(&good).is_ok());
        for bad in [vec!["1"; 64].join(","), good.replace("1,1", "1,x"), vec!["10"; 65].join(",")] {
            let text = parse(&format!("{good}\n{bad}")).unwrap_err().to_string();
            assert!(text.contains("line 2"), "{text}");
        }
    }
}
