//! Styled lines about what this program does, on standard error; plain where that is no terminal.

use std::io::IsTerminal;
use std::sync::LazyLock;

static STYLED: LazyLock<bool> = LazyLock::new(|| {
    let set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    set("CLICOLOR_FORCE") || (!set("NO_COLOR") && std::io::stderr().is_terminal())
});

const BOLD: &str = "1";
const GREEN: &str = "1;32";
const RED: &str = "1;31";
const CYAN: &str = "36";

fn paint(code: &str, text: &str) -> String {
    if *STYLED { format!("\x1b[{code}m{text}\x1b[0m") } else { text.to_owned() }
}

/// The head of a part of the work.
pub(crate) fn heading(text: &str) {
    eprintln!("{}", paint(BOLD, &format!("== {text}")));
}

/// What is being done, and with what: `verb` stands right-aligned as cargo's do.
pub(crate) fn doing(verb: &str, what: &str) {
    eprintln!("{} {what}", paint(GREEN, &format!("{verb:>12}")));
}

/// Something to know that is no failure.
pub(crate) fn note(text: &str) {
    eprintln!("{} {text}", paint(CYAN, &format!("{:>12}", "Note")));
}

/// The error with its causes, each on a line.
pub(crate) fn failure(error: &anyhow::Error) {
    let mut lines = error.chain().map(ToString::to_string);
    if let Some(first) = lines.next() {
        eprintln!("{} {first}", paint(RED, "error:"));
    }
    for cause in lines {
        eprintln!("  caused by: {cause}");
    }
}
