//! The command `cargo ddp`; everything it does is in the library beside it.

use std::process::ExitCode;

fn main() -> ExitCode {
    cargo_ddp::main(std::env::args_os())
}
