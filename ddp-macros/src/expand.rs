//! The pipeline, one file a stage: parse, take the marks, look, check, decide, rewrite.

use crate::errors::Errors;
use crate::{analysis, check, function, macros, marks, options, plan, rewrite};
use proc_macro2::TokenStream;
use quote::ToTokens;

/// Expands the attribute. An error is reported beside the function as it was written, so that no second wave
/// of errors follows it.
pub(crate) fn expand(args: TokenStream, item: TokenStream) -> TokenStream {
    match try_expand(args, item.clone()) {
        Ok(expanded) => expanded,
        Err(error) => {
            let mut tokens = error.to_compile_error();
            tokens.extend(macros::without_marks(item));
            tokens
        }
    }
}

fn try_expand(args: TokenStream, item: TokenStream) -> syn::Result<TokenStream> {
    let mut errors = Errors::default();
    let options = options::parse(args, &mut errors);
    let Some(mut function) = function::parse(item, &mut errors) else {
        return errors.propagate().map(|()| TokenStream::new());
    };
    let marks = marks::take(&mut function.block, &mut errors);
    let loops = analysis::loops::find(&function.sig, &function.block, &marks);
    check::check(&function.block, &loops, &mut errors);
    errors.propagate()?;
    let plan = plan::decide(&function.sig, &loops, marks.returns);
    rewrite::apply(&mut function, &options, &plan);
    Ok(function.into_token_stream())
}
