// Why a program stopped being compared before its last step: from there on the two differ on purpose
// (the numbers are those of the project's list of deviations), or TensorFlow would hang.
#pragma once

enum class Deviation : int {
  kNone,
  kPoolAboveLimit,    // 2: the sub-allocator gave more than asked; TensorFlow's arithmetic wraps
  kStampedSplit,      // 5: a stamped chunk was split: TensorFlow forgets the remainder
  kQueuedTwice,       // 5: a chunk twice in TensorFlow's queue makes it merge in another order
  kForcedMerge,       // 5: stamps were ignored to make room: TensorFlow forgets some of them
  kUnsafeCollection,  // 5: garbage collection freed a region with unsafe chunks in it
  kShrinkProgress,    // 11: TensorFlow asks for the same size forever
  kSafeMerge,         // 12: TensorFlow left safe chunks beside each other that libbfc merges
  kExactSize,         // 13: TensorFlow failed, and libbfc got a region of exactly the request's size
  kHintWraps,         // TensorFlow's region hint doubles towards 2^64, becomes 0 and loops forever
  kCount
};

struct DeviationText {
  const char *column;  // heads a column of the table
  const char *name;
};

inline DeviationText TextOf(Deviation deviation) {
  static constexpr DeviationText kTexts[] = {{"to the end", "none: ran to its end"},
                                             {"dev 2", "deviation 2: pool above the limit"},
                                             {"dev 5 split", "deviation 5: stamped split"},
                                             {"dev 5 twice", "deviation 5: forced merge with a chunk queued twice"},
                                             {"dev 5 forced", "deviation 5: forced merge"},
                                             {"dev 5 unsafe", "deviation 5: collection of unsafe chunks"},
                                             {"dev 11", "deviation 11: shrink progress"},
                                             {"dev 12", "deviation 12: safe chunks merge completely"},
                                             {"dev 13", "deviation 13: a region of exactly the request's size"},
                                             {"hint wraps", "TensorFlow's region hint would wrap to 0"}};
  static_assert(sizeof kTexts / sizeof *kTexts == static_cast<unsigned>(Deviation::kCount), "one each");
  return kTexts[static_cast<int>(deviation)];
}
