//! Paths in the tokens of a macro, which need not parse as anything.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::source::Kind;

/// The paths that tokens seem to mention, each with its line. A single word is one too: it may come from a glob import.
pub fn paths(tokens: TokenStream) -> Vec<(Vec<String>, usize, Kind)> {
    let mut found = Vec::new();
    scan(&mut Reader::new(tokens), 0, &mut found);
    found
}

/// Tokens and how far they have been read.
struct Reader {
    tokens: Vec<TokenTree>,
    at: usize,
}

impl Reader {
    fn new(tokens: TokenStream) -> Self {
        Self { tokens: tokens.into_iter().collect(), at: 0 }
    }

    fn is_punctuation(&self, at: usize, expected: char) -> bool {
        matches!(self.tokens.get(at), Some(TokenTree::Punct(found)) if found.as_char() == expected)
    }

    /// Whether `::` begins at this token.
    fn is_separator(&self, at: usize) -> bool {
        self.is_punctuation(at, ':') && self.is_punctuation(at + 1, ':')
    }

    /// Whether the token that far before the next is this word.
    fn follows(&self, distance: usize, word: &str) -> bool {
        let before = self.at.checked_sub(distance).and_then(|at| self.tokens.get(at));
        matches!(before, Some(TokenTree::Ident(found)) if found == word)
    }

    /// Whether the next token is what a module has in it: `mod name` or `mod $name` is before.
    fn begins_module(&self) -> bool {
        let is_parameter = self.at.checked_sub(2).is_some_and(|at| self.is_punctuation(at, '$'));
        self.follows(if is_parameter { 3 } else { 2 }, "mod")
    }

    /// Whether the next word begins no path that can be resolved here: it is a field or method, a lifetime, what a
    /// macro is given, or the rest of a path that began with something else.
    fn continues(&self, is_root: bool) -> bool {
        let Some(before) = self.at.checked_sub(1) else {
            return false;
        };
        let is_field = self.is_punctuation(before, '.')
            && !before.checked_sub(1).is_some_and(|at| self.is_punctuation(at, '.'));
        let is_rest = before.checked_sub(1).is_some_and(|at| self.is_separator(at));
        let is_parameter = self.is_punctuation(before, '$') && !is_root;
        is_field || is_rest || is_parameter || self.is_punctuation(before, '\'')
    }
}

/// `depth` is how many modules the tokens are in that are among the macro's tokens themselves.
fn scan(reader: &mut Reader, depth: usize, found: &mut Vec<(Vec<String>, usize, Kind)>) {
    while let Some(token) = reader.tokens.get(reader.at).cloned() {
        match token {
            TokenTree::Group(group) => {
                let inner = Reader::new(group.stream());
                // `pub(in path)` says who sees it, and imports nothing.
                let first = inner.tokens.first().map(ToString::to_string);
                let is_visibility = reader.follows(1, "pub") && first.as_deref() == Some("in");
                if !is_visibility {
                    let is_module = group.delimiter() == Delimiter::Brace && reader.begins_module();
                    scan(&mut { inner }, depth + usize::from(is_module), found);
                }
                reader.at += 1;
            }
            TokenTree::Ident(word) => {
                let known = !reader.continues(word == "crate");
                let line = word.span().start().line;
                let mut chain = Vec::new();
                read_path(reader, &mut chain, &mut |path, kind| {
                    if known {
                        found.push((from_outside(path, depth), line, kind));
                    }
                });
            }
            TokenTree::Punct(_) | TokenTree::Literal(_) => reader.at += 1,
        }
    }
}

/// A path of an inner module as the outermost one would write it. What is in the inner one is as good as the outer's own.
fn from_outside(path: Vec<String>, depth: usize) -> Vec<String> {
    let ups = path.iter().take(depth).take_while(|word| *word == "super").count();
    if ups == 0 {
        return path;
    }
    let own = std::iter::once("self".to_owned());
    own.chain(path.into_iter().skip(ups)).collect()
}

/// Reads a path from its first word on, with the groups of a `use`.
fn read_path(reader: &mut Reader, prefix: &mut Vec<String>, found: &mut dyn FnMut(Vec<String>, Kind)) {
    let kept = prefix.len();
    loop {
        match reader.tokens.get(reader.at) {
            Some(TokenTree::Ident(word)) => prefix.push(word.to_string()),
            Some(TokenTree::Group(group)) if group.delimiter() == Delimiter::Brace => {
                let mut members = Reader::new(group.stream());
                while members.at < members.tokens.len() {
                    match &members.tokens[members.at] {
                        TokenTree::Punct(mark) if mark.as_char() != '*' => members.at += 1,
                        TokenTree::Literal(_) => members.at += 1,
                        _ => read_path(&mut members, prefix, found),
                    }
                }
                reader.at += 1;
                break;
            }
            Some(TokenTree::Punct(mark)) if mark.as_char() == '*' => {
                found(prefix.clone(), Kind::Glob);
                reader.at += 1;
                break;
            }
            // `::<T>`, or `::$name`.
            _ => {
                found(prefix.clone(), Kind::Inline);
                break;
            }
        }
        reader.at += 1;
        if reader.is_separator(reader.at) {
            reader.at += 2;
            continue;
        }
        // `a != b` is no macro.
        let is_macro = reader.is_punctuation(reader.at, '!') && !reader.is_punctuation(reader.at + 1, '=');
        found(prefix.clone(), if is_macro { Kind::Macro } else { Kind::Inline });
        if matches!(reader.tokens.get(reader.at), Some(TokenTree::Ident(word)) if word == "as") {
            reader.at += 2;
        }
        break;
    }
    prefix.truncate(kept);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(text: &str) -> Vec<String> {
        let tokens: TokenStream = text.parse().expect("tokens");
        let text = |(path, _, kind): (Vec<String>, usize, Kind)| match kind {
            Kind::Glob => format!("{}::*", path.join("::")),
            Kind::Macro => format!("{}!", path.join("::")),
            Kind::Import | Kind::Inline => path.join("::"),
        };
        paths(tokens).into_iter().map(text).collect()
    }

    #[test]
    fn paths_are_found_in_tokens() {
        assert_eq!(of("super::a::f(x.b, &crate::c::D)"), ["super::a::f", "x", "crate::c::D"]);
        assert_eq!(of("$crate::a::f($b::c, $d)"), ["crate::a::f"]);
        assert_eq!(of("a::b!(c::<d::E>::f) != g"), ["a::b!", "c", "d::E", "g"]);
        assert_eq!(
            of("use super::{a::b as c, d::*, self};"),
            ["use", "super::a::b", "super::d::*", "super::self"]
        );
        assert_eq!(of("x..y::Z 'a ::std::mem 1.max()"), ["x", "y::Z"]);
        assert_eq!(of("pub(in crate::a) b"), ["pub", "b"]);
        assert_eq!(of("pub(super) fn f()"), ["pub", "super", "fn", "f"]);
        assert_eq!(of("a != b"), ["a", "b"]);
        assert_eq!(of("crate::a::$name(b)"), ["crate::a", "b"]);
    }

    #[test]
    fn modules_among_the_tokens_are_gone_out_of() {
        assert_eq!(of("mod a { super::b::C } super::d::E"), ["mod", "a", "self::b::C", "super::d::E"]);
        assert_eq!(
            of("mod $a { use super::*; super::super::b::C }"),
            ["mod", "use", "self::*", "self::super::b::C"]
        );
        assert_eq!(of("fn a() { super::b::C }"), ["fn", "a", "super::b::C"]);
    }

    #[test]
    fn lines_are_counted() {
        let tokens: TokenStream = "\n\na::b".parse().expect("tokens");
        assert_eq!(paths(tokens)[0].1, 3);
    }
}
