"""The class that docs/framework.md shows before and after: with both an engine runs on the simulated driver."""

import pytest

from pages import Page

PAGE = Page("framework")
# The engine calls both classes alike. It tells whether a free waits for the work before it.
ENGINE = """
#include <cstdio>

static bool is_done = false;
static void work(void *) { is_done = true; }

int main() {
  DeviceAllocator memory(0);
  cudaStream_t stream;
  if (cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking) != cudaSuccess) return 1;
  void *first = memory.alloc(1 << 20, stream);
  if (cudaLaunchHostFunc(stream, work, nullptr) != cudaSuccess || is_done) return 1;
  memory.free(first, stream);
  std::puts(is_done ? "the free has waited" : "the free has not waited");
  void *second = memory.alloc(1 << 20, stream);
#if AFTER
  if (second != first || memory.alloc_if_held(64 << 20, stream) != nullptr) return 1;
  memory.also_used_on(second, stream);
#endif
  memory.free(second, stream);
  try {
    memory.alloc(std::size_t(1) << 40, stream);
    return 1;
  } catch (const std::bad_alloc &error) {
    std::puts(error.what());
  }
  if (cudaStreamSynchronize(stream) != cudaSuccess) return 1;
#if AFTER
  std::puts(memory.report().c_str());
  if (memory.trim() == 0) return 1;
  memory.forget(stream);
#endif
  return cudaStreamDestroy(stream) != cudaSuccess;
}
"""


@pytest.fixture
def engine(compiled, run, root, simulation_folder, tmp_path):
    def engine(block):
        (tmp_path / "cuda_runtime.h").write_text(f'#include "{root}/crates/simcuda/cudart/cudart.h"\n')
        source = tmp_path / "engine.cpp"
        source.write_text(f"#include <cuda_runtime.h>\n{PAGE.text(block)}{ENGINE}")
        runtime = [simulation_folder / "libcudart.so.12", f"-DAFTER={int(block == 'cpp-2')}"]
        program = compiled(source, tmp_path / "engine", "-I", tmp_path, *runtime)
        variables = {"LD_LIBRARY_PATH": str(simulation_folder), "SIMCUDA_HOLD_NEW": "1", "SIMCUDA_STALE_ABORTS": "1"}
        return run(program, env=variables).splitlines()

    return engine


def test_before(engine):
    assert engine("cpp-1") == ["the free has waited", "std::bad_alloc"]


def test_after(engine):
    waited, message, report, *_ = engine("cpp-2")
    assert waited == "the free has not waited"
    assert "my engine: no memory for 1.00 TiB" in message and report.startswith('memory of allocator "my engine" on device 0 (cuda_vmm')
