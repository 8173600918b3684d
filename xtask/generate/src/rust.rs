//! The C ABI as Rust, from the headers by bindgen. libclang is loaded from the folder `LIBCLANG_PATH`.

use anyhow::{Context, Result};
use bindgen::Builder;
use bindgen::callbacks::{IntKind, ParseCallbacks};
use quote::quote;
use syn::{File, ForeignItem, Item, parse_quote};

/// What a header declares, and the types of pointers to its functions.
pub fn bindings(header: &str, clang: impl Iterator<Item = String>) -> Result<[File; 2]> {
    let bindings = Builder::default()
        .header(header)
        .clang_args(clang)
        .allowlist_item("(bfc|BFC)_.*")
        .parse_callbacks(Box::new(ConstantTypes))
        .merge_extern_blocks(true)
        .use_core()
        .generate_cstr(true)
        .derive_default(true)
        .disable_header_comment()
        .generate()
        .with_context(|| format!("bindgen cannot read {header}"))?;
    let mut file = syn::parse_file(&bindings.to_string()).context("bindgen's output")?;
    file.items.iter_mut().for_each(derive_serialize);
    let pointers = pointers(&file);
    Ok([file, pointers])
}

/// The types of the header's `#define`d numbers, which C leaves open: those of the parameters and fields that take them.
#[derive(Debug)]
struct ConstantTypes;

impl ParseCallbacks for ConstantTypes {
    fn int_macro(&self, name: &str, _value: i64) -> Option<IntKind> {
        let starts_with = |prefixes: &[&str]| prefixes.iter().any(|prefix| name.starts_with(prefix));
        if name == "BFC_POOL_OF_CAPTURES" {
            Some(IntKind::U64)
        } else if ["BFC_OK", "BFC_HOST_DEVICE", "BFC_PINNED_DEVICE"].contains(&name)
            || starts_with(&["BFC_ERROR_", "BFC_LOG_", "BFC_REGION_"])
        {
            Some(IntKind::I32)
        } else {
            Some(IntKind::U32)
        }
    }
}

/// Lets the statistics be printed under the names that their fields have in the header.
fn derive_serialize(item: &mut Item) {
    let Item::Struct(statistics) = item else { return };
    if statistics.ident != "bfc_stats_t" {
        return;
    }
    statistics.attrs.push(parse_quote! { #[derive(PartialEq, Eq)] });
    statistics.attrs.push(parse_quote! { #[cfg_attr(feature = "serde", derive(serde::Serialize))] });
    for field in statistics
        .fields
        .iter_mut()
        .filter(|field| field.ident.as_ref().is_some_and(|name| name == "struct_size"))
    {
        field.attrs.push(parse_quote! { #[cfg_attr(feature = "serde", serde(skip))] });
    }
}

/// The name of each function and the type of a pointer to it, for clients that look functions up at run time.
fn pointers(bindings: &File) -> File {
    let (mut pointers, mut names) = (Vec::new(), Vec::new());
    for item in &bindings.items {
        let Item::ForeignMod(block) = item else { continue };
        for item in &block.items {
            let ForeignItem::Fn(function) = item else { continue };
            let syn::Signature { ident, inputs, output, .. } = &function.sig;
            pointers.push(quote! { pub type #ident = unsafe extern "C" fn(#inputs) #output; });
            names.push(ident.to_string());
        }
    }
    parse_quote! {
        //! The names of the functions, and by them the types of pointers to them.
        use super::bindings::*;
        /// All that the library exports.
        pub const NAMES: &[&str] = &[#(#names),*];
        #(#pointers)*
    }
}
