"""The page of an unmodified program: it names no operations, and may have no backtraces."""

import pytest

from conftest import page_of, run_python
from recorded import run_program
from test_use import colors_of_the_map, drawn, open_table

PROGRAM = """
import bfc, time
def weights(pool):
    return [pool.alloc(3 << 20) for _ in range(4)]
def activations(pool):
    return [pool.alloc(1 << 20) for _ in range(9)]
def cache(pool):
    return [pool.alloc(300 << 10) for _ in range(9)]
def main():
    with bfc.history({path!r}, stacks={stacks!r}):
        pool = bfc.Pool("host", limit="64MiB")
        kept = [weights(pool), activations(pool), cache(pool)]
        time.sleep(0.01)
        pool.alloc(256).free()
main()
"""
CASES = [("python", "backtrace", "backtrace, then size"), ("none", "size", "size")]


@pytest.mark.parametrize("stacks, coloring, grouping", CASES)
def test_what_tells_the_chunks_apart_is_shown_first(stacks, coloring, grouping, tmp_path, opened):
    history = tmp_path / "unmodified.history"
    run_python(PROGRAM.format(path=str(history), stacks=stacks))
    page = opened(page_of(history)).ready()
    drawn(page)
    assert (page.input_value("#coloring"), page.input_value("#grouping")) == (coloring, grouping)
    assert "operation" not in page.locator("#coloring option").all_inner_texts()
    # The three places, or sizes, are as many colours, each on a good part of the map and of the flame graph.
    background = page.evaluate(
        "['--free', '--unheld', '--surface'].map((name) => getComputedStyle(document.documentElement).getPropertyValue(name))"
    )
    background = {",".join(str(int(color[at : at + 2], 16)) for at in (1, 3, 5)) for color in background}
    shown = {color for color, count in colors_of_the_map(page).items() if count > 2000} - background
    assert len(shown) >= 3, shown
    blocks = page.evaluate("""[...document.querySelectorAll(".block")].filter((block) => block.getBoundingClientRect().width > 20)
        .map((block) => getComputedStyle(block).backgroundColor)""")
    assert len(set(blocks)) >= 4, blocks
    legend = page.inner_text("#map-legend")
    if stacks == "python":
        assert all(name in legend for name in ("weights", "activations", "cache")), legend
        page.fill("#search", "activations")
        assert page.inner_text("#found") == "9 chunks, the largest of 1.00 MiB"
        open_table(page, "addresses")
        names = page.locator("#addresses td:first-child").all_inner_texts()
        assert len(names) == 9 and all("activations" in name for name in names), names
        assert "(no operation)" not in page.inner_text("body")


def test_equal_backtraces_are_one(tmp_path, opened):
    """A function without line numbers that allocates in several places has several backtraces in the file, with equal frames."""
    history, *_ = run_program(tmp_path, BFC_HISTORY_STACKS="native")
    page = opened(page_of(history)).ready()
    assert page.input_value("#coloring") == "operation"
    page.select_option("#coloring", "backtrace")
    (name,) = page.locator("#map-legend bdi").all_inner_texts()
    assert "main" in name


def test_backtraces_are_named_by_what_tells_them_apart(tmp_path, opened):
    """The innermost frames are those of the interpreter, and equal."""
    history = tmp_path / "both.history"
    run_python(PROGRAM.format(path=str(history), stacks="both"))
    page = opened(page_of(history)).ready()
    names = page.locator("#map-legend bdi").all_inner_texts()
    assert len(set(names)) == len(names) and all(any(name in legend for legend in names) for name in ("weights", "activations", "cache")), (
        names
    )
    assert not any("/" in name for name in names), "the folders would fill the line"
