//! Where the workspace is, and how cargo is called in it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result};

/// The workspace that this command was started in.
#[derive(Debug, Clone)]
pub(crate) struct Workspace {
    root: PathBuf,
}

impl Workspace {
    /// The folder above this package: cargo names it at run time, so a moved checkout is found as well.
    pub(crate) fn find() -> Result<Self> {
        let package = std::env::var_os("CARGO_MANIFEST_DIR")
            .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
        let root = package.parent().context("the xtask package has no folder above it")?;
        Ok(Self { root: root.to_path_buf() })
    }

    /// A workspace at `root`, for tests.
    #[cfg(test)]
    pub(crate) fn at(root: &std::path::Path) -> Self {
        Self { root: root.to_path_buf() }
    }

    /// The folder that holds all packages.
    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    /// `target/` of the workspace, whatever CARGO_TARGET_DIR says: `.cargo/config.toml` names it.
    pub(crate) fn own_target(&self) -> PathBuf {
        self.root.join("target")
    }

    /// `docs/` of the workspace.
    pub(crate) fn docs(&self) -> PathBuf {
        self.root.join("docs")
    }

    /// The link through which every build finds libtorch.
    pub(crate) fn libtorch(&self) -> PathBuf {
        self.own_target().join("libtorch")
    }

    /// `program`, started in the root of the workspace.
    pub(crate) fn command(&self, program: impl Into<OsString>) -> Command {
        let mut command = Command::new(program.into());
        command.current_dir(&self.root);
        command
    }

    /// The cargo that started this program, in the root of the workspace.
    pub(crate) fn cargo<'a>(&self, args: impl IntoIterator<Item = &'a str>) -> Command {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = self.command(cargo);
        command.args(args);
        command
    }

    /// Whether `cargo NAME` is an installed subcommand.
    pub(crate) fn has_cargo(&self, name: &str) -> bool {
        let output = self.cargo([name, "--version"]).output();
        output.is_ok_and(|output| output.status.success())
    }
}
