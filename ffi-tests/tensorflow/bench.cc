// bench: the speed and the host memory of libbfc beside TensorFlow's tsl::BFCAllocator, in one run.
// See README.md.

#include "bench.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>

namespace {

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  const size_t half = values.size() / 2;
  return values.size() % 2 == 1 ? values[half] : (values[half - 1] + values[half]) / 2;
}

double Best(Better better, const std::vector<double> &values) {
  return better == Better::kLower ? *std::min_element(values.begin(), values.end())
                                  : *std::max_element(values.begin(), values.end());
}

// JSON has no infinity, and a figure that is one is a fault to be seen.
std::string Json(double value) {
  if (!std::isfinite(value)) return "null";
  char text[40];
  std::snprintf(text, sizeof text, "%.6g", value);
  return text;
}
std::string Json(const std::string &text) {
  std::string quoted = "\"";
  for (char c : text) {
    if (c == '"' || c == '\\') quoted += '\\';
    quoted += c;
  }
  return quoted + "\"";
}

[[noreturn]] void Usage(const char *problem) {
  std::fprintf(stderr,
               "bench: %s\n"
               "usage: bench [--json FILE] [--rounds N] [--quick] [--only SECTION]... [TRACE]...\n"
               "  sections: first_allocation host_memory traces streams random_sizes same_size threads\n"
               "  TRACE is an uncompressed trace; --quick measures 10 ms instead of 50, 3 rounds\n",
               problem);
  std::exit(2);
}

BenchOptions Parse(int argc, char **argv) {
  BenchOptions options;
  for (int i = 1; i < argc; ++i) {
    const std::string name = argv[i];
    if (name == "--quick") {
      options.measure_ms = 10;
      options.rounds = 3;
    } else if (name == "--json" || name == "--rounds" || name == "--only") {
      if (++i == argc) Usage("an option without its value");
      if (name == "--json") options.json = argv[i];
      if (name == "--only") options.only.emplace_back(argv[i]);
      if (name == "--rounds") options.rounds = std::atoi(argv[i]);
    } else if (name[0] == '-') {
      Usage("unknown option");
    } else {
      options.traces.push_back(name);
    }
  }
  if (options.rounds < 1) Usage("at least one round");
  if ((options.Wants("traces") || options.Wants("streams")) && options.traces.empty() && !options.only.empty())
    Usage("no traces given");
  return options;
}

}  // namespace

bool BenchOptions::Wants(const std::string &section) const {
  return only.empty() || std::find(only.begin(), only.end(), section) != only.end();
}

Figure Interleave(int rounds, Better better, const std::function<double()> &libbfc,
                  const std::function<double()> &tensorflow) {
  std::vector<double> ours, theirs;
  for (int round = 0; round < rounds; ++round) {
    ours.push_back(libbfc());
    if (tensorflow) theirs.push_back(tensorflow());
  }
  return Compare(better, ours, theirs);
}

Figure Compare(Better better, const std::vector<double> &libbfc, const std::vector<double> &tensorflow) {
  Figure figure;
  figure.libbfc = Best(better, libbfc);
  figure.libbfc_median = Median(libbfc);
  if (tensorflow.empty()) return figure;
  figure.has_tensorflow = true;
  figure.tensorflow = Best(better, tensorflow);
  figure.tensorflow_median = Median(tensorflow);
  figure.ratio = figure.libbfc / figure.tensorflow;
  std::vector<double> ratios;
  for (size_t i = 0; i < std::min(libbfc.size(), tensorflow.size()); ++i) ratios.push_back(libbfc[i] / tensorflow[i]);
  figure.ratio_median = Median(ratios);
  return figure;
}

void Report::Section(const std::string &section, const std::string &title, const std::string &other) {
  section_ = section;
  other_ = other;
  std::printf("\n%s\n  %-34s %-12s %12s %12s %8s %10s\n", title.c_str(), "", "", "libbfc", other.c_str(), "ratio",
              "median");
}

void Report::Add(const std::string &name, const std::string &unit, Better better, const Figure &figure) {
  rows_.push_back({section_, other_, name, unit, better, figure});
  std::printf("  %-34s %-12s %12.4g", name.c_str(), unit.c_str(), figure.libbfc);
  if (figure.has_tensorflow) {
    std::printf(" %12.4g %8.3g %10.3g", figure.tensorflow, figure.ratio, figure.ratio_median);
  }
  std::printf("%s\n", better == Better::kHigher ? "  (higher is better)" : "");
  std::fflush(stdout);
}

void Report::Summary(const std::string &name, double value) {
  summary_.emplace_back(name, value);
  std::printf("  %-47s %12.4g\n", name.c_str(), value);
}

void Report::Fail(const std::string &what) {
  failed_ = true;
  std::printf("  FAILED: %s\n", what.c_str());
}

void Report::WriteJson(const BenchOptions &options) const {
  std::FILE *file = std::fopen(options.json.c_str(), "w");
  if (file == nullptr) {
    std::perror(options.json.c_str());
    std::exit(2);
  }
  std::fprintf(file, "{\n  \"libbfc_version\": %s,\n  \"rounds\": %d,\n  \"results\": [", Json(bfc_version()).c_str(),
               options.rounds);
  const char *separator = "\n";
  for (const Row &row : rows_) {
    const Figure &f = row.figure;
    std::fprintf(file,
                 "%s    {\"section\": %s, \"name\": %s, \"unit\": %s, \"better\": \"%s\", \"libbfc\": "
                 "%s, \"libbfc_median\": %s",
                 separator, Json(row.section).c_str(), Json(row.name).c_str(), Json(row.unit).c_str(),
                 row.better == Better::kLower ? "lower" : "higher", Json(f.libbfc).c_str(),
                 Json(f.libbfc_median).c_str());
    if (f.has_tensorflow) {
      std::fprintf(file, ", \"%s\": %s, \"%s_median\": %s, \"ratio\": %s, \"ratio_median\": %s", row.other.c_str(),
                   Json(f.tensorflow).c_str(), row.other.c_str(), Json(f.tensorflow_median).c_str(),
                   Json(f.ratio).c_str(), Json(f.ratio_median).c_str());
    }
    std::fprintf(file, "}");
    separator = ",\n";
  }
  std::fprintf(file, "\n  ],\n  \"summary\": {");
  separator = "\n";
  for (const auto &entry : summary_) {
    std::fprintf(file, "%s    %s: %s", separator, Json(entry.first).c_str(), Json(entry.second).c_str());
    separator = ",\n";
  }
  std::fprintf(file, "\n  }\n}\n");
  if (std::fclose(file) != 0) {
    std::perror(options.json.c_str());
    std::exit(2);
  }
}

int main(int argc, char **argv) {
#ifndef BFC_WITHOUT_TENSORFLOW
  QuietTensorFlow(argv);
#endif
  DropBfcEnvironment();
  const BenchOptions options = Parse(argc, argv);
  std::printf("libbfc %s; best of %d interleaved rounds; ratio = libbfc / tensorflow\n", bfc_version(), options.rounds);
  Report report;
  // These two fork, and so come before any thread and any pool.
  if (options.Wants("first_allocation")) BenchFirstAllocation(options, report);
  if (options.Wants("host_memory")) BenchHostMemory(options, report);
  if (options.Wants("traces") && !options.traces.empty()) BenchTraces(options, report);
  if (options.Wants("streams") && !options.traces.empty()) BenchStreamOrder(options, report);
  if (options.Wants("random_sizes")) BenchRandomSizes(options, report);
  if (options.Wants("same_size")) BenchSameSize(options, report);
  if (options.Wants("threads")) BenchThreads(options, report);
  if (!options.json.empty()) report.WriteJson(options);
  return report.failed() ? 1 : 0;
}
