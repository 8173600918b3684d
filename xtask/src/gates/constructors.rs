//! What runs when a library is loaded and when the process ends, before anybody has called it.

/// A library's constructors or destructors. Their names are mangled, in one of several ways: so these are parts of them.
pub struct Allowed<'a> {
    /// `.init_array` or `.fini_array`.
    pub section: &'a str,
    /// They may be there or not.
    pub names: &'a [&'a str],
    /// This one has to be there.
    pub ours: &'a str,
}

/// Looks at what `readelf -SW`, `readelf -rW` and `readelf -sW` print.
pub fn constructors(sections: &str, relocations: &str, symbols: &str, allowed: &Allowed<'_>) -> Vec<String> {
    let Allowed { section, names, ours } = allowed;
    let Some((start, bytes)) = section_at(sections, section) else {
        return vec![format!("there is no {section}: {ours} is not called")];
    };
    let found: Vec<u64> = relocations
        .lines()
        .filter_map(relocation)
        .filter(|(place, _)| (start..start + bytes).contains(place))
        .map(|(_, address)| address)
        .collect();
    let mut wrong = Vec::new();
    // Entries that are no such relocations would be addresses of other libraries' functions.
    if found.len() as u64 * 8 != bytes {
        wrong.push(format!("{section} has {} entries, and {} are known", bytes / 8, found.len()));
    }
    let mut called: Vec<&str> = Vec::new();
    for address in found {
        match symbols.lines().find_map(|line| function_at(line, address)) {
            Some(name) => called.push(name),
            None => wrong.push(format!("{section} calls a function without a name at {address:#x}")),
        }
    }
    let strange =
        called.iter().filter(|name| !name.contains(ours) && !names.iter().any(|part| name.contains(part)));
    wrong.extend(strange.map(|name| format!("{section} calls {name}")));
    if !called.iter().any(|name| name.contains(ours)) {
        wrong.push(format!("{section} does not call {ours}"));
    }
    wrong
}

/// Address and length: `  [19] .init_array INIT_ARRAY 00000000000716d0 06f6d0 000018 ...`.
fn section_at(sections: &str, section: &str) -> Option<(u64, u64)> {
    sections.lines().find_map(|line| {
        let (_, rest) = line.split_once(']')?;
        let mut words = rest.split_whitespace();
        (words.next()? == section).then_some(())?;
        let mut numbers = words.skip(1).map(|word| u64::from_str_radix(word, 16).ok());
        let (address, _, bytes) = (numbers.next()??, numbers.next()??, numbers.next()??);
        Some((address, bytes))
    })
}

/// Where a relative relocation is, and what it puts there: `00000000000716e0  0000000000000008 R_X86_64_RELATIVE 22a20`.
fn relocation(line: &str) -> Option<(u64, u64)> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [place, _, kind, address] = words[..] else { return None };
    kind.ends_with("_RELATIVE").then_some(())?;
    let number = |word| u64::from_str_radix(word, 16).ok();
    Some((number(place)?, number(address)?))
}

/// The name, if the line is that of a function there: `13: 0000000000022a20 355 FUNC LOCAL DEFAULT 15 NAME`.
fn function_at(line: &str, address: u64) -> Option<&str> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let [_, value, _, "FUNC", _, _, _, name, ..] = words[..] else { return None };
    (u64::from_str_radix(value, 16).ok()? == address).then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECTIONS: &str = "
  [18] .fini_array       FINI_ARRAY      00000000000716c0 06f6c0 000010 00 WAo  0   0  8
  [19] .init_array       INIT_ARRAY      00000000000716d0 06f6d0 000010 00 WAo  0   0  8
";
    const RELOCATIONS: &str = "
    Offset             Info             Type               Symbol's Value  Symbol's Name + Addend
00000000000716c0  0000000000000008 R_X86_64_RELATIVE                         229b0
00000000000716d0  0000000000000008 R_X86_64_RELATIVE                         229f0
00000000000716d8  0000000000000008 R_X86_64_RELATIVE                         22a20
";
    const SYMBOLS: &str = "
     8: 00000000000229f0     0 FUNC    LOCAL  DEFAULT   15 frame_dummy
    13: 0000000000022a20   355 FUNC    LOCAL  DEFAULT   15 _ZN3our6loaded17hd4eE
    14: 00000000000716d0     8 OBJECT  LOCAL  DEFAULT   19 nothing
";

    fn judged(sections: &str, relocations: &str, symbols: &str) -> Vec<String> {
        let allowed = Allowed { section: ".init_array", names: &["frame_dummy"], ours: "3our6loaded" };
        constructors(sections, relocations, symbols, &allowed)
    }

    #[test]
    fn the_compiler_s_and_ours_pass() {
        assert_eq!(judged(SECTIONS, RELOCATIONS, SYMBOLS), [""; 0]);
    }

    #[test]
    fn another_one_an_unknown_one_and_none_fail() {
        let other = judged(SECTIONS, RELOCATIONS, &SYMBOLS.replace("frame_dummy", "cuda_begin"));
        assert_eq!(other, [".init_array calls cuda_begin"]);
        let nameless = judged(SECTIONS, RELOCATIONS, &SYMBOLS.replace("FUNC", "OBJECT"));
        assert_eq!(nameless.len(), 3, "{nameless:?}");
        let longer = judged(&SECTIONS.replace("000010 00 WAo", "000018 00 WAo"), RELOCATIONS, SYMBOLS);
        assert!(longer.len() == 1 && longer[0].contains("3 entries, and 2"), "{longer:?}");
        let without = judged(SECTIONS, RELOCATIONS, &SYMBOLS.replace("our6loaded", "our5other"));
        assert_eq!(without.len(), 2, "{without:?}");
        assert_eq!(judged("", "", "").len(), 1);
    }
}
