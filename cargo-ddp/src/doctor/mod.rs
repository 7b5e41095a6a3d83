//! `cargo ddp doctor`: what this machine has, and what is missing, with the cure.

mod finding;
mod gpu;
mod machine;
mod nccl;
mod tools;
mod torch;

use std::io::{IsTerminal, Write};

use finding::{Finding, State};

use crate::cli::DoctorArgs;
use crate::style::{Paint, paint};

/// Prints all findings; 1 when something is missing that training cannot do without.
pub(crate) fn run(args: &DoctorArgs) -> u8 {
    let colour = std::io::stdout().is_terminal()
        && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let mut missing = false;
    let mut show = |finding: Finding| {
        missing |= finding.state == State::Missing;
        // Whoever has closed the pipe does not want to know.
        let _ = writeln!(std::io::stdout(), "{}", line(&finding, colour));
    };
    tools::check().into_iter().for_each(&mut show);
    let torch = torch::find(args.manifest_path.as_deref());
    show(torch::finding(torch.as_ref()));
    machine::check().into_iter().for_each(&mut show);
    gpu::check(torch.ok().as_ref()).into_iter().for_each(&mut show);
    u8::from(missing)
}

fn line(finding: &Finding, colour: bool) -> String {
    let (word, colour_of_word) = match finding.state {
        State::Ok => ("ok", Paint::Good),
        State::Warn => ("warn", Paint::Odd),
        State::Missing => ("missing", Paint::Bad),
    };
    let word = paint(colour, colour_of_word, format_args!("{word:<7}"));
    let mut line = format!("{word}  {:<13}  {}", finding.subject, finding.text);
    if let Some(cure) = &finding.cure {
        line.push_str(&format!("\n{:24} -> {cure}", ""));
    }
    line
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_has_state_subject_text_and_cure() {
        assert_eq!(line(&Finding::ok("memory", "3 GiB"), false), "ok       memory         3 GiB");
        let text = line(&Finding::missing("rustc", "not found", "install it"), false);
        let expected = "missing  rustc          not found\n                         -> install it";
        assert_eq!(text, expected);
        assert!(line(&Finding::ok("x", "y"), true).starts_with("\u{1b}[1;32mok"));
    }
}
