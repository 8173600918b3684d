//! Names the shared library as NVIDIA's driver is named, so that a program which links it or opens it by
//! that name gets the simulation wherever the simulation lies on its path.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libcuda.so.1");
    // The addresses that it hands out are its own functions, also where another library exports the same names, as
    // an interposer does: so it is with NVIDIA's.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-Bsymbolic");
    // Threads' states and callers' pointers into the library outlive any dlclose.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,nodelete");
}
