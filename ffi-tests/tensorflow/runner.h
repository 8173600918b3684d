// Runs one program on TensorFlow's allocator and on libbfc in lock step, and compares them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "program.h"

// Why a program stopped being compared before its last step: from here on the two differ on purpose
// (the numbers are those of the project's list of deviations), or TensorFlow would hang.
enum class Deviation : int {
  kNone,
  kPoolAboveLimit,    // 2: the sub-allocator gave more than asked; TensorFlow's arithmetic wraps
  kStampedSplit,      // 5: a stamped chunk was split: TensorFlow forgets the remainder
  kQueuedTwice,       // 5: allocation clears the stamp; TensorFlow keeps the chunk in its queue
  kForcedMerge,       // 5: stamps were ignored to make room: TensorFlow forgets some of them
  kUnsafeCollection,  // 5: garbage collection freed a region with unsafe chunks in it
  kShrinkProgress,    // 11: TensorFlow asks for the same size for ever
  kHintWraps,         // TensorFlow's region hint doubles towards 2^64, becomes 0 and loops for ever
  kNoStreams,         // this version of libbfc says that it has no _async functions
  kCount
};
const char* DeviationName(Deviation deviation);

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

Outcome RunProgram(const Program& program, Mutation mutation, bool record);

// Where we are, for the handlers of signals that end the process.
struct Progress {
  volatile uint64_t seed;
  volatile uint64_t step;
};
extern Progress progress;
