//! Release programs of this workspace, built and found.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};
use serde::Deserialize;

use crate::step::render;
use crate::style;
use crate::workspace::Workspace;

/// Where cargo put each program.
#[derive(Debug, Default)]
pub(crate) struct Programs(BTreeMap<String, PathBuf>);

impl Programs {
    /// Builds the programs `names` of the packages in release mode. Cargo's progress goes to the terminal, and
    /// cargo itself says where the programs are, so every way to move the target folder is followed.
    ///
    /// # Errors
    /// When the build fails.
    pub(crate) fn build(ws: &Workspace, packages: &[&str], names: &[&str]) -> Result<Self> {
        Self::build_by(|args| ws.cargo(args.iter().copied()), packages, names)
    }

    /// As `build`, by another cargo.
    ///
    /// # Errors
    /// When the build fails.
    pub(crate) fn build_by(
        cargo: impl Fn(&[&str]) -> Command,
        packages: &[&str],
        names: &[&str],
    ) -> Result<Self> {
        let mut command =
            cargo(&["build", "--release", "--message-format=json-render-diagnostics"]);
        command.args(packages.iter().flat_map(|package| ["-p", package]));
        command.args(names.iter().flat_map(|name| ["--bin", name]));
        style::doing("Building", &names.join(", "));
        let output = command
            .stderr(Stdio::inherit())
            .output()
            .with_context(|| format!("`{}` cannot be started", render(&command)))?;
        if !output.status.success() {
            bail!("the build failed ({}): {}", output.status, render(&command));
        }
        Ok(Self(executables(&String::from_utf8_lossy(&output.stdout))))
    }

    /// The program `name`.
    ///
    /// # Errors
    /// When it was not among those built.
    pub(crate) fn path(&self, name: &str) -> Result<&Path> {
        let path = self.0.get(name).map(PathBuf::as_path);
        path.with_context(|| format!("cargo named no program `{name}` among what it built"))
    }
}

/// What is read of cargo's messages.
#[derive(Deserialize)]
struct Message {
    target: Option<Target>,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
}

fn executables(messages: &str) -> BTreeMap<String, PathBuf> {
    messages
        .lines()
        .filter_map(|line| serde_json::from_str::<Message>(line).ok())
        .filter_map(|message| Some((message.target?.name, message.executable?)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_read_from_cargos_messages() {
        let messages = r#"{"reason":"compiler-artifact","target":{"name":"serde"},"executable":null}
{"reason":"build-script-executed","linked_libs":[]}
not json
{"reason":"compiler-artifact","target":{"name":"01-single"},"executable":"/t/01-single"}"#;
        let found = executables(messages);
        assert_eq!(found, BTreeMap::from([("01-single".into(), "/t/01-single".into())]));
    }
}
