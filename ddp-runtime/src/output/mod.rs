//! The output room: what each rank shows of the prints and progress bars of one program.
//!
//! By default the main rank shows all, the others nothing. With `DDP_PRINT=all` ([`Print::All`]) every rank
//! prints, each line marked with its rank, as in `[rank 2] epoch 3: 0.41`; bars stay the main rank's. Arguments
//! are evaluated on every rank in any case: only their formatting is left out.
//!
//! Outside a process group all is as std and indicatif do it.

mod bar;
mod label;
mod log;

use std::fmt;
use std::sync::{PoisonError, RwLock};

pub use bar::bar;
pub use log::{Level, logs};

use crate::world;
use label::Stream;

/// Which ranks print.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Print {
    /// Rank 0 only.
    #[default]
    Main,
    /// All, each line behind its rank.
    All,
}

/// Who marks lines with their rank when all ranks print.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Marks {
    /// Each rank its own.
    Ours,
    /// The launcher those of all ranks but the main one, whose output it passes through.
    Launcher,
}

/// What was configured.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Setting {
    /// The main rank prints.
    MainOnly,
    /// All ranks print, and this one's lines need no mark of ours.
    All,
    /// All ranks print, and this one marks its lines.
    AllMarked(usize),
}

impl Setting {
    fn new(print: Print, rank: usize, marks: Marks) -> Self {
        match (print, marks) {
            (Print::Main, _) => Self::MainOnly,
            (Print::All, Marks::Launcher) if rank > 0 => Self::All,
            (Print::All, _) => Self::AllMarked(rank),
        }
    }
}

static SETTING: RwLock<Setting> = RwLock::new(Setting::MainOnly);

/// From now on `print` says which ranks print, this one being `rank`. Called when a scope of several ranks begins, and
/// with [`Print::Main`] when it ends.
pub(crate) fn configure(print: Print, rank: usize, marks: Marks) {
    *SETTING.write().unwrap_or_else(PoisonError::into_inner) = Setting::new(print, rank, marks);
}

/// How this process prints.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Voice {
    /// As std does.
    Plain,
    /// Not at all.
    Silent,
    /// Each line marked with the rank.
    Marked(usize),
}

impl Voice {
    fn of(setting: Setting, is_main: bool) -> Self {
        match setting {
            Setting::MainOnly if is_main => Self::Plain,
            Setting::MainOnly => Self::Silent,
            Setting::All => Self::Plain,
            Setting::AllMarked(rank) => Self::Marked(rank),
        }
    }

    fn now() -> Self {
        let setting = *SETTING.read().unwrap_or_else(PoisonError::into_inner);
        Self::of(setting, world::is_main())
    }
}

/// One line from the runtime itself to its user, on the main rank's standard error.
pub(crate) fn notice(args: fmt::Arguments<'_>) {
    if world::is_main() {
        std::eprintln!("ddp: {args}");
    }
}

/// [`std::println!`] on the ranks that print.
///
/// # Panics
///
/// If standard output cannot be written, as the macro does.
pub fn println(args: fmt::Arguments<'_>) {
    match Voice::now() {
        Voice::Plain => std::println!("{args}"),
        Voice::Silent => {}
        Voice::Marked(rank) => label::write(Stream::Out, rank, format_args!("{args}\n")),
    }
}

/// [`std::print!`] on the ranks that print. As there, only the end of a line flushes.
///
/// # Panics
///
/// If standard output cannot be written, as the macro does.
pub fn print(args: fmt::Arguments<'_>) {
    match Voice::now() {
        Voice::Plain => std::print!("{args}"),
        Voice::Silent => {}
        Voice::Marked(rank) => label::write(Stream::Out, rank, args),
    }
}

/// [`std::eprintln!`] on the ranks that print.
///
/// # Panics
///
/// If standard error cannot be written, as the macro does.
pub fn eprintln(args: fmt::Arguments<'_>) {
    match Voice::now() {
        Voice::Plain => std::eprintln!("{args}"),
        Voice::Silent => {}
        Voice::Marked(rank) => label::write(Stream::Err, rank, format_args!("{args}\n")),
    }
}

/// [`std::eprint!`] on the ranks that print.
///
/// # Panics
///
/// If standard error cannot be written, as the macro does.
pub fn eprint(args: fmt::Arguments<'_>) {
    match Voice::now() {
        Voice::Plain => std::eprint!("{args}"),
        Voice::Silent => {}
        Voice::Marked(rank) => label::write(Stream::Err, rank, args),
    }
}

/// [`std::dbg!`] of one value on the ranks that print: `[site] text = value`. The value comes back on every rank.
///
/// # Panics
///
/// If standard error cannot be written, as the macro does.
pub fn dbg<T: fmt::Debug>(site: &str, text: &str, value: T) -> T {
    eprintln(format_args!("[{site}] {text} = {value:#?}"));
    value
}

#[cfg(test)]
mod tests {
    use super::{Marks, Print, Setting, Voice};

    fn voice(print: Print, rank: usize, marks: Marks) -> Voice {
        Voice::of(Setting::new(print, rank, marks), rank == 0)
    }

    #[test]
    fn p39_the_main_rank_alone_prints() {
        for marks in [Marks::Ours, Marks::Launcher] {
            assert_eq!(voice(Print::Main, 0, marks), Voice::Plain);
            assert_eq!(voice(Print::Main, 3, marks), Voice::Silent);
        }
    }

    #[test]
    fn all_ranks_mark_their_lines_unless_the_launcher_does() {
        assert_eq!(voice(Print::All, 0, Marks::Ours), Voice::Marked(0));
        assert_eq!(voice(Print::All, 3, Marks::Ours), Voice::Marked(3));
        assert_eq!(voice(Print::All, 0, Marks::Launcher), Voice::Marked(0));
        assert_eq!(voice(Print::All, 3, Marks::Launcher), Voice::Plain);
    }
}
