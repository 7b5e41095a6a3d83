//! MNIST from a folder of its four files in IDX form, plain or gzipped.
//!
//! The form, after its description by Y. LeCun: two zero bytes, a byte for the type (8: unsigned bytes), a byte
//! for the number of dimensions, each dimension as a big-endian `u32`, then the values.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use flate2::read::GzDecoder;
use tch::vision::dataset::Dataset;
use tch::{Kind, Tensor};

use super::error::DataError;

/// The MNIST digits in `dir`, as 28x28 rows of 0 to 1.
///
/// # Errors
/// When a file is missing, unreadable or damaged; the text names it.
pub fn mnist(dir: &Path) -> Result<Dataset, DataError> {
    let data = Dataset {
        train_images: images(dir, "train-images-idx3-ubyte")?,
        train_labels: labels(dir, "train-labels-idx1-ubyte")?,
        test_images: images(dir, "t10k-images-idx3-ubyte")?,
        test_labels: labels(dir, "t10k-labels-idx1-ubyte")?,
        labels: 10,
    };
    for (part, images, labels) in [
        ("train", &data.train_images, &data.train_labels),
        ("t10k", &data.test_images, &data.test_labels),
    ] {
        let (images, labels) = (images.size()[0], labels.size()[0]);
        if images != labels {
            let what = format!("{part} has {images} images and {labels} labels");
            return Err(DataError::damaged(dir, what));
        }
    }
    Ok(data)
}

fn images(dir: &Path, name: &'static str) -> Result<Tensor, DataError> {
    let (file, bytes) = read(dir, name)?;
    let ([count, rows, columns], values) = split::<3>(&file, &bytes)?;
    if rows != columns {
        return Err(DataError::damaged(
            file,
            format!("its images are {rows}x{columns}, not square"),
        ));
    }
    let tensor = Tensor::f_from_slice(values)?.f_view([count, rows * columns])?;
    Ok(tensor.f_to_kind(Kind::Float)? / 255.0)
}

fn labels(dir: &Path, name: &'static str) -> Result<Tensor, DataError> {
    let (file, bytes) = read(dir, name)?;
    let ([_], values) = split::<1>(&file, &bytes)?;
    if values.iter().any(|&label| label > 9) {
        return Err(DataError::damaged(file, "it has labels above 9"));
    }
    Ok(Tensor::f_from_slice(values)?.f_to_kind(Kind::Int64)?)
}

/// The unpacked bytes of `dir/name`, or of `dir/name.gz`, and which it was.
fn read(dir: &Path, name: &'static str) -> Result<(PathBuf, Vec<u8>), DataError> {
    let plain = dir.join(name);
    let packed = dir.join(format!("{name}.gz"));
    let unpack = |mut reader: Box<dyn Read>| {
        let mut bytes = Vec::new();
        reader.read_to_end(&mut bytes).map(|_| bytes)
    };
    let open = |path: &Path| File::open(path);
    let (file, bytes) = if plain.is_file() {
        let bytes = open(&plain).and_then(|file| unpack(Box::new(file)));
        (plain, bytes)
    } else if packed.is_file() {
        let bytes = open(&packed).and_then(|file| unpack(Box::new(GzDecoder::new(file))));
        (packed, bytes)
    } else {
        return Err(DataError::Missing { dir: dir.to_path_buf(), name });
    };
    match bytes {
        Ok(bytes) => Ok((file, bytes)),
        Err(source) => Err(DataError::Read { file, source }),
    }
}

/// Splits an IDX file of unsigned bytes into its `N` dimensions and its values.
fn split<'a, const N: usize>(
    file: &Path,
    bytes: &'a [u8],
) -> Result<([i64; N], &'a [u8]), DataError> {
    let damaged = |what: &str| DataError::damaged(file, what);
    let (head, values) =
        bytes.split_at_checked(4 + 4 * N).ok_or_else(|| damaged("it ends in its head"))?;
    if head[..4] != [0, 0, 8, N as u8] {
        return Err(damaged(&format!("it is no IDX file of bytes in {N} dimensions")));
    }
    let mut sizes = [0_i64; N];
    for (size, word) in sizes.iter_mut().zip(head[4..].chunks_exact(4)) {
        *size = word.iter().fold(0, |value, &byte| value << 8 | i64::from(byte));
    }
    let wanted = sizes.iter().try_fold(1_i64, |product, &size| product.checked_mul(size));
    if wanted != i64::try_from(values.len()).ok() {
        return Err(damaged(&format!(
            "it has {} values where {sizes:?} are promised",
            values.len()
        )));
    }
    Ok((sizes, values))
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use std::io::{self, Write};

    fn idx(sizes: &[u32], values: &[u8]) -> Vec<u8> {
        let mut bytes = vec![0, 0, 8, sizes.len() as u8];
        bytes.extend(sizes.iter().flat_map(|size| size.to_be_bytes()));
        bytes.extend_from_slice(values);
        bytes
    }

    /// A folder with two training images and one test image, the labels gzipped.
    fn folder() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let write =
            |name: &str, bytes: &[u8]| std::fs::write(dir.path().join(name), bytes).unwrap();
        let pack = |bytes: &[u8]| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
            encoder.write_all(bytes).unwrap();
            encoder.finish().unwrap()
        };
        write("train-images-idx3-ubyte", &idx(&[2, 2, 2], &[0, 51, 102, 255, 0, 0, 0, 255]));
        write("train-labels-idx1-ubyte.gz", &pack(&idx(&[2], &[3, 9])));
        write("t10k-images-idx3-ubyte", &idx(&[1, 2, 2], &[255; 4]));
        write("t10k-labels-idx1-ubyte.gz", &pack(&idx(&[1], &[0])));
        dir
    }

    #[test]
    fn plain_and_gzipped_files_are_read() {
        let data = mnist(folder().path()).unwrap();
        assert_eq!(data.train_images.size(), [2, 4]);
        let first: Vec<f32> = Vec::try_from(data.train_images.get(0)).unwrap();
        assert_eq!(first, [0.0, 0.2, 0.4, 1.0]);
        assert_eq!(Vec::<i64>::try_from(data.train_labels).unwrap(), [3, 9]);
    }

    #[test]
    fn each_fault_names_the_file() {
        let faults: [(&str, Vec<u8>); 4] = [
            ("train-images-idx3-ubyte", vec![0, 0, 8]),
            ("train-images-idx3-ubyte", idx(&[2], &[1, 2])),
            ("train-images-idx3-ubyte", idx(&[2, 2, 2], &[1, 2, 3])),
            ("t10k-images-idx3-ubyte", idx(&[1, 4, 1], &[0; 4])),
        ];
        for (name, bytes) in faults {
            let dir = folder();
            std::fs::write(dir.path().join(name), bytes).unwrap();
            let text = mnist(dir.path()).unwrap_err().to_string();
            assert!(text.contains(name), "{text}");
        }
    }

    #[test]
    fn a_missing_file_and_unequal_counts_are_told() {
        let dir = folder();
        std::fs::write(dir.path().join("train-labels-idx1-ubyte"), idx(&[1], &[3])).unwrap();
        let text = mnist(dir.path()).unwrap_err().to_string();
        assert!(text.contains("2 images and 1 labels"), "{text}");
        std::fs::remove_file(dir.path().join("t10k-images-idx3-ubyte")).unwrap();
        let text = mnist(dir.path()).unwrap_err().to_string();
        assert!(text.contains("t10k-images-idx3-ubyte.gz"), "{text}");
    }

    #[test]
    fn a_file_that_does_not_unpack_is_told_with_the_reason() {
        let dir = folder();
        std::fs::write(dir.path().join("train-labels-idx1-ubyte.gz"), b"not gzip").unwrap();
        let error = mnist(dir.path()).unwrap_err();
        assert!(
            matches!(&error, DataError::Read { source, .. }
            if source.kind() == io::ErrorKind::InvalidInput || source.kind() == io::ErrorKind::InvalidData
                || source.kind() == io::ErrorKind::UnexpectedEof),
            "{error:?}"
        );
    }
}
