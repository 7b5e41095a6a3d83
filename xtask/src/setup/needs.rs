//! What must be on the machine already: a C++20 compiler, and python3 with venv where torch is to be installed.

use std::ffi::OsString;
use std::path::Path;
use std::process::{Command, Stdio};

use thiserror::Error;

/// What is missing, and how to get it.
#[derive(Debug, Error, PartialEq, Eq)]
pub(crate) enum Missing {
    #[error(
        "no C++ compiler: `{0}` cannot be started; install one (Debian, Ubuntu: `apt-get install g++`; Fedora: `dnf install gcc-c++`) or let CXX name it"
    )]
    Compiler(String),
    #[error(
        "`{0}` does not compile C++20, which the headers of libtorch need; install g++ 11 or clang 14 or newer, or let CXX name it"
    )]
    Standard(String),
    #[error(
        "`{0}` cannot be started; install Python 3.10 or newer (Debian, Ubuntu: `apt-get install python3 python3-venv`), or let LIBTORCH name a libtorch folder"
    )]
    Python(String),
    #[error(
        "`{0}` cannot make virtual environments; install its venv module (Debian, Ubuntu: `apt-get install python3-venv`), or let LIBTORCH name a libtorch folder"
    )]
    Venv(String),
    #[error(
        "`{0}` is older than Python 3.10, which PyTorch needs; put a newer python3 first in PATH, or let LIBTORCH name a libtorch folder"
    )]
    OldPython(String),
}

/// Whether the C++ compiler that the build will use is there and takes C++20.
pub(crate) fn compiler() -> Result<(), Missing> {
    let program = std::env::var_os("CXX").filter(|cxx| !cxx.is_empty());
    compiler_is_usable(&program.unwrap_or_else(|| OsString::from("c++")))
}

/// `cxx` may hold a launcher before the compiler, as in `ccache g++`.
fn compiler_is_usable(cxx: &OsString) -> Result<(), Missing> {
    let text = cxx.to_string_lossy().into_owned();
    let mut words = text.split_whitespace();
    let mut command = Command::new(words.next().unwrap_or("c++"));
    command.args(words).args(["-std=c++20", "-fsyntax-only", "-x", "c++", "/dev/null"]);
    match quiet(&mut command) {
        None => Err(Missing::Compiler(text)),
        Some(false) => Err(Missing::Standard(text)),
        Some(true) => Ok(()),
    }
}

/// Whether `python` can make a virtual environment that PyTorch can be installed in.
pub(crate) fn venv(python: &Path) -> Result<(), Missing> {
    let name = || python.display().to_string();
    let ask = |code| quiet(Command::new(python).args(["-c", code]));
    match ask("import sys; sys.exit(sys.version_info < (3, 10))") {
        None => return Err(Missing::Python(name())),
        Some(false) => return Err(Missing::OldPython(name())),
        Some(true) => {}
    }
    match ask("import venv, ensurepip") {
        Some(true) => Ok(()),
        _ => Err(Missing::Venv(name())),
    }
}

/// Whether the command succeeds; none when it cannot be started.
fn quiet(command: &mut Command) -> Option<bool> {
    let status = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).status();
    status.ok().map(|status| status.success())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::setup::scripts;

    fn program(dir: &Path, script: &str) -> std::path::PathBuf {
        scripts::program(dir, "program", script)
    }

    #[test]
    fn a_compiler_that_is_not_there_is_told_from_one_that_is_too_old() {
        let dir = tempfile::tempdir().unwrap();
        let gone = OsString::from("no-such-compiler");
        assert_eq!(compiler_is_usable(&gone), Err(Missing::Compiler("no-such-compiler".into())));
        let old = program(dir.path(), "exit 1").into_os_string();
        assert!(matches!(compiler_is_usable(&old), Err(Missing::Standard(_))));
        let with_launcher = OsString::from("env true");
        assert_eq!(compiler_is_usable(&with_launcher), Ok(()));
    }

    #[test]
    fn each_lack_of_python_has_its_own_text() {
        let dir = tempfile::tempdir().unwrap();
        assert!(matches!(venv(&dir.path().join("none")), Err(Missing::Python(_))));
        let old = program(dir.path(), "case \"$2\" in *version*) exit 1;; esac");
        assert!(matches!(venv(&old), Err(Missing::OldPython(_))));
        let bare = program(dir.path(), "case \"$2\" in *ensurepip*) exit 1;; esac");
        let text = venv(&bare).unwrap_err().to_string();
        assert!(text.contains("apt-get install python3-venv"), "{text}");
        assert_eq!(venv(&program(dir.path(), "exit 0")), Ok(()));
    }
}
