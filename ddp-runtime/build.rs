//! Compiles the bridge against the libtorch that tch links, and lets this package's own tests find it.
use std::path::{Path, PathBuf};

fn main() {
    println!("cargo:rerun-if-changed=csrc");
    second_name();
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
    let files = [
        "error.cc",
        "store.cc",
        "gloo.cc",
        "tensor.cc",
        "cuda.cc",
        "engine.cc",
        "lend.cc",
        "batch_norm.cc",
        "fused_batch_norm.cc",
        "replicate.cc",
        "amp.cc",
        "optimizer.cc",
        "random.cc",
    ];
    for file in files {
        build.file(Path::new("csrc").join(file));
    }
    build.compile("ddp_bridge");
}

/// An empty library called `libnccl.so` that depends on one called `libnccl.so.2`. See Note [A second name for NCCL].
fn second_name() {
    if std::env::var_os("CARGO_FEATURE_NCCL").is_none() {
        return;
    }
    let out = PathBuf::from(std::env::var_os("OUT_DIR").expect("cargo sets OUT_DIR"));
    let source = out.join("empty.c");
    std::fs::write(&source, "").expect("OUT_DIR can be written to");
    let stand_in = out.join("libnccl.so.2");
    let compiler = cc::Build::new().get_compiler();
    let link = |name: &str, input: &[&Path], output: &Path| {
        let status = compiler
            .to_command()
            .args(["-shared", "-nostdlib", "-s", "-Wl,-z,noseparate-code", "-Wl,--no-as-needed"])
            .arg(format!("-Wl,-soname,{name}"))
            .args(input)
            .arg("-o")
            .arg(output)
            .status();
        assert!(status.is_ok_and(|status| status.success()), "{name} cannot be linked");
    };
    link("libnccl.so.2", &[&source], &stand_in);
    link("libnccl.so", &[&source, &stand_in], &out.join("nccl-second-name.so"));
}
