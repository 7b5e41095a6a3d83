//! Output: print macros, `dbg!`, and the log macros.

use super::emit::{Runtime, at};
use crate::{macros, recognise};
use proc_macro2::{Span, TokenStream};
use quote::quote_spanned;
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{Expr, Macro, Stmt, Token};

/// What became of a macro.
pub(crate) enum Output {
    /// An expression of the same value.
    Value(TokenStream),
    /// A condition around the macro, which needs no semicolon.
    Guarded(TokenStream),
}

/// Rewrites a macro that prints or logs, after its arguments; `texts` are those as they were written.
///
/// Input: `println!("{x}")` Output: `::ddp_runtime::__private::println(::core::format_args!("{x}"))`
///
/// Input: `dbg!(x)` Output: `::ddp_runtime::__private::dbg(site!(), ::core::stringify!(x), x)`
///
/// Input: `log::info!("{x}")` Output: `if ::ddp_runtime::__private::logs(Level::Info) { log::info!("{x}") }`
pub(crate) fn rewrite(texts: &Values, expr: &mut Expr, runtime: &Runtime) -> Option<Output> {
    let mac = macros::invoked(expr)?;
    if recognise::is_dbg(mac) {
        let span = mac.path.span();
        return values(expr).map(|values| Output::Value(dbg(texts, values, span, runtime)));
    }
    let level = recognise::log_level(mac);
    macros::close(expr);
    let mac = macros::invoked(expr)?;
    if let Some(printer) = recognise::printer(mac) {
        return Some(Output::Value(print(printer, mac, runtime)));
    }
    let span = mac.path.span();
    let level = runtime.item(&format!("Level::{}", level?), span);
    let condition = runtime.call("logs", span, level);
    Some(Output::Guarded(quote_spanned!(at(span)=> if #condition { #mac; })))
}

/// The values that `dbg!` is given, as they were written.
pub(crate) type Values = Punctuated<Expr, Token![,]>;

/// The values of an opened macro.
pub(crate) fn values(expr: &Expr) -> Option<&Values> {
    match expr {
        Expr::Call(call) => Some(&call.args),
        _ => None,
    }
}

/// A macro in braces is a statement without a semicolon, and the call that takes its place is none.
pub(crate) fn end_statement(stmt: &mut Stmt) {
    let (mac, semi) = match stmt {
        Stmt::Macro(stmt) => (Some(&stmt.mac), &mut stmt.semi_token),
        Stmt::Expr(expr, semi) => (macros::invoked(expr), semi),
        _ => return,
    };
    if let Some(mac) = mac.filter(|mac| recognise::printer(mac).is_some() || recognise::is_dbg(mac))
    {
        semi.get_or_insert_with(|| Token![;](at(mac.path.span())));
    }
}

fn print(printer: &str, mac: &Macro, runtime: &Runtime) -> TokenStream {
    let span = mac.path.span();
    let at = at(span);
    let tokens = match &mac.tokens {
        tokens if tokens.is_empty() => quote_spanned!(at=> ""),
        tokens => tokens.clone(),
    };
    runtime.call(printer, span, quote_spanned!(at=> ::core::format_args!(#tokens)))
}

/// `dbg!` of one value is that value, of several a tuple of them, of none the place alone.
fn dbg(texts: &Values, values: &Values, span: Span, runtime: &Runtime) -> TokenStream {
    let mut calls =
        texts.iter().zip(values).map(|(text, value)| dbg_one(text, value, span, runtime));
    match (values.len(), calls.next()) {
        (1, Some(call)) => call,
        (_, Some(first)) => quote_spanned!(at(span)=> (#first #(, #calls)*)),
        (_, None) => {
            let site = runtime.site(span);
            let text = quote_spanned!(at(span)=> ::core::format_args!("[{}]", #site));
            runtime.call("eprintln", span, text)
        }
    }
}

fn dbg_one(text: &Expr, value: &Expr, span: Span, runtime: &Runtime) -> TokenStream {
    let at = at(span);
    let site = runtime.site(span);
    let text = quote_spanned!(at=> ::core::stringify!(#text));
    runtime.call("dbg", span, quote_spanned!(at=> #site, #text, #value))
}
