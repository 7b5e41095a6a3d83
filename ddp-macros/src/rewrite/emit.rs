//! How inserted expressions are made: one call into the runtime each, at the user's place.
//!
//! They are made as trees, not as tokens: those are printed once, with the whole function.

use proc_macro2::{Ident, Span, TokenStream};
use syn::punctuated::Punctuated;
use syn::spanned::Spanned;
use syn::{
    Attribute, Expr, ExprCall, ExprMacro, ExprMethodCall, ExprParen, ExprPath, ExprRange,
    ExprReference, Macro, MacroDelimiter, Path, PathSegment, Token, token,
};

/// The place of a token of the user, with names of our own.
///
/// Errors of types point at the user's line, lints see code of a macro, and temporaries cannot meet the user's
/// names.
pub(crate) fn at(span: Span) -> Span {
    Span::mixed_site().located_at(span)
}

/// The path of the runtime's private module.
#[derive(Debug)]
pub(crate) struct Runtime {
    path: Path,
}

impl Runtime {
    pub(crate) fn new(path: Option<&Path>) -> Self {
        let path = path.cloned().unwrap_or_else(|| absolute(&["ddp_runtime"], Span::mixed_site()));
        Self { path: extended(path, &["__private"], Span::mixed_site()) }
    }

    /// The path of the module itself.
    pub(crate) fn module(&self) -> Path {
        self.place(&[], Span::mixed_site())
    }

    /// The path of one of its items, at the place of a token of the user.
    pub(crate) fn item(&self, names: &[&str], span: Span) -> Expr {
        path(self.place(names, at(span)))
    }

    /// A call of one of its functions.
    pub(crate) fn call(
        &self,
        names: &[&str],
        span: Span,
        arguments: impl IntoIterator<Item = Expr>,
    ) -> Expr {
        self.call_in_place(names, at(span), arguments)
    }

    /// A call of one of its functions that is wholly at the user's place, for the head of a loop: the error that
    /// something is no iterator then stands there, and not on the attribute.
    pub(crate) fn call_in_place(
        &self,
        names: &[&str],
        span: Span,
        arguments: impl IntoIterator<Item = Expr>,
    ) -> Expr {
        call(path(self.place(names, span)), span, arguments)
    }

    /// An invocation of one of its macros.
    pub(crate) fn invoke(&self, name: &str, span: Span, tokens: TokenStream) -> Expr {
        invoke(self.place(&[name], at(span)), at(span), tokens)
    }

    /// The place of a token as a value: `file:line:column`.
    ///
    /// These tokens are wholly at the user's place, as the line of a macro of a macro is that of the
    /// attribute.
    pub(crate) fn site(&self, span: Span) -> Expr {
        invoke(self.place(&["site"], span), span, TokenStream::new())
    }

    /// The module's path and these names behind it, all at one place.
    pub(crate) fn place(&self, names: &[&str], span: Span) -> Path {
        let mut path = self.path.clone();
        path.leading_colon = path.leading_colon.map(|_| Token![::](span));
        path.segments.iter_mut().for_each(|segment| segment.ident.set_span(span));
        extended(path, names, span)
    }
}

fn extended(mut path: Path, names: &[&str], span: Span) -> Path {
    for name in names {
        if !path.segments.empty_or_trailing() {
            path.segments.push_punct(Token![::](span));
        }
        path.segments.push_value(PathSegment::from(Ident::new(name, span)));
    }
    path
}

/// `::core::format_args`, for these names.
pub(crate) fn absolute(names: &[&str], span: Span) -> Path {
    let path = Path { leading_colon: Some(Token![::](span)), segments: Punctuated::new() };
    extended(path, names, span)
}

/// The name as an expression.
pub(crate) fn name(name: &Ident) -> Expr {
    path(name.clone().into())
}

fn path(path: Path) -> Expr {
    Expr::Path(ExprPath { attrs: Vec::new(), qself: None, path })
}

fn listed(values: impl IntoIterator<Item = Expr>, span: Span) -> Punctuated<Expr, Token![,]> {
    let mut list = Punctuated::new();
    for value in values {
        if !list.is_empty() {
            list.push_punct(Token![,](span));
        }
        list.push_value(value);
    }
    list
}

/// `function(arguments)`
pub(crate) fn call(function: Expr, span: Span, arguments: impl IntoIterator<Item = Expr>) -> Expr {
    Expr::Call(ExprCall {
        attrs: Vec::new(),
        func: Box::new(function),
        paren_token: token::Paren(span),
        args: listed(arguments, span),
    })
}

/// `receiver.method(arguments)`
pub(crate) fn method(
    receiver: Expr,
    method: &str,
    span: Span,
    arguments: impl IntoIterator<Item = Expr>,
) -> Expr {
    Expr::MethodCall(ExprMethodCall {
        attrs: Vec::new(),
        receiver: Box::new(receiver),
        dot_token: Token![.](span),
        method: Ident::new(method, span),
        turbofish: None,
        paren_token: token::Paren(span),
        args: listed(arguments, span),
    })
}

/// `name!(tokens)`
pub(crate) fn invoke(path: Path, span: Span, tokens: TokenStream) -> Expr {
    let delimiter = MacroDelimiter::Paren(token::Paren(span));
    let mac = Macro { path, bang_token: Token![!](span), delimiter, tokens };
    Expr::Macro(ExprMacro { attrs: Vec::new(), mac })
}

/// `&value`
pub(crate) fn reference(value: Expr, span: Span) -> Expr {
    Expr::Reference(ExprReference {
        attrs: Vec::new(),
        and_token: Token![&](span),
        mutability: None,
        expr: Box::new(value),
    })
}

/// `(value)`, in parentheses that begin where the user's receiver does, and end there.
pub(crate) fn in_parens(value: Expr, span: Span) -> Expr {
    Expr::Paren(ExprParen {
        attrs: Vec::new(),
        paren_token: token::Paren(span),
        expr: Box::new(value),
    })
}

/// The place of the first token of an expression.
///
/// `Spanned` would print the whole expression to find it, and could not join it with the last one either.
pub(crate) fn first_span(expr: &Expr) -> Span {
    match expr {
        Expr::Assign(inner) => first_span(&inner.left),
        Expr::Binary(inner) => first_span(&inner.left),
        Expr::Call(inner) => first_span(&inner.func),
        Expr::Cast(inner) => first_span(&inner.expr),
        Expr::Field(inner) => first_span(&inner.base),
        Expr::Index(inner) => first_span(&inner.expr),
        Expr::Lit(inner) => inner.lit.span(),
        Expr::Macro(inner) => path_span(&inner.mac.path),
        Expr::MethodCall(inner) => first_span(&inner.receiver),
        Expr::Paren(inner) => inner.paren_token.span.join(),
        Expr::Path(inner) if inner.qself.is_none() => path_span(&inner.path),
        Expr::Reference(inner) => inner.and_token.span,
        Expr::Range(ExprRange { start: Some(start), .. }) => first_span(start),
        Expr::Try(inner) => first_span(&inner.expr),
        expr => expr.span(),
    }
}

/// The place of the first token of a path.
pub(crate) fn path_span(path: &Path) -> Span {
    match (&path.leading_colon, path.segments.first()) {
        (Some(colon), _) => colon.spans[0],
        (None, Some(first)) => first.ident.span(),
        (None, None) => path.span(),
    }
}

/// The expression with the attributes of what it takes the place of.
pub(crate) fn with_attrs(attrs: Vec<Attribute>, mut value: Expr) -> Expr {
    if attrs.is_empty() {
        return value;
    }
    match crate::marks::leftmost_attrs_mut(&mut value) {
        Some(place) => {
            place.splice(0..0, attrs);
            value
        }
        None => Expr::Verbatim(quote::quote!(#(#attrs)* #value)),
    }
}
