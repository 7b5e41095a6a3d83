//! The worker: one process, one case, one rank of a job that a test has started.
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut args = std::env::args().skip(1);
    let Some(case) = args.next() else {
        eprintln!("usage: ddp-worker CASE [ARGS]; cases: {}", ddp_tests::cases::names().join(" "));
        return ExitCode::from(2);
    };
    let outcome = ddp_tests::kernels::add_if_asked()
        .and_then(|()| ddp_tests::cases::run(&case, &args.collect::<Vec<_>>()));
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("error: {error:#}");
            ExitCode::FAILURE
        }
    }
}
