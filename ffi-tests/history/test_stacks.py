"""Backtraces in the history: `bfc report` names functions of C and of Python, and says where each allocation was made."""

import json
import sys

import programs

PROGRAM = """
#include <bfc.h>
#include <stddef.h>

__attribute__((noinline)) void *load_weights(size_t bytes) {
  void *ptr = NULL;
  bfc_alloc(256, bytes, &ptr);
  return ptr;
}

int main(void) {
  bfc_options_t options = BFC_OPTIONS_INIT;
  void *ptr;
  options.backend = BFC_BACKEND_HOST;
  options.memory_limit = 1 << 20;
  if (bfc_create(256, &options) != BFC_OK || load_weights(100000) == NULL) return 1;
  ptr = load_weights(200000);
  return ptr == NULL || load_weights(1 << 24) != NULL;
}
"""
SCRIPT = """
import bfc, threading

def inner(pool):
    return pool.alloc(1000)

class Größe:
    def vorwärts(self, pool):
        return inner(pool)

pool = bfc.Pool(256, backend="host", memory_limit=1 << 20)
with bfc.history(FILE, stacks=STACKS):
    live = [Größe().vorwärts(pool) for _ in range(2)]
    thread = threading.Thread(target=lambda: live.append(inner(pool)))
    thread.start()
    thread.join()
"""


def compiled(folder, *flags):
    source, program = folder / "program.c", folder / "program"
    source.write_text(PROGRAM)
    lib = programs.LIB
    command = [
        programs.compiler("c"),
        *flags,
        f"-I{programs.PREFIX}/include",
        source,
        "-o",
        program,
        f"-L{lib}",
        "-lbfc",
        f"-Wl,-rpath,{lib}",
    ]
    programs.run(*command)
    return program


def report(file, *options):
    return programs.run(programs.PREFIX / "bin/bfc", "report", *options, file, env=programs.environment())


def recorded(folder, program):
    file = folder / "history"
    programs.run(program, env=programs.environment(BFC_HISTORY_FILE=file, BFC_HISTORY_STACKS="native"))
    return file


def stacks_at_the_peak(file):
    [pool] = json.loads(report(file, "--json"))["pools"]
    [holder] = pool["peak"]["holders"]
    # The backtraces account for all that is held.
    assert sum(stack["bytes"] for stack in holder["stacks"]) == holder["bytes"]
    assert sum(stack["allocations"] for stack in holder["stacks"]) == holder["allocations"]
    return pool, holder["stacks"]


def test_what_was_not_freed_has_the_place_that_allocated_it(tmp_path):
    file = recorded(tmp_path, compiled(tmp_path, "-g", "-O2"))
    [pool] = json.loads(report(file, "--leaks", "--json"))["pools"]
    [operation] = pool["operations"]
    assert sum(stack["bytes"] for stack in operation["stacks"]) == operation["bytes"] == pool["bytes"]
    assert {stack["frames"][0]["function"] for stack in operation["stacks"]} == {"load_weights"}
    assert "by load_weights (program.c:7) < main (program.c:" in report(file, "--leaks")


def test_a_program_with_debug_information_has_functions_and_lines(tmp_path):
    file = recorded(tmp_path, compiled(tmp_path, "-g", "-O2"))
    pool, [larger, smaller] = stacks_at_the_peak(file)
    lines = PROGRAM.splitlines()
    for stack, call in (larger, "200000"), (smaller, "100000"):
        function, main = stack["frames"][:2]
        assert (function["function"], function["line"]) == ("load_weights", lines.index("  bfc_alloc(256, bytes, &ptr);") + 1)
        assert function["file"].endswith("program.c")
        assert main["function"] == "main" and f"load_weights({call})" in lines[main["line"] - 1]
    [failure] = pool["failures"]
    assert [frame["function"] for frame in failure["frames"][:2]] == ["load_weights", "main"]
    text = report(file)
    assert "1 allocation by load_weights (program.c:7) < main (program.c:" in text
    assert "requested by load_weights (program.c:7) < main (program.c:" in text


def test_without_debug_information_there_are_functions_alone(tmp_path):
    _, stacks = stacks_at_the_peak(recorded(tmp_path, compiled(tmp_path, "-O2")))
    assert [frame["function"] for frame in stacks[0]["frames"][:2]] == ["load_weights", "main"]
    assert [frame["file"] for frame in stacks[0]["frames"][:2]] == [None, None]


LIBRARY = """
#include <bfc.h>
#include <stddef.h>
__attribute__((noinline)) void *load_weights(size_t bytes) {
  void *ptr = NULL;
  bfc_alloc(256, bytes, &ptr);
  return ptr;
}
"""
OPENS = """
#include <bfc.h>
#include <dlfcn.h>
#include <unistd.h>
int main(void) {
  bfc_options_t options = BFC_OPTIONS_INIT;
  void *library = dlopen("./libloader.so", RTLD_NOW);
  void *(*load)(size_t);
  options.backend = BFC_BACKEND_HOST;
  options.memory_limit = 1 << 20;
  if (library == NULL || chdir("/") != 0 || bfc_create(256, &options) != BFC_OK) return 1;
  load = (void *(*)(size_t))dlsym(library, "load_weights");
  return load == NULL || load(100000) == NULL;
}
"""


def test_a_library_that_was_opened_by_a_relative_path_has_functions(tmp_path):
    """Also after the program has gone to another folder."""
    flags = [f"-I{programs.PREFIX}/include", f"-L{programs.LIB}", f"-Wl,-rpath,{programs.LIB}"]
    for name, text, options in ("libloader.so", LIBRARY, ["-shared", "-fPIC"]), ("program", OPENS, []):
        (tmp_path / f"{name}.c").write_text(text)
        programs.run(programs.compiler("c"), "-O2", *flags, *options, tmp_path / f"{name}.c", "-o", tmp_path / name, "-lbfc", "-ldl")
    file = tmp_path / "history"
    programs.run("sh", "-c", f"cd {tmp_path} && exec ./program", env=programs.environment(BFC_HISTORY_FILE=file, BFC_HISTORY_STACKS="native"))
    _, [stack] = stacks_at_the_peak(file)
    assert [frame["function"] for frame in stack["frames"][:2]] == ["load_weights", "main"]


def test_a_stripped_program_has_the_module_and_the_offset(tmp_path):
    _, stacks = stacks_at_the_peak(recorded(tmp_path, compiled(tmp_path, "-O2", "-s")))
    assert all(frame["function"].startswith("program+0x") for frame in stacks[0]["frames"][:2])


def test_a_program_that_was_built_anew_is_not_read(tmp_path):
    file = recorded(tmp_path, compiled(tmp_path, "-g", "-O2"))
    (tmp_path / "program").unlink()
    compiled(tmp_path, "-g", "-O0")
    _, stacks = stacks_at_the_peak(file)
    assert all(frame["function"].startswith("program+0x") for frame in stacks[0]["frames"][:2])


def script(folder, stacks):
    file = folder / "history"
    source = SCRIPT.replace("FILE", repr(str(file))).replace("STACKS", repr(stacks))
    (folder / "script.py").write_text(source)
    python_path = programs.ROOT / "python/src"
    programs.run(sys.executable, folder / "script.py", env=programs.environment(PYTHONPATH=python_path, BFC_LIBRARY=programs.LIB))
    return source.splitlines(), stacks_at_the_peak(file)[1]


def test_python_s_functions_are_named_without_its_lock(tmp_path):
    # ctypes has released it.
    lines, [twice, once] = script(tmp_path, "python")
    assert (twice["allocations"], once["allocations"]) == (2, 1)
    inner, forward = twice["frames"][:2]
    assert inner["function"] == "inner" and lines[inner["line"] - 1].strip() == "return pool.alloc(1000)"
    assert inner["file"] == str(tmp_path / "script.py")
    assert forward["function"].endswith("vorwärts") and lines[forward["line"] - 1].strip() == "return inner(pool)"
    assert twice["frames"][-1]["function"] == "<module>"
    # The other thread's own.
    functions = [frame["function"] for frame in once["frames"]]
    assert functions[0] == "inner" and functions[-1].endswith("_bootstrap")


def test_both_lead_from_native_code_to_python(tmp_path):
    _, stacks = script(tmp_path, "both")
    functions = [frame["function"] for frame in stacks[0]["frames"]]
    assert "inner" in functions[1:] and not any(name.startswith("_PyEval_") for name in functions)
