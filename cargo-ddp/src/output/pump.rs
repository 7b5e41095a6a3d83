//! Reads one stream of one rank to its end.

use std::fs::File;
use std::io::{Read, Write};
use std::sync::{Arc, Mutex, PoisonError};

use super::SharedTail;
use super::lines::Lines;
use super::route::{Route, Stream};

/// Where the bytes of one stream go.
pub(super) struct Sink {
    pub(super) rank: usize,
    pub(super) stream: Stream,
    pub(super) route: Route,
    pub(super) log: Option<Arc<Mutex<File>>>,
    pub(super) tail: Option<SharedTail>,
}

/// Passes everything from `source` on until its end. An error of a target (a closed pipe, a full
/// disk) does not stop the reading: the rank must not block on a stream that nobody empties.
pub(super) fn pump(mut source: impl Read, sink: Sink) {
    let mut lines = Lines::default();
    let mut buffer = vec![0; 16 * 1024];
    let mut shown = Vec::new();
    loop {
        match source.read(&mut buffer) {
            Ok(0) => break,
            Ok(length) => {
                let chunk = &buffer[..length];
                if sink.route == Route::Tee {
                    write(sink.stream, chunk);
                }
                lines.feed(chunk, |line| sink.line(line, &mut shown));
            }
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            Err(_) => break,
        }
    }
    lines.finish(|line| sink.line(line, &mut shown));
}

impl Sink {
    fn line(&self, line: &[u8], shown: &mut Vec<u8>) {
        if self.route == Route::Prefix {
            shown.clear();
            shown.extend_from_slice(format!("[rank {}] ", self.rank).as_bytes());
            shown.extend_from_slice(line);
            write(self.stream, shown);
        }
        if let Some(log) = &self.log {
            let mut log = log.lock().unwrap_or_else(PoisonError::into_inner);
            let _ = log.write_all(line);
        }
        if let Some(tail) = &self.tail {
            tail.lock().unwrap_or_else(PoisonError::into_inner).push(line);
        }
    }
}

/// One write under the stream's lock, so that lines of two ranks never mix.
fn write(stream: Stream, bytes: &[u8]) {
    match stream {
        Stream::Stdout => {
            let mut stdout = std::io::stdout().lock();
            let _ = stdout.write_all(bytes).and_then(|()| stdout.flush());
        }
        Stream::Stderr => {
            let _ = std::io::stderr().lock().write_all(bytes);
        }
    }
}
