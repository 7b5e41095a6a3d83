//! `#[derive(SplitBatch)]`: a struct of columns is a batch that the ranks can share.

use crate::errors::{self, Errors};
use crate::options;
use crate::rewrite::emit::{Runtime, at};
use proc_macro2::{Ident, Span, TokenStream};
use quote::quote_spanned;
use syn::spanned::Spanned;
use syn::visit::{self, Visit};
use syn::{
    Attribute, Data, DeriveInput, Expr, Field, Generics, Meta, MetaNameValue, Path, Type,
    parse_quote,
};

/// Expands the derive.
pub(crate) fn expand(item: TokenStream) -> TokenStream {
    try_expand(item).unwrap_or_else(|error| error.to_compile_error())
}

fn try_expand(item: TokenStream) -> syn::Result<TokenStream> {
    let input: DeriveInput = syn::parse2(item)?;
    let mut errors = Errors::default();
    let runtime = runtime(&input.attrs, &mut errors);
    let columns = columns(&input, &mut errors);
    errors.propagate()?;
    Ok(implementation(&input, &columns, &Runtime::new(runtime.as_ref())))
}

/// One field.
struct Column<'a> {
    field: &'a Field,
    /// `tokens`, or `0`.
    member: syn::Member,
    /// It goes to every rank as it is.
    whole: bool,
}

/// The path in `#[batch(crate = "..")]` on the struct.
fn runtime(attrs: &[Attribute], errors: &mut Errors) -> Option<Path> {
    let mut path = None;
    for attr in attrs.iter().filter(|attr| attr.path().is_ident("batch")) {
        match attr.parse_args::<Meta>() {
            Ok(Meta::NameValue(MetaNameValue { path: key, value, .. }))
                if key.is_ident("crate") =>
            {
                path = options::runtime_path(Some(&value));
                if path.is_none() {
                    errors.on(&value, errors::batch_crate());
                }
            }
            _ => errors.on(attr, errors::BATCH_ATTRIBUTE),
        }
    }
    path
}

fn columns<'a>(input: &'a DeriveInput, errors: &mut Errors) -> Vec<Column<'a>> {
    let fields = match &input.data {
        Data::Struct(data) => &data.fields,
        Data::Enum(data) => {
            errors.on(data.enum_token, errors::BATCH_NOT_A_STRUCT);
            return Vec::new();
        }
        Data::Union(data) => {
            errors.on(data.union_token, errors::BATCH_NOT_A_STRUCT);
            return Vec::new();
        }
    };
    let columns: Vec<Column<'_>> = fields
        .iter()
        .zip(fields.members())
        .map(|(field, member)| Column { field, member, whole: is_whole(&field.attrs, errors) })
        .collect();
    if columns.iter().all(|column| column.whole) {
        errors.on(&input.ident, errors::BATCH_WITHOUT_COLUMNS);
    }
    columns
}

fn is_whole(attrs: &[Attribute], errors: &mut Errors) -> bool {
    let mut whole = false;
    for attr in attrs.iter().filter(|attr| attr.path().is_ident("batch")) {
        match attr.parse_args::<Ident>() {
            Ok(word) if word == "whole" => whole = true,
            _ => errors.on(attr, errors::BATCH_ATTRIBUTE),
        }
    }
    whole
}

/// Input: `struct Pair<T> { xs: Tensor, ys: T, #[batch(whole)] name: Name }`
///
/// Output:
/// ```text
/// impl<T> SplitBatch for Pair<T> where T: SplitBatch {
///     fn batch_size(&self) -> Result<BatchSize, DataError> {
///         BatchSize::of_columns([
///             ("xs", SplitBatch::batch_size(&self.xs)?), ("ys", SplitBatch::batch_size(&self.ys)?)])
///     }
///     fn into_samples(self, start: i64, length: i64) -> Result<Self, DataError> {
///         Ok(Self { xs: SplitBatch::into_samples(self.xs, start, length)?, .., name: self.name })
///     }
/// }
/// ```
/// with all paths whole.
fn implementation(input: &DeriveInput, columns: &[Column<'_>], runtime: &Runtime) -> TokenStream {
    let DeriveInput { ident, generics, .. } = input;
    let own = Span::mixed_site();
    let [split, size, error] =
        ["SplitBatch", "BatchSize", "DataError"].map(|name| runtime.place(&[name], own));
    let sizes =
        columns.iter().filter(|column| !column.whole).map(|Column { field, member, .. }| {
            let name = name(member);
            let split = runtime.place(&["SplitBatch"], at(field.ty.span()));
            quote_spanned!(at(field.ty.span())=> (#name, #split::batch_size(&self.#member)?))
        });
    let parts = columns.iter().map(|Column { field, member, whole }| {
        let span = at(field.ty.span());
        let split = runtime.place(&["SplitBatch"], at(field.ty.span()));
        if *whole {
            quote_spanned!(span=> #member: self.#member)
        } else {
            quote_spanned!(span=> #member: #split::into_samples(self.#member, __ddp_start, __ddp_length)?)
        }
    });
    let generics = bounded(generics.clone(), columns, &split);
    let (impl_generics, type_generics, where_clause) = generics.split_for_impl();
    quote_spanned! {own=>
        #[automatically_derived]
        impl #impl_generics #split for #ident #type_generics #where_clause {
            fn batch_size(&self) -> ::core::result::Result<#size, #error> {
                #size::of_columns([#(#sizes),*])
            }
            fn into_samples(
                self,
                __ddp_start: i64,
                __ddp_length: i64,
            ) -> ::core::result::Result<Self, #error> {
                ::core::result::Result::Ok(Self { #(#parts),* })
            }
        }
    }
}

/// The name of a column in errors.
fn name(member: &syn::Member) -> String {
    match member {
        syn::Member::Named(name) => name.to_string().trim_start_matches("r#").to_owned(),
        syn::Member::Unnamed(index) => index.index.to_string(),
    }
}

/// Asks of the types of columns that name a type parameter what is asked of all columns.
fn bounded(mut generics: Generics, columns: &[Column<'_>], split: &Path) -> Generics {
    let parameters: Vec<Ident> =
        generics.type_params().map(|parameter| parameter.ident.clone()).collect();
    let generic = columns
        .iter()
        .filter(|column| !column.whole)
        .map(|column| &column.field.ty)
        .filter(|ty| names_one_of(ty, &parameters));
    let predicates: Vec<syn::WherePredicate> =
        generic.map(|ty| parse_quote!(#ty: #split)).collect();
    if !predicates.is_empty() {
        generics.make_where_clause().predicates.extend(predicates);
    }
    generics
}

fn names_one_of(ty: &Type, parameters: &[Ident]) -> bool {
    struct Finder<'a>(&'a [Ident], bool);
    impl Visit<'_> for Finder<'_> {
        fn visit_ident(&mut self, ident: &Ident) {
            self.1 |= self.0.contains(ident);
        }
        fn visit_expr(&mut self, _: &Expr) {}
    }
    let mut finder = Finder(parameters, false);
    visit::visit_type(&mut finder, ty);
    finder.1
}
