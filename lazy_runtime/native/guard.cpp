// Device guard for DeviceType::XLA: what autograd, `.to()` and the dispatcher ask a device for.
//
// PyTorch has a device type named XLA but no guard behind it; without one, `.to("xla")` and `backward()` fail with
// "PyTorch is not linked with support for xla devices". PJRT orders work by data dependence, so streams and events have
// no meaning here: there is one default stream per device and waiting on it is a no-op.
//
// Besides, where `torch.Generator` gets the device's generators, who is asked for quantized tensors on the device, and
// what a thread's modes were before something that an interrupt ended.

#include <ATen/ThreadLocalState.h>
#include <c10/core/DeviceType.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <atomic>
#include <memory>

#include "generator.h"

namespace {

// 0 until xla is first used: autograd sizes its worker queues at the process's first backward(), and worker threads in
// a program that never touches xla would break `fork` followed by `backward()`.
std::atomic<c10::DeviceIndex> device_count{0};
// Somebody, almost surely autograd, asked for the count while it was 0: its queues are fixed without ours.
std::atomic<bool> count_was_zero{false};
thread_local c10::DeviceIndex current_device = 0;

struct XLAGuardImpl final : public c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return c10::DeviceType::XLA; }

  c10::Device getDevice() const override { return {c10::DeviceType::XLA, current_device}; }

  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) current_device = device.index();
  }

  void setDevice(c10::Device device) const override { uncheckedSetDevice(device); }

  c10::Device exchangeDevice(c10::Device device) const override {
    c10::Device previous = getDevice();
    uncheckedSetDevice(device);
    return previous;
  }

  c10::Stream getStream(c10::Device device) const override { return c10::Stream(c10::Stream::DEFAULT, device); }
  c10::Stream getDefaultStream(c10::Device device) const override { return getStream(device); }
  c10::Stream getNewStream(c10::Device device, int) const override { return getStream(device); }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override { return getStream(device); }
  c10::Stream exchangeStream(c10::Stream stream) const override { return getStream(stream.device()); }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream&) const override {}
  void record(void**, const c10::Stream&, const c10::DeviceIndex, const c10::EventFlag) const override {}
  void block(void*, const c10::Stream&) const override {}
  bool queryEvent(void*) const override { return true; }

  c10::DeviceIndex deviceCount() const noexcept override {
    c10::DeviceIndex count = device_count.load();
    if (count == 0) count_was_zero.store(true);
    return count;
  }
};

C10_REGISTER_GUARD_IMPL(XLA, XLAGuardImpl)

#ifdef LAZY_RUNTIME_HAS_XLA_HOOKS
// What torch asks for by the device's type and not by its guard. All but generators is as without hooks.
struct XLAHooks final : public at::XLAHooksInterface {
  XLAHooks() = default;
  explicit XLAHooks(at::XLAHooksArgs) {}

  at::Generator getNewGenerator(c10::DeviceIndex index) const override {
    const c10::DeviceIndex count = device_count.load();
    TORCH_CHECK(count == 0 || index < count, "there is no device xla:", static_cast<int>(index), ": this process has ",
                static_cast<int>(count), " (`torch.xla.device_count()`)");
    if (index < 0) index = current_device;
    return at::make_generator<XLAGenerator>(index, at::detail::createCPUGenerator());
  }

  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    TORCH_CHECK(false,
                "xla devices have no default generator: their random numbers follow torch.manual_seed, or "
                "torch.xla.manual_seed; torch.xla.get_rng_state() is their state");
  }
};

using at::RegistererXLAHooksRegistry, at::XLAHooksRegistry;
C10_REGISTER_TYPED_CLASS(XLAHooksRegistry, "torch_xla::detail::XLAHooks", XLAHooks)  // the name that torch looks for
#endif

// Boxed: the schema that torch infers for a C++ function of generators depends on its version.
void cpu_generator_boxed(const c10::OperatorHandle&, torch::jit::Stack* stack) {
  stack->back() = cpu_generator(stack->back().toGenerator());
}

TORCH_LIBRARY_FRAGMENT(lazy_runtime, library) {
  library.def("cpu_generator(Generator generator) -> Generator",
              torch::CppFunction::makeFromBoxedFunction<&cpu_generator_boxed>());
}

// A quantized dtype and an xla device make a key that Python has no name for. The kernels of plain xla tensors, which are
// in Python, are asked instead: they say what is wrong, and where.
void as_plain(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  op.callBoxedForDispatchKey(c10::DispatchKey::XLA, *stack);
}

TORCH_LIBRARY_IMPL(_, QuantizedXLA, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&as_plain>());
}

TORCH_LIBRARY_IMPL(aten, QuantizedXLA, library) {
  // for any backend torch has a kernel, which leaves a quantized tensor where it is
  library.impl("_to_copy", torch::CppFunction::makeFromBoxedFunction<&as_plain>());
}

}  // namespace

extern "C" {
void xla_guard_set_device_count(int count) { device_count.store(static_cast<c10::DeviceIndex>(count)); }
int xla_guard_count_was_zero() { return count_was_zero.load(); }
int xla_guard_current_device() { return current_device; }
void xla_guard_set_current_device(int index) { current_device = static_cast<c10::DeviceIndex>(index); }

// Torch's modes in the calling thread, which has them back at the end if it `restores` them.
void* xla_thread_state() { return new at::ThreadLocalState(); }
void xla_end_thread_state(void* state, bool restores) {
  const std::unique_ptr<at::ThreadLocalState> kept(static_cast<at::ThreadLocalState*>(state));
  if (restores) at::ThreadLocalState::setThreadLocalState(*kept);
}
}
