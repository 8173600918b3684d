/* Handles for other processes: what a second process, preloaded too, sees through one is what the first meant by it, or
 * there is no handle. `receiver` is that second process. */
#include "test.h"

#include <fcntl.h>
#include <spawn.h>

extern char **environ;

/* One question to the receiver: the handle of memory that is filled with a byte. */
typedef struct Offer {
  cudaIpcMemHandle_t handle;
  size_t offset, bytes;
  unsigned char filled, then;
} Offer;

static int to_receiver = -1, from_receiver = -1;
static pid_t receiver_process;

static void send_all(int file, const void *what, size_t bytes) { IS(write(file, what, bytes), bytes); }

static void receive_all(int file, void *what, size_t bytes) {
  for (size_t had = 0; had < bytes;) {
    const ssize_t more = read(file, (char *)what + had, bytes - had);
    CHECK(more > 0);
    had += (size_t)more;
  }
}

/* Reads offers, looks whether what it sees is what was meant, and writes into it. */
static void receiver(void) {
  Offer offer;
  const int in = atoi(getenv("RECEIVER_IN")), out = atoi(getenv("RECEIVER_OUT"));
  /* It has a pool of its own, and takes nothing of it for the other's. */
  char *own = pooled(1000);
  while (read(in, &offer, sizeof offer) == sizeof offer) {
    void *opened = NULL;
    Address base = 0;
    size_t bytes = 0;
    int code = cudaIpcOpenMemHandle(&opened, offer.handle, cudaIpcMemLazyEnablePeerAccess);
    if (!code) {
      unsigned char *seen = malloc(offer.bytes);
      CHECK(seen && !is_pooled(opened));
      OK(cuMemGetAddressRange_v2(&base, &bytes, (Address)opened));
      CHECK(base == (Address)opened && bytes >= offer.offset + offer.bytes);
      opened = (char *)opened + offer.offset;
      OK(cudaMemcpy(seen, opened, offer.bytes, cudaMemcpyDeviceToHost));
      for (size_t at = 0; at < offer.bytes; at++) {
        if (seen[at] != offer.filled) code = -1;
      }
      OK(cudaMemset(opened, offer.then, offer.bytes));
      /* It is not this process's to free, and so is nothing inside. */
      IS(cudaFree(opened), INVALID_VALUE);
      OK(cudaIpcCloseMemHandle((void *)base));
      free(seen);
    }
    send_all(out, &code, sizeof code);
  }
  OK(cudaFree(own));
}

static void start_receiver(void) {
  int down[2], up[2];
  char in[16], out[16];
  char *arguments[] = {"ipc", "receiver", NULL};
  OK(pipe(down));
  OK(pipe(up));
  snprintf(in, sizeof in, "%d", down[0]);
  snprintf(out, sizeof out, "%d", up[1]);
  setenv("RECEIVER_IN", in, 1);
  setenv("RECEIVER_OUT", out, 1);
  fcntl(down[1], F_SETFD, FD_CLOEXEC);
  fcntl(up[0], F_SETFD, FD_CLOEXEC);
  OK(posix_spawn(&receiver_process, "/proc/self/exe", NULL, NULL, arguments, environ));
  close(down[0]);
  close(up[1]);
  to_receiver = down[1];
  from_receiver = up[0];
}

static void end_receiver(void) {
  int status = 0;
  close(to_receiver);
  IS(waitpid(receiver_process, &status, 0), receiver_process);
  IS(status, 0);
}

/* Offers memory by the handle of an address at or before it, and has the receiver see all of it, and write. */
static void shared_from(char *base, char *memory, size_t bytes, unsigned char fill) {
  Offer offer = {.offset = (size_t)(memory - base), .bytes = bytes, .filled = fill, .then = (unsigned char)(fill + 1)};
  int code = -2;
  OK(cudaMemset(memory, fill, bytes));
  OK(cudaIpcGetMemHandle(&offer.handle, base));
  send_all(to_receiver, &offer, sizeof offer);
  receive_all(from_receiver, &code, sizeof code);
  IS(code, 0);
  IS((unsigned char)memory[0], (unsigned char)(fill + 1));
  IS((unsigned char)memory[bytes - 1], (unsigned char)(fill + 1));
}

static void shared(char *memory, size_t bytes, unsigned char fill) { shared_from(memory, memory, bytes, fill); }

/* It has no handle, and nothing is written where it would be. */
static void refused(char *memory) {
  cudaIpcMemHandle_t handle;
  memset(&handle, 0x5a, sizeof handle);
  IS(cudaIpcGetMemHandle(&handle, memory), INVALID_VALUE);
  IS(cudaGetLastError(), INVALID_VALUE);
  for (size_t at = 0; at < sizeof handle; at++) IS(handle.reserved[at], 0x5a);
}

static int has_handle(const char *memory) {
  unsigned is_there = 0;
  OK(cuPointerGetAttribute(&is_there, 10, (Address)memory));
  return (int)is_there;
}

/* Of what lies at the beginning of its region. */
static void beginning(void) {
  start_receiver();
  char *memory = pooled(500 * KIB), *second = pooled(500 * KIB);
  IS(has_handle(memory), 1);
  shared(memory, 500 * KIB, 0x10);
  shared(memory, 500 * KIB, 0x20);
  IS(has_handle(second), 0);
  refused(second);
  refused(second + 512);
  end_receiver();
}

/* Of hundreds of allocations each is either right or refused: never another's. */
static void never_another(void) {
  enum { COUNT = 400 };
  char *memory[COUNT];
  size_t bytes[COUNT];
  int with = 0, without = 0;
  uint64_t random = 99;
  start_receiver();
  for (int each = 0; each < COUNT; each++) {
    random = random * 6364136223846793005u + 1442695040888963407u;
    bytes[each] = 1 + (random >> 33) % (each % 3 ? 5000 : 3 * MIB);
    memory[each] = pooled(bytes[each]);
    OK(cudaMemset(memory[each], each % 251, bytes[each]));
  }
  for (int each = 0; each < COUNT; each += 3) OK(cudaFree(memory[each]));
  for (int each = 0; each < COUNT; each++) {
    if (each % 3 == 0) {
      refused(memory[each]);
    } else if (has_handle(memory[each])) {
      shared(memory[each], bytes[each], (unsigned char)(each % 251));
      with++;
    } else {
      refused(memory[each]);
      without++;
    }
  }
  CHECK(without > 100);
  OK(cudaDeviceSynchronize());
  for (int each = 0; each < COUNT; each++) {
    char *again = pooled(bytes[each]);
    if (has_handle(again)) {
      shared(again, bytes[each], (unsigned char)(each % 251));
      with++;
    } else {
      refused(again);
    }
  }
  CHECK(with > 0);
  end_receiver();
}

/* BFC_PRELOAD_MAX=1M: the larger ones are the driver's, and their handles are as ever, also of an address inside. */
static void larger(void) {
  start_receiver();
  for (int each = 1; each < 20; each++) {
    const size_t bytes = MIB + (size_t)each * 77777;
    char *small = pooled(1000), *memory = allocated(bytes);
    CHECK(!is_pooled(memory) && is_pooled(small));
    IS(has_handle(memory), 1);
    shared(memory, bytes, (unsigned char)each);
    cudaIpcMemHandle_t handle;
    OK(cudaIpcGetMemHandle(&handle, memory + 512));
    if (each % 2) OK(cudaFree(memory));
  }
  end_receiver();
}

/* Where an allocation begins, as vLLM and SGLang ask for it (the attribute) and NCCL (the range). */
static char *beginning_of(char *memory, int by_attribute) {
  Address base = 0;
  if (by_attribute) OK(cuPointerGetAttribute(&base, 11, (Address)memory));
  else OK(cuMemGetAddressRange_v2(&base, NULL, (Address)memory));
  CHECK(base <= (Address)memory);
  return (char *)base;
}

/* BFC_PRELOAD_IPC=1: clients that share an allocation's beginning and an offset are right, with what is pooled too and
 * after what begins the region is freed; and so are those that share what cudaMalloc gave, of 1 MiB and more. A smaller
 * pointer that begins no region is refused. */
static void by_offset(void) {
  enum { COUNT = 60 };
  char *memory[COUNT];
  int inside = 0;
  start_receiver();
  for (int each = 0; each < COUNT; each++) {
    memory[each] = pooled(1000 + 9000 * (size_t)each);
    OK(cudaMemset(memory[each], 0x77, 1000 + 9000 * (size_t)each));
  }
  for (int each = 0; each < COUNT; each++) {
    const size_t bytes = 1000 + 9000 * (size_t)each;
    char *base = beginning_of(memory[each], each % 2);
    IS(has_handle(base), 1);
    shared_from(base, memory[each], bytes, (unsigned char)each);
    shared_from(base, memory[each] + bytes / 2, bytes - bytes / 2, (unsigned char)(each + 100));
    if (base != memory[each]) {
      refused(memory[each]);
      inside++;
    } else {
      OK(cudaFree(memory[each]));
      memory[each] = NULL;
    }
  }
  CHECK(inside > COUNT / 2);
  OK(cudaDeviceSynchronize());
  for (int each = 0; each < COUNT; each++) {
    if (memory[each]) shared_from(beginning_of(memory[each], 1), memory[each], 1000, (unsigned char)each);
  }
  for (int each = 0; each < 5; each++) {
    const size_t bytes = MIB + (size_t)each * 77777;
    char *large = allocated(bytes);
    CHECK(!is_pooled(large));
    shared(large, bytes, (unsigned char)each);
    shared_from(beginning_of(large + 5000, each % 2), large + 5000, 1000, (unsigned char)(each + 50));
  }
  end_receiver();
}

/* Without it the same clients get handles that are right, or none. */
static void by_offset_as_usual(void) {
  enum { COUNT = 60 };
  int refusals = 0;
  start_receiver();
  for (int each = 0; each < COUNT; each++) {
    const size_t bytes = 1000 + 90000 * (size_t)each;
    char *memory = pooled(bytes), *base = beginning_of(memory + bytes / 2, each % 2);
    CHECK(base == memory);
    OK(cudaMemset(memory, 0x77, bytes));
    if (has_handle(base)) {
      shared_from(base, memory + bytes / 2, bytes - bytes / 2, (unsigned char)each);
    } else {
      refused(base);
      refusals++;
    }
  }
  CHECK(refusals > 0 && refusals < COUNT);
  end_receiver();
}

/* NCCL registers device memory with a network by a DMA-BUF of its pages: "Users must ensure the dptr and size are aligned to
 * the host page size" (cuMemGetHandleForAddressRange). Of 1 MiB and more that is so, wherever it lies. */
static void dma_buf(void) {
  enum { COUNT = 300, DMA_BUF_FD = 1 };
  char *memory[COUNT] = {NULL};
  size_t bytes[COUNT];
  uint64_t random = 7;
  for (int round = 0; round < 4 * COUNT; round++) {
    const int each = round % COUNT;
    random = random * 6364136223846793005u + 1442695040888963407u;
    if (memory[each] && random >> 62 != 0) continue;
    if (memory[each]) OK(cudaFree(memory[each]));
    bytes[each] = 1 + (random >> 33) % (each % 3 ? 50000 : 3 * MIB);
    if (each % 7 == 0) bytes[each] = (size_t)1 << (20 + each % 4);
    memory[each] = pooled(bytes[each]);
    IS((uintptr_t)memory[each] % (bytes[each] >= MIB ? 64 * KIB : 512), 0);
    if (bytes[each] < MIB) continue;
    int file = -1;
    OK(cuMemGetHandleForAddressRange(&file, (Address)memory[each], bytes[each] / 4096 * 4096, DMA_BUF_FD, 0));
    CHECK(file >= 0);
    OK(close(file));
  }
  no_misuse();
}

static const Case CASES[] = {
    {"beginning", beginning, NULL},
    {"never_another", never_another, NULL},
    {"larger", larger, "BFC_PRELOAD_MAX=1M"},
    {"by_offset", by_offset, "BFC_PRELOAD_IPC=1"},
    {"by_offset_async", by_offset, "BFC_PRELOAD_IPC=1 BFC_PRELOAD_ASYNC=1"},
    {"by_offset_as_usual", by_offset_as_usual, NULL},
    {"dma_buf", dma_buf, NULL},
    {"never_another_async", never_another, "BFC_PRELOAD_ASYNC=1"},
    {"dma_buf_async", dma_buf, "BFC_PRELOAD_ASYNC=1"},
};

int main(int argc, char **argv) {
  if (argc == 2 && strcmp(argv[1], "receiver") == 0) {
    alarm(HANG_SECONDS);
    receiver();
    return 0;
  }
  return RUN_CASE(CASES, argc, argv);
}
