//! What a program sees with the interposer, against what it sees without: line by line, and against the list of the
//! differences that are allowed, which is a page of the documentation.

use anyhow::{Result, bail};

use crate::pages::Block;

/// A line that is there without the interposer only (`-`), or with it only (`+`).
pub type Difference = String;

/// Where a difference is seen: program, case and settings, with spaces between them. On the page one without settings
/// stands for all of them that have no block of their own.
pub type Place = String;

/// The lines of `without` and `with` that are not in both, in order.
pub fn between(without: &str, with: &str) -> Vec<Difference> {
    let (old, new): (Vec<&str>, Vec<&str>) = (without.lines().collect(), with.lines().collect());
    // How many lines are the same from here on, at best.
    let mut same = vec![vec![0_usize; new.len() + 1]; old.len() + 1];
    for (i, line) in old.iter().enumerate().rev() {
        for (j, other) in new.iter().enumerate().rev() {
            same[i][j] =
                if line == other { same[i + 1][j + 1] + 1 } else { same[i + 1][j].max(same[i][j + 1]) };
        }
    }
    let (mut i, mut j, mut differences) = (0, 0, Vec::new());
    while i < old.len() || j < new.len() {
        if i < old.len() && j < new.len() && old[i] == new[j] {
            (i, j) = (i + 1, j + 1);
        } else if j == new.len() || (i < old.len() && same[i + 1][j] >= same[i][j + 1]) {
            differences.push(format!("-{}", old[i]));
            i += 1;
        } else {
            differences.push(format!("+{}", new[j]));
            j += 1;
        }
    }
    differences
}

/// The differences that the page allows: its blocks of the kind `diff`, whose first line, after `# `, is the place.
pub fn allowed(page: &[Block]) -> Result<Vec<(Place, Vec<Difference>)>> {
    let mut blocks: Vec<(Place, Vec<Difference>)> = Vec::new();
    for block in page.iter().filter(|block| block.language == "diff") {
        let Some(place) = place_of(block) else {
            bail!("a block of differences does not begin with its place");
        };
        let block: Vec<Difference> = block.text.lines().skip(1).map(str::to_owned).collect();
        if let Some(line) = block.iter().find(|line| !line.starts_with(['-', '+'])) {
            bail!("{place}: neither - nor +: {line}");
        }
        match blocks.iter_mut().find(|(known, _)| known == place) {
            Some((_, differences)) => differences.extend(block),
            None => blocks.push((place.to_owned(), block)),
        }
    }
    Ok(blocks)
}

/// What a block is about.
pub fn place_of(block: &Block) -> Option<&str> {
    block.first_line().strip_prefix("# ")
}

/// Whether the differences that were seen in a place are exactly those that are allowed there.
pub fn judge(place: &str, seen: &[Difference], allowed: &[(Place, Vec<Difference>)]) -> Result<()> {
    let general = place.split(' ').take(2).collect::<Vec<_>>().join(" ");
    let of = |place: &str| allowed.iter().find(|(known, _)| known == place);
    let listed = of(place).or_else(|| of(&general)).map_or(&[][..], |(_, lines)| lines);
    let sorted = |lines: &[Difference]| {
        let mut lines = lines.to_vec();
        lines.sort_unstable();
        lines
    };
    if sorted(seen) == sorted(listed) {
        return Ok(());
    }
    bail!(
        "{place}: seen are\n{}\nand allowed are\n{}",
        if seen.is_empty() { "none".to_owned() } else { seen.join("\n") },
        if listed.is_empty() { "none".to_owned() } else { listed.join("\n") }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::blocks;

    const PAGE: &str = "words\n```diff\n# a b\n-x\n+y\n```\nmore\n```diff\n# a b\n-z\n```\n```sh\n-no\n```\n";

    #[test]
    fn lines_that_are_not_in_both_are_found() {
        assert!(between("a\nb\n", "a\nb\n").is_empty());
        assert_eq!(between("a\nb\nc\n", "a\nx\nc\n"), ["-b", "+x"]);
        assert_eq!(between("a\n", ""), ["-a"]);
        assert_eq!(between("", "a\n"), ["+a"]);
        assert_eq!(between("a\nb\n", "b\na\n").len(), 2);
    }

    #[test]
    fn differences_are_those_of_the_page_and_no_others() {
        let allowed = allowed(&blocks(PAGE)).unwrap();
        let seen = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
        assert!(judge("a b", &seen(&["-x", "+y", "-z"]), &allowed).is_ok());
        assert!(judge("a b", &seen(&["-x", "+y"]), &allowed).is_err());
        assert!(judge("a b", &seen(&["-x", "+y", "-z", "-z"]), &allowed).is_err());
        assert!(judge("a c", &seen(&["-x"]), &allowed).is_err());
        assert!(judge("a b S=1", &seen(&["-x", "+y", "-z"]), &allowed).is_ok());
        let own = [allowed[0].clone(), ("a b S=1".to_owned(), seen(&["-q"]))];
        assert!(judge("a b S=1", &seen(&["-q"]), &own).is_ok());
        assert!(judge("a b S=1", &seen(&["-x", "+y", "-z"]), &own).is_err());
        assert!(judge("a c", &[], &allowed).is_ok());
    }

    #[test]
    fn a_page_with_something_else_in_a_block_is_refused() {
        assert!(allowed(&blocks("```diff\n-x\n```\n")).is_err());
        assert!(allowed(&blocks("```diff\n# a b\nx\n```\n")).is_err());
    }
}
