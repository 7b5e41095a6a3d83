//! Checksums: XXH3 with 128 bits, of bytes and of whole files.
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use serde::{Deserialize, Serialize};
use twox_hash::XxHash3_128;

/// A checksum. It tells damage from what was written; it is no protection against somebody who wants to deceive.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
pub(super) struct Digest(String);

impl Digest {
    pub(super) fn of(bytes: &[u8]) -> Self {
        Self::shown(XxHash3_128::oneshot(bytes))
    }

    /// The checksum and the length of a file, read piece by piece.
    pub(super) fn of_file(path: &Path) -> io::Result<(Self, u64)> {
        let mut file = File::open(path)?;
        let mut hasher = XxHash3_128::new();
        let mut piece = vec![0; 1 << 20];
        let mut length = 0;
        loop {
            match file.read(&mut piece)? {
                0 => return Ok((Self::shown(hasher.finish_128()), length)),
                read => {
                    hasher.write(&piece[..read]);
                    length += read as u64;
                }
            }
        }
    }

    fn shown(hash: u128) -> Self {
        Self(format!("{hash:032x}"))
    }

    /// The checksum as a word that ranks compare.
    pub(super) fn text(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_has_the_checksum_of_its_bytes() {
        let bytes: Vec<u8> = (0..3_000_000_u32).map(|i| (i * 7 % 251) as u8).collect();
        let path = std::env::temp_dir().join(format!("ddp-digest-{}", std::process::id()));
        std::fs::write(&path, &bytes).unwrap();
        let (digest, length) = Digest::of_file(&path).unwrap();
        std::fs::remove_file(&path).unwrap();
        assert_eq!((digest, length), (Digest::of(&bytes), bytes.len() as u64));
        // From the test vectors of xxHash: the empty input, seed 0.
        assert_eq!(Digest::of(b"").text(), "99aa06d3014798d86001c324468d497f");
    }
}
