//! Modules: the entries of a PTX text, and which of them are simulated kernels. **Nothing is compiled and no
//! instruction is run.** An entry with the name and the parameters of a simulated kernel is that kernel, whatever its
//! body contains. Any other entry can be found but not launched.
//!
//! Rules: cuModuleLoadData, cuModuleGetFunction, cuModuleUnload and cuLaunchKernel in cuda.h; PTX ISA, Kernel and
//! Function Directives: .entry.

use std::collections::BTreeMap;

use crate::state::work::Work;

/// A module of a context.
pub(crate) struct Module {
    /// The context and its number. A module ends with its context.
    context: u64,
    life: u64,
    entries: Vec<Entry>,
    /// Handles that were returned, by name.
    functions: BTreeMap<String, u64>,
}

/// An entry with the sizes of its parameters.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) parameters: Vec<usize>,
}

/// A function handle.
pub(crate) struct Function {
    pub(crate) module: u64,
    pub(crate) entry: Entry,
}

impl Module {
    pub(crate) fn new(context: u64, life: u64, entries: Vec<Entry>) -> Self {
        Self { context, life, entries, functions: BTreeMap::new() }
    }

    pub(crate) fn context(&self) -> u64 {
        self.context
    }

    /// Returns the number of the context, which distinguishes it from a later one with the same handle.
    pub(crate) fn life(&self) -> u64 {
        self.life
    }

    /// Returns the handle of a function that was requested before.
    pub(crate) fn function(&self, name: &str) -> Option<u64> {
        self.functions.get(name).copied()
    }

    pub(crate) fn add_function(&mut self, name: String, handle: u64) {
        self.functions.insert(name, handle);
    }

    pub(crate) fn entry(&self, name: &str) -> Option<&Entry> {
        self.entries.iter().find(|entry| entry.name == name)
    }
}

impl Entry {
    /// Returns the work of a launch with these arguments, if it is a simulated kernel:
    ///
    /// - `fill(.u64 at, .u32 words, .u32 value)` stores a value in each word;
    /// - `expect(.u64 at, .u32 words, .u32 value, .u64 wrong)` adds to a word how many words have another value;
    /// - `copy(.u64 to, .u64 from, .u32 words)`;
    /// - `delay(.u64 nanoseconds)` takes that much simulated time.
    pub(crate) fn work(&self, arguments: &[u64]) -> Option<Work> {
        match (self.name.as_str(), self.parameters.as_slice(), arguments) {
            ("fill", [8, 4, 4], &[at, words, value]) => Some(Work::Words { at, words, value: value as u32 }),
            ("expect", [8, 4, 4, 8], &[at, words, value, wrong]) => {
                Some(Work::Compare { at, words, value: value as u32, wrong })
            }
            ("copy", [8, 8, 4], &[to, from, words]) => Some(Work::CopyWords { to, from, words }),
            ("delay", [8], &[nanoseconds]) => Some(Work::Delay { nanoseconds }),
            _ => None,
        }
    }
}

/// Returns the entries of a PTX text, or None if it does not begin as one: "Each PTX module must begin with a .version
/// directive", which is followed by a .target.
pub(crate) fn parse(text: &str) -> Option<Vec<Entry>> {
    let text = without_comments(text);
    let rest = text.trim_start().strip_prefix(".version")?;
    if !rest.contains(".target") {
        return None;
    }
    // The text before the first entry is skipped.
    rest.split(".entry").skip(1).map(entry).collect()
}

fn entry(text: &str) -> Option<Entry> {
    let text = text.trim_start();
    let end = text.find(|letter: char| !(letter.is_alphanumeric() || "_$%".contains(letter)))?;
    let (name, rest) = text.split_at(end);
    if name.is_empty() {
        return None;
    }
    let list = match rest.trim_start().strip_prefix('(') {
        Some(rest) => rest.split_once(')')?.0.trim(),
        None => "",
    };
    let each = list.split(',').filter(|parameter| !parameter.trim().is_empty());
    Some(Entry { name: name.to_owned(), parameters: each.map(size).collect::<Option<_>>()? })
}

/// Returns the size of a parameter: `.param .u64 name`, `.param .align 4 .b8 name[12]`.
fn size(parameter: &str) -> Option<usize> {
    let type_of = |word: &str| -> Option<usize> {
        let bits = word.strip_prefix(['.'])?.strip_prefix(['u', 's', 'b', 'f'])?;
        matches!(bits, "8" | "16" | "32" | "64").then(|| bits.parse::<usize>().ok().map(|bits| bits / 8))?
    };
    let bytes = parameter.split_whitespace().find_map(type_of)?;
    let count = match parameter.split_once('[') {
        Some((_, rest)) => rest.split_once(']')?.0.trim().parse().ok()?,
        None => 1,
    };
    bytes.checked_mul(count)
}

fn without_comments(text: &str) -> String {
    let mut left = text;
    let mut kept = String::with_capacity(text.len());
    while let Some(start) = left.find("/*").into_iter().chain(left.find("//")).min() {
        kept.push_str(&left[..start]);
        let end = if left[start..].starts_with("/*") { "*/" } else { "\n" };
        kept.push(' ');
        left = left[start + 2..].split_once(end).map_or("", |(_, rest)| rest);
    }
    kept + left
}

#[cfg(test)]
mod tests {
    use super::*;

    fn entries(text: &str) -> Option<Vec<(String, Vec<usize>)>> {
        Some(parse(text)?.into_iter().map(|entry| (entry.name, entry.parameters)).collect())
    }

    #[test]
    fn entries_are_found_with_their_parameters() {
        let text = "// a comment with .entry wrong\n.version 6.4 /* .entry wrong( */\n.target sm_70\n.visible .entry \
                    fill(.param .u64 at, .param .u32 words,\n .param .f32 value) { ret; }\n.entry none { ret; }\n.entry \
                    $odd_1 (.param .align 8 .b8 struct[24], .param .s16 small) { }";
        let named = |name: &str, sizes: &[usize]| (name.to_owned(), sizes.to_vec());
        let wanted = vec![named("fill", &[8, 4, 4]), named("none", &[]), named("$odd_1", &[24, 2])];
        assert_eq!(entries(text), Some(wanted));
        assert_eq!(entries(".version 8.0\n.target sm_90"), Some(vec![]));
        for bad in [
            "",
            "hello",
            ".target sm_70 .entry f()",
            ".version 6.4",
            "/* .version 1",
            ".version 1 .target s .entry (",
            ".version 1 .target s .entry f(.param",
        ] {
            assert_eq!(entries(bad), None, "{bad}");
        }
    }
}
