//! The packages of the workspace, as `cargo metadata` tells them.

use std::path::PathBuf;

use serde::Deserialize;

use super::{Cargo, ProgramError};
use crate::cli::CargoArgs;

/// What is needed of `cargo metadata --no-deps`.
#[derive(Debug, Deserialize)]
pub(super) struct Metadata {
    pub(super) packages: Vec<Package>,
    /// Ids of the packages that a command without `-p` at the workspace's root means.
    #[serde(default)]
    pub(super) workspace_default_members: Vec<String>,
    pub(super) workspace_root: PathBuf,
    pub(super) target_directory: PathBuf,
}

#[derive(Debug, Deserialize)]
pub(super) struct Package {
    pub(super) name: String,
    pub(super) id: String,
    pub(super) manifest_path: PathBuf,
    #[serde(default)]
    pub(super) default_run: Option<String>,
    pub(super) targets: Vec<Target>,
}

#[derive(Debug, Deserialize)]
pub(super) struct Target {
    pub(super) name: String,
    pub(super) kind: Vec<String>,
}

impl Package {
    /// The names of the binaries.
    pub(super) fn bins(&self) -> impl Iterator<Item = &str> {
        let is_bin = |target: &&Target| target.kind.iter().any(|kind| kind == "bin");
        self.targets.iter().filter(is_bin).map(|target| target.name.as_str())
    }
}

/// Asks cargo. Dependencies are left out, so this reads manifests only.
pub(super) fn read(cargo: &Cargo, args: &CargoArgs) -> Result<Metadata, ProgramError> {
    let output = cargo
        .command("metadata", args)
        .args(["--no-deps", "--format-version", "1"])
        .output()
        .map_err(|source| cargo.missing("metadata", source))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let text = text.trim();
        return Err(ProgramError::Metadata(
            text.strip_prefix("error: ").unwrap_or(text).to_owned(),
        ));
    }
    serde_json::from_slice(&output.stdout).map_err(ProgramError::MetadataFormat)
}
