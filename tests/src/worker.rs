//! The worker: one process, one case, one rank of a job that a test has started.
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let Some(case) = args.next() else {
        eprintln!("usage: ddp-worker CASE [ARGS]; cases: {}", ddp_tests::cases::names().join(" "));
        return ExitCode::from(2);
    };
    match ddp_tests::cases::run(&case, &args.collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
