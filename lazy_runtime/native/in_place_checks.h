// What an operator that writes to xla tensors refuses, in torch's words, before functionalization has its turn: to write
// where several elements share a place, to read what is being written, dtypes that do not fit.

#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/ExpandUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Contiguity.h>

#include <algorithm>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "shared_memory.h"

namespace {

bool is_expanded(const Tensor& tensor) {
  if (tensor.numel() == 0) return false;
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.stride(dim) == 0 && tensor.size(dim) > 1) return true;
  }
  return false;
}

bool is_dense(const Tensor& tensor) {
  return c10::_compute_non_overlapping_and_dense<int64_t>(tensor.sizes(), tensor.strides());
}

// What torch can tell of tensors of one memory (aten/src/ATen/MemoryOverlap.cpp, which looks at addresses): none of their
// elements is shared, or it cannot say; some are; each with its own.
enum class Overlap { none, partial, full };

Overlap overlap(const Tensor& x, const Tensor& y) {
  if (x.is_same(y)) return Overlap::full;
  if (x.numel() == 0 || y.numel() == 0 || !is_dense(x) || !is_dense(y)) return Overlap::none;
  const int64_t x_first = offset_of(x) * x.element_size(), x_end = x_first + x.numel() * x.element_size();
  const int64_t y_first = offset_of(y) * y.element_size(), y_end = y_first + y.numel() * y.element_size();
  if (x_first == y_first && x_end == y_end) return x.strides() == y.strides() ? Overlap::full : Overlap::partial;
  return x_first < y_end && y_first < x_end ? Overlap::partial : Overlap::none;
}

// Whether torch's own tensor would be a conjugate that is not computed yet. Here it is, so `is_conj()` is always false.
bool is_lazy_conjugate(const Tensor& tensor) {
  bool found = false;
  const auto& views = functional::unsafeGetFunctionalWrapper(tensor)->view_metas();
  for (const auto& view : views) found ^= is_view_by(view, "_conj_ViewMeta");
  return found && tensor.is_complex();
}

// Torch resolves conjugates for operators that do not know of them, but cannot where lists are written to
// (aten/src/ATen/native/MathBitsFallback.h).
void refuse_conjugate(const c10::OperatorHandle& op, const Tensor& written) {
  TORCH_CHECK(
      !is_lazy_conjugate(written),
      " fallback doesn't currently support mutable TensorLists with conjugate inputs. Please materialize all the conjugate "
      "input tensor(s) in the mutable TensorList inputs before calling ",
      op.operator_name().name);
}

// The name without `aten::` and the underscore of an in-place form.
std::string_view stem(const c10::OperatorHandle& op) {
  std::string_view name = op.operator_name().name;
  name.remove_prefix(std::string_view("aten::").size());
  if (name.back() == '_') name.remove_suffix(1);
  return name;
}

// Whether it is one operator for lists of tensors.
bool is_multi_tensor(const c10::OperatorHandle& op) { return op.operator_name().name.rfind("aten::_foreach_", 0) == 0; }

// Those whose kernels read elsewhere than where they write, and so refuse an operand in the very place of the result too
// (at::assert_no_overlap).
bool reads_elsewhere(const c10::OperatorHandle& op) {
  static const std::unordered_set<std::string_view> names = {
      "_index_put_impl", "cat",          "gather",         "index_add",     "index_copy", "index_fill",
      "index_put",       "index_select", "kthvalue",       "masked_select", "nonzero",    "put",
      "scatter",         "scatter_add",  "scatter_reduce", "take"};
  return names.count(stem(op)) != 0;
}

// A tensor among an operator's arguments.
struct Operand {
  Tensor tensor;
  FunctionalStorageImpl* memory;
  int64_t place;  // in a list, whose tensors meet those of other lists in the same place; -1 outside of one
  bool written;

  bool meets(const Operand& other) const {
    return memory == other.memory && (place == other.place || place < 0 || other.place < 0);
  }
};

// Whether both show the same elements of one memory in the same way.
bool is_same_data(const Operand& x, const Operand& y) {
  return x.memory == y.memory && x.tensor.scalar_type() == y.tensor.scalar_type() &&
         x.tensor.sizes() == y.tensor.sizes() && x.tensor.strides() == y.tensor.strides() &&
         offset_of(x.tensor) == offset_of(y.tensor);
}

void refuse_overlap(const Operand& target, const std::vector<Operand>& operands, bool takes_expanded,
                    bool takes_same_place) {
  TORCH_CHECK(
      takes_expanded || !is_expanded(target.tensor),
      "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
      "Please clone() the tensor before performing the operation.");
  for (const Operand& operand : operands) {
    if (!target.meets(operand)) continue;
    const Overlap found = overlap(target.tensor, operand.tensor);
    TORCH_CHECK(
        found == Overlap::none || (found == Overlap::full && (takes_same_place || operand.written)),
        "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single memory "
        "location. Please clone() the tensor before performing the operation.");
  }
}

// Tensors of zeros on the CPU for xla tensors, which lie in their memories as those do.
class StandIns {
 public:
  void expect(const Tensor& tensor) {
    const auto size = static_cast<size_t>(tensor.element_size()), offset = static_cast<size_t>(offset_of(tensor));
    const size_t end = at::detail::computeStorageNbytes(tensor.sizes(), tensor.strides(), size, offset);
    int64_t& bytes = bytes_[memory_of(tensor)];
    bytes = std::max(bytes, static_cast<int64_t>(end));
  }
  // To be called when all are expected.
  Tensor operator()(const Tensor& tensor) {
    Tensor& found = tensors_[tensor.unsafeGetTensorImpl()];
    if (found.defined()) return found;
    Tensor& memory = memories_[memory_of(tensor)];
    if (!memory.defined()) memory = at::zeros({bytes_[memory_of(tensor)]}, at::kByte);
    found = at::empty({0}, tensor.options().device(c10::kCPU));
    return found.set_(memory.storage(), offset_of(tensor), tensor.sizes(), tensor.strides());
  }

 private:
  std::unordered_map<FunctionalStorageImpl*, int64_t> bytes_;
  std::unordered_map<FunctionalStorageImpl*, Tensor> memories_;
  std::unordered_map<c10::TensorImpl*, Tensor> tensors_;
};

// Puts new ones of the CPU's in the places of an operator's generators: the user's may be xla's, and keeps its numbers.
void replace_generators(std::vector<c10::IValue>& values) {
  for (c10::IValue& value : values) {
    if (value.isGenerator()) value = at::detail::createCPUGenerator();
  }
}

// Functionalization first runs an operator on meta tensors, whose kernels word many errors in their own way, and has its
// errors in another order. Raises what the CPU's kernel says instead, if that says anything.
void raise_as_on_cpu(const c10::OperatorHandle& op, std::vector<c10::IValue> values) {
  constexpr int64_t affordable = 1 << 24;  // elements: a kernel that finds nothing wrong runs
  StandIns stand_ins;
  for (const c10::IValue& value : values) {
    if (value.isTensorList() || value.isOptionalTensorList()) return;
    if (!value.isTensor() || !value.toTensor().defined()) continue;
    if (value.toTensor().numel() > affordable) return;
    if (is_ours(value.toTensor())) stand_ins.expect(value.toTensor());
  }
  at::AutoDispatchBelowADInplaceOrView below;
  for (c10::IValue& value : values) {
    if (value.isTensor() && is_ours(value.toTensor())) value = stand_ins(value.toTensor());
  }
  replace_generators(values);
  op.callBoxed(values);
}

// Puts other tensors in the places of an operator's.
template <typename Function>
void replace_tensors(std::vector<c10::IValue>& values, const Function& other) {
  for (c10::IValue& value : values) {
    if (value.isTensor()) {
      value = other(value.toTensor());
    } else if (value.isTensorList()) {
      std::vector<Tensor> tensors = value.toTensorVector();
      std::transform(tensors.begin(), tensors.end(), tensors.begin(), other);
      value = tensors;
    }
  }
}

// Calls the CPU's kernel on tensors of the same dtypes.
void call_without_elements(const c10::OperatorHandle& op, std::vector<c10::IValue> values) {
  const auto stand_in = [](const Tensor& tensor) {
    if (!is_ours(tensor)) return tensor;
    return at::empty(std::vector<int64_t>(tensor.dim() > 0 ? 1 : 0), tensor.options().device(c10::kCPU));
  };
  replace_tensors(values, stand_in);
  replace_generators(values);
  at::AutoDispatchBelowADInplaceOrView below;
  op.callBoxed(values);
}

// Autograd takes no `out=` of operands with gradients, and says so before any kernel looks at where the result goes. Raises
// that, as the CPU's tensors get it.
void refuse_gradients(const c10::OperatorHandle& op, std::vector<c10::IValue> values) {
  for (c10::IValue& value : values) {
    if (!value.isTensor() || !is_ours(value.toTensor())) continue;
    const Tensor& tensor = value.toTensor();
    const bool requires_grad = tensor.requires_grad();
    value = at::empty(std::vector<int64_t>(tensor.dim() > 0 ? 1 : 0), tensor.options().device(c10::kCPU));
    value.toTensor().set_requires_grad(requires_grad);
  }
  try {
    op.callBoxed(values);
  } catch (const c10::Error& error) {
    if (error.msg().find("automatic differentiation") != std::string::npos) throw;
  }
}

// Those whose meta kernels let pass what the CPU's refuse (torch 2.13; `div` before it): a result that cannot be cast to
// what it goes to, bools to subtract or to sum up. Raises what the CPU's kernel says of tensors without elements.
void refuse_dtypes(const c10::OperatorHandle& op, const Tensor& target, std::vector<c10::IValue> values) {
  static const std::unordered_set<std::string_view> names = {"add", "addcdiv", "addcmul", "div", "mul", "sub"};
  const std::string_view name = stem(op);
  const bool scans = name == "cumsum" || name == "cumprod";
  const bool indexes = name == "index_add" || name == "index_copy";
  const bool divides = name == "div" && op.operator_name().overload_name.find("mode") == std::string::npos;
  const bool gives_floats = divides || name == "ldexp" || name == "logit" || name == "polygamma";
  if (names.count(name) == 0 && !scans && !indexes && !gives_floats) return;
  const at::ScalarType dtype = target.scalar_type();
  const bool subtracts = name == "sub";
  bool fits = !(scans && dtype == at::kBool) && !(gives_floats && c10::isIntegralType(dtype, /*includeBool=*/true));
  for (const c10::IValue& value : values) {
    if (!value.isTensor()) continue;
    const at::ScalarType other = value.toTensor().scalar_type();
    fits &= c10::canCast(other, dtype) && !(subtracts && other == at::kBool);
  }
  if (indexes) fits = values[3].toTensor().scalar_type() == dtype;
  if (fits) return;
  raise_as_on_cpu(op, values);
  call_without_elements(op, values);
}

// The same for multi-tensor operators, which optimizers do not call on integers.
void refuse_list_dtypes(const c10::OperatorHandle& op, const Tensor& target, const std::vector<c10::IValue>& values) {
  if (!c10::isIntegralType(target.scalar_type(), /*includeBool=*/true)) return;
  if (is_multi_tensor(op)) call_without_elements(op, values);
}

// The state of the CPU's generator, for as long as this lives.
class KeptGenerator {
 public:
  KeptGenerator() : generator_(at::detail::getDefaultCPUGenerator()) {
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    state_ = generator_.get_state();
  }
  ~KeptGenerator() {
    const std::lock_guard<std::mutex> lock(generator_.mutex());
    generator_.set_state(state_);
  }

 private:
  at::Generator generator_;
  Tensor state_;
};

// `normal` of one tensor and one number has the tensor broadcast against what `out=` is
// (aten/src/ATen/native/DistributionTemplates.h).
void broadcast_to(const Tensor& out, const c10::OperatorHandle& op, std::vector<c10::IValue>& values) {
  const c10::OperatorName& name = op.operator_name();
  const bool tensor_first = name.overload_name == "Tensor_float_out";
  if (name.name != "aten::normal" || !(tensor_first || name.overload_name == "float_Tensor_out")) return;
  c10::IValue& value = values[tensor_first ? 0 : 1];
  const std::vector<int64_t> size = at::infer_size(value.toTensor().sizes(), out.sizes());
  if (value.toTensor().sizes() != size) value = value.toTensor().expand(size);
}

// Functionalization casts a result to the dtype of `out=`, which only some kernels do. Asks the CPU's kernel, once for each
// operator and dtypes, where that is not the dtype of the first operand, or should not be.
void refuse_cast(const c10::OperatorHandle& op, const Tensor& out, const std::vector<Operand>& operands,
                 const std::vector<c10::IValue>& values) {
  static const std::unordered_set<std::string_view> of_own_dtype = {"isneginf", "isposinf", "multinomial", "signbit"};
  const bool is_same = out.scalar_type() == operands[0].tensor.scalar_type() && of_own_dtype.count(stem(op)) == 0;
  if (operands[0].written || is_same) return;
  thread_local std::unordered_set<std::string> fine;
  std::string key = toString(op.operator_name());
  for (const Operand& operand : operands) key.append(1, ' ').append(c10::toString(operand.tensor.scalar_type()));
  if (!fine.insert(key).second) return;
  std::optional<KeptGenerator> kept;  // kernels that draw would use up random numbers
  if (op.hasTag(at::Tag::nondeterministic_seeded)) kept.emplace();
  try {
    raise_as_on_cpu(op, values);
  } catch (const c10::Error& error) {  // of what zeros are to blame for nothing is said here
    const std::string& message = error.msg();
    for (const char* words :
         {"dtype", "scalar type", "can't be cast", "non-boolean output", "expects Long", "_kernel_cpu"}) {
      if (message.find(words) == message.npos) continue;
      fine.erase(key);
      throw;
    }
  }
}

}  // namespace
