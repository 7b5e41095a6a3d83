//! The attribute `#[distributed]`.

mod analysis;
mod check;
mod errors;
mod expand;
mod function;
mod macros;
mod marks;
mod options;
mod plan;
mod recognise;
mod rewrite;
#[cfg(test)]
mod tests;

use proc_macro::TokenStream;

/// Trains the function's loop on several devices, one process each.
#[proc_macro_attribute]
pub fn distributed(args: TokenStream, item: TokenStream) -> TokenStream {
    expand::expand(args.into(), item.into()).into()
}
