//! The user's marks, `#[ddp(..)]`: read, checked, taken out of the body, and kept in a table.
//!
//! So that all later stages speak of the same loop, each loop and each `let` is numbered here by an attribute
//! of our own, which the last stage takes away again.

use crate::errors::{self, Errors};
use crate::{imports, macros};
use proc_macro2::{Ident, Span};
use quote::ToTokens;
use syn::punctuated::Punctuated;
use syn::visit_mut::{self, VisitMut};
use syn::{
    AttrStyle, Attribute, Block, Expr, ExprRepeat, Item, ItemMacro, Local, Meta, Stmt, Token, token,
};

/// What the user says about a loop.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mark {
    /// Every rank takes its share of the items.
    Shard,
    /// Every rank runs all of them, on data of its own.
    Each,
    /// Every rank does the same work.
    Same,
}

impl Mark {
    fn of(word: &str) -> Option<Self> {
        match word {
            "shard" => Some(Mark::Shard),
            "each" => Some(Mark::Each),
            "same" => Some(Mark::Same),
            _ => None,
        }
    }

    /// The word of the mark, which is the runtime's function as well.
    pub(crate) fn word(self) -> &'static str {
        match self {
            Mark::Shard => "shard",
            Mark::Each => "each",
            Mark::Same => "same",
        }
    }
}

/// What was found while the loops were numbered.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    /// The mark of each loop, by its number.
    of_loops: Vec<Option<Mark>>,
    /// A `return` stands in the body, if only in a closure.
    pub(crate) returns: bool,
}

impl Marks {
    /// How many loops there are.
    pub(crate) fn count(&self) -> usize {
        self.of_loops.len()
    }

    /// The mark of a loop.
    pub(crate) fn of(&self, number: usize) -> Option<Mark> {
        self.of_loops.get(number).copied().flatten()
    }
}

const NUMBER: &str = "__ddp_number_";
const SKIP: &str = "__ddp_skip";

/// The number of a loop or a `let`.
pub(crate) fn number(attrs: &[Attribute]) -> Option<usize> {
    attrs.iter().rev().find_map(number_of)
}

fn number_of(attr: &Attribute) -> Option<usize> {
    attr.path().get_ident()?.to_string().strip_prefix(NUMBER)?.parse().ok()
}

/// Whether an attribute of ours says what the expression itself is, so that it stays on it whatever is put around that.
pub(crate) fn stays(attr: &Attribute) -> bool {
    attr.path().is_ident(macros::OWN) || number_of(attr).is_some()
}

/// Whether the statement or loop with these attributes is to be left alone.
pub(crate) fn skipped(attrs: &[Attribute]) -> bool {
    attrs.iter().any(|attr| attr.path().is_ident(SKIP))
}

/// Whether an attribute is a mark: `#[ddp(..)]`, or `#[cfg_attr(.., ddp(..))]` in a program that has the
/// attribute `distributed` under the same condition.
fn is_mark(attr: &Attribute) -> bool {
    attr.path().is_ident("ddp") || conditional(attr).is_some()
}

/// The `ddp(..)` of a `cfg_attr`, where that is all it holds.
fn conditional(attr: &Attribute) -> Option<Meta> {
    if !attr.path().is_ident("cfg_attr") {
        return None;
    }
    let parts = attr.parse_args_with(Punctuated::<Meta, Token![,]>::parse_terminated).ok()?;
    let mark = parts.into_iter().nth(1)?;
    mark.path().is_ident("ddp").then_some(mark)
}

/// The word of a mark.
fn word(attr: &Attribute) -> Option<Ident> {
    match conditional(attr).unwrap_or_else(|| attr.meta.clone()) {
        Meta::List(list) => list.parse_args().ok(),
        _ => None,
    }
}

/// Takes our own attributes away.
pub(crate) fn clear(attrs: &mut Vec<Attribute>) {
    attrs.retain(|attr| !stays(attr) && !attr.path().is_ident(SKIP));
}

/// The attributes of a loop.
pub(crate) fn loop_attrs(expr: &mut Expr) -> Option<&mut Vec<Attribute>> {
    match expr {
        Expr::ForLoop(expr) => Some(&mut expr.attrs),
        Expr::While(expr) => Some(&mut expr.attrs),
        Expr::Loop(expr) => Some(&mut expr.attrs),
        _ => None,
    }
}

/// The attributes of what may have a tag of ours: a loop, or a macro.
pub(crate) fn tagged_attrs(expr: &mut Expr) -> Option<&mut Vec<Attribute>> {
    match expr {
        Expr::Macro(expr) => Some(&mut expr.attrs),
        expr => loop_attrs(expr),
    }
}

/// Makes the two forms of one question, by shared and by exclusive reference.
macro_rules! leftmost {
    ($leftmost:ident, $of_statement:ident, $attrs:ty, $($reference:tt)+) => {
        /// The attributes of an expression's leftmost operand, where the parser puts those of a statement.
        pub(crate) fn $leftmost(expr: $($reference)+ Expr) -> Option<$attrs> {
            leftmost!(@kinds ($leftmost) expr ($($reference)+)
                Array Async Await Block Break Call Closure Const Continue Field ForLoop Group If Index Infer
                Let Lit Loop Macro Match MethodCall Paren Path Range RawAddr Reference Repeat Return Struct
                Try TryBlock Tuple Unary Unsafe While Yield)
        }

        /// The attributes of a statement, wherever the parser put them.
        pub(crate) fn $of_statement(stmt: $($reference)+ Stmt) -> Option<$attrs> {
            match stmt {
                Stmt::Local(local) => Some($($reference)+ local.attrs),
                Stmt::Macro(mac) => Some($($reference)+ mac.attrs),
                Stmt::Expr(expr, _) => $leftmost(expr),
                Stmt::Item(_) => None,
            }
        }
    };
    (@kinds ($leftmost:ident) $expr:ident $reference:tt $($kind:ident)*) => {
        match $expr {
            Expr::Assign(inner) => leftmost!(@go $leftmost $reference inner.left),
            Expr::Binary(inner) => leftmost!(@go $leftmost $reference inner.left),
            Expr::Cast(inner) => leftmost!(@go $leftmost $reference inner.expr),
            $(Expr::$kind(inner) => Some(leftmost!(@take $reference inner.attrs)),)*
            _ => None,
        }
    };
    (@go $leftmost:ident ($($reference:tt)+) $place:expr) => { $leftmost($($reference)+ $place) };
    (@take ($($reference:tt)+) $place:expr) => { $($reference)+ $place };
}

leftmost!(leftmost_attrs, attrs_of, &[Attribute], &);
leftmost!(leftmost_attrs_mut, attrs_of_mut, &mut Vec<Attribute>, &mut);

/// Reads all marks of the body and numbers its loops; what is wrong goes to `errors`.
pub(crate) fn take(body: &mut Block, errors: &mut Errors) -> Marks {
    let mut taker = Taker { errors, marks: Marks::default(), lets: 0, own_macros: Vec::new() };
    taker.visit_block_mut(body);
    taker.marks
}

struct Taker<'a> {
    errors: &'a mut Errors,
    marks: Marks,
    lets: usize,
    /// The macros that are no well-known ones here, whatever their name: the body has defined or imported them.
    own_macros: Vec<String>,
}

impl Taker<'_> {
    /// Takes the marks out of an item's attributes; `skip` stays as an attribute of our own.
    fn words(&mut self, attrs: &mut Vec<Attribute>) -> Vec<Ident> {
        let mut words = Vec::new();
        for attr in attrs.extract_if(.., |attr| is_mark(attr)) {
            match word(&attr) {
                Some(word) => words.push(word),
                None => self.errors.on(&attr, errors::MARK_SYNTAX),
            }
        }
        words
    }

    fn loop_mark(&mut self, attrs: &mut Vec<Attribute>, is_for: bool) {
        let mut found = None;
        for word in self.words(attrs) {
            let mark = Mark::of(&word.to_string());
            match mark {
                _ if word == "skip" => attrs.push(tag(SKIP)),
                None => self.errors.on(&word, errors::unknown_mark(&word.to_string())),
                Some(_) if found.is_some() => self.errors.on(&word, errors::TWO_MARKS),
                Some(_) => {
                    if mark == Some(Mark::Shard) && !is_for {
                        self.errors.on(&word, errors::SHARD_NEEDS_FOR);
                    }
                    found = mark;
                }
            }
        }
        attrs.push(number_tag(self.marks.count()));
        self.marks.of_loops.push(found);
    }

    fn statement_marks(&mut self, attrs: &mut Vec<Attribute>) {
        for word in self.words(attrs) {
            match Mark::of(&word.to_string()) {
                _ if word == "skip" => attrs.push(tag(SKIP)),
                Some(mark) => self.errors.on(&word, errors::mark_needs_loop(mark.word())),
                None => self.errors.on(&word, errors::unknown_mark(&word.to_string())),
            }
        }
    }
}

impl VisitMut for Taker<'_> {
    fn visit_block_mut(&mut self, block: &mut Block) {
        let around = self.own_macros.len();
        self.own_macros.extend(imports::others(block));
        visit_mut::visit_block_mut(self, block);
        self.own_macros.truncate(around);
    }

    fn visit_stmt_mut(&mut self, stmt: &mut Stmt) {
        if let Stmt::Macro(mac) = stmt
            && let Some(opened) = macros::open_statement(mac, &self.own_macros)
        {
            *stmt = Stmt::Expr(opened, mac.semi_token);
        }
        let is_loop =
            matches!(stmt, Stmt::Expr(Expr::ForLoop(_) | Expr::While(_) | Expr::Loop(_), _));
        if !is_loop && let Some(attrs) = attrs_of_mut(stmt) {
            self.statement_marks(attrs);
        }
        visit_mut::visit_stmt_mut(self, stmt);
    }

    fn visit_local_mut(&mut self, local: &mut Local) {
        local.attrs.push(number_tag(self.lets));
        self.lets += 1;
        visit_mut::visit_local_mut(self, local);
    }

    fn visit_expr_mut(&mut self, expr: &mut Expr) {
        macros::open(expr, &self.own_macros);
        self.marks.returns |= matches!(expr, Expr::Return(_));
        let is_for = matches!(expr, Expr::ForLoop(_));
        if let Some(attrs) = loop_attrs(expr) {
            self.loop_mark(attrs, is_for);
        }
        visit_mut::visit_expr_mut(self, expr);
    }

    /// Whatever mark is still there stands on something that takes none.
    fn visit_attribute_mut(&mut self, attr: &mut Attribute) {
        if !is_mark(attr) {
            return;
        }
        match word(attr) {
            Some(word) if word == "skip" => self.errors.on(&attr, errors::SKIP_NEEDS_STATEMENT),
            Some(word) => match Mark::of(&word.to_string()) {
                Some(mark) => self.errors.on(&word, errors::mark_needs_loop(mark.word())),
                None => self.errors.on(&word, errors::unknown_mark(&word.to_string())),
            },
            None => self.errors.on(attr.to_token_stream(), errors::MARK_SYNTAX),
        }
    }

    fn visit_expr_repeat_mut(&mut self, expr: &mut ExprRepeat) {
        self.visit_expr_mut(&mut expr.expr);
    }

    fn visit_item_mut(&mut self, item: &mut Item) {
        if let Item::Macro(ItemMacro { ident: Some(name), .. }) = item {
            self.own_macros.push(name.to_string());
        }
    }

    crate::walk::expressions_only_mut!();
}

/// `#[__ddp_number_3]`: the number is in the name, which costs least to make and to read.
fn number_tag(number: usize) -> Attribute {
    tag(&format!("{NUMBER}{number}"))
}

/// An attribute of our own.
pub(crate) fn tag(name: &str) -> Attribute {
    let span = Span::call_site();
    Attribute {
        pound_token: Token![#](span),
        style: AttrStyle::Outer,
        bracket_token: token::Bracket(span),
        meta: Meta::Path(Ident::new(name, span).into()),
    }
}
