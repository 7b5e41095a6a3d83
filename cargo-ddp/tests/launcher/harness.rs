//! Starts the launcher with a hard time limit, and finds every process of its job.

use std::fs;
use std::io::Read;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal};

/// No job of these tests may take longer.
const LIMIT: Duration = Duration::from_secs(30);

/// In the environment of every process of one job, with a value of its own.
const TOKEN: &str = "LAUNCHER_TEST_TOKEN";

/// A launcher to be started.
pub(crate) struct Job {
    command: Command,
    token: String,
}

/// A launcher at work.
pub(crate) struct Running {
    child: Child,
    token: String,
    started: Instant,
    readers: [Option<std::thread::JoinHandle<Vec<u8>>>; 2],
}

/// A launcher that has ended.
#[derive(Debug)]
pub(crate) struct Done {
    /// The exit code, or 128 plus the signal.
    pub(crate) code: i32,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: String,
    pub(crate) took: Duration,
}

impl Done {
    pub(crate) fn stdout(&self) -> String {
        String::from_utf8_lossy(&self.stdout).into_owned()
    }
}

/// `cargo-ddp` with the words of `options`.
pub(crate) fn launcher(options: &str) -> Job {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let token = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
    let mut command = Command::new(env!("CARGO_BIN_EXE_cargo-ddp"));
    command.args(options.split_whitespace()).env(TOKEN, &token).env_remove("DDP_BACKEND");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    Job { command, token }
}

/// Runs `script` by the shell on `ranks` ranks.
pub(crate) fn script(ranks: usize, options: &str, script: &str) -> Job {
    launcher(&format!("run -n {ranks} {options} --exec /bin/sh --")).args(["-c", script])
}

impl Job {
    pub(crate) fn args<'a>(mut self, args: impl IntoIterator<Item = &'a str>) -> Self {
        self.command.args(args);
        self
    }

    pub(crate) fn env(mut self, name: &str, value: impl AsRef<std::ffi::OsStr>) -> Self {
        self.command.env(name, value);
        self
    }

    pub(crate) fn env_remove(mut self, name: &str) -> Self {
        self.command.env_remove(name);
        self
    }

    pub(crate) fn dir(mut self, dir: &Path) -> Self {
        self.command.current_dir(dir);
        self
    }

    pub(crate) fn start(mut self) -> Running {
        let mut child = self.command.spawn().expect("the launcher starts");
        let stdout = child.stdout.take().map(reader);
        let stderr = child.stderr.take().map(reader);
        let (token, started) = (self.token, Instant::now());
        Running { child, token, started, readers: [stdout, stderr] }
    }

    /// Runs to the end. Nothing of the job may be left then.
    pub(crate) fn run(self) -> Done {
        self.start().finish()
    }
}

/// Reads in a thread of its own, so that a full pipe cannot stop the launcher.
fn reader(mut source: impl Read + Send + 'static) -> std::thread::JoinHandle<Vec<u8>> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        source.read_to_end(&mut bytes).expect("readable output");
        bytes
    })
}

impl Running {
    pub(crate) fn pid(&self) -> Pid {
        Pid::from_child(&self.child)
    }

    pub(crate) fn signal(&self, signal: Signal) {
        rustix::process::kill_process(self.pid(), signal).expect("the launcher is there");
    }

    /// Processes of the job that are alive, the launcher and its keeper included.
    pub(crate) fn alive(&self) -> Vec<String> {
        processes(&self.token).into_iter().map(|(_, command_line)| command_line).collect()
    }

    /// The helper that cleans up after a launcher that is killed.
    pub(crate) fn keeper(&self) -> Pid {
        let all = processes(&self.token);
        let keeper = all.iter().find(|(_, command_line)| command_line.contains("__keep"));
        keeper.unwrap_or_else(|| panic!("no keeper among {all:?}")).0
    }

    /// Waits for the end, and for nothing of the job to be left.
    pub(crate) fn finish(mut self) -> Done {
        let status = self.wait();
        let took = self.started.elapsed();
        let left = self.alive();
        assert!(left.is_empty(), "left behind after the launcher's end: {left:?}");
        let [stdout, stderr] = self.readers.each_mut().map(|reader| {
            reader.take().expect("read once").join().expect("the reader does not panic")
        });
        let stderr = String::from_utf8_lossy(&stderr).into_owned();
        Done { code: code(status), stdout, stderr, took }
    }

    fn wait(&mut self) -> ExitStatus {
        let mut status = None;
        let ended = wait_until(LIMIT, || {
            status = self.child.try_wait().expect("a child");
            status.is_some()
        });
        assert!(ended, "the launcher has not ended after {LIMIT:?}: {:?}", self.alive());
        status.expect("it has ended")
    }
}

impl Drop for Running {
    /// A failed test must not leave a job behind either.
    fn drop(&mut self) {
        for (pid, _) in processes(&self.token) {
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

fn code(status: ExitStatus) -> i32 {
    use std::os::unix::process::ExitStatusExt;
    status.code().unwrap_or_else(|| 128 + status.signal().unwrap_or(0))
}

/// Processes with the token in their environment: id and command line. A zombie has none.
fn processes(token: &str) -> Vec<(Pid, String)> {
    let mark = format!("{TOKEN}={token}");
    let is_marked = |pid: &Pid| {
        let environ = fs::read(format!("/proc/{}/environ", pid.as_raw_nonzero()));
        environ.is_ok_and(|text| text.split(|byte| *byte == 0).any(|v| v == mark.as_bytes()))
    };
    let command_line = |pid: Pid| {
        let text = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
        (pid, String::from_utf8_lossy(&text).replace('\0', " "))
    };
    fs::read_dir("/proc")
        .expect("/proc")
        .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok().and_then(Pid::from_raw))
        .filter(is_marked)
        .map(command_line)
        .collect()
}

/// Polls `done` for at most `limit`; whether it came true.
pub(crate) fn wait_until(limit: Duration, mut done: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + limit;
    while !done() {
        if Instant::now() > until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    true
}

/// Waits for `count` files in `dir` whose names end in `.ready`.
pub(crate) fn wait_for_ready(dir: &Path, count: usize) {
    let ready = || {
        let files = fs::read_dir(dir).expect("the folder").filter_map(Result::ok);
        files.filter(|file| file.path().extension().is_some_and(|e| e == "ready")).count()
    };
    assert!(wait_until(LIMIT, || ready() >= count), "{} of {count} are ready", ready());
}

#[test]
fn a_process_that_is_left_is_found() {
    let job = Job { command: Command::new("/bin/sh"), token: "of-the-harness-itself".to_owned() };
    let mut job = job.args(["-c", "sleep 60 & exec sleep 60"]);
    job.command.env(TOKEN, &job.token);
    let running = job.start();
    assert!(wait_until(LIMIT, || running.alive().len() == 2), "{:?}", running.alive());
    drop(running);
    assert!(wait_until(LIMIT, || processes("of-the-harness-itself").is_empty()));
}
