//! Compiles mimalloc (`src/mimalloc.c`) from the sources that the crate libmimalloc-sys carries.

use std::path::Path;

fn main() {
    println!("cargo::rerun-if-changed=src/mimalloc.c");
    println!("cargo::rerun-if-changed=src/own_calls.h");
    println!("cargo::rerun-if-changed=src/give_back.c");
    println!("cargo::rerun-if-changed=src/near_limit.c");
    println!("cargo::rerun-if-changed=src/fast_paths.c");
    println!("cargo::rerun-if-changed=src/grow.c");
    // rustc exports only Rust functions. The linker gives these names to the C functions that the Rust functions call.
    for name in ["malloc", "calloc", "free", "realloc"] {
        println!("cargo::rustc-cdylib-link-arg=-Wl,--defsym={name}=mimalloc_{name}");
    }
    let include = std::env::var("DEP_MIMALLOC_INCLUDE_DIR").expect("libmimalloc-sys says where its headers lie");
    let sources = Path::new(&include).join("../src");
    // For tests/give_back.rs.
    println!("cargo::rustc-env=MIMALLOC_INCLUDE={include}");
    cc::Build::new()
        .file("src/mimalloc.c")
        .include(&include)
        .include(sources)
        // A preloaded library has room in the static part of threads' storage, and needs no call to find its own.
        .flag("-ftls-model=initial-exec")
        .flag("-fvisibility=hidden")
        .flag_if_supported("-Wno-unused-function")
        .define("MI_BUILD_RELEASE", None)
        .define("MI_DEBUG", "0")
        .define("NDEBUG", None)
        .compile("mimalloc_for_pagelift");
}
