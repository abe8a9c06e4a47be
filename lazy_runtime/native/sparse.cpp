// Sparse COO tensors on xla: torch's own SparseTensorImpl around two dense xla tensors, its indices and its values. It has
// the key SparseXLA, which is not functionalized; what is computed is, on the two.
//
// Most of torch's kernels for sparse tensors on the CPU are made of dense operators and touch no memory, so they do for any
// device. Those that do touch it have a kernel of ours, in Python (`lazy_runtime/sparse.py`). All others are refused.
//
// Torch's functionalization knows nothing of sparse tensors: it would put one into a wrapper that is none. So operators on
// dense and sparse tensors, or from the one to the other, run with its key excluded until they are at their kernel.

#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/GradMode.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string>
#include <vector>

#include "sparse_checks.h"

namespace {

constexpr auto kSparseXLA = c10::DispatchKey::SparseXLA;

// Within, the dispatcher is as a user's call finds it, so that a kernel can compute with the dense parts and make sparse
// tensors of them; what autograd has to note it has noted.
class AboveAutograd {
 public:
  AboveAutograd() {
    if (c10::InferenceMode::is_enabled()) not_inference_.emplace(false);  // which hides autograd's keys
    no_grad_.emplace();
    keys_.emplace(local().included_, local().excluded_ - hidden());
  }

 private:
  static c10::impl::LocalDispatchKeySet local() { return c10::impl::tls_local_dispatch_key_set(); }
  static c10::DispatchKeySet hidden() {
    return c10::autograd_dispatch_keyset_with_ADInplaceOrView.add(c10::DispatchKey::Functionalize);
  }
  std::optional<c10::InferenceMode> not_inference_;
  std::optional<at::NoGradGuard> no_grad_;
  std::optional<c10::impl::ForceDispatchKeyGuard> keys_;
};

template <c10::DispatchKey key>
void by_kernel_for(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const AboveAutograd on;
  op.callBoxedForDispatchKey(key, *stack);
}

// Torch's Python does not know the key's name, so our kernels there are operators of another namespace.
void by_python(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const AboveAutograd on;
  const c10::OperatorName& name = op.operator_name();
  const std::string own = "lazy_sparse" + name.name.substr(name.name.find("::"));
  c10::Dispatcher::singleton().findSchemaOrThrow(own.c_str(), name.overload_name.c_str()).callBoxed(stack);
}

void refuse(const c10::OperatorHandle& op, torch::jit::Stack*) { refuse_sparse(op); }

// For autograd's key: no functionalization on the way down from there. Dynamo's stand-ins go theirs.
void around_functionalization(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto values = torch::jit::last(*stack, op.schema().arguments().size());
  const bool is_functional = std::any_of(values.begin(), values.end(), [](const c10::IValue& value) {
    return value.isTensor() && at::functionalization::impl::isFunctionalTensor(value.toTensor());
  });
  if (is_functional) {
    const c10::impl::ExcludeDispatchKeyGuard off(c10::DispatchKey::Functionalize);
    op.callBoxedForDispatchKey(c10::DispatchKey::Autograd, *stack);
  } else {
    op.callBoxedForDispatchKey(c10::DispatchKey::Autograd, *stack);
  }
}

// What a sparse tensor consists of.
void by_cpu_accessor(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  op.callBoxedForDispatchKey(c10::DispatchKey::SparseCPU, *stack);
}

constexpr const char* accessors[] = {"_coalesced_", "_dimI",   "_dimV",        "_indices",   "_nnz",  "_values",
                                     "dense_dim",   "indices", "is_coalesced", "sparse_dim", "values"};

// Kernels for the CPU that touch no memory.
constexpr const char* of_any_device[] = {
    // what makes a sparse tensor, and copies
    "_sparse_coo_tensor_with_dims", "_sparse_coo_tensor_with_dims_and_tensors", "_to_dense", "_to_sparse",
    "_to_sparse.sparse_dim", "clone", "copy_", "copy_sparse_to_sparse_", "empty.memory_format", "empty_like",
    "resize_as_sparse_", "sparse_resize_", "sparse_resize_and_clear_", "zero_",
    // of each value
    "abs", "asin", "asinh", "atan", "atanh", "ceil", "deg2rad", "erf", "erfinv", "expm1", "floor", "frac", "isinf",
    "isnan", "isneginf", "isposinf", "log1p", "nan_to_num", "neg", "neg_", "rad2deg", "relu", "round", "sgn", "sign",
    "signbit", "sin", "sinh", "sqrt", "tan", "tanh", "trunc",
    // of all values
    "native_norm", "native_norm.ScalarOpt_dim_dtype", "norm.ScalarOpt_dim", "norm.ScalarOpt_dim_dtype", "sum"};

// Kernels for all devices, which make sparse tensors of others.
constexpr const char* composites[] = {"_to_copy", "select.int"};

// Operators that make a sparse tensor of dense ones.
constexpr const char* makers[] = {"_sparse_coo_tensor_with_dims_and_tensors", "_to_sparse", "_to_sparse.sparse_dim",
                                  "sparse_mask"};

using Kernel = c10::BoxedKernel::BoxedKernelFunction;

// Registers `kernel` for the operators that have one for `key` in this version of torch.
template <Kernel* kernel, typename Names>
void implement(torch::Library& library, const Names& names, c10::DispatchKey key) {
  for (const std::string name : names) {
    const size_t dot = name.find('.');
    const std::string overload = dot == name.npos ? "" : name.substr(dot + 1);
    const auto op = c10::Dispatcher::singleton().findSchema({"aten::" + name.substr(0, dot), overload});
    if (op.has_value() && op->hasKernelForDispatchKey(key)) {
      library.impl(name.c_str(), torch::CppFunction::makeFromBoxedFunction<kernel>());
    }
  }
}

std::string full_name(const c10::OperatorName& name) {
  const std::string base = name.name.substr(name.name.find("::") + 2);
  return name.overload_name.empty() ? base : base + "." + name.overload_name;
}

}  // namespace

// Registers the kernels for SparseXLA, once those in Python have been defined.
extern "C" void xla_register_sparse() {
  constexpr auto cpu = c10::DispatchKey::CPU, sparse_cpu = c10::DispatchKey::SparseCPU;
  constexpr auto composite = c10::DispatchKey::CompositeExplicitAutograd;
  static torch::Library autograd(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradXLA, __FILE__, __LINE__);
  implement<around_functionalization>(autograd, makers, c10::DispatchKey::Autograd);
  static torch::Library dense(torch::Library::IMPL, "aten", c10::DispatchKey::XLA, __FILE__, __LINE__);
  implement<by_kernel_for<cpu>>(dense, std::array{"_to_sparse", "_to_sparse.sparse_dim"}, cpu);
  static torch::Library sparse(torch::Library::IMPL, "aten", kSparseXLA, __FILE__, __LINE__);
  implement<by_cpu_accessor>(sparse, accessors, sparse_cpu);
  implement<by_kernel_for<sparse_cpu>>(sparse, of_any_device, sparse_cpu);
  implement<by_kernel_for<composite>>(sparse, composites, composite);

  auto& dispatcher = c10::Dispatcher::singleton();
  const std::vector<c10::OperatorName> names = dispatcher.getAllOpNames();
  for (const c10::OperatorName& name : names) {
    if (name.name.rfind("lazy_sparse::", 0) != 0) continue;
    sparse.impl(full_name(name).c_str(), torch::CppFunction::makeFromBoxedFunction<by_python>());
  }
  // Torch's kernels for all devices that take a tensor to be strided.
  for (const c10::OperatorName& name : names) {
    if (name.name.rfind("aten::", 0) != 0) continue;
    const auto op = dispatcher.findSchema(name);
    if (!op.has_value() || op->hasKernelForDispatchKey(kSparseXLA)) continue;
    if (!op->hasKernelForDispatchKey(c10::DispatchKey::CompositeExplicitAutogradNonFunctional)) continue;
    sparse.impl(full_name(name).c_str(), torch::CppFunction::makeFromBoxedFunction<refuse>());
  }
  static torch::Library others(torch::Library::IMPL, "_", kSparseXLA, __FILE__, __LINE__);
  others.fallback(torch::CppFunction::makeFromBoxedFunction<refuse>());
}
