//! Names of well-known macros that a `use` inside the body gives to others.

use syn::{Block, Item, Stmt, UseTree};

/// The names of macros that stand for something else in this block, wherever in it its `use`s stand.
pub(crate) fn others(block: &Block) -> Vec<String> {
    let mut names = Vec::new();
    for stmt in &block.stmts {
        if let Stmt::Item(Item::Use(import)) = stmt {
            collect(&import.tree, None, &mut names);
        }
    }
    names
}

fn collect(tree: &UseTree, root: Option<&str>, names: &mut Vec<String>) {
    match tree {
        UseTree::Path(path) => match root {
            Some(_) => collect(&path.tree, root, names),
            None => collect(&path.tree, Some(&path.ident.to_string()), names),
        },
        UseTree::Group(group) => group.items.iter().for_each(|tree| collect(tree, root, names)),
        UseTree::Name(name) => {
            let name = name.ident.to_string();
            names.extend((!is_known(root, &name)).then_some(name));
        }
        UseTree::Rename(renamed) => names.push(renamed.rename.to_string()),
        UseTree::Glob(_) => {}
    }
}

/// Whether the macro of this name is, from this crate, the one that the name says.
fn is_known(root: Option<&str>, name: &str) -> bool {
    match name {
        "print" | "println" | "eprint" | "eprintln" | "dbg" => root == Some("std"),
        "info" | "debug" | "trace" | "log" | "event" => matches!(root, Some("log" | "tracing")),
        _ => true,
    }
}
