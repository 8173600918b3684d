"""Functions of ours have the types that NVIDIA's headers declare: those of the simulated runtime, and the handlers."""

import pathlib

import pytest

from headers import HEADERS, PACKAGES, ROOT, compile
from pages import Page

HERE = pathlib.Path(__file__).parent
# The headers of 12 want some of nvcc's, which are in another wheel; those of 13 will do.
FOLDERS = [PACKAGES / "cuquantum/include", PACKAGES / "nvidia/nvjpeg/include", *HEADERS.values()]
PAGE = Page("handlers")


@pytest.mark.parametrize("major", HEADERS)
def test_the_simulated_runtime(major):
    sources = (ROOT / "crates/simcuda/cudart").glob("*.c")
    others = [word for folder in HEADERS.values() for word in ("-idirafter", folder)]
    flags = ["-std=c11", "-Wall", "-Wextra", "-Werror", f"-DCUDART_MAJOR={major}", "-DWITH_NVIDIA_HEADERS"]
    assert not compile(*flags, "-isystem", HEADERS[major], *others, *sources)


def with_handlers(*arguments):
    folders = [word for folder in FOLDERS for word in ("-isystem", folder)]
    return compile("-std=gnu11", "-Wall", "-Werror", "-I", ROOT / "include", *folders, *arguments)


def test_the_handlers_of_cutensornet_and_nvjpeg():
    assert not with_handlers(HERE / "handlers.c")


def test_found_another_type_of_a_handler():
    assert "static assertion failed" in with_handlers(HERE / "handlers.c", "-DFAULT")


@pytest.mark.parametrize("block", ["c-1", "c-2"])
def test_the_page_compiles(block):
    assert not with_handlers(PAGE.file(block))
    PAGE.ran(block)
