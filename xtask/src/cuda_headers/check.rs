//! A C file that compiles only where the lists of cuda-sys say what the headers say.

use std::fmt::Write;

use anyhow::{Context, Result, bail};
use cuda_sys::{Constant, Function, Struct, Type};

/// What one of the versions does not have, and why. It is seen to that they do not.
const ABSENT: [(&str, u32, &str); 10] = [
    ("cuCtxGetDevice_v2", 12, "it came with CUDA 13"),
    ("cuCtxSynchronize_v2", 12, "it came with CUDA 13"),
    ("cuMemGetDefaultMemPool", 12, "it came with CUDA 13"),
    ("cuMemGetMemPool", 12, "it came with CUDA 13"),
    ("cuMemSetMemPool", 12, "it came with CUDA 13"),
    ("cuStreamBeginCaptureToCig", 12, "it came with CUDA 13.1"),
    ("cuStreamEndCaptureToCig", 12, "it came with CUDA 13.1"),
    ("cuStreamBeginRecaptureToGraph", 12, "it came with CUDA 13.3"),
    ("CUstreamCigCaptureParams", 12, "it came with CUDA 13.1"),
    ("CUgraphRecaptureCallback", 12, "it came with CUDA 13.3"),
];

/// Where the headers have a struct without a name.
const NAMELESS: [(&str, &str); 1] =
    [("CUmemAllocationPropFlags", "__typeof__(((CUmemAllocationProp *)0)->allocFlags)")];

/// The first version that knows the per-thread default stream.
const TWINS_SINCE: i32 = 7000;

/// The lists of cuda-sys, to be spoilt by tests.
#[derive(Clone)]
pub struct Lists {
    /// The functions.
    pub functions: Vec<Function>,
    /// Other names of plain types, and the handles.
    pub types: Vec<Type>,
    /// The structs.
    pub structs: Vec<Struct>,
    /// The constants.
    pub constants: Vec<Constant>,
    /// Symbols and types that a version, by its first number, does not have, with the reasons.
    pub absent: Vec<(&'static str, u32, &'static str)>,
}

impl Lists {
    /// As they are.
    pub fn new() -> Self {
        Self {
            functions: cuda_sys::FUNCTIONS.to_vec(),
            types: [cuda_sys::TYPES, cuda_sys::HANDLES].concat(),
            structs: cuda_sys::STRUCTS.to_vec(),
            constants: cuda_sys::CONSTANTS.to_vec(),
            absent: ABSENT.to_vec(),
        }
    }

    /// What the headers of a major version do not have: symbols and reasons.
    pub fn absent(&self, major: u32) -> Vec<(&'static str, &'static str)> {
        let absent = self.absent.iter().filter(|(_, version, _)| *version == major);
        absent.map(|(symbol, _, why)| (*symbol, *why)).collect()
    }

    /// The C file for the headers of a major version.
    pub fn c_file(&self, major: u32) -> Result<String> {
        // Without the first line the headers declare the newest version of each function only.
        let mut text = "#define __CUDA_API_VERSION_INTERNAL 1\n\
             #include <stddef.h>\n\
             #include <cuda.h>\n\
             #include <cudaTypedefs.h>\n\
             #define SAME(a, b) _Static_assert(__builtin_types_compatible_p(a, b), #a)\n\
             #define EQUAL(a, b) _Static_assert((a) == (b), #a)\n\
             SAME(CUhostFn, void (*)(void *));\n\
             SAME(CUstreamCallback, void (*)(CUstream, CUresult, void *));\n"
            .to_owned();
        let absent = self.absent(major);
        let is_absent = |name: &str| absent.iter().any(|(other, _)| *other == name);
        for function in &self.functions {
            if is_absent(function.symbol) {
                // Were it declared, this would clash with it.
                writeln!(text, "typedef char {};", function.symbol)?;
            } else {
                self.function(&mut text, function)?;
            }
        }
        for Type { name, size } in &self.types {
            if is_absent(name) {
                writeln!(text, "typedef char {name};")?;
            } else {
                writeln!(text, "EQUAL(sizeof({name}), {size});")?;
            }
        }
        for layout in &self.structs {
            if is_absent(layout.name) {
                writeln!(text, "typedef char {};", layout.name)?;
            } else {
                write_struct(&mut text, layout)?;
            }
        }
        for Constant { name, value } in &self.constants {
            writeln!(text, "EQUAL({name}, {value});")?;
        }
        Ok(text)
    }

    /// The function is declared with our types, and under its name and version `cuGetProcAddress` gives one of
    /// these types: that is what cudaTypedefs.h says.
    fn function(&self, text: &mut String, function: &Function) -> Result<()> {
        let Function { symbol, name, since, twin, arguments } = function;
        let arguments: Result<Vec<_>> = arguments.iter().map(|(_, rust)| self.c_type(rust)).collect();
        let mut arguments = arguments.with_context(|| format!("the function {symbol}"))?.join(", ");
        if arguments.is_empty() {
            "void".clone_into(&mut arguments);
        }
        let pointer = format!("CUresult (*)({arguments})");
        writeln!(text, "SAME(__typeof__(&{symbol}), {pointer});")?;
        writeln!(text, "SAME(PFN_{name}_v{since}, {pointer});")?;
        if let Some(twin) = twin {
            let suffix = twin.trim_start_matches(symbol);
            let since = since.max(&TWINS_SINCE);
            writeln!(text, "SAME(__typeof__(&{twin}), {pointer});")?;
            writeln!(text, "SAME(PFN_{name}_v{since}{suffix}, {pointer});")?;
        }
        Ok(())
    }

    /// A type as C writes it.
    fn c_type(&self, rust: &str) -> Result<String> {
        // With spaces as the compiler likes them: `*mut c_int`, `* mut c_int`.
        if let Some(target) = rust.strip_prefix('*').map(str::trim_start) {
            let [mutable, constant] = ["mut ", "const "].map(|word| target.strip_prefix(word));
            let star = if mutable.is_some() { "*" } else { "const *" };
            let target = mutable.or(constant).with_context(|| format!("{rust} is no pointer"))?;
            return Ok(format!("{} {star}", self.c_type(target.trim_start())?));
        }
        let plain = match rust {
            "c_void" => "void",
            "c_char" => "char",
            "c_uchar" => "unsigned char",
            "c_ushort" => "unsigned short",
            "c_int" => "int",
            "c_uint" => "unsigned int",
            "c_ulonglong" => "unsigned long long",
            "usize" => "size_t",
            "f32" => "float",
            name if self.knows(name) => name,
            _ => bail!("{rust} is no type of cuda-sys, and none of C that is known here"),
        };
        Ok(plain.to_owned())
    }

    fn knows(&self, name: &str) -> bool {
        self.types.iter().any(|known| known.name == name)
            || self.structs.iter().any(|known| known.name == name)
    }
}

fn write_struct(text: &mut String, layout: &Struct) -> Result<()> {
    let Struct { name, size, alignment, fields } = layout;
    let nameless = NAMELESS.iter().find(|(ours, _)| ours == name);
    let c_name = nameless.map_or(*name, |(_, theirs)| theirs);
    writeln!(text, "EQUAL(sizeof({c_name}), {size});")?;
    writeln!(text, "EQUAL(_Alignof({c_name}), {alignment});")?;
    // What is reserved shrinks where a newer version has a new field; the whole size stays.
    for field in fields.iter().filter(|field| field.name != "reserved") {
        let name = field.name.trim_end_matches('_');
        writeln!(text, "EQUAL(offsetof({c_name}, {name}), {});", field.offset)?;
        writeln!(text, "EQUAL(sizeof((({c_name} *)0)->{name}), {});", field.size)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_are_written_as_in_c() {
        let lists = Lists::new();
        for (rust, c) in [
            ("c_uint", "unsigned int"),
            ("*mut *mut c_void", "void * *"),
            ("* mut * const c_void", "void const * *"),
            ("*mut *const c_char", "char const * *"),
            ("*const CUmemAllocationProp", "CUmemAllocationProp const *"),
            ("CUstream", "CUstream"),
        ] {
            assert_eq!(lists.c_type(rust).expect("known"), c);
        }
        for unknown in ["", "u16", "*mut u16", "*c_int", "CUnothing", "Option<CUstream>"] {
            assert!(lists.c_type(unknown).is_err(), "{unknown}");
        }
    }

    #[test]
    fn everything_is_checked_or_known_to_be_absent() {
        let lists = Lists::new();
        for (major, absent, types) in [(12, 10, 2), (13, 0, 0)] {
            let text = lists.c_file(major).expect("written");
            assert_eq!(lists.absent(major).len(), absent);
            assert_eq!(text.matches("\ntypedef char ").count(), absent);
            let checked = text.matches("SAME(__typeof__(&").count();
            let twins = lists.functions.iter().filter(|function| function.twin.is_some()).count();
            let absent_twins = lists.functions.iter().filter(|function| {
                function.twin.is_some()
                    && lists.absent(major).iter().any(|(symbol, _)| *symbol == function.symbol)
            });
            assert_eq!(checked, lists.functions.len() - (absent - types) + twins - absent_twins.count());
        }
        let is_known = |absent: &str| {
            lists.functions.iter().any(|function| function.symbol == absent) || lists.knows(absent)
        };
        assert!(ABSENT.iter().all(|(absent, ..)| is_known(absent)));
    }
}
