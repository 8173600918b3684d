//! The C ABI for Python's ctypes, from bindgen's output.

use std::fmt::Write as _;

use anyhow::{Context as _, Result, bail};
use syn::{Expr, Fields, FnArg, ForeignItem, GenericArgument, Item, PathArguments, ReturnType, Type};

/// The module `bfc._abi`.
pub fn module(bindings: &syn::File) -> Result<String> {
    let mut text = String::from(HEAD);
    for item in &bindings.items {
        constant(&mut text, item)?;
    }
    for item in &bindings.items {
        match item {
            Item::Type(alias) => callback(&mut text, alias)?,
            Item::Struct(declared) => structure(&mut text, declared)?,
            _ => {}
        }
    }
    text += "\nFUNCTIONS: dict[str, tuple[Any, tuple[Any, ...]]] = {\n";
    for item in &bindings.items {
        let Item::ForeignMod(block) = item else { continue };
        for item in &block.items {
            let ForeignItem::Fn(function) = item else { bail!("an extern item is not a function") };
            let (name, signature) = (&function.sig.ident, &function.sig);
            let arguments = arguments(signature.inputs.iter().map(|input| match input {
                FnArg::Typed(argument) => &*argument.ty,
                FnArg::Receiver(_) => unreachable!("a C function has no self"),
            }))?;
            let result = result(&signature.output)?;
            writeln!(text, "    \"{name}\": ({result}, ({})),", tuple(&arguments))?;
        }
    }
    text += "}\n\"\"\"The type of each function's result, and of its arguments.\"\"\"\n";
    Ok(text)
}

const HEAD: &str = "\
\"\"\"libbfc's C ABI for ctypes: the constants, structs and functions of ``bfc.h`` and ``bfc_adapters.h``, by their names.

Generated from include/ by ``cargo xtask header``.
\"\"\"

# ruff: noqa

from __future__ import annotations

import ctypes
from ctypes import POINTER, c_char_p, c_double, c_int, c_int32, c_int64, c_size_t, c_uint32, c_uint64, c_void_p
from typing import Any

";

fn constant(text: &mut String, item: &Item) -> Result<()> {
    let Item::Const(constant) = item else { return Ok(()) };
    // The checks of layouts have no name.
    if constant.ident == "_" {
        return Ok(());
    }
    let value = match &*constant.expr {
        Expr::Lit(syn::ExprLit { lit: syn::Lit::Int(number), .. }) => number.base10_digits().to_owned(),
        Expr::Lit(syn::ExprLit { lit: syn::Lit::CStr(string), .. }) => {
            format!("\"{}\"", string.value().to_str()?)
        }
        _ => bail!("{} is neither a number nor a string", constant.ident),
    };
    Ok(writeln!(text, "{} = {value}", constant.ident)?)
}

/// A type of functions that the library calls.
fn callback(text: &mut String, alias: &syn::ItemType) -> Result<()> {
    let Some(function) = function_pointer(&alias.ty) else { return Ok(()) };
    let arguments = arguments(function.inputs.iter().map(|input| &input.ty))?;
    let all = std::iter::once(result(&function.output)?).chain(arguments).collect::<Vec<_>>().join(", ");
    Ok(write!(text, "\n{} = ctypes.CFUNCTYPE({all})\n", alias.ident)?)
}

/// The function in `Option<unsafe extern "C" fn(..)>`.
fn function_pointer(of: &Type) -> Option<&syn::TypeBareFn> {
    let Type::Path(path) = of else { return None };
    let PathArguments::AngleBracketed(inner) = &path.path.segments.last()?.arguments else { return None };
    match inner.args.first()? {
        GenericArgument::Type(Type::BareFn(function)) => Some(function),
        _ => None,
    }
}

fn structure(text: &mut String, declared: &syn::ItemStruct) -> Result<()> {
    let Fields::Named(fields) = &declared.fields else { bail!("{} has no fields", declared.ident) };
    write!(text, "\n\nclass {}(ctypes.Structure):\n    _fields_ = [\n", declared.ident)?;
    for field in &fields.named {
        let name = field.ident.as_ref().context("a field without a name")?;
        writeln!(text, "        (\"{name}\", {}),", ctype(&field.ty)?)?;
    }
    *text += "    ]\n";
    Ok(())
}

fn result(output: &ReturnType) -> Result<String> {
    match output {
        ReturnType::Default => Ok("None".to_owned()),
        ReturnType::Type(_, of) => ctype(of),
    }
}

fn arguments<'a>(types: impl Iterator<Item = &'a Type>) -> Result<Vec<String>> {
    types.map(ctype).collect()
}

/// The inside of Python's parentheses.
fn tuple(items: &[String]) -> String {
    match items {
        [only] => format!("{only},"),
        items => items.join(", "),
    }
}

/// The type of ctypes for one of bindgen's.
fn ctype(of: &Type) -> Result<String> {
    let text = match of {
        Type::Ptr(pointer) => match name(&pointer.elem)?.as_str() {
            "c_void" => "c_void_p".to_owned(),
            // Text written by the library is not a Python string, so it is a buffer passed by its address.
            "c_char" if pointer.mutability.is_some() => "c_void_p".to_owned(),
            "c_char" => "c_char_p".to_owned(),
            _ => format!("POINTER({})", ctype(&pointer.elem)?),
        },
        _ => match name(of)?.as_str() {
            "bfc_status_t" | "i32" => "c_int32".to_owned(),
            "bfc_stream_t" => "c_void_p".to_owned(),
            "u32" => "c_uint32".to_owned(),
            "i64" => "c_int64".to_owned(),
            "u64" => "c_uint64".to_owned(),
            "usize" => "c_size_t".to_owned(),
            "f64" => "c_double".to_owned(),
            "c_int" => "c_int".to_owned(),
            own if own.starts_with("bfc_") => own.to_owned(),
            other => {
                bail!("Python's prototypes have no type for {other} yet: see xtask/generate/src/python.rs")
            }
        },
    };
    Ok(text)
}

/// The last name of a path; empty for a pointer.
fn name(of: &Type) -> Result<String> {
    match of {
        Type::Path(path) => {
            path.path.segments.last().map(|last| last.ident.to_string()).context("an empty path")
        }
        Type::Ptr(_) => Ok(String::new()),
        _ => bail!("neither a name nor a pointer"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unknown_type_is_an_error() {
        let file = syn::parse_file("unsafe extern \"C\" { pub fn f(a: u8); }").expect("it is Rust");
        assert!(module(&file).unwrap_err().to_string().contains("u8"));
    }
}
