//! Cuts a stream of bytes into lines: pure.

/// A line longer than this is passed on in pieces, so that memory stays bounded.
const LONGEST: usize = 64 * 1024;

/// The part of a line that has come so far.
#[derive(Debug, Default)]
pub(super) struct Lines {
    pending: Vec<u8>,
}

impl Lines {
    /// Calls `each` with every line that `chunk` completes, its line feed included.
    pub(super) fn feed(&mut self, chunk: &[u8], mut each: impl FnMut(&[u8])) {
        for piece in chunk.split_inclusive(|byte| *byte == b'\n') {
            self.pending.extend_from_slice(piece);
            if self.pending.ends_with(b"\n") {
                each(&self.pending);
                self.pending.clear();
            } else if self.pending.len() >= LONGEST {
                self.finish(&mut each);
            }
        }
    }

    /// Calls `each` with what has no line feed yet, and gives it one.
    pub(super) fn finish(&mut self, mut each: impl FnMut(&[u8])) {
        if !self.pending.is_empty() {
            self.pending.push(b'\n');
            each(&self.pending);
            self.pending.clear();
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn lines(chunks: &[&[u8]]) -> Vec<Vec<u8>> {
        let mut all = Vec::new();
        let mut lines = Lines::default();
        for chunk in chunks {
            lines.feed(chunk, |line| all.push(line.to_vec()));
        }
        lines.finish(|line| all.push(line.to_vec()));
        all
    }

    #[test]
    fn lines_are_cut_at_line_feeds_only() {
        assert_eq!(lines(&[b"a\r", b"b\nc"]), [b"a\rb\n".to_vec(), b"c\n".to_vec()]);
        assert!(lines(&[b""]).is_empty());
    }

    #[test]
    fn a_line_without_end_is_passed_on_in_pieces() {
        let chunk = vec![b'x'; 1000];
        let all = lines(&vec![chunk.as_slice(); 200]);
        assert!(all.len() > 2 && all.iter().all(|line| line.len() <= LONGEST + 1001));
        assert_eq!(all.concat().iter().filter(|byte| **byte == b'x').count(), 200_000);
    }

    proptest! {
        #[test]
        fn no_byte_is_lost(
            chunks in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..9), 0..9),
        ) {
            let slices: Vec<&[u8]> = chunks.iter().map(Vec::as_slice).collect();
            let mut expected = chunks.concat();
            if !expected.is_empty() && !expected.ends_with(b"\n") {
                expected.push(b'\n');
            }
            prop_assert_eq!(lines(&slices).concat(), expected);
        }
    }
}
