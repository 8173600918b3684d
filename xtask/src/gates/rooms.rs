//! Import circles, and the order of rooms: the parts of a folder that use only those below them.
//!
//! The order of each folder is declared here and nowhere else. A room is a folder, or a file that stands for itself.

use std::collections::BTreeMap;

use crate::module_graph::{Import, ModuleGraph, tangles};

/// A folder whose files must not import each other in a circle, and its rooms from the bottom up. Rooms of one line may use
/// each other; the folder's own file (mod.rs, lib.rs) is above all. A room need not exist.
pub struct Tree {
    /// In the project.
    pub folder: &'static str,
    /// Where its crate's source is.
    pub crate_folder: &'static str,
    /// None: the order of rooms is not checked.
    pub rooms: &'static [&'static [&'static str]],
}

/// The library's layers. Circles inside of `backend` are not looked for: a backend whose context has ended makes a new one,
/// so the trait names the list of backends, and the list names each.
pub const LAYERS: Tree = Tree {
    folder: "src",
    crate_folder: "src",
    rooms: &[
        &["sys"],
        &["error", "log"],
        &["core"],
        &["backend"],
        &["options"],
        &["report"],
        &["pool"],
        &["scope"],
        &["device"],
        &["capi"],
    ],
};

/// The folders with rooms.
pub const TREES: &[Tree] = &[
    Tree {
        folder: "src/core",
        crate_folder: "src",
        rooms: &[
            &["steps", "units", "ids", "seed", "sort", "stream_id", "invariants"],
            &["tree", "tables", "stats"],
            &["op_names"],
            &["heap"],
            &["request"],
            &["vmm"],
            &["streams"],
            &["stamps"],
            &["arena"],
        ],
    },
    Tree {
        folder: "src/pool",
        crate_folder: "src",
        rooms: &[
            &["mutation"],
            &["captures", "events", "guard_state", "listener"],
            &["pool"],
            &["slot"],
            &["order", "region_io", "snapshot", "stamp_merge"],
            &["context_loss", "remap", "take_back"],
            &["guarded"],
            &["alloc", "free", "graph_pools"],
            &["lifecycle"],
        ],
    },
    Tree {
        folder: "src/options",
        crate_folder: "src",
        rooms: &[&["values"], &["types"], &["variables"], &["environment"], &["limit", "resolution"]],
    },
    Tree { folder: "src/report", crate_folder: "src", rooms: &[] },
    Tree { folder: "src/device", crate_folder: "src", rooms: &[&["table"], &["forks"], &["clients"]] },
    Tree { folder: "src/capi", crate_folder: "src", rooms: &[] },
    Tree {
        folder: "preload/src",
        crate_folder: "preload/src",
        rooms: &[
            &["bfc", "hook_list", "unanalyzed_list", "sys"],
            &["settings"],
            &["diagnostics"],
            &["driver"],
            &["state"],
            &["pool"],
            &["hooks", "lifecycle"],
            &["resolve"],
        ],
    },
    Tree {
        folder: "ffi-tests/simcuda/src",
        crate_folder: "ffi-tests/simcuda/src",
        rooms: &[
            &["abi", "calling_thread", "handles", "options", "system"],
            &["state"],
            &["sim", "lookup"],
            &["rules"],
            &["gate"],
            &["api"],
            &["exports"],
            &["control"],
        ],
    },
];

/// What is wrong in a tree, each with the imports to look at.
pub fn violations(tree: &Tree, graph: &ModuleGraph) -> Vec<String> {
    let mut wrong = circles(tree.folder, graph);
    let steps = steps_up(tree, graph);
    wrong.extend(steps.into_iter().filter(|step| !missing(tree.folder, graph).contains(step)));
    wrong
}

/// The import circles among the files of a folder, each as a path with the imports on it.
pub fn circles(folder: &str, graph: &ModuleGraph) -> Vec<String> {
    let mut wrong = missing(folder, graph);
    let imports = within(folder, graph);
    for tangle in tangles(&imports) {
        let files: Vec<_> = tangle.files.iter().map(|file| short(folder, file)).collect();
        wrong.push(format!("{folder}: {} files import each other: {}", files.len(), files.join(", ")));
        wrong.extend(tangle.circles.iter().map(|circle| {
            let first = circle.first().map(|import| short(folder, &import.from)).unwrap_or_default();
            let rest = circle.iter().map(|import| format!(" -> {}", short(folder, &import.to)));
            let path: String = std::iter::once(first.to_owned()).chain(rest).collect();
            let places: String = circle.iter().map(|import| format!("\n    {}", told(import))).collect();
            format!("{folder}: {path}{places}")
        }));
    }
    wrong
}

/// The imports that lead from a room to one above it, and the rooms without a place in the order.
pub fn steps_up(tree: &Tree, graph: &ModuleGraph) -> Vec<String> {
    let folder = tree.folder;
    let mut wrong = missing(folder, graph);
    if tree.rooms.is_empty() {
        return wrong;
    }
    let mut unknown: Vec<&str> = graph.files.iter().filter_map(|file| room(folder, file)).collect();
    unknown.retain(|room| line(tree, room).is_none());
    unknown.sort_unstable();
    unknown.dedup();
    if !unknown.is_empty() {
        let unknown = unknown.join(", ");
        wrong.push(format!(
            "{folder}: rooms without a place in the order (see xtask/src/gates/rooms.rs): {unknown}"
        ));
    }
    let mut up: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
    for import in within(folder, graph) {
        // The folder's own file is above all.
        let Some(from) = room(folder, &import.from) else {
            continue;
        };
        let to = room(folder, &import.to);
        let is_up = to.is_none_or(|to| line(tree, to) > line(tree, from) && line(tree, from).is_some());
        if is_up {
            let to = to.map_or_else(|| format!("the root of {folder}"), str::to_owned);
            up.entry((from.to_owned(), to)).or_default().push(format!("\n    {}", told(&import)));
        }
    }
    wrong.extend(up.into_iter().map(|((from, to), imports)| {
        format!("{folder}: {from} uses {to}, which is above it{}", imports.concat())
    }));
    wrong
}

/// A gate that looks at nothing passes by mistake.
fn missing(folder: &str, graph: &ModuleGraph) -> Vec<String> {
    let mut wrong = graph.not_understood.clone();
    if !graph.files.iter().any(|file| room(folder, file).is_some()) {
        wrong.push(format!("{folder}: there is no module to look at"));
    }
    wrong
}

/// The imports between files of a folder.
pub fn within(folder: &str, graph: &ModuleGraph) -> Vec<Import> {
    let inside = |file: &str| short(folder, file) != file || is_root(folder, file);
    let imports = graph.imports.iter().filter(|import| inside(&import.from) && inside(&import.to));
    imports.cloned().collect()
}

/// A file's path in the folder.
fn short<'a>(folder: &str, file: &'a str) -> &'a str {
    file.strip_prefix(folder).and_then(|rest| rest.strip_prefix('/')).unwrap_or(file)
}

/// Whether the file is the folder's own module.
fn is_root(folder: &str, file: &str) -> bool {
    ["mod.rs", "lib.rs", "main.rs"].contains(&short(folder, file)) || file.strip_suffix(".rs") == Some(folder)
}

/// The room of a file; none has the folder's own file, and files elsewhere.
fn room<'a>(folder: &str, file: &'a str) -> Option<&'a str> {
    let inside = short(folder, file);
    if is_root(folder, file) || inside == file {
        return None;
    }
    inside.split(['/', '.']).next()
}

fn line(tree: &Tree, room: &str) -> Option<usize> {
    tree.rooms.iter().position(|rooms| rooms.contains(&room))
}

/// An import in words.
pub fn told(import: &Import) -> String {
    format!("{}:{} imports {} by `{}`", import.from, import.line, import.to, import.path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn graph(files: &[(&str, &str)]) -> ModuleGraph {
        let texts: BTreeMap<_, _> =
            files.iter().map(|(path, text)| ((*path).to_owned(), (*text).to_owned())).collect();
        ModuleGraph::of("src", &texts).expect("sources that parse")
    }

    const TREE: Tree = Tree { folder: "src", crate_folder: "src", rooms: &[&["a", "z"], &["none"], &["b"]] };

    #[test]
    fn a_circle_is_shown_with_its_imports() {
        let graph = graph(&[
            ("lib.rs", "mod a; mod b; mod c;"),
            ("a.rs", "\nuse super::b::B;"),
            ("b.rs", "fn b() { crate::c::f() } pub struct B;"),
            ("c.rs", "\n\nuse crate::a;\npub fn f() { a::g() }"),
        ]);
        assert_eq!(
            circles("src", &graph),
            [
                "src: 3 files import each other: a.rs, b.rs, c.rs".to_owned(),
                "src: a.rs -> b.rs -> c.rs -> a.rs\n    \
             src/a.rs:2 imports src/b.rs by `super::b::B`\n    \
             src/b.rs:1 imports src/c.rs by `crate::c::f`\n    \
             src/c.rs:3 imports src/a.rs by `crate::a`"
                    .to_owned(),
            ]
        );
    }

    #[test]
    fn only_circles_inside_the_folder_count() {
        let graph = graph(&[
            ("lib.rs", "mod core; mod b;"),
            ("core/mod.rs", "mod a; mod c;"),
            ("core/a.rs", "use crate::b::B; pub struct A;"),
            ("core/c.rs", "use super::a::A;"),
            ("b.rs", "use crate::core::a::A; pub struct B;"),
        ]);
        assert_eq!(circles("src/core", &graph), [""; 0]);
        assert_eq!(circles("src", &graph).len(), 2);
    }

    #[test]
    fn a_step_up_and_a_room_without_a_place_fail() {
        let sources = |a: &str, lib: &str| {
            graph(&[
                ("lib.rs", lib),
                ("a/mod.rs", "mod deep;"),
                ("a/deep.rs", a),
                ("b.rs", "use crate::a;"),
                ("z.rs", ""),
            ])
        };
        let modules = "mod a; mod b; mod z;";
        assert_eq!(steps_up(&TREE, &sources("use crate::z::Z;", modules)), [""; 0]);
        assert_eq!(
            steps_up(&TREE, &sources("fn f() -> crate::b::B {}", modules)),
            ["src: a uses b, which is above it\n    src/a/deep.rs:1 imports src/b.rs by `crate::b::B`"]
        );
        assert_eq!(
            steps_up(&TREE, &sources("use crate::Root;", modules)),
            [
                "src: a uses the root of src, which is above it\n    src/a/deep.rs:1 imports src/lib.rs by `crate::Root`"
            ]
        );
        let unlisted = Tree { rooms: &[&["a", "z"]], ..TREE };
        assert_eq!(
            steps_up(&unlisted, &sources("", modules)),
            ["src: rooms without a place in the order (see xtask/src/gates/rooms.rs): b"]
        );
    }

    #[test]
    fn a_step_up_through_a_module_that_passes_the_name_on_fails() {
        let graph = graph(&[
            ("lib.rs", "mod a; mod b; mod z;"),
            ("a.rs", "use crate::z::B;"),
            ("b.rs", "pub struct B;"),
            ("z.rs", "pub use crate::b::B;"),
        ]);
        let wrong = steps_up(&TREE, &graph);
        assert_eq!(wrong.len(), 2, "{wrong:?}");
        assert!(wrong[0].starts_with("src: a uses b, which is above it"), "{wrong:?}");
    }

    #[test]
    fn a_gate_without_anything_to_look_at_fails() {
        let graph = graph(&[("lib.rs", "mod a;"), ("a.rs", "")]);
        assert_eq!(violations(&TREE, &graph), [""; 0]);
        assert_eq!(circles("src/core", &graph), ["src/core: there is no module to look at"]);
        assert_eq!(steps_up(&Tree { folder: "src/core", ..TREE }, &graph).len(), 1);
    }

    #[test]
    fn what_was_not_understood_fails() {
        let graph = graph(&[("lib.rs", "mod a; mod absent;"), ("a.rs", "include!(\"b.in\");")]);
        let wrong = circles("src", &graph);
        assert_eq!(wrong.len(), 2, "{wrong:?}");
    }

    #[test]
    fn trees_are_in_their_crates_and_rooms_have_one_place() {
        for tree in TREES {
            assert!(tree.folder.starts_with(tree.crate_folder), "{}", tree.folder);
            let mut rooms: Vec<_> = tree.rooms.concat();
            let count = rooms.len();
            rooms.sort_unstable();
            rooms.dedup();
            assert_eq!(rooms.len(), count, "a room of {} has two places", tree.folder);
        }
    }
}
