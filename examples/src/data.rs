//! Images of handwritten digits as a [`Dataset`]: small ones that are embedded, or a folder of MNIST.

mod digits;
mod error;
mod idx;

use std::path::Path;

use tch::vision::dataset::Dataset;

pub use self::digits::digits;
pub use self::error::DataError;
pub use self::idx::mnist;

/// MNIST in `dir` where one is given, the embedded digits otherwise.
///
/// Images are rows of square pictures, 0 to 1; labels are 0 to 9.
///
/// # Errors
/// When a file in `dir` is missing or is not what its name says.
pub fn load(dir: Option<&Path>) -> Result<Dataset, DataError> {
    dir.map_or_else(digits, mnist)
}

/// Pixels along a side of the pictures in `data`.
///
/// # Panics
/// Never for data of this module, whose images are rows of square pictures.
#[must_use]
pub fn side(data: &Dataset) -> i64 {
    (data.train_images.size()[1] as f64).sqrt().round() as i64
}
