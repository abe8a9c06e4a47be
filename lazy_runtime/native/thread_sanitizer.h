// Tells ThreadSanitizer what it cannot see: that the barriers of OpenMP, whose library is not built for it, order what the
// threads of a region do. Without it, nothing is done.
#pragma once

#if defined(__has_feature)
#if __has_feature(thread_sanitizer)
#define LAZY_RUNTIME_THREAD_SANITIZER
#endif
#elif defined(__SANITIZE_THREAD__)
#define LAZY_RUNTIME_THREAD_SANITIZER
#endif

#ifdef LAZY_RUNTIME_THREAD_SANITIZER
extern "C" void __tsan_acquire(void* address);
extern "C" void __tsan_release(void* address);
#endif

// What some threads have done when they give is what others see when they take.
class Handover {
 public:
#ifdef LAZY_RUNTIME_THREAD_SANITIZER
  void give() { __tsan_release(this); }
  void take() { __tsan_acquire(this); }
#else
  void give() {}
  void take() {}
#endif
};
