//! Lets the worker and the tests find libtorch, and compiles the kernels that it lacks on the CPU.
use std::path::Path;

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-changed=csrc");
    if let Some(lib) = std::env::var_os("DEP_DDP_BRIDGE_LIBTORCH_LIB") {
        let lib = Path::new(&lib);
        println!("cargo:rustc-link-arg=-Wl,-rpath,{}", lib.display());
        let include = lib.join("../include");
        cc::Build::new()
            .cpp(true)
            .std("c++20")
            .flag("-isystem")
            .flag(include.display().to_string())
            .flag("-isystem")
            .flag(include.join("torch/csrc/api/include").display().to_string())
            .define("_GLIBCXX_USE_CXX11_ABI", "1")
            .file("csrc/cpu_kernels.cc")
            .compile("ddp_tests_kernels");
    }
}
