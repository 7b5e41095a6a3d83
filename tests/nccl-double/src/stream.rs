//! Streams, as threads that do one task after the other, and events.
use std::collections::VecDeque;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use crate::{setting, worker};

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Streams and events that somebody holds a handle to, to see that none is forgotten.
pub(crate) static STREAMS: AtomicI64 = AtomicI64::new(0);
pub(crate) static EVENTS: AtomicI64 = AtomicI64::new(0);

type Task = Box<dyn FnOnce() + Send>;

#[derive(Default)]
struct Queue {
    tasks: VecDeque<Option<Task>>,
}

/// One stream.
#[derive(Default)]
pub(crate) struct Stream {
    queue: Mutex<Queue>,
    more: Condvar,
}

impl Stream {
    pub(crate) fn start() -> Arc<Self> {
        STREAMS.fetch_add(1, Ordering::Relaxed);
        let stream = Arc::new(Self::default());
        let own = Arc::clone(&stream);
        worker::spawn(move || own.run());
        stream
    }

    fn run(&self) {
        loop {
            let mut queue = lock(&self.queue);
            let next = loop {
                match queue.tasks.pop_front() {
                    Some(next) => break next,
                    None => queue = self.more.wait(queue).unwrap_or_else(PoisonError::into_inner),
                }
            };
            drop(queue);
            match next {
                Some(task) => task(),
                None => return,
            }
        }
    }

    fn push_any(&self, task: Option<Task>) {
        lock(&self.queue).tasks.push_back(task);
        self.more.notify_one();
    }

    /// Does `task` after all that was pushed before.
    pub(crate) fn push(&self, task: impl FnOnce() + Send + 'static) {
        self.push_any(Some(Box::new(move || {
            sleep_a_while();
            task();
        })));
    }

    /// Ends the thread once it has done what was pushed before.
    pub(crate) fn end(&self) {
        STREAMS.fetch_sub(1, Ordering::Relaxed);
        self.push_any(None);
    }
}

/// A while of random length, up to what the test has set.
fn sleep_a_while() {
    static STATE: AtomicU64 = AtomicU64::new(0);
    let longest = setting::delay();
    if longest == 0 {
        return;
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |time| time.as_nanos() as u64);
    let mut state = STATE.fetch_add(0x9E37_79B9_7F4A_7C15, Ordering::Relaxed) ^ now;
    state ^= state >> 29;
    state = state.wrapping_mul(0xBF58_476D_1CE4_E5B9);
    std::thread::sleep(Duration::from_micros((state >> 33) % longest));
}

#[derive(Clone, Copy, Default)]
struct Marks {
    recorded: u64,
    reached: u64,
}

/// One event.
pub(crate) struct Event {
    marks: Mutex<Marks>,
    moved: Condvar,
}

impl Event {
    pub(crate) fn new() -> Arc<Self> {
        Arc::new(Self { marks: Mutex::default(), moved: Condvar::new() })
    }

    /// Marks the end of what was pushed to the stream; the default stream is the host, which has done all it was told.
    pub(crate) fn record(self: &Arc<Self>, stream: Option<&Stream>) {
        let mark = {
            let mut marks = lock(&self.marks);
            marks.recorded += 1;
            marks.recorded
        };
        match stream {
            Some(stream) => {
                let own = Arc::clone(self);
                stream.push(move || own.reach(mark));
            }
            None => self.reach(mark),
        }
    }

    fn reach(&self, mark: u64) {
        let mut marks = lock(&self.marks);
        marks.reached = marks.reached.max(mark);
        self.moved.notify_all();
    }

    pub(crate) fn is_done(&self) -> bool {
        let marks = lock(&self.marks);
        marks.reached >= marks.recorded
    }

    /// Makes the stream wait for what was recorded last; the default stream is the host.
    pub(crate) fn hold(self: &Arc<Self>, stream: Option<&Stream>) {
        let mark = lock(&self.marks).recorded;
        match stream {
            Some(stream) => {
                let own = Arc::clone(self);
                stream.push(move || own.wait_for(mark));
            }
            None => self.wait_for(mark),
        }
    }

    fn wait_for(&self, mark: u64) {
        let mut marks = lock(&self.marks);
        while marks.reached < mark {
            marks = self.moved.wait(marks).unwrap_or_else(PoisonError::into_inner);
        }
    }
}
