// What an allocator asked of its sub-allocator during one step.
#pragma once

#include <string>
#include <vector>

#include "fake_memory.h"

using Calls = std::vector<FakeMemory::Call>;

// The same requests in the same order with the same results, and the same memory given back. The order and the number
// of its pieces do not matter.
bool EqualCalls(const Calls &a, const Calls &b);

// In words; of a long series of shrinking requests only both ends.
std::string ShowCalls(const Calls &calls);
