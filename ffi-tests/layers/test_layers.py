"""Import circles, and the order of rooms: the parts of a folder that use only those below them.

The order of each folder is declared here and nowhere else. A room is a folder, or a file that stands for itself.
"""

import graphlib
import pathlib
import re
from typing import NamedTuple

import pytest

from imports import Crate
from python_imports import Package

ROOT = pathlib.Path(__file__).parents[2]


class Tree(NamedTuple):
    """A folder, where the source of its crate or Python package is, and its rooms from the bottom up.

    Folders of one line may use each other; the folder's own file (mod.rs, lib.rs) is above all. A folder need not exist.
    Without rooms there is no order, but circles are looked for.
    """

    folder: str
    crate: str
    rooms: str
    circles: bool = True


# Circles inside of `backend` are not looked for: a backend whose context has ended makes a new one, so the trait names the
# list of backends, and the list names each.
LAYERS = Tree(
    "src",
    "src",
    """
    sys
    error log global
    history publish
    backend
    options
    report
    pool
    scope
    device
    capi raw rust
    """,
    circles=False,
)
TREES = [
    LAYERS,
    Tree(
        "src/sys",
        "src",
        """
        clock futex host mapped_path memfile numa token
        c_string
        file huge_pages lock thread
        file_mapping mutex process
        folder own_pointer
        """,
    ),
    Tree(
        "crates/bfc-core/src",
        "crates/bfc-core/src",
        """
        steps units ids seed sort stream_id invariants
        list tree tables stats plan lifetimes
        op_names ordered
        heap
        request
        vmm
        streams
        stamps
        arena
        testing
        """,
    ),
    Tree(
        "src/pool",
        "src",
        """
        mutation
        captures events guard_state idle_time limit_share listener
        history
        pool
        slot
        populating
        order region_io snapshot stamp_merge
        context_loss remap take_back
        idle
        guarded
        alloc free graph_pools
        lifecycle zeroing
        """,
    ),
    Tree("src/pool/idle", "src", "callback give_back\n limits\n trim"),
    Tree("src/options", "src", "values\n types\n variables\n environment table\n chosen\n history limit plan resolution"),
    Tree("src/report", "src", ""),
    Tree("crates/bfc-formats/src", "crates/bfc-formats/src", "counters history openmetrics published"),
    Tree("crates/bfc-readers/src", "crates/bfc-readers/src", "process\n counters history published trace"),
    Tree("src/history", "src", "entry memory\n ring earlier interner unwind python\n recorder\n recording\n modules\n stacks"),
    Tree("src/publish", "src", "location\n publication"),
    Tree("src/device", "src", "table service\n forks history idle_trim order populator publisher request\n clients"),
    Tree("src/capi", "src", ""),
    Tree(
        "crates/preload/src",
        "crates/preload/src",
        """
        bfc unanalyzed_list sys
        settings
        diagnostics
        driver
        state
        pool
        hooks lifecycle
        resolve
        """,
    ),
    Tree(
        "crates/simcuda/src",
        "crates/simcuda/src",
        """
        abi calling_thread handles options system
        state
        sim lookup
        rules
        gate
        api
        exports
        control
        """,
    ),
    Tree("crates/cli/src", "crates/cli/src", ""),
    Tree("xtask/src", "xtask/src", ""),
    Tree("python/src/bfc", "python/src/bfc", ""),
]


def room(folder, file):
    """The room of a file; None for the folder's own file, and for files elsewhere."""
    inside = file.removeprefix(f"{folder}/")
    is_own = inside in ("mod.rs", "lib.rs", "main.rs") or file == f"{folder}.rs"
    return None if is_own or inside == file else re.split("[/.]", inside)[0]


def within(folder, crate):
    """The imports between files of a folder."""
    inside = lambda file: file.startswith(f"{folder}/") or file == f"{folder}.rs"
    return [found for found in crate.imports() if inside(found.source) and inside(found.target)]


def circle(folder, crate):
    """The imports of a circle among the files of a folder, if there is one."""
    imports = {(found.source, found.target): found for found in within(folder, crate)}
    sorter = graphlib.TopologicalSorter()
    for source, target in imports:
        sorter.add(source, target)
    try:
        sorter.prepare()
    except graphlib.CycleError as error:
        files = list(reversed(error.args[1]))
        return [str(imports[pair]) for pair in zip(files, files[1:])]
    return []


def steps_up(tree, crate):
    """The imports that lead from a room to one above it, and the rooms without a place in the order."""
    place = {name: level for level, line in enumerate(tree.rooms.strip().splitlines()) for name in line.split()}
    rooms = {room(tree.folder, file) for file in crate.files} - {None}
    wrong = [] if rooms else [f"{tree.folder}: there is no module to look at"]
    if not place:
        return wrong
    wrong += [f"{tree.folder}: {name} has no place in the order of rooms" for name in sorted(rooms - place.keys())]
    for found in within(tree.folder, crate):
        source, target = room(tree.folder, found.source), room(tree.folder, found.target)
        # The folder's own file is above all.
        if source is not None and place.get(target, len(place) + 1) > place.get(source, len(place)):
            wrong.append(f"{source} uses {target or 'the root'}, which is above it: {found}")
    return wrong


def drivers(crate):
    """Every use of the driver outside of backend/cuda."""
    uses = {module.file for module, path, *_ in crate.mentions if path[0] == "cuda_sys"}
    return sorted(file for file in uses if not file.startswith("backend/cuda/")), len(uses)


@pytest.fixture(scope="module")
def crates():
    return {name: (Package if name.startswith("python/") else Crate)(ROOT, name) for name in {tree.crate for tree in TREES}}


@pytest.mark.parametrize("tree", TREES, ids=lambda tree: tree.folder)
def test_no_step_up_and_no_circle(tree, crates):
    crate = crates[tree.crate]
    assert not crate.not_understood
    assert not steps_up(tree, crate)
    assert not (tree.circles and circle(tree.folder, crate))


def test_the_driver_is_for_its_backends_only(crates):
    wrong, uses = drivers(crates["src"])
    assert not wrong and uses > 0


# The gates themselves, on small crates.


def crate_of(**files):
    return Crate("", "src", {f"{name.replace('__', '/')}.rs": text for name, text in files.items()})


def test_a_circle_is_shown_with_its_imports():
    files = {"a": "\nuse super::b::B;", "b": "fn b() { crate::c::f() } pub struct B;", "c": "use crate::a;\npub fn f() { a::g() }"}
    found = circle("src", crate_of(lib="mod a; mod b; mod c;", **files))
    assert len(found) == 3 and "src/b.rs:1 imports src/c.rs by `crate::c::f`" in found


def test_a_circle_that_functions_of_python_hide_is_shown():
    files = {"__init__.py": "from . import a", "a.py": "from .b import B", "b.py": "def f():\n    from . import a"}
    found = circle("src/bfc", Package("", "src/bfc", files))
    assert sorted(found) == ["src/bfc/a.py:1 imports src/bfc/b.py by `bfc.b.B`", "src/bfc/b.py:2 imports src/bfc/a.py by `bfc.a`"]


@pytest.mark.parametrize(
    "text, lib, wrong",
    [
        ("use crate::z::Z;", "", []),
        ("fn f() -> crate::b::B {}", "", ["a uses b, which is above it: src/a/deep.rs:1 imports src/b.rs by `crate::b::B`"]),
        ("use crate::Root;", "", ["a uses the root, which is above it: src/a/deep.rs:1 imports src/lib.rs by `crate::Root`"]),
        ("", "mod other;", ["src: other has no place in the order of rooms"]),
    ],
)
def test_a_step_up_and_a_room_without_a_place_fail(text, lib, wrong):
    crate = crate_of(lib=f"mod a; mod b; mod z; {lib}", a__mod="mod deep;", a__deep=text, b="use crate::a;", z="", other="")
    assert steps_up(Tree("src", "src", "a z\nnone\nb"), crate) == wrong


def test_a_step_up_through_a_module_that_passes_the_name_on_fails():
    crate = crate_of(lib="mod a; mod b; mod z;", a="use crate::z::B;", b="pub struct B;", z="pub use crate::b::B;")
    assert len(steps_up(Tree("src", "src", "a z\nb"), crate)) == 2


def test_a_gate_without_anything_to_look_at_fails():
    assert steps_up(Tree("src/core", "src", "a"), crate_of(lib="mod a;", a=""))


def test_the_driver_elsewhere_is_found():
    files = {"backend__mod": "mod cuda;", "backend__cuda__mod": "use cuda_sys::Driver;", "pool": "// cuda_sys\nuse cuda_sys::Driver;"}
    assert drivers(crate_of(lib="mod backend; mod pool;", **files)) == (["pool.rs"], 2)
