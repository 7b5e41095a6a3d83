//! A step: a name, a command, and what to do when it fails.

use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use thiserror::Error;

use crate::style;

/// The command's own last lines said it all; nothing is to be printed after them.
#[derive(Debug, Error)]
#[error("the command failed; its own words are above")]
pub(crate) struct Said;

/// One command of a list of checks.
pub(crate) struct Step {
    pub(crate) name: &'static str,
    pub(crate) command: Command,
    pub(crate) hint: &'static str,
}

impl Step {
    /// A step from its parts.
    pub(crate) fn new(name: &'static str, command: Command, hint: &'static str) -> Self {
        Self { name, command, hint }
    }

    /// Runs the command with this process's terminal and says how long it took.
    ///
    /// # Errors
    /// When the command cannot be started or fails: the text holds the command line and the hint.
    pub(crate) fn run(mut self) -> Result<Duration> {
        let line = render(&self.command);
        style::doing(self.name, &line);
        let start = Instant::now();
        let status = self.command.status().with_context(|| {
            format!("step `{}`: `{line}` could not be started; {}", self.name, self.hint)
        })?;
        if !status.success() {
            bail!("step `{}` failed ({status}): {line}\n  hint: {}", self.name, self.hint);
        }
        Ok(start.elapsed())
    }

    /// As `run`, for a command whose closing line is to stay the last one: the hint comes first.
    ///
    /// # Errors
    /// [`Said`] when the command fails; a text when it cannot be started.
    pub(crate) fn run_as_last(mut self) -> Result<()> {
        style::doing(self.name, &render(&self.command));
        style::note(self.hint);
        let status = self.command.status().with_context(|| {
            format!("step `{}`: `{}` could not be started", self.name, render(&self.command))
        })?;
        if status.success() { Ok(()) } else { Err(Said.into()) }
    }
}

/// The command as one would type it: program name without its folder, then the arguments.
pub(crate) fn render(command: &Command) -> String {
    let program = std::path::Path::new(command.get_program());
    let name = program.file_name().unwrap_or(command.get_program());
    std::iter::once(name)
        .chain(command.get_args())
        .map(|part| quote(&part.to_string_lossy()))
        .collect::<Vec<_>>()
        .join(" ")
}

fn quote(part: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !part.is_empty() && part.chars().all(plain) { part.to_owned() } else { format!("'{part}'") }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_line_can_be_typed_again() {
        let mut command = Command::new("/usr/bin/cargo");
        command.args(["doc", "--config", "a b", ""]);
        assert_eq!(render(&command), "cargo doc --config 'a b' ''");
    }

    #[test]
    fn a_failing_step_names_itself_its_command_and_the_hint() {
        let step = Step::new("Lint", Command::new("false"), "mend the lint");
        let text = step.run().unwrap_err().to_string();
        for part in ["Lint", "false", "exit status: 1", "mend the lint"] {
            assert!(text.contains(part), "{part:?} is missing in {text:?}");
        }
    }

    #[test]
    fn a_program_that_is_not_there_is_named_with_the_hint() {
        let step = Step::new("Deny", Command::new("no-such-program"), "install it");
        let text = step.run().unwrap_err().to_string();
        assert!(text.contains("no-such-program") && text.contains("install it"), "{text}");
    }

    #[test]
    fn a_passing_step_passes() {
        assert!(Step::new("Nothing", Command::new("true"), "").run().is_ok());
    }
}
