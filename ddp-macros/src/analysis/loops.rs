//! The loops of the body: what they run over, whether they train, what they hold.

use super::indexed;
use super::names::{Made, Names};
use super::seen::Seen;
use super::source::{self, Source};
use super::steps::{self, Step};
use crate::macros;
use crate::marks::{self, Mark, Marks};
use crate::recognise;
use syn::visit::{self, Visit};
use syn::{
    BinOp, Block, Expr, ExprAssign, ExprBinary, ExprClosure, ExprForLoop, ExprLoop, ExprWhile,
    Item, Local, Macro, Pat, Signature, Stmt,
};

/// The keyword of a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    For,
    While,
    /// A `while let`, whose pattern takes items from somewhere.
    WhileLet,
    Loop,
}

/// What is known of one loop.
#[derive(Debug, Clone)]
pub(crate) struct Facts {
    pub(crate) kind: Kind,
    pub(crate) mark: Option<Mark>,
    pub(crate) source: Source,
    /// The number of the loop around it.
    pub(crate) parent: Option<usize>,
    /// A step stands in it, at any depth.
    pub(crate) trains: bool,
    /// A step stands in it outside any loop inside it.
    pub(crate) direct: bool,
    /// A step stands in it outside any loop inside it that is shared or marked.
    pub(crate) exposed: bool,
    /// A shared loop stands in it, at any depth.
    pub(crate) holds_shared: bool,
    /// Its variable picks rows out of data, in steps that no loop inside it shares.
    pub(crate) indexes: bool,
    /// Something in it may be done or not, at any depth.
    pub(crate) decides: bool,
    /// It stands in the body of a loop that is marked `shard` or `each`, so its data is the rank's own.
    pub(crate) covered: bool,
    /// The single name its pattern binds.
    pub(crate) variable: Option<String>,
    /// The place that counts the epochs of a `while` or `loop`, as in `self.epoch += 1`.
    pub(crate) counter: Option<Expr>,
}

impl Facts {
    /// Whether some rank may leave it, or take a step in it, alone: what rests on a condition, in a loop that takes
    /// shared batches or is around one.
    fn may_differ(&self) -> bool {
        let decides = self.decides || matches!(self.kind, Kind::While | Kind::WhileLet);
        decides && (self.holds_shared || self.is_shared())
    }

    /// Whether the runtime deals out its items.
    pub(crate) fn is_shared(&self) -> bool {
        match self.mark {
            Some(mark) => mark == Mark::Shard,
            None => !self.covered && matches!(self.source, Source::Shared | Source::Loader),
        }
    }
}

/// What the loops of a body are, by number.
#[derive(Debug, Default)]
pub(crate) struct Loops {
    pub(crate) facts: Vec<Facts>,
    /// The numbers of the `let`s that feed a marked loop, with its mark.
    pub(crate) feeding: Vec<(usize, Mark)>,
    /// The places that feed a marked loop by an assignment.
    pub(crate) feeding_places: Vec<String>,
    /// What there is for the rules to look at.
    pub(crate) seen: Seen,
}

impl Loops {
    /// Whether there is a loop in which ranks may do different things.
    pub(crate) fn may_differ(&self) -> bool {
        self.facts.iter().any(Facts::may_differ)
    }
}

/// Looks at all loops of a body.
pub(crate) fn find(signature: &Signature, body: &Block, marks: &Marks) -> Loops {
    let mut finder = Finder {
        names: Names::of_parameters(signature),
        marks,
        stack: Vec::new(),
        closures: 0,
        facts: vec![None; marks.count()],
        feeding: Vec::new(),
        feeding_places: Vec::new(),
        seen: Seen::default(),
        made: Made::default(),
    };
    finder.visit_block(body);
    let Finder { facts, feeding, feeding_places, seen, .. } = finder;
    let facts = facts.into_iter().map(Option::unwrap_or_default).collect();
    Loops { facts, feeding, feeding_places, seen }
}

impl Default for Facts {
    /// A loop that was never reached says nothing.
    fn default() -> Self {
        Self {
            kind: Kind::Loop,
            mark: None,
            source: Source::Unknown,
            parent: None,
            trains: false,
            direct: false,
            exposed: false,
            holds_shared: false,
            indexes: false,
            decides: false,
            covered: false,
            variable: None,
            counter: None,
        }
    }
}

struct Finder<'a> {
    names: Names,
    marks: &'a Marks,
    /// The loops around the place we are at, the innermost last: their numbers, and how many names had been bound
    /// when they began.
    stack: Vec<(usize, usize)>,
    /// How many closures are around us inside the innermost loop.
    closures: usize,
    facts: Vec<Option<Facts>>,
    feeding: Vec<(usize, Mark)>,
    feeding_places: Vec<String>,
    seen: Seen,
    /// What was made so far.
    made: Made,
}

impl Finder<'_> {
    fn enter(&mut self, number: usize, mut facts: Facts) {
        let parent = self.stack.last().map(|(number, _)| *number);
        facts.mark = self.marks.of(number);
        facts.parent = parent;
        facts.covered =
            parent.and_then(|parent| self.facts[parent].as_ref()).is_some_and(|parent| {
                parent.covered || matches!(parent.mark, Some(Mark::Shard | Mark::Each))
            });
        let shared = facts.is_shared();
        self.facts[number] = Some(facts);
        if shared {
            for (around, _) in &self.stack {
                if let Some(facts) = &mut self.facts[*around] {
                    facts.holds_shared = true;
                }
            }
        }
        self.stack.push((number, self.names.count()));
    }

    /// Notes what may be the count of the epochs: a place that says so, is added to in the loop, and lives outside it.
    fn added_to(&mut self, place: &Expr) {
        let Some((number, bound)) = self.stack.last().copied().filter(|_| self.closures == 0)
        else {
            return;
        };
        let outside =
            super::root(place).is_some_and(|root| !self.names.is_bound_after(bound, &root));
        if outside
            && super::last_name(place).is_some_and(|name| super::says_epoch(&name))
            && let Some(facts) = &mut self.facts[number]
        {
            facts.counter.get_or_insert_with(|| place.clone());
        }
    }

    /// Something may be done or not: all loops around it know of it.
    fn decision(&mut self) {
        for (around, _) in self.stack.iter().rev() {
            match &mut self.facts[*around] {
                Some(facts) if !facts.decides => facts.decides = true,
                _ => break,
            }
        }
    }

    fn step(&mut self) {
        self.made.steps += 1;
        let mut exposed = true;
        for (depth, (around, _)) in self.stack.iter().rev().enumerate() {
            if let Some(facts) = &mut self.facts[*around] {
                facts.trains = true;
                facts.direct |= depth == 0;
                facts.exposed |= exposed;
                exposed &= facts.mark.is_none() && !facts.is_shared();
            }
        }
    }

    /// What feeds a marked loop is not shared again.
    fn note_feeding(&mut self, head: &Expr, mark: Mark) {
        let mut places = Vec::new();
        super::names::any_expr(head, &mut |expr| {
            places.extend(super::place(expr));
            false
        });
        for place in places {
            if let Some(binding) = self.names.get_mut(&place)
                && binding.holds_data
            {
                binding.source = Source::Unknown;
                match binding.number {
                    Some(number) => self.feeding.push((number, mark)),
                    None => self.feeding_places.push(place),
                }
            }
        }
    }
}

impl Visit<'_> for Finder<'_> {
    fn visit_expr_for_loop(&mut self, expr: &ExprForLoop) {
        let Some(number) = marks::number(&expr.attrs).filter(|_| !marks::skipped(&expr.attrs))
        else {
            return;
        };
        if let Some(mark) = self.marks.of(number) {
            self.note_feeding(&expr.expr, mark);
        }
        let source = source::of_head(&expr.expr, &self.names);
        self.visit_expr(&expr.expr);
        self.names.shadow(&expr.pat);
        let variable = match &*expr.pat {
            Pat::Ident(pat) if pat.by_ref.is_none() && pat.subpat.is_none() => {
                Some(pat.ident.to_string())
            }
            _ => None,
        };
        self.enter(number, Facts { kind: Kind::For, source, variable, ..Facts::default() });
        self.visit_block(&expr.body);
        self.stack.pop();
        if let Some(facts) = &mut self.facts[number] {
            facts.indexes = facts.source == Source::Plain
                && facts.exposed
                && indexed::by(&expr.pat, &expr.body);
        }
    }

    fn visit_expr_while(&mut self, expr: &ExprWhile) {
        let Some(number) = marks::number(&expr.attrs).filter(|_| !marks::skipped(&expr.attrs))
        else {
            return;
        };
        let mut taken = None;
        super::names::any_expr(&expr.cond, &mut |expr| {
            if let Expr::Let(inner) = expr {
                taken.get_or_insert(source::of(&inner.expr, &self.names));
            }
            false
        });
        if let Some(mark) = self.marks.of(number) {
            self.note_feeding(&expr.cond, mark);
        }
        let kind = if taken.is_some() { Kind::WhileLet } else { Kind::While };
        // `while let Some(batch) = batches.next()` takes its items from where `batches` does.
        let source = taken.unwrap_or_default();
        self.enter(number, Facts { kind, source, ..Facts::default() });
        visit::visit_expr_while(self, expr);
        self.stack.pop();
    }

    fn visit_expr_loop(&mut self, expr: &ExprLoop) {
        let Some(number) = marks::number(&expr.attrs).filter(|_| !marks::skipped(&expr.attrs))
        else {
            return;
        };
        self.enter(number, Facts::default());
        visit::visit_expr_loop(self, expr);
        self.stack.pop();
    }

    fn visit_expr(&mut self, expr: &Expr) {
        let step = match expr {
            Expr::MethodCall(call) => {
                let name = call.method.to_string();
                self.seen.method(call, &name);
                self.made.data += usize::from(source::is_data(call, &name));
                steps::of_method(call, &name, &self.names)
            }
            Expr::Call(call) => recognise::callee(call).and_then(|path| {
                let name = macros::name(path);
                self.seen.call(call, path, &name);
                self.made.data += usize::from(source::is_iter2(call, path, &name));
                steps::of_call(call, path, &name, &self.names)
            }),
            Expr::If(_) => {
                self.decision();
                None
            }
            Expr::Binary(ExprBinary { left, op: BinOp::AddAssign(_), .. }) => {
                self.added_to(left);
                None
            }
            _ => {
                self.seen.other(expr);
                None
            }
        };
        if step.is_some() {
            self.step();
        }
        visit::visit_expr(self, expr);
    }

    fn visit_local(&mut self, local: &Local) {
        let before = self.made;
        visit::visit_local(self, local);
        self.names.bind(local, marks::number(&local.attrs), self.made.since(before));
    }

    fn visit_expr_assign(&mut self, expr: &ExprAssign) {
        let before = self.made;
        visit::visit_expr_assign(self, expr);
        if let Some(place) = super::place(&expr.left) {
            self.names.assign(place, &expr.right, self.made.since(before));
        }
    }

    fn visit_expr_closure(&mut self, closure: &ExprClosure) {
        closure.inputs.iter().for_each(|input| self.names.shadow(input));
        self.closures += 1;
        visit::visit_expr_closure(self, closure);
        self.closures -= 1;
    }

    fn visit_macro(&mut self, mac: &Macro) {
        if steps::of_macro(mac, &self.names) == Some(Step::Direct) {
            self.step();
        }
    }

    fn visit_stmt(&mut self, stmt: &Stmt) {
        if !super::is_skipped(stmt) {
            visit::visit_stmt(self, stmt);
        }
    }

    crate::walk::expressions_only!();

    /// Of the items inside the body only the local macros matter.
    fn visit_item(&mut self, item: &Item) {
        if let Item::Macro(item) = item
            && let Some(name) = &item.ident
            && macros::calls_method(item.mac.tokens.clone(), &steps::is_backward)
        {
            self.names.stepping_macros.push(name.to_string());
        }
    }
}
