//! Calls and paths that stand for something else on several ranks: devices, stores, batches, saving, seeds.

use super::emit::{Runtime, at, call, first_span, in_parens, method, name, reference};
use crate::plan::Batches;
use crate::recognise::{self, Site};
use proc_macro2::{Ident, Span};
use quote::{ToTokens, quote_spanned};
use syn::{Expr, ExprCall, ExprMethodCall, Member, UnOp};

/// Rewrites one site; the expressions inside it have been rewritten before. `by_type` becomes true where the type of a
/// value decides.
pub(crate) fn rewrite(
    site: Site,
    expr: Expr,
    batches: Batches,
    runtime: &Runtime,
    by_type: &mut bool,
) -> Expr {
    match (site, expr) {
        (Site::Device, expr) => around("device", expr, runtime),
        (Site::DeviceKind, expr) => around("device_kind", expr, runtime),
        (Site::Store, expr) => around("store", expr, runtime),
        (Site::Bar, expr) => around("bar", expr, runtime),
        (Site::DeviceFunction { takes_index }, expr) => device_function(takes_index, expr, runtime),
        (Site::Folder, expr) => around("new_folder", expr, runtime),
        (Site::Progress, expr) => progress(expr, runtime),
        (Site::Seed, Expr::Call(call)) => seed(call, runtime),
        (Site::Iter2 { fallible }, Expr::Call(call)) => iter2(fallible, call, batches, runtime),
        (Site::Data, Expr::MethodCall(call)) => {
            *by_type = true;
            data(call, batches, runtime)
        }
        (Site::Save, Expr::MethodCall(call)) => {
            *by_type = true;
            save(call, runtime)
        }
        (_, expr) => expr,
    }
}

/// The place of the last name of the path that is called.
fn name_span(call: &ExprCall) -> Span {
    recognise::callee(call)
        .and_then(|path| path.segments.last())
        .map_or_else(|| first_span(&call.func), |segment| segment.ident.span())
}

/// The place of the word that makes an expression a site.
pub(super) fn place(expr: &Expr) -> Span {
    match expr {
        Expr::Call(call) => name_span(call),
        Expr::MethodCall(call) => call.method.span(),
        expr => first_span(expr),
    }
}

/// A call around the expression as it is.
///
/// Input: `Device::Cuda(0)` Output: `::ddp_runtime::__private::device(Device::Cuda(0))`
fn around(function: &str, expr: Expr, runtime: &Runtime) -> Expr {
    runtime.call(&[function], place(&expr), [expr])
}

/// Input: `items.progress()` Output: `::ddp_runtime::__private::progress!(items.progress())`
fn progress(expr: Expr, runtime: &Runtime) -> Expr {
    let span = place(&expr);
    runtime.invoke("progress", span, expr.into_token_stream())
}

/// Input: `gpu.map(Device::Cuda)`
///
/// Output: `gpu.map(|__ddp_index| ::ddp_runtime::__private::device(Device::Cuda(__ddp_index)))`
fn device_function(takes_index: bool, expr: Expr, runtime: &Runtime) -> Expr {
    let span = first_span(&expr);
    let at = at(span);
    let index = takes_index.then(|| Ident::new("__ddp_index", at));
    let index = index.as_slice();
    let device = runtime.call(&["device"], span, [call(expr, at, index.iter().map(name))]);
    Expr::Verbatim(quote_spanned!(at=> |#(#index)*| #device))
}

/// Input: `Iter2::new(&xs, &ys, 32)`
///
/// Output: `::ddp_runtime::__private::iter2(Iter2::new, ::ddp_runtime::__private::site!(), &xs, &ys, 32)`
///
/// The constructor is passed along so that its import stays in use. For a loop that is marked, `whole_iter2`.
fn iter2(fallible: bool, call: ExprCall, batches: Batches, runtime: &Runtime) -> Expr {
    let span = name_span(&call);
    let site = runtime.site(span);
    let ExprCall { func, args, .. } = call;
    let function = match (fallible, batches) {
        (false, Batches::Whole) => "whole_iter2",
        (true, Batches::Whole) => "f_whole_iter2",
        (false, _) => "iter2",
        (true, _) => "f_iter2",
    };
    runtime.call(&[function], span, [*func, site].into_iter().chain(args))
}

/// Input: `tch::manual_seed(42)` Output: `::ddp_runtime::__private::manual_seed(42)`
///
/// Input: `manual_seed(42)` Output: `::ddp_runtime::__private::manual_seed({ let _ = manual_seed; 42 })`
fn seed(mut call: ExprCall, runtime: &Runtime) -> Expr {
    let span = name_span(&call);
    let seed = std::mem::take(&mut call.args).into_iter().next();
    runtime.call(&["manual_seed"], span, seed.map(|seed| with_import_used(&call, seed)))
}

/// The value, and a mention of the function that is no longer called: its import would be reported as unused
/// otherwise. A path that begins with the crate needs none.
fn with_import_used(call: &ExprCall, value: Expr) -> Expr {
    let function = &call.func;
    let whole = recognise::callee(call).is_some_and(|path| {
        path.leading_colon.is_some()
            || path.segments.first().is_some_and(|first| first.ident == "tch")
    });
    if whole {
        return value;
    }
    Expr::Verbatim(quote_spanned!(at(name_span(call))=> { let _ = #function; #value }))
}

/// Input: `data.train_iter(64)`
///
/// Output:
/// `(&&::ddp_runtime::__private::Data(&data)).data_by_type(::ddp_runtime::__private::site!()).train_iter(64)`
///
/// For a loop that is marked, `whole_by_type` in place of `data_by_type`.
fn data(mut call: ExprMethodCall, batches: Batches, runtime: &Runtime) -> Expr {
    let span = call.method.span();
    let at = at(span);
    let receiver = *std::mem::replace(&mut call.receiver, Box::new(Expr::PLACEHOLDER));
    let begin = first_span(&receiver);
    let seen = runtime.call(&["Data"], span, [reference(receiver, at)]);
    let seen = in_parens(reference(reference(seen, at), at), begin);
    let form = if batches == Batches::Whole { "whole_by_type" } else { "data_by_type" };
    *call.receiver = method(seen, form, at, [runtime.site(span)]);
    Expr::MethodCall(call)
}

/// Input: `vs.save("m.ot")`
///
/// Output:
/// `(&&&&::ddp_runtime::__private::type_of(&vs)).save_by_type("m.ot", |__ddp_path| vs.save(__ddp_path))`
///
/// A receiver that is more than a place is evaluated once, by a `match` around the call.
fn save(mut call: ExprMethodCall, runtime: &Runtime) -> Expr {
    let span = call.method.span();
    let at = at(span);
    let receiver = (*call.receiver).clone();
    let bound = (!is_place(&receiver)).then(|| Ident::new("__ddp_receiver", at));
    let place = bound.as_ref().map_or_else(|| receiver.clone(), name);
    let path = Ident::new("__ddp_path", at);
    let written = std::mem::take(&mut call.args);
    let write = ExprMethodCall {
        receiver: Box::new(place.clone()),
        args: [name(&path)].into_iter().collect(),
        ..call.clone()
    };
    // The whole call stands where the user's stood, so that an unused result is reported there.
    let seen = runtime.call(&["type_of"], span, [reference(place, at)]);
    let seen = (0..4).fold(seen, |seen, _| reference(seen, at));
    *call.receiver = in_parens(seen, first_span(&receiver));
    call.method = Ident::new("save_by_type", call.method.span());
    call.turbofish = None;
    call.args = written;
    if !call.args.trailing_punct() {
        call.args.push_punct(syn::Token![,](at));
    }
    call.args.push_value(Expr::Verbatim(quote_spanned!(at=> |#path| #write)));
    let saved = Expr::MethodCall(call);
    match bound {
        Some(name) => {
            Expr::Verbatim(quote_spanned!(at=> (match (#receiver) { mut #name => #saved })))
        }
        None => saved,
    }
}

/// Whether evaluating the expression twice is the same as evaluating it once.
fn is_place(expr: &Expr) -> bool {
    match expr {
        Expr::Path(_) => true,
        Expr::Field(field) => {
            matches!(field.member, Member::Named(_) | Member::Unnamed(_)) && is_place(&field.base)
        }
        Expr::Index(index) => {
            is_place(&index.expr) && matches!(*index.index, Expr::Path(_) | Expr::Lit(_))
        }
        Expr::Paren(inner) => is_place(&inner.expr),
        Expr::Group(inner) => is_place(&inner.expr),
        Expr::Unary(inner) => matches!(inner.op, UnOp::Deref(_)) && is_place(&inner.expr),
        _ => false,
    }
}
