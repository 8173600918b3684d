#include "calls.h"

#include <algorithm>
#include <cinttypes>

#include "text.h"

namespace {

Calls Allocs(const Calls &calls) {
  Calls allocs;
  for (const auto &call : calls) {
    if (call.is_alloc) allocs.push_back(call);
  }
  return allocs;
}

// By address, neighbours joined.
Calls Frees(const Calls &calls) {
  Calls frees, joined;
  for (const auto &call : calls) {
    if (!call.is_alloc) frees.push_back(call);
  }
  std::sort(frees.begin(), frees.end(), [](const auto &a, const auto &b) { return a.address < b.address; });
  for (const auto &call : frees) {
    if (!joined.empty() && joined.back().address + joined.back().bytes == call.address) {
      joined.back().bytes += call.bytes;
    } else {
      joined.push_back(call);
    }
  }
  return joined;
}

bool Same(const Calls &a, const Calls &b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const auto &x, const auto &y) { return x.address == y.address && x.bytes == y.bytes; });
}

}  // namespace

bool EqualCalls(const Calls &a, const Calls &b) {
  if (a.empty() && b.empty()) return true;  // nearly every step
  return Same(Allocs(a), Allocs(b)) && Same(Frees(a), Frees(b));
}

std::string ShowCalls(const Calls &calls) {
  constexpr size_t kHead = 4, kTail = 6;
  std::string text;
  for (size_t i = 0; i < calls.size(); ++i) {
    if (i == kHead && calls.size() > kHead + kTail) {
      i = calls.size() - kTail;
      text += " ...,";
    }
    const FakeMemory::Call &call = calls[i];
    if (!call.is_alloc) {
      text += Format(" free 0x%" PRIx64 " (%" PRIu64 "),", call.address, call.bytes);
    } else if (call.address == 0) {
      text += Format(" alloc %" PRIu64 " failed,", call.bytes);
    } else {
      text += Format(" alloc %" PRIu64 " = 0x%" PRIx64 ",", call.bytes, call.address);
    }
  }
  if (text.empty()) return " nothing";
  text.pop_back();
  return text;
}
