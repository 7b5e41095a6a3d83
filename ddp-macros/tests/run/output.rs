//! Output goes through the runtime, with the values and types it had.

use crate::__private::notes;
use ddp_macros::distributed;

/// A log crate of the user.
mod log {
    macro_rules! info {
        ($($token:tt)*) => { panic!($($token)*) };
    }
    macro_rules! warning {
        ($($token:tt)*) => { crate::__private::note(format!($($token)*)) };
    }
    macro_rules! any {
        ($level:expr, $($token:tt)*) => {{
            let _: Level = $level;
            crate::__private::note(format!($($token)*));
        }};
    }
    pub(crate) use any as log;
    pub(crate) use info;
    pub(crate) use warning as warn;
}

#[distributed]
fn prints(n: i64) -> Result<i64, ::std::num::ParseIntError> {
    let name = "x";
    println!("{name}: {:>3}", n);
    ::std::println!();
    let tell = |x: i64| print!("{x}");
    tell(n);
    match n {
        1 => eprintln!("one {}", "1".parse::<i64>()?),
        _ => eprint!("other"),
    }
    let kept = dbg!(n + 1);
    let (a, b) = dbg!(kept, "b");
    assert_eq!(b, "b");
    log::info!("never {}", n);
    log::warn!("always {}", n);
    #[cfg(any())]
    println!("{}", does_not_exist);
    #[ddp(skip)]
    println!("by hand");
    if n > 1 {
        log::info!("never")
    } else {
        println!("small")
    }
    Ok(a)
}

#[test]
fn what_is_printed() {
    assert_eq!(prints(1), Ok(2));
    let notes = notes();
    let lines: Vec<&str> = notes.iter().map(String::as_str).collect();
    assert_eq!(
        lines.iter().filter(|line| !line.starts_with("dbg")).copied().collect::<Vec<_>>(),
        [
            "enter prints",
            "println x:   1",
            "println ",
            "print 1",
            "eprintln one 1",
            "logs Info",
            "always 1",
            "println small",
            "left"
        ]
    );
    assert!(lines.iter().any(|line| line.starts_with("dbg [") && line.ends_with("] n + 1 = 2")));
}

/// How grave a line is, in the words of `log` and of `tracing`.
enum Level {
    Info,
    #[allow(clippy::upper_case_acronyms)]
    INFO,
    Warn,
}

#[distributed]
fn levels(own: Level) {
    log::log!(Level::Info, "never");
    log::log!(Level::INFO, "never {}", 1);
    log::log!(Level::Warn, "always");
    log::log!(own, "of {} level", "any");
}

#[test]
fn a_level_that_is_written_decides() {
    levels(Level::Warn);
    let expected = ["enter levels", "logs Info", "logs Info", "always", "of any level", "left"];
    assert_eq!(notes(), expected);
}

/// The adaptors of indicatif.
trait Progress: Iterator + Sized {
    fn progress(self) -> Self {
        self
    }
    fn progress_count(self, _: u64) -> Self {
        self
    }
}
impl<I: Iterator> Progress for I {}

#[distributed]
fn bars(items: &[i64]) -> i64 {
    let mut sum = 0;
    for item in items.iter().progress() {
        sum += item;
    }
    sum + items.iter().progress_count(3).sum::<i64>()
}

#[test]
fn iterators_with_bars_go_through_the_runtime() {
    assert_eq!(bars(&[1, 2]), 6);
    assert_eq!(notes(), ["enter bars", "progress", "progress", "left"]);
}

#[distributed]
fn folder() -> bool {
    ::std::fs::create_dir("/proc/cannot/be/made").is_err()
}

#[test]
fn a_new_folder_goes_through_the_runtime() {
    assert!(folder());
    assert_eq!(notes(), ["enter folder", "new_folder", "left"]);
}
