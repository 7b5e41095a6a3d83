//! What an expansion costs, stage by stage, in a build like that of users: unoptimised.
//!
//! `cargo test -p ddp-macros --lib cost -- --nocapture` prints it. Counted is the time of the processor, not that of the
//! clock, so that a busy machine changes little.

use super::shapes::messages;
use crate::errors::Errors;
use crate::expand::expand;
use crate::{analysis, check, function, marks, options, plan, rewrite};
use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use rustix::time::{ClockId, clock_gettime};
use std::fmt::Write;
use std::time::Duration;

/// What this thread has used of a processor.
fn used() -> Duration {
    let now = clock_gettime(ClockId::ThreadCPUTime);
    Duration::try_from(now).expect("a clock that began at 0")
}

/// A function of 700 lines, of what training functions are made of; `end` ends each batch.
fn long_function(end: &str) -> TokenStream {
    let (mut body, mut i) = (String::new(), 0);
    while body.lines().count() < 700 {
        let _ = write!(
            body,
            "let net{i} = Net::new(&vs.root(), {i});
             let device{i} = if Cuda::is_available() {{ Device::Cuda(0) }} else {{ Device::Cpu }};
             for epoch in 0..epochs {{
                 let mut total = 0.0;
                 for (x, y) in data.train_iter(64).shuffle().to_device(device{i}) {{
                     let loss = net{i}.forward_t(&x, true).cross_entropy_for_logits(&y);
                     opt.backward_step(&loss);
                     total += f64::try_from(&loss)?;
                     bar.set_message(format!(\"{{:.3}}\", total));
                     {end}
                 }}
                 println!(\"{{epoch}}: {{total:.4}} {{}}\", evaluate(&net{i}, &data)?);
                 vs.save(format!(\"{{epoch}}.ot\"))?;
             }}\n"
        );
        i += 1;
    }
    format!("fn train(vs: &VarStore, data: &Dataset) -> Result<()> {{ {body} Ok(()) }}")
        .parse()
        .expect("the function is tokens")
}

/// The stages of `expand`, each with what it used.
fn stages(item: TokenStream) -> Vec<(&'static str, Duration)> {
    let mut found = Vec::new();
    let mut last = used();
    let mut stage = |name| {
        let now = used();
        found.push((name, now - last));
        last = now;
    };
    let mut errors = Errors::default();
    let options = options::parse(quote!(), &mut errors);
    let mut function = function::parse(item, &mut errors).expect("a function");
    stage("parse");
    let marks = marks::take(&mut function.block, &mut errors);
    stage("marks");
    let loops = analysis::loops::find(&function.sig, &function.block, &marks);
    stage("analysis");
    check::check(&function.block, &loops, &mut errors);
    errors.propagate().expect("nothing is wrong");
    stage("check");
    let plan = plan::decide(&function.sig, &loops, marks.returns);
    stage("plan");
    rewrite::apply(&mut function, &options, &plan);
    stage("rewrite");
    let tokens = function.to_token_stream();
    stage("print");
    drop((function, loops, plan, tokens));
    stage("drop");
    found
}

fn least<T: Ord>(all: impl Iterator<Item = T>) -> T {
    all.min().expect("a value")
}

/// Prints what a function costs, and gives the whole.
fn cost(name: &str, item: TokenStream) -> Duration {
    const ROUNDS: usize = 10;
    let whole = least((0..ROUNDS).map(|_| {
        let start = used();
        let expanded = expand(quote!(), item.clone());
        let used = used() - start;
        assert_eq!(messages(expanded), Vec::<String>::new());
        used
    }));
    println!("expanding 700 lines {name}: {whole:.1?}");
    let rounds: Vec<_> = (0..ROUNDS).map(|_| stages(item.clone())).collect();
    for (place, (name, _)) in rounds[0].iter().enumerate() {
        println!("{name:>10}: {:.1?}", least(rounds.iter().map(|round| round[place].1)));
    }
    whole
}

#[test]
fn a_long_function_expands_quickly() {
    let plain = cost("without branches", long_function(""));
    let end = "if rank() == 0 && total.is_nan() { log::warn!(\"no number\"); }
               if should_stop(total > limit) { break; }";
    let branches = cost("with branches", long_function(end));
    // A bound for any machine; the figures that count are those printed.
    let bound = Duration::from_millis(1000);
    assert!(plain < bound && branches < bound, "{plain:?}, {branches:?}");
}
