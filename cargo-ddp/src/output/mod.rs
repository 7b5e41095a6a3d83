//! Where the output of the ranks goes.
//!
//! Each piped stream of a rank has one thread (`pump`) that reads it to its end, cuts it into
//! lines (`lines`), shows and logs them, and keeps the last ones for the failure report
//! (`tail`). Nothing waits for a rank here: a stream that a leftover process holds open is
//! abandoned after a limit.

mod lines;
mod pump;
mod route;
mod tail;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Stdio};
use std::sync::{Arc, Mutex, mpsc};
use std::time::{Duration, Instant};

use pump::{Sink, pump};
pub(crate) use route::{Route, Stream, Terminals, routes};
pub(crate) use tail::Tail;

use crate::error::RunError;

/// A rank's last lines, shared with the thread that reads them.
pub(crate) type SharedTail = Arc<Mutex<Tail>>;

/// The output of all ranks of this host.
pub(crate) struct Output {
    finished: (mpsc::Sender<()>, mpsc::Receiver<()>),
    pumps: usize,
}

/// How one rank's streams are shown.
pub(crate) struct RankOutput {
    rank: usize,
    routes: [Route; 2],
    log: Option<Arc<Mutex<File>>>,
    /// The last lines of its stderr.
    pub(crate) tail: SharedTail,
}

impl RankOutput {
    /// Opens the log file of `rank`, if there is a folder for logs.
    pub(crate) fn new(
        rank: usize,
        routes: [Route; 2],
        log_dir: Option<&Path>,
    ) -> Result<Self, RunError> {
        let log = log_dir.map(|dir| log_file(dir, rank)).transpose()?;
        Ok(Self { rank, routes, log, tail: SharedTail::default() })
    }

    /// What the rank gets for its stdout and stderr.
    pub(crate) fn stdio(&self) -> [Stdio; 2] {
        self.routes.map(|route| match route {
            Route::Inherit => Stdio::inherit(),
            Route::Tee | Route::Prefix | Route::Hide => Stdio::piped(),
        })
    }
}

fn log_file(dir: &Path, rank: usize) -> Result<Arc<Mutex<File>>, RunError> {
    let io = |action, path: PathBuf| move |source| RunError::Io { action, path, source };
    fs::create_dir_all(dir).map_err(io("create", dir.to_owned()))?;
    let path = dir.join(format!("rank-{rank}.log"));
    let file = File::create(&path).map_err(io("write", path))?;
    Ok(Arc::new(Mutex::new(file)))
}

impl Output {
    pub(crate) fn new() -> Self {
        Self { finished: mpsc::channel(), pumps: 0 }
    }

    /// Starts reading what `child` writes.
    pub(crate) fn attach(&mut self, child: &mut Child, output: &RankOutput) -> io::Result<()> {
        if let Some(stdout) = child.stdout.take() {
            self.start(stdout, output, Stream::Stdout, output.routes[0])?;
        }
        if let Some(stderr) = child.stderr.take() {
            self.start(stderr, output, Stream::Stderr, output.routes[1])?;
        }
        Ok(())
    }

    fn start(
        &mut self,
        source: impl io::Read + Send + 'static,
        output: &RankOutput,
        stream: Stream,
        route: Route,
    ) -> io::Result<()> {
        let tail = matches!(stream, Stream::Stderr).then(|| Arc::clone(&output.tail));
        let sink = Sink { rank: output.rank, stream, route, log: output.log.clone(), tail };
        let finished = self.finished.0.clone();
        std::thread::Builder::new().name(format!("output of rank {}", output.rank)).spawn(
            move || {
                pump(source, sink);
                // Nobody waits any more when the job has been given up.
                let _ = finished.send(());
            },
        )?;
        self.pumps += 1;
        Ok(())
    }

    /// Waits until everything that was written has been shown, at most for `limit`.
    pub(crate) fn finish(self, limit: Duration) {
        let until = Instant::now() + limit;
        for _ in 0..self.pumps {
            let left = until.saturating_duration_since(Instant::now());
            if self.finished.1.recv_timeout(left).is_err() {
                return;
            }
        }
    }
}
