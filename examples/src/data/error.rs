//! Why data could not be loaded.

use std::io;
use std::path::PathBuf;

use tch::TchError;
use thiserror::Error;

/// Why data could not be loaded.
#[derive(Debug, Error)]
#[non_exhaustive]
pub enum DataError {
    /// A file is not there, neither plain nor gzipped.
    #[error(
        "{dir} holds no {name} and no {name}.gz; --data names a folder with the four files of MNIST"
    )]
    Missing {
        /// The folder that was given.
        dir: PathBuf,
        /// The file that was looked for.
        name: &'static str,
    },
    /// A file cannot be read or unpacked.
    #[error("{file} cannot be read")]
    Read {
        /// The file.
        file: PathBuf,
        /// What the system or the unpacker says.
        #[source]
        source: io::Error,
    },
    /// A file's content is not what its name promises.
    #[error("{file} is damaged: {what}; fetch it again")]
    Damaged {
        /// The file.
        file: PathBuf,
        /// What is wrong with it.
        what: String,
    },
    /// libtorch refused to make a tensor.
    #[error(transparent)]
    Tensor(#[from] TchError),
}

impl DataError {
    /// `file` is damaged in that `what`.
    pub(super) fn damaged(file: impl Into<PathBuf>, what: impl Into<String>) -> Self {
        Self::Damaged { file: file.into(), what: what.into() }
    }
}
