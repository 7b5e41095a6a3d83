//! What the names of the body stand for: batches, optimizers, closures that step.

use super::source::{self, Source};
use crate::recognise;
use syn::visit::{self, Visit};
use syn::{Expr, FnArg, Local, Pat, PatIdent, PatType, Signature, Type};

/// What is known of one name or place, from the `let` or the assignment that gave it its value.
#[derive(Debug, Clone, Default)]
pub(crate) struct Binding {
    pub(crate) name: String,
    /// The number of the `let`, where there is one.
    pub(crate) number: Option<usize>,
    /// It was given a value where it was before.
    pub(crate) assigned: bool,
    pub(crate) source: Source,
    /// Its value was made from shared batches.
    pub(crate) holds_data: bool,
    pub(crate) optimizer: bool,
    /// A closure that takes a step when it is called.
    pub(crate) steps: bool,
}

/// How much of what matters was made up to some place.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Made {
    /// Training steps.
    pub(crate) steps: usize,
    /// Shared batches, in closures as well.
    pub(crate) data: usize,
}

impl Made {
    /// What was made after that place.
    pub(crate) fn since(self, before: Self) -> Self {
        Self { steps: self.steps - before.steps, data: self.data - before.data }
    }
}

/// The names in the order in which they were bound; the last of a name is the one that counts.
#[derive(Debug, Default)]
pub(crate) struct Names {
    bindings: Vec<Binding>,
    /// Local macros whose expansion takes a step.
    pub(crate) stepping_macros: Vec<String>,
}

impl Names {
    /// The names that the parameters bind.
    pub(crate) fn of_parameters(signature: &Signature) -> Self {
        let mut names = Self::default();
        for input in &signature.inputs {
            if let FnArg::Typed(PatType { pat, ty, .. }) = input {
                for name in bound(pat) {
                    let optimizer = type_name(ty).is_some_and(|ty| ty.contains("Optimizer"));
                    let source = by_type(ty);
                    names.bindings.push(Binding { name, source, optimizer, ..Binding::default() });
                }
            }
        }
        names
    }

    /// Notes what a `let` binds, whose value made so much.
    pub(crate) fn bind(&mut self, local: &Local, number: Option<usize>, made: Made) {
        let init = local.init.as_ref().map(|init| &*init.expr);
        let typed = match &local.pat {
            Pat::Type(typed) => type_name(&typed.ty).is_some_and(|ty| ty.contains("Optimizer")),
            _ => false,
        };
        let whole = matches!(untyped(&local.pat), Pat::Ident(_));
        for name in bound(&local.pat) {
            let source = match (&local.pat, init) {
                (Pat::Type(typed), _) if by_type(&typed.ty) == Source::Loader => Source::Loader,
                (_, Some(init)) if whole => source::of(init, self),
                _ => Source::Unknown,
            };
            self.bindings.push(Binding {
                name,
                number,
                assigned: false,
                source,
                holds_data: made.data > 0,
                optimizer: typed || init.is_some_and(builds_optimizer),
                steps: made.steps > 0 && matches!(init, Some(Expr::Closure(_))),
            });
        }
    }

    /// Notes what is assigned to a place, as in `self.batches = data.train_iter(64)`.
    pub(crate) fn assign(&mut self, place: String, value: &Expr, made: Made) {
        let source = source::of(value, self);
        let holds_data = made.data > 0;
        let optimizer = builds_optimizer(value);
        let (name, assigned) = (place, true);
        self.bindings.push(Binding {
            name,
            assigned,
            source,
            holds_data,
            optimizer,
            ..Binding::default()
        });
    }

    /// Notes names of which nothing is known, such as a loop's variables.
    pub(crate) fn shadow(&mut self, pat: &Pat) {
        for name in bound(pat) {
            self.bindings.push(Binding { name, ..Binding::default() });
        }
    }

    /// How many names were bound so far, some of them more than once.
    pub(crate) fn count(&self) -> usize {
        self.bindings.len()
    }

    /// Whether the name was bound after so many others.
    pub(crate) fn is_bound_after(&self, count: usize, name: &str) -> bool {
        self.bindings.iter().skip(count).any(|binding| !binding.assigned && binding.name == name)
    }

    /// What a name stands for here.
    pub(crate) fn get(&self, name: &str) -> Option<&Binding> {
        self.bindings.iter().rev().find(|binding| binding.name == name)
    }

    /// Takes what a name stands for, to change it.
    pub(crate) fn get_mut(&mut self, name: &str) -> Option<&mut Binding> {
        self.bindings.iter_mut().rev().find(|binding| binding.name == name)
    }

    /// Whether the expression is an optimizer, as far as names and bindings tell.
    pub(crate) fn is_optimizer(&self, expr: &Expr) -> bool {
        if let Some(ident) = recognise::as_path(expr).and_then(|path| path.get_ident()) {
            let ident = ident.to_string();
            return named_optimizer(&ident)
                || self.get(&ident).is_some_and(|binding| binding.optimizer);
        }
        match expr {
            Expr::Field(field) => match &field.member {
                syn::Member::Named(name) => named_optimizer(&name.to_string()),
                syn::Member::Unnamed(_) => self.is_optimizer(&field.base),
            },
            Expr::MethodCall(call) => {
                named_optimizer(&call.method.to_string()) || self.is_optimizer(&call.receiver)
            }
            Expr::Index(index) => self.is_optimizer(&index.expr),
            Expr::Paren(inner) => self.is_optimizer(&inner.expr),
            Expr::Reference(inner) => self.is_optimizer(&inner.expr),
            Expr::Unary(inner) => self.is_optimizer(&inner.expr),
            Expr::Try(inner) => self.is_optimizer(&inner.expr),
            _ => false,
        }
    }
}

/// Whether a name says that it is an optimizer: `opt`, `disc_opt`, `optimizer_mut`, `adam`.
fn named_optimizer(name: &str) -> bool {
    let words =
        ["opt", "opts", "optim", "optimizer", "optimiser", "adam", "adamw", "sgd", "rmsprop"];
    name.split('_').any(|word| words.contains(&word))
}

/// What the name of a type says of a value's items.
fn by_type(ty: &Type) -> Source {
    match type_name(ty) {
        Some(name) if name == source::LOADER => Source::Loader,
        _ => Source::Unknown,
    }
}

/// The last name of a type, through references.
pub(crate) fn type_name(ty: &Type) -> Option<String> {
    match ty {
        Type::Path(path) => path.path.segments.last().map(|segment| segment.ident.to_string()),
        Type::Reference(reference) => type_name(&reference.elem),
        Type::Paren(inner) => type_name(&inner.elem),
        Type::Group(inner) => type_name(&inner.elem),
        _ => None,
    }
}

fn untyped(pat: &Pat) -> &Pat {
    match pat {
        Pat::Type(typed) => untyped(&typed.pat),
        pat => pat,
    }
}

/// The names a pattern binds.
pub(crate) fn bound(pat: &Pat) -> Vec<String> {
    if let Pat::Ident(PatIdent { ident, subpat: None, .. }) = untyped(pat) {
        return vec![ident.to_string()];
    }
    struct Bound(Vec<String>);
    impl Visit<'_> for Bound {
        fn visit_pat_ident(&mut self, pat: &syn::PatIdent) {
            self.0.push(pat.ident.to_string());
            visit::visit_pat_ident(self, pat);
        }
        fn visit_expr(&mut self, _: &Expr) {}
    }
    let mut names = Bound(Vec::new());
    names.visit_pat(pat);
    names.0
}

/// Whether the expression builds an optimizer: `nn::Adam::default().build(&vs, 1e-3)`.
fn builds_optimizer(expr: &Expr) -> bool {
    match expr {
        Expr::MethodCall(call) => {
            (call.method == "build" && call.args.len() == 2) || builds_optimizer(&call.receiver)
        }
        Expr::Try(inner) => builds_optimizer(&inner.expr),
        Expr::Paren(inner) => builds_optimizer(&inner.expr),
        _ => false,
    }
}

/// Whether an expression, or one inside it, is what `wanted` looks for. Nested items are not.
pub(crate) fn any_expr(expr: &Expr, wanted: &mut dyn FnMut(&Expr) -> bool) -> bool {
    let mut any = AnyExpr { wanted, found: false };
    any.visit_expr(expr);
    any.found
}

struct AnyExpr<'a> {
    wanted: &'a mut dyn FnMut(&Expr) -> bool,
    found: bool,
}

impl Visit<'_> for AnyExpr<'_> {
    fn visit_expr(&mut self, expr: &Expr) {
        self.found = self.found || (self.wanted)(expr);
        if !self.found {
            visit::visit_expr(self, expr);
        }
    }

    fn visit_item(&mut self, _: &syn::Item) {}
    crate::walk::expressions_only!();
}
