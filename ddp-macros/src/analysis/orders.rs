//! Orders that each rank would draw for itself: a shuffle by an unseeded generator.

use super::names::bound;
use super::variable;
use crate::recognise;
use proc_macro2::TokenStream;
use quote::ToTokens;
use syn::visit::{self, Visit};
use syn::{Block, Expr, ExprMethodCall, Local};

/// The generators that shuffle something and are not seeded.
pub(crate) fn unseeded(body: &Block) -> Vec<TokenStream> {
    let mut orders = Orders { generators: Vec::new(), found: Vec::new() };
    orders.visit_block(body);
    orders.found
}

struct Orders {
    /// The names of unseeded generators.
    generators: Vec<String>,
    found: Vec<TokenStream>,
}

/// Whether the expression makes a generator of the `rand` crate that every process seeds by itself.
fn is_unseeded(expr: &Expr) -> bool {
    match expr {
        Expr::Reference(inner) => is_unseeded(&inner.expr),
        Expr::Call(call) => recognise::callee(call).is_some_and(|path| {
            let names: [&[&str]; 5] = [
                &["thread_rng"],
                &["rand", "rng"],
                &["from_entropy"],
                &["from_os_rng"],
                &["from_rng"],
            ];
            names.iter().any(|names| recognise::ends(path, names)) || path.is_ident("rng")
        }),
        _ => false,
    }
}

impl Visit<'_> for Orders {
    fn visit_local(&mut self, local: &Local) {
        visit::visit_local(self, local);
        let unseeded = local.init.as_ref().is_some_and(|init| is_unseeded(&init.expr));
        let names = bound(&local.pat);
        self.generators.retain(|name| !names.contains(name));
        if unseeded {
            self.generators.extend(names);
        }
    }

    fn visit_expr_method_call(&mut self, call: &ExprMethodCall) {
        if matches!(call.method.to_string().as_str(), "shuffle" | "partial_shuffle")
            && let Some(generator) = call.args.first()
            && (is_unseeded(generator)
                || variable(generator).is_some_and(|name| self.generators.contains(&name)))
        {
            self.found.push(generator.to_token_stream());
        }
        visit::visit_expr_method_call(self, call);
    }

    through_body!();
}
