/* Silence by default, BFC_LOG, the callback, and the environment: each case is a process that sets its own.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */

#include "check.h"

#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <sys/stat.h>

enum { HOST = 256, MIB = 1 << 20 };

static int captured = -1, real_stderr = -1, real_stdout = -1;

/* From here on both standard streams go to a file without a name. */
static void capture(void) {
  FILE *const file = tmpfile();
  CHECK(file != NULL);
  captured = fileno(file);
  real_stderr = dup(2);
  real_stdout = dup(1);
  CHECK(dup2(captured, 2) == 2 && dup2(captured, 1) == 1);
}

/* What was printed meanwhile; the streams are themselves again. */
static const char *printed(void) {
  static char text[1 << 16];
  ssize_t length;
  CHECK(dup2(real_stderr, 2) == 2 && dup2(real_stdout, 1) == 1);
  length = pread(captured, text, sizeof(text) - 1, 0);
  CHECK(length >= 0);
  text[length] = '\0';
  return text;
}

/* Everything that might tempt a library to print. */
static void provoke(void) {
  bfc_options_t options = host_options(MIB);
  void *ptr = NULL;
  int at;
  CHECK_OK(bfc_create(HOST, &options));
  for (at = 0; at < 100; at++) CHECK_STATUS(bfc_alloc(HOST, 2 * MIB, &ptr), BFC_ERROR_OUT_OF_MEMORY);
  ptr = allocate(HOST, 1000);
  CHECK_STATUS(bfc_destroy(HOST), BFC_ERROR_BUSY);
  CHECK_OK(bfc_free(HOST, ptr));
  CHECK_STATUS(bfc_free(HOST, ptr), BFC_ERROR_DOUBLE_FREE);
  CHECK_STATUS(bfc_free(HOST, &options), BFC_ERROR_INVALID_POINTER);
  CHECK_STATUS(bfc_create(HOST, NULL), BFC_ERROR_ALREADY_EXISTS);
  CHECK_OK(bfc_check(HOST));
  CHECK_OK(bfc_destroy(HOST));
}

static void silent_by_default(void) {
  setenv("BFC_MEMORY_LIMIT", "a lot", 1);
  setenv("BFC_BACKEND", "abacus", 1);
  setenv("BFC_REPORT_ON_FAILURE", "1", 1);
  capture();
  provoke();
  CHECK_OK(bfc_create(HOST, NULL));
  CHECK_OK(bfc_destroy(HOST));
  CHECK(printed()[0] == '\0');
}

static void silent_when_told_so(void) {
  setenv("BFC_LOG", "off", 1);
  setenv("BFC_MEMORY_LIMIT", "a lot", 1);
  capture();
  provoke();
  CHECK(printed()[0] == '\0');
}

static void at_level(const char *level, int info, int warnings) {
  const char *text;
  bfc_options_t options = host_options(0);
  setenv("BFC_LOG", level, 1);
  setenv("BFC_MEMORY_LIMIT", "a lot", 1);
  capture();
  provoke();
  CHECK_OK(bfc_create(HOST, &options));
  CHECK_OK(bfc_destroy(HOST));
  text = printed();
  CHECK((strstr(text, "libbfc info") != NULL) == info);
  CHECK((strstr(text, "libbfc warning") != NULL) == warnings);
  CHECK((strstr(text, "BFC_MEMORY_LIMIT=a lot") != NULL) == warnings);
}

static void level_error(void) { at_level("error", 0, 0); }
static void level_warn(void) { at_level("warn", 0, 1); }
static void level_info(void) { at_level("info", 1, 1); }
static void level_debug(void) { at_level("DEBUG", 1, 1); }
/* A level that is none must not silence the hint at it. */
static void level_of_no_name(void) { at_level("chatty", 0, 1); }

/* What the callback was told. */
static int messages;
static int32_t worst;
static char last_message[1 << 16];

static void listen(void *user_data, int32_t level, const char *message) {
  CHECK(user_data == &messages && message != NULL && message[0] != '\0');
  CHECK(level >= BFC_LOG_ERROR && level <= BFC_LOG_DEBUG);
  messages++;
  if (worst == 0 || level < worst) worst = level;
  snprintf(last_message, sizeof(last_message), "%s", message);
}

static void the_callback_gets_it_instead(void) {
  setenv("BFC_LOG", "debug", 1);
  capture();
  CHECK_OK(bfc_set_log_callback(listen, &messages));
  provoke();
  CHECK(messages > 0);
  CHECK_OK(bfc_set_log_callback(NULL, NULL));
  CHECK(printed()[0] == '\0');
  messages = 0;
  capture();
  provoke();
  CHECK(messages == 0);
  CHECK(strstr(printed(), "libbfc") != NULL);
}

static const char *const variables[] = {
    "BFC_BACKEND",
    "BFC_MEMORY_LIMIT",
    "BFC_MEMORY_FRACTION",
    "BFC_FRAGMENTATION_FRACTION",
    "BFC_INITIAL_REGION_BYTES",
    "BFC_RETRY_TIMEOUT_MS",
    "BFC_ALLOW_GROWTH",
    "BFC_GARBAGE_COLLECTION",
    "BFC_TIMESTAMPS",
    "BFC_SPLIT_ALWAYS",
    "BFC_QUARANTINE",
    "BFC_FORCE_ALLOW_GROWTH",
    "BFC_REPORT_ON_FAILURE",
    "BFC_HASH_SEED",
    "BFC_TRIM_AFTER",
    "BFC_HUGE_PAGES",
    "BFC_NUMA",
    "BFC_POPULATE",
};
enum { VARIABLES = sizeof(variables) / sizeof(variables[0]) };

/* Ignored with a warning that names the variable; the default counts, and the pool works. */
static void malformed_values(void) {
  static char endless[1 << 16];
  const char *const values[] = {"garbage", "-1",       "nan",  "1e400", "8 furlongs", "99999999999999999999999",
                                "0x10",    "\xff\xfe", endless};
  size_t variable, value;
  uint64_t usual;
  memset(endless, '9', sizeof(endless) - 1);
  CHECK_OK(bfc_create(HOST, NULL));
  usual = stats_of(HOST).bytes_limit;
  CHECK_OK(bfc_destroy(HOST));
  CHECK_OK(bfc_set_log_callback(listen, &messages));
  for (variable = 0; variable < VARIABLES; variable++) {
    for (value = 0; value < sizeof(values) / sizeof(values[0]); value++) {
      CHECK(setenv(variables[variable], values[value], 1) == 0);
      messages = worst = 0;
      CHECK_OK(bfc_create(HOST, NULL));
      if (messages != 1 || worst != BFC_LOG_WARN || strstr(last_message, variables[variable]) == NULL) {
        check_failed(__FILE__, __LINE__, variables[variable], "is malformed, and there is no warning");
      }
      CHECK(strstr(last_message, "ignored") != NULL);
      CHECK(stats_of(HOST).bytes_limit == usual);
      CHECK_OK(bfc_free(HOST, allocate(HOST, 100)));
      CHECK_OK(bfc_check(HOST));
      CHECK_OK(bfc_destroy(HOST));
    }
    CHECK(unsetenv(variables[variable]) == 0);
  }
}

static void well_formed_values(void) {
  bfc_options_t options = BFC_OPTIONS_INIT;
  void *ptr = NULL;
  CHECK_OK(bfc_set_log_callback(listen, &messages));
  setenv("BFC_MEMORY_LIMIT", "8MiB", 1);
  setenv("BFC_BACKEND", "host", 1);
  setenv("BFC_INITIAL_REGION_BYTES", "1 MiB", 1);
  setenv("BFC_ALLOW_GROWTH", "1", 1);
  setenv("BFC_TIMESTAMPS", "yes", 1);
  /* The backend also for a device that has a driver, or has not. */
  CHECK_OK(bfc_create(0, NULL));
  CHECK(stats_of(0).bytes_limit == 8 * MIB);
  CHECK_OK(bfc_free(0, allocate(0, 1)));
  CHECK(stats_of(0).pool_bytes == MIB);
  CHECK_OK(bfc_set_safe_frontier(0, 1));
  CHECK_OK(bfc_destroy(0));
  /* What the program says counts more. */
  options.memory_limit = 2 * MIB;
  options.flags = BFC_ALLOW_GROWTH;
  CHECK_OK(bfc_create(0, &options));
  CHECK(stats_of(0).bytes_limit == 2 * MIB);
  CHECK_REFUSED(bfc_set_safe_frontier(0, 1), BFC_ERROR_UNSUPPORTED, "BFC_TIMESTAMPS");
  CHECK_OK(bfc_destroy(0));
  /* But for one variable. */
  setenv("BFC_FORCE_ALLOW_GROWTH", "0", 1);
  CHECK_OK(bfc_create(0, &options));
  CHECK_OK(bfc_alloc(0, 1, &ptr));
  CHECK(stats_of(0).pool_bytes == 2 * MIB);
  CHECK_OK(bfc_destroy_forced(0));
  CHECK(messages == 0);
}

/* A hundred failures in a row are one report. */
static void a_report_on_failure(void) {
  setenv("BFC_REPORT_ON_FAILURE", "1", 1);
  CHECK_OK(bfc_set_log_callback(listen, &messages));
  provoke();
  CHECK(messages == 1 && worst == BFC_LOG_ERROR);
  CHECK(strstr(last_message, "no memory for 2.00 MiB") != NULL && strstr(last_message, "largest free chunk") != NULL);
}

static int messages_of_regions;

/* A callback may call the library; on the device it hears about that may be refused, but never hangs. */
static void ask(void *user_data, int32_t level, const char *message) {
  bfc_stats_t stats = BFC_STATS_INIT;
  const bfc_status_t status = bfc_stats(HOST, &stats);
  (void)user_data, (void)level;
  CHECK(status == BFC_OK || status == BFC_ERROR_BUSY || status == BFC_ERROR_NO_ALLOCATOR);
  if (strstr(message, "device 256: ") != NULL && strstr(message, " a region of ") != NULL) {
    CHECK(status == BFC_ERROR_BUSY);
    messages_of_regions++;
  }
  CHECK_OK(bfc_free(1000, allocate(1000, 100)));
  messages++;
}

static void a_callback_that_calls(void) {
  bfc_options_t options = host_options(MIB);
  uint64_t released;
  /* Before the first message, at which it is read. */
  setenv("BFC_LOG", "debug", 1);
  setenv("BFC_REPORT_ON_FAILURE", "1", 1);
  CHECK_OK(bfc_create(1000, &options));
  CHECK_OK(bfc_free(1000, allocate(1000, 100)));
  CHECK_OK(bfc_set_log_callback(ask, NULL));
  provoke();
  CHECK_OK(bfc_create(HOST, NULL));
  CHECK_OK(bfc_free(HOST, allocate(HOST, 100)));
  CHECK_OK(bfc_trim(HOST, 0, &released));
  CHECK_OK(bfc_destroy(HOST));
  CHECK(messages > 0 && messages_of_regions > 0);
  CHECK_OK(bfc_set_log_callback(NULL, NULL));
  CHECK_OK(bfc_destroy(1000));
}

/* Two callbacks at once, each about a region of one device and allocating on the other: neither waits for a message
 * that is being delivered. */
enum { FIRST = 1000, SECOND = 1001 };

static _Thread_local int32_t other_device;
static pthread_barrier_t both_are_told;

static void cross_over(void *user_data, int32_t level, const char *message) {
  const int32_t device = other_device;
  (void)user_data, (void)level;
  if (device == 0 || strstr(message, "gave a region") == NULL) return;
  other_device = 0;
  pthread_barrier_wait(&both_are_told);
  CHECK_OK(bfc_free(device, allocate(device, 1000)));
  pthread_barrier_wait(&both_are_told);
}

static void *trim_and_tell(void *device) {
  uint64_t released;
  other_device = FIRST + SECOND - (int32_t)(intptr_t)device;
  CHECK_OK(bfc_trim((int32_t)(intptr_t)device, 0, &released));
  CHECK(released > 0);
  return NULL;
}

static void callbacks_that_cross(void) {
  pthread_t threads[2];
  int32_t device;
  setenv("BFC_LOG", "info", 1);
  CHECK_OK(bfc_set_log_callback(cross_over, NULL));
  CHECK(pthread_barrier_init(&both_are_told, NULL, 2) == 0);
  for (device = FIRST; device <= SECOND; device++) {
    bfc_options_t options = host_options(MIB);
    CHECK_OK(bfc_create(device, &options));
    CHECK_OK(bfc_free(device, allocate(device, 1000)));
  }
  for (device = FIRST; device <= SECOND; device++) {
    CHECK(pthread_create(&threads[device - FIRST], NULL, trim_and_tell, (void *)(intptr_t)device) == 0);
  }
  for (device = FIRST; device <= SECOND; device++) CHECK(pthread_join(threads[device - FIRST], NULL) == 0);
  for (device = FIRST; device <= SECOND; device++) CHECK_OK(bfc_destroy(device));
}

int main(int argc, char **argv) {
#define CASE(name) \
  { #name, name }
  static const test_case cases[] = {
      CASE(silent_by_default),    CASE(silent_when_told_so),
      CASE(level_error),          CASE(level_warn),
      CASE(level_info),           CASE(level_debug),
      CASE(level_of_no_name),     CASE(the_callback_gets_it_instead),
      CASE(malformed_values),     CASE(well_formed_values),
      CASE(a_report_on_failure),  CASE(a_callback_that_calls),
      CASE(callbacks_that_cross),
  };
  return RUN_CASE(cases, argc, argv);
}
