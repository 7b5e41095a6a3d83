//! Writes the place of libtorch into the example programs, so that `cargo run` works without LD_LIBRARY_PATH.

fn main() {
    // Printed by the build script of torch-sys for those who depend on it directly.
    if let Ok(lib) = std::env::var("DEP_TCH_LIBTORCH_LIB") {
        println!("cargo:rustc-link-arg=-Wl,-rpath,{lib}");
    }
    println!("cargo:rerun-if-changed=build.rs");
}
