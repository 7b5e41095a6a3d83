//! Steps that run on a thread of their own.

use super::names::Names;
use super::steps::{self, Step};
use crate::macros;
use proc_macro2::Ident;
use syn::visit::{self, Visit};
use syn::{Block, Expr, ExprCall, ExprMethodCall};

/// The names of the methods that step inside what is handed to another thread.
pub(crate) fn steps(body: &Block) -> Vec<Ident> {
    let mut threads = Threads { names: Names::default(), away: 0, steps: Vec::new() };
    threads.visit_block(body);
    threads.steps
}

struct Threads {
    names: Names,
    /// How many calls around us hand their arguments to another thread.
    away: usize,
    steps: Vec<Ident>,
}

/// Whether a function of this name hands what it is given to another thread.
pub(super) fn hands_over(function: &str) -> bool {
    matches!(function, "spawn" | "spawn_blocking" | "spawn_scoped" | "spawn_unchecked")
}

/// Whether a method of this name makes an iterator that runs on the threads of a pool.
pub(super) fn goes_parallel(method: &str) -> bool {
    method.starts_with("par_") || method == "into_par_iter"
}

/// Whether the chain runs its closures on the threads of a pool.
fn is_parallel(expr: &Expr) -> bool {
    match expr {
        Expr::MethodCall(call) => {
            goes_parallel(&call.method.to_string()) || is_parallel(&call.receiver)
        }
        Expr::Paren(inner) => is_parallel(&inner.expr),
        _ => false,
    }
}

impl Visit<'_> for Threads {
    fn visit_expr_call(&mut self, call: &ExprCall) {
        let away =
            crate::recognise::callee(call).is_some_and(|path| hands_over(&macros::name(path)));
        self.away += usize::from(away);
        visit::visit_expr_call(self, call);
        self.away -= usize::from(away);
    }

    fn visit_expr_method_call(&mut self, call: &ExprMethodCall) {
        let name = call.method.to_string();
        if self.away > 0 && steps::of_method(call, &name, &self.names) == Some(Step::Direct) {
            self.steps.push(call.method.clone());
        }
        self.visit_expr(&call.receiver);
        let away = hands_over(&name) || is_parallel(&call.receiver);
        self.away += usize::from(away);
        call.args.iter().for_each(|argument| self.visit_expr(argument));
        self.away -= usize::from(away);
    }

    through_body!();
}
