//! What a checkpoint says of itself: `checkpoint.json`.
//!
//! ```json
//! {"digest":"..","manifest":{"format":"ddp-checkpoint","version":1, ..}}
//! ```
//!
//! `digest` is the checksum of the manifest's own text, and the manifest has the length and the checksum of every other
//! file: whatever byte is damaged, the checkpoint is refused.
use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;

use super::digest::Digest;
use super::progress::Position;

/// The name of the manifest's file.
pub(super) const FILE: &str = "checkpoint.json";
/// The name of the file with the values and the states of the generators.
pub(super) const STATE_FILE: &str = "state.msgpack";

const FORMAT: &str = "ddp-checkpoint";
const VERSION: u32 = 1;

/// A file of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileFacts {
    pub(super) bytes: u64,
    pub(super) xxh3_128: Digest,
}

/// A parameter of an optimizer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ParameterFacts {
    pub(super) group: usize,
    /// `store/variable`, where the store is in the checkpoint too.
    pub(super) variable: Option<String>,
    pub(super) size: Vec<i64>,
}

/// An optimizer of a checkpoint.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct OptimizerFacts {
    pub(super) class: String,
    pub(super) parameters: Vec<ParameterFacts>,
}

/// All that a checkpoint says of itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Manifest {
    format: String,
    version: u32,
    pub(super) position: Position,
    pub(super) optimizers: BTreeMap<String, OptimizerFacts>,
    pub(super) values: Vec<String>,
    pub(super) files: BTreeMap<String, FileFacts>,
}

#[derive(Serialize, Deserialize)]
struct Sealed<'a> {
    digest: Digest,
    #[serde(borrow)]
    manifest: &'a RawValue,
}

impl Manifest {
    pub(super) fn new(position: Position) -> Self {
        Self {
            format: FORMAT.to_owned(),
            version: VERSION,
            position,
            optimizers: BTreeMap::new(),
            values: Vec::new(),
            files: BTreeMap::new(),
        }
    }

    /// The text of the file.
    pub(super) fn seal(&self) -> Result<String, String> {
        let text = serde_json::to_string(self).map_err(|error| error.to_string())?;
        let digest = Digest::of(text.as_bytes());
        let manifest = RawValue::from_string(text).map_err(|error| error.to_string())?;
        serde_json::to_string(&Sealed { digest, manifest: &manifest })
            .map_err(|error| error.to_string())
    }

    /// The manifest of a file's bytes, and its checksum.
    pub(super) fn unseal(bytes: &[u8]) -> Result<(Self, Digest), String> {
        let text = std::str::from_utf8(bytes).map_err(|_| "its manifest is damaged".to_owned())?;
        let sealed: Sealed<'_> = serde_json::from_str(text)
            .map_err(|error| format!("its manifest is damaged or not one: {error}"))?;
        let inner = sealed.manifest.get();
        if Digest::of(inner.as_bytes()) != sealed.digest {
            return Err("its manifest is damaged: the checksum is that of another text".to_owned());
        }
        let form: Form = serde_json::from_str(inner).map_err(|error| error.to_string())?;
        if form.format != FORMAT || form.version != VERSION {
            return Err(format!(
                "it has format {} version {}, where this version reads {FORMAT} version {VERSION}",
                form.format, form.version
            ));
        }
        let manifest = serde_json::from_str(inner).map_err(|error| error.to_string())?;
        Ok((manifest, sealed.digest))
    }

    /// The manifest of the checkpoint in `folder`, and its checksum.
    pub(super) fn read(folder: &Path) -> Result<(Self, Digest), String> {
        let bytes = std::fs::read(folder.join(FILE))
            .map_err(|error| format!("its {FILE} cannot be read: {error}"))?;
        Self::unseal(&bytes)
    }

    /// Compares every file with what the manifest says.
    pub(super) fn verify(&self, folder: &Path) -> Result<(), String> {
        for (name, facts) in &self.files {
            let (digest, bytes) = Digest::of_file(&folder.join(name))
                .map_err(|error| format!("its {name} cannot be read: {error}"))?;
            facts.compare(name, &digest, bytes)?;
        }
        Ok(())
    }

    /// The bytes of one file, if they are what the manifest says.
    pub(super) fn read_file(&self, folder: &Path, name: &str) -> Result<Vec<u8>, String> {
        let Some(facts) = self.files.get(name) else {
            let have: Vec<&str> = self.files.keys().map(String::as_str).collect();
            return Err(format!("it has no {name}; it has {}", have.join(", ")));
        };
        let bytes = std::fs::read(folder.join(name))
            .map_err(|error| format!("its {name} cannot be read: {error}"))?;
        facts.compare(name, &Digest::of(&bytes), bytes.len() as u64)?;
        Ok(bytes)
    }
}

/// What can be read of every version.
#[derive(Deserialize)]
struct Form {
    format: String,
    version: u32,
}

impl FileFacts {
    fn compare(&self, name: &str, digest: &Digest, bytes: u64) -> Result<(), String> {
        if bytes != self.bytes {
            return Err(format!("its {name} has {bytes} bytes and not {}", self.bytes));
        }
        if *digest != self.xxh3_128 {
            return Err(format!("its {name} is damaged: the checksum is that of other bytes"));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_changed_byte_of_a_manifest_goes_unseen() {
        let mut manifest = Manifest::new(Position { epoch: 3, ..Position::default() });
        manifest.values.push("best".to_owned());
        let sealed = manifest.seal().unwrap();
        assert_eq!(Manifest::unseal(sealed.as_bytes()).unwrap().0, manifest);
        for at in 0..sealed.len() {
            for bit in 0..8 {
                let mut damaged = sealed.clone().into_bytes();
                damaged[at] ^= 1 << bit;
                assert!(Manifest::unseal(&damaged).is_err(), "byte {at}, bit {bit}");
            }
            assert!(Manifest::unseal(&sealed.as_bytes()[..at]).is_err(), "cut at {at}");
        }
    }

    #[test]
    fn another_version_is_named() {
        let mut manifest = Manifest::new(Position::default());
        manifest.version = 9;
        let error = Manifest::unseal(manifest.seal().unwrap().as_bytes()).unwrap_err();
        assert!(error.contains("version 9") && error.contains("version 1"), "{error}");
    }
}
