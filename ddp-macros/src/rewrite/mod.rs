//! The rewriting: it follows the plan, and nothing in it can fail.

mod diverge;
pub(crate) mod emit;
mod explain;
mod leave;
mod output;
mod prologue;
mod sites;

use crate::marks::{self, Mark};
use crate::options::Options;
use crate::plan::{Batches, LoopPlan, Plan};
use crate::recognise::{self, Site};
use crate::{analysis, macros};
use emit::{Runtime, at, in_parens, method, reference, with_attrs};
use explain::Notes;
use output::Output;
use syn::visit_mut::{self, VisitMut};
use syn::{
    Attribute, Block, Expr, ExprAssign, ExprCall, ExprForLoop, ExprMacro, ExprRepeat, ImplItemFn,
    Item, Local, Pat, Stmt, StmtMacro, Token,
};

/// What is said of a loop before which the weights are made equal.
const EQUAL: &str = "before this loop the weights become equal on every rank";

/// Rewrites the function in place.
pub(crate) fn apply(function: &mut ImplItemFn, options: &Options, plan: &Plan) {
    let runtime = Runtime::new(options.runtime.as_ref());
    let by_type = leave::rewrite(&function.sig.output, &mut function.block, plan.returns);
    let mut rewriter = Rewriter {
        plan,
        runtime: &runtime,
        by_type,
        notes: Notes::new(options.explain),
        batches: Batches::Dealt,
        shares_batches: options.shares_batches(),
    };
    rewriter.visit_block_mut(&mut function.block);
    let Rewriter { by_type, mut notes, .. } = rewriter;
    let start =
        prologue::statements(&function.sig.ident, options, &plan.registers, by_type, &runtime);
    if options.explain {
        for store in &plan.registers {
            notes.add(store.name.span(), "the variable store is registered");
        }
        function.attrs.extend(notes.into_docs(function.sig.ident.span()));
    }
    // Items may stand before any statement, and some lints want them there.
    let stmts = &mut function.block.stmts;
    let first = stmts.iter().position(|stmt| !matches!(stmt, Stmt::Item(_))).unwrap_or(stmts.len());
    stmts.splice(first..first, start);
}

struct Rewriter<'a> {
    plan: &'a Plan,
    runtime: &'a Runtime,
    /// Whether the type of some value decides what becomes of it.
    by_type: bool,
    notes: Notes,
    /// Whose the batches are that are made here.
    batches: Batches,
    /// The items of a loop marked `shard` are batches, each of which the ranks share.
    shares_batches: bool,
}

impl Rewriter<'_> {
    fn plan_of(&self, attrs: &[syn::Attribute]) -> LoopPlan {
        marks::number(attrs)
            .and_then(|number| self.plan.loops.get(number))
            .copied()
            .unwrap_or_default()
    }

    fn with_batches(&mut self, batches: Batches, visit: impl FnOnce(&mut Self)) {
        // What is a rank's own stays so, whatever loop stands inside.
        let around = self.batches;
        self.batches = around.max(batches);
        visit(self);
        self.batches = around;
    }

    fn with_own_data(&mut self, own: bool, visit: impl FnOnce(&mut Self)) {
        self.with_batches(if own { Batches::Own } else { Batches::Dealt }, visit);
    }

    /// Input: `for epoch in 0..9 { .. }`
    ///
    /// Output: `for epoch in start(0..9) { epoch(&epoch); .. }`, each by its whole path.
    fn for_loop(&mut self, expr: &mut ExprForLoop) {
        let plan = self.plan_of(&expr.attrs);
        let taken = plan.mark.map(Batches::of).unwrap_or_default();
        self.with_batches(taken, |this| this.visit_expr_mut(&mut expr.expr));
        self.with_own_data(plan.own_data, |this| this.visit_block_mut(&mut expr.body));
        let span = emit::first_span(&expr.expr);
        if let Some(mark) = plan.mark {
            let items = std::mem::replace(&mut *expr.expr, Expr::PLACEHOLDER);
            *expr.expr = self.marked(mark, span, items);
        }
        let calls = [plan.by_type.then_some("batches"), plan.start.then_some("start")];
        for name in calls.into_iter().flatten() {
            let items = std::mem::replace(&mut *expr.expr, Expr::PLACEHOLDER);
            *expr.expr = self.runtime.call_in_place(&[name], span, [items]);
        }
        if let Some(mark) = plan.mark {
            self.notes.mark(span, mark);
        }
        if plan.by_type {
            self.notes.add(span, "the loader deals its batches out, to each rank its own");
        }
        if plan.start {
            self.notes.add(span, EQUAL);
        }
        if let (true, Pat::Ident(pat)) = (plan.epoch, &*expr.pat) {
            self.tell_epoch(emit::name(&pat.ident), &mut expr.body);
        }
    }

    /// The head of a marked loop.
    ///
    /// Input: `games.chunks(256)`
    ///
    /// Output for `shard`, by whole paths: `(&&Items::new(games.chunks(256))).shard()`, or `split(games.chunks(256))` where the
    /// attribute says that the ranks share each batch, so that what they cannot share does not compile.
    fn marked(&mut self, mark: Mark, span: proc_macro2::Span, items: Expr) -> Expr {
        match mark {
            Mark::Shard if self.shares_batches => {
                self.runtime.call_in_place(&["split"], span, [items])
            }
            Mark::Shard => {
                self.by_type = true;
                let items = self.runtime.call_in_place(&["Items", "new"], span, [items]);
                let items = reference(reference(items, at(span)), at(span));
                method(in_parens(items, span), "shard", at(span), [])
            }
            Mark::Each | Mark::Same => self.runtime.call_in_place(&[mark.word()], span, [items]),
        }
    }

    /// Input: `while epoch < 9 { .. epoch += 1; }`
    ///
    /// Output: `while epoch < 9 { epoch(&epoch); .. epoch += 1; }`, the call by its whole path.
    fn count_epochs(&mut self, attrs: &[syn::Attribute], body: &mut Block) {
        let number = marks::number(attrs);
        let counter = self.plan.counters.iter().find(|(of, _)| Some(*of) == number);
        if let Some((_, counter)) = counter {
            self.tell_epoch(counter.clone(), body);
        }
    }

    /// The statement that says which epoch begins, at the head of the body.
    fn tell_epoch(&mut self, counter: Expr, body: &mut Block) {
        let span = emit::first_span(&counter);
        self.notes.epoch(&counter);
        let told = self.runtime.call(&["epoch"], span, [emit::reference(counter, at(span))]);
        body.stmts.insert(0, Stmt::Expr(told, Some(Token![;](at(span)))));
    }

    /// A statement that stands before a `while` or `loop` that trains, and is there when the loop is.
    fn synchronize(&mut self, stmt: &Stmt) -> Option<Stmt> {
        let (attrs, span) = match stmt {
            Stmt::Expr(Expr::While(inner), _) => (&inner.attrs, inner.while_token.span),
            Stmt::Expr(Expr::Loop(inner), _) => (&inner.attrs, inner.loop_token.span),
            _ => return None,
        };
        let cfgs = attrs.iter().filter(|attr| attr.path().is_ident("cfg"));
        let plan = self.plan_of(attrs);
        let marked = !marks::skipped(attrs);
        if let Some(mark) = plan.mark.filter(|_| marked) {
            self.notes.mark(span, mark);
        }
        (marked && plan.start).then(|| {
            self.notes.add(span, EQUAL);
            let call = self.runtime.call(&["synchronize"], span, []);
            Stmt::Expr(with_attrs(cfgs.cloned().collect(), call), Some(Token![;](at(span))))
        })
    }

    /// Rewrites a macro and what is inside it, and closes it again.
    fn macro_expr(&mut self, expr: &mut Expr) -> Option<Output> {
        let mac = macros::invoked(expr)?;
        let place = emit::path_span(&mac.path);
        let texts = match recognise::is_dbg(mac) {
            true => macros::values(expr).cloned().unwrap_or_default(),
            false => macros::Values::default(),
        };
        if let Expr::Call(call) = expr {
            call.args.iter_mut().for_each(|argument| self.visit_expr_mut(argument));
        }
        let output = output::rewrite(&texts, expr, self.runtime);
        macros::close(expr);
        if output.is_some() {
            self.notes.add(place, "this goes out on the main rank");
        }
        output
    }

    /// Rewrites a statement that is a macro.
    fn statement_macro(&mut self, stmt: &mut Stmt) {
        let (mut expr, semi) = match stmt {
            Stmt::Macro(StmtMacro { attrs, mac, semi_token }) => (
                Expr::Macro(ExprMacro { attrs: std::mem::take(attrs), mac: mac.clone() }),
                *semi_token,
            ),
            Stmt::Expr(expr, semi) => (std::mem::replace(expr, Expr::PLACEHOLDER), *semi),
            _ => return,
        };
        let output = self.macro_expr(&mut expr);
        let Expr::Macro(ExprMacro { mut attrs, mac }) = expr else {
            return *stmt = Stmt::Expr(expr, semi);
        };
        marks::clear(&mut attrs);
        *stmt = match output {
            Some(Output::Value(value)) => Stmt::Expr(with_attrs(attrs, value), semi),
            Some(Output::Guarded(value)) => Stmt::Expr(with_attrs(attrs, value), None),
            None => Stmt::Macro(StmtMacro { attrs, mac, semi_token: semi }),
        };
    }

    /// Whether batches made at this site are the rank's own.
    fn is_left(&self, site: Site) -> bool {
        self.batches == Batches::Own && matches!(site, Site::Data | Site::Iter2 { .. })
    }
}

/// Takes the attributes off an expression, as they stay outside of what replaces it.
fn take_attrs(expr: &mut Expr) -> Vec<syn::Attribute> {
    match expr {
        Expr::Call(inner) => std::mem::take(&mut inner.attrs),
        Expr::Macro(inner) => std::mem::take(&mut inner.attrs),
        Expr::MethodCall(inner) => std::mem::take(&mut inner.attrs),
        Expr::Path(inner) => std::mem::take(&mut inner.attrs),
        _ => Vec::new(),
    }
}

impl VisitMut for Rewriter<'_> {
    fn visit_block_mut(&mut self, block: &mut Block) {
        let mut stmts = Vec::with_capacity(block.stmts.len());
        let count = block.stmts.len();
        for (number, mut stmt) in std::mem::take(&mut block.stmts).into_iter().enumerate() {
            stmts.extend(self.synchronize(&stmt));
            if number + 1 < count {
                output::end_statement(&mut stmt);
            }
            self.visit_stmt_mut(&mut stmt);
            stmts.push(stmt);
        }
        block.stmts = stmts;
    }

    fn visit_stmt_mut(&mut self, stmt: &mut Stmt) {
        if analysis::is_skipped(stmt) {
            return Clear.visit_stmt_mut(stmt);
        }
        match stmt {
            Stmt::Macro(_) => self.statement_macro(stmt),
            Stmt::Expr(expr, Some(_)) if macros::invoked(expr).is_some() => {
                self.statement_macro(stmt)
            }
            _ => visit_mut::visit_stmt_mut(self, stmt),
        }
    }

    fn visit_local_mut(&mut self, local: &mut Local) {
        let number = marks::number(&local.attrs);
        let taken = self.plan.feeding.iter().filter(|(fed, _)| Some(*fed) == number);
        let taken = taken.map(|(_, mark)| Batches::of(*mark)).max().unwrap_or_default();
        marks::clear(&mut local.attrs);
        self.with_batches(taken, |this| visit_mut::visit_local_mut(this, local));
    }

    fn visit_expr_mut(&mut self, expr: &mut Expr) {
        if let Some(attrs) = marks::loop_attrs(expr)
            && marks::skipped(attrs)
        {
            return Clear.visit_expr_mut(expr);
        }
        let site = recognise::site(expr).filter(|site| !self.is_left(*site));
        match expr {
            Expr::ForLoop(inner) => self.for_loop(inner),
            Expr::While(inner) => {
                let own = self.plan_of(&inner.attrs);
                self.with_own_data(own.own_data, |this| {
                    visit_mut::visit_expr_while_mut(this, inner)
                });
                self.count_epochs(&inner.attrs, &mut inner.body);
            }
            Expr::Loop(inner) => {
                let own = self.plan_of(&inner.attrs);
                self.with_own_data(own.own_data, |this| {
                    visit_mut::visit_expr_loop_mut(this, inner)
                });
                self.count_epochs(&inner.attrs, &mut inner.body);
            }
            _ if macros::invoked(expr).is_some() => {
                let output = self.macro_expr(expr);
                if let Some(Output::Value(value) | Output::Guarded(value)) = output {
                    let attrs = take_attrs(expr);
                    *expr = with_attrs(attrs, value);
                }
            }
            _ => visit_mut::visit_expr_mut(self, expr),
        }
        if let Some(attrs) = marks::tagged_attrs(expr) {
            marks::clear(attrs);
        }
        if let Some(site) = site {
            let attrs = take_attrs(expr);
            let span = sites::place(expr);
            let written = std::mem::replace(expr, Expr::PLACEHOLDER);
            let rewritten =
                sites::rewrite(site, written, self.batches, self.runtime, &mut self.by_type);
            *expr = with_attrs(attrs, rewritten);
            self.notes.site(span, site);
        }
    }

    /// The function of a call is no value: `Device::Cuda` in `Device::Cuda(0)` stays.
    fn visit_expr_call_mut(&mut self, call: &mut ExprCall) {
        if recognise::callee(call).is_none() {
            self.visit_expr_mut(&mut call.func);
        }
        call.args.iter_mut().for_each(|argument| self.visit_expr_mut(argument));
    }

    /// What an assignment feeds keeps its type, which another place declares.
    fn visit_expr_assign_mut(&mut self, expr: &mut ExprAssign) {
        self.visit_expr_mut(&mut expr.left);
        let feeding = analysis::place(&expr.left)
            .is_some_and(|place| self.plan.feeding_places.contains(&place));
        self.with_own_data(feeding, |this| this.visit_expr_mut(&mut expr.right));
    }

    fn visit_expr_repeat_mut(&mut self, expr: &mut ExprRepeat) {
        self.visit_expr_mut(&mut expr.expr);
    }

    fn visit_attribute_mut(&mut self, _: &mut Attribute) {}
    fn visit_item_mut(&mut self, _: &mut Item) {}
    crate::walk::expressions_only_mut!();
}

/// Takes our own attributes out of what is left alone.
struct Clear;

impl VisitMut for Clear {
    fn visit_stmt_mut(&mut self, stmt: &mut Stmt) {
        if let Some(attrs) = marks::attrs_of_mut(stmt) {
            marks::clear(attrs);
        }
        visit_mut::visit_stmt_mut(self, stmt);
    }

    fn visit_expr_mut(&mut self, expr: &mut Expr) {
        if let Some(attrs) = marks::tagged_attrs(expr) {
            marks::clear(attrs);
        }
        visit_mut::visit_expr_mut(self, expr);
        macros::close(expr);
    }

    fn visit_local_mut(&mut self, local: &mut Local) {
        marks::clear(&mut local.attrs);
        visit_mut::visit_local_mut(self, local);
    }
}
