// A persistent pool of threads for many short parallel loops.
//
// A decode step is about 150 loops of 20 to 500 µs each, on cores that other processes (the HTTP server first of all)
// take away for a moment now and then. So work is handed out in small chunks through an atomic cursor, the caller works
// too, and a worker that comes late finds nothing left instead of delaying all others: a static split between spinning
// barriers becomes 10 to 30 times slower in that situation.
//
// A cursor that many cores change is a queue: each waits some 100 ns for its line, 192 of them longer than many a loop
// takes. So every 8 threads have a cursor over a part of the chunks, and take those of others when theirs are gone
// (benchmarks/many_threads.py).
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <thread>
#include <type_traits>
#include <vector>

namespace dragoman {

// Tells the processor that a loop spins.
inline void pause() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A task to be run once, by any thread, while loops run. Its exception is kept in `error`.
struct BackgroundTask {
  std::function<void()> run;
  std::exception_ptr error;
  std::atomic<bool> done{false};
};

class ThreadPool {
 public:
  // The time of loops that follow each other closely, such as those of a step: threads stay awake from its beginning to
  // its end and a little longer, because waking one up takes longer than many a loop. A task is run by one of them
  // meanwhile, or by the caller, and is done when the scope ends.
  class ActiveScope {
   public:
    explicit ActiveScope(ThreadPool& pool, BackgroundTask* task = nullptr) : pool_(pool), task_(task) {
      pool_.begin_active(task_);
    }
    ~ActiveScope() { pool_.end_active(task_); }
    ActiveScope(const ActiveScope&) = delete;
    ActiveScope& operator=(const ActiveScope&) = delete;

   private:
    ThreadPool& pool_;
    BackgroundTask* const task_;
  };

  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  // Number of threads that work on a loop, the caller included.
  int threads() const { return threads_.load(std::memory_order_relaxed); }
  // Number of threads that take chunks in turns, ascending ones unless they have none left of their own.
  int threads_of_cursor() const { return (threads() + cursors_of(threads()) - 1) / cursors_of(threads()); }
  // The grain for `count` items of which `grain` take some 10 µs: with more threads than there would be chunks smaller
  // ones, down to an eighth, below which handing them out takes longer. A single chunk stays one.
  long fair_grain(long count, long grain) const {
    return count <= grain ? grain : std::min(grain, std::max({1L, grain / 8, count / (2L * threads())}));
  }
  // Waits for a running loop to end. Throws std::invalid_argument when threads < 1 or > 1024.
  void resize(int threads);

  // Calls body(begin, end) for disjoint ranges that cover [0, count), each of at most `grain` items, on any thread and
  // in any order; returns when all are done. The body must not throw. A loop of one chunk, a nested loop, and a loop
  // started while another thread's loop has the pool run entirely in the caller.
  template <class Body>
  void parallel_for(long count, long grain, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    run(
        count, grain, Order::any,
        [](void* context, long begin, long end) { (*static_cast<Plain*>(context))(begin, end); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

  // The same for bodies that wait for those of earlier items: when a chunk begins, all before it have begun.
  template <class Body>
  void parallel_for_ascending(long count, long grain, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    run(
        count, grain, Order::ascending,
        [](void* context, long begin, long end) { (*static_cast<Plain*>(context))(begin, end); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

  // The same for items of equal cost that are adjacent in memory, which is read faster in longer pieces: ranges of any
  // number of grains, at first long ones and towards the end shorter and shorter ones.
  template <class Body>
  void parallel_for_guided(long count, long grain, Body&& body) {
    using Plain = std::remove_reference_t<Body>;
    run(
        count, grain, Order::guided,
        [](void* context, long begin, long end) { (*static_cast<Plain*>(context))(begin, end); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }

 private:
  static constexpr int kThreadsOfCursor = 8, kMostThreads = 1024, kMostCursors = kMostThreads / kThreadsOfCursor;

  enum class Order { any, ascending, guided };
  using Function = void (*)(void* context, long begin, long end);

  void begin_active(BackgroundTask* task);
  void end_active(BackgroundTask* task);
  static void run_task(BackgroundTask& task);
  template <class Condition>
  bool linger_until(Condition condition);
  void run(long count, long grain, Order order, Function function, void* context);
  void work_until_empty(std::uint32_t epoch, int thread);
  void work_on_cursor(std::uint32_t epoch, int number);
  void worker(std::uint32_t epoch, int thread);
  static int cursors_of(int threads) { return (threads + kThreadsOfCursor - 1) / kThreadsOfCursor; }
  void start(int threads);
  void stop();

  // A part of a loop's chunks, from cursor number · chunks / cursors on.
  struct Cursor {
    alignas(64) std::atomic<std::uint64_t> next{0};  // epoch in the high half, next chunk in the low half
    alignas(64) std::atomic<std::uint32_t> done{0};  // chunks finished in this epoch
  };

  // The loop in progress. Written by its caller before the cursors show its epoch; atomics because a late worker may
  // read them while the next loop is being set up (it then fails to claim a chunk and drops what it read).
  std::atomic<Function> function_{nullptr};
  std::atomic<void*> context_{nullptr};
  std::atomic<long> count_{0};
  std::atomic<long> grain_{1};
  std::atomic<std::uint32_t> chunks_{0};
  std::atomic<std::uint32_t> cursors_used_{1};
  std::atomic<std::uint32_t> share_{0};  // one in so many of the remaining chunks is taken at once; 0: one chunk

  Cursor cursors_[kMostCursors];
  alignas(64) std::atomic<std::uint32_t> done_{0};   // cursors whose chunks are all finished
  alignas(64) std::atomic<std::uint32_t> epoch_{0};  // idle workers wait on it
  std::atomic<int> sleepers_{0};
  std::atomic<bool> caller_sleeps_{false};
  std::atomic<bool> stopping_{false};
  std::atomic<int> active_scopes_{0};                        // begun and not ended
  std::atomic<std::int64_t> last_active_ns_{INT64_MIN / 2};  // end of the last one, in nanoseconds of the steady clock
  std::atomic<BackgroundTask*> task_{nullptr};               // not yet taken by a worker

  std::mutex busy_;
  std::atomic<int> threads_{1};  // written with busy_ held, read at any time
  std::vector<std::thread> workers_;
};

// Spins until condition(), which another running thread makes true, yielding to it.
template <class Condition>
void wait_until(Condition condition) {
  for (;;) {
    for (int i = 0; i < 32; ++i) {
      if (condition()) return;
      pause();
    }
    std::this_thread::yield();
  }
}

// The pool of this process, started at first use with one thread per processor this process may run on.
ThreadPool& pool();

}  // namespace dragoman
