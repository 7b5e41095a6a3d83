//! The last lines of a stream, made fit for a report.

use std::collections::VecDeque;

/// How many lines are kept.
const KEPT: usize = 40;
/// How much of a line is kept, in bytes.
const WIDEST: usize = 500;

/// The last lines of a stream.
#[derive(Debug, Default)]
pub(crate) struct Tail {
    lines: VecDeque<String>,
}

impl Tail {
    /// Takes a line in, as a terminal would have left it.
    pub(super) fn push(&mut self, line: &[u8]) {
        if self.lines.len() == KEPT {
            self.lines.pop_front();
        }
        self.lines.push_back(readable(line));
    }

    /// The lines, without blank ones at the end.
    pub(crate) fn lines(&self) -> Vec<String> {
        let blank = self.lines.iter().rev().take_while(|line| line.trim().is_empty()).count();
        self.lines.iter().take(self.lines.len() - blank).cloned().collect()
    }
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
    fn a_line_reads_as_on_a_terminal() {
        assert_eq!(readable(b"10%\r20%\r\n"), "20%");
        assert_eq!(readable(b"\x1b[1;31merror\x1b[0m: no\x07\n"), "error: no");
        assert_eq!(readable(b"a\xffb\n"), "a\u{fffd}b");
        assert_eq!(readable(b"\x1b["), "");
    }
}
