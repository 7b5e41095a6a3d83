//! Output: print macros, `dbg!`, and the log macros.

use super::emit::{Runtime, at};
use crate::{macros, recognise};
use proc_macro2::TokenStream;
use quote::{ToTokens, quote_spanned};
use syn::spanned::Spanned;
use syn::{Expr, ExprMacro};

/// What became of a macro.
pub(crate) enum Output {
    /// An expression of the same value.
    Value(TokenStream),
    /// A condition around the macro, which needs no semicolon.
    Guarded(TokenStream),
}

/// Rewrites a macro that prints or logs; its arguments have been rewritten before.
///
/// Input: `println!("{x}")` Output: `::ddp_runtime::__private::println(::core::format_args!("{x}"))`
///
/// Input: `dbg!(x)` Output: `::ddp_runtime::__private::dbg(site!(), ::core::stringify!(x), x)`
///
/// Input: `log::info!("{x}")` Output: `if ::ddp_runtime::__private::logs(Level::Info) { log::info!("{x}") }`
pub(crate) fn rewrite(written: &ExprMacro, now: &ExprMacro, runtime: &Runtime) -> Option<Output> {
    let mac = &now.mac;
    if let Some(printer) = recognise::printer(mac) {
        return Some(Output::Value(print(printer, now, runtime)));
    }
    if recognise::is_dbg(mac) {
        return dbg(written, now, runtime).map(Output::Value);
    }
    let level = recognise::log_level(mac)?;
    let span = mac.path.span();
    let at = at(span);
    let level = runtime.item(&format!("Level::{level}"), span);
    let condition = runtime.call("logs", span, level);
    Some(Output::Guarded(quote_spanned!(at=> if #condition { #mac; })))
}

fn print(printer: &str, now: &ExprMacro, runtime: &Runtime) -> TokenStream {
    let span = now.mac.path.span();
    let at = at(span);
    let tokens = match &now.mac.tokens {
        tokens if tokens.is_empty() => quote_spanned!(at=> ""),
        tokens => tokens.clone(),
    };
    runtime.call(printer, span, quote_spanned!(at=> ::core::format_args!(#tokens)))
}

/// `dbg!` of one value is that value, of several a tuple of them, of none the place alone.
fn dbg(written: &ExprMacro, now: &ExprMacro, runtime: &Runtime) -> Option<TokenStream> {
    let span = now.mac.path.span();
    let at = at(span);
    let texts = macros::open(&written.mac)?;
    let values = macros::open(&now.mac)?;
    let mut calls =
        texts.iter().zip(&values).map(|(text, value)| dbg_one(text, value, now, runtime));
    Some(match values.len() {
        0 => {
            let site = runtime.site(span);
            let text = quote_spanned!(at=> ::core::format_args!("[{}]", #site));
            runtime.call("eprintln", span, text)
        }
        1 => calls.next()?,
        _ => quote_spanned!(at=> (#(#calls),*)),
    })
}

fn dbg_one(text: &Expr, value: &Expr, now: &ExprMacro, runtime: &Runtime) -> TokenStream {
    let span = now.mac.path.span();
    let at = at(span);
    let site = runtime.site(span);
    let text = text.to_token_stream();
    let text = quote_spanned!(at=> ::core::stringify!(#text));
    runtime.call("dbg", span, quote_spanned!(at=> #site, #text, #value))
}
