// lockstep: random programs run on TensorFlow's tsl::BFCAllocator and on libbfc, over equal fake
// memory, compared after every step. See README.md.

#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "libbfc_side.h"
#include "program.h"
#include "runner.h"
#include "shrink.h"
#include "tensorflow_side.h"

namespace {

struct Options {
  uint64_t steps = 5000000;
  uint64_t seed = 1;
  bool one_program = false;
  uint64_t program = 0;
  Mutation mutation = Mutation::kNone;
  const char *mutation_name = nullptr;
};

constexpr int kFamilies = static_cast<int>(Family::kCount);
constexpr int kDeviations = static_cast<int>(Deviation::kCount);
constexpr uint64_t kEnough = 1000;
// A program takes milliseconds; one that takes this long hangs.
constexpr unsigned kHangSeconds = 30;

struct Tally {
  uint64_t programs = 0;
  uint64_t steps = 0;
  uint64_t mismatches = 0;
  uint64_t ended[kDeviations] = {};
};

[[noreturn]] void Usage(const char *problem) {
  std::fprintf(stderr,
               "lockstep: %s\n"
               "usage: lockstep [--steps N] [--seed S] [--program P] [--mutate size|split|frontier]\n"
               "  --steps N    compare at least N steps (5000000)\n"
               "  --seed S     which programs (1)\n"
               "  --program P  run only the program that a report names, and print it\n"
               "  --mutate M   a fault on libbfc's side, which must be found: 256 bytes more in each request,\n"
               "               BFC_SPLIT_ALWAYS, or a safe frontier one too low\n",
               problem);
  std::exit(2);
}

uint64_t Number(const char *text) {
  char *end = nullptr;
  const uint64_t value = std::strtoull(text, &end, 10);
  if (end == text || *end != '\0') Usage("not a number");
  return value;
}

Options Parse(int argc, char **argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (i + 1 == argc) Usage("an option without its value, or an unknown one");
    const char *value = argv[++i];
    if (name == "--steps") {
      options.steps = Number(value);
    } else if (name == "--seed") {
      options.seed = Number(value);
    } else if (name == "--program") {
      options.one_program = true;
      options.program = Number(value);
    } else if (name == "--mutate") {
      const std::string kind = options.mutation_name = value;
      if (kind == "size") {
        options.mutation = Mutation::kSize;
      } else if (kind == "split") {
        options.mutation = Mutation::kSplit;
      } else if (kind == "frontier") {
        options.mutation = Mutation::kFrontier;
      } else {
        Usage("unknown mutation");
      }
    } else {
      Usage("unknown option");
    }
  }
  return options;
}

// A crash or a hang must still say which program it was. Only what a signal handler may call.
void WriteNumber(uint64_t value) {
  char digits[24];
  int at = sizeof digits;
  do {
    digits[--at] = static_cast<char>('0' + value % 10);
    value /= 10;
  } while (value != 0);
  (void)!write(2, digits + at, sizeof digits - static_cast<size_t>(at));
}
void OnFatalSignal(int signal) {
  static const char kHang[] = "\nlockstep: HANG";
  static const char kCrash[] = "\nlockstep: CRASH";
  static const char kProgram[] = " in program ";
  static const char kStep[] = ", step ";
  (void)!write(2, signal == SIGALRM ? kHang : kCrash, signal == SIGALRM ? sizeof kHang - 1 : sizeof kCrash - 1);
  (void)!write(2, kProgram, sizeof kProgram - 1);
  WriteNumber(progress.seed);
  (void)!write(2, kStep, sizeof kStep - 1);
  WriteNumber(progress.step + 1);
  (void)!write(2, "\n", 1);
  _exit(3);
}

void PrintProgram(const Program &program, const Outcome &outcome) {
  std::printf("  %s: %s\n", FamilyName(program.config.family), Describe(program.config).c_str());
  for (size_t i = 0; i < outcome.trace.size(); ++i) {
    if (!outcome.trace[i].empty()) std::printf("  %4zu  %s\n", i + 1, outcome.trace[i].c_str());
  }
  if (outcome.mismatch) std::printf("  difference: %s\n", outcome.difference.c_str());
}

void ReportMismatch(const Program &program, const Outcome &outcome, const Options &options) {
  std::printf("\nMISMATCH in program %" PRIu64 " at step %zu of %zu: %s\n", program.config.seed, outcome.last_step + 1,
              program.steps.size(), outcome.difference.c_str());
  std::fflush(stdout);
  alarm(0);  // shrinking runs the program many times, and has a limit of its own
  const Program small = Shrink(program, options.mutation);
  std::printf("the smallest program that differs (%zu %s):\n", small.steps.size(),
              small.steps.size() == 1 ? "step" : "steps");
  PrintProgram(small, RunProgram(small, options.mutation, true));
  std::printf("  to see the whole: lockstep --program %" PRIu64 "%s%s\n\n", program.config.seed,
              options.mutation_name != nullptr ? " --mutate " : "",
              options.mutation_name != nullptr ? options.mutation_name : "");
}

void PrintTable(const Tally (&tallies)[kFamilies]) {
  std::printf("%-14s %9s %10s", "family", "programs", "steps");
  const auto text = [](int i) { return TextOf(static_cast<Deviation>(i)); };
  for (int i = 0; i < kDeviations; ++i) std::printf(" %12s", text(i).column);
  std::printf(" %10s\n", "mismatches");
  Tally total;
  const auto print = [](const char *name, const Tally &tally) {
    std::printf("%-14s %9" PRIu64 " %10" PRIu64, name, tally.programs, tally.steps);
    for (uint64_t ended : tally.ended) std::printf(" %12" PRIu64, ended);
    std::printf(" %10" PRIu64 "\n", tally.mismatches);
  };
  for (int family = 0; family < kFamilies; ++family) {
    const Tally &tally = tallies[family];
    print(FamilyName(static_cast<Family>(family)), tally);
    total.programs += tally.programs;
    total.steps += tally.steps;
    total.mismatches += tally.mismatches;
    for (int i = 0; i < kDeviations; ++i) total.ended[i] += tally.ended[i];
  }
  print("total", total);
  std::printf("Programs stop being compared where they first reach:\n");
  for (int i = 1; i < kDeviations; ++i) { std::printf("  %-12s  %s\n", text(i).column, text(i).name); }
}

int RunOne(const Options &options) {
  const Program program = MakeProgram(options.program);
  const Outcome outcome = RunProgram(program, options.mutation, true);
  PrintProgram(program, outcome);
  std::printf("  %" PRIu64 " steps compared of %zu; %s\n", outcome.compared, program.steps.size(),
              outcome.mismatch ? "MISMATCH" : TextOf(outcome.deviation).name);
  return outcome.mismatch ? 1 : 0;
}

int RunSuite(const Options &options) {
  const auto begin = std::chrono::steady_clock::now();
  Tally tallies[kFamilies];
  uint64_t compared = 0;
  uint64_t mismatches = 0;
  // Whole rounds over the families, so that none is left out. With many mismatches hardly a step is
  // compared, and what there is to say has been said.
  for (uint64_t i = 0; i % kRound != 0 || (compared < options.steps && mismatches < kEnough); ++i) {
    const Program program = MakeProgram(options.seed * 1000000000 + i);
    alarm(kHangSeconds);
    const Outcome outcome = RunProgram(program, options.mutation, false);
    Tally &tally = tallies[static_cast<int>(program.config.family)];
    ++tally.programs;
    tally.steps += outcome.compared;
    compared += outcome.compared;
    if (outcome.mismatch) {
      ++mismatches;
      // One fault usually shows in many programs of a family: only the first of them is printed.
      if (++tally.mismatches == 1) ReportMismatch(program, outcome, options);
      if (options.mutation != Mutation::kNone) break;
    } else {
      ++tally.ended[static_cast<int>(outcome.deviation)];
    }
  }
  alarm(0);
  PrintTable(tallies);
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  std::printf("libbfc %s against TensorFlow: %" PRIu64 " steps compared in %.1f s (seed %" PRIu64 "), %" PRIu64 " %s\n",
              bfc_version(), compared, seconds, options.seed, mismatches, mismatches == 1 ? "mismatch" : "mismatches");
  if (mismatches != 0) return 1;
  for (int family = 0; family < kFamilies; ++family) {
    const Tally &tally = tallies[family];
    if (tally.steps != 0) continue;
    std::printf("no step of family '%s' was compared\n", FamilyName(static_cast<Family>(family)));
    return 1;
  }
  return 0;
}

}  // namespace

int main(int argc, char **argv) {
  QuietTensorFlow(argv);
  DropBfcEnvironment();
  const Options options = Parse(argc, argv);
  for (int signal : {SIGSEGV, SIGBUS, SIGABRT, SIGFPE, SIGILL, SIGALRM}) ::signal(signal, OnFatalSignal);
  return options.one_program ? RunOne(options) : RunSuite(options);
}
