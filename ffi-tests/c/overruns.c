/* BFC_DEBUG=guard: the allocation whose bounds were exceeded is named, and no other.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#include "check.h"

enum { HOST = 256, MIB = 1 << 20 };

static char heard[2048];
static int times, level_heard;

/* It may use the allocator that the message is about. */
static void listen(void *user_data, int32_t level, const char *message) {
  void *ptr = NULL;
  CHECK(user_data == heard);
  times++;
  level_heard = level;
  snprintf(heard, sizeof(heard), "%s", message);
  CHECK_OK(bfc_alloc(HOST, 100, &ptr));
  CHECK_OK(bfc_free(HOST, ptr));
}

/* Writes a byte too many, with another allocation after it. */
static void overrun(void) {
  bfc_options_t options = host_options(MIB);
  char *ptr, *next;
  options.name = "trainer";
  CHECK_OK(bfc_set_log_callback(listen, heard));
  CHECK_OK(bfc_create(HOST, &options));
  CHECK_OK(bfc_scope_begin("layer norm", 12));
  ptr = allocate(HOST, 1000);
  CHECK_OK(bfc_scope_end());
  next = allocate(HOST, 10);
  memset(ptr, 'x', 1001);
  CHECK_OK(bfc_free(HOST, next));
  CHECK(times == 0);
  CHECK_OK(bfc_free(HOST, ptr));
}

static void an_overrun_is_named(void) {
  static char map[1 << 16];
  size_t length;
  setenv("BFC_DEBUG", "guard", 1);
  overrun();
  CHECK(times == 1 && level_heard == BFC_LOG_ERROR);
  CHECK(strstr(heard, "trainer, device 256: a write after the end of 0x") != NULL);
  CHECK(strstr(heard, "(allocation 1, 1000 bytes in a chunk of 1280, operation \"layer norm\", step 12)") != NULL);
  CHECK(strstr(heard, "1 of 280 guard bytes is damaged, the first 0 bytes after its end: 78 fd") != NULL);
  CHECK_OK(bfc_memory_map(HOST, map, sizeof(map), &length));
  CHECK(strstr(map, "\"guard_violations\":1,") != NULL);
  CHECK(stats_of(HOST).bytes_in_use == 0);
  CHECK_OK(bfc_destroy(HOST));
}

static void without_the_variable_nobody_looks(void) {
  static char map[1 << 16];
  size_t length;
  overrun();
  CHECK(times == 0);
  CHECK_OK(bfc_memory_map(HOST, map, sizeof(map), &length));
  CHECK(strstr(map, "guard") == NULL);
  CHECK_OK(bfc_destroy(HOST));
}

static void what_may_be_used_is_no_overrun(void) {
  bfc_options_t options = host_options(MIB);
  size_t bytes, usable;
  setenv("BFC_DEBUG", "guard", 1);
  CHECK_OK(bfc_set_log_callback(listen, heard));
  CHECK_OK(bfc_create(HOST, &options));
  for (bytes = 1; bytes < 1000; bytes += 37) {
    char *const ptr = allocate(HOST, bytes);
    CHECK(is_filled(ptr, bytes, (char)0xff));
    CHECK_OK(bfc_allocated_size(HOST, ptr, &usable));
    CHECK(usable >= bytes);
    memset(ptr, 0, usable);
    CHECK_OK(bfc_check(HOST));
    CHECK_OK(bfc_free(HOST, ptr));
    CHECK(is_filled(ptr, bytes, (char)0xdb));
  }
  CHECK(times == 0);
  CHECK_OK(bfc_destroy(HOST));
}

int main(int argc, char **argv) {
  static const test_case cases[] = {
      {"an_overrun_is_named", an_overrun_is_named},
      {"without_the_variable_nobody_looks", without_the_variable_nobody_looks},
      {"what_may_be_used_is_no_overrun", what_may_be_used_is_no_overrun},
  };
  return RUN_CASE(cases, argc, argv);
}
