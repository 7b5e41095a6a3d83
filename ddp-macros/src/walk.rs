//! What no walk through a body enters: names, types, patterns, and what is computed at compile time. None of it is part of
//! the training, and most of a tree is names: an unoptimised macro takes its time for each.

/// The methods of a visitor that only reads.
macro_rules! expressions_only {
    () => {
        fn visit_angle_bracketed_generic_arguments(
            &mut self,
            _: &syn::AngleBracketedGenericArguments,
        ) {
        }
        fn visit_attribute(&mut self, _: &syn::Attribute) {}
        fn visit_expr_const(&mut self, _: &syn::ExprConst) {}
        fn visit_ident(&mut self, _: &syn::Ident) {}
        fn visit_label(&mut self, _: &syn::Label) {}
        fn visit_lit(&mut self, _: &syn::Lit) {}
        fn visit_pat(&mut self, _: &syn::Pat) {}
        fn visit_path(&mut self, _: &syn::Path) {}
        fn visit_type(&mut self, _: &syn::Type) {}
    };
}

/// The methods of a visitor that writes.
macro_rules! expressions_only_mut {
    () => {
        fn visit_angle_bracketed_generic_arguments_mut(
            &mut self,
            _: &mut syn::AngleBracketedGenericArguments,
        ) {
        }
        fn visit_expr_const_mut(&mut self, _: &mut syn::ExprConst) {}
        fn visit_ident_mut(&mut self, _: &mut syn::Ident) {}
        fn visit_label_mut(&mut self, _: &mut syn::Label) {}
        fn visit_lit_mut(&mut self, _: &mut syn::Lit) {}
        fn visit_pat_mut(&mut self, _: &mut syn::Pat) {}
        fn visit_path_mut(&mut self, _: &mut syn::Path) {}
        fn visit_type_mut(&mut self, _: &mut syn::Type) {}
    };
}

pub(crate) use {expressions_only, expressions_only_mut};
