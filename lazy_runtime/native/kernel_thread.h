// Where torch's kernels and ours run inside of an XLA program: a thread for each device.
//
// Kernels divide their work by OpenMP, and libgomp gives each thread that calls them workers of its own. Once there are
// more workers than cores, those that have nothing to do go to sleep at once, and to wake them takes longer than a small
// kernel does. XLA calls from whichever thread it is in. So all calls go to one thread; XLA learns later that they are
// done, and carries on in that thread, where the next call needs no handing over.
//
// The workers of that thread stay awake for milliseconds. Where the program computes something itself between two calls,
// and where there is no call at all, they yield (`yielding.h`): the user's thread, woken by the last program's end, has
// often had to share a worker's processor, and come with the next program 3 ms late. A thread that has had nothing to do for
// a while ends its workers, so that the user's own operators on the CPU have the cores' only ones; to make them anew
// takes some 3 ms.
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
#include "openmp.h"
#include "yielding.h"

class KernelThread {
 public:
  // Where a program calls a kernel: the same each time that it does.
  using Site = const void*;

  // A kernel, and what is to follow it: as a rule, the program goes on to its next kernel.
  struct Task {
    Site site;
    std::function<void()> kernel;
    std::function<void()> then;
  };

  // That of a device, which lasts until the process ends: devices wait for one another in collectives.
  static KernelThread& of(int device) {
    static auto* mutex = new std::mutex;
    static auto* threads = new std::unordered_map<int, KernelThread*>;
    std::lock_guard<std::mutex> lock(*mutex);
    KernelThread*& thread = (*threads)[device];
    if (thread == nullptr) thread = new KernelThread;
    return *thread;
  }

  // Whether the caller, who has come to a kernel, is to run it and to go on by itself, as what follows a task of this
  // thread may. Then it says when the kernel is done.
  bool runs_here(Site site) {
    if (current_ != this) return false;
    arrived();
    return !yields_ && took_[site] < brief_;
  }

  void ran(Site site) {
    left_ = site;
    left_at_ = std::chrono::steady_clock::now();
  }

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
    while (true) {
      Task task = next();
      task.kernel();
      carry_on(task);
    }
  }

  // To have the workers yield costs two meetings with them, and threads that they have made room for spin too when they
  // are done. It pays where the program computes something itself, which the last time shows.
  void carry_on(const Task& task) {
    if (took_.size() > most_sites_) took_.clear();
    yields_ = took_[task.site] >= brief_;
    ran(task.site);
    if (yields_) {
      Yielding::during(task.then);
    } else {
      task.then();
    }
    arrived();
    yields_ = false;
  }

  // The program has come to its next kernel, or as far as it can.
  void arrived() {
    if (left_ == nullptr) return;
    took_[left_] = std::chrono::steady_clock::now() - left_at_;
    left_ = nullptr;
  }

  Task next() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (tasks_.empty()) {  // of which only this thread takes one
      lock.unlock();
      rest();
      lock.lock();
    }
    Task task = std::move(tasks_.front());
    tasks_.pop_front();
    return task;
  }

  // Until there is something to do. Who waited for the program goes on now, as likely as not on a worker's processor.
  void rest() {
    const auto since = std::chrono::steady_clock::now();
    const auto is_wanted = [this] { return !tasks_.empty(); };
    bool in_time = false;
    Yielding::during([&] {
      std::unique_lock<std::mutex> lock(mutex_);
      in_time = added_.wait_for(lock, idle_, is_wanted);
    });
    if (!in_time) {
      end_workers();
      std::unique_lock<std::mutex> lock(mutex_);
      added_.wait(lock, is_wanted);
    }
    if (std::chrono::steady_clock::now() - since > workers_spin) MoveApart::run();
  }

  static constexpr std::chrono::milliseconds idle_{100};
  static constexpr std::chrono::microseconds brief_{100};
  static constexpr size_t most_sites_ = 1 << 16;

  // of this thread alone
  std::unordered_map<Site, std::chrono::steady_clock::duration> took_;  // the way to the next kernel, the last time
  Site left_ = nullptr;                                                 // the kernel that the program comes from
  std::chrono::steady_clock::time_point left_at_;
  bool yields_ = false;

  std::mutex mutex_;
  std::condition_variable added_;
  std::deque<Task> tasks_;
  static thread_local KernelThread* current_;
};

inline thread_local KernelThread* KernelThread::current_ = nullptr;
