//! Where a loop takes its items from.

use super::names::Names;
use crate::macros;
use crate::recognise::{self, Site};
use syn::{Expr, ExprCall, ExprMethodCall, Ident, Path, RangeLimits};

/// The source of a loop's items.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Source {
    /// Batches that are dealt out by the runtime.
    Shared,
    /// What looks like a loader that deals its batches out by itself. Its type has to prove it.
    Loader,
    /// An evaluation set, which every rank sees whole.
    Whole,
    /// A range of integers, or a list of constants: numbers, no data.
    Plain,
    /// Anything else.
    #[default]
    Unknown,
}

/// Types of the runtime that share by themselves.
const BY_HAND: [&str; 3] = ["DistributedSampler", "ShardedIter2", "ShardedTextIter"];

/// The runtime's loader.
pub(super) const LOADER: &str = "DataLoader";

/// Methods that take the items away: what comes out is a figure.
const FIGURES: [&str; 8] = ["count", "len", "size_hint", "sum", "max", "min", "product", "last"];

/// Methods of a plain range that leave it one.
const OF_RANGE: [&str; 14] = [
    "rev",
    "take",
    "skip",
    "enumerate",
    "into_iter",
    "iter",
    "by_ref",
    "progress",
    "progress_count",
    "progress_with",
    "progress_with_style",
    "cycle",
    "clone",
    "take_while",
];

/// The source of a `for` loop, which may also name a loader's batches where nothing else says that it is one.
pub(crate) fn of_head(expr: &Expr, names: &Names) -> Source {
    match of(expr, names) {
        Source::Unknown if names_batches(expr) => Source::Loader,
        source => source,
    }
}

/// Whether the expression, through what follows, is `x.batches()`.
fn names_batches(expr: &Expr) -> bool {
    match expr {
        Expr::MethodCall(call) => {
            (call.method == "batches" && call.args.is_empty()) || names_batches(&call.receiver)
        }
        Expr::Paren(inner) => names_batches(&inner.expr),
        Expr::Reference(inner) => names_batches(&inner.expr),
        Expr::Try(inner) => names_batches(&inner.expr),
        _ => false,
    }
}

/// The source an expression is.
pub(crate) fn of(expr: &Expr, names: &Names) -> Source {
    match expr {
        Expr::Paren(inner) => of(&inner.expr, names),
        Expr::Group(inner) => of(&inner.expr, names),
        Expr::Reference(inner) => of(&inner.expr, names),
        Expr::Try(inner) => of(&inner.expr, names),
        Expr::Range(range) if range.start.is_some() => match (&range.limits, &range.end) {
            (RangeLimits::Closed(_), None) => Source::Unknown,
            _ => Source::Plain,
        },
        Expr::Array(array) if array.elems.iter().all(is_constant) => Source::Plain,
        Expr::Path(_) | Expr::Field(_) => super::place(expr)
            .and_then(|place| names.get(&place))
            .map_or(Source::Unknown, |binding| binding.source),
        Expr::Call(call) => of_call(call, names),
        Expr::MethodCall(call) => of_method(call, names),
        _ => Source::Unknown,
    }
}

fn is_constant(expr: &Expr) -> bool {
    match expr {
        Expr::Lit(_) => true,
        Expr::Unary(inner) => is_constant(&inner.expr),
        Expr::Tuple(tuple) => tuple.elems.iter().all(is_constant),
        _ => false,
    }
}

fn of_call(call: &ExprCall, names: &Names) -> Source {
    let first = || call.args.first().map_or(Source::Unknown, |first| of(first, names));
    if let Some(mac) = macros::opened(call) {
        let bar = macros::is_one_of(&mac.path, &["tqdm"], &["tqdm", "kdam"]);
        return if bar { first() } else { Source::Unknown };
    }
    let Some(path) = recognise::callee(call) else { return Source::Unknown };
    let name = macros::name(path);
    if is_iter2(call, path, &name) {
        return Source::Shared;
    }
    let by_hand = |name: &Ident| BY_HAND.iter().any(|known| name == known);
    if path.segments.iter().any(|segment| by_hand(&segment.ident)) {
        return Source::Shared;
    }
    if path.segments.iter().any(|segment| segment.ident == LOADER) {
        return Source::Loader;
    }
    match name.as_str() {
        // The user shares by hand.
        "shard" => Source::Shared,
        "dispatch" => Source::Loader,
        "tqdm" | "enumerate" => first(),
        "zip" => zipped(call.args.iter(), names),
        _ => Source::Unknown,
    }
}

fn of_method(call: &ExprMethodCall, names: &Names) -> Source {
    let method = call.method.to_string();
    match method.as_str() {
        name if is_data(call, name) => return Source::Shared,
        "test_iter" => return Source::Whole,
        // A progress bar around an iterator.
        "wrap_iter" => {
            return call.args.first().map_or(Source::Unknown, |first| of(first, names));
        }
        // What is left of batches in a run that goes on: `progress.batches(data.train_iter(64))`.
        "batches" if call.args.len() == 1 => {
            return match of_head(&call.args[0], names) {
                Source::Plain => Source::Unknown,
                source => source,
            };
        }
        "zip" => return zipped([&*call.receiver].into_iter().chain(&call.args), names),
        name if FIGURES.contains(&name) => return Source::Unknown,
        _ => {}
    }
    match of(&call.receiver, names) {
        Source::Plain if OF_RANGE.contains(&method.as_str()) => Source::Plain,
        Source::Plain => Source::Unknown,
        source => source,
    }
}

/// Whether a call of the method of this name makes shared batches.
pub(super) fn is_data(call: &ExprMethodCall, name: &str) -> bool {
    recognise::method_site(call, name) == Some(Site::Data)
}

/// Whether a call of the function at this path, of this name, makes an `Iter2`.
pub(super) fn is_iter2(call: &ExprCall, path: &Path, name: &str) -> bool {
    matches!(recognise::call_site(call, path, name), Some(Site::Iter2 { .. }))
}

/// Streams side by side: shared if one of them is, plain if all are.
fn zipped<'a>(parts: impl Iterator<Item = &'a Expr>, names: &Names) -> Source {
    let sources: Vec<Source> = parts.map(|part| of(part, names)).collect();
    [Source::Shared, Source::Loader, Source::Whole]
        .into_iter()
        .find(|wanted| sources.contains(wanted))
        .unwrap_or(match sources.iter().all(|source| *source == Source::Plain) {
            true => Source::Plain,
            false => Source::Unknown,
        })
}
