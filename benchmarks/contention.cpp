// How often threads of the pool want the same chunk at the same time: see contention.py. Arguments: milliseconds for
// each number of threads and kind of loop, then the numbers of threads. Prints a line for each number and kind of loop:
// threads, microseconds of a chunk, chunks, claims, lost claims.
#define DRAGOMAN_COUNT_LOST_CLAIMS
#include "thread_pool.cpp"

#include <cstdio>
#include <cstdlib>

namespace {

using dragoman::ThreadPool;
using Clock = std::chrono::steady_clock;

constexpr long kChunksOfThread = 24;  // as products of many rows have

// Loops for some time. Returns false where a loop did not do each of its chunks once.
bool count(ThreadPool& pool, std::chrono::milliseconds time, long chunk_us, bool guided) {
  const long chunks = kChunksOfThread * pool.threads();
  std::atomic<long> claims{0};
  std::vector<long> done(static_cast<std::size_t>(chunks));  // each written by the thread that has claimed it
  const auto body = [&](long begin, long end) {
    claims.fetch_add(1, std::memory_order_relaxed);
    for (long i = begin; i < end; ++i) {
      ++done[static_cast<std::size_t>(i)];
      const Clock::time_point finished = Clock::now() + std::chrono::microseconds(chunk_us);
      while (chunk_us > 0 && Clock::now() < finished) dragoman::pause();
    }
  };
  dragoman::lost_claims = 0;
  long loops = 0;
  const ThreadPool::ActiveScope active(pool);
  for (const Clock::time_point end = Clock::now() + time; loops == 0 || Clock::now() < end; ++loops) {
    if (guided) {
      pool.parallel_for_guided(chunks, 1, body);
    } else {
      pool.parallel_for(chunks, 1, body);
    }
  }
  std::printf("%d %ld %s %ld %ld %ld\n", pool.threads(), chunk_us, guided ? "guided" : "single", loops * chunks,
              claims.load(), dragoman::lost_claims.load());
  std::fflush(stdout);
  return std::all_of(done.begin(), done.end(), [&](long times) { return times == loops; });
}

}  // namespace

int main(int arguments, char** values) {
  bool right = arguments > 2;
  for (int i = 2; i < arguments; ++i) {
    const std::chrono::milliseconds time(std::atoi(values[1]));
    ThreadPool pool(std::atoi(values[i]));
    for (const long chunk_us : {0L, 10L}) {
      for (const bool guided : {false, true}) right = count(pool, time, chunk_us, guided) && right;
    }
  }
  return right ? 0 : 1;
}
