//! How inserted tokens are made: one call into the runtime each, at the user's place.

use proc_macro2::{Delimiter, Group, Ident, Span, TokenStream, TokenTree};
use quote::{ToTokens, quote, quote_spanned};
use syn::Path;

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
    path: TokenStream,
}

impl Runtime {
    pub(crate) fn new(path: Option<&Path>) -> Self {
        let path = path.map_or_else(|| quote!(::ddp_runtime), ToTokens::to_token_stream);
        Self { path: quote!(#path::__private) }
    }

    /// The path of the module itself.
    pub(crate) fn module(&self) -> TokenStream {
        respan(self.path.clone(), Span::mixed_site())
    }

    /// The path of one of its items, at the place of a token of the user.
    pub(crate) fn item(&self, name: &str, span: Span) -> TokenStream {
        let at = at(span);
        self.item_with(name, at)
    }

    /// A call of one of its functions that is wholly at the user's place, for the head of a loop: the error that
    /// something is no iterator then stands there, and not on the attribute.
    pub(crate) fn call_in_place(
        &self,
        name: &str,
        span: Span,
        argument: impl ToTokens,
    ) -> TokenStream {
        let function = self.item_with(name, span);
        quote_spanned!(span=> #function(#argument))
    }

    /// A call of one of its functions.
    pub(crate) fn call(&self, name: &str, span: Span, arguments: impl ToTokens) -> TokenStream {
        let function = self.item(name, span);
        let at = at(span);
        quote_spanned!(at=> #function(#arguments))
    }

    /// The place of a token as a value: `file:line:column`.
    ///
    /// These tokens are wholly at the user's place, as the line of a macro of a macro is that of the
    /// attribute.
    pub(crate) fn site(&self, span: Span) -> TokenStream {
        let site = self.item_with("site", span);
        quote_spanned!(span=> #site!())
    }

    fn item_with(&self, name: &str, span: Span) -> TokenStream {
        let path = respan(self.path.clone(), span);
        let names = name.split("::").map(|name| Ident::new(name, span));
        quote_spanned!(span=> #path #(::#names)*)
    }
}

/// Tokens in parentheses that begin where the user's receiver does, and end there.
pub(crate) fn in_parens(tokens: TokenStream, span: Span) -> Group {
    let mut group = Group::new(Delimiter::Parenthesis, tokens);
    group.set_span(span);
    group
}

/// The same tokens (a path, so no groups) at another place.
fn respan(tokens: TokenStream, span: Span) -> TokenStream {
    tokens
        .into_iter()
        .map(|mut token: TokenTree| {
            token.set_span(span);
            token
        })
        .collect()
}
