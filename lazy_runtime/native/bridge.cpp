// Any ATen operator as a custom call inside an XLA:CPU program.
//
// One handler serves all: the operator's name and its static arguments come as one string (`call_text.h`), XLA's buffers
// are seen as tensors, and torch's dispatcher is called boxed. It exists for operators in which torch's CPU kernels are
// far ahead of XLA's (convolutions: oneDNN) and needs no Python.
//
// A kernel's error goes through XLA as "[aten #NUMBER KIND] message [end] in OPERATOR": which call of the program it was
// (`number`), and which of torch's exceptions. `lazy_runtime/checks.py` raises it again.

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "xla/ffi/api/ffi.h"

#include "buffers.h"
#include "call_text.h"
#include "kernel_thread.h"
#include "output_allocator.h"
#include "packed_weight.h"

namespace {

// A handler runs in the caller's thread for small programs and in one of XLA's own for large ones. Whatever modes that
// thread is in (autocast, FakeTensorMode, autograd), the kernel is to see plain CPU tensors: only the CPU's own keys
// stay, BackendSelect, through which kernels allocate, DeferredInit, where `OutputAllocator` waits for that, and what a kernel's
// own temporaries may be (conjugate views, sparse tensors).
class PlainCPU {
 public:
  PlainCPU()
      : guard_(c10::DispatchKeySet({c10::DispatchKey::BackendSelect, c10::DispatchKey::DeferredInit}), excluded()) {}

 private:
  static c10::DispatchKeySet excluded() {
    auto keys = c10::DispatchKeySet(c10::DispatchKeySet::FULL);
    for (auto kept : {c10::DispatchKey::CPU, c10::DispatchKey::BackendSelect, c10::DispatchKey::DeferredInit,
                      c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor,
                      c10::DispatchKey::SparseCPU, c10::DispatchKey::SparseCsrCPU, c10::DispatchKey::MkldnnCPU}) {
      keys = keys - c10::DispatchKeySet(kept);
    }
    return keys;
  }

  c10::impl::ForceDispatchKeyGuard guard_;
};

// Whether a kernel's result lies where it is wanted, and as it is wanted.
bool is_there(const at::Tensor& result, const at::Tensor& target) {
  return result.layout() == at::kStrided && !result._is_zerotensor() && result.is_conj() == target.is_conj() &&
         result.is_neg() == target.is_neg() && result.data_ptr() == target.data_ptr() &&
         same_strides(result.sizes(), result.strides(), target.strides());
}

bool lies_in(const at::Tensor& tensor, const at::Tensor& memory) {
  if (!tensor.has_storage()) return false;
  const char* start = static_cast<const char*>(memory.data_ptr());
  const char* data = static_cast<const char*>(tensor.storage().data());
  return start <= data && data < start + memory.nbytes();
}

// The argument that a place stands for; takes its buffers from `buffers`, beginning with number `next`, and those of
// results from `results`, beginning with number `next_result`.
c10::IValue filled(const Place& place, ffi::RemainingArgs& buffers, ffi::RemainingRets& results, size_t& next,
                   size_t& next_result, BorrowedStorage& borrowed) {
  std::vector<std::optional<at::Tensor>> tensors;
  if (place.part) {
    ffi::AnyBuffer buffer = *buffers.get<ffi::AnyBuffer>(next++);
    return place.kinds == "p" ? Packed::view(*place.part, buffer) : borrowed(place.part->view(buffer));
  }
  for (char kind : place.kinds) {
    if (kind == 'n') {
      tensors.emplace_back();
    } else if (kind == 'w') {
      tensors.emplace_back(opaque(view(*buffers.get<ffi::AnyBuffer>(next++), 't')));
    } else if (kind == 'o') {
      tensors.emplace_back(borrowed(view(**results.get<ffi::AnyBuffer>(next_result++), kind)));
    } else {
      tensors.emplace_back(borrowed(view(*buffers.get<ffi::AnyBuffer>(next++), kind)));
    }
  }
  if (!place.list) return *tensors.at(0);
  if (place.optional) return c10::List<std::optional<at::Tensor>>(tensors);
  c10::List<at::Tensor> list;
  for (auto& tensor : tensors) list.push_back(*tensor);
  return list;
}

// A call with its buffers.
struct Filled {
  const Call& call;
  BorrowedStorage borrowed;  // outlives our own references
  torch::jit::Stack stack;
  std::vector<at::Tensor> targets;  // where results are wanted, undefined ones apart
  std::vector<at::Tensor> offered;

  Filled(ffi::RemainingArgs& buffers, ffi::RemainingRets& results, std::string_view text)
      : call(parsed(text)), stack(call.arguments) {
    size_t next = 0, next_result = 0;
    for (const Place& place : call.places) {
      stack[place.argument] = filled(place, buffers, results, next, next_result, borrowed);
    }
    next = 0;
    for (char kind : call.results) {
      targets.push_back(kind == 'n' ? at::Tensor() : view(**results.get<ffi::AnyBuffer>(next++), kind));
      // torch's attention allocates its results as they lie, and gives transposed views of them; who is told where to write
      // allocates nothing but temporaries, which may look like a result
      offered.push_back(kind == 'o' ? at::Tensor() : kind == 'h' ? targets.back().transpose(1, 2) : targets.back());
    }
  }

  void run();
};

void Filled::run() {
  const at::Tensor first = !stack.empty() && stack[0].isTensor() ? stack[0].toTensor() : at::Tensor();
  {
    OutputAllocator allocator(offered, borrowed);
    call.op.callBoxed(stack);
  }
  for (const Call& then : call.then) {
    torch::jit::Stack next = then.arguments;
    next.at(0) = stack.at(0);
    then.op.callBoxed(next);
    stack = std::move(next);
  }
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& value : stack) {
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) tensors.push_back(tensor);
    } else {
      tensors.push_back(value.isTensor() ? value.toTensor() : at::Tensor());
    }
  }
  std::vector<size_t> elsewhere;
  for (size_t i = 0; i < targets.size(); ++i) {
    const at::Tensor &result = tensors.at(i), &target = targets[i];
    if (!target.defined()) continue;
    TORCH_CHECK(!result.key_set().has(c10::DispatchKey::Python),
                "the kernel gave a tensor of a Python class, which has no memory of its own");
    if (call.results[i] == 'p') {
      Packed::write(first, result, target);
      continue;
    }
    TORCH_CHECK(result.sizes() == target.sizes() && result.scalar_type() == target.scalar_type(),
                call.op.operator_name(), " gave ", result.scalar_type(), result.sizes(), " where ",
                target.scalar_type(), target.sizes(), " was expected");
    if (result.numel() && !is_there(result, target)) elsewhere.push_back(i);
  }
  for (size_t i : elsewhere) {  // a result may lie in what was meant for another one
    for (const at::Tensor& target : targets) {
      if (target.defined() && lies_in(tensors[i], target)) tensors[i] = tensors[i].clone();
    }
  }
  for (size_t i : elsewhere) targets[i].copy_(tensors[i]);
}

ffi::Error failed(const std::string& name, int64_t number, const char* kind, const char* message) {
  return ffi::Error::Internal("[aten #" + std::to_string(number) + " " + kind + "] " + message + " [end] in " + name);
}

// Runs something, and says what it threw.
template <typename Function>
ffi::Error checked(const std::string& name, int64_t number, Function function) {
  try {
    PlainCPU plain;
    function();
    return ffi::Error::Success();
  } catch (const c10::IndexError& error) {
    return failed(name, number, "IndexError", error.what_without_backtrace());
  } catch (const c10::ValueError& error) {
    return failed(name, number, "ValueError", error.what_without_backtrace());
  } catch (const c10::TypeError& error) {
    return failed(name, number, "TypeError", error.what_without_backtrace());
  } catch (const c10::NotImplementedError& error) {
    return failed(name, number, "NotImplementedError", error.what_without_backtrace());
  } catch (const c10::LinAlgError& error) {
    return failed(name, number, "LinAlgError", error.what_without_backtrace());
  } catch (const c10::Error& error) {
    return failed(name, number, "RuntimeError", error.what_without_backtrace());
  } catch (const std::exception& error) {
    return failed(name, number, "RuntimeError", error.what());
  }
}

// What a handler gives: an error or success at once, or a promise of one.
struct Outcome {
  ffi::Error now = ffi::Error::Success();
  std::optional<ffi::Future> later{};
};

Outcome call(int32_t device, ffi::RemainingArgs buffers, ffi::RemainingRets results, std::string_view text,
             int64_t number, bool own_thread) {
  std::string name(text.substr(0, text.find('|')));
  std::shared_ptr<Filled> filled;
  ffi::Error error = checked(name, number, [&] { filled = std::make_shared<Filled>(buffers, results, text); });
  if (error.failure()) return {error};
  auto run = [filled = std::move(filled), name = std::move(name), number]() mutable {
    ffi::Error error = checked(name, number, [&] { filled->run(); });
    filled.reset();  // XLA's memory is not ours any more once it knows
    return error;
  };
  if (!own_thread) return {run()};
  KernelThread& thread = KernelThread::of(device);
  const void* site = text.data();
  if (thread.runs_here(site)) {
    ffi::Error error = run();
    thread.ran(site);
    return {std::move(error)};
  }
  ffi::Promise promise;
  ffi::Future future(promise);
  auto outcome = std::make_shared<ffi::Error>();
  auto then = [outcome, promise]() mutable {
    if (outcome->failure()) {
      promise.SetError(std::move(*outcome));
    } else {
      promise.SetAvailable();  // which carries on with the program
    }
  };
  auto kernel = [run = std::move(run), outcome]() mutable { *outcome = run(); };
  thread.add({site, std::move(kernel), std::move(then)});
  return {ffi::Error::Success(), std::move(future)};
}

}  // namespace

template <ffi::ExecutionStage stage>
struct ffi::ResultEncoding<stage, Outcome> {
  static std::variant<XLA_FFI_Error*, XLA_FFI_Future*> Encode(const XLA_FFI_Api* api, XLA_FFI_ExecutionContext* context,
                                                              Outcome outcome) {
    if (outcome.later) return ResultEncoding<stage, Future>::Encode(api, context, std::move(*outcome.later));
    return ResultEncoding<stage, Error>::Encode(api, context, std::move(outcome.now));
  }
};

XLA_FFI_DEFINE_HANDLER_SYMBOL(aten_call, call,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::DeviceOrdinal>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<std::string_view>("call")
                                  .Attr<int64_t>("number")
                                  .Attr<bool>("own_thread"));

extern "C" void release_workers() { end_workers(); }
