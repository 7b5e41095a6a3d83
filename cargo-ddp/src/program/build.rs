//! `cargo build`, and what its messages say about the result.

use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

use super::select::Chosen;
use super::{Cargo, Program, ProgramError};
use crate::cli::CargoArgs;

/// The messages of cargo that matter here; all others are `Other`.
#[derive(Debug, Deserialize)]
#[serde(tag = "reason", rename_all = "kebab-case")]
enum Message {
    CompilerArtifact {
        target: ArtifactTarget,
        executable: Option<PathBuf>,
        manifest_path: PathBuf,
    },
    BuildScriptExecuted {
        package_id: String,
        linked_paths: Vec<String>,
    },
    #[serde(other)]
    Other,
}

#[derive(Debug, Deserialize)]
struct ArtifactTarget {
    kind: Vec<String>,
}

/// Builds `chosen` (or what `args` names by itself) and finds the executable.
pub(super) fn build(
    cargo: &Cargo,
    args: &CargoArgs,
    chosen: Option<&Chosen>,
    target_directory: &Path,
) -> Result<Program, ProgramError> {
    let mut child = command(cargo, args, chosen)
        .stdout(Stdio::piped())
        .spawn()
        .map_err(|source| cargo.missing("build", source))?;
    let mut found = Found::default();
    if let Some(stdout) = child.stdout.take() {
        for line in BufReader::new(stdout).split(b'\n') {
            let line = line.map_err(|source| cargo.missing("build", source))?;
            found.take(&line, target_directory);
        }
    }
    let status = child.wait().map_err(|source| cargo.missing("build", source))?;
    if !status.success() {
        let code = status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(101);
        return Err(ProgramError::Build { code });
    }
    found.program()
}

fn command(cargo: &Cargo, args: &CargoArgs, chosen: Option<&Chosen>) -> Command {
    let mut command = cargo.command("build", args);
    // Compiler messages still go to the terminal as text; stdout carries the rest as JSON.
    command.arg("--message-format=json-render-diagnostics");
    if args.quiet {
        command.arg("--quiet");
    }
    selecting(command, args, chosen)
}

/// The command, with the options that choose a program and how it is built.
pub(super) fn selecting(
    mut command: Command,
    args: &CargoArgs,
    chosen: Option<&Chosen>,
) -> Command {
    let mut option = |name: &str, value: Option<&str>| {
        if let Some(value) = value {
            command.args([name, value]);
        }
    };
    option("--package", args.package.as_deref().or(chosen.map(|chosen| chosen.package.as_str())));
    option("--bin", args.bin.as_deref().or(chosen.map(|chosen| chosen.bin.as_str())));
    option("--example", args.example.as_deref());
    option("--profile", args.profile.as_deref());
    option("--target", args.target.as_deref());
    option("--jobs", args.jobs.as_deref());
    for features in &args.features {
        option("--features", Some(features));
    }
    if let Some(dir) = &args.target_dir {
        command.arg("--target-dir").arg(dir);
    }
    let flags = [
        ("--release", args.release),
        ("--all-features", args.all_features),
        ("--no-default-features", args.no_default_features),
    ];
    command.args(flags.iter().filter(|(_, on)| *on).map(|(flag, _)| flag));
    command.args(std::iter::repeat_n("--verbose", args.verbose.into()));
    command
}

/// What the messages have told so far.
#[derive(Debug, Default)]
struct Found {
    executables: Vec<(PathBuf, PathBuf)>,
    library_dirs: Vec<PathBuf>,
}

impl Found {
    /// Takes one line of cargo's output in. A line that is no message is the output of something
    /// that cargo ran, and is none of our business.
    fn take(&mut self, line: &[u8], target_directory: &Path) {
        match serde_json::from_slice(line) {
            Ok(Message::CompilerArtifact {
                target,
                executable: Some(executable),
                manifest_path,
            }) if target.kind.iter().any(|kind| kind == "bin" || kind == "example") => {
                self.executables.push((executable, manifest_path));
            }
            Ok(Message::BuildScriptExecuted { package_id, linked_paths }) => {
                let torch = package_name(&package_id) == "torch-sys";
                let dirs = linked_paths.iter().map(|path| library_dir(path));
                for dir in dirs.filter(|dir| torch || dir.starts_with(target_directory)) {
                    if !self.library_dirs.iter().any(|known| known == dir) {
                        self.library_dirs.push(dir.to_owned());
                    }
                }
            }
            _ => {}
        }
    }

    fn program(mut self) -> Result<Program, ProgramError> {
        match self.executables.len() {
            0 => Err(ProgramError::NothingBuilt),
            1 => {
                let (path, manifest) = self.executables.remove(0);
                let library_dirs = self.library_dirs;
                Ok(Program { path, library_dirs, manifest: Some(manifest) })
            }
            _ => {
                let name = |(path, _): &(PathBuf, PathBuf)| path.display().to_string();
                Err(ProgramError::SeveralBuilt(self.executables.iter().map(name).collect()))
            }
        }
    }
}

/// The folder of a linked path such as `native=/opt/libtorch/lib`.
fn library_dir(linked_path: &str) -> &Path {
    let kinds = ["native=", "dependency=", "crate=", "framework=", "all="];
    let dir = kinds.iter().find_map(|kind| linked_path.strip_prefix(kind));
    Path::new(dir.unwrap_or(linked_path))
}

/// The name in a package id: `torch-sys` of `registry+..#torch-sys@0.26.0`, of
/// `path+file:///x/torch-sys#0.26.0`, and of `torch-sys 0.26.0 (..)`, as cargo wrote it before
/// 1.77.
fn package_name(id: &str) -> &str {
    let Some((url, fragment)) = id.split_once('#') else {
        return id.split(' ').next().unwrap_or(id);
    };
    match fragment.split_once('@') {
        Some((name, _)) => name,
        None if fragment.starts_with(|first: char| first.is_ascii_digit()) => {
            let path = url.split('?').next().unwrap_or(url);
            path.rsplit('/').next().unwrap_or(path)
        }
        None => fragment,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn artifact(kind: &str, executable: Option<&str>) -> String {
        let target = json!({"kind": [kind], "name": "x"});
        let message = json!({
            "reason": "compiler-artifact", "package_id": "p", "manifest_path": "/w/Cargo.toml",
            "target": target, "executable": executable,
        });
        message.to_string()
    }

    fn script(package: &str, linked_paths: &[&str]) -> String {
        let message = json!({
            "reason": "build-script-executed", "package_id": format!("registry+https://r#{package}"),
            "linked_libs": [], "linked_paths": linked_paths, "cfgs": [], "env": [], "out_dir": "/o",
        });
        message.to_string()
    }

    fn found(lines: &[String]) -> Found {
        let mut found = Found::default();
        for line in lines {
            found.take(line.as_bytes(), Path::new("/w/target"));
        }
        found
    }

    #[test]
    fn the_executable_and_the_folders_of_its_libraries() {
        let lines = [
            artifact("lib", None),
            artifact("custom-build", Some("/w/target/debug/build-script")),
            script("z@1.0.0", &["native=/usr/lib", "native=/w/target/debug/build/z/out"]),
            script("torch-sys@0.26.0", &["native=/opt/torch/lib", "native=/opt/torch/lib"]),
            "not json".to_owned(),
            artifact("bin", Some("/w/target/debug/x")),
        ];
        let program = found(&lines).program().unwrap();
        assert_eq!(program.path, Path::new("/w/target/debug/x"));
        let dirs = [Path::new("/w/target/debug/build/z/out"), Path::new("/opt/torch/lib")];
        assert_eq!(program.library_dirs, dirs);
    }

    #[test]
    fn none_or_several_executables_are_told() {
        let library = [artifact("lib", None)];
        assert!(matches!(found(&library).program(), Err(ProgramError::NothingBuilt)));
        let two = [artifact("bin", Some("/w/x")), artifact("example", Some("/w/y"))];
        let text = found(&two).program().unwrap_err().to_string();
        assert!(text.ends_with("--package and --bin:\n    /w/x\n    /w/y"), "{text}");
    }

    #[test]
    fn package_ids_of_all_forms() {
        let cases = [
            ("registry+https://r/i#torch-sys@0.26.0", "torch-sys"),
            ("path+file:///x/torch-sys#0.26.0", "torch-sys"),
            ("git+https://h/o/torch-sys?branch=main#0.26.0", "torch-sys"),
            ("path+file:///x/y#torch-sys@0.26.0", "torch-sys"),
            ("torch-sys 0.26.0 (registry+https://r/i)", "torch-sys"),
        ];
        for (id, name) in cases {
            assert_eq!(package_name(id), name, "{id}");
        }
    }
}
