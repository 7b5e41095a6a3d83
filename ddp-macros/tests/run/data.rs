//! Batches: known types are shared, others keep their own method.

use crate::__private::{Dataset, Iter2, TextData, notes};
use ddp_macros::distributed;

/// A user's type with methods of the same names.
struct Own;

impl Own {
    fn train_iter(&self, n: i64) -> Vec<i64> {
        vec![n]
    }
    fn iter_shuffle(&self, a: i64, b: i64) -> Vec<i64> {
        vec![a, b]
    }
    fn data(&self) -> i64 {
        7
    }
}

#[distributed]
fn runs(data: &Dataset, text: TextData, own: &Own, mut held: Box<TextData>) -> Vec<usize> {
    let mut counts = vec![data.train_iter(8).count(), text.iter_shuffle(3, 8).count()];
    let held = &mut held;
    let again = held.iter_shuffle(3, 8).count();
    assert_eq!((again, own.data()), (counts[1], 7));
    #[ddp(skip)]
    let alone = own.train_iter(8).len();
    counts.push(alone);
    #[ddp(each)]
    for _ in own.iter_shuffle(1, 2) {
        counts[2] += 1;
    }
    for epoch in 0..2_i64 {
        for _ in data.train_iter(4).shuffle() {
            counts[0] += usize::try_from(epoch).unwrap_or_default();
        }
    }
    counts
}

#[test]
fn known_types_are_shared_and_others_left() {
    assert_eq!(runs(&Dataset, TextData, &Own, Box::new(TextData)), [4 + 2, 4, 3]);
    let notes = notes();
    assert_eq!(notes.iter().filter(|note| *note == "shared").count(), 5);
    let told: Vec<&String> = notes.iter().filter(|note| note.starts_with("epoch")).collect();
    assert_eq!(told, ["epoch 0", "epoch 1"]);
}

#[distributed]
fn site_of(data: &Dataset) {
    drop(data.train_iter(1));
    let _ = line!();
}

#[test]
fn a_site_is_the_users_line() {
    site_of(&Dataset);
    let line =
        include_str!("data.rs").lines().position(|line| line.contains("drop(data.")).unwrap() + 1;
    let expected = format!("site {}:{line}:", file!());
    let notes = notes();
    assert!(notes[1].starts_with(&expected), "{notes:?} does not hold {expected}");
}

#[distributed]
fn pairs(xs: &i64, ys: &i64) -> Result<usize, String> {
    let mut n = 0;
    for _ in Iter2::new(xs, ys, 8) {
        n += 1;
    }
    let again = Iter2::f_new(xs, ys, 4)?;
    Ok(n + again.count())
}

#[test]
fn pairs_of_tensors_are_shared() {
    assert_eq!(pairs(&1, &2), Ok(6));
}

#[distributed]
fn marked(data: &Dataset) -> (usize, usize, usize) {
    let mut counts = (0, 0, 0);
    #[ddp(shard)]
    for _ in data.train_iter(8) {
        counts.0 += 1;
    }
    let batches = data.train_iter(8);
    #[ddp(each)]
    for _ in batches {
        counts.1 += 1;
    }
    #[ddp(same)]
    for _ in ["a", "b"] {
        counts.2 += data.train_iter(8).count();
    }
    counts
}

#[test]
fn what_feeds_a_marked_loop_is_shared_once() {
    assert_eq!(marked(&Dataset), (4, 8, 8));
}

#[distributed]
fn dealt_out(lists: Vec<Vec<i64>>, numbers: &[i64]) -> (usize, usize) {
    let mut counts = (0, 0);
    #[ddp(shard)]
    for list in lists {
        counts.0 += list.len();
    }
    #[ddp(shard)]
    for _ in numbers {
        counts.1 += 1;
    }
    counts
}

#[test]
fn batches_and_other_items_are_told_apart() {
    assert_eq!(dealt_out(vec![vec![1, 2], vec![3]], &[1, 2, 3]), (2, 2));
    let notes = notes();
    assert!(
        notes.contains(&"shard batches".to_owned()) && notes.contains(&"shard".to_owned()),
        "{notes:?}"
    );
}

#[distributed(batch = "global")]
fn split<T: Default>(lists: Vec<Vec<T>>) -> usize {
    let mut rows = 0;
    #[ddp(shard)]
    for list in lists {
        rows += list.len();
    }
    rows
}

#[test]
fn with_the_option_every_item_is_split() {
    assert_eq!(split(vec![vec![1, 2], vec![3]]), 3);
    assert!(notes().contains(&"split".to_owned()));
}
