#include "thread_pool.h"

#include <algorithm>
#include <chrono>
#include <stdexcept>

#if defined(__linux__) && !defined(DRAGOMAN_NO_LINUX)
#include <sched.h>
#endif

namespace dragoman {
namespace {

// Long enough to bridge the gap between two loops of a step, short enough not to starve other processes.
constexpr auto kSpin = std::chrono::microseconds(20);

// How long a worker stays awake after an ActiveScope, yielding to every other thread that needs its processor: the work
// between two steps takes less, and waking a processor up takes tens of microseconds on a virtual machine.
constexpr std::int64_t kLingerNs = 1000000;

constexpr std::uint64_t kClosed = 0xffffffff;  // not a valid chunk number

thread_local bool inside_loop = false;

#if defined(DRAGOMAN_COUNT_LOST_CLAIMS)  // by benchmarks/contention.cpp only: the count is one more line to wait for
std::atomic<long> lost_claims{0};
#endif

// Spins until condition() or the spin time is over; returns true when the condition held.
template <class Condition>
bool spin_until(Condition condition) {
  const auto deadline = std::chrono::steady_clock::now() + kSpin;
  do {
    for (int i = 0; i < 32; ++i) {
      if (condition()) return true;
      pause();
    }
  } while (std::chrono::steady_clock::now() < deadline);
  return condition();
}

std::int64_t now_ns() { return std::chrono::nanoseconds(std::chrono::steady_clock::now().time_since_epoch()).count(); }

int available_processors() {
#if defined(__linux__) && !defined(DRAGOMAN_NO_LINUX)
  cpu_set_t set;
  if (sched_getaffinity(0, sizeof set, &set) == 0) return std::max(1, CPU_COUNT(&set));
#endif
  return std::max(1u, std::thread::hardware_concurrency());
}

}  // namespace

ThreadPool::ThreadPool(int threads) { start(threads); }

ThreadPool::~ThreadPool() { stop(); }

void ThreadPool::start(int threads) {
  threads_.store(threads, std::memory_order_relaxed);
  stopping_ = false;
  // Read here, not in the worker: a worker that is slow to start must still notice a loop, or stop(), that started
  // meanwhile.
  const std::uint32_t epoch = epoch_.load();
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, epoch, i] { worker(epoch, i); });
}

void ThreadPool::stop() {
  stopping_ = true;
  epoch_.fetch_add(1);
  epoch_.notify_all();
  for (auto& thread : workers_) thread.join();
  workers_.clear();
}

void ThreadPool::resize(int threads) {
  if (threads < 1 || threads > kMostThreads)
    throw std::invalid_argument("the number of threads must be between 1 and 1024");
  std::lock_guard lock(busy_);
  if (threads == this->threads()) return;
  stop();
  start(threads);
}

void ThreadPool::run(long count, long grain, Order order, Function function, void* context) {
  if (count <= 0) return;
  grain = std::max({1L, grain, (count >> 30) + 1});  // the chunk number must fit its half of the cursor
  const long chunks = (count + grain - 1) / grain;
  std::unique_lock lock(busy_, std::defer_lock);
  if (chunks == 1 || threads() == 1 || inside_loop || !lock.try_lock()) {
    const long piece = order == Order::guided ? count : grain;
    for (long begin = 0; begin < count; begin += piece) function(context, begin, std::min(count, begin + piece));
    return;
  }

  // A late worker may still read the last loop: close its cursors first, so that it cannot claim a chunk there with
  // fields of this loop (a thread that sees a new field also sees the closed cursors).
  const std::uint32_t epoch = epoch_.load(std::memory_order_relaxed) + 1;
  const std::uint32_t before = cursors_used_.load(std::memory_order_relaxed);
  const std::uint64_t shown = static_cast<std::uint64_t>(epoch) << 32;
  for (std::uint32_t i = 0; i < before; ++i) cursors_[i].next.store(shown | kClosed, std::memory_order_relaxed);
  const long used = order == Order::ascending ? 1 : std::min<long>(chunks, cursors_of(threads()));
  const auto cursors = static_cast<std::uint32_t>(used);
  function_.store(function, std::memory_order_release);
  context_.store(context, std::memory_order_release);
  count_.store(count, std::memory_order_release);
  grain_.store(grain, std::memory_order_release);
  chunks_.store(static_cast<std::uint32_t>(chunks), std::memory_order_release);
  cursors_used_.store(cursors, std::memory_order_release);
  const auto sharing = static_cast<std::uint32_t>((threads() + used - 1) / used);
  share_.store(order == Order::guided ? 2 * sharing : 0, std::memory_order_release);
  done_.store(0, std::memory_order_relaxed);
  for (std::uint32_t i = 0; i < cursors; ++i) {
    cursors_[i].done.store(0, std::memory_order_relaxed);
    cursors_[i].next.store(shown | static_cast<std::uint64_t>(chunks * i / used), std::memory_order_release);
  }
  epoch_.store(epoch, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) epoch_.notify_all();

  inside_loop = true;
  work_until_empty(epoch, 0);
  inside_loop = false;

  const auto finished = [&] { return done_.load(std::memory_order_acquire) == cursors; };
  if (!finished() && !spin_until(finished)) {
    caller_sleeps_.store(true, std::memory_order_seq_cst);
    for (std::uint32_t seen = done_.load(); seen != cursors; seen = done_.load()) done_.wait(seen);
    caller_sleeps_.store(false, std::memory_order_relaxed);
  }
}

// Takes chunks of loop `epoch` until none is left, first of its own cursor. Where the number of cursors is already that
// of a later loop, this one is over, and no cursor shows its epoch.
void ThreadPool::work_until_empty(std::uint32_t epoch, int thread) {
  const int cursors = static_cast<int>(cursors_used_.load(std::memory_order_acquire));
  const int own = static_cast<int>(static_cast<long>(thread) * cursors / threads());
  for (int i = 0; i < cursors; ++i) work_on_cursor(epoch, own + i < cursors ? own + i : own + i - cursors);
}

// A chunk is claimed by exchanging the whole cursor, epoch included: a claim that succeeds proves that the loop is not
// over, hence that the fields read before it belong to it.
void ThreadPool::work_on_cursor(std::uint32_t epoch, int number) {
  Cursor& cursor = cursors_[number];
  std::uint64_t next = cursor.next.load(std::memory_order_acquire);
  for (;;) {
    if (static_cast<std::uint32_t>(next >> 32) != epoch) return;
    const auto chunk = static_cast<std::uint32_t>(next);
    const std::uint64_t chunks = chunks_.load(std::memory_order_acquire);
    const std::uint32_t cursors = cursors_used_.load(std::memory_order_acquire);
    const Function function = function_.load(std::memory_order_acquire);
    void* const context = context_.load(std::memory_order_acquire);
    const long count = count_.load(std::memory_order_acquire);
    const long grain = grain_.load(std::memory_order_acquire);
    const std::uint32_t share = share_.load(std::memory_order_acquire);
    const auto first = static_cast<std::uint32_t>(chunks * static_cast<std::uint64_t>(number) / cursors);
    const auto last = static_cast<std::uint32_t>(chunks * (static_cast<std::uint64_t>(number) + 1) / cursors);
    if (chunk >= last) return;
    const std::uint32_t taken = share == 0 ? 1 : std::max(1u, (last - chunk) / share);
    if (!cursor.next.compare_exchange_weak(next, next + taken, std::memory_order_acq_rel, std::memory_order_acquire)) {
#if defined(DRAGOMAN_COUNT_LOST_CLAIMS)
      lost_claims.fetch_add(1, std::memory_order_relaxed);
#endif
      continue;
    }
    const long begin = static_cast<long>(chunk) * grain;
    function(context, begin, std::min(count, begin + static_cast<long>(taken) * grain));
    if (cursor.done.fetch_add(taken, std::memory_order_seq_cst) + taken == last - first &&
        done_.fetch_add(1, std::memory_order_seq_cst) + 1 == cursors &&
        caller_sleeps_.load(std::memory_order_seq_cst)) {
      done_.notify_all();
    }
    next = cursor.next.load(std::memory_order_acquire);
  }
}

void ThreadPool::worker(std::uint32_t seen, int thread) {
  inside_loop = true;  // a loop started by a body runs in its thread
  for (;;) {
    work_until_empty(seen, thread);
    const auto changed = [&] { return epoch_.load(std::memory_order_acquire) != seen; };
    if (!spin_until(changed) && !linger_until(changed)) {
      sleepers_.fetch_add(1, std::memory_order_seq_cst);
      while (epoch_.load(std::memory_order_seq_cst) == seen) epoch_.wait(seen, std::memory_order_seq_cst);
      sleepers_.fetch_sub(1, std::memory_order_seq_cst);
    }
    if (stopping_.load()) return;
    seen = epoch_.load(std::memory_order_acquire);
    if (task_.load(std::memory_order_relaxed) != nullptr) {
      if (BackgroundTask* const task = task_.exchange(nullptr)) run_task(*task);
    }
  }
}

// Keeps waiting in an ActiveScope and some time after it; returns true when the condition held.
template <class Condition>
bool ThreadPool::linger_until(Condition condition) {
  for (;;) {
    for (int i = 0; i < 32; ++i) {
      if (condition()) return true;
      pause();
    }
    std::this_thread::yield();
    const std::int64_t ended = last_active_ns_.load(std::memory_order_relaxed);
    const bool in_scope = active_scopes_.load(std::memory_order_relaxed) > 0;
    if (!in_scope && now_ns() - ended > kLingerNs) return condition();
  }
}

void ThreadPool::run_task(BackgroundTask& task) {
  try {
    task.run();
  } catch (...) {
    task.error = std::current_exception();
  }
  task.done.store(true, std::memory_order_release);  // the task may be destroyed from here on
}

void ThreadPool::begin_active(BackgroundTask* task) {
  active_scopes_.fetch_add(1, std::memory_order_relaxed);
  BackgroundTask* none = nullptr;
  if (task != nullptr && (threads() == 1 || !task_.compare_exchange_strong(none, task))) run_task(*task);
  if (threads() == 1) return;
  const std::unique_lock lock(busy_, std::try_to_lock);
  if (!lock) return;  // another thread's loop is running, and no worker is asleep
  // A loop without chunks: all workers wake up, and check for the task.
  const std::uint32_t epoch = epoch_.load(std::memory_order_relaxed) + 1;
  cursors_[0].next.store((static_cast<std::uint64_t>(epoch) << 32) | kClosed, std::memory_order_release);
  epoch_.store(epoch, std::memory_order_seq_cst);
  if (sleepers_.load(std::memory_order_seq_cst) > 0) epoch_.notify_all();
}

void ThreadPool::end_active(BackgroundTask* task) {
  last_active_ns_.store(now_ns(), std::memory_order_relaxed);
  active_scopes_.fetch_sub(1, std::memory_order_relaxed);
  if (task == nullptr) return;
  BackgroundTask* waiting = task;
  if (task_.compare_exchange_strong(waiting, nullptr)) run_task(*task);  // no worker has taken it
  while (!task->done.load(std::memory_order_acquire)) std::this_thread::yield();
}

ThreadPool& pool() {
  // Never destroyed: at exit its threads may be asleep in a wait, and need not wake up.
  static ThreadPool* const instance = new ThreadPool(available_processors());
  return *instance;
}

}  // namespace dragoman
