//! Circles of imports.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::resolve::Import;

/// Files that import each other, directly or by way of others.
#[derive(Debug, PartialEq)]
pub struct Tangle<'a> {
    pub files: BTreeSet<&'a str>,
    /// Shortest circles, of which each file is in one at least.
    pub circles: Vec<Vec<&'a Import>>,
}

/// The tangles of these imports; none if there is no circle.
pub fn tangles(imports: &[Import]) -> Vec<Tangle<'_>> {
    let mut edges: BTreeMap<&str, BTreeMap<&str, &Import>> = BTreeMap::new();
    for import in imports {
        // The first of several that lead to the same file is the one to show.
        edges.entry(&import.from).or_default().entry(&import.to).or_insert(import);
    }
    let reached: BTreeMap<&str, BTreeSet<&str>> =
        edges.keys().map(|file| (*file, reachable(&edges, file))).collect();
    let reaches = |from: &str, to: &str| reached.get(from).is_some_and(|reached| reached.contains(to));
    let mut tangles: Vec<Tangle<'_>> = Vec::new();
    for file in edges.keys().copied().filter(|file| reaches(file, file)) {
        if tangles.iter().any(|tangle| tangle.files.contains(file)) {
            continue;
        }
        let files: BTreeSet<&str> =
            reached[file].iter().copied().filter(|other| reaches(other, file)).collect();
        let circles = circles(&edges, &files);
        tangles.push(Tangle { files, circles });
    }
    tangles
}

fn reachable<'a>(edges: &BTreeMap<&'a str, BTreeMap<&'a str, &'a Import>>, from: &str) -> BTreeSet<&'a str> {
    let (mut found, mut waiting) = (BTreeSet::new(), vec![from]);
    while let Some(file) = waiting.pop() {
        for to in edges.get(file).into_iter().flat_map(BTreeMap::keys) {
            if found.insert(*to) {
                waiting.push(to);
            }
        }
    }
    found
}

/// For each file that is in no circle yet, a shortest one through it.
fn circles<'a>(
    edges: &BTreeMap<&'a str, BTreeMap<&'a str, &'a Import>>,
    files: &BTreeSet<&'a str>,
) -> Vec<Vec<&'a Import>> {
    let (mut circles, mut covered) = (Vec::new(), BTreeSet::new());
    for file in files {
        if covered.contains(file) {
            continue;
        }
        let circle = shortest(edges, file);
        covered.extend(circle.iter().map(|import| &*import.from));
        circles.push(circle);
    }
    circles
}

/// A shortest way from a file back to itself.
fn shortest<'a>(edges: &BTreeMap<&'a str, BTreeMap<&'a str, &'a Import>>, start: &str) -> Vec<&'a Import> {
    let mut last: BTreeMap<&str, &'a Import> = BTreeMap::new();
    let mut waiting = VecDeque::from([start]);
    while let Some(file) = waiting.pop_front() {
        for (to, import) in edges.get(file).into_iter().flatten() {
            if last.contains_key(to) {
                continue;
            }
            last.insert(to, import);
            if *to == start {
                let mut circle = vec![*import];
                while let Some(first) = circle.last().filter(|first| first.from != start) {
                    circle.push(last[&*first.from]);
                }
                circle.reverse();
                return circle;
            }
            waiting.push_back(to);
        }
    }
    Vec::new()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn import(from: &str, to: &str) -> Import {
        Import { from: from.to_owned(), to: to.to_owned(), line: 1, path: to.to_owned() }
    }

    fn circles(edges: &[(&str, &str)]) -> Vec<Vec<String>> {
        let imports: Vec<_> = edges.iter().map(|(from, to)| import(from, to)).collect();
        let tangles = tangles(&imports);
        let circles = tangles.iter().flat_map(|tangle| &tangle.circles);
        circles.map(|circle| circle.iter().map(|import| import.from.clone()).collect()).collect()
    }

    #[test]
    fn no_circle_is_none() {
        assert!(circles(&[]).is_empty());
        assert!(circles(&[("a", "b"), ("a", "c"), ("b", "d"), ("c", "d")]).is_empty());
    }

    #[test]
    fn circles_are_shown_from_the_first_file_on() {
        assert_eq!(circles(&[("b", "a"), ("a", "b"), ("c", "a")]), [["a", "b"]]);
        assert_eq!(circles(&[("c", "a"), ("a", "b"), ("b", "c"), ("d", "a")]), [["a", "b", "c"]]);
    }

    #[test]
    fn each_file_of_a_tangle_is_in_a_shortest_circle() {
        let edges = [("a", "b"), ("b", "a"), ("b", "c"), ("c", "a"), ("x", "y"), ("y", "x")];
        assert_eq!(circles(&edges), [vec!["a", "b"], vec!["c", "a", "b"], vec!["x", "y"]]);
    }
}
