// The history in C++: as an object, and by functions.
//
// SPDX-License-Identifier: Apache-2.0 OR MIT

#include <bfc.hpp>

#include "../c/check.h"

#include <cstdio>
#include <string>
#include <unistd.h>

namespace {

std::string fresh(const char *name) {
  std::string path = std::string("/tmp/libbfc-cpp-") + name + std::to_string(getpid());
  std::remove(path.c_str());
  return path;
}

bool is_history(const std::string &path) {
  char begin[16] = {};
  std::FILE *file = std::fopen(path.c_str(), "rb");
  if (file == nullptr) return false;
  std::size_t count = std::fread(begin, 1, sizeof begin, file);
  std::fclose(file);
  std::remove(path.c_str());
  return std::string(begin, count) == "libbfc history 2";
}

void into_a_file() {
  std::string path = fresh("file");
  {
    bfc::history history(path, 2000);
    history.mark("begin");
    bfc::pool pool(256, bfc::options::growing().backend(bfc::backend::host).memory_limit(1 << 20));
    bfc::allocation block(pool, 1000);
    std::error_code ec;
    bfc::start_history(nullptr, 0, ec);
    CHECK(ec == bfc::errc::already_exists);
  }
  CHECK(is_history(path));
}

void into_memory() {
  std::string path = fresh("memory");
  bfc::history history;
  history.save(path);
  CHECK(is_history(path));
}

void without_an_object() {
  std::error_code ec;
  bfc::mark_history("early", ec);
  CHECK(ec == bfc::errc::invalid_argument);
  bfc::start_history(nullptr);
  bfc::mark_history("now");
  bfc::stop_history();
  try {
    bfc::stop_history();
    CHECK(!"it must throw");
  } catch (const bfc::status_error &error) {
    CHECK(std::string(error.what()).find("no history is recorded") != std::string::npos);
  }
}

void with_backtraces() {
  std::string path = fresh("stacks");
  {
    bfc::history history(path, 2000, BFC_STACKS_NATIVE);
    bfc::pool pool(256, bfc::options::growing().backend(bfc::backend::host).memory_limit(1 << 20));
    bfc::allocation block(pool, 1000);
  }
  CHECK(is_history(path));
  std::error_code ec;
  bfc::start_history(nullptr, 0, 4, ec);
  CHECK(ec == bfc::errc::invalid_argument);
  try {
    bfc::start_history(nullptr, 0, BFC_STACKS_PYTHON);
    CHECK(!"it must throw");
  } catch (const bfc::status_error &error) {
    CHECK(std::string(error.what()).find("backtraces of Python") != std::string::npos);
  }
}

}  // namespace

int main(int argc, char **argv) {
#define CASE(name) \
  { #name, name }
  static const test_case cases[] = {CASE(into_a_file), CASE(into_memory), CASE(without_an_object),
                                    CASE(with_backtraces)};
  return RUN_CASE(cases, argc, argv);
}
