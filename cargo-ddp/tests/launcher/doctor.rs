//! The doctor's findings on machines that the tests make up.

use std::fs;

use super::harness::{Done, launcher};

fn line<'a>(done: &'a Done, text: &'a str, subject: &str) -> &'a str {
    let line = text.lines().find(|line| line.contains(subject));
    line.unwrap_or_else(|| panic!("nothing about {subject} in\n{text}{}", done.stderr))
}

#[test]
fn a_complete_machine_is_well() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("lib")).unwrap();
    fs::write(dir.path().join("lib/libtorch_cpu.so"), "").unwrap();
    fs::write(dir.path().join("build-version"), "2.13.0+cpu\n").unwrap();
    let job = launcher("ddp doctor").env("LIBTORCH", dir.path());
    let done = job.env_remove("LIBTORCH_USE_PYTORCH").env("CXX", "echo").run();
    let text = done.stdout();
    assert_eq!(done.code, 0, "{text}");
    let torch = line(&done, &text, "libtorch");
    assert!(torch.starts_with("ok ") && torch.contains("2.13.0+cpu for the CPU in "), "{torch}");
    for subject in ["rustc", "cargo", "C++", "cores", "memory", "shm", "loopback", "open files"] {
        line(&done, &text, subject);
    }
}

#[test]
fn what_is_missing_comes_with_its_cure_and_an_exit_code() {
    let job = launcher("doctor").env("LIBTORCH", "/no/torch").env("CXX", "/no/compiler -x");
    let done = job.env_remove("LIBTORCH_USE_PYTORCH").run();
    let text = done.stdout();
    assert_eq!(done.code, 1, "{text}");
    let torch = line(&done, &text, "libtorch");
    assert!(torch.starts_with("missing ") && torch.contains("/no/torch (named by LIBTORCH)"));
    assert!(line(&done, &text, "C++").contains("/no/compiler not found"), "{text}");
    assert!(text.contains("-> set LIBTORCH") && text.contains("-> install g++"), "{text}");
}
