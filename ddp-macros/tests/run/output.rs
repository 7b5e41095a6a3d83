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
