//! What comes out of a checkpoint: on every rank, from files whose checksums are compared first.
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use safetensors::SafeTensors;
use serde::de::DeserializeOwned;
use tch::Tensor;
use tch::nn::{Optimizer, VarStore};

use super::manifest::{Manifest, OptimizerFacts, STATE_FILE};
use super::progress::Position;
use super::saving::{
    Names, RankRandom, StateFile, facts_of, note_names, optimizer_file, sorted_variables,
    tensors_file,
};
use crate::bridge::{self, OptimizerHandle};
use crate::error::{During, Error, Result};

const SAME_PROGRAM: &str = "resume with the program that saved it, or begin in another folder";

/// Gives the parts of a checkpoint back; see [`Checkpoints::resume`](super::Checkpoints::resume).
pub struct Restoring {
    path: PathBuf,
    manifest: Manifest,
    state: StateFile,
    names: Names,
}

impl Restoring {
    pub(super) fn open(path: PathBuf, manifest: Manifest) -> Result<Self> {
        let state = read_state(&manifest, &path)
            .map_err(|what| Error::checkpoint(&path, what, "remove it, or restore it"))?;
        Ok(Self { path, manifest, state, names: Names::new() })
    }

    /// Fills a store: its variables must be those of the file, with their names, shapes and dtypes.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] names the first variable that one of the two does not have, or has otherwise.
    pub fn store(&mut self, name: &str, store: &VarStore) -> Result<()> {
        let mut saved: BTreeMap<String, Tensor> = self.tensors(name)?.into_iter().collect();
        let variables = sorted_variables(store);
        for (variable, tensor) in &variables {
            let Some(value) = saved.get(variable) else {
                return Err(
                    self.differs(format!("it has no variable `{variable}` of store `{name}`"))
                );
            };
            let (have, want) = (describe(value), describe(tensor));
            if have != want {
                return Err(self.differs(format!(
                    "variable `{variable}` of store `{name}` is {have} in it and {want} in the program"
                )));
            }
        }
        let known = |variable: &&String| variables.iter().any(|(name, _)| name == *variable);
        if let Some(variable) = saved.keys().find(|variable| !known(variable)) {
            return Err(self.differs(format!(
                "it has a variable `{variable}` of store `{name}`, which the program does not have"
            )));
        }
        for (variable, mut tensor) in variables {
            if let Some(value) = saved.remove(&variable) {
                tch::no_grad(|| tensor.f_copy_(&value)).during("filling a variable")?;
            }
        }
        note_names(&mut self.names, name, store)
    }

    /// The tensors saved as `name`, on the CPU.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] when there are none, or the file is not what was written.
    pub fn tensors(&self, name: &str) -> Result<Vec<(String, Tensor)>> {
        let file = tensors_file(name);
        let bytes = self.read(&file)?;
        let broken = |error: &dyn std::fmt::Display| self.differs(format!("its {file}: {error}"));
        let tensors = SafeTensors::deserialize(&bytes).map_err(|error| broken(&error))?;
        let tensors = tensors.tensors().into_iter();
        tensors
            .map(|(name, view)| Ok((name, Tensor::try_from(view).map_err(|error| broken(&error))?)))
            .collect()
    }

    /// Gives an optimizer its state: it must be of the class that was saved, with the same variables in the same groups. Read
    /// the stores of its variables before, so that they can be compared by name.
    ///
    /// The learning rates and other options of its groups become those that were saved. Its gradients are cleared.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] names the first variable that differs.
    pub fn optimizer(&mut self, name: &str, optimizer: &mut Optimizer) -> Result<()> {
        let operation = "restoring an optimizer";
        let archive = self.read(&optimizer_file(name))?;
        // Variables that were added to the store after the optimizer was built are taken in by this.
        optimizer.zero_grad();
        let handle = OptimizerHandle::of(optimizer).during(operation)?;
        let own = facts_of(&handle, &self.names).during(operation)?;
        let saved = self.manifest.optimizers.get(name).ok_or_else(|| {
            self.differs(format!("its manifest does not tell of the optimizer `{name}`"))
        })?;
        if let Some(difference) = difference(name, saved, &own) {
            return Err(self.differs(difference));
        }
        bridge::load_optimizer(optimizer, &archive).during(operation)
    }

    /// The value saved as `name`.
    ///
    /// # Errors
    /// [`Error::Checkpoint`] when there is none, or it is of another type.
    pub fn value<T: DeserializeOwned>(&self, name: &str) -> Result<T> {
        let Some(bytes) = self.state.values.get(name) else {
            let have: Vec<&str> = self.state.values.keys().map(String::as_str).collect();
            return Err(
                self.differs(format!("it has no value `{name}`; it has [{}]", have.join(", ")))
            );
        };
        rmp_serde::from_slice(bytes).map_err(|error| {
            let kind = std::any::type_name::<T>();
            self.differs(format!("the value `{name}` cannot be read as {kind}: {error}"))
        })
    }

    /// Whether it has a value called `name`: for programs that have learned to save more than they did.
    #[must_use]
    pub fn has_value(&self, name: &str) -> bool {
        self.state.values.contains_key(name)
    }

    pub(super) fn position(&self) -> Position {
        self.manifest.position
    }

    /// The random numbers of all ranks of the job that saved it.
    pub(super) fn random(&self) -> &[RankRandom] {
        &self.state.random
    }

    fn read(&self, file: &str) -> Result<Vec<u8>> {
        self.manifest.read_file(&self.path, file).map_err(|what| self.differs(what))
    }

    fn differs(&self, what: String) -> Error {
        Error::checkpoint(&self.path, what, SAME_PROGRAM)
    }
}

/// The file of values, with a state of the generators for at least one rank.
pub(super) fn read_state(
    manifest: &Manifest,
    path: &Path,
) -> std::result::Result<StateFile, String> {
    let bytes = manifest.read_file(path, STATE_FILE)?;
    let state: StateFile = rmp_serde::from_slice(&bytes)
        .map_err(|error| format!("its {STATE_FILE} cannot be read: {error}"))?;
    match state.random.is_empty() {
        true => Err(format!("its {STATE_FILE} has no random numbers of any rank")),
        false => Ok(state),
    }
}

fn describe(tensor: &Tensor) -> String {
    format!("{:?} of {:?}", tensor.size(), tensor.kind())
}

fn difference(name: &str, saved: &OptimizerFacts, own: &OptimizerFacts) -> Option<String> {
    if saved.class != own.class {
        return Some(format!(
            "the optimizer `{name}` is {} in it and {} in the program",
            saved.class, own.class
        ));
    }
    let (have, want) = (saved.parameters.len(), own.parameters.len());
    let pair = saved.parameters.iter().zip(&own.parameters).find(|(saved, own)| saved != own);
    match pair {
        Some((saved, own)) => Some(format!(
            "the optimizer `{name}` moves {} where the program's moves {}",
            saved.describe(),
            own.describe()
        )),
        None if have != want => Some(format!(
            "the optimizer `{name}` moves {have} variables in it and {want} in the program"
        )),
        None => None,
    }
}

impl super::manifest::ParameterFacts {
    fn describe(&self) -> String {
        let variable = self.variable.as_deref().unwrap_or("a variable of no saved store");
        format!("{variable} {:?} (group {})", self.size, self.group)
    }
}
