"""An allocation and its free by the interface for Rust take no more instructions than through the C ABI."""

import pathlib
import shutil

import callgrind
import programs
import pytest

# The first pairs warm the pool. The next ones, as many, are counted.
PAIRS = 1000


@pytest.fixture(scope="module")
def program():
    """blocks.rs, built as a program that depends on the crate is by default."""
    folder = programs.SCRATCH / "budget/rust"
    (folder / "src").mkdir(parents=True, exist_ok=True)
    dependencies = f'[dependencies]\nlibbfc = {{ path = "{programs.ROOT}", features = ["capi"] }}\n'
    (folder / "Cargo.toml").write_text(f'[package]\nname = "blocks"\nedition = "2024"\n\n{dependencies}\n[workspace]\n')
    shutil.copy(pathlib.Path(__file__).with_name("blocks.rs"), folder / "src/main.rs")
    # The versions of this workspace, so that nothing is fetched.
    shutil.copy(programs.ROOT / "Cargo.lock", folder)
    paths = ["--manifest-path", folder / "Cargo.toml", "--target-dir", folder / "target"]
    programs.check(["cargo", "build", "--release", "--offline", "--quiet", *paths])
    return folder / "target/release/blocks"


def counted(program, way):
    once, twice = (callgrind.total(callgrind.run([program, way, pairs])) for pairs in (PAIRS, 2 * PAIRS))
    return (twice - once) / PAIRS


@pytest.mark.parametrize("rust, c", [("rust", "c"), ("rust_stream", "c_stream")])
def test_a_block_takes_no_more_instructions_than_the_c_abi(program, rust, c):
    by_rust, by_c = counted(program, rust), counted(program, c)
    assert 100 < by_rust <= by_c, f"{by_rust} instructions instead of {by_c}"
