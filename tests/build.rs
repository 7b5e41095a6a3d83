//! Lets the worker and the tests find libtorch.
fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    if let Some(lib) = std::env::var_os("DEP_DDP_BRIDGE_LIBTORCH_LIB") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{}", lib.display());
    }
}
