//! What the loader must do whatever its workers do, on one rank; several ranks are in the suite of the tests crate.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use proptest::prelude::*;
use tch::{Kind, Tensor, kind};

use super::{DataLoader, LoaderError, WorkerInfo, Workers, sample_seed, worker_info};
use crate::data::{
    Dataset, FeistelSampler, IterableDataset, LoaderState, RandomSampler, Remainder, Samples,
    Share, StateError, TensorDataset, WeightedSampler, shard,
};

/// Samples that are their own numbers, and what is done when one is loaded.
struct Numbers<F>(usize, F);

impl<F: Fn(usize) -> Result<(), String> + Send + Sync> Dataset for Numbers<F> {
    type Sample = i64;
    type Error = String;

    fn len(&self) -> usize {
        self.0
    }

    fn get(&self, index: usize) -> Result<i64, String> {
        (self.1)(index).map(|()| index as i64)
    }
}

fn plain(len: usize) -> Numbers<fn(usize) -> Result<(), String>> {
    Numbers(len, |_| Ok(()))
}

fn values(batch: Tensor) -> Vec<i64> {
    Vec::try_from(batch).unwrap()
}

fn all(loader: &DataLoader<Tensor>) -> Vec<Vec<i64>> {
    loader.iter().map(|batch| values(batch.unwrap())).collect()
}

#[test]
fn batches_are_those_of_pytorch() {
    let loader = DataLoader::builder(plain(7)).batch_size(3).build().unwrap();
    assert_eq!((all(&loader), loader.len()), (vec![vec![0, 1, 2], vec![3, 4, 5], vec![6]], 3));
    let loader = DataLoader::builder(plain(7)).batch_size(3).drop_last(true).build().unwrap();
    assert_eq!((all(&loader).len(), loader.len(), loader.samples()), (2, 2, Some(7)));
    let loader = DataLoader::builder(plain(0)).num_workers(2).build().unwrap();
    assert!(all(&loader).is_empty() && loader.is_empty());
}

/// Workers that take their time, each another one, change nothing in the order.
#[test]
fn order_does_not_depend_on_the_workers() {
    let lazy = Numbers(60, |index| {
        std::thread::sleep(Duration::from_micros((index as u64 * 7919) % 700));
        Ok(())
    });
    let data = Arc::new(lazy);
    let epochs = |workers: usize| {
        let loader = DataLoader::builder(Arc::clone(&data)).batch_size(7).shuffle(true).seed(3);
        let loader = loader.num_workers(workers).build().unwrap();
        [all(&loader), all(&loader)]
    };
    let alone = epochs(0);
    assert_ne!(alone[0], alone[1]);
    for workers in [1, 2, 3, 5, 20] {
        assert_eq!(epochs(workers), alone, "{workers} workers");
    }
}

#[test]
fn p05_each_pass_has_another_order_and_a_told_epoch_has_its_own() {
    let loader = |seed| {
        DataLoader::builder(plain(40)).batch_size(40).shuffle(true).seed(seed).build().unwrap()
    };
    let untold = loader(1);
    let passes: Vec<_> = (0..3).map(|_| all(&untold)).collect();
    assert_ne!(passes[0], passes[1]);
    assert_ne!(passes[1], passes[2]);
    let told = loader(1);
    told.set_epoch(2);
    assert_eq!(all(&told), passes[2]);
    // The same epoch again is another order, which no epoch has.
    assert!(!passes.contains(&all(&told)));
    assert_ne!(all(&loader(2)), passes[0]);
}

/// Loaded samples, at most: what was taken, what may be ahead, and what is in the hands of the loop.
#[test]
fn workers_do_not_run_ahead_of_the_loop() {
    for (workers, prefetch) in [(1, 1), (1, 3), (3, 2)] {
        let loaded = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&loaded);
        let data = Numbers(1000, move |_| {
            count.fetch_add(1, Ordering::SeqCst);
            Ok(())
        });
        let loader = DataLoader::builder(data).batch_size(5).num_workers(workers);
        let loader = loader.prefetch_factor(prefetch).build().unwrap();
        let mut batches = loader.iter();
        for taken in 1..=4 {
            assert!(batches.next().unwrap().is_ok());
            let ahead = taken * 5 + workers * prefetch * 5;
            // Until the workers stand still, which they do only where they may not go on.
            let deadline = Instant::now() + Duration::from_secs(20);
            while loaded.load(Ordering::SeqCst) < ahead && Instant::now() < deadline {
                std::thread::sleep(Duration::from_millis(1));
            }
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(loaded.load(Ordering::SeqCst), ahead, "{workers} workers, {prefetch} ahead");
        }
    }
}

#[test]
fn an_error_names_the_sample_and_ends_the_pass() {
    for workers in [0, 2] {
        let data = Numbers(40, |index| match index {
            13 => Err("no such file".to_owned()),
            _ => Ok(()),
        });
        let loader = DataLoader::builder(data).batch_size(4).num_workers(workers).build().unwrap();
        let mut batches = loader.iter();
        assert_eq!(batches.by_ref().take(3).filter(Result::is_ok).count(), 3);
        let error = batches.next().unwrap().unwrap_err();
        assert!(matches!(&error, LoaderError::Sample { index: 13, .. }), "{error}");
        assert_eq!(error.to_string(), "sample 13: no such file");
        assert!(batches.next().is_none() && batches.next().is_none());
    }
}

#[test]
fn a_worker_that_panics_is_named_with_the_sample() {
    let data = Numbers(40, |index| {
        assert!(index != 9, "the picture is torn");
        Ok(())
    });
    let loader = DataLoader::builder(data).batch_size(4).num_workers(2).build().unwrap();
    let mut batches = loader.iter();
    assert_eq!(batches.by_ref().take(2).filter(Result::is_ok).count(), 2);
    let error = batches.next().unwrap().unwrap_err();
    assert!(matches!(error, LoaderError::Panicked { worker: 0, index: Some(9), .. }), "{error}");
    assert!(error.to_string().contains("the picture is torn"));
    assert!(batches.next().is_none());
}

#[test]
fn a_worker_that_hangs_is_named_with_the_sample() {
    let gate = Arc::new(Mutex::new(()));
    let held = gate.lock().unwrap();
    let door = Arc::clone(&gate);
    let data = Numbers(8, move |index| {
        if index == 5 {
            drop(door.lock());
        }
        Ok(())
    });
    let loader = DataLoader::builder(data).batch_size(4).num_workers(1);
    let loader = loader.timeout(Duration::from_millis(300)).build().unwrap();
    let mut batches = loader.iter();
    let first = batches.next().unwrap();
    // On a busy machine the first batch may be late, too.
    let error = match first {
        Ok(_) => batches.next().unwrap().unwrap_err(),
        Err(error) => error,
    };
    assert!(matches!(error, LoaderError::Timeout { worker: 0, .. }), "{error}");
    drop(held);
    drop(batches);
}

/// Whoever leaves in the middle leaves no thread behind: the threads' share in the data set is given back.
#[test]
fn leaving_in_the_middle_ends_the_workers() {
    for taken in [0, 1, 3] {
        let data = Arc::new(Numbers(1000, |_| {
            std::thread::sleep(Duration::from_micros(200));
            Ok(())
        }));
        let loader = DataLoader::builder(Arc::clone(&data)).batch_size(10).num_workers(3);
        let loader = loader.build().unwrap();
        let owners = Arc::strong_count(&data);
        let mut batches = loader.iter();
        assert_eq!(batches.by_ref().take(taken).filter(Result::is_ok).count(), taken);
        drop(batches);
        drop(loader);
        // Joined, not only told: nobody but this test has the data set now.
        assert_eq!((owners, Arc::strong_count(&data)), (2, 1));
    }
}

#[test]
fn a_worker_that_cannot_end_is_left_behind() {
    let barrier = Arc::new(Barrier::new(2));
    let door = Arc::clone(&barrier);
    let data = Numbers(8, move |index| {
        if index == 1 {
            // The test comes to the first once the worker is here, and to the second when it is to go on.
            door.wait();
            door.wait();
        }
        Ok(())
    });
    let loader = DataLoader::builder(data).num_workers(1).build().unwrap();
    let mut batches = loader.iter();
    assert!(batches.next().unwrap().is_ok());
    barrier.wait();
    let started = Instant::now();
    drop(batches);
    assert!(started.elapsed() >= Duration::from_secs(5));
    barrier.wait();
}

#[test]
fn workers_are_numbered_and_seeded() {
    let infos = |seed, workers: usize| {
        let seen: Arc<Mutex<Vec<WorkerInfo>>> = Arc::default();
        let notes = Arc::clone(&seen);
        let loader = DataLoader::builder(plain(30)).num_workers(workers).seed(seed);
        let loader = loader.worker_init(move |info| {
            assert_eq!(worker_info(), Some(info));
            notes.lock().unwrap().push(info);
            Ok::<_, String>(())
        });
        let loader = loader.build().unwrap();
        assert_eq!((all(&loader).len(), all(&loader).len()), (30, 30));
        let mut seen = seen.lock().unwrap().clone();
        // By pass, as all of one are gone before the next begins.
        seen[..workers].sort_unstable_by_key(|info| info.id);
        seen[workers..].sort_unstable_by_key(|info| info.id);
        seen
    };
    let seen = infos(4, 3);
    assert_eq!(seen.iter().map(|info| info.id).collect::<Vec<_>>(), [0, 1, 2, 0, 1, 2]);
    assert!(seen.iter().all(|info| info.num_workers == 3));
    assert_eq!(seen[2].seed, seen[0].seed.wrapping_add(2));
    let different: HashSet<_> = seen.iter().chain(&infos(5, 3)).map(|info| info.seed).collect();
    assert_eq!(different.len(), 12);
    assert_eq!(seen, infos(4, 3));
    assert_eq!(worker_info(), None);
}

#[test]
fn a_worker_that_cannot_begin_is_named() {
    let loader = DataLoader::builder(plain(30)).num_workers(2);
    let loader = loader.worker_init(|info| match info.id {
        1 => Err("no licence"),
        _ => Ok(()),
    });
    let loader = loader.build().unwrap();
    let mut batches = loader.iter();
    assert!(batches.next().unwrap().is_ok());
    let error = batches.next().unwrap().unwrap_err();
    assert!(matches!(error, LoaderError::WorkerInit { worker: 1, .. }), "{error}");
}

/// p33: what is drawn for a sample is its own, whoever loads it.
#[test]
fn p33_a_samples_seed_does_not_depend_on_who_loads_it() {
    struct Seeds;
    impl Dataset for Seeds {
        type Sample = i64;
        type Error = String;
        fn len(&self) -> usize {
            50
        }
        fn get(&self, _index: usize) -> Result<i64, String> {
            Ok(sample_seed().cast_signed())
        }
    }
    let seeds = |workers: usize, batch: usize| {
        let loader = DataLoader::builder(Seeds).batch_size(batch).shuffle(true);
        let loader = loader.num_workers(workers).build().unwrap();
        (all(&loader).concat(), all(&loader).concat())
    };
    let (first, second) = seeds(0, 5);
    let different: HashSet<_> = first.iter().chain(&second).collect();
    assert_eq!(different.len(), 100);
    assert_eq!(seeds(3, 7).0, first);
    assert_eq!(sample_seed(), 0);
}

#[test]
fn own_collation_and_changes_run_where_batches_are_made() {
    let loader = DataLoader::builder(plain(6)).batch_size(3).num_workers(2);
    let loader = loader.collate(|samples: Vec<i64>| {
        if samples.contains(&4) {
            return Err("four");
        }
        Ok(samples.into_iter().sum::<i64>())
    });
    let loader = loader.build().unwrap().map(|sum| {
        assert!(worker_info().is_some());
        Ok::<_, String>((sum, "batch"))
    });
    let mut batches = loader.iter();
    assert_eq!(batches.next().unwrap().unwrap(), (3, "batch"));
    let error = batches.next().unwrap().unwrap_err();
    assert_eq!(error.to_string(), "making a batch of samples 3, 4, 5: four");
    let loader = DataLoader::builder(plain(2)).build().unwrap().map(|_| Err::<(), _>("not today"));
    assert!(matches!(loader.iter().next(), Some(Err(LoaderError::Map { .. }))));
}

#[test]
fn rows_of_tensors_are_gathered_at_once() {
    let ys = Tensor::arange(50, kind::INT64_CPU);
    let xs = ys.to_kind(Kind::Float).unsqueeze(1).repeat([1, 3]);
    let data = TensorDataset::new((xs, ys)).unwrap();
    for workers in [0, 2] {
        let loader = DataLoader::builder(data.clone()).batch_size(8).shuffle(true);
        let loader = loader.num_workers(workers).build().unwrap();
        let mut seen = Vec::new();
        for batch in &loader {
            let (x, y) = batch.unwrap();
            assert_eq!(x.select(1, 2).to_kind(Kind::Int64), y);
            seen.extend(values(y));
        }
        seen.sort_unstable();
        assert_eq!(seen, (0..50).collect::<Vec<_>>());
    }
}

#[test]
fn a_sampler_that_asks_for_what_is_not_there_is_an_error() {
    let loader = DataLoader::builder(plain(5)).sampler(RandomSampler::new(6)).batch_size(6);
    let error = loader.build().unwrap().iter().next().unwrap().unwrap_err();
    assert!(matches!(error, LoaderError::NoSuchSample { index: 5, len: 5 }), "{error}");
}

#[test]
fn any_sampler_serves() {
    let weights = WeightedSampler::with_replacement([0.0, 1.0, 1.0], 20).unwrap();
    let loader = DataLoader::builder(plain(3)).sampler(weights).batch_size(6).build().unwrap();
    let drawn = all(&loader).concat();
    assert!(drawn.len() == 20 && drawn.iter().all(|&index| index > 0));
    let loader = DataLoader::builder(plain(100)).sampler(FeistelSampler::new(100)).num_workers(2);
    let mut drawn = all(&loader.build().unwrap()).concat();
    assert_ne!(drawn, (0..100).collect::<Vec<_>>());
    drawn.sort_unstable();
    assert_eq!(drawn, (0..100).collect::<Vec<_>>());
}

/// A stream in four parts, part `k` of the numbers `100 k ..`, of unlike lengths.
struct Parts([i64; 4]);

impl IterableDataset for Parts {
    type Sample = i64;
    type Error = String;

    fn read(&self, share: Share, epoch: u64) -> Samples<i64, String> {
        let parts: Vec<(i64, i64)> = (0..).zip(self.0).collect();
        let mine = shard(parts, share);
        Box::new(mine.flat_map(move |(part, len)| {
            (0..len).map(move |k| match (part, k) {
                (3, 7) => Err("part 3 ends in rubbish".to_owned()),
                _ => Ok(1000 * epoch as i64 + 100 * part + k),
            })
        }))
    }
}

#[test]
fn a_stream_is_read_in_parts_and_in_order() {
    let of = |workers: usize| {
        let loader = DataLoader::stream(Parts([5, 2, 4, 3])).batch_size(2).num_workers(workers);
        let loader = loader.build().unwrap();
        assert_eq!((loader.len(), loader.samples()), (0, None));
        assert!(matches!(loader.state(), Err(StateError::Iterable)));
        all(&loader)
    };
    let whole = [vec![0, 1], vec![2, 3], vec![4, 100], vec![101, 200], vec![201, 202]];
    assert_eq!(of(0)[..5], whole);
    assert_eq!(of(1), of(0));
    // The second worker has parts 1 and 3, and ends first.
    let turns = [vec![0, 1], vec![100, 101], vec![2, 3], vec![300, 301], vec![4, 200]];
    assert_eq!(of(2)[..5], turns);
    assert_eq!(of(2)[5..], [vec![302], vec![201, 202], vec![203]]);
}

#[test]
fn an_error_in_a_stream_names_its_reader() {
    let loader = DataLoader::stream(Parts([1, 1, 1, 9])).num_workers(2).build().unwrap();
    let error = loader.iter().find_map(Result::err).unwrap();
    assert!(matches!(error, LoaderError::Stream { reader: 1, after: 8, .. }), "{error}");
    assert_eq!(error.to_string(), "the sample after 8 of reader 1: part 3 ends in rubbish");
}

#[test]
fn a_state_survives_its_file_and_goes_on() {
    let loader =
        || DataLoader::builder(plain(23)).batch_size(4).shuffle(true).seed(9).num_workers(2);
    let whole = loader().build().unwrap();
    let epochs = [all(&whole), all(&whole), all(&whole)];
    let first = loader().build().unwrap();
    assert!(matches!(first.state(), Err(StateError::NotBegun)));
    assert_eq!(all(&first), epochs[0]);
    assert!(first.state().unwrap().is_finished());
    let mut batches = first.iter();
    for batch in &epochs[1][..2] {
        assert_eq!(&values(batches.next().unwrap().unwrap()), batch);
    }
    let text = serde_json::to_string(&first.state().unwrap()).unwrap();
    drop(batches);
    let state: LoaderState = serde_json::from_str(&text).unwrap();
    assert_eq!((state.epoch(), state.next_epoch(), state.samples_taken()), (1, 1, 8));
    let second = loader().build().unwrap();
    second.resume(state.clone()).unwrap();
    assert_eq!((second.len(), second.state().unwrap()), (4, state));
    assert_eq!(all(&second), epochs[1][2..]);
    assert_eq!(all(&second), epochs[2]);
    // A finished epoch is not begun again.
    let third = loader().build().unwrap();
    third.resume(second.state().unwrap()).unwrap();
    third.set_epoch(1);
    assert_ne!(all(&third), epochs[1]);
}

#[test]
fn a_state_that_does_not_fit_is_refused() {
    let loader = |len, seed| DataLoader::builder(plain(len)).shuffle(true).seed(seed);
    let first = loader(10, 1).build().unwrap();
    assert!(first.iter().next().unwrap().is_ok());
    let state = first.state().unwrap();
    let refused = |loader: DataLoader<Tensor>, state: &LoaderState| {
        loader.resume(state.clone()).unwrap();
        match loader.iter().next().unwrap() {
            Err(LoaderError::State(error)) => error,
            other => panic!("not refused: {other:?}"),
        }
    };
    assert!(matches!(refused(loader(11, 1).build().unwrap(), &state), StateError::Samples { .. }));
    assert!(matches!(refused(loader(10, 2).build().unwrap(), &state), StateError::Seed { .. }));
    let other = DataLoader::builder(plain(10)).sampler(FeistelSampler::new(10)).seed(1);
    assert!(matches!(refused(other.build().unwrap(), &state), StateError::Order));
    let late = loader(10, 1).build().unwrap();
    late.set_epoch(3);
    assert!(matches!(refused(late, &state), StateError::Epoch { saved: 0, told: 3 }));
}

#[test]
fn whole_and_uneven_loaders_are_plain_ones_on_one_rank() {
    let builder = || DataLoader::builder(plain(7)).batch_size(2);
    let plain = all(&builder().build().unwrap());
    for remainder in [Remainder::Repeat, Remainder::Drop, Remainder::Uneven] {
        assert_eq!(all(&builder().remainder(remainder).build().unwrap()), plain);
    }
    assert_eq!(all(&builder().whole().build().unwrap()), plain);
    assert_eq!(all(&builder().evaluation().num_workers(Workers::Auto).build().unwrap()), plain);
    // Without a GPU it changes nothing.
    assert_eq!(all(&builder().build().unwrap().pin_memory()), plain);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn every_sample_comes_once_in_any_setting(
        len in 0usize..60, batch in 1usize..9, workers in 0usize..4, prefetch in 1usize..4, shuffle: bool,
    ) {
        let loader = DataLoader::builder(plain(len)).batch_size(batch).shuffle(shuffle);
        let loader = loader.num_workers(workers).prefetch_factor(prefetch).build().unwrap();
        let batches = all(&loader);
        prop_assert_eq!(batches.len(), loader.len());
        let (last, full) = batches.split_last().map_or((&[][..], &[][..]), |(last, full)| (&last[..], full));
        prop_assert!(full.iter().all(|full| full.len() == batch) && last.len() <= batch);
        let mut seen = batches.concat();
        if !shuffle {
            prop_assert!(seen.is_sorted());
        }
        seen.sort_unstable();
        prop_assert_eq!(seen, (0..len as i64).collect::<Vec<_>>());
    }
}
