// `torch.Generator("xla")`: what a user seeds and passes to random operators on xla.
//
// A random operator takes a 64-bit seed from it (`rng.py`). The seeds are drawn from a generator of the CPU's inside of
// it, as they are where the user passes one of those: the same seed gives the same numbers.

#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Generator.h>
#include <c10/core/GeneratorImpl.h>

#if __has_include(<ATen/detail/XLAHooksInterface.h>)
#include <ATen/detail/XLAHooksInterface.h>
#define LAZY_RUNTIME_HAS_XLA_HOOKS
#endif

#include <mutex>
#include <utility>

namespace {

class XLAGenerator final : public c10::GeneratorImpl {
 public:
  // Without a key, so that an operator on another device is not taken for one on xla: torch's kernel refuses the device.
  XLAGenerator(c10::DeviceIndex index, at::Generator cpu)
      : GeneratorImpl({c10::DeviceType::XLA, index}, c10::DispatchKeySet()), cpu_(std::move(cpu)) {}

  const at::Generator& cpu() const { return cpu_; }

  void set_current_seed(uint64_t seed) override {
    const std::lock_guard<std::mutex> lock(cpu_.mutex());
    cpu_.set_current_seed(seed);
  }
  uint64_t current_seed() const override {
    const std::lock_guard<std::mutex> lock(cpu_.mutex());
    return cpu_.current_seed();
  }
  uint64_t seed() override {
    const std::lock_guard<std::mutex> lock(cpu_.mutex());
    return cpu_.seed();
  }
  void set_state(const c10::TensorImpl& state) override {
    const std::lock_guard<std::mutex> lock(cpu_.mutex());
    cpu_.unsafeGetGeneratorImpl()->set_state(state);
  }
  c10::intrusive_ptr<c10::TensorImpl> get_state() const override {
    const std::lock_guard<std::mutex> lock(cpu_.mutex());
    return cpu_.unsafeGetGeneratorImpl()->get_state();
  }
  // Of a generator that counts its numbers, which this one does not: pickle writes it down for every device's.
  uint64_t get_offset() const override { return 0; }
  void set_offset(uint64_t offset) override {
    TORCH_CHECK(offset == 0, "a generator of xla has no offset: use set_state() with what get_state() gave");
  }

 private:
  XLAGenerator* clone_impl() const override {
    const std::lock_guard<std::mutex> lock(cpu_.mutex());
    return new XLAGenerator(device_.index(), cpu_.clone());
  }

  mutable at::Generator cpu_;
};

// The generator of the CPU's inside of one of xla's; any other as it is.
at::Generator cpu_generator(const at::Generator& generator) {
  if (generator.device().type() != c10::DeviceType::XLA) return generator;
  return static_cast<const XLAGenerator*>(generator.unsafeGetGeneratorImpl())->cpu();
}

}  // namespace
