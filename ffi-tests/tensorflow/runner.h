// Runs one program on TensorFlow's allocator and on libbfc in lock step, and compares them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "deviation.h"
#include "program.h"

// A deliberate fault on libbfc's side: shows that the suite sees one.
enum class Mutation { kNone, kSize, kSplit, kFrontier };

struct Outcome {
  bool mismatch = false;
  Deviation deviation = Deviation::kNone;
  uint64_t compared = 0;           // steps whose results were compared
  size_t last_step = 0;            // index of the step where it ended
  std::string difference;          // for a mismatch: what differs, both sides' answers
  std::vector<std::string> trace;  // one line a step, only with `record`
};

Outcome RunProgram(const Program &program, Mutation mutation, bool record);

// Where we are, for the handlers of signals that end the process.
struct Progress {
  volatile uint64_t seed;
  volatile uint64_t step;
};
extern Progress progress;
