//! Ranks as child processes.
use std::ffi::OsString;
use std::fmt::Write as _;
use std::io::Read;
use std::net::TcpListener;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How long a job may take unless it says otherwise: building nothing, training little, on two busy cores.
const LIMIT: Duration = Duration::from_secs(120);
/// Lines of each rank's output that a failure shows.
const TAIL: usize = 25;

/// Processes to start as the ranks of one job.
#[derive(Clone, Debug)]
pub struct Job {
    program: PathBuf,
    args: Vec<OsString>,
    env: Vec<(String, String)>,
    env_of: Vec<(usize, String, String)>,
    ranks: usize,
    /// Of each host; `None` when all are on one.
    per_host: Option<usize>,
    limit: Duration,
}

/// How one rank ended.
#[derive(Debug)]
pub struct RankOutcome {
    /// Its status; `None` when it ran into the limit and was killed.
    pub status: Option<ExitStatus>,
    /// All it printed.
    pub stdout: String,
    /// All it complained.
    pub stderr: String,
    /// From the start of the job to its end.
    pub took: Duration,
}

/// How a job ended.
#[derive(Debug)]
pub struct Outcome {
    /// By rank.
    pub ranks: Vec<RankOutcome>,
}

impl Job {
    /// The case `case` of the worker `program`, on one rank without a launcher's environment.
    #[must_use]
    pub fn new(program: impl Into<PathBuf>, case: &str) -> Self {
        Self {
            program: program.into(),
            args: vec![case.into()],
            env: Vec::new(),
            env_of: Vec::new(),
            ranks: 0,
            per_host: None,
            limit: LIMIT,
        }
    }

    /// Starts this many ranks, with the environment that torchrun would set. 0: one process without it.
    #[must_use]
    pub fn ranks(mut self, ranks: usize) -> Self {
        self.ranks = ranks;
        self
    }

    /// Lets the ranks believe that they are so many on each of several hosts, one host after another.
    #[must_use]
    pub fn ranks_per_host(mut self, ranks: usize) -> Self {
        self.per_host = Some(ranks);
        self
    }

    /// An argument after the case.
    #[must_use]
    pub fn arg(mut self, arg: impl Into<OsString>) -> Self {
        self.args.push(arg.into());
        self
    }

    /// A variable for all ranks.
    #[must_use]
    pub fn env(mut self, name: &str, value: &str) -> Self {
        self.env.push((name.to_owned(), value.to_owned()));
        self
    }

    /// A variable for one rank.
    #[must_use]
    pub fn env_of(mut self, rank: usize, name: &str, value: &str) -> Self {
        self.env_of.push((rank, name.to_owned(), value.to_owned()));
        self
    }

    /// Another limit.
    #[must_use]
    pub fn limit(mut self, limit: Duration) -> Self {
        self.limit = limit;
        self
    }

    /// Runs the job to its end.
    ///
    /// # Panics
    /// When a process cannot be started.
    #[must_use]
    pub fn run(&self) -> Outcome {
        let started = Instant::now();
        let port = free_port();
        let mut running: Vec<Running> =
            (0..self.ranks.max(1)).map(|rank| Running::start(self.command(rank, port))).collect();
        let deadline = started + self.limit;
        while running.iter().any(|rank| rank.end.is_none()) && Instant::now() < deadline {
            for rank in &mut running {
                rank.poll(started);
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        let took = started.elapsed();
        Outcome { ranks: running.into_iter().map(|rank| rank.finish(took)).collect() }
    }

    fn command(&self, rank: usize, port: u16) -> Command {
        let mut command = Command::new(&self.program);
        command.args(&self.args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        for name in ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK"] {
            command.env_remove(name);
        }
        command.env("OMP_NUM_THREADS", "1").env("TORCH_CPP_LOG_LEVEL", "FATAL");
        if self.ranks > 0 {
            let per_host = self.per_host.unwrap_or(self.ranks);
            command
                .env("RANK", rank.to_string())
                .env("LOCAL_RANK", (rank % per_host).to_string())
                .env("WORLD_SIZE", self.ranks.to_string())
                .env("LOCAL_WORLD_SIZE", per_host.to_string())
                .env("GROUP_RANK", (rank / per_host).to_string())
                .env("MASTER_ADDR", "127.0.0.1")
                .env("MASTER_PORT", port.to_string());
        }
        command.envs(self.env.iter().map(|(name, value)| (name, value)));
        let own = self.env_of.iter().filter(|(of, ..)| *of == rank);
        command.envs(own.map(|(_, name, value)| (name, value)));
        command
    }
}

/// A port that was free a moment ago. Rank 0 binds it by itself; a clash is one clear error line.
///
/// Not one that the kernel chooses: it gives those to connections as well, of which tests beside this one open many.
fn free_port() -> u16 {
    static NEXT: AtomicU16 = AtomicU16::new(0);
    // Below the kernel's own range (32768 and up), and apart from other test processes by their number.
    let first = u32::from(NEXT.fetch_add(1, Ordering::Relaxed)) + std::process::id() * 61;
    (0..12_000)
        .map(|next| 20_000 + ((first + next) % 12_000) as u16)
        .find(|&port| TcpListener::bind(("127.0.0.1", port)).is_ok())
        .expect("loopback has a free port")
}

/// A rank that has been started.
struct Running {
    child: Child,
    stdout: Option<JoinHandle<String>>,
    stderr: Option<JoinHandle<String>>,
    end: Option<(ExitStatus, Duration)>,
}

impl Running {
    fn start(mut command: Command) -> Self {
        let mut child =
            command.spawn().unwrap_or_else(|error| panic!("cannot start {command:?}: {error}"));
        let stdout = child.stdout.take().map(collect);
        let stderr = child.stderr.take().map(collect);
        Self { child, stdout, stderr, end: None }
    }

    fn poll(&mut self, started: Instant) {
        if self.end.is_none()
            && let Ok(Some(status)) = self.child.try_wait()
        {
            self.end = Some((status, started.elapsed()));
        }
    }

    fn finish(mut self, took: Duration) -> RankOutcome {
        if self.end.is_none() {
            // The limit was reached; both calls only fail when it has just ended by itself.
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
        let text = |thread: Option<JoinHandle<String>>| {
            thread.and_then(|thread| thread.join().ok()).unwrap_or_default()
        };
        RankOutcome {
            status: self.end.map(|(status, _)| status),
            took: self.end.map_or(took, |(_, took)| took),
            stdout: text(self.stdout.take()),
            stderr: text(self.stderr.take()),
        }
    }
}

fn collect(mut pipe: impl Read + Send + 'static) -> JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        // What was read before an error is what there is to show.
        let _ = pipe.read_to_end(&mut bytes);
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

impl Outcome {
    /// Requires that every rank ended well.
    ///
    /// # Panics
    /// Otherwise, with the log tail of each rank.
    #[track_caller]
    #[must_use]
    pub fn success(self) -> Self {
        let well = |rank: &RankOutcome| rank.status.is_some_and(|status| status.success());
        assert!(self.ranks.iter().all(well), "a rank failed\n{}", self.tails());
        self
    }

    /// Requires that every rank ended by itself and none ended well.
    ///
    /// # Panics
    /// Otherwise, with the log tail of each rank.
    #[track_caller]
    #[must_use]
    pub fn failure(self) -> Self {
        let badly = |rank: &RankOutcome| rank.status.is_some_and(|status| !status.success());
        assert!(self.ranks.iter().all(badly), "a rank did not fail\n{}", self.tails());
        self
    }

    /// The end of every rank's output.
    #[must_use]
    pub fn tails(&self) -> String {
        let mut text = String::new();
        for (rank, outcome) in self.ranks.iter().enumerate() {
            let status = outcome
                .status
                .map_or_else(|| "killed at the time limit".to_owned(), |status| status.to_string());
            let took = outcome.took.as_secs_f64();
            // Writing to a String cannot fail.
            let _ = writeln!(text, "--- rank {rank}: {status} after {took:.1} s");
            for (name, output) in [("stdout", &outcome.stdout), ("stderr", &outcome.stderr)] {
                let lines: Vec<&str> = output.lines().collect();
                for line in &lines[lines.len().saturating_sub(TAIL)..] {
                    let _ = writeln!(text, "{name}| {line}");
                }
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rank_that_hangs_is_killed_and_shown() {
        let job = Job::new("/bin/sh", "-c").arg("echo begun; exec sleep 60").ranks(2);
        let outcome = job.limit(Duration::from_millis(300)).run();
        assert!(outcome.ranks.iter().all(|rank| rank.status.is_none()));
        let tails = outcome.tails();
        assert_eq!(tails.matches("stdout| begun").count(), 2);
        assert_eq!(tails.matches("killed at the time limit").count(), 2);
    }

    #[test]
    fn each_rank_has_its_environment_and_its_status() {
        let job = Job::new("/bin/sh", "-c").arg("echo $RANK/$WORLD_SIZE; exit $RANK").ranks(3);
        let outcome = job.run();
        for (rank, end) in outcome.ranks.iter().enumerate() {
            assert_eq!(end.stdout, format!("{rank}/3\n"));
            assert_eq!(end.status.unwrap().code(), Some(rank as i32));
        }
    }

    #[test]
    #[should_panic(expected = "stderr| no such luck")]
    fn success_shows_the_tail_of_a_rank_that_failed() {
        let job = Job::new("/bin/sh", "-c").arg("echo no such luck >&2; exit 3");
        let _ = job.run().success();
    }
}
