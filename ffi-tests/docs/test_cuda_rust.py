"""examples/cuda-rust, which docs/rust.md names, on the simulated driver: it has no race, and without what orders its work it has
some."""

import re
import shutil
import subprocess

import pytest

import pages

EXAMPLE = pages.ROOT / "examples/cuda-rust"
EXPECTED = r"""double-buffered: 6 batches
cuda-rust: no memory for 100\.00 MiB .*, and the request is larger than the limit of 64\.00 MiB
a workspace of [1-9]\d* MiB
20 allocations, 20 frees, 1 failures
0 bytes in use, \d+ at the peak
"""
# The lines of the example that order its work.
WAIT = "stream.context().record_err(stream.wait(&self.last_use));"
RECORD = 'self.memory.record_use(self.runtime.memory_of(stream)).expect("enough host memory");'

# Builds of two processes would replace each other's program.
pytestmark = pytest.mark.xdist_group("cuda-rust")


@pytest.fixture(scope="module")
def built(run):
    def built(folder):
        target = pages.SCRATCH / "cuda-rust"
        variables = {"CARGO_INCREMENTAL": "0", "CARGO_PROFILE_DEV_DEBUG": "false"}
        run("cargo", "build", "--quiet", "--locked", "--target-dir", target, env=variables, cwd=folder)
        return target / "debug/cuda-rust"

    return built


@pytest.fixture
def without(tmp_path):
    """A copy of the example without one of its lines."""

    def without(line):
        shutil.copytree(EXAMPLE, tmp_path, ignore=shutil.ignore_patterns("target"), dirs_exist_ok=True)
        manifest, source = tmp_path / "Cargo.toml", tmp_path / "src/runtime.rs"
        manifest.write_text(manifest.read_text().replace('path = "../.."', f'path = "{pages.ROOT}"'))
        text = source.read_text()
        assert text.count(line) == 1, f"the example has no {line}"
        source.write_text(text.replace(line, ""))
        return tmp_path

    return without


# Held streams do their work only when a call waits for it, so memory that is reused too early has wrong contents.
held = pytest.mark.parametrize("held", ["0", "1"])


@held
def test_the_example(built, run, simulation_folder, held):
    variables = {"LD_LIBRARY_PATH": str(simulation_folder), "SIMCUDA_HOLD_NEW": held}
    printed = run(built(EXAMPLE), env=variables | {"SIMCUDA_RACES": "2", "SIMCUDA_STALE_ABORTS": "1"})
    assert re.fullmatch(EXPECTED, printed), printed


def test_a_driver_behind_the_simulated_one_is_not_used(built, run, simulation_folder, tmp_path):
    # cudarc looks for libcuda.so first, which a real driver has as well. This one would lack every function.
    shutil.copy(simulation_folder / "libcudart.so.12", tmp_path / "libcuda.so")
    run(built(EXAMPLE), env={"LD_LIBRARY_PATH": f"{simulation_folder}:{tmp_path}"})


@held
@pytest.mark.parametrize(
    "line, race",
    [
        (RECORD, r"HtoDAsync\S* .* writes .* the copy of cuMemcpyDtoDAsync"),
        (WAIT, r"DtoDAsync\S* .* reads .* the copy of cuMemcpyHtoDAsync"),
    ],
    ids=["record_use", "wait"],
)
def test_without_what_orders_its_work_it_has_races(built, without, plain, simulation_folder, held, line, race):
    variables = {"LD_LIBRARY_PATH": str(simulation_folder), "SIMCUDA_HOLD_NEW": held, "SIMCUDA_RACES": "1"}
    # Its results may be wrong as well, so it may fail.
    done = subprocess.run([built(without(line))], env=plain | variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    assert re.search(f"simcuda: race: the copy of cuMemcpy{race}", done.stdout), done.stdout
