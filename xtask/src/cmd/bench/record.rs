//! The figures, as docs/benchmarks.json keeps them: every run, so that tables and charts can be made anew.

use std::io::ErrorKind;
use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::machine::Machine;
use crate::workspace::Workspace;

/// All parts, each with the machine it was measured on.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) machine: Machine,
    #[serde(default)]
    pub(crate) steps: Vec<StepRow>,
    #[serde(default)]
    pub(crate) all_reduce: Vec<ReduceRow>,
    #[serde(default)]
    pub(crate) overheads: Vec<OverheadRow>,
    #[serde(default)]
    pub(crate) loader: Vec<LoaderRow>,
    #[serde(default)]
    pub(crate) sampler: Vec<SamplerRow>,
    #[serde(default)]
    pub(crate) expansion: Vec<ExpansionRow>,
}

/// A configuration that trained a model: one value a run in each list.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct StepRow {
    pub(crate) model: String,
    pub(crate) ranks: u32,
    pub(crate) configuration: String,
    pub(crate) parameters: u64,
    /// The median step of a run.
    pub(crate) step_ms: Vec<f64>,
    /// From the start of the job to the end of its first step.
    pub(crate) start_s: Vec<f64>,
    /// VmHWM of a rank.
    pub(crate) peak_mib: Vec<f64>,
}

impl StepRow {
    pub(crate) fn new(model: &str, ranks: u32, configuration: &str) -> Self {
        Self {
            model: model.to_owned(),
            ranks,
            configuration: configuration.to_owned(),
            ..Self::default()
        }
    }
}

/// A configuration that all-reduced buffers.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct ReduceRow {
    pub(crate) ranks: u32,
    pub(crate) configuration: String,
    pub(crate) bytes: Vec<u64>,
    /// For each size, the median of each run.
    pub(crate) times_us: Vec<Vec<f64>>,
    /// What the memory moved in each run; none for the peer.
    pub(crate) copy_gb_s: Vec<f64>,
}

impl ReduceRow {
    pub(crate) fn new(ranks: u32, configuration: &str, bytes: &[u64]) -> Self {
        Self {
            ranks,
            configuration: configuration.to_owned(),
            bytes: bytes.to_vec(),
            times_us: vec![Vec::new(); bytes.len()],
            ..Self::default()
        }
    }
}

/// The same steps without and with something, in pairs of blocks that follow each other.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct OverheadRow {
    pub(crate) what: String,
    pub(crate) model: String,
    pub(crate) ranks: u32,
    /// Of each block, milliseconds a step.
    pub(crate) without_ms: Vec<f64>,
    pub(crate) with_ms: Vec<f64>,
}

impl OverheadRow {
    pub(crate) fn new(what: &str, model: &str, ranks: u32) -> Self {
        Self { what: what.to_owned(), model: model.to_owned(), ranks, ..Self::default() }
    }
}

/// Samples a second through a data loader, the median pass of each run.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct LoaderRow {
    /// As the measured programs call it.
    pub(crate) kind: String,
    pub(crate) workers: u32,
    pub(crate) pytorch_per_s: Vec<f64>,
    pub(crate) ours_per_s: Vec<f64>,
}

/// All indices of a shuffled order, drawn; one value a run in each list.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct SamplerRow {
    pub(crate) indices: u64,
    pub(crate) seconds: Vec<f64>,
    pub(crate) peak_mib: Vec<f64>,
    pub(crate) grown_kib: Vec<f64>,
}

/// The expansion of a long function.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct ExpansionRow {
    /// Of the macro: unoptimised or optimised.
    pub(crate) build: String,
    pub(crate) lines: u32,
    /// The best of each run.
    pub(crate) ms: Vec<f64>,
}

impl Record {
    pub(crate) fn new(machine: Machine) -> Self {
        Self { machine, ..Self::default() }
    }

    fn path(ws: &Workspace) -> PathBuf {
        ws.docs().join("benchmarks.json")
    }

    /// The record in the workspace, if there is one.
    ///
    /// # Errors
    /// When it cannot be read.
    pub(crate) fn stored(ws: &Workspace) -> Result<Option<Self>> {
        let path = Self::path(ws);
        let text = match std::fs::read_to_string(&path) {
            Ok(text) => text,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error).context(format!("reading {}", path.display())),
        };
        let record = serde_json::from_str(&text);
        Ok(Some(record.with_context(|| format!("{} is no record", path.display()))?))
    }

    /// Writes the record into the workspace.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub(crate) fn write(&self, ws: &Workspace) -> Result<()> {
        let path = Self::path(ws);
        std::fs::create_dir_all(ws.docs())?;
        std::fs::write(&path, serde_json::to_string_pretty(self)? + "\n")
            .with_context(|| format!("writing {}", path.display()))
    }

    /// These figures in place of older ones of the same model, ranks and so on. Older figures stay only where they are of the
    /// same machine.
    pub(crate) fn over(self, older: Option<Record>) -> Self {
        let Some(older) = older.filter(|older| older.machine.is_like(&self.machine)) else {
            return self;
        };
        let mut merged = Self {
            machine: self.machine,
            steps: replace(older.steps, self.steps, |row| (row.model.clone(), row.ranks)),
            all_reduce: replace(older.all_reduce, self.all_reduce, |row| row.ranks),
            overheads: replace(older.overheads, self.overheads, |row| {
                (row.what.clone(), row.model.clone(), row.ranks)
            }),
            loader: replace(older.loader, self.loader, |row| (row.kind.clone(), row.workers)),
            sampler: replace(older.sampler, self.sampler, |row| row.indices),
            expansion: replace(older.expansion, self.expansion, |row| row.build.clone()),
        };
        merged.steps.sort_by(|a, b| (&a.model, a.ranks).cmp(&(&b.model, b.ranks)));
        merged.all_reduce.sort_by_key(|row| row.ranks);
        merged
    }
}

/// The older rows that no new one has the key of, and the new ones.
fn replace<T, K: PartialEq>(older: Vec<T>, new: Vec<T>, key: impl Fn(&T) -> K) -> Vec<T> {
    let taken: Vec<K> = new.iter().map(&key).collect();
    older.into_iter().filter(|row| !taken.contains(&key(row))).chain(new).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_that_is_measured_again_replaces_that_part() {
        let machine = Machine::sample();
        let row = |model: &str, ranks, ms| StepRow {
            step_ms: vec![ms],
            ..StepRow::new(model, ranks, "a")
        };
        let mut old = Record::new(machine.clone());
        old.steps = vec![row("mlp", 2, 1.0), row("conv", 2, 2.0)];
        old.all_reduce = vec![ReduceRow::new(2, "a", &[4])];
        let mut new = Record::new(machine);
        new.steps = vec![row("mlp", 2, 3.0), row("mlp", 4, 4.0)];
        let facts = |record: &Record| -> Vec<(String, u32, f64)> {
            record.steps.iter().map(|row| (row.model.clone(), row.ranks, row.step_ms[0])).collect()
        };
        let merged = new.clone().over(Some(old.clone()));
        let wanted = [("conv", 2, 2.0), ("mlp", 2, 3.0), ("mlp", 4, 4.0)];
        assert_eq!(facts(&merged), wanted.map(|(model, ranks, ms)| (model.to_owned(), ranks, ms)));
        assert_eq!(merged.all_reduce.len(), 1);

        old.machine.cores += 1;
        assert_eq!(facts(&new.clone().over(Some(old))), facts(&new));
    }

    #[test]
    fn a_record_is_kept_and_a_spoiled_one_is_not_overlooked() {
        let folder = tempfile::tempdir().unwrap();
        let ws = Workspace::at(folder.path());
        assert!(Record::stored(&ws).unwrap().is_none());
        let mut record = Record::new(Machine::sample());
        record.steps = vec![StepRow::new("mlp", 2, "a")];
        record.write(&ws).unwrap();
        let stored = Record::stored(&ws).unwrap().unwrap();
        assert_eq!((stored.machine, stored.steps.len()), (record.machine, 1));
        std::fs::write(Record::path(&ws), "{").unwrap();
        assert!(Record::stored(&ws).unwrap_err().to_string().contains("is no record"));
    }
}
