//! The annotated item, read as a function of any place: free, in an `impl`, in a trait.

use crate::errors::{self, Errors};
use proc_macro2::TokenStream;
use syn::{ImplItemFn, Item, TraitItemFn};

/// Reads the annotated item. What is not a function with a body goes to `errors`.
///
/// The form of an `impl` item holds everything that a function can have (attributes, visibility, `default`,
/// the whole signature, a body), so the three places share it, and nothing is rebuilt from parts.
pub(crate) fn parse(item: TokenStream, errors: &mut Errors) -> Option<ImplItemFn> {
    let error = match syn::parse2::<ImplItemFn>(item.clone()) {
        Ok(function) => {
            refuse_kind(&function, errors);
            return Some(function);
        }
        Err(error) => error,
    };
    match (syn::parse2::<TraitItemFn>(item.clone()), syn::parse2::<Item>(item.clone())) {
        (Ok(declared), _) if declared.default.is_none() => {
            errors.on(&declared.sig.ident, errors::NO_BODY);
        }
        (_, Ok(other)) => errors.on(head(other, item), errors::NOT_A_FUNCTION),
        _ => errors.add(error),
    }
    None
}

fn refuse_kind(function: &ImplItemFn, errors: &mut Errors) {
    if let Some(token) = &function.sig.asyncness {
        errors.on(token, errors::ASYNC);
    }
    if let Some(token) = &function.sig.constness {
        errors.on(token, errors::CONST);
    }
}

/// The word that says what the item is, for an error of one word.
fn head(item: Item, tokens: TokenStream) -> TokenStream {
    use quote::ToTokens;
    match item {
        Item::Const(item) => item.const_token.into_token_stream(),
        Item::Enum(item) => item.enum_token.into_token_stream(),
        Item::Impl(item) => item.impl_token.into_token_stream(),
        Item::Macro(item) => item.mac.path.into_token_stream(),
        Item::Mod(item) => item.mod_token.into_token_stream(),
        Item::Static(item) => item.static_token.into_token_stream(),
        Item::Struct(item) => item.struct_token.into_token_stream(),
        Item::Trait(item) => item.trait_token.into_token_stream(),
        Item::Type(item) => item.type_token.into_token_stream(),
        Item::Use(item) => item.use_token.into_token_stream(),
        _ => tokens,
    }
}
