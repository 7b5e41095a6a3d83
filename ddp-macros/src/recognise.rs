//! What an expression is, told from its tokens alone: the one place that knows tch's names.

use crate::macros;
use syn::{Expr, ExprCall, ExprMethodCall, ExprPath, Macro, Path};

/// An expression that stands for something else on several ranks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Site {
    /// `Device::Cuda(i)`, `Device::cuda_if_available()`.
    Device,
    /// `Device::Cuda` or `Device::cuda_if_available` as a value, to be called by someone else.
    DeviceFunction { takes_index: bool },
    /// `kind::FLOAT_CUDA` and its like.
    DeviceKind,
    /// `VarStore::new(device)`.
    Store,
    /// `x.train_iter(n)`, `x.iter_shuffle(length, n)`.
    Data,
    /// `Iter2::new(xs, ys, n)`, `Iter2::f_new(xs, ys, n)`.
    Iter2 { fallible: bool },
    /// `ProgressBar::new(n)` and its like.
    Bar,
    /// `items.progress()` and its like, which make a bar of their own.
    Progress,
    /// `std::fs::create_dir(path)`.
    Folder,
    /// `x.save(path)`.
    Save,
    /// `tch::manual_seed(seed)`.
    Seed,
}

/// Whether the path ends in these names.
pub(crate) fn ends(path: &Path, names: &[&str]) -> bool {
    path.segments.len() >= names.len()
        && path.segments.iter().rev().zip(names.iter().rev()).all(|(have, want)| have.ident == want)
}

/// The path an expression is, through parentheses.
pub(crate) fn as_path(expr: &Expr) -> Option<&Path> {
    match expr {
        Expr::Path(ExprPath { path, qself: None, .. }) => Some(path),
        Expr::Paren(inner) => as_path(&inner.expr),
        Expr::Group(inner) => as_path(&inner.expr),
        _ => None,
    }
}

/// The path that a call calls.
pub(crate) fn callee(call: &ExprCall) -> Option<&Path> {
    as_path(&call.func)
}

/// What the expression is, if it is to be rewritten.
pub(crate) fn site(expr: &Expr) -> Option<Site> {
    match expr {
        Expr::Call(call) => {
            callee(call).and_then(|path| call_site(call, path, &macros::name(path)))
        }
        Expr::MethodCall(call) => method_site(call, &call.method.to_string()),
        Expr::Path(ExprPath { path, qself: None, .. }) => path_site(path),
        _ => None,
    }
}

/// What a call of the function at this path, of this name, is.
pub(crate) fn call_site(call: &ExprCall, path: &Path, name: &str) -> Option<Site> {
    let arguments = call.args.len();
    let Some(owner) = path.segments.iter().nth_back(1) else {
        return match name {
            "create_dir" if arguments == 1 => Some(Site::Folder),
            "manual_seed" if arguments == 1 => Some(Site::Seed),
            _ => None,
        };
    };
    match (owner.ident.to_string().as_str(), name, arguments) {
        ("Device", "Cuda", 1) | ("Device", "cuda_if_available", 0) => Some(Site::Device),
        ("VarStore", "new", 1) => Some(Site::Store),
        ("Iter2", "new", 3) => Some(Site::Iter2 { fallible: false }),
        ("Iter2", "f_new", 3) => Some(Site::Iter2 { fallible: true }),
        ("ProgressBar" | "MultiProgress", _, _) => Some(Site::Bar),
        ("fs", "create_dir", 1) => Some(Site::Folder),
        ("tch", "manual_seed", 1) if path.segments.len() == 2 => Some(Site::Seed),
        _ => None,
    }
}

fn path_site(path: &Path) -> Option<Site> {
    let mut names = path.segments.iter().rev();
    let last = names.next()?.ident.to_string();
    match last.as_str() {
        "Cuda" | "cuda_if_available"
            if names.next().is_some_and(|owner| owner.ident == "Device") =>
        {
            Some(Site::DeviceFunction { takes_index: last == "Cuda" })
        }
        "FLOAT_CUDA" | "DOUBLE_CUDA" | "INT64_CUDA" => Some(Site::DeviceKind),
        _ => None,
    }
}

/// What a call of the method of this name is.
pub(crate) fn method_site(call: &ExprMethodCall, name: &str) -> Option<Site> {
    let path = call.args.first();
    match (name, call.args.len()) {
        ("train_iter", 1) | ("iter_shuffle", 2) if call.turbofish.is_none() => Some(Site::Data),
        ("progress" | "try_progress", 0) | ("progress_count" | "progress_with_style", 1) => {
            Some(Site::Progress)
        }
        // A closure is no path.
        ("save", 1) if !matches!(path, Some(Expr::Closure(_))) => Some(Site::Save),
        _ => None,
    }
}

/// The runtime's function for a print macro of the standard library.
pub(crate) fn printer(mac: &Macro) -> Option<&'static str> {
    ["println", "print", "eprintln", "eprint"]
        .into_iter()
        .find(|name| macros::is_one_of(&mac.path, &[name], &["std"]))
}

/// Whether the macro is `dbg!`.
pub(crate) fn is_dbg(mac: &Macro) -> bool {
    macros::is_one_of(&mac.path, &["dbg"], &["std"])
}

/// The level of a `log` or `tracing` macro that only the main rank is to write.
///
/// Warnings and errors are written by every rank, so they are no sites at all; nor are lines whose level is not
/// written in them.
pub(crate) fn log_level(expr: &Expr, mac: &Macro) -> Option<&'static str> {
    let named = |names: &[&str]| macros::is_one_of(&mac.path, names, &["log", "tracing"]);
    match macros::name(&mac.path).as_str() {
        "info" if named(&["info"]) => Some("Info"),
        "debug" if named(&["debug"]) => Some("Debug"),
        "trace" if named(&["trace"]) => Some("Trace"),
        "log" | "event" if named(&["log", "event"]) => macros::values(expr)?.iter().find_map(level),
        _ => None,
    }
}

/// `Level::Info` of `log`, `Level::INFO` of `tracing`.
fn level(value: &Expr) -> Option<&'static str> {
    let path = as_path(value)?;
    let is = |names: [&str; 2]| names.iter().any(|name| ends(path, &["Level", name]));
    let levels =
        [(["Info", "INFO"], "Info"), (["Debug", "DEBUG"], "Debug"), (["Trace", "TRACE"], "Trace")];
    levels.into_iter().find(|(names, _)| is(*names)).map(|(_, level)| level)
}
