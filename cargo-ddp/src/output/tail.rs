//! The last lines of a stream, made fit for a report.

use std::collections::VecDeque;

/// How many lines are kept.
const KEPT: usize = 40;
/// How much of a line is kept, in bytes.
const WIDEST: usize = 500;

/// The last lines of a stream. The frames of backtraces are left out: they are in the output
/// itself, and one backtrace would take the place of all that was said before it.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    lines: VecDeque<String>,
    in_backtrace: bool,
}

impl Tail {
    /// Takes a line in, as a terminal would have left it.
    pub(super) fn push(&mut self, line: &[u8]) {
        let line = readable(line);
        self.in_backtrace = begins_backtrace(&line) || self.in_backtrace && is_of_backtrace(&line);
        if self.in_backtrace {
            return;
        }
        if self.lines.len() == KEPT {
            self.lines.pop_front();
        }
        self.lines.push_back(line);
    }

    /// The lines, without blank ones at the end.
    pub(crate) fn lines(&self) -> Vec<String> {
        let blank = self.lines.iter().rev().take_while(|line| line.trim().is_empty()).count();
        self.lines.iter().take(self.lines.len() - blank).cloned().collect()
    }
}

/// The head of a backtrace: of a Rust panic, of an `anyhow` error, or of a libtorch exception.
fn begins_backtrace(line: &str) -> bool {
    let line = line.trim();
    line.eq_ignore_ascii_case("stack backtrace:")
        || line.starts_with("Exception raised from ") && line.ends_with("(most recent call first):")
}

/// A frame, its place, what Rust notes below the last one, or a blank line.
fn is_of_backtrace(line: &str) -> bool {
    let line = line.trim_start();
    let number = line.trim_start_matches(|char: char| char.is_ascii_digit());
    line.is_empty()
        || (number.len() < line.len() && number.starts_with(": "))
        || line.starts_with("at ")
        || line.starts_with("frame #")
        || line.starts_with("note: Some details are omitted")
}

/// `line` as text: what a carriage return has overwritten, escape sequences and control characters
/// are left out, and what is no UTF-8 is marked.
fn readable(line: &[u8]) -> String {
    let line = line.trim_ascii_end();
    let shown = line.rsplit(|byte| *byte == b'\r').next().unwrap_or(line);
    let shown = &shown[..shown.len().min(WIDEST)];
    let mut text = String::with_capacity(shown.len());
    let decoded = String::from_utf8_lossy(shown);
    let mut chars = decoded.chars();
    while let Some(char) = chars.next() {
        match char {
            '\u{1b}' => skip_sequence(&mut chars),
            '\t' => text.push(char),
            _ if char.is_control() => {}
            _ => text.push(char),
        }
    }
    text
}

/// Skips the rest of an escape sequence: of `ESC [ 1 ; 31 m` everything up to the letter.
fn skip_sequence(chars: &mut std::str::Chars<'_>) {
    if chars.next() == Some('[') {
        let _letter = chars.find(|char| ('@'..='~').contains(char));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_lines_stay() {
        let mut tail = Tail::default();
        for number in 0..100 {
            tail.push(format!("{number}\n").as_bytes());
        }
        tail.push(b"\n");
        let lines = tail.lines();
        assert_eq!(lines.len(), KEPT - 1, "the blank line took a place");
        assert_eq!(lines.last().map(String::as_str), Some("99"));
    }

    #[test]
    fn frames_of_backtraces_are_left_out() {
        let text = "before
thread 'main' panicked at src/main.rs:2:5:
no such column
stack backtrace:
   0: rust_begin_unwind
             at /rustc/1/library/std/src/panicking.rs:689:5
note: Some details are omitted, run with `RUST_BACKTRACE=full` for a verbose backtrace.
Exception raised from check at /pytorch/c10/x.cpp:3 (most recent call first):
frame #0: c10::Error::Error() + 0x9
frame #1: <unknown function> + 0x1 (0x7 in /lib/libc.so.6)

Error: no column

Stack backtrace:
   0: main
  18: _start
after";
        let mut tail = Tail::default();
        text.lines().for_each(|line| tail.push(line.as_bytes()));
        let expected = [
            "before",
            "thread 'main' panicked at src/main.rs:2:5:",
            "no such column",
            "Error: no column",
            "",
            "after",
        ];
        assert_eq!(tail.lines(), expected);
    }

    #[test]
    fn a_line_reads_as_on_a_terminal() {
        assert_eq!(readable(b"10%\r20%\r\n"), "20%");
        assert_eq!(readable(b"\x1b[1;31merror\x1b[0m: no\x07\n"), "error: no");
        assert_eq!(readable(b"a\xffb\n"), "a\u{fffd}b");
        assert_eq!(readable(b"\x1b["), "");
    }
}
