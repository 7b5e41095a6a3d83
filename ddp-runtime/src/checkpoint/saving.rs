//! What goes into a checkpoint: written by the main rank, and only counted by the others.
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use serde_bytes::ByteBuf;
use tch::nn::{Optimizer, VarStore};
use tch::{Device, Tensor};

use super::digest::Digest;
use super::manifest::{FileFacts, OptimizerFacts, ParameterFacts};
use crate::bridge::{self, OptimizerHandle};
use crate::error::{During, Error, Result};
use crate::random::RngState;

/// The random numbers of one rank, before the pass and now.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(super) struct RankRandom {
    pub(super) start: RngState,
    pub(super) now: RngState,
}

/// What the file of values has.
#[derive(Serialize, Deserialize)]
pub(super) struct StateFile {
    pub(super) random: Vec<RankRandom>,
    pub(super) values: BTreeMap<String, ByteBuf>,
}

/// The name of a variable, by what tells its tensor apart.
pub(super) type Names = HashMap<usize, String>;

/// Takes the parts of a checkpoint; see [`Checkpoints::save`](super::Checkpoints::save).
///
/// All ranks give the same parts; the main rank's are written.
pub struct Saving {
    /// Where to write, on the main rank.
    folder: Option<PathBuf>,
    names: Names,
    parts: BTreeSet<String>,
    files: BTreeMap<String, FileFacts>,
    optimizers: BTreeMap<String, OptimizerFacts>,
    values: BTreeMap<String, ByteBuf>,
}

impl Saving {
    pub(super) fn new(folder: Option<&Path>) -> Self {
        Self {
            folder: folder.map(Path::to_owned),
            names: Names::new(),
            parts: BTreeSet::new(),
            files: BTreeMap::new(),
            optimizers: BTreeMap::new(),
            values: BTreeMap::new(),
        }
    }

    /// All variables of a store, as `NAME.safetensors`: under their own names, so that `VarStore::load` and the safetensors
    /// packages of other languages read the file.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] when the name was given before or is no file name, or the disk is full.
    pub fn store(&mut self, name: &str, store: &VarStore) -> Result<()> {
        self.tensors(name, &sorted_variables(store))?;
        note_names(&mut self.names, name, store)
    }

    /// Tensors of the program's own, as `NAME.safetensors`: the state of an optimizer that is not tch's, averaged weights.
    ///
    /// # Errors
    /// As [`store`](Self::store).
    pub fn tensors<S: AsRef<str>>(&mut self, name: &str, tensors: &[(S, Tensor)]) -> Result<()> {
        let file = tensors_file(name);
        self.add(&file)?;
        let Some(folder) = self.folder.clone() else { return Ok(()) };
        let operation = "saving tensors";
        let rows: Result<Vec<(&str, Tensor)>> = tensors
            .iter()
            .map(|(name, tensor)| {
                let on_cpu = tensor.f_detach().and_then(|tensor| tensor.f_to_device(Device::Cpu));
                let rows = on_cpu.and_then(|tensor| tensor.f_contiguous()).during(operation)?;
                Ok((name.as_ref(), rows))
            })
            .collect();
        let path = folder.join(&file);
        Tensor::write_safetensors(&rows?, &path)
            .map_err(|error| broken(&path, error.to_string()))?;
        let (xxh3_128, bytes) =
            Digest::of_file(&path).map_err(|error| broken(&path, error.to_string()))?;
        self.files.insert(file, FileFacts { bytes, xxh3_128 });
        Ok(())
    }

    /// The state of tch's optimizer: moments, step counts, and the options of its groups, among them the learning rates.
    ///
    /// Give the stores of its variables before: their names are kept with the state, and compared when it is read.
    ///
    /// # Errors
    /// As [`store`](Self::store); [`Error::Torch`] when libtorch cannot write the state.
    pub fn optimizer(&mut self, name: &str, optimizer: &Optimizer) -> Result<()> {
        let file = optimizer_file(name);
        self.add(&file)?;
        let Some(folder) = self.folder.clone() else { return Ok(()) };
        let operation = "saving an optimizer";
        let handle = OptimizerHandle::of(optimizer).during(operation)?;
        let facts = facts_of(&handle, &self.names).during(operation)?;
        let archive = handle.save().during(operation)?;
        self.optimizers.insert(name.to_owned(), facts);
        self.write(&folder, file, &archive)
    }

    /// A value of the program's own: the best figure so far, a schedule, the state of a sampler.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] when the name was given before, or the value cannot be represented.
    pub fn value<T: Serialize + ?Sized>(&mut self, name: &str, value: &T) -> Result<()> {
        self.add(&format!("value {name}"))?;
        let bytes = rmp_serde::to_vec_named(value).map_err(|error| {
            let path = Path::new(name);
            Error::checkpoint(path, format!("this value cannot be saved: {error}"), "save another")
        })?;
        self.values.insert(name.to_owned(), ByteBuf::from(bytes));
        Ok(())
    }

    /// A hash of the names of all parts, which all ranks must have in common.
    pub(super) fn parts(&self) -> String {
        let names: Vec<&str> = self.parts.iter().map(String::as_str).collect();
        names.join(", ")
    }

    /// The last file, and what the manifest has to say.
    pub(super) fn finish(
        mut self,
        folder: &Path,
        file: &str,
        random: Vec<RankRandom>,
    ) -> Result<Written> {
        let values: Vec<String> = self.values.keys().cloned().collect();
        let state = StateFile { random, values: std::mem::take(&mut self.values) };
        let bytes = rmp_serde::to_vec_named(&state)
            .map_err(|error| broken(&folder.join(file), error.to_string()))?;
        self.write(folder, file.to_owned(), &bytes)?;
        Ok(Written { files: self.files, optimizers: self.optimizers, values })
    }

    fn write(&mut self, folder: &Path, file: String, bytes: &[u8]) -> Result<()> {
        let path = folder.join(&file);
        std::fs::write(&path, bytes).map_err(|error| broken(&path, error.to_string()))?;
        let facts = FileFacts { bytes: bytes.len() as u64, xxh3_128: Digest::of(bytes) };
        self.files.insert(file, facts);
        Ok(())
    }

    fn add(&mut self, part: &str) -> Result<()> {
        let is_safe = |one: char| one.is_ascii_alphanumeric() || "_-. ".contains(one);
        let path = Path::new(part);
        if part.starts_with('.') || !part.chars().all(is_safe) {
            let cure = "use letters, digits, `_`, `-` and `.`";
            return Err(Error::checkpoint(path, "this is no name for a part", cure));
        }
        if !self.parts.insert(part.to_owned()) {
            return Err(Error::checkpoint(
                path,
                "two parts have this name",
                "give each its own name",
            ));
        }
        Ok(())
    }
}

/// What the main rank has written.
pub(super) struct Written {
    pub(super) files: BTreeMap<String, FileFacts>,
    pub(super) optimizers: BTreeMap<String, OptimizerFacts>,
    pub(super) values: Vec<String>,
}

pub(super) fn tensors_file(name: &str) -> String {
    format!("{name}.safetensors")
}

pub(super) fn optimizer_file(name: &str) -> String {
    format!("{name}.optimizer")
}

/// A store's variables, sorted by name.
pub(super) fn sorted_variables(store: &VarStore) -> Vec<(String, Tensor)> {
    let mut variables: Vec<(String, Tensor)> = store.variables().into_iter().collect();
    variables.sort_by(|(one, _), (other, _)| one.cmp(other));
    variables
}

/// Remembers which tensor has which name.
pub(super) fn note_names(names: &mut Names, store_name: &str, store: &VarStore) -> Result<()> {
    for (variable, tensor) in sorted_variables(store) {
        let identity = bridge::identity(&tensor).during("naming variables")?;
        names.insert(identity, format!("{store_name}/{variable}"));
    }
    Ok(())
}

/// What an optimizer is and what it moves.
pub(super) fn facts_of(
    handle: &OptimizerHandle<'_>,
    names: &Names,
) -> std::result::Result<OptimizerFacts, bridge::BridgeError> {
    let parameters = handle.parameters()?.into_iter().map(|parameter| ParameterFacts {
        group: parameter.group,
        variable: names.get(&parameter.identity).cloned(),
        size: parameter.size,
    });
    Ok(OptimizerFacts { class: handle.name()?, parameters: parameters.collect() })
}

fn broken(path: &Path, what: String) -> Error {
    Error::checkpoint(path, what, "check the disk's space and the folder's permissions")
}
