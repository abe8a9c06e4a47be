// What the package asks of OpenMP. Declared weakly, not linked: it is to be torch's own, and a torch that was built without
// has none.
#pragma once

#include <chrono>

#include "thread_sanitizer.h"

// GOMP_parallel is what `#pragma omp parallel` is compiled to (libgomp's ABI, which LLVM's OpenMP has as well).
extern "C" __attribute__((weak)) void GOMP_parallel(void (*body)(void*), void* data, unsigned threads, unsigned flags);
extern "C" __attribute__((weak)) int omp_get_num_threads();
extern "C" __attribute__((weak)) int omp_get_max_threads();
extern "C" __attribute__((weak)) int omp_get_thread_num();
extern "C" __attribute__((weak)) int omp_pause_resource_all(int kind);

// About as long as workers that have nothing to do stay awake.
inline constexpr std::chrono::milliseconds workers_spin{10};

inline bool has_openmp() {
  return GOMP_parallel != nullptr && omp_get_num_threads != nullptr && omp_get_max_threads != nullptr &&
         omp_get_thread_num != nullptr;
}

// Runs the body in the calling thread and in each of its workers at the same time.
template <typename Body>
void in_all_threads(Body body) {
  struct Region {
    Body& body;
    Handover begin, end;
  } region{body, {}, {}};
  region.begin.give();
  GOMP_parallel(
      [](void* data) {
        auto& region = *static_cast<Region*>(data);
        region.begin.take();
        region.body();
        region.end.give();
      },
      &region, 0, 0);
  region.end.take();
}

// Of OpenMP 5: ends the workers that the calling thread has, if any; it gets others when it needs them.
inline void end_workers() {
  constexpr int soft = 1;
  if (omp_pause_resource_all != nullptr) omp_pause_resource_all(soft);
}
