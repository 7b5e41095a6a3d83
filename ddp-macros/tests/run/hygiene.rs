//! Whatever the program calls its things: what is inserted means the runtime, and what is written means the program.

use crate::__private::{Dataset, Device, Iter2, VarStore, note, notes};
use ::std::fmt::Display;
use ddp_macros::distributed;

/// Functions of the user that are called as those of the runtime.
fn device(number: usize) -> usize {
    number + 1
}

fn save(text: impl Display) -> String {
    text.to_string()
}

fn println(text: &str) -> usize {
    text.len()
}

/// A blanket trait of the user with common names.
trait Everything {
    fn save(&self, _: u8) -> u8 {
        1
    }
    fn data(&self) -> u8 {
        2
    }
    fn leave(&self) -> u8 {
        3
    }
}

impl<T> Everything for T {}

#[distributed]
fn names(vs: &VarStore, data: &Dataset) -> Result<usize, String> {
    let __ddp_scope = device(1);
    let (__ddp_path, __ddp_index, __ddp_receiver) = ("net.ot", 2, 3);
    let (store, start, epoch, bar, core, std) = (1, 2, 3, 4, 5, 6);
    let mut sum = store + start + epoch + bar + core + std;
    for epoch in 0..1 {
        for batch in data.train_iter(4) {
            sum += usize::try_from(batch).unwrap_or_default() + epoch;
        }
    }
    let chosen = Some(0).map(Device::Cuda);
    vs.save(__ddp_path)?;
    println!("{__ddp_scope} {}", println("four"));
    sum += usize::from(vs.data() + vs.leave() + Everything::save(vs, 0));
    sum += save(sum).len() + usize::from(chosen.is_some());
    Ok(sum + __ddp_scope + __ddp_index + __ddp_receiver)
}

#[test]
fn names_of_the_program_are_its_own() {
    assert_eq!(names(&VarStore("v"), &Dataset), Ok(21 + 1 + 6 + 2 + 1 + 2 + 2 + 3));
    let notes = notes();
    assert!(notes.contains(&"println 2 4".to_owned()), "{notes:?}");
    assert!(notes.contains(&"main rank saves".to_owned()), "{notes:?}");
}

#[distributed]
#[inline]
#[expect(clippy::items_after_statements, reason = "the items stand in the middle here")]
fn survives(limit: i64) -> i64 {
    #![allow(clippy::let_and_return)]
    use ::std::cmp::max as larger;
    macro_rules! println {
        ($($token:tt)*) => { note(format!("own {}", format!($($token)*))) };
    }
    println!("{}", limit);
    #[allow(unused_assignments)]
    let mut found = 0;
    const STEP: i64 = 2;
    fn twice(number: i64) -> i64 {
        if number > 9 {
            return 9;
        }
        number * STEP
    }
    'rows: for row in 0..limit {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        for column in 0..3 {
            if [row, column, limit][column as usize] == 1 {
                found = larger(found, twice(row));
                continue 'rows;
            }
        }
    }
    #[cfg(any())]
    let found = does_not_exist;
    let result = 'block: {
        if found > 1 {
            break 'block found;
        }
        0
    };
    result
}

#[test]
fn attributes_labels_and_items_survive() {
    assert_eq!(survives(3), 4);
    assert_eq!(notes(), ["enter survives", "own 3", "left"]);
}

/// The runtime under another name.
mod renamed {
    use crate::__private::{VarStore, notes};
    use ddp_macros::distributed;

    #[distributed(crate = "another_name", seed = 3)]
    fn saves(vs: &VarStore) -> Result<(), String> {
        let again = VarStore::new(crate::__private::Device::Cpu);
        vs.save("a.ot")?;
        again.save("b.ot")
    }

    #[test]
    fn a_renamed_runtime_is_found() {
        assert_eq!(saves(&VarStore("v")), Ok(()));
        assert_eq!(notes()[0], "enter saves seed=3");
    }
}

#[distributed]
fn in_other_macros(xs: &i64, limit: usize) -> usize {
    let batches = vec![Iter2::new(xs, xs, 4); 1];
    assert!(
        matches!(Device::Cuda(0), Device::Cuda(number) if number == dbg!(limit)),
        "{}",
        dbg!(limit)
    );
    let text = format!("{:?}", { Device::cuda_if_available() });
    assert_eq!(text, "Cuda(3)");
    batches.len()
}

#[test]
fn arguments_of_other_macros_are_looked_into() {
    assert_eq!(in_other_macros(&1, 3), 1);
    let notes = notes();
    let count = |word: &str| notes.iter().filter(|note| note.starts_with(word)).count();
    assert_eq!((count("iter2"), count("device"), count("dbg")), (1, 2, 1), "{notes:?}");
}
