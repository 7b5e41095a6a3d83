//! Threads that are used again: a leak sanitizer, which keeps a record of each thread there ever was, gets by with few.
//!
//! GCC 12's reads that list without a lock, and crashes if it has to grow (each power of two from 512 on) at that moment.
use std::sync::mpsc::{Sender, channel};
use std::sync::{Mutex, MutexGuard, PoisonError};

type Task = Box<dyn FnOnce() + Send>;

static IDLE: Mutex<Vec<Sender<Task>>> = Mutex::new(Vec::new());

fn idle() -> MutexGuard<'static, Vec<Sender<Task>>> {
    IDLE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Does `task` on a thread of its own: one that has nothing else to do, or a new one.
pub(crate) fn spawn(task: impl FnOnce() + Send + 'static) {
    let mut task: Task = Box::new(task);
    // Not held while a task is sent: the thread takes it too.
    let free = idle().pop();
    if let Some(worker) = free {
        match worker.send(task) {
            Ok(()) => return,
            Err(unsent) => task = unsent.0,
        }
    }
    std::thread::spawn(move || {
        let (worker, tasks) = channel();
        let mut next = Some(task);
        while let Some(task) = next {
            task();
            idle().push(worker.clone());
            next = tasks.recv().ok();
        }
    });
}
