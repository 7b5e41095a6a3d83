//! tch's iterators in all their positions, the full batch in each step, and batches drawn at random.
use std::collections::HashSet;

use anyhow::{Context, Result, ensure};
use tch::data::{Iter2, TextData};
use tch::nn::{self, OptimizerConfig};
use tch::{Device, Kind, Tensor, kind};

use super::course::{
    BATCH, STEPS, Seen, all_rows, compile_twice, dataset, follow, follow_on, follow_seen,
    follow_seen_with, mean_course, seed, sgd,
};
use super::one_process::{Batch, FEATURES, Net, data, equal};

/// A batch size that does not divide a rank's share of the rows.
const ODD: i64 = 5;

/// Every rank has drawn another number of random numbers.
fn draw_some() {
    let _ = Tensor::rand([1 + ddp_runtime::rank() as i64], kind::FLOAT_CPU);
}

macro_rules! programs {
    ($($attribute:meta)?) => {
        $(#[$attribute])?
        pub(super) fn s20_head((xs, ys): &Batch, seen: &mut Seen) -> Result<Vec<Tensor>> {
            let device = Device::cuda_if_available();
            let mut vs = nn::VarStore::new(device);
            let net = Net::new(&vs.root());
            vs.double();
            let mut opt = sgd(&vs)?;
            for _epoch in 0..2 {
                draw_some();
                for (x, y) in Iter2::new(xs, ys, BATCH).to_device(device).shuffle() {
                    seen.note(&x, &y);
                    opt.backward_step(&net.loss(&x, &y));
                }
            }
            Ok(vs.trainable_variables())
        }

        $(#[$attribute])?
        pub(super) fn s20_variable((xs, ys): &Batch, limit: usize, seen: &mut Seen) -> Result<Vec<Tensor>> {
            let mut vs = nn::VarStore::new(Device::Cpu);
            let net = Net::new(&vs.root());
            vs.double();
            let mut opt = sgd(&vs)?;
            let mut it = Iter2::new(xs, ys, ODD);
            it.shuffle().return_smaller_last_batch();
            for (i, (x, y)) in it.enumerate().take(limit) {
                ensure!(i == seen.len(), "number {i} of {}", seen.len());
                seen.note(&x, &y);
                opt.backward_step(&net.loss(&x, &y));
            }
            Ok(vs.trainable_variables())
        }

        $(#[$attribute])?
        pub(super) fn s20_whole_batches((xs, ys): &Batch, seen: &mut Seen) -> Result<Vec<Tensor>> {
            let mut vs = nn::VarStore::new(Device::Cpu);
            let net = Net::new(&vs.root());
            vs.double();
            let mut opt = sgd(&vs)?;
            for (x, y) in Iter2::f_new(xs, ys, ODD)?.shuffle() {
                seen.note(&x, &y);
                opt.backward_step(&net.loss(&x, &y));
            }
            Ok(vs.trainable_variables())
        }

        $(#[$attribute])?
        pub(super) fn s20_for_each(rows: &Batch, batch: i64) -> Result<Vec<Tensor>> {
            let data = dataset(rows);
            let mut vs = nn::VarStore::new(Device::Cpu);
            let net = Net::new(&vs.root());
            vs.double();
            let mut opt = sgd(&vs)?;
            let mut step = |x: &Tensor, y: &Tensor| opt.backward_step(&net.loss(x, y));
            data.train_iter(batch).for_each(|(x, y)| step(&x, &y));
            let n = data.train_iter(batch).count();
            let mut found = vs.trainable_variables();
            found.push(Tensor::from(n as i64));
            Ok(found)
        }

        $(#[$attribute])?
        pub(super) fn s20_text(corpus: &TextData, seen: &mut Seen) -> Result<Vec<Tensor>> {
            let mut vs = nn::VarStore::new(Device::Cpu);
            let net = Net::new(&vs.root());
            vs.double();
            let mut opt = sgd(&vs)?;
            for text in corpus.iter_shuffle(FEATURES + 1, BATCH) {
                let text = text.to_kind(Kind::Double) / 26.0;
                let x = text.narrow(1, 0, FEATURES).contiguous();
                let y = text.narrow(1, FEATURES, 1).contiguous();
                seen.note(&x, &y);
                opt.backward_step(&net.loss(&x, &y));
            }
            Ok(vs.trainable_variables())
        }

        $(#[$attribute])?
        pub(super) fn s21((xs, ys): &Batch, _batch: i64) -> Result<Vec<Tensor>> {
            let mut vs = nn::VarStore::new(Device::Cpu);
            let net = Net::new(&vs.root());
            vs.double();
            let mut opt = nn::Adam::default().build(&vs, 1e-2)?;
            for epoch in 1..20 {
                let loss = net.loss(xs, ys);
                opt.backward_step(&loss);
                println!("{epoch}: {:.6}", f64::try_from(&loss)?);
            }
            Ok(vs.trainable_variables())
        }

        $(#[$attribute])?
        pub(super) fn s22((xs, ys): &Batch, seen: &mut Seen) -> Result<Vec<Tensor>> {
            let mut vs = nn::VarStore::new(Device::Cpu);
            let net = Net::new(&vs.root());
            vs.double();
            let mut opt = sgd(&vs)?;
            let n = xs.size()[0];
            for _step in 0..9 {
                let index = Tensor::randint(n, [BATCH], kind::INT64_CPU);
                let (x, y) = (xs.index_select(0, &index), ys.index_select(0, &index));
                seen.note(&x, &y);
                opt.backward_step(&net.loss(&x, &y));
            }
            Ok(vs.trainable_variables())
        }
    };
}
compile_twice!();

/// Letters without a pattern, so that no two windows are alike.
fn corpus() -> Result<TextData> {
    let mut state = 7_u32;
    let letters: String = (0..120)
        .map(|_| {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            char::from(b'a' + (state >> 24) as u8 % 26)
        })
        .collect();
    let path = std::env::temp_dir().join(format!("ddp-s20-{}.txt", std::process::id()));
    std::fs::write(&path, letters).with_context(|| format!("writing {}", path.display()))?;
    let corpus = TextData::new(&path);
    std::fs::remove_file(&path)?;
    Ok(corpus?)
}

pub(super) fn s20_iterators() -> Result<()> {
    let rows = all_rows();
    let seen = follow_seen("in the head", plain::s20_head, shared::s20_head)?;
    seen.are_passes_over(&rows, STEPS)?;
    for (limit, steps) in [(50, 6), (3, 3)] {
        let seen = follow_seen_with(
            "in a variable",
            |rows, seen| plain::s20_variable(rows, limit, seen),
            |rows, seen| shared::s20_variable(rows, limit, seen),
            |net, _, (x, y)| net.loss(x, y),
        )?;
        ensure!(seen.len() == steps, "{} steps of at most {limit}", seen.len());
        if limit == 50 {
            // The smaller last batch came to all ranks, so that no row is missing.
            seen.are_passes_over(&rows, 6)?;
        }
    }
    let seen = follow_seen("whole batches", plain::s20_whole_batches, shared::s20_whole_batches)?;
    ensure!(seen.len() == 5, "{} whole batches", seen.len());
    follow("for_each", plain::s20_for_each, shared::s20_for_each)
}

pub(super) fn s20_text() -> Result<()> {
    let corpus = corpus()?;
    let seen = follow_seen_with(
        "text",
        |_, seen| plain::s20_text(&corpus, seen),
        |_, seen| shared::s20_text(&corpus, seen),
        |net, _, (x, y)| net.loss(x, y),
    )?;
    let windows = 120 - FEATURES;
    let expected = windows / (BATCH * ddp_runtime::world_size() as i64);
    ensure!(seen.len() as i64 == expected, "{} steps instead of {expected}", seen.len());
    let mut taken = HashSet::new();
    for (x, y) in seen.rounds()?.iter().flatten() {
        let window = Vec::<f64>::try_from((Tensor::cat(&[x, y], 1) * 26.0).flatten(0, -1))?;
        for letters in window.chunks(FEATURES as usize + 1) {
            let letters: Vec<i64> = letters.iter().map(|letter| letter.round() as i64).collect();
            ensure!(taken.insert(letters.clone()), "{letters:?} came twice");
        }
    }
    Ok(())
}

pub(super) fn s21_full_batch() -> Result<()> {
    follow_on("full batch", &data(24), plain::s21, shared::s21)
}

/// Seeded alike, the ranks draw different batches all the same.
pub(super) fn s22_random_batches() -> Result<()> {
    follow_seen("seeded apart", plain::s22, shared::s22)?;
    let (rows, mut seen) = (all_rows(), Seen::default());
    seed();
    let found = shared::s22(&rows, &mut seen)?;
    let rounds = seen.rounds()?;
    for (step, round) in rounds.iter().enumerate() {
        for (rank, (x, _)) in round.iter().enumerate() {
            let again = round[..rank].iter().any(|(other, _)| other.equal(x));
            ensure!(!again, "step {step}: rank {rank} drew another rank's batch");
        }
    }
    let expected = mean_course(&rounds, |net, _, (x, y)| net.loss(x, y))?;
    equal("seeded alike", &found, &expected)?;
    if ddp_runtime::world_size() == 1 {
        seed();
        equal("plain", &found, &plain::s22(&rows, &mut Seen::default())?)?;
    }
    Ok(())
}
