//! Collectives that only some ranks reach: inside a branch on the rank, or a section of the main rank.

use super::names::{any_expr, bound};
use super::{steps, variable};
use crate::macros;
use crate::recognise;
use proc_macro2::Ident;
use syn::visit::{self, Visit};
use syn::{
    BinOp, Block, Expr, ExprBinary, ExprCall, ExprIf, ExprMatch, ExprMethodCall, ExprWhile, Local,
    Member,
};

/// Why only some ranks get to a place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Place {
    /// A branch whose condition depends on the rank.
    Branch,
    /// A section that the runtime runs on the main rank alone.
    MainOnly,
}

/// A collective that not all ranks reach.
#[derive(Debug)]
pub(crate) struct Lonely {
    /// Its name, the token to report.
    pub(crate) name: Ident,
    pub(crate) place: Place,
}

/// Functions that tell a rank from another one.
pub(super) const TELL: [&str; 7] =
    ["rank", "local_rank", "global_rank", "node_rank", "is_main", "is_main_rank", "is_local_main"];

/// Collectives whose names say nothing else.
const COLLECTIVES: [&str; 11] = [
    "barrier",
    "all_reduce",
    "all_gather",
    "all_to_all",
    "reduce_scatter",
    "broadcast_object",
    "should_stop",
    "skip_if",
    "agree",
    "main_first",
    "all_reduce_mean",
];

/// Collectives whose names are common: they count behind a path, as in `ddp_runtime::mean(..)`.
const COMMON: [&str; 6] = ["broadcast", "gather", "mean", "reduce", "scatter", "sync"];

/// Whether the function of this name runs what it is given on one rank alone.
pub(super) fn is_section(function: &str) -> bool {
    matches!(function, "main_only" | "rank0")
}

/// Looks for collectives that only some ranks reach.
pub(crate) fn lonely_collectives(body: &Block) -> Vec<Lonely> {
    let mut ranks = Ranks { names: Vec::new(), places: Vec::new(), found: Vec::new() };
    ranks.visit_block(body);
    ranks.found
}

struct Ranks {
    /// The names that were bound, and whether their value tells ranks apart.
    names: Vec<(String, bool)>,
    /// The places around us that only some ranks get to.
    places: Vec<Place>,
    found: Vec<Lonely>,
}

impl Ranks {
    /// Whether a value differs between ranks because it is made from the rank.
    fn depends(&self, expr: &Expr) -> bool {
        any_expr(expr, &mut |expr| match expr {
            Expr::Call(call) => {
                call.args.is_empty()
                    && recognise::callee(call)
                        .is_some_and(|path| TELL.contains(&macros::name(path).as_str()))
            }
            Expr::MethodCall(call) => {
                call.args.is_empty() && TELL.contains(&call.method.to_string().as_str())
            }
            Expr::Field(field) => {
                matches!(&field.member, Member::Named(name) if TELL.contains(&name.to_string().as_str()))
            }
            Expr::Path(_) => variable(expr).is_some_and(|name| self.tells(&name)),
            _ => false,
        })
    }

    fn tells(&self, name: &str) -> bool {
        let known = self.names.iter().rev().find(|(known, _)| known == name);
        known.map_or_else(|| TELL.contains(&name), |(_, tells)| *tells)
    }

    fn at(&mut self, place: Option<Place>, visit: impl FnOnce(&mut Self)) {
        let before = self.places.len();
        self.places.extend(place);
        visit(self);
        self.places.truncate(before);
    }

    fn branch_on(&self, condition: &Expr) -> Option<Place> {
        self.depends(condition).then_some(Place::Branch)
    }

    fn collective(&mut self, name: &Ident) {
        if let Some(place) = self.places.last() {
            self.found.push(Lonely { name: name.clone(), place: *place });
        }
    }
}

/// Whether the name of a value says that it is a variable store.
fn is_store(expr: &Expr) -> bool {
    let name = match expr {
        Expr::Field(field) => match &field.member {
            Member::Named(name) => name.to_string(),
            Member::Unnamed(_) => return false,
        },
        Expr::MethodCall(call) => call.method.to_string(),
        expr => variable(expr).unwrap_or_default(),
    };
    name.split('_').any(|word| matches!(word, "vs" | "store" | "varstore"))
}

impl Visit<'_> for Ranks {
    fn visit_local(&mut self, local: &Local) {
        visit::visit_local(self, local);
        let tells = local.init.as_ref().is_some_and(|init| self.depends(&init.expr));
        self.names.extend(bound(&local.pat).into_iter().map(|name| (name, tells)));
    }

    fn visit_expr_if(&mut self, expr: &ExprIf) {
        let place = self.branch_on(&expr.cond);
        self.visit_expr(&expr.cond);
        self.at(place, |this| {
            this.visit_block(&expr.then_branch);
            if let Some((_, branch)) = &expr.else_branch {
                this.visit_expr(branch);
            }
        });
    }

    fn visit_expr_match(&mut self, expr: &ExprMatch) {
        let place = self.branch_on(&expr.expr);
        self.visit_expr(&expr.expr);
        self.at(place, |this| expr.arms.iter().for_each(|arm| this.visit_arm(arm)));
    }

    fn visit_expr_while(&mut self, expr: &ExprWhile) {
        let place = self.branch_on(&expr.cond);
        self.at(place, |this| visit::visit_expr_while(this, expr));
    }

    fn visit_expr_binary(&mut self, expr: &ExprBinary) {
        let lazy = matches!(expr.op, BinOp::And(_) | BinOp::Or(_));
        let place = if lazy { self.branch_on(&expr.left) } else { None };
        self.visit_expr(&expr.left);
        self.at(place, |this| this.visit_expr(&expr.right));
    }

    fn visit_expr_call(&mut self, call: &ExprCall) {
        let Some(path) = recognise::callee(call) else {
            return visit::visit_expr_call(self, call);
        };
        let name = macros::name(path);
        let common = path.segments.len() > 1 && COMMON.contains(&name.as_str());
        if (common || COLLECTIVES.contains(&name.as_str()))
            && let Some(last) = path.segments.last()
        {
            self.collective(&last.ident);
        }
        let place = is_section(&name).then_some(Place::MainOnly);
        self.at(place, |this| call.args.iter().for_each(|argument| this.visit_expr(argument)));
    }

    fn visit_expr_method_call(&mut self, call: &ExprMethodCall) {
        let name = call.method.to_string();
        let saves = name == "save" && call.args.len() == 1 && is_store(&call.receiver);
        if saves || steps::is_backward(&name) || COLLECTIVES.contains(&name.as_str()) {
            self.collective(&call.method);
        }
        self.visit_expr(&call.receiver);
        // `is_main().then(|| ..)` is a branch as well.
        let place = if name == "then" { self.branch_on(&call.receiver) } else { None };
        self.at(place, |this| call.args.iter().for_each(|argument| this.visit_expr(argument)));
    }

    through_body!();
}
