//! Which program is built and run, by the rules of `cargo run`.

use std::fs;
use std::path::Path;

use super::harness::{Done, Job, launcher};

/// A package with the binaries named, each of which prints its name and rank.
fn package(dir: &Path, bins: &[&str], manifest: &str) {
    let text = format!("[package]\nname = \"p\"\nedition = \"2021\"\n{manifest}\n[workspace]\n");
    fs::create_dir_all(dir.join("src/bin")).unwrap();
    fs::write(dir.join("Cargo.toml"), text).unwrap();
    for bin in bins {
        let source = format!(
            "fn main() {{ let rank = std::env::var(\"RANK\").unwrap();\n\
             let args: Vec<String> = std::env::args().skip(1).collect();\n\
             println!(\"{bin} {{rank}} {{args:?}}\"); }}"
        );
        fs::write(dir.join(format!("src/bin/{bin}.rs")), source).unwrap();
    }
}

fn job(dir: &Path, options: &str) -> Job {
    launcher(&format!("ddp run -n 2 --offline {options}"))
        .dir(dir)
        .env("CARGO_TARGET_DIR", dir.join("target"))
}

fn lines(done: &Done) -> Vec<String> {
    let mut lines: Vec<_> = done.stdout().lines().map(str::to_owned).collect();
    lines.sort();
    lines
}

#[test]
fn the_default_binary_is_built_and_run_and_another_on_demand() {
    let dir = tempfile::tempdir().unwrap();
    package(dir.path(), &["one", "two"], "default-run = \"two\"");
    let done = job(dir.path(), "-q -- --epochs 5").run();
    assert_eq!((done.code, done.stderr.as_str()), (0, ""));
    assert_eq!(
        lines(&done),
        ["[rank 1] two 1 [\"--epochs\", \"5\"]", "two 0 [\"--epochs\", \"5\"]"]
    );
    let done = job(&dir.path().join("src"), "--bin one")
        .env("CARGO_TARGET_DIR", dir.path().join("target"))
        .run();
    assert_eq!(lines(&done), ["[rank 1] one 1 []", "one 0 []"]);
    assert!(done.stderr.contains("Running 2 ranks of `"), "{}", done.stderr);
}

#[test]
fn several_binaries_are_listed_with_the_flag_that_chooses() {
    let dir = tempfile::tempdir().unwrap();
    package(dir.path(), &["one", "two"], "");
    let done = job(dir.path(), "").run();
    assert_eq!(done.code, 101);
    let expected = "error: several binaries could be meant; choose one with --bin, or set \
                    default-run in Cargo.toml:\n    one\n    two\n";
    assert_eq!(done.stderr, expected);
}

#[test]
fn what_cargo_refuses_ends_the_launcher_with_cargos_code() {
    let dir = tempfile::tempdir().unwrap();
    package(dir.path(), &["one"], "");
    fs::write(dir.path().join("src/bin/one.rs"), "fn main() { missing() }").unwrap();
    let done = job(dir.path(), "").run();
    assert_eq!(done.code, 101);
    assert!(done.stderr.contains("cannot find function `missing`"), "{}", done.stderr);
    assert!(done.stderr.ends_with("error: the program could not be built\n"), "{}", done.stderr);
    let done = job(dir.path(), "--bin none").run();
    assert_eq!(done.code, 101);
    assert!(done.stderr.contains("no bin target named `none`"), "{}", done.stderr);
}

#[test]
fn a_folder_without_a_package_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let done = job(dir.path(), "").run();
    assert_eq!(done.code, 101);
    assert!(done.stderr.starts_with("error: could not find `Cargo.toml`"), "{}", done.stderr);
}
