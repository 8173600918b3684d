/* Memory shared with another process: the handle is the region's, the offset is bfc_address_range's.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#include "gpu.h"

#include <sys/wait.h>
#include <unistd.h>

enum { LAZY_PEER_ACCESS = 1, BYTES = 3 * MIB };

static void all_are(address_t at, unsigned char value) {
  static unsigned char copy[BYTES];
  size_t place;
  CU(cuMemcpyDtoH_v2(copy, at, BYTES));
  for (place = 0; place < BYTES; place++) CHECK(copy[place] == value);
}

void ipc(void) {
  char text[2 * sizeof(ipc_handle) + 1], place[32];
  char *arguments[] = {(char *)"bfc-gpu", (char *)"ipc-other", text, place, NULL};
  void *chunk, *region;
  size_t chunk_bytes, region_bytes, at;
  ipc_handle handle;
  address_t address;
  int status = 0;
  create(BFC_BACKEND_CUDA, 64 * (uint64_t)MIB);
  get(100 * KIB);
  address = get(BYTES);
  get(256);
  CU(cuMemsetD8_v2(address, 1, BYTES));
  CU(cuCtxSynchronize());
  OK(bfc_address_range(DEVICE, (void *)(address + 5), &chunk, &chunk_bytes, &region, &region_bytes));
  CHECK((address_t)chunk == address && region_bytes > BYTES);
  CU(cuIpcGetMemHandle(&handle, (address_t)region));
  for (at = 0; at < sizeof(handle); at++) sprintf(text + 2 * at, "%02x", (unsigned char)handle.bytes[at]);
  snprintf(place, sizeof(place), "%llu", (unsigned long long)(address - (address_t)region));
  const pid_t child = fork();
  if (child == 0) {
    execv("/proc/self/exe", arguments);
    _exit(1);
  }
  CHECK(child > 0 && waitpid(child, &status, 0) == child);
  CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
  all_are(address, 2);
  OK(bfc_check(DEVICE));
  OK(bfc_destroy_forced(DEVICE));
}

/* The other process: it reads what is there and writes something else. */
int ipc_other(int argc, char **argv) {
  ipc_handle handle;
  address_t base = 0, address;
  size_t at;
  CHECK(argc == 4 && strlen(argv[2]) == 2 * sizeof(handle));
  for (at = 0; at < sizeof(handle); at++) {
    unsigned byte = 0;
    CHECK(sscanf(argv[2] + 2 * at, "%2x", &byte) == 1);
    handle.bytes[at] = (char)byte;
  }
  CHECK(open_driver() == NULL);
  enter_device();
  CU(cuIpcOpenMemHandle_v2(&base, handle, LAZY_PEER_ACCESS));
  address = base + strtoull(argv[3], NULL, 10);
  all_are(address, 1);
  CU(cuMemsetD8_v2(address, 2, BYTES));
  CU(cuCtxSynchronize());
  CU(cuIpcCloseMemHandle(base));
  return 0;
}
