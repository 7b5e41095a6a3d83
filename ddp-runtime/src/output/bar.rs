//! Progress bars: shown by the main rank, hidden on the others.

use std::any::{Any, type_name};
use std::io::{IsTerminal, stderr};
use std::sync::Once;

use crate::world;

/// Hides `value` on all ranks but the main one if it is an indicatif `ProgressBar` or `MultiProgress`; any other
/// value, and every value on the main rank, comes back as it is.
///
/// A hidden bar is still a bar: it counts, `suspend` runs its closure, `wrap_iter` yields, and what is added to a
/// hidden `MultiProgress` is hidden with it.
///
/// A bar is known by its type, so it must come from the indicatif this crate is built with: 0.18, behind the
/// feature `indicatif`, which is on by default. A bar of another version is shown by every rank whose standard
/// error is a terminal, and that rank says so once. (Under `cargo ddp run` only the main rank has one.)
pub fn bar<T: 'static>(value: T) -> T {
    if !world::is_main() && !hide(&value) && is_foreign_bar(type_name::<T>()) {
        warn_of_foreign_bar(type_name::<T>());
    }
    value
}

/// Hides a bar; `false` if `value` is none.
#[cfg(feature = "indicatif")]
fn hide(value: &dyn Any) -> bool {
    use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget};

    if let Some(bar) = value.downcast_ref::<ProgressBar>() {
        bar.set_draw_target(ProgressDrawTarget::hidden());
        true
    } else if let Some(bars) = value.downcast_ref::<MultiProgress>() {
        bars.set_draw_target(ProgressDrawTarget::hidden());
        true
    } else {
        false
    }
}

/// No type can be recognised without the feature.
#[cfg(not(feature = "indicatif"))]
fn hide(_value: &dyn Any) -> bool {
    false
}

/// Whether a type that is none of ours is named as indicatif names its bars.
fn is_foreign_bar(name: &str) -> bool {
    name.starts_with("indicatif::")
        && (name.ends_with("::ProgressBar") || name.ends_with("::MultiProgress"))
}

fn warn_of_foreign_bar(name: &str) {
    static ONCE: Once = Once::new();
    if stderr().is_terminal() {
        ONCE.call_once(|| {
            std::eprintln!(
                "ddp: `{name}` comes from another indicatif than the one ddp-runtime is built with \
                 (0.18, feature `indicatif`), so this rank shows its bars, too"
            );
        });
    }
}

#[cfg(test)]
mod tests {
    use super::{bar, hide, is_foreign_bar};

    #[test]
    fn what_is_no_bar_comes_back_as_it_is() {
        assert!(!hide(&String::from("text")));
        assert_eq!(bar(String::from("text")), "text");
    }

    #[test]
    fn a_bar_of_another_version_is_known_by_its_name() {
        assert!(is_foreign_bar("indicatif::progress_bar::ProgressBar"));
        assert!(is_foreign_bar("indicatif::multi::MultiProgress"));
        assert!(!is_foreign_bar("indicatif::style::ProgressStyle"));
        assert!(!is_foreign_bar("my_indicatif::ProgressBar"));
        assert!(!is_foreign_bar("&indicatif::progress_bar::ProgressBar"));
    }

    #[cfg(feature = "indicatif")]
    mod hidden {
        use std::io;
        use std::sync::Arc;
        use std::sync::atomic::{AtomicUsize, Ordering};

        use indicatif::{MultiProgress, ProgressBar, ProgressDrawTarget, TermLike};

        use super::hide;

        /// A terminal that only counts what is written to it.
        #[derive(Clone, Debug, Default)]
        struct Screen(Arc<AtomicUsize>);

        impl Screen {
            fn target(&self) -> ProgressDrawTarget {
                ProgressDrawTarget::term_like(Box::new(self.clone()))
            }

            fn writes(&self) -> usize {
                self.0.load(Ordering::Relaxed)
            }
        }

        impl TermLike for Screen {
            fn width(&self) -> u16 {
                80
            }

            fn move_cursor_up(&self, _n: usize) -> io::Result<()> {
                Ok(())
            }

            fn move_cursor_down(&self, _n: usize) -> io::Result<()> {
                Ok(())
            }

            fn move_cursor_right(&self, _n: usize) -> io::Result<()> {
                Ok(())
            }

            fn move_cursor_left(&self, _n: usize) -> io::Result<()> {
                Ok(())
            }

            fn write_line(&self, s: &str) -> io::Result<()> {
                self.write_str(s)
            }

            fn write_str(&self, _s: &str) -> io::Result<()> {
                self.0.fetch_add(1, Ordering::Relaxed);
                Ok(())
            }

            fn clear_line(&self) -> io::Result<()> {
                Ok(())
            }

            fn flush(&self) -> io::Result<()> {
                Ok(())
            }
        }

        #[test]
        fn p39_a_hidden_bar_writes_nothing_and_works() {
            let screen = Screen::default();
            let shown = ProgressBar::with_draw_target(Some(3), screen.target());
            shown.tick();
            let before = screen.writes();
            assert!(before > 0);

            let hidden = ProgressBar::with_draw_target(Some(3), screen.target());
            assert!(hide(&hidden));
            hidden.set_message("loss");
            hidden.tick();
            hidden.println("line");
            assert_eq!(hidden.suspend(|| 7), 7);
            assert_eq!(hidden.wrap_iter(0..3).sum::<i32>(), 3);
            assert_eq!((hidden.position(), screen.writes()), (3, before));
        }

        #[test]
        fn what_joins_hidden_bars_is_hidden() {
            let screen = Screen::default();
            let bars = MultiProgress::with_draw_target(screen.target());
            assert!(hide(&bars));
            let bar = bars.add(ProgressBar::new(3));
            bar.inc(1);
            bar.finish_with_message("done");
            assert!(bar.is_hidden());
            assert_eq!((bar.position(), screen.writes()), (3, 0));
        }
    }
}
