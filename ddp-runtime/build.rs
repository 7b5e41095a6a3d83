//! Compiles the bridge against the libtorch that tch links, and lets this package's own tests find it.
use std::path::{Path, PathBuf};

fn main() {
    println!("cargo:rerun-if-changed=csrc");
    let Some(lib) = std::env::var_os("DEP_TCH_LIBTORCH_LIB").map(PathBuf::from) else {
        // torch-sys was built without libtorch (documentation only): there is nothing to compile against.
        return;
    };
    compile(&lib);
    println!("cargo:rustc-link-arg=-Wl,-rpath,{}", lib.display());
    // Dependants read this as DEP_DDP_BRIDGE_LIBTORCH_LIB.
    println!("cargo:libtorch_lib={}", lib.display());
}

fn compile(lib: &Path) {
    let include = lib.join("../include");
    let mut build = cc::Build::new();
    build
        .cpp(true)
        .std("c++20")
        .include("csrc")
        .flag("-isystem")
        .flag("csrc/gloo-decl")
        .flag("-isystem")
        .flag(include.display().to_string())
        .flag("-isystem")
        .flag(include.join("torch/csrc/api/include").display().to_string())
        .define("USE_C10D_GLOO", None)
        .define("_GLIBCXX_USE_CXX11_ABI", "1");
    for file in ["error.cc", "store.cc", "gloo.cc", "tensor.cc", "engine.cc"] {
        build.file(Path::new("csrc").join(file));
    }
    build.compile("ddp_bridge");
}
