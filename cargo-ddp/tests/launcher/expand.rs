//! `cargo ddp expand`: what cargo-expand is asked, with one that the tests make up.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use super::harness::{Job, launcher};

/// A launcher that finds nothing but what is in `dir`, and cargo.
fn with_path(options: &str, dir: &Path) -> Job {
    let cargo = Path::new(env!("CARGO")).parent().unwrap();
    let path =
        std::env::join_paths([dir, cargo, Path::new("/usr/bin"), Path::new("/bin")]).unwrap();
    // The cargo of the tests is asked, whatever started them.
    launcher(options).env("PATH", path).env("CARGO", env!("CARGO")).env("CARGO_HOME", dir)
}

#[test]
fn the_options_that_choose_a_program_are_passed_on() {
    let dir = tempfile::tempdir().unwrap();
    let tool = dir.path().join("cargo-expand");
    fs::write(&tool, "#!/bin/sh\necho \"$@\"\nexit 3\n").unwrap();
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
    let options = "ddp expand -p nets --bin train --features cuda,fast --no-default-features --release \
                   --offline --manifest-path Cargo.toml net::fit";
    let done = with_path(options, dir.path()).run();
    let expected = "expand --offline --manifest-path Cargo.toml --package nets --bin train --features \
                    cuda,fast --release --no-default-features net::fit\n";
    assert_eq!((done.stdout().as_str(), done.code), (expected, 3), "{}", done.stderr);
    let done = with_path("expand --lib", dir.path()).run();
    assert_eq!(done.stdout(), "expand --lib\n", "{}", done.stderr);
}

#[test]
fn without_the_tool_one_line_says_how_to_get_it() {
    let dir = tempfile::tempdir().unwrap();
    let done = with_path("expand", dir.path()).run();
    assert_eq!(done.code, 127);
    let expected =
        "error: cargo-expand is not installed; `cargo install cargo-expand` provides it\n";
    assert_eq!((done.stdout().as_str(), done.stderr.as_str()), ("", expected));
}
