//! Calls and paths that stand for something else on several ranks: devices, stores, batches, saving, seeds.

use super::emit::{Runtime, at, in_parens};
use super::prologue::Traits;
use crate::recognise::Site;
use proc_macro2::{Ident, Span, TokenStream};
use quote::{ToTokens, quote_spanned};
use syn::spanned::Spanned;
use syn::{Expr, ExprCall, ExprMethodCall, Member, UnOp};

/// Rewrites one site; the expressions inside it have been rewritten before.
pub(crate) fn rewrite(
    site: Site,
    expr: &Expr,
    runtime: &Runtime,
    traits: &mut Traits,
) -> Option<TokenStream> {
    Some(match (site, expr) {
        (Site::Device, _) => around("device", expr, runtime),
        (Site::DeviceKind, _) => around("device_kind", expr, runtime),
        (Site::Store, _) => around("store", expr, runtime),
        (Site::Bar, _) => around("bar", expr, runtime),
        (Site::DeviceFunction { takes_index }, _) => device_function(takes_index, expr, runtime),
        (Site::Seed, Expr::Call(call)) => seed(call, runtime),
        (Site::Iter2 { fallible }, Expr::Call(call)) => iter2(fallible, call, runtime),
        (Site::Data, Expr::MethodCall(call)) => {
            traits.data = true;
            data(call, runtime)
        }
        (Site::Save, Expr::MethodCall(call)) => {
            traits.save = true;
            save(call, runtime)
        }
        _ => return None,
    })
}

/// The place of the last name of the path that is called.
fn name_span(call: &ExprCall) -> Span {
    crate::recognise::callee(call)
        .and_then(|path| path.segments.last())
        .map_or_else(|| call.func.span(), |segment| segment.ident.span())
}

/// The place of the word that makes an expression a site.
pub(super) fn place(expr: &Expr) -> Span {
    match expr {
        Expr::Call(call) => name_span(call),
        Expr::MethodCall(call) => call.method.span(),
        expr => expr.span(),
    }
}

/// A call around the expression as it is.
///
/// Input: `Device::Cuda(0)` Output: `::ddp_runtime::__private::device(Device::Cuda(0))`
fn around(function: &str, expr: &Expr, runtime: &Runtime) -> TokenStream {
    runtime.call(function, place(expr), expr)
}

/// Input: `gpu.map(Device::Cuda)`
///
/// Output: `gpu.map(|__ddp_index| ::ddp_runtime::__private::device(Device::Cuda(__ddp_index)))`
fn device_function(takes_index: bool, expr: &Expr, runtime: &Runtime) -> TokenStream {
    let span = at(expr.span());
    let index = takes_index.then(|| Ident::new("__ddp_index", span));
    let index = index.as_slice();
    let device = runtime.call("device", expr.span(), quote_spanned!(span=> #expr(#(#index)*)));
    quote_spanned!(span=> |#(#index)*| #device)
}

/// Input: `Iter2::new(&xs, &ys, 32)`
///
/// Output: `::ddp_runtime::__private::iter2({ let _ = Iter2::new; site!() }, &xs, &ys, 32)`
fn iter2(fallible: bool, call: &ExprCall, runtime: &Runtime) -> TokenStream {
    let span = name_span(call);
    let site = with_import_used(call, runtime.site(span));
    let args = &call.args;
    let function = if fallible { "f_iter2" } else { "iter2" };
    runtime.call(function, span, quote_spanned!(at(span)=> #site, #args))
}

/// Input: `tch::manual_seed(42)` Output: `::ddp_runtime::__private::manual_seed(42)`
///
/// Input: `manual_seed(42)` Output: `::ddp_runtime::__private::manual_seed({ let _ = manual_seed; 42 })`
fn seed(call: &ExprCall, runtime: &Runtime) -> TokenStream {
    let seed = call.args.first().map(ToTokens::to_token_stream).unwrap_or_default();
    runtime.call("manual_seed", name_span(call), with_import_used(call, seed))
}

/// The value, and a mention of the function that is no longer called: its import would be reported as unused
/// otherwise. A path that begins with the crate needs none.
fn with_import_used(call: &ExprCall, value: TokenStream) -> TokenStream {
    let function = &call.func;
    let whole = crate::recognise::callee(call).is_some_and(|path| {
        path.leading_colon.is_some()
            || path.segments.first().is_some_and(|first| first.ident == "tch")
    });
    let span = at(name_span(call));
    if whole { value } else { quote_spanned!(span=> { let _ = #function; #value }) }
}

/// Input: `data.train_iter(64)`
///
/// Output:
/// `(&&::ddp_runtime::__private::Data(&data)).data(::ddp_runtime::__private::site!()).train_iter(64)`
fn data(call: &ExprMethodCall, runtime: &Runtime) -> TokenStream {
    let span = call.method.span();
    let at = at(span);
    let ExprMethodCall { receiver, dot_token, method, args, paren_token, .. } = call;
    let seen = runtime.call("Data", span, quote_spanned!(at=> &#receiver));
    let site = runtime.site(span);
    let seen = in_parens(quote_spanned!(at=> &&#seen), receiver.span());
    let mut tokens = quote_spanned!(at=> #seen.data(#site) #dot_token #method);
    paren_token.surround(&mut tokens, |tokens| args.to_tokens(tokens));
    tokens
}

/// Input: `vs.save("m.ot")`
///
/// Output: `(&&::ddp_runtime::__private::type_of(&vs)).save("m.ot", |__ddp_path| vs.save(__ddp_path))`
///
/// A receiver that is more than a place is evaluated once, by a `match` around the call.
fn save(call: &ExprMethodCall, runtime: &Runtime) -> TokenStream {
    let span = call.method.span();
    let at = at(span);
    let ExprMethodCall { receiver, dot_token, method, turbofish, args, paren_token, .. } = call;
    let bound = (!is_place(receiver)).then(|| Ident::new("__ddp_receiver", at));
    let place =
        bound.as_ref().map_or_else(|| receiver.to_token_stream(), ToTokens::to_token_stream);
    let path = Ident::new("__ddp_path", at);
    let seen = runtime.call("type_of", span, quote_spanned!(at=> &#place));
    let write = quote_spanned!(at=> |#path| #place #dot_token #method #turbofish (#path));
    // The whole call stands where the user's stood, so that an unused result is reported there.
    let seen = in_parens(quote_spanned!(at=> &&#seen), receiver.span());
    let mut saved = quote_spanned!(at=> #seen #dot_token #method);
    paren_token.surround(&mut saved, |tokens| quote_spanned!(at=> #args, #write).to_tokens(tokens));
    match bound {
        Some(name) => quote_spanned!(at=> (match (#receiver) { mut #name => #saved })),
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
