//! Batches of the user's own.

use crate::__private::{BatchSize, SplitBatch as _, notes};
use ddp_macros::SplitBatch;

/// What no column can be.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Language;

#[derive(Debug, PartialEq, SplitBatch)]
struct Sentences<'a, T, const N: usize>
where
    T: Copy,
{
    tokens: Vec<[T; N]>,
    r#type: Vec<&'a str>,
    #[batch(whole)]
    language: Language,
}

#[derive(Debug, PartialEq, SplitBatch)]
#[batch(crate = "crate::renamed")]
struct Pair<X, Y>(X, Y, #[batch(whole)] usize);

#[test]
fn fields_are_columns() {
    let batch =
        Sentences { tokens: vec![[1], [2], [3]], r#type: vec!["a", "b", "c"], language: Language };
    assert!(batch.batch_size().is_ok());
    assert_eq!(notes(), ["column tokens Samples(3)", "column type Samples(3)"]);
    let part = batch.into_samples(1, 2).unwrap();
    let expected = Sentences { tokens: vec![[2], [3]], r#type: vec!["b", "c"], language: Language };
    assert_eq!(part, expected);
}

#[test]
fn fields_may_be_numbered_and_generic_and_nested() {
    let batch = Pair(vec![1, 2], Pair(vec![3, 4], vec!["c", "d"], 6), 7);
    assert_eq!(batch.batch_size().unwrap(), BatchSize::Whole);
    assert_eq!(notes().last().unwrap(), "column 1 Whole");
    assert_eq!(batch.into_samples(0, 1).unwrap(), Pair(vec![1], Pair(vec![3], vec!["c"], 6), 7));
}
