//! Which target is meant, by the rules of `cargo run`: pure.

use std::path::{Path, PathBuf};

use super::metadata::{Metadata, Package};
use crate::cli::CargoArgs;

/// A choice that has to be made by the user.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SelectError {
    #[error("there is no binary to run; choose an example with --example, or a package with -p")]
    NoBinary,
    #[error(
        "several binaries could be meant; choose one with --bin, or set default-run in \
         Cargo.toml:{}", super::list(.0)
    )]
    SeveralBinaries(Vec<String>),
}

/// A binary of a package.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Chosen {
    pub(super) package: String,
    pub(super) bin: String,
}

/// The binary to build, or `None` where `args` says all that cargo needs (a named binary or
/// example) or more than is understood here (a package by address): the build tells then.
pub(super) fn choose(
    metadata: &Metadata,
    args: &CargoArgs,
    here: &Path,
) -> Result<Option<Chosen>, SelectError> {
    if args.bin.is_some() || args.example.is_some() {
        return Ok(None);
    }
    let packages = candidates(metadata, args, here);
    if packages.is_empty() {
        return Ok(None);
    }
    let defaults: Vec<_> = packages
        .iter()
        .filter_map(|package| Some((*package, package.default_run.as_deref()?)))
        .collect();
    let all: Vec<_> = packages
        .iter()
        .flat_map(|package| package.bins().map(move |bin| (*package, bin)))
        .collect();
    match (defaults.as_slice(), all.as_slice()) {
        ([(package, bin)], _) | ([], [(package, bin)]) => {
            Ok(Some(Chosen { package: package.name.clone(), bin: (*bin).to_owned() }))
        }
        (_, []) => Err(SelectError::NoBinary),
        _ => Err(SelectError::SeveralBinaries(names(&all))),
    }
}

/// The packages that cargo would look into.
fn candidates<'m>(metadata: &'m Metadata, args: &CargoArgs, here: &Path) -> Vec<&'m Package> {
    let packages = metadata.packages.iter();
    if let Some(spec) = &args.package {
        let name = spec.split_once('@').map_or(spec.as_str(), |(name, _)| name);
        return packages.filter(|package| package.name == name).collect();
    }
    let manifest = match &args.manifest_path {
        Some(path) => Some(here.join(path)),
        None => nearest_manifest(metadata, here),
    };
    let root = metadata.workspace_root.join("Cargo.toml");
    match manifest {
        Some(manifest) if manifest != root => {
            packages.filter(|package| package.manifest_path == manifest).collect()
        }
        _ => packages
            .filter(|package| metadata.workspace_default_members.contains(&package.id))
            .collect(),
    }
}

/// The manifest of the innermost package around `here`.
fn nearest_manifest(metadata: &Metadata, here: &Path) -> Option<PathBuf> {
    here.ancestors()
        .map(|folder| folder.join("Cargo.toml"))
        .find(|manifest| metadata.packages.iter().any(|package| package.manifest_path == *manifest))
}

/// `bin` where that is clear, else `bin (package)`.
fn names(all: &[(&Package, &str)]) -> Vec<String> {
    let one_package = all.iter().all(|(package, _)| package.id == all[0].0.id);
    let name = |(package, bin): &(&Package, &str)| {
        if one_package { (*bin).to_owned() } else { format!("{bin} (package {})", package.name) }
    };
    all.iter().map(name).collect()
}

#[cfg(test)]
mod tests {
    use super::super::metadata::Target;
    use super::*;

    /// A workspace in `/w` with the members named, each with binaries and perhaps a default.
    fn workspace(members: &[(&str, &[&str], Option<&str>)]) -> Metadata {
        let package = |(name, bins, default_run): &(&str, &[&str], Option<&str>)| Package {
            name: (*name).to_owned(),
            id: format!("path+file:///w/{name}#0.1.0"),
            manifest_path: PathBuf::from(format!("/w/{name}/Cargo.toml")),
            default_run: default_run.map(str::to_owned),
            targets: bins
                .iter()
                .map(|bin| Target { name: (*bin).to_owned(), kind: vec!["bin".to_owned()] })
                .chain([Target { name: "unit".to_owned(), kind: vec!["lib".to_owned()] }])
                .collect(),
        };
        let packages: Vec<_> = members.iter().map(package).collect();
        Metadata {
            workspace_default_members: packages.iter().map(|p| p.id.clone()).collect(),
            packages,
            workspace_root: PathBuf::from("/w"),
            target_directory: PathBuf::from("/w/target"),
        }
    }

    fn choice(metadata: &Metadata, package: Option<&str>, here: &str) -> String {
        let args = CargoArgs { package: package.map(str::to_owned), ..CargoArgs::default() };
        match choose(metadata, &args, Path::new(here)) {
            Ok(Some(chosen)) => format!("{}/{}", chosen.package, chosen.bin),
            Ok(None) => "cargo".to_owned(),
            Err(error) => error.to_string(),
        }
    }

    #[test]
    fn the_only_binary_is_taken() {
        let metadata = workspace(&[("a", &["train"], None), ("b", &[], None)]);
        assert_eq!(choice(&metadata, None, "/w"), "a/train");
        assert_eq!(choice(&metadata, None, "/w/a/src"), "a/train");
        assert!(choice(&metadata, None, "/w/b").starts_with("there is no binary to run"));
    }

    #[test]
    fn of_several_the_default_is_taken() {
        let metadata = workspace(&[("a", &["x", "y"], Some("y")), ("b", &["p", "q"], None)]);
        assert_eq!(choice(&metadata, Some("a"), "/w"), "a/y");
        assert_eq!(choice(&metadata, Some("a@0.1.0"), "/w"), "a/y");
        assert_eq!(choice(&metadata, None, "/w"), "a/y");
        let text = choice(&metadata, Some("b"), "/w");
        assert!(text.contains("--bin") && text.ends_with("\n    p\n    q"), "{text}");
    }

    #[test]
    fn several_packages_are_told_apart() {
        let metadata = workspace(&[("a", &["x"], None), ("b", &["x"], None)]);
        let text = choice(&metadata, None, "/w");
        assert!(text.ends_with("\n    x (package a)\n    x (package b)"), "{text}");
    }

    #[test]
    fn what_is_not_understood_is_left_to_cargo() {
        let metadata = workspace(&[("a", &["x", "y"], None)]);
        assert_eq!(choice(&metadata, Some("path+file:///w/a"), "/w"), "cargo");
        let named = CargoArgs { bin: Some("x".to_owned()), ..CargoArgs::default() };
        assert_eq!(choose(&metadata, &named, Path::new("/w")), Ok(None));
    }
}
