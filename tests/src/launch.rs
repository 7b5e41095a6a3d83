//! `cargo ddp` as the tests start it: the launcher itself, in a binary that cargo builds beside the worker.
fn main() -> std::process::ExitCode {
    cargo_ddp::main(std::env::args_os())
}
