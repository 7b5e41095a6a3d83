//! `cargo ddp expand`: what the attribute makes of a program, shown by cargo-expand.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::cli::ExpandArgs;
use crate::error::RunError;
use crate::program;

/// The program that cargo starts for `cargo expand`.
const TOOL: &str = "cargo-expand";

/// Shows the expansion; the exit code is cargo-expand's.
pub(crate) fn run(args: &ExpandArgs) -> Result<u8, RunError> {
    let var = |name: &str| std::env::var_os(name);
    let (path, cargo_home, home) = (var("PATH"), var("CARGO_HOME"), var("HOME"));
    let home = cargo_home.map(PathBuf::from).or(home.map(|home| Path::new(&home).join(".cargo")));
    if !is_installed(path.as_deref(), home.as_deref()) {
        return Err(RunError::NoExpand);
    }
    let mut command = program::expand_command(&args.cargo);
    if args.lib {
        command.arg("--lib");
    }
    command.args(&args.item);
    let status = command
        .status()
        .map_err(|source| RunError::System { action: "run `cargo expand`", source })?;
    Ok(status.code().and_then(|code| u8::try_from(code).ok()).unwrap_or(1))
}

/// Whether cargo would find the tool: in the path, or among what `cargo install` has installed.
fn is_installed(path: Option<&OsStr>, cargo_home: Option<&Path>) -> bool {
    let installed = cargo_home.map(|home| home.join("bin"));
    let folders = path.into_iter().flat_map(std::env::split_paths).chain(installed);
    let name = format!("{TOOL}{}", std::env::consts::EXE_SUFFIX);
    folders.into_iter().any(|folder| folder.join(&name).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_tool_is_found_in_the_path_and_where_cargo_installs() {
        let dir = tempfile::tempdir().unwrap();
        let bin = dir.path().join("bin");
        std::fs::create_dir(&bin).unwrap();
        assert!(!is_installed(Some(bin.as_os_str()), Some(dir.path())));
        assert!(!is_installed(None, None));
        std::fs::write(bin.join(TOOL), "").unwrap();
        assert!(is_installed(Some(bin.as_os_str()), None));
        assert!(is_installed(Some(OsStr::new("/no/such:/folder")), Some(dir.path())));
    }
}
