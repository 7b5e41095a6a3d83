//! What the ranks draw together, and what one rank draws as tch does.
use proptest::prelude::*;
use tch::data::Iter2;
use tch::{Device, Kind, TchError, Tensor, kind};

use super::ShardedIter2;
use crate::bridge;
use crate::data::{DataError, Order, Share};

const ORDER: Order = Order { seed: 11, epoch: 3 };

/// Rows that carry their own number, so that a batch tells where it comes from: `n` by 2, and `n`.
fn numbered(n: i64) -> (Tensor, Tensor) {
    let ys = Tensor::arange(n, kind::INT64_CPU);
    let xs = ys.to_kind(Kind::Float).unsqueeze(1).repeat([1, 2]);
    (xs, ys)
}

fn iter(n: i64, batch: i64, rank: usize, world: usize) -> ShardedIter2 {
    let (xs, ys) = numbered(n);
    ShardedIter2::new(&xs, &ys, batch, Share::new(rank, world).unwrap(), ORDER)
}

/// The row numbers of each batch, after a check that both tensors of the pair have the same.
fn batches(iter: &mut ShardedIter2) -> Vec<Vec<i64>> {
    iter.map(|(x, y)| {
        let rows = Vec::<i64>::try_from(&y).unwrap();
        assert_eq!(x.size(), [rows.len() as i64, 2]);
        assert_eq!(Vec::<i64>::try_from(x.select(1, 1).to_kind(Kind::Int64)).unwrap(), rows);
        rows
    })
    .collect()
}

type Modify = fn(&mut ShardedIter2) -> &mut ShardedIter2;

fn all_ranks(n: i64, batch: i64, world: usize, modify: Modify) -> Vec<Vec<Vec<i64>>> {
    (0..world).map(|rank| batches(modify(&mut iter(n, batch, rank, world)))).collect()
}

/// The k-th batches of all ranks, dealt back in turn: a stretch of the common order.
fn joint(ranks: &[Vec<Vec<i64>>], k: usize) -> Vec<i64> {
    (0..ranks[0][k].len()).flat_map(|row| ranks.iter().map(move |own| own[k][row])).collect()
}

#[test]
fn without_shuffle_the_joint_batches_are_the_rows_in_order() {
    let ranks = all_ranks(14, 3, 2, |iter| iter);
    assert_eq!(ranks[0], [[0, 2, 4], [6, 8, 10]]);
    assert_eq!(ranks[1], [[1, 3, 5], [7, 9, 11]]);
}

#[test]
fn p02_a_smaller_last_batch_reaches_all_ranks_or_none() {
    let ranks = all_ranks(17, 3, 2, ShardedIter2::return_smaller_last_batch);
    assert_eq!((&ranks[0][2], &ranks[1][2]), (&vec![12, 14], &vec![13, 15]));
    let ranks = all_ranks(13, 3, 2, ShardedIter2::return_smaller_last_batch);
    assert_eq!((ranks[0].len(), ranks[1].len()), (2, 2));
}

#[test]
fn modifiers_can_come_in_any_order() {
    let one = all_ranks(17, 3, 2, |iter| {
        iter.shuffle().to_device(Device::Cpu).return_smaller_last_batch()
    });
    let other = all_ranks(17, 3, 2, |iter| {
        iter.return_smaller_last_batch().to_device(Device::Cpu).shuffle().shuffle()
    });
    assert_eq!(one, other);
}

#[test]
fn the_order_is_that_of_the_epoch_whatever_was_drawn_before() {
    let shuffled = |epoch| {
        let (xs, ys) = numbered(40);
        let order = Order { seed: 11, epoch };
        let share = Share::new(1, 2).unwrap();
        batches(ShardedIter2::new(&xs, &ys, 5, share, order).shuffle())
    };
    let first = shuffled(0);
    let _drawn = Tensor::rand([7], kind::FLOAT_CPU);
    assert_eq!(first, shuffled(0));
    assert_ne!(first, shuffled(1));
}

#[test]
fn one_rank_is_tch_number_for_number() {
    let (xs, ys) = numbered(23);
    for smaller in [false, true] {
        let mut plain = Iter2::new(&xs, &ys, 4);
        let mut ours = ShardedIter2::new(&xs, &ys, 4, Share::ALONE, ORDER);
        if smaller {
            plain.return_smaller_last_batch();
            ours.return_smaller_last_batch();
        }
        let plain: Vec<_> = plain.to_device(Device::Cpu).map(|(_, y)| y).collect();
        let ours: Vec<_> = ours.to_device(Device::Cpu).map(|(_, y)| y).collect();
        assert_eq!(plain, ours);
    }
}

#[test]
fn one_rank_draws_from_the_global_generator_as_tch_does() {
    // Other tests draw from the same generator; the draws of one attempt can be pulled apart by them.
    let same = (0..20).any(|seed| {
        let (xs, ys) = numbered(30);
        tch::manual_seed(seed);
        let plain: Vec<_> = Iter2::new(&xs, &ys, 4).shuffle().map(|(_, y)| y).collect();
        tch::manual_seed(seed);
        let mut ours = ShardedIter2::new(&xs, &ys, 4, Share::ALONE, ORDER);
        plain == ours.shuffle().map(|(_, y)| y).collect::<Vec<_>>()
    });
    assert!(same);
}

#[test]
fn the_shape_error_is_that_of_tch() {
    let (xs, ys) = (Tensor::zeros([3, 2], kind::FLOAT_CPU), Tensor::zeros([4], kind::FLOAT_CPU));
    let theirs = Iter2::f_new(&xs, &ys, 2).unwrap_err().to_string();
    for share in [Share::ALONE, Share::new(0, 2).unwrap()] {
        let ours = ShardedIter2::f_new(&xs, &ys, 2, share, ORDER).unwrap_err();
        assert_eq!(ours.to_string(), theirs);
        let scalar = Tensor::from(1.0);
        let error = ShardedIter2::f_new(&scalar, &ys, 2, share, ORDER).unwrap_err();
        assert!(matches!(error, TchError::Shape(_)));
    }
}

#[test]
fn whole_batches_are_the_same_on_every_rank_in_the_order_of_the_epoch() {
    let (xs, ys) = numbered(23);
    let of = |rank, order| {
        let share = Share::new(rank, 2).unwrap();
        let mut iter = ShardedIter2::whole(&xs, &ys, 4, share, order);
        batches(iter.shuffle().return_smaller_last_batch())
    };
    let (first, other) = (of(0, Some(ORDER)), of(1, Some(ORDER)));
    assert_eq!(first, other);
    let order = bridge::randperm(ORDER.seed + ORDER.epoch, 23).unwrap();
    assert_eq!((first.concat(), first.len(), first[5].len()), (order, 6, 3));
    // Without a group this rank draws alone, as tch does.
    let mut drawn = of(0, None).concat();
    drawn.sort_unstable();
    assert_eq!(drawn, (0..23).collect::<Vec<_>>());
}

#[test]
fn training_on_nothing_is_an_error() {
    let error = iter(7, 4, 0, 2).f_next().unwrap_err();
    assert!(matches!(error, DataError::NotABatchEach { samples: 7, .. }));
    assert!(iter(3, 4, 0, 2).f_next().unwrap().is_none());
    assert!(iter(0, 4, 0, 2).f_next().unwrap().is_none());
    assert!(iter(7, 4, 0, 2).return_smaller_last_batch().f_next().unwrap().is_some());
}

#[test]
#[should_panic(expected = "not enough for a batch of 4 on each of 2 ranks")]
fn a_loop_over_nothing_panics() {
    for _batch in iter(7, 4, 1, 2) {}
}

#[test]
fn batches_are_contiguous_copies_of_any_kind_of_data() {
    let columns = Tensor::arange(24, kind::INT64_CPU).view([3, 8]).tr();
    let share = Share::new(1, 2).unwrap();
    let mut iter = ShardedIter2::new(&columns, &columns, 2, share, ORDER);
    let (x, _) = iter.next().unwrap();
    assert!(x.is_contiguous());
    assert_eq!(Vec::<i64>::try_from(x.view(-1)).unwrap(), [1, 9, 17, 3, 11, 19]);
    let _ = x.shallow_clone().fill_(0);
    assert_eq!(columns.int64_value(&[1, 0]), 1);
}

#[test]
fn leaving_batches_out_is_drawing_and_dropping_them() {
    let (xs, ys) = numbered(23);
    let share = |rank| Share::new(rank, 2).unwrap();
    let rows =
        |batch: Option<(Tensor, Tensor)>| batch.map(|(_, y)| Vec::<i64>::try_from(y).unwrap());
    for left_out in 0..5 {
        let shared = || ShardedIter2::new(&xs, &ys, 3, share(1), ORDER);
        let drawn = batches(shared().shuffle());
        let found = rows(shared().shuffle().nth(left_out));
        assert_eq!(found.as_ref(), drawn.get(left_out));
        let mut iter = shared();
        assert_eq!(rows(iter.shuffle().nth(left_out)).is_some(), left_out < 3);
        assert_eq!(iter.size_hint().0, 3_usize.saturating_sub(left_out + 1));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn joint_batches_are_stretches_of_the_permutation(n in 0i64..120, batch in 1i64..9, world in 2usize..6) {
        let order = bridge::randperm(ORDER.seed + ORDER.epoch, n).unwrap();
        let ranks = world as i64;
        prop_assume!(n / ranks > 0);
        let got = all_ranks(n, batch, world, |iter| iter.shuffle().return_smaller_last_batch());
        let mut seen = Vec::new();
        for k in 0..got[0].len() {
            for own in &got {
                prop_assert_eq!(own.len(), got[0].len());
                prop_assert_eq!(own[k].len(), got[0][k].len());
            }
            seen.extend(joint(&got, k));
        }
        prop_assert_eq!(&seen[..], &order[..(n / ranks * ranks) as usize]);
    }

    #[test]
    fn the_size_hint_is_the_count(n in 0i64..120, batch in 1i64..9, world in 2usize..6, taken in 0usize..4) {
        prop_assume!(n / (world as i64) >= batch);
        let mut iter = iter(n, batch, world - 1, world);
        let taken = iter.by_ref().take(taken).count();
        let (low, high) = iter.size_hint();
        prop_assert_eq!(Some(low), high);
        prop_assert_eq!(iter.count(), low);
        prop_assert_eq!(low + taken, (n / (world as i64) / batch) as usize);
    }
}
