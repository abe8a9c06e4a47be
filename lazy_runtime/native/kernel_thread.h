// Where torch's kernels run inside of an XLA program that consists of little else: a thread for each device.
//
// Kernels divide their work by OpenMP, and libgomp gives each thread that calls them workers of its own. Once there are
// more workers than cores, those that have nothing to do go to sleep at once, and to wake them takes longer than a small
// kernel does. XLA calls from whichever thread it is in. So all calls go to one thread; XLA learns later that they are
// done, and carries on in that thread, where the next call needs no handing over.
//
// The workers of that thread stay awake for milliseconds, and take the cores from XLA's own: programs in which XLA computes
// much between the calls are faster without (a training step of a mobilenet_v2 by a sixth). A thread that has had nothing
// to do for a while ends its workers, so that the user's own operators on the CPU have the cores' only ones; to make them
// anew takes some 3 ms.
#pragma once

#include <pthread.h>
#include <sched.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <unordered_map>
#include <utility>

#include "move_apart.h"

// Of OpenMP 5: ends the workers that the calling thread has, if any; it gets others when it needs them. A torch that was
// built without OpenMP has none of it.
extern "C" __attribute__((weak)) int omp_pause_resource_all(int kind);

inline void end_workers() {
  constexpr int soft = 1;
  if (omp_pause_resource_all != nullptr) omp_pause_resource_all(soft);
}

class KernelThread {
 public:
  using Task = std::function<void()>;

  // That of a device, which lasts until the process ends: devices wait for one another in collectives.
  static KernelThread& of(int device) {
    static auto* mutex = new std::mutex;
    static auto* threads = new std::unordered_map<int, KernelThread*>;
    std::lock_guard<std::mutex> lock(*mutex);
    KernelThread*& thread = (*threads)[device];
    if (thread == nullptr) thread = new KernelThread;
    return *thread;
  }

  bool is_current() const { return current_ == this; }

  void add(Task task) {
    {
      std::lock_guard<std::mutex> lock(mutex_);
      tasks_.push_back(std::move(task));
    }
    added_.notify_one();
  }

 private:
  KernelThread() {
    std::thread([this] { serve(); }).detach();
  }

  void serve() {
    current_ = this;
    pthread_setname_np(pthread_self(), "aten_kernels");
    sched_param none{};
    sched_setscheduler(0, SCHED_BATCH, &none);  // as XLA's threads (`xla_devices.py`); so are the workers
    while (true) next()();
  }

  Task next() {
    std::unique_lock<std::mutex> lock(mutex_);
    auto is_wanted = [this] { return !tasks_.empty(); };
    const bool rested = !added_.wait_for(lock, awake_, is_wanted);
    if (rested && !added_.wait_for(lock, idle_ - awake_, is_wanted)) {
      lock.unlock();
      end_workers();
      lock.lock();
      added_.wait(lock, is_wanted);
    }
    if (rested) {
      lock.unlock();
      MoveApart::run();
      lock.lock();
    }
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    return task;
  }

  static constexpr std::chrono::milliseconds awake_{10};  // workers spin for about as long
  static constexpr std::chrono::milliseconds idle_{100};
  std::mutex mutex_;
  std::condition_variable added_;
  std::deque<Task> tasks_;
  static thread_local KernelThread* current_;
};

inline thread_local KernelThread* KernelThread::current_ = nullptr;
