// Sections traces and streams: what real programs asked for (see tests/traces/README.md for the format).

#include <algorithm>
#include <cinttypes>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <unordered_map>

#include "bench.h"

namespace {

struct Op {
  uint64_t bytes;  // 0: a free
  uint32_t slot;   // dense and used again, so that the harness stays in the cache
  uint32_t stream = 0;
};

struct Trace {
  std::string name;
  std::vector<Op> ops;
  uint32_t slots = 0;
  uint64_t peak = 0;  // of the live bytes, each request rounded up to 256
};

// Each chunk is freed on the stream of its allocation: the one the program used or, if `dealt` is not 0, the next one
// of that many in turn. Everything still live at the end is freed there, so that the trace can run repeatedly.
bool Parse(const std::string &path, Trace *trace, uint32_t dealt = 0) {
  std::FILE *file = std::fopen(path.c_str(), "r");
  if (file == nullptr) return false;
  const size_t slash = path.find_last_of('/');
  trace->name = path.substr(slash == std::string::npos ? 0 : slash + 1);
  trace->name = trace->name.substr(0, trace->name.find('.'));

  struct Live {
    uint32_t slot;
    uint32_t stream;
    uint64_t bytes;
  };
  std::unordered_map<uint64_t, Live> live;
  std::vector<uint32_t> spare;
  uint64_t now = 0;
  uint32_t allocations = 0;
  bool good = true;
  const auto release = [&](const Live &chunk) {
    trace->ops.push_back({0, chunk.slot, chunk.stream});
    spare.push_back(chunk.slot);
    now -= chunk.bytes;
  };
  char line[256];
  while (good && std::fgets(line, sizeof line, file) != nullptr) {
    uint64_t id = 0, bytes = 0;
    uint32_t stream = 0;
    if (line[0] == '#') continue;
    if (std::sscanf(line, "+ %" SCNu64 " %" SCNu64 " %" SCNu32, &id, &bytes, &stream) == 3) {
      if (spare.empty()) spare.push_back(trace->slots++);
      if (dealt != 0) stream = allocations++ % dealt;
      const Live chunk = {spare.back(), stream, (bytes + 255) / 256 * 256};
      spare.pop_back();
      good = bytes != 0 && live.emplace(id, chunk).second;
      trace->ops.push_back({bytes, chunk.slot, chunk.stream});
      now += chunk.bytes;
      trace->peak = std::max(trace->peak, now);
    } else if (std::sscanf(line, "- %" SCNu64, &id) == 1 && live.count(id) != 0) {
      release(live[id]);
      live.erase(id);
    } else {
      good = false;
    }
  }
  std::fclose(file);
  for (const auto &entry : live) release(entry.second);
  return good && !trace->ops.empty();
}

template <class Allocator>
void *Take(Allocator &allocator, const Op &op) {
  return allocator.Alloc(op.bytes);
}
template <class Allocator>
void GiveBack(Allocator &allocator, void *ptr, const Op &) {
  allocator.Free(ptr);
}
template <unsigned kEvery, bool kAlone>
void *Take(BenchStreams<kEvery, kAlone> &allocator, const Op &op) {
  return allocator.Alloc(op.bytes, op.stream);
}
template <unsigned kEvery, bool kAlone>
void GiveBack(BenchStreams<kEvery, kAlone> &allocator, void *ptr, const Op &op) {
  allocator.Free(ptr, op.stream);
}

template <class Allocator>
class Player {
 public:
  Player(const Trace &trace, uint64_t limit) : trace_(trace), allocator_(limit), live_(trace.slots) {}

  void Play() {
    for (const Op &op : trace_.ops) {
      if (op.bytes != 0) {
        live_[op.slot] = Take(allocator_, op);
      } else {
        GiveBack(allocator_, live_[op.slot], op);
      }
    }
  }

  // FNV-1a over the returned addresses, as in golden.tsv: shows that both do the same work.
  uint64_t PlayAndHash(uint64_t *failed) {
    uint64_t hash = 1469598103934665603u;
    for (const Op &op : trace_.ops) {
      if (op.bytes == 0) {
        GiveBack(allocator_, live_[op.slot], op);
        continue;
      }
      live_[op.slot] = Take(allocator_, op);
      *failed += live_[op.slot] == nullptr;
      uint64_t address = reinterpret_cast<uint64_t>(live_[op.slot]);
      for (int i = 0; i < 8; ++i, address >>= 8) hash = (hash ^ (address & 255)) * 1099511628211u;
    }
    return hash;
  }

 private:
  const Trace &trace_;
  Allocator allocator_;
  std::vector<void *> live_;
};

// ns per op: of the first pass over a fresh allocator, and of as many more as fill the time.
struct Cost {
  std::vector<double> first, steady;
};

template <class Allocator>
void Measure(const Trace &trace, uint64_t limit, double least_ms, Cost *cost) {
  Player<Allocator> player(trace, limit);
  const double ops = static_cast<double>(trace.ops.size());
  const double begin = NowNs();
  player.Play();
  const double first = NowNs() - begin;
  cost->first.push_back(first / ops);
  // A trace frees everything, so every pass starts with one free chunk, as on a new allocator.
  // A fresh one for each pass would spend most of the time filling TensorFlow's pointer table.
  double spent = 0;
  uint64_t passes = 0;
  while (spent < least_ms * 1e6) {
    const auto batch = static_cast<uint64_t>(std::max(1.0, (least_ms * 1e6 - spent) / first));
    const double start = NowNs();
    for (uint64_t i = 0; i < batch; ++i) player.Play();
    spent += NowNs() - start;
    passes += batch;
  }
  cost->steady.push_back(spent / (ops * static_cast<double>(passes)));
}

template <class Allocator>
uint64_t Hash(const Trace &trace, uint64_t limit, const char *side, Report &report) {
  uint64_t failed = 0;
  const uint64_t hash = Player<Allocator>(trace, limit).PlayAndHash(&failed);
  if (failed != 0) report.Fail(trace.name + ": " + std::to_string(failed) + " requests failed on " + side);
  return hash;
}

double GeometricMean(const std::vector<double> &values) {
  double sum = 0;
  for (double value : values) sum += std::log(value);
  return std::exp(sum / static_cast<double>(values.size()));
}

}  // namespace

void BenchTraces(const BenchOptions &options, Report &report) {
  report.Section("traces", "Recorded traces, one fixed region of 1.25 times the peak");
  std::vector<double> ours, theirs, ratios;
  std::string worst;
  for (const std::string &path : options.traces) {
    Trace trace;
    if (!Parse(path, &trace)) {
      report.Fail(path + ": not a trace, or unreadable (it must be uncompressed)");
      continue;
    }
    const uint64_t limit = trace.peak / 4 * 5 / 256 * 256;  // golden.tsv's mode 'fixed'
    Cost libbfc, tensorflow;
    const uint64_t hash = Hash<BenchLibbfc>(trace, limit, "libbfc", report);
#ifndef BFC_WITHOUT_TENSORFLOW
    if (Hash<BenchTensorFlow>(trace, limit, "tensorflow", report) != hash) {
      report.Fail(trace.name + ": the two place differently, so their times do not compare");
    }
#else
    (void)hash;
#endif
    for (int round = 0; round < options.rounds; ++round) {
      Measure<BenchLibbfc>(trace, limit, options.measure_ms, &libbfc);
#ifndef BFC_WITHOUT_TENSORFLOW
      Measure<BenchTensorFlow>(trace, limit, options.measure_ms, &tensorflow);
#endif
    }
    const Figure steady = Compare(Better::kLower, libbfc.steady, tensorflow.steady);
    report.Add(trace.name, "ns/op", Better::kLower, steady);
    report.Add(trace.name + ", first pass", "ns/op", Better::kLower,
               Compare(Better::kLower, libbfc.first, tensorflow.first));
    ours.push_back(steady.libbfc);
    if (steady.has_tensorflow) {
      theirs.push_back(steady.tensorflow);
      ratios.push_back(steady.ratio);
    }
  }
  if (ours.empty()) return;
  report.Summary("traces_libbfc_geomean_ns", GeometricMean(ours));
  if (theirs.empty()) return;
  report.Summary("traces_tensorflow_geomean_ns", GeometricMean(theirs));
  report.Summary("traces_ratio_geomean", GeometricMean(ratios));
  report.Summary("traces_ratio_worst", *std::max_element(ratios.begin(), ratios.end()));
}

namespace {

// The pair with streams against the plain one, interleaved.
template <class Streams>
double AgainstPlain(const BenchOptions &options, Report &report, const Trace &trace, uint64_t limit,
                    const std::string &name) {
  Hash<Streams>(trace, limit, name.c_str(), report);
  Cost streams, plain;
  for (int round = 0; round < options.rounds; ++round) {
    Measure<Streams>(trace, limit, options.measure_ms, &streams);
    Measure<BenchLibbfc>(trace, limit, options.measure_ms, &plain);
  }
  const Figure figure = Compare(Better::kLower, streams.steady, plain.steady);
  report.Add(trace.name + ", " + name, "ns/op", Better::kLower, figure);
  return figure.ratio;
}

}  // namespace

// One stream on every trace, in the region of section traces. On serve_mix the four streams of the recorded program,
// in a region of twice the peak: what one of them freed others may have only once it is synchronised, which happens
// to one of the four after every 64 calls, and counts. Without any synchronisation each stream lives on what it freed
// itself. A request's chunks lie side by side as its stream made them; the hardest case is the one in which every
// neighbour is another stream's: the same requests dealt out to four streams in turn.
void BenchStreamOrder(const BenchOptions &options, Report &report) {
  report.Section("streams", "bfc_alloc_async and bfc_free_async against the plain pair", "plain");
  std::vector<double> ratios;
  for (const std::string &path : options.traces) {
    Trace one, four, dealt;
    if (!Parse(path, &one, 1) || !Parse(path, &four) || !Parse(path, &dealt, 4)) {
      report.Fail(path + ": not a trace, or unreadable (it must be uncompressed)");
      continue;
    }
    const uint64_t limit = one.peak / 4 * 5 / 256 * 256;
    ratios.push_back(AgainstPlain<BenchStreams<0>>(options, report, one, limit, "one stream"));
    if (one.name != "serve_mix") continue;
    AgainstPlain<BenchStreams<0, false>>(options, report, one, limit, "one stream after a plain call");
    AgainstPlain<BenchStreams<64>>(options, report, four, 2 * one.peak, "four streams");
    AgainstPlain<BenchStreams<0>>(options, report, four, 4 * one.peak, "four, never in step");
    AgainstPlain<BenchStreams<64>>(options, report, dealt, 2 * one.peak, "dealt to four");
    AgainstPlain<BenchStreams<0>>(options, report, dealt, 4 * one.peak, "dealt to four, never in step");
  }
  if (!ratios.empty()) report.Summary("one_stream_ratio_geomean", GeometricMean(ratios));
}
