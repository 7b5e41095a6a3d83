//! Colour on the launcher's own lines, where a terminal shows them.

use std::fmt;
use std::io::{IsTerminal, Write};

/// Text in bold red, green or yellow, or plain.
#[derive(Clone, Copy)]
pub(crate) enum Paint {
    Bad,
    Good,
    Odd,
}

/// Whether colours are wanted on stderr: a terminal, and no `NO_COLOR`.
pub(crate) fn wanted() -> bool {
    std::io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}

/// `text` in colour when `on`.
pub(crate) fn paint(on: bool, paint: Paint, text: impl fmt::Display) -> String {
    let code = match paint {
        Paint::Bad => "1;31",
        Paint::Good => "1;32",
        Paint::Odd => "1;33",
    };
    if on { format!("\u{1b}[{code}m{text}\u{1b}[0m") } else { text.to_string() }
}

/// Prints `error: text`, as cargo does.
pub(crate) fn error(text: &str) {
    say(&format!("{}: {text}", paint(wanted(), Paint::Bad, "error")));
}

/// Prints `warning: text`, as cargo does.
pub(crate) fn warning(text: &str) {
    say(&format!("{}: {text}", paint(wanted(), Paint::Odd, "warning")));
}

/// Prints a status line with its verb right-aligned, as cargo does.
pub(crate) fn status(verb: &str, text: &str) {
    say(&format!("{} {text}", paint(wanted(), Paint::Good, format_args!("{verb:>12}"))));
}

/// Prints one text to stderr in one write. A stderr that is closed is no reason to fail.
pub(crate) fn say(text: &str) {
    let _ = std::io::stderr().lock().write_all(format!("{text}\n").as_bytes());
}
