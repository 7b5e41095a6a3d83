//! The expander as a library, and what must hold of it for any text: no panic, no hang, nothing of ours left over.
//!
//! A procedural macro's crate exports nothing but macros, so its modules are compiled here once more.

#![allow(dead_code, unreachable_pub)]

#[path = "../../ddp-macros/src/analysis/mod.rs"]
mod analysis;
#[path = "../../ddp-macros/src/batch.rs"]
mod batch;
#[path = "../../ddp-macros/src/check.rs"]
mod check;
#[path = "../../ddp-macros/src/errors.rs"]
mod errors;
#[path = "../../ddp-macros/src/expand.rs"]
mod expand;
#[path = "../../ddp-macros/src/function.rs"]
mod function;
#[path = "../../ddp-macros/src/imports.rs"]
mod imports;
#[path = "../../ddp-macros/src/macros.rs"]
mod macros;
#[path = "../../ddp-macros/src/marks.rs"]
mod marks;
#[path = "../../ddp-macros/src/options.rs"]
mod options;
#[path = "../../ddp-macros/src/plan.rs"]
mod plan;
#[path = "../../ddp-macros/src/recognise.rs"]
mod recognise;
#[path = "../../ddp-macros/src/rewrite/mod.rs"]
mod rewrite;
#[path = "../../ddp-macros/src/walk.rs"]
mod walk;

use proc_macro2::TokenStream;
use std::time::{Duration, Instant};

/// Deeper than any program: the parser of tokens calls itself, and would leave the stack, as under any attribute.
const DEPTH: usize = 48;

/// Longer than any expansion of a few kilobytes may take, on a busy machine and unoptimised.
const LIMIT: Duration = Duration::from_secs(10);

/// Expands the attribute: its arguments stand in the first line of the text, the item in the others.
///
/// # Panics
/// When something does not hold: that is what the fuzzer looks for.
pub fn expand_text(text: &str) {
    let (args, item) = text.split_once('\n').unwrap_or(("", text));
    if depth(text) > DEPTH {
        return;
    }
    let (Ok(args), Ok(item)) = (args.parse::<TokenStream>(), item.parse::<TokenStream>()) else {
        return;
    };
    let start = Instant::now();
    let expanded = expand::expand(args, item);
    assert!(start.elapsed() < LIMIT, "it took {:?}", start.elapsed());
    let printed = expanded.to_string();
    let refused = printed.contains("compile_error");
    // An error gives the item back as it was written, whose own names may be anything.
    if refused || text.contains("__ddp") {
        return;
    }
    for tag in ["__ddp_number", "__ddp_open", "__ddp_own", "__ddp_skip"] {
        assert!(!printed.contains(tag), "`{tag}` is left: {printed}");
    }
    if let Err(error) = syn::parse2::<syn::ImplItemFn>(expanded) {
        panic!("the expansion does not parse: {error}\n{printed}");
    }
}

/// How deep brackets may stand in each other.
fn depth(text: &str) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    for letter in text.chars() {
        match letter {
            '(' | '[' | '{' | '<' | '!' | '&' | '*' | '-' | '|' => depth += 1,
            ')' | ']' | '}' | '>' | ';' | ',' => depth = depth.saturating_sub(1),
            _ => {}
        }
        deepest = deepest.max(depth);
    }
    deepest
}
