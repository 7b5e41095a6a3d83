//! The figures, as docs/benchmarks.json keeps them: every run, so that tables and charts can be made anew.

use std::path::PathBuf;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::machine::Machine;
use crate::workspace::Workspace;

/// All parts, each with the machine it was measured on.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Record {
    pub(crate) machine: Machine,
    #[serde(default)]
    pub(crate) steps: Vec<StepRow>,
    #[serde(default)]
    pub(crate) all_reduce: Vec<ReduceRow>,
}

/// A configuration that trained a model: one value a run in each list.
#[derive(Debug, Clone, Serialize, Deserialize)]
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
            parameters: 0,
            step_ms: Vec::new(),
            start_s: Vec::new(),
            peak_mib: Vec::new(),
        }
    }
}

/// A configuration that all-reduced buffers.
#[derive(Debug, Clone, Serialize, Deserialize)]
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
            copy_gb_s: Vec::new(),
        }
    }
}

impl Record {
    pub(crate) fn new(machine: Machine) -> Self {
        Self { machine, steps: Vec::new(), all_reduce: Vec::new() }
    }

    fn path(ws: &Workspace) -> PathBuf {
        ws.docs().join("benchmarks.json")
    }

    /// The record in the workspace.
    ///
    /// # Errors
    /// When there is none, or it cannot be read.
    pub(crate) fn read(ws: &Workspace) -> Result<Self> {
        let path = Self::path(ws);
        let text = std::fs::read_to_string(&path)
            .with_context(|| format!("reading {}", path.display()))?;
        serde_json::from_str(&text).with_context(|| format!("{} is no record", path.display()))
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

    /// These figures in place of older ones of the same model and ranks, or ranks. Older figures stay only where they are of
    /// the same machine.
    pub(crate) fn over(mut self, older: Option<Record>) -> Self {
        let Some(older) = older.filter(|older| older.machine.is_like(&self.machine)) else {
            return self;
        };
        let same = |a: &StepRow, b: &StepRow| (&a.model, a.ranks) == (&b.model, b.ranks);
        let mut steps = older.steps;
        steps.retain(|old| !self.steps.iter().any(|new| same(old, new)));
        steps.append(&mut self.steps);
        let mut reduce = older.all_reduce;
        reduce.retain(|old| !self.all_reduce.iter().any(|new| old.ranks == new.ranks));
        reduce.append(&mut self.all_reduce);
        steps.sort_by(|a, b| (&a.model, a.ranks).cmp(&(&b.model, b.ranks)));
        reduce.sort_by_key(|row| row.ranks);
        Self { machine: self.machine, steps, all_reduce: reduce }
    }
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
}
