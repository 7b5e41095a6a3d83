//! Early exits that each rank would take alone: a `break` or `continue` that depends on a value of the rank's
//! own batches.
//!
//! Only what is sure is found: a number was read out of a tensor that was made from the batch of a shared loop,
//! nobody voted on it, and an `if` on it leaves that loop or one around it. A decision by a clock or by the
//! validation set looks different, and is left to the runtime.

use super::loops::Loops;
use super::names::{Made, Names, any_expr, bound};
use super::steps::{self, Step};
use super::variable;
use crate::marks;
use crate::{macros, recognise};
use proc_macro2::TokenStream;
use quote::ToTokens;
use syn::visit::{self, Visit};
use syn::{
    BinOp, Block, Expr, ExprAssign, ExprBinary, ExprBreak, ExprClosure, ExprContinue, ExprForLoop,
    ExprIf, ExprLoop, ExprMatch, ExprReturn, ExprWhile, Label, Lifetime, Local, Pat, Stmt,
};

/// An exit that no vote stands before.
#[derive(Debug)]
pub(crate) enum Unvoted {
    Break(TokenStream),
    Continue(TokenStream),
    Return(TokenStream),
    /// A step that stands in one branch only.
    Step(TokenStream),
    /// The condition of a `while`.
    While(TokenStream),
}

/// Looks for exits that each rank would take alone.
pub(crate) fn unvoted(body: &Block, loops: &Loops) -> Vec<Unvoted> {
    let mut exits = Exits {
        loops,
        made: Vec::new(),
        read: Vec::new(),
        around: Vec::new(),
        deciding: 0,
        found: Vec::new(),
        names: Names::default(),
        so_far: Made::default(),
    };
    exits.visit_block(body);
    exits.found
}

/// A loop around the place we are at.
struct Around {
    label: Option<Lifetime>,
    shared: bool,
    holds_shared: bool,
    /// It takes steps, as far as the tokens tell.
    trains: bool,
    /// A step was taken in this pass of it.
    stepped: bool,
    /// Exits from which it is not yet known whether a step follows.
    pending: Vec<TokenStream>,
    /// How many deciding conditions stood around it.
    deciding: usize,
}

struct Exits<'a> {
    loops: &'a Loops,
    /// The names whose values were made from the batch of a shared loop.
    made: Vec<String>,
    /// The names that hold numbers read out of such values.
    read: Vec<String>,
    around: Vec<Around>,
    /// How many conditions on such numbers are around us.
    deciding: usize,
    found: Vec<Unvoted>,
    names: Names,
    /// What was made up to the place we are at.
    so_far: Made,
}

/// Methods that read a number out of a tensor.
const READS: [&str; 8] = [
    "double_value",
    "int64_value",
    "f_double_value",
    "f_int64_value",
    "is_finite",
    "is_nan",
    "is_infinite",
    "try_into",
];

/// Functions after which all ranks have the same value.
const AGREES: [&str; 11] = [
    "should_stop",
    "skip_if",
    "agree",
    "mean",
    "sync",
    "all_reduce",
    "all_gather",
    "broadcast",
    "reduce",
    "any_rank",
    "all_ranks",
];

impl Exits<'_> {
    fn mentions(&self, expr: &Expr, names: &[String]) -> bool {
        any_expr(expr, &mut |expr| {
            matches!(expr, Expr::Path(_))
                && variable(expr).is_some_and(|name| names.contains(&name))
        })
    }

    /// Whether the value is a number of the rank's own.
    fn is_own(&self, expr: &Expr) -> bool {
        if self.made.is_empty() && self.read.is_empty() {
            return false;
        }
        let mut agrees = |expr: &Expr| match expr {
            Expr::Call(call) => recognise::callee(call)
                .is_some_and(|path| AGREES.contains(&macros::name(path).as_str())),
            Expr::MethodCall(call) => AGREES[..3].contains(&call.method.to_string().as_str()),
            _ => false,
        };
        let mut read = |expr: &Expr| match expr {
            Expr::MethodCall(call) if READS.contains(&call.method.to_string().as_str()) => {
                self.mentions(&call.receiver, &self.made)
            }
            Expr::Call(call) => {
                recognise::callee(call).is_some_and(|path| macros::name(path) == "try_from")
                    && call.args.iter().any(|argument| self.mentions(argument, &self.made))
            }
            _ => false,
        };
        let own = self.mentions(expr, &self.read) || any_expr(expr, &mut read);
        own && !any_expr(expr, &mut agrees)
    }

    /// Notes what a name stands for from now on.
    fn bind(&mut self, names: Vec<String>, value: Option<&Expr>) {
        let own = value.is_some_and(|value| self.is_own(value));
        let made = value.is_some_and(|value| self.mentions(value, &self.made));
        self.made.retain(|name| !names.contains(name));
        self.read.retain(|name| !names.contains(name));
        if own {
            self.read.extend(names.iter().cloned());
        }
        if made {
            self.made.extend(names);
        }
    }

    fn within(
        &mut self,
        attrs: &[syn::Attribute],
        label: Option<&Label>,
        visit: impl FnOnce(&mut Self),
    ) {
        let facts = marks::number(attrs).and_then(|number| self.loops.facts.get(number));
        self.around.push(Around {
            label: label.map(|label| label.name.clone()),
            shared: facts.is_some_and(|facts| facts.is_shared()),
            holds_shared: facts.is_some_and(|facts| facts.holds_shared),
            trains: facts.is_some_and(|facts| facts.trains),
            stepped: false,
            pending: Vec::new(),
            deciding: self.deciding,
        });
        visit(self);
        self.around.pop();
    }

    /// The loop that an exit is for, if a condition decides on it inside that loop.
    fn target(&mut self, label: Option<&Lifetime>) -> Option<&mut Around> {
        let deciding = self.deciding;
        let named = |around: &&mut Around| match (label, &around.label) {
            (Some(label), Some(own)) => own.ident == label.ident,
            (label, _) => label.is_none(),
        };
        self.around.iter_mut().rev().find(named).filter(|around| deciding > around.deciding)
    }

    /// A step: what went on before it skipped it. A step that is only handed on proves nothing.
    fn step(&mut self, sure: bool) {
        self.so_far.steps += 1;
        for around in &mut self.around {
            around.stepped = true;
            let skipped = std::mem::take(&mut around.pending);
            if sure {
                self.found.extend(skipped.into_iter().map(Unvoted::Continue));
            }
        }
    }

    /// The name of the first step that surely is taken in the expression.
    fn first_step(&self, expr: &Expr) -> Option<TokenStream> {
        let mut first = None;
        any_expr(expr, &mut |expr| match expr {
            Expr::MethodCall(call) if steps::of(expr, &self.names) == Some(Step::Direct) => {
                first = Some(call.method.to_token_stream());
                true
            }
            _ => false,
        });
        first
    }

    fn apart(&mut self, visit: impl FnOnce(&mut Self)) {
        let around = std::mem::take(&mut self.around);
        let deciding = std::mem::take(&mut self.deciding);
        visit(self);
        self.around = around;
        self.deciding = deciding;
    }
}

/// Whether the value is an error: `Err(..)`, or what a macro makes of one.
fn is_failure(value: &Expr) -> bool {
    match value {
        Expr::Call(call) => recognise::callee(call)
            .map_or_else(|| macros::opened(call).is_some(), |path| macros::name(path) == "Err"),
        Expr::MethodCall(call) => is_failure(&call.receiver),
        Expr::Macro(_) => true,
        _ => false,
    }
}

/// The names of the items themselves: the count that `enumerate` puts in front is equal on all ranks.
fn items(pat: &Pat, head: &Expr) -> Vec<String> {
    let counted = any_expr(
        head,
        &mut |expr| matches!(expr, Expr::MethodCall(call) if call.method == "enumerate"),
    );
    match pat {
        Pat::Tuple(tuple) if counted => tuple.elems.iter().skip(1).flat_map(bound).collect(),
        pat => bound(pat),
    }
}

impl Visit<'_> for Exits<'_> {
    fn visit_expr_for_loop(&mut self, expr: &ExprForLoop) {
        self.visit_expr(&expr.expr);
        self.within(&expr.attrs, expr.label.as_ref(), |this| {
            let names = items(&expr.pat, &expr.expr);
            let shared = this.around.last().is_some_and(|around| around.shared);
            let made = shared || this.mentions(&expr.expr, &this.made);
            this.bind(bound(&expr.pat), None);
            if made {
                this.made.extend(names);
            }
            this.visit_block(&expr.body);
        });
    }

    fn visit_expr_while(&mut self, expr: &ExprWhile) {
        self.within(&expr.attrs, expr.label.as_ref(), |this| {
            visit::visit_expr_while(this, expr);
            // What the condition reads may be given its value in the body.
            let trains =
                this.around.last().is_some_and(|around| around.trains && around.holds_shared);
            if trains && this.is_own(&expr.cond) {
                this.found.push(Unvoted::While(expr.cond.to_token_stream()));
            }
        });
    }

    fn visit_expr_loop(&mut self, expr: &ExprLoop) {
        self.within(&expr.attrs, expr.label.as_ref(), |this| visit::visit_expr_loop(this, expr));
    }

    fn visit_local(&mut self, local: &Local) {
        let before = self.so_far;
        visit::visit_local(self, local);
        self.names.bind(local, None, self.so_far.since(before));
        self.bind(bound(&local.pat), local.init.as_ref().map(|init| &*init.expr));
    }

    fn visit_expr_assign(&mut self, expr: &ExprAssign) {
        visit::visit_expr_assign(self, expr);
        if let Some(name) = variable(&expr.left) {
            self.bind(vec![name], Some(&expr.right));
        }
    }

    fn visit_expr_binary(&mut self, expr: &ExprBinary) {
        visit::visit_expr_binary(self, expr);
        let assigns = matches!(
            expr.op,
            BinOp::AddAssign(_) | BinOp::SubAssign(_) | BinOp::MulAssign(_) | BinOp::DivAssign(_)
        );
        if assigns
            && self.is_own(&expr.right)
            && let Some(name) = variable(&expr.left)
        {
            self.read.push(name);
        }
    }

    fn visit_expr(&mut self, expr: &Expr) {
        visit::visit_expr(self, expr);
        match steps::of(expr, &self.names) {
            Some(Step::Direct) => self.step(true),
            Some(Step::Handed) => self.step(false),
            None => {}
        }
    }

    fn visit_expr_if(&mut self, expr: &ExprIf) {
        self.visit_expr(&expr.cond);
        let own = usize::from(self.is_own(&expr.cond));
        if own > 0 && self.around.iter().any(|around| around.shared) {
            let otherwise =
                expr.else_branch.as_ref().and_then(|(_, branch)| self.first_step(branch));
            let step = expr.then_branch.stmts.iter().find_map(|stmt| match stmt {
                Stmt::Expr(inner, _) => self.first_step(inner),
                Stmt::Local(local) => self.first_step(&local.init.as_ref()?.expr),
                _ => None,
            });
            if let (Some(step), None) | (None, Some(step)) = (step, otherwise) {
                self.found.push(Unvoted::Step(step));
            }
        }
        self.deciding += own;
        self.visit_block(&expr.then_branch);
        if let Some((_, branch)) = &expr.else_branch {
            self.visit_expr(branch);
        }
        self.deciding -= own;
    }

    fn visit_expr_break(&mut self, expr: &ExprBreak) {
        visit::visit_expr_break(self, expr);
        let target = self.target(expr.label.as_ref());
        if target.is_some_and(|around| around.trains && (around.shared || around.holds_shared)) {
            self.found.push(Unvoted::Break(expr.to_token_stream()));
        }
    }

    /// A rank that fails may leave alone: its error ends the job, and is what the user reads.
    fn visit_expr_return(&mut self, expr: &ExprReturn) {
        visit::visit_expr_return(self, expr);
        let fails = expr.expr.as_ref().is_some_and(|value| is_failure(value));
        let leaves = |around: &Around| {
            around.trains
                && (around.shared || around.holds_shared)
                && self.deciding > around.deciding
        };
        if !fails && self.around.iter().any(leaves) {
            self.found.push(Unvoted::Return(expr.to_token_stream()));
        }
    }

    fn visit_expr_continue(&mut self, expr: &ExprContinue) {
        let target = self.target(expr.label.as_ref());
        if let Some(around) = target.filter(|around| around.shared && !around.stepped) {
            around.pending.push(expr.to_token_stream());
        }
    }

    /// A decision inside a `match` or a closure is another matter.
    fn visit_expr_match(&mut self, expr: &ExprMatch) {
        let deciding = std::mem::take(&mut self.deciding);
        visit::visit_expr_match(self, expr);
        self.deciding = deciding;
    }

    fn visit_expr_closure(&mut self, closure: &ExprClosure) {
        self.apart(|this| visit::visit_expr_closure(this, closure));
    }

    through_body!();
}
