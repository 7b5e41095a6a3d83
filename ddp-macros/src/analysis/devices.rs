//! Which CUDA devices the body names.

use super::names::bound;
use super::variable;
use crate::recognise::{self, Site};
use proc_macro2::TokenStream;
use quote::ToTokens;
use syn::visit::{self, Visit};
use syn::{Block, Expr, ExprForLoop, ExprLit, ExprMethodCall, Lit, Pat};

/// The expressions that name another CUDA device than the first one named, or one device after the other.
pub(crate) fn further(body: &Block) -> Vec<TokenStream> {
    let mut devices = Devices { first: None, counting: Vec::new(), further: Vec::new() };
    devices.visit_block(body);
    devices.further
}

struct Devices {
    /// The number of the first device that is named by a number.
    first: Option<u64>,
    /// The names that take one value after the other here.
    counting: Vec<String>,
    further: Vec<TokenStream>,
}

impl Devices {
    fn with_counting(&mut self, pats: &[&Pat], visit: impl FnOnce(&mut Self)) {
        let before = self.counting.len();
        self.counting.extend(pats.iter().flat_map(|pat| bound(pat)));
        visit(self);
        self.counting.truncate(before);
    }

    fn device(&mut self, device: &Expr) {
        let Expr::Call(call) = device else { return };
        let Some(index) = call.args.first() else { return };
        let another = match number(index) {
            Some(number) => *self.first.get_or_insert(number) != number,
            None => variable(index).is_some_and(|name| self.counting.contains(&name)),
        };
        if another {
            self.further.push(device.to_token_stream());
        }
    }
}

/// The number that names a device, where one is written.
pub(super) fn number(expr: &Expr) -> Option<u64> {
    match expr {
        Expr::Lit(ExprLit { lit: Lit::Int(number), .. }) => number.base10_parse().ok(),
        _ => None,
    }
}

/// Whether the closures of a chain are called once an item: it begins with a range, or with an iterator.
fn iterates(receiver: &Expr) -> bool {
    match receiver {
        Expr::Range(_) => true,
        Expr::Paren(inner) => iterates(&inner.expr),
        Expr::MethodCall(call) => {
            matches!(call.method.to_string().as_str(), "iter" | "into_iter" | "iter_mut")
                || iterates(&call.receiver)
        }
        _ => false,
    }
}

impl Visit<'_> for Devices {
    fn visit_expr(&mut self, expr: &Expr) {
        if recognise::site(expr) == Some(Site::Device) {
            self.device(expr);
        }
        visit::visit_expr(self, expr);
    }

    fn visit_expr_for_loop(&mut self, expr: &ExprForLoop) {
        self.visit_expr(&expr.expr);
        self.with_counting(&[&expr.pat], |this| this.visit_block(&expr.body));
    }

    fn visit_expr_method_call(&mut self, call: &ExprMethodCall) {
        if !iterates(&call.receiver) {
            return visit::visit_expr_method_call(self, call);
        }
        self.visit_expr(&call.receiver);
        for argument in &call.args {
            match argument {
                Expr::Closure(closure) => {
                    let inputs: Vec<&Pat> = closure.inputs.iter().collect();
                    self.with_counting(&inputs, |this| this.visit_expr(&closure.body));
                }
                path if recognise::site(path)
                    == Some(Site::DeviceFunction { takes_index: true }) =>
                {
                    self.further.push(path.to_token_stream());
                }
                other => self.visit_expr(other),
            }
        }
    }

    through_body!();
}
