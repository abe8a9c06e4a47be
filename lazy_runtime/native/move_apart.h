// Gives a thread and its OpenMP workers a processor each.
//
// A worker that is woken after a rest may be put on the processor of the thread that wakes it, though another is idle: in
// a virtual machine, one that the host has taken away meanwhile does not count as idle. There it gets its turn when the
// scheduler's tick comes, or when the first thread, which waits for it at the end of the region, has stopped spinning:
// after up to 14 ms with libgomp's 300,000 rounds on processors whose `pause` takes 140 cycles.
#pragma once

#include <sched.h>

#include <array>
#include <atomic>

#include "openmp.h"

class MoveApart {
 public:
  // Of the calling thread and its workers. Takes 0.1 ms; where they may run afterwards is as it was.
  static void run() {
    if (!has_openmp()) return;
    MoveApart threads;
    in_all_threads([&] { threads.place(); });
  }

 private:
  void place() {
    if (!take(sched_getcpu())) move();
    arrived_.fetch_add(1);
    // not left to the end of the region, where a thread spins and keeps those on its processor from moving
    while (arrived_.load() < omp_get_num_threads()) sched_yield();
  }

  // To an allowed processor that none of the others has, if there is one.
  void move() {
    cpu_set_t allowed;
    if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
    for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
      if (!CPU_ISSET(cpu, &allowed) || !take(cpu)) continue;
      cpu_set_t only;
      CPU_ZERO(&only);
      CPU_SET(cpu, &only);
      if (sched_setaffinity(0, sizeof only, &only) == 0) sched_setaffinity(0, sizeof allowed, &allowed);
      return;
    }
  }

  bool take(int cpu) { return cpu < 0 || cpu >= CPU_SETSIZE || !taken_[cpu].exchange(true); }

  std::array<std::atomic<bool>, CPU_SETSIZE> taken_{};
  std::atomic<int> arrived_{0};
};
