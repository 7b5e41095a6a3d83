//! Loops that train: weights are made equal before the first step of the outermost one.

use crate::__private::{Dataset, notes};
use ddp_macros::distributed;

#[derive(Default)]
struct Loss(i64);

impl Loss {
    fn backward(&self) {
        crate::__private::note(format!("backward {}", self.0));
    }
}

#[distributed]
fn trains(data: &Dataset) {
    for _ in 0..1 {
        for x in data.train_iter(4) {
            Loss(x).backward();
        }
    }
    let mut left = 1;
    'outer: while left > 0 {
        for x in data.train_iter(2) {
            Loss(x).backward();
            left -= 1;
            continue 'outer;
        }
    }
    #[ddp(each)]
    loop {
        Loss(9).backward();
        break;
    }
}

#[test]
fn weights_are_made_equal_before_the_outermost_loop() {
    trains(&Dataset);
    let notes: Vec<String> =
        notes().into_iter().filter(|note| !note.starts_with("site") && note != "shared").collect();
    let expected = [
        "enter trains",
        "start",
        "backward 1",
        "backward 0",
        "synchronize",
        "backward 0",
        "synchronize",
        "backward 9",
        "left",
    ];
    assert_eq!(notes, expected);
}

#[distributed]
fn shards(items: &[i64]) -> Result<i64, ::std::num::ParseIntError> {
    let mut sum = 0;
    #[ddp(shard)]
    for (i, part) in items.chunks(2).enumerate() {
        let step: i64 = "1".parse()?;
        Loss(part[0] + step).backward();
        sum += i64::try_from(i).unwrap_or_default();
    }
    Ok(sum)
}

#[test]
fn a_marked_loop_takes_its_share() {
    assert_eq!(shards(&[1, 2, 3, 4, 5, 6]), Ok(2));
    assert_eq!(notes(), ["enter shards", "shard", "start", "backward 2", "backward 6", "left"]);
}
