// What kernels of ours have in common that work block by block: vectors, memory and threads.

#pragma once

#include <c10/util/Exception.h>

#include <atomic>
#include <cstdint>
#include <cstdlib>
#include <exception>
#include <memory>
#include <mutex>
#include <vector>

#include "openmp.h"

// Small arrays of vectors are to lie in registers.
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif

namespace {

constexpr int64_t lanes = 16;

constexpr int64_t ceil_div(int64_t x, int64_t y) { return (x + y - 1) / y; }

// The compiler makes of it what the processor has.
using Vector = float __attribute__((vector_size(lanes * sizeof(float)), aligned(4), may_alias));

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ >= 12
#define FOR_EACH_PROCESSOR __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#elif defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("avx512f", "avx2", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif
#define INLINE __attribute__((always_inline)) inline

// A vector anywhere in memory: that `Vector` itself is aligned to 4 bytes, clang forgets where it is read by a pointer.
struct __attribute__((packed, may_alias)) Anywhere {
  Vector vector;
};

INLINE Vector load(const float* from) { return reinterpret_cast<const Anywhere*>(from)->vector; }
INLINE void store(float* to, const Vector& x) { reinterpret_cast<Anywhere*>(to)->vector = x; }

// Memory that a thread keeps.
inline float* scratch(int64_t numbers) {
  struct Free {
    void operator()(float* memory) const { std::free(memory); }
  };
  static thread_local std::unique_ptr<float, Free> memory;
  static thread_local int64_t size = 0;
  if (size < numbers) {
    memory.reset(static_cast<float*>(std::aligned_alloc(64, (numbers * sizeof(float) + 63) / 64 * 64)));
    TORCH_CHECK(memory != nullptr, "no memory for ", numbers, " numbers");
    size = numbers;
  }
  return memory.get();
}

// Multiplications from which on work is divided: to meet with a worker takes some microseconds where it spins, and some
// thousand where the user's thread has taken its processor.
constexpr int64_t divided = 1 << 16;

// Numbered work for some threads. Each has a share of numbers that follow one another: the same part of a result as in the
// kernels before and after, which its own cache still holds. Who is done with it helps the others.
class Shares {
 public:
  Shares(int64_t count, int threads) : shares_(threads) {
    for (int64_t i = 0; i < threads; ++i) {
      shares_[i].next = count * i / threads;
      shares_[i].end = count * (i + 1) / threads;
    }
  }

  template <typename Body>
  void work(int thread, Body& body) {
    for (size_t i = 0; i < shares_.size(); ++i) {
      Share& share = shares_[(thread + i) % shares_.size()];
      for (int64_t item; (item = share.next++) < share.end;) body(item);
    }
  }

  // Leaves what is not begun yet.
  void stop() {
    for (Share& share : shares_) share.next = share.end;
  }

 private:
  struct alignas(64) Share {
    std::atomic<int64_t> next;
    int64_t end;
  };
  std::vector<Share> shares_;
};

// Does numbered work in the calling thread and its workers, and throws what one of them throws.
template <typename Body>
void for_each(int64_t count, Body body, int64_t multiplications = divided) {
  if (count == 1 || multiplications < divided || !has_openmp()) {
    for (int64_t item = 0; item < count; ++item) body(item);
    return;
  }
  Shares shares(count, omp_get_max_threads());
  std::exception_ptr failure;
  std::mutex mutex;
  in_all_threads([&] {
    try {
      shares.work(omp_get_thread_num(), body);
    } catch (...) {
      std::lock_guard<std::mutex> lock(mutex);
      failure = std::current_exception();
      shares.stop();
    }
  });
  if (failure) std::rethrow_exception(failure);
}

}  // namespace
