/* The real ONNX Runtime runs a model with libbfc's memory. Each case is a process of its own: model LIBRARY MODEL CASE.
 *
 * SPDX-License-Identifier: Apache-2.0 OR MIT
 */
#include "counting.h"
#include "heap.h"
#include "ort.h"

#include <sys/wait.h>

#include <atomic>
#include <thread>

namespace {

bfc::options on_host(std::uint64_t limit = 1u << 30) {
  return bfc::options::growing().backend(bfc::backend::host).memory_limit(limit).name("ort");
}

/* Nothing is live, and all that was taken came back. */
void check_clean(bfc::pool &pool) {
  const bfc_stats_t stats = pool.stats();
  CHECK(stats.bytes_in_use == 0 && stats.bytes_requested == 0);
  CHECK(stats.num_allocs == stats.num_frees);
  pool.check();
  pool.destroy();
}

bool is_ours(const Value &value) {
  std::int32_t owner = -1;
  return bfc_owner(value.data(), &owner) == BFC_OK && owner == bfc::host_device;
}

/* Many shapes: the same outputs to the bit, in libbfc's memory. */
void outputs(const char *library, const char *model) {
  Ort ort(library);
  bfc::pool pool(bfc::host_device, on_host());
  bfc::ort_allocator &memory = bfc::ort_allocator::cpu(ort.base, pool);
  bfc::ort_registration registration(ort.base, ort.env, memory);
  Session with(ort, model);
  Session without(ort, model, {false, true, 1, false});
  CHECK(!with.failure && !without.failure);
  const bfc_stats_t made = pool.stats();
  CHECK(made.num_allocs > 0 && memory.reserved() > 0);
  for (const Input &input : inputs(150, 1)) {
    Failure why;
    const std::uint64_t before = pool.stats().num_allocs;
    CHECK(same_bits(with.numbers(input), without.numbers(input)));
    CHECK(pool.stats().num_allocs > before + 10);
    for (const Value &value : with.run(input, why)) {
      CHECK(is_ours(value));
      CHECK(reinterpret_cast<std::uintptr_t>(value.data()) % 256 == 0);
    }
    for (const Value &value : without.run(input, why)) CHECK(!is_ours(value));
    /* What a run took came back; what the session keeps stays. */
    CHECK(pool.stats().bytes_requested == made.bytes_requested);
  }
  with.end();
  without.end();
  registration.end();
  check_clean(pool);
}

/* All memory that ONNX Runtime takes by its own allocator without libbfc it takes from libbfc with it, request by
 * request and byte by byte; and by the heap it takes the same as before. */
void account(const char *library, const char *model) {
  Ort ort(library);
  bfc::pool pool(bfc::host_device, on_host());
  Counting counting(bfc::ort_allocator::cpu(ort.base, pool));
  ort.must(ort.api.RegisterAllocator(ort.env, &counting));
  const std::vector<Input> all = inputs(40, 2);
  const auto work = [&](bool is_shared, Heap &made, Heap &run) {
    std::unique_ptr<Session> session;
    {
      const Counted counted;
      session = std::make_unique<Session>(ort, model, Settings{is_shared, false, 1, false});
      made = counted.so_far();
    }
    CHECK(!session->failure);
    const std::uint64_t after = counting.requests;
    const Counted counted;
    for (const Input &input : all) {
      Failure why;
      session->run(input, why);
      CHECK(!why);
    }
    run = counted.so_far();
    return after;
  };
  Heap made, run, made_with, run_with;
  work(false, made, run);
  CHECK(counting.requests == 0 && pool.stats().num_allocs == 0);
  const std::uint64_t requests_made = work(true, made_with, run_with);
  const std::uint64_t requests_run = counting.requests - requests_made;
  const std::uint64_t requests = counting.requests + counting.reserves;
  std::printf("without: %llu requests, %llu bytes; a session's creation is %llu of them\n",
              static_cast<unsigned long long>(made.aligned + run.aligned),
              static_cast<unsigned long long>(made.aligned_bytes + run.aligned_bytes),
              static_cast<unsigned long long>(made.aligned));
  std::printf("with: %llu requests, %llu bytes; %llu, of %llu bytes, by Reserve; %llu in %zu runs\n",
              static_cast<unsigned long long>(requests),
              static_cast<unsigned long long>(counting.bytes + counting.reserved_bytes),
              static_cast<unsigned long long>(counting.reserves.load()),
              static_cast<unsigned long long>(counting.reserved_bytes.load()),
              static_cast<unsigned long long>(requests_run), all.size());
  std::printf(
      "with, from the heap: %llu requests, %llu bytes at creation, %llu, %llu in runs\n",
      static_cast<unsigned long long>(made_with.aligned), static_cast<unsigned long long>(made_with.aligned_bytes),
      static_cast<unsigned long long>(run_with.aligned), static_cast<unsigned long long>(run_with.aligned_bytes));
  std::printf("large pieces of the heap in runs: %llu, %llu bytes without; %llu, %llu with\n",
              static_cast<unsigned long long>(run.large), static_cast<unsigned long long>(run.large_bytes),
              static_cast<unsigned long long>(run_with.large), static_cast<unsigned long long>(run_with.large_bytes));
  std::printf("large pieces of the heap at creation: %llu, %llu bytes without; %llu, %llu with\n",
              static_cast<unsigned long long>(made.large), static_cast<unsigned long long>(made.large_bytes),
              static_cast<unsigned long long>(made_with.large), static_cast<unsigned long long>(made_with.large_bytes));
  CHECK(run.aligned > 1000 && run_with.aligned == 0);
  CHECK(requests_run == run.aligned && counting.reserves > 0);
  CHECK(run_with.large <= run.large && run_with.large_bytes <= run.large_bytes);
  CHECK(made.aligned + run.aligned == requests + made_with.aligned);
  CHECK(made.aligned_bytes + run.aligned_bytes == counting.rounded + made_with.aligned_bytes);
  CHECK(counting.frees - counting.nulls == requests - counting.zeros);
  ort.must(ort.api.UnregisterAllocator(ort.env, ort.cpu));
  check_clean(pool);
}

/* At each limit from too little for the session to enough for all: ONNX Runtime's error with libbfc's words, nothing
 * lost, and what fits is served afterwards. */
void limits(const char *library, const char *model) {
  Ort ort(library);
  bfc::pool pool(bfc::host_device, on_host());
  bfc::ort_registration registration(ort.base, ort.env, bfc::ort_allocator::cpu(ort.base, pool));
  const Input small(1, 2, 1);
  const std::vector<Input> all = inputs(12, 3);
  std::vector<std::vector<std::vector<float>>> expected;
  {
    Session session(ort, model);
    expected.push_back(session.numbers(small));
    for (const Input &input : all) expected.push_back(session.numbers(input));
  }
  int sessions = 0, refused = 0, runs = 0, failed = 0;
  const auto check_failure = [](const Failure &why) {
    CHECK(why.code == ORT_RUNTIME_EXCEPTION || why.code == ORT_FAIL);
    CHECK(why.says("bfc_alloc: ort: no memory for "));
  };
  for (std::uint64_t limit = 64 << 10; limit <= 4 << 20; limit += limit / 8 / 256 * 256) {
    /* The registered allocator finds the pool by its ordinal: another one each time. */
    check_clean(pool);
    pool = bfc::pool(bfc::host_device, on_host(limit));
    Session session(ort, model);
    if (session.failure) {
      check_failure(session.failure);
      CHECK(session.failure.says("Exception during initialization"));
      refused += 1;
      continue;
    }
    sessions += 1;
    const std::uint64_t kept = pool.stats().bytes_requested;
    for (std::size_t index = 0; index < all.size(); ++index) {
      Failure why;
      const std::vector<Value> values = session.run(all[index], why);
      if (why) {
        check_failure(why);
        CHECK(values.empty() && pool.stats().bytes_requested == kept);
        failed += 1;
        Failure none;
        const std::vector<Value> again = session.run(small, none);
        CHECK(none || same_bits({again.at(0).numbers(), again.at(1).numbers()}, expected[0]));
        /* What the session keeps and this is less than 512 KiB. */
        CHECK(!none || limit < 512 << 10);
        continue;
      }
      runs += 1;
      CHECK(same_bits({values.at(0).numbers(), values.at(1).numbers()}, expected[index + 1]));
    }
    CHECK(pool.stats().bytes_requested == kept);
    pool.check();
  }
  std::printf("%d sessions were made, %d refused; %d runs, %d failed\n", sessions, refused, runs, failed);
  CHECK(sessions > 10 && refused > 5 && runs > 50 && failed > 20);
  check_clean(pool);
}

void check_injected(const Failure &why) {
  /* FAIL where a run takes all of its memory at once, as it does for a shape that it has seen. */
  CHECK(why.code == ORT_RUNTIME_EXCEPTION || why.code == ORT_FAIL);
  CHECK(why.says("injected"));
}

/* Each request of a session's creation and of a run fails once: an error each time, nothing is lost. */
void each_fails_so(const Ort &ort, const char *model, Counting &counting, const bfc::pool &pool, Settings settings) {
  long creation = 0;
  for (;; ++creation) {
    counting.fail_at(creation);
    const Session session(ort, model, settings);
    if (!session.failure) break;
    check_injected(session.failure);
    CHECK(pool.stats().bytes_requested == 0);
  }
  counting.fail_at(-1);
  const Session session(ort, model, settings);
  const std::uint64_t kept = pool.stats().bytes_requested;
  const Input input(7, 19, 5);
  const auto expected = session.numbers(input);
  long run = 0;
  for (;; ++run) {
    Failure why;
    counting.fail_at(run);
    if (session.run(input, why); !why) break;
    check_injected(why);
    CHECK(pool.stats().bytes_requested == kept);
    counting.fail_at(-1);
    CHECK(same_bits(session.numbers(input), expected));
  }
  counting.fail_at(-1);
  std::printf("%ld requests of a creation failed, and %ld of a run\n", creation, run);
  CHECK(creation > 3 && run > 10);
}

/* With operations one after another, and at once. */
void each_fails(const char *library, const char *model) {
  Ort ort(library);
  bfc::pool pool(bfc::host_device, on_host());
  Counting counting(bfc::ort_allocator::cpu(ort.base, pool));
  ort.must(ort.api.RegisterAllocator(ort.env, &counting));
  for (const bool is_parallel : {false, true}) {
    each_fails_so(ort, model, counting, pool, {true, true, 3, is_parallel});
  }
  ort.must(ort.api.UnregisterAllocator(ort.env, ort.cpu));
  check_clean(pool);
}

/* Three sessions in four threads each, on one pool; half of the runs may fail for want of memory. */
void threads(const char *library, const char *model) {
  Ort ort(library);
  bfc::pool pool(bfc::host_device, on_host(6 << 20));
  bfc::ort_registration registration(ort.base, ort.env, bfc::ort_allocator::cpu(ort.base, pool));
  const std::vector<Input> all = inputs(24, 4, 12, 48);
  std::vector<std::vector<std::vector<float>>> expected;
  {
    Session without(ort, model, {false, true, 1, false});
    for (const Input &input : all) expected.push_back(without.numbers(input));
  }
  std::vector<std::unique_ptr<Session>> sessions;
  for (int index = 0; index < 3; ++index) {
    sessions.push_back(std::make_unique<Session>(ort, model, Settings{true, true, 1 + index % 2, false}));
    CHECK(!sessions.back()->failure);
  }
  const std::uint64_t kept = pool.stats().bytes_requested;
  std::atomic<int> wrong{0}, done{0}, failed{0}, strange{0};
  std::vector<std::thread> workers;
  for (unsigned worker = 0; worker < 12; ++worker) {
    workers.emplace_back([&, worker] {
      std::mt19937 random(worker);
      for (int index = 0; index < 40; ++index) {
        const std::size_t which = random() % all.size();
        Failure why;
        const std::vector<Value> values = sessions[worker % 3]->run(all[which], why);
        if (why) {
          failed += 1;
          strange += !why.says("no memory for");
          continue;
        }
        done += 1;
        wrong += !same_bits({values.at(0).numbers(), values.at(1).numbers()}, expected[which]);
      }
    });
  }
  for (std::thread &worker : workers) worker.join();
  std::printf("%d runs in 12 threads, %d failed for want of memory\n", done.load(), failed.load());
  CHECK(wrong == 0 && strange == 0 && done + failed == 480 && done > 20);
  CHECK(pool.stats().bytes_requested == kept);
  sessions.clear();
  registration.end();
  check_clean(pool);
}

/* A value outlives the registration, the session and the environment; libbfc's pool stays for it. */
void lifetime(const char *library, const char *model) {
  Ort ort(library);
  auto pool = std::make_unique<bfc::pool>(bfc::host_device, on_host());
  auto &memory = bfc::ort_allocator::cpu(ort.base, *pool);
  CHECK(&memory == &bfc::ort_allocator::cpu(ort.base, *pool));
  bfc::ort_registration registration(ort.base, ort.env, memory);
  auto session = std::make_unique<Session>(ort, model);
  const Input input(3, 5, 6);
  const auto expected = session->numbers(input);
  registration.end();
  CHECK(!registration);
  {
    /* New sessions are not libbfc's any more. */
    const std::uint64_t before = pool->stats().num_allocs;
    const Session later(ort, model);
    CHECK(same_bits(later.numbers(input), expected) && pool->stats().num_allocs == before);
  }
  Failure why;
  auto values = std::make_unique<std::vector<Value>>(session->run(input, why));
  CHECK(!why && is_ours(values->at(0)));
  session.reset();
  ort.end();
  std::error_code ec;
  pool->destroy(ec);
  CHECK(ec == bfc::errc::busy);
  pool.reset();
  CHECK(is_ours(values->at(0)));
  CHECK(same_bits({values->at(0).numbers(), values->at(1).numbers()}, expected));
  values.reset();
  bfc::pool again = bfc::pool::adopt(bfc::device(bfc::host_device));
  check_clean(again);
}

/* One registration takes the place of another, and the end of the first does not end the second (with older headers it
 * does). */
void replaced(const char *library, const char *model) {
  Ort ort(library);
  bfc::pool first_pool(bfc::host_device, on_host());
  bfc::device second_pool(300);
  bfc::ort_registration first(ort.base, ort.env, bfc::ort_allocator::cpu(ort.base, first_pool));
  /* Nobody has made that one. */
  bfc::ort_registration second(ort.base, ort.env, bfc::ort_allocator::cpu(ort.base, second_pool));
#if ORT_API_VERSION >= 23
  first.end();
#endif
  const Session session(ort, model);
  CHECK(!session.failure);
  session.numbers(Input(2, 2, 1));
  CHECK(first_pool.stats().num_allocs == 0 && second_pool.stats().num_allocs > 10);
  {
    /* Another one of the same takes nothing away at its end. */
    const bfc::ort_registration third(ort.base, nullptr, second.memory());
  }
  const std::uint64_t before = second_pool.stats().num_allocs;
  const Session later(ort, model);
  CHECK(second_pool.stats().num_allocs > before);
  bfc::ort_registration moved(std::move(second));
  CHECK(!second && moved);
  moved.end();
  moved.end();
}

/* Why Alloc throws: ONNX Runtime does not look whether a tensor's memory is NULL. In children, which may crash. */
void null_crashes(const char *library, const char *model) {
  const auto child = [&](bfc::ort_failure failure) {
    const pid_t made = fork();
    CHECK(made >= 0);
    if (made == 0) {
      Ort ort(library);
      bfc::pool pool(bfc::host_device, on_host(600000));
      bfc::ort_registration registration(ort.base, ort.env, bfc::ort_allocator::cpu(ort.base, pool, failure));
      const Session session(ort, model);
      Failure why;
      if (!session.failure) session.run(Input(16, 20, 1), why);
      _exit(why ? 3 : 4);
    }
    int status = 0;
    CHECK(waitpid(made, &status, 0) == made);
    return status;
  };
  const int throwing = child(bfc::ort_failure::throwing);
  CHECK(WIFEXITED(throwing) && WEXITSTATUS(throwing) == 3);
  const int null = child(bfc::ort_failure::returning_null);
  CHECK(WIFSIGNALED(null) && WTERMSIG(null) == SIGSEGV);
}

constexpr Case cases[] = {
    {"outputs", outputs}, {"account", account},   {"limits", limits},     {"each_fails", each_fails},
    {"threads", threads}, {"lifetime", lifetime}, {"replaced", replaced}, {"null_crashes", null_crashes},
};

}  // namespace

int main(int argc, char **argv) { return run_case(cases, argc, argv); }
