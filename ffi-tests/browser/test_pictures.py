"""The pictures of the page in README.md and docs/history.md. They are of train.py:

BFC_HISTORY_FILE=/tmp/train.history cargo xtask simulate --pytorch ffi-tests/browser/train.py
LIBBFC_PICTURES_OF=/tmp/train.history cargo xtask test --suite browser -- -k pictures
"""

import os
import shutil

import pytest

import programs
from conftest import page_of

# The files in docs/, and the first and the last section in each.
PICTURES = {"report-timeline.png": ("timeline", "addresses"), "report-memory.png": ("holders", "fragmentation")}
MOST_BYTES = 200_000


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_small(name, training, opened, tmp_path):
    chosen = os.environ.get("LIBBFC_PICTURES_OF")
    history = tmp_path / "pictured.history"
    shutil.copy(chosen or training, history)
    page = opened(page_of(history), color_scheme="light").ready()
    page.set_viewport_size({"width": 1100, "height": 2600})
    page.wait_for_timeout(300)
    first, last = (page.locator(f"#{section}").bounding_box() for section in PICTURES[name])
    clip = {"x": first["x"] - 8, "y": first["y"] - 8, "width": first["width"] + 16, "height": last["y"] + last["height"] - first["y"] + 16}
    picture = page.screenshot(clip=clip)
    assert picture.startswith(b"\x89PNG") and len(picture) < MOST_BYTES
    if chosen:
        (programs.ROOT / "docs" / name).write_bytes(picture)


@pytest.mark.parametrize("name", PICTURES)
def test_pictures_are_shown(name):
    assert (programs.ROOT / "docs" / name).stat().st_size < MOST_BYTES
    assert f"docs/{name}" in (programs.ROOT / "README.md").read_text()
    assert f"({name})" in (programs.ROOT / "docs/history.md").read_text()
