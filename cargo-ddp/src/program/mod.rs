//! Which executable the ranks run.
//!
//! `select` chooses the target as `cargo run` does, from what `metadata` reads; `build` has
//! cargo build it and takes path and library folders from cargo's messages.

mod build;
mod metadata;
mod select;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cli::CargoArgs;

/// A program that is ready to start.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Program {
    /// The executable.
    pub(crate) path: PathBuf,
    /// Folders with shared libraries it was linked against (libtorch), for `LD_LIBRARY_PATH`.
    pub(crate) library_dirs: Vec<PathBuf>,
    /// The manifest of its package, if cargo built it.
    pub(crate) manifest: Option<PathBuf>,
}

/// Why there is no program to start.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ProgramError {
    #[error("cannot run `{} {what}`: {source}; is cargo installed?", cargo.display())]
    NoCargo { cargo: PathBuf, what: &'static str, source: std::io::Error },
    #[error("{0}")]
    Metadata(String),
    #[error("`cargo metadata` answered in a form that is not understood: {0}")]
    MetadataFormat(serde_json::Error),
    #[error(transparent)]
    Select(#[from] select::SelectError),
    /// Cargo has said why.
    #[error("the program could not be built")]
    Build { code: u8 },
    #[error("cargo built no executable; choose one with --bin or --example")]
    NothingBuilt,
    #[error("cargo built several executables; choose one with --package and --bin:{}", list(.0))]
    SeveralBuilt(Vec<String>),
}

impl ProgramError {
    pub(crate) fn exit_code(&self) -> u8 {
        match self {
            Self::Build { code } => *code,
            Self::NoCargo { .. } => 127,
            // As cargo itself ends.
            _ => 101,
        }
    }
}

fn list(names: &[String]) -> String {
    names.iter().map(|name| format!("\n    {name}")).collect()
}

/// Chooses and builds the program.
pub(crate) fn build(args: &CargoArgs) -> Result<Program, ProgramError> {
    let cargo = Cargo::from_env();
    let metadata = metadata::read(&cargo, args)?;
    let here = std::env::current_dir().unwrap_or_default();
    let target = select::choose(&metadata, args, &here)?;
    build::build(&cargo, args, target.as_ref(), &metadata.target_directory)
}

/// `cargo expand` with the options that choose a program.
pub(crate) fn expand_command(args: &CargoArgs) -> Command {
    build::selecting(Cargo::from_env().command("expand", args), args, None)
}

/// The folders that may hold what the project's setup has left: its own target folder, and the one
/// that cargo uses now. Nothing is compiled.
pub(crate) fn folders(args: &CargoArgs) -> Result<[PathBuf; 2], ProgramError> {
    let metadata = metadata::read(&Cargo::from_env(), args)?;
    Ok([metadata.workspace_root.join("target"), metadata.target_directory])
}

/// The cargo that started this command, else the one in the path.
struct Cargo(OsString);

impl Cargo {
    fn from_env() -> Self {
        Self(std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
    }

    fn command(&self, subcommand: &str, args: &CargoArgs) -> Command {
        let mut command = Command::new(&self.0);
        command.arg(subcommand);
        let flags =
            [("--locked", args.locked), ("--offline", args.offline), ("--frozen", args.frozen)];
        command.args(flags.iter().filter(|(_, on)| *on).map(|(flag, _)| flag));
        if let Some(path) = &args.manifest_path {
            command.arg("--manifest-path").arg(path);
        }
        command
    }

    fn missing(&self, what: &'static str, source: std::io::Error) -> ProgramError {
        ProgramError::NoCargo { cargo: Path::new(&self.0).to_owned(), what, source }
    }
}
