//! Whatever the body, the macro does not panic, and what it accepts parses.

use super::shapes::messages;
use crate::analysis::{self, devices, exits, ranks, threads};
use crate::errors::Errors;
use crate::expand::expand;
use crate::marks;
use proc_macro2::TokenStream;
use proptest::prelude::*;
use std::fmt::Write;
use syn::Block;

/// Pieces of statements; `{}` stands for an inner block.
const PIECES: &[&str] = &[
    "let x = data.train_iter(64);",
    "let mut it = Iter2::new(&xs, &ys, 32).shuffle()?;",
    "for (x, y) in data.train_iter(64).shuffle() {}",
    "#[ddp(shard)] for part in games.chunks(2) {}",
    "#[ddp(each)] while let Ok(x) = rx.recv() {}",
    "#[ddp(same)] loop {}",
    "'outer: for epoch in 0..9 {}",
    "while n < 3 {}",
    "loop {}",
    "if rank() == 0 {}",
    "if f64::try_from(&loss)? > 1.0 { break; }",
    "if loss.double_value(&[]).is_nan() { continue 'outer; }",
    "match a { Device::Cuda(i) => {}, _ if dbg!(x) => return, _ => return Err(e) }",
    "let step = |x: &Tensor| {};",
    "step(&x);",
    "opt.backward_step(&loss);",
    "loss.backward();",
    "vs.save(\"a.ot\")?;",
    "self.store()?.save(p).unwrap();",
    "println!();",
    "println!(\"{} {x}\", dbg!(a, b));",
    "println!(\"{}\", {});",
    "log::info!(target: \"x\", \"y\");",
    "info!(\"{}\", vec![Device::Cuda(0); 3].len())",
    "eprint! { \"x\" }",
    "let v = vec![println!(\"a\"), return];",
    "let d = gpu.map(Device::Cuda).unwrap_or_else(Device::cuda_if_available);",
    "const D: Device = Device::Cuda(0);",
    "fn inner() { return; }",
    "#[cfg(x)] println!(\"{}\", x);",
    "#[ddp(skip)] {}",
    "#[ddp(nonsense)] call();",
    "std::thread::spawn(move || {});",
    "macro_rules! m { () => { $x.backward() } }",
    "m!(a b c);",
    "let Some(x) = y else { return };",
    "unsafe {}",
    "async {};",
    "let f = async move |x| {};",
    "x += 1;",
    "a[i..j].shuffle(&mut thread_rng());",
    "return",
    "bail!(\"x\")",
    "1 + {}",
    "while epoch < n { {} self.state.epoch += 1; }",
    "loop { *epoch += 1; {} }",
    "if value > 1.0 { opt.step(); } else {}",
    "if should_stop(f64::try_from(&loss)? > 1.0) { return Ok(last) }",
    "while f64::try_from(&loss)? > 1.0 {}",
    "std::fs::create_dir(&path)?;",
    "for x in items.iter().progress() {}",
    "for x in bar.wrap_iter(data.train_iter(8)) {}",
    "let bar = MultiProgress::new().add(ProgressBar::new(3));",
    "log!(target: \"x\", Level::Info, \"{}\", y());",
    "tracing::event!(Level::DEBUG, loss = %x, \"y\");",
    "matches!(Device::Cuda(0), Device::Cuda(i) if i == dbg!(1));",
    "dbg! { x, y }",
    "println! { \"{}\", a(b) }",
    "vec![Device::Cuda(0); n];",
    "rank0(|| {});",
    "main_first(|| {}).unwrap();",
    "for x in shard(items) {}",
    "tch::manual_seed(seed);",
    "f_new(Iter2::f_new(&xs, &ys, 3)?);",
    "let k = (kind::FLOAT_CUDA, kind::INT64_CPU);",
    "stores[i].lock().unwrap().save(&path)?;",
    "(**vs).save(\"a\").map(|_| {});",
    "#[cfg_attr(ddp, ddp(shard))] for x in xs {}",
    "#[allow(x)] #[ddp(same)] for x in xs {}",
    "macro_rules! println { ($($t:tt)*) => {} }",
    "const { [0; 3] };",
    "let f: [u8; { loop { break 3 } }] = g();",
    "let 0..=9 = x else {};",
    "'a: { break 'a {}; }",
    "self.batches = data.train_iter(64);",
    "match x { y if f64::try_from(&loss)? > 1.0 => continue, _ => {} }",
    "let x = loop { break {} };",
    "mean(&loss); sum(2.0); sync(&vs); agree(true);",
    "use other::{self, println, x as info};",
    "own! {}",
    "macro_rules! own { () => {} } own! { {} }",
    "if let Some(x) = y && x > loss.double_value(&[]) && let Ok(z) = w {}",
    "let [a, ..] = b else { continue };",
    "let f = async || { return 1 };",
    "barrier();",
    "std::thread::spawn(|| loss.backward());",
    "s.spawn(|| {});",
    "games.par_iter().for_each(|x| {});",
    "if is_main() && x {}",
    "if self.rank == 0 {}",
    "let main = scope.local_rank() == 0; if main {}",
    "main_only(|| {});",
    "let a = Device::Cuda(1);",
    "let a = Device::Cuda(i);",
    "let all: Vec<_> = (0..8).map(Device::Cuda).collect();",
    "for i in 0..8 { VarStore::new(Device::Cuda(i)); {} }",
    "for (x, y) in data.train_iter(64) { let loss = net.loss(&x); {} opt.backward_step(&loss); }",
    "if loss.double_value(&[]) > 1.0 { {} break }",
    "let value = f64::try_from(&loss)?;",
    "if value > 1.0 {} else { continue }",
    "while value > 1.0 { for x in data.train_iter(64) { value += loss.double_value(&[]); {} } }",
];

/// A block of pieces, with blocks inside.
fn block() -> impl Strategy<Value = String> {
    let leaf = Just("{ }".to_owned());
    leaf.prop_recursive(4, 48, 5, |inner| {
        prop::collection::vec((prop::sample::select(PIECES), inner), 0..5).prop_map(|parts| {
            let mut text = String::from("{ ");
            for (piece, inner) in parts {
                let filled = match piece.rfind("{}") {
                    Some(at) => format!("{}{inner}{}", &piece[..at], &piece[at + 2..]),
                    None => piece.to_owned(),
                };
                let _ = write!(text, "{filled} ");
            }
            text + "}"
        })
    })
}

const SIGNATURES: &[&str] = &[
    "fn main() -> ExitCode",
    "fn f(self: Box<Self>) -> Outcome<'_, impl Fn() -> u8>",
    "fn f(&self) -> Self::Output",
    "fn f() -> <T as Job>::Done where T: Job",
    "extern \"C\" fn f(mut vs: VarStore, #[cfg(x)] opt: &mut Sgd) -> Box<dyn Error>",
    "fn f()",
    "fn f() -> !",
    "fn f() -> Result<(), Error>",
    "pub(crate) unsafe fn f<'a, T: Into<f64>, const N: usize>(&'a mut self, vs: &mut VarStore) -> &'a T where T: 'a",
    "default fn f((a, b): (i64, i64), vs: &nn::VarStore, opt: &mut nn::Optimizer) -> impl Iterator<Item = u8>",
    "async fn f() -> ()",
    "const fn f()",
];

const ARGUMENTS: &[&str] = &[
    "",
    "seed = 1",
    "explain",
    "bach",
    "crate = \"a::b\", batch = \"global\"",
    "backend = \"shm\", print = \"all\", timeout = 3, bucket_mb = 0.5",
    "uneven = \"join\", accumulate = 4, sync_batch_norm, compress = \"bf16\"",
    "batch = \"global\", explain = true, seed = 0",
];

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn no_body_makes_it_panic(
        signature in prop::sample::select(SIGNATURES),
        body in block(),
        args in prop::sample::select(ARGUMENTS),
    ) {
        let item: TokenStream = format!("{signature} {body}").parse().expect("the pieces are tokens");
        let args: TokenStream = args.parse().expect("the arguments are tokens");
        let expanded = expand(args, item);
        let printed = expanded.to_string();
        for tag in ["__ddp_number", "__ddp_open", "__ddp_own", "__ddp_skip"] {
            prop_assert!(!printed.contains(tag), "`{tag}` is left: {expanded}");
        }
        if messages(expanded.clone()).is_empty() {
            let parsed = syn::parse2::<syn::ImplItemFn>(expanded.clone());
            prop_assert!(parsed.is_ok(), "{:?}\n{expanded}", parsed.err().map(|e| e.to_string()));
        }
    }

    /// A rule that is left out for want of a cause would have found nothing.
    #[test]
    fn rules_without_a_cause_find_nothing(body in block()) {
        // Not all pieces are statements.
        let Ok(mut body) = syn::parse_str::<Block>(&body) else { return Ok(()) };
        let signature = syn::parse_quote!(fn f(opt: &mut Optimizer));
        let marks = marks::take(&mut body, &mut Errors::default());
        let loops = analysis::loops::find(&signature, &body, &marks);
        if !loops.seen.devices {
            prop_assert!(devices::further(&body).is_empty());
        }
        if !loops.seen.threads {
            prop_assert!(threads::steps(&body).is_empty());
        }
        if !loops.seen.ranks {
            prop_assert!(ranks::lonely_collectives(&body).is_empty());
        }
        if !loops.may_differ() {
            prop_assert!(exits::unvoted(&body, &loops).is_empty());
        }
    }

    #[test]
    fn no_tokens_make_it_panic(args in "[a-z_=\", 0-9.]{0,24}", item in "[a-z#\\[\\](){};:,.!'|&<>=\" 0-9]{0,60}") {
        if let (Ok(args), Ok(item)) = (args.parse::<TokenStream>(), item.parse::<TokenStream>()) {
            expand(args, item);
        }
    }
}
