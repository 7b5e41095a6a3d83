//! Marks each line of a rank's output with the rank, however the line is put together.

use std::fmt;
use std::sync::{Mutex, PoisonError};

/// Where text goes.
#[derive(Clone, Copy, Debug)]
pub(super) enum Stream {
    /// Standard output.
    Out,
    /// Standard error.
    Err,
}

/// Where the cursor of a stream stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cursor {
    /// At the start of a line: what comes next begins one.
    LineStart,
    /// Within a line that has its mark.
    InLine,
}

static OUT: Mutex<Cursor> = Mutex::new(Cursor::LineStart);
static ERR: Mutex<Cursor> = Mutex::new(Cursor::LineStart);

/// Writes `args` to `stream`, each line marked with `rank`.
///
/// A line that is printed in parts has one mark. The macros of std do the writing, so that a test harness
/// captures it, and each call is one write, so that a line is not torn.
pub(super) fn write(stream: Stream, rank: usize, args: fmt::Arguments<'_>) {
    // Formatted before the lock is taken: a `Display` may itself print.
    let text = args.to_string();
    let cursor = match stream {
        Stream::Out => &OUT,
        Stream::Err => &ERR,
    };
    let mut cursor = cursor.lock().unwrap_or_else(PoisonError::into_inner);
    let marked = mark(&text, rank, &mut cursor);
    match stream {
        Stream::Out => std::print!("{marked}"),
        Stream::Err => std::eprint!("{marked}"),
    }
}

/// `text` with a mark before the first character of each line. A carriage return begins a line, too, as in
/// `\r3/10`; an empty line stays empty.
fn mark(text: &str, rank: usize, cursor: &mut Cursor) -> String {
    let mut marked = String::with_capacity(text.len() + 16);
    for part in text.split_inclusive(['\n', '\r']) {
        let begins_line = *cursor == Cursor::LineStart && !part.starts_with(['\n', '\r']);
        if begins_line {
            marked.push_str(&format!("[rank {rank}] "));
        }
        marked.push_str(part);
        *cursor = if part.ends_with(['\n', '\r']) { Cursor::LineStart } else { Cursor::InLine };
    }
    marked
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{Cursor, mark};

    /// What a terminal gets when the parts are printed one after the other by rank 1.
    fn printed(parts: &[&str]) -> String {
        let mut cursor = Cursor::LineStart;
        parts.iter().map(|part| mark(part, 1, &mut cursor)).collect()
    }

    #[test]
    fn each_line_has_a_mark() {
        assert_eq!(printed(&["a\nb\n"]), "[rank 1] a\n[rank 1] b\n");
    }

    #[test]
    fn a_line_in_parts_has_one_mark() {
        assert_eq!(printed(&["a", " b", "", " c\n", "d"]), "[rank 1] a b c\n[rank 1] d");
    }

    #[test]
    fn a_counter_that_overwrites_itself_keeps_its_mark() {
        assert_eq!(printed(&["\r1/2", "\r2/2", "\r\n"]), "\r[rank 1] 1/2\r[rank 1] 2/2\r\n");
    }

    #[test]
    fn an_empty_line_stays_empty() {
        assert_eq!(printed(&["\n", "\r\n", ""]), "\n\r\n");
    }

    proptest! {
        #[test]
        fn marks_do_not_depend_on_how_the_text_is_cut(parts in prop::collection::vec("[ab\r\n]{0,4}", 0..8)) {
            let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
            prop_assert_eq!(printed(&parts), printed(&[&parts.concat()]));
            prop_assert_eq!(printed(&parts).replace("[rank 1] ", ""), parts.concat());
        }
    }
}
