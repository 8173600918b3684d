/* Which requests are pooled, how much memory there is, and what happens where there is none. */
#include "held.h"

/* BFC_PRELOAD_MIN and _MAX: the others are the driver's. */
static void sizes(void) {
  CHECK(!is_pooled(allocated(1)));
  CHECK(!is_pooled(allocated(999)));
  CHECK(is_pooled(allocated(1000)));
  CHECK(is_pooled(allocated(MIB)));
  CHECK(!is_pooled(allocated(MIB + 1)));
  char *large = allocated(5 * MIB);
  CHECK(!is_pooled(large));
  OK(cudaFree(large));
  IS(cudaFree(large), INVALID_VALUE);
}

static void all_sizes(void) {
  CHECK(is_pooled(allocated(1)));
  CHECK(is_pooled(allocated(1000 * MIB + 1)));
}

/* BFC_MEMORY_LIMIT: more is out of memory, though the device has it. */
static void limit(void) {
  void *memory[200];
  const size_t there = free_bytes();
  size_t total = 0;
  int count = 0, code = 0;
  IS(there, 100 * MIB);
  OK(cudaMemGetInfo(NULL, &total));
  IS(total, (size_t)4096 * MIB);
  while (count < 200 && (code = cudaMalloc(&memory[count], MIB)) == 0) {
    count++;
    IS(free_bytes(), there - (size_t)count * MIB);
  }
  IS(code, OUT_OF_MEMORY);
  IS(cudaGetLastError(), OUT_OF_MEMORY);
  CHECK(count >= 99 && count <= 100);
  CHECK(simcuda_used(0) <= 100 * MIB);
  void *more = (void *)0x77;
  IS(cudaMalloc(&more, 50 * MIB), OUT_OF_MEMORY);
  for (int each = 0; each < count; each++) OK(cudaFree(memory[each]));
  IS(free_bytes(), there);
  char *all = pooled(100 * MIB);
  IS(free_bytes(), 0);
  OK(cudaFree(all));
  IS(cudaMalloc(&more, 100 * MIB + 1), OUT_OF_MEMORY);
  IS(cudaMalloc(&more, 1000 * MIB), OUT_OF_MEMORY);
  pooled(100 * MIB);
}

/* BFC_MEMORY_FRACTION=0.25 of 4 GiB. */
static void fraction(void) {
  void *more = NULL;
  const size_t there = free_bytes();
  CHECK(there <= 1024 * MIB && there >= 1000 * MIB);
  pooled(900 * MIB);
  IS(cudaMalloc(&more, 200 * MIB), OUT_OF_MEMORY);
  OK(cudaSetDevice(1));
  pooled(900 * MIB);
  IS(cudaMalloc(&more, 200 * MIB), OUT_OF_MEMORY);
}

/* What libbfc takes for no limit is none: all of the device's memory may be had, in one piece or by the driver's own. */
static void no_limit(void) {
  IS(free_bytes(), 4096 * MIB);
  char *half = pooled(2048 * MIB);
  OK(cudaFree(half));
  OK(cudaDeviceSynchronize());
  allocated(4096 * MIB);
}

/* BFC_BACKEND: memory is mapped by granules, whichever way the word is written, and else it is not. */
static void granules(void) {
  pooled(1000);
  CHECK(simcuda_calls("cuMemCreate") > 0);
  IS(simcuda_calls("cuMemAlloc"), 0);
}

static void regions(void) {
  pooled(1000);
  IS(simcuda_calls("cuMemCreate"), 0);
}

/* Each device has its own. */
static void limit_of_each(void) {
  void *more = NULL;
  for (int device = 0; device < 2; device++) {
    OK(cudaSetDevice(device));
    pooled(90 * MIB);
    IS(cudaMalloc(&more, 20 * MIB), OUT_OF_MEMORY);
  }
}

/* The driver needs the pool's unused memory: the pool gives it back, including memory that still waits for a
 * synchronization. */
static void held_all(cudaStream_t stream) {
  char *memory[60];
  for (int each = 0; each < 60; each++) {
    memory[each] = pooled(64 * MIB);
    use(stream, memory[each], 4096, 1 + (uint64_t)each);
  }
  for (int each = 0; each < 60; each++) OK(cudaFree(memory[each]));
  CHECK(simcuda_used(0) >= 60 * 64 * MIB);
}

static void others(void) {
  const size_t much = (size_t)3500 * MIB;
  cudaStream_t stream = held_stream();
  const MemoryKind kind = MEMORY_OF(0);
  void *memory = NULL;
  size_t pitch = 0;
  uint64_t handle = 0;
  Address address = 0;
  held_all(stream);
  OK(cudaMallocPitch(&memory, &pitch, MIB, 3500));
  use_at_once(memory, MIB, 7);
  OK(cudaFree(memory));
  held_all(stream);
  OK(cudaMallocManaged(&memory, much, cudaMemAttachGlobal));
  OK(cudaFree(memory));
  held_all(stream);
  OK(cuMemCreate(&handle, much, &kind, 0));
  OK(cuMemRelease(handle));
  held_all(stream);
  OK(cudaMallocAsync(&memory, much, NULL));
  OK(cudaFreeAsync(memory, NULL));
  OK(cudaDeviceSynchronize());
  held_all(stream);
  OK(cuMemAllocAsync_ptsz(&address, much, NULL));
  OK(cuMemFreeAsync_ptsz(address, NULL));
  OK(cudaDeviceSynchronize());
  /* And cudaMalloc of one piece. */
  held_all(stream);
  char *large = allocated(much);
  use_at_once(large, MIB, 8);
  OK(cudaFree(large));
  no_misuse();
}

/* It was not in vain only: where there is nothing to give back the driver is asked once. */
static void in_vain(void) {
  size_t pitch = 0;
  void *memory = NULL;
  pooled(4000 * MIB);
  simcuda_clear_log();
  IS(cudaMallocPitch(&memory, &pitch, MIB, 1000), OUT_OF_MEMORY);
  IS(simcuda_calls("cuMemAllocPitch"), 1);
  IS(cudaMallocManaged(&memory, 1000 * MIB, cudaMemAttachGlobal), OUT_OF_MEMORY);
  IS(simcuda_calls("cuMemAllocManaged"), 1);
}

/* Memory that others have taken is not the pool's: cudaMalloc says so, and goes on when it is there again. */
static void taken_by_others(void) {
  void *managed = NULL, *memory = NULL;
  OK(cudaMallocManaged(&managed, 4000 * MIB, cudaMemAttachGlobal));
  IS(cudaMalloc(&memory, 200 * MIB), OUT_OF_MEMORY);
  pooled(50 * MIB);
  OK(cudaFree(managed));
  pooled(200 * MIB);
  pooled(3000 * MIB);
}

/* Out of memory many times: nothing is lost by it. */
static void again_and_again(void) {
  void *memory = NULL;
  for (int each = 0; each < 200; each++) {
    IS(cudaMalloc(&memory, 5000 * MIB), OUT_OF_MEMORY);
    OK(cudaFree(pooled(10 * MIB)));
  }
  OK(cudaDeviceSynchronize());
  OK(cudaMalloc(&memory, 4096 * MIB));
}

/* A large request begins at a multiple of 64 KiB, but for one that finds no room in a full pool then. */
static void odd_place(void) {
  char *small = pooled(512), *large = pooled(8 * MIB);
  CHECK(large != small + 512);
  IS((uintptr_t)large % (64 * KIB), 0);
  OK(cudaFree(large));
  CHECK(pooled(16 * MIB - 512) == small + 512);
}

/* A request of 32 MiB after some frees, with room to grow: whether it waits for the device, where the driver cannot be asked
 * about a context's work. */
static void after_frees(int count, size_t bytes, int waits) {
  char *memory[128];
  use(held_stream(), pooled(1), 1, 1);
  for (int each = 0; each < count; each++) memory[each] = pooled(bytes);
  for (int each = 0; each < count; each++) OK(cudaFree(memory[each]));
  simcuda_clear_log();
  pooled(32 * MIB);
  IS(simcuda_calls("cuCtxSynchronize") > 0, waits);
  simcuda_release_all();
}

static void few_frees_of_little(void) { after_frees(127, 512 * KIB, 0); }
static void frees_of_little(void) { after_frees(128, 512 * KIB, 1); }
static void frees_of_next_to_nothing(void) { after_frees(128, 128 * KIB, 0); }
static void few_frees_of_less_than_256_mib(void) { after_frees(14, 16 * MIB, 0); }
static void few_frees_of_256_mib(void) { after_frees(16, 16 * MIB, 1); }

/* Where it can be asked, the pool grows while there is work, and does not where there is none. */
static void frees_with_work(void) {
  char *memory[128];
  cudaStream_t stream = held_stream();
  for (int each = 0; each < 128; each++) memory[each] = pooled(4 * MIB);
  use(stream, memory[0], MIB, 1);
  for (int each = 0; each < 128; each++) OK(cudaFree(memory[each]));
  const uint64_t before = synchronizations(), used = simcuda_used(0);
  char *other = pooled(32 * MIB);
  CHECK(simcuda_used(0) > used && simcuda_pending(stream) == 2);
  use_at_once(other, MIB, 2);
  OK(simcuda_release(stream));
  for (int each = 0; each < 128; each++) pooled(4 * MIB);
  IS(synchronizations(), before);
  IS(simcuda_used(0), used + 32 * MIB);
  no_misuse();
}

/* A small request takes no part of the place of the next large one, for which the limit has no second. */
static void small_beside_large(void) {
  for (int round = 0; round < 4; round++) {
    OK(cudaFree(pooled(400 * MIB)));
    pooled(512);
  }
  CHECK(simcuda_used(0) <= 402 * MIB);
  no_misuse();
}

static const Case CASES[] = {
    {"sizes", sizes, "BFC_PRELOAD_MIN=1000 BFC_PRELOAD_MAX=1M"},
    {"all_sizes", all_sizes, NULL},
    {"limit", limit, "BFC_MEMORY_LIMIT=100M"},
    {"limit_async", limit, "BFC_MEMORY_LIMIT=100M BFC_PRELOAD_ASYNC=1"},
    {"fraction", fraction, "BFC_MEMORY_FRACTION=0.25"},
    {"limit_of_nothing", no_limit, "BFC_MEMORY_LIMIT=0"},
    {"limit_malformed", no_limit, "BFC_MEMORY_LIMIT=lots"},
    {"limit_too_large", no_limit, "BFC_MEMORY_LIMIT=20000000T"},
    {"fraction_of_nothing", no_limit, "BFC_MEMORY_FRACTION=0"},
    {"fraction_malformed", no_limit, "BFC_MEMORY_FRACTION=2"},
    {"limit_in_other_words", limit, "BFC_MEMORY_LIMIT=104857600i"},
    {"granules", granules, "BFC_BACKEND=cuda_vmm"},
    {"granules_in_other_words", granules, "BFC_BACKEND=Cuda-VMM"},
    {"regions", regions, "BFC_BACKEND=cuda_vmn"},
    {"regions_of_the_host", regions, "BFC_BACKEND=host"},
    {"regions_of_the_host_vmm", regions, "BFC_BACKEND=host_vmm"},
    {"limit_of_each", limit_of_each, "BFC_MEMORY_LIMIT=100M"},
    {"odd_place", odd_place, "BFC_MEMORY_LIMIT=16M BFC_FORCE_ALLOW_GROWTH=0"},
    {"few_frees_of_little", few_frees_of_little, WITHOUT_PROBES},
    {"frees_of_little", frees_of_little, WITHOUT_PROBES},
    {"frees_of_next_to_nothing", frees_of_next_to_nothing, WITHOUT_PROBES},
    {"few_frees_of_less_than_256_mib", few_frees_of_less_than_256_mib, WITHOUT_PROBES},
    {"few_frees_of_256_mib", few_frees_of_256_mib, WITHOUT_PROBES},
    {"frees_with_work", frees_with_work, NULL},
    {"small_beside_large", small_beside_large, "BFC_MEMORY_LIMIT=600M"},
    {"small_beside_large_sync", small_beside_large, "BFC_MEMORY_LIMIT=600M BFC_PRELOAD_FREE=sync"},
    {"small_beside_large_async", small_beside_large, "BFC_MEMORY_LIMIT=600M BFC_PRELOAD_ASYNC=1"},
    {"others", others, NULL},
    {"in_vain", in_vain, NULL},
    {"taken_by_others", taken_by_others, NULL},
    {"again_and_again", again_and_again, NULL},
};

int main(int argc, char **argv) { return RUN_CASE(CASES, argc, argv); }
