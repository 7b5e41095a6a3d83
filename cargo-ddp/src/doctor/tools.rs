//! Compilers: Rust's, and the C++ one for the bridge to libtorch.

use std::ffi::{OsStr, OsString};
use std::process::{Command, Stdio};

use super::finding::Finding;

const RUSTUP: &str = "install Rust from https://rustup.rs";

pub(super) fn check() -> Vec<Finding> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    vec![tool("rustc", OsStr::new("rustc"), RUSTUP), tool("cargo", &cargo, RUSTUP), compiler()]
}

fn tool(subject: &'static str, program: &OsStr, cure: &str) -> Finding {
    match first_line(program, &["--version"]) {
        Some(version) => Finding::ok(subject, version),
        None => Finding::missing(subject, "not found", cure),
    }
}

/// The compiler that a build would take: `CXX`, else `c++`.
fn compiler() -> Finding {
    let program = std::env::var_os("CXX").unwrap_or_else(|| OsString::from("c++"));
    let words = program.to_string_lossy().into_owned();
    let mut words = words.split_whitespace();
    // `CXX` may name a wrapper and arguments: "ccache g++".
    let (program, args) = (words.next().unwrap_or("c++"), words);
    let args: Vec<&str> = args.chain(["--version"]).collect();
    match first_line(OsStr::new(program), &args) {
        Some(version) => Finding::ok("C++ compiler", version),
        None => Finding::missing(
            "C++ compiler",
            format!("{program} not found"),
            "install g++ (Debian, Ubuntu: apt-get install g++) or set CXX",
        ),
    }
}

/// The first line that a program prints to stdout; `None` when it is not there or fails.
pub(super) fn first_line(program: &OsStr, args: &[&str]) -> Option<String> {
    let output = Command::new(program)
        .args(args)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout);
    let line = text.lines().next()?.trim().to_owned();
    (output.status.success() && !line.is_empty()).then_some(line)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_is_not_there_has_no_line() {
        assert_eq!(first_line(OsStr::new("/no/such"), &[]), None);
        assert_eq!(first_line(OsStr::new("false"), &[]), None);
        assert_eq!(first_line(OsStr::new("echo"), &["a\nb"]).as_deref(), Some("a"));
    }
}
