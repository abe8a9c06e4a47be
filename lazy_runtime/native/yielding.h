// Has a thread's OpenMP workers leave their processors to whoever wants them, for as long as the thread does something
// else.
//
// Between two regions workers spin, for milliseconds. A thread of XLA's that is woken meanwhile, to do its share of a
// loop, gets no processor before the scheduler's next tick, and the caller does the whole loop alone. Here they yield at
// each turn, and are back at once when the next kernel comes: asleep, they would take longer to wake than a small one.
#pragma once

#include <sched.h>

#include <atomic>
#include <chrono>
#include <functional>

#include "openmp.h"

class Yielding {
 public:
  // Runs the work in the calling thread. It may start no region of OpenMP's that is to have workers.
  static void during(const std::function<void()>& work) {
    if (!has_openmp()) return work();
    Yielding region(work);
    in_all_threads([&] { region.take_part(); });
  }

 private:
  explicit Yielding(const std::function<void()>& work) : work_(work) {}

  void take_part() {
    if (omp_get_thread_num() == 0) {
      work_();
      done_.store(true);
      done_.notify_all();
      return;
    }
    const auto until = std::chrono::steady_clock::now() + workers_spin;
    while (!done_.load() && std::chrono::steady_clock::now() < until) sched_yield();
    done_.wait(false);
  }

  const std::function<void()>& work_;
  std::atomic<bool> done_{false};
};
