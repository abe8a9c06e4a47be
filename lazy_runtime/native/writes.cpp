// Operators that write to xla tensors, before and after torch's functionalization has its turn with them.
//
// Functionalization computes the pure form of such an operator, puts the result in the place of the old value, and takes
// it back through the views to the memory that they show. What it does not do, and torch's kernels do:
//
// - refuse to write where several elements share a place, and to read what is being written;
// - leave the written tensor's strides, and those of the tensor that it is a view of, as they were;
// - leave everything as it was where an error is found late, and word errors as users know them;
// - count the writes of multi-tensor operators (`_foreach_add_`) for autograd.
//
// One boxed kernel for autograd's key serves them all and calls autograd's own.

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_propagate_xla_data.h>
#include <c10/core/Contiguity.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/library.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <tuple>
#include <typeinfo>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

// Python.h declares them; the symbols are those of the process.
extern "C" {
int PyGILState_Ensure();
void PyGILState_Release(int);
void PyErr_Fetch(void**, void**, void**);
void PyErr_Restore(void*, void*, void*);
void Py_DecRef(void*);
}

namespace {

namespace functional = at::functionalization::impl;
using at::Tensor;
using at::functionalization::FunctionalStorageImpl;

FunctionalStorageImpl* memory_of(const Tensor& tensor) {
  return static_cast<FunctionalStorageImpl*>(tensor.storage().unsafeGetStorageImpl());
}

bool is_ours(const Tensor& tensor) {
  return tensor.defined() && tensor.device().is_xla() && functional::isFunctionalTensor(tensor);
}

// Of the value in a functional wrapper: `storage_offset()` gives the wrapper's own, which a view does not set.
int64_t offset_of(const Tensor& tensor) {
  return tensor.sym_storage_offset().expect_int();
}

// A tensor over all of the memory that `tensor` shows a part of; it is a view of nothing.
Tensor root_of(const Tensor& tensor) {
  functional::sync(tensor);
  if (functional::isBaseTensor(tensor)) return tensor;
  Tensor whole = functional::to_functional_tensor(memory_of(tensor)->base());
  whole.unsafeGetTensorImpl()->set_storage_keep_dtype(tensor.storage());
  functional::sync(whole);
  return whole;
}

// How many bytes it holds. What the storage itself says misses that `out=` has resized its first tensor.
int64_t memory_size(const Tensor& tensor) {
  const Tensor& root = (functional::sync(tensor), memory_of(tensor)->base());
  const auto size = static_cast<size_t>(root.element_size()), offset = static_cast<size_t>(root.storage_offset());
  return static_cast<int64_t>(at::detail::computeStorageNbytes(root.sizes(), root.strides(), size, offset));
}

// The memory of `tensor`, seen with these sizes and strides (in elements of `dtype`), outside of autograd's books.
Tensor of_root(
    const Tensor& tensor, at::ScalarType dtype, at::IntArrayRef size, at::IntArrayRef stride, int64_t offset) {
  const auto itemsize = static_cast<int64_t>(c10::elementSize(dtype));
  const int64_t held = memory_size(tensor) / itemsize;
  int64_t end = offset + 1;
  for (size_t dim = 0; dim < size.size(); ++dim) end = size[dim] == 0 ? 0 : end + (size[dim] - 1) * stride[dim];
  if (end > held && std::find(size.begin(), size.end(), 0) == size.end()) {
    at::empty({held}, at::dtype(dtype)).as_strided(size, stride, offset);  // raises
  }
  at::AutoDispatchBelowADInplaceOrView below;
  Tensor whole = root_of(tensor);
  if (whole.scalar_type() != dtype) {
    whole = whole.as_strided({held * itemsize / static_cast<int64_t>(whole.element_size())}, {1}, 0).view(dtype);
  }
  return whole.as_strided(size, stride, offset);
}

// All of a storage of xla's, flat, for AOTAutograd, which puts what it has taken apart together again over the storage.
Tensor of_storage(at::Storage storage, at::ScalarType dtype) {
  auto* memory = dynamic_cast<FunctionalStorageImpl*>(storage.unsafeGetStorageImpl());
  TORCH_CHECK_NOT_IMPLEMENTED(memory != nullptr, "an xla tensor cannot take the storage of a tensor on another device");
  memory->apply_updates();
  Tensor whole = functional::to_functional_tensor(memory->base());
  whole.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
  functional::sync(whole);
  return of_root(whole, dtype, {memory_size(whole) / static_cast<int64_t>(c10::elementSize(dtype))}, {1}, 0);
}

// Makes a tensor a view of its root, by its strides alone, if a write could not go back through its views: torch's inverse
// of `unfold` forgets what no window shows, that of `expand` adds a difference to what is there, and that of `view` with
// another dtype needs the strides of the view, which an operator's result may not have. So does that of `view` if a
// transposition has followed, where the operator's result is known to have other strides than its target. Elements of an
// `as_strided` may share a place: a write through a part of it would be undone by the rest.
void reroot_if(const Tensor& tensor, bool other_strides) {
  const auto& views = functional::unsafeGetFunctionalWrapper(tensor)->view_metas();
  const bool is_transposed = other_strides && !views.empty() && !tensor.is_contiguous();
  const bool needed = is_transposed || std::any_of(views.begin(), views.end(), [&](const auto& view) {
    const auto& meta = *view;
    const std::string_view name = typeid(meta).name();
    return name.find("unfold_ViewMeta") != name.npos || name.find("expand_ViewMeta") != name.npos ||
        name.find("view_dtype_ViewMeta") != name.npos ||
        (name.find("as_strided_ViewMeta") != name.npos && &view != &views.back());
  });
  if (!needed) return;
  tensor.set_data(of_root(tensor, tensor.scalar_type(), tensor.sizes(), tensor.strides(), offset_of(tensor)));
}

void reroot(const Tensor& tensor) {
  reroot_if(tensor, false);
}

// How many references to an object there are, besides that of its Python object if it has one. Older versions of torch count
// that one only while Python uses the object.
template <typename T>
size_t holders(const T* object, size_t use_count) {
  const auto* slot = object->pyobj_slot();
  if constexpr (requires { slot->load_pyobj(); }) {
    if (slot->load_pyobj() != nullptr) --use_count;
  }
  return use_count;
}

size_t holders(const Tensor& tensor) {
  return holders(tensor.unsafeGetTensorImpl(), tensor.use_count());
}

// Whether no other tensor shows the memory of `tensor`, which shows all of it, and no other has its value.
bool is_alone(const Tensor& tensor) {
  const auto& storage = tensor.storage();
  if (holders(storage.unsafeGetStorageImpl(), storage.use_count()) != 1) return false;
  const auto* wrapper = functional::unsafeGetFunctionalWrapper(tensor);
  // A parameter is what `detach` gave of the tensor that it was made of.
  const auto& views = wrapper->view_metas();
  const bool shows_all = std::all_of(views.begin(), views.end(), [](const auto& view) {
    const auto& meta = *view;
    const std::string_view name = typeid(meta).name();
    return name.find("detach_ViewMeta") != name.npos || name.find("alias_ViewMeta") != name.npos;
  });
  if (!shows_all) return false;
  const Tensor &value = wrapper->value(), &root = memory_of(tensor)->base();
  return root.is_same(value) ? holders(value) == 2 : holders(value) == 1 && holders(root) == 1;
}

// For many tensors whose values are about to be exchanged: gives the value of each that is alone, and what its memory holds
// if that is another tensor. Whoever writes may change the two where they are; the write is counted for autograd.
// Undefined for the other tensors.
std::tuple<std::vector<Tensor>, std::vector<Tensor>> begin_writes(at::TensorList targets) {
  std::vector<Tensor> values(targets.size()), roots(targets.size());
  for (size_t i = 0; i < targets.size(); ++i) {
    const Tensor& target = targets[i];
    if (!is_ours(target)) continue;
    functional::sync(target);
    if (!is_alone(target)) continue;
    const Tensor& root = memory_of(target)->base();
    values[i] = functional::unsafeGetFunctionalWrapper(target)->value();
    if (!root.is_same(values[i])) roots[i] = root;
    if (!target.is_inference()) torch::autograd::impl::bump_version(target);
  }
  return {std::move(values), std::move(roots)};
}

// What torch says first of every operator that writes: not to a leaf that requires a gradient, nor to one of several
// views that one operator has made.
void check_inplace(const Tensor& tensor) {
  torch::autograd::check_inplace(tensor, at::GradMode::is_enabled() && tensor.requires_grad());
}

// What an operator writes to, as it was before.
struct Target {
  Tensor tensor;
  FunctionalStorageImpl* memory;
  size_t generation;
  Tensor value;  // what the tensor showed
  Tensor root;   // what all of the memory held

  Target(const Tensor& written, bool other_strides) : tensor(written) {
    functional::sync(tensor);
    reroot_if(tensor, other_strides);
    memory = memory_of(tensor);
    generation = memory->generation();
    value = functional::from_functional_tensor(tensor);
    root = memory->base();
  }

  // The tensor and its root may have taken over the strides of an operator's result.
  void keep_look() const {
    if (memory_of(tensor) != memory) return;  // `out=` may exchange it
    at::AutoDispatchBelowADInplaceOrView below;
    const Tensor& now = memory->base();
    if (now.sizes() == root.sizes() && now.strides() != root.strides()) {
      // Torch's propagate_xla_data_direct looks for the key of XLA, which a Python tensor's own implementation lacks; and
      // above autograd's keys the operator is taken apart, into nothing.
      at::_propagate_xla_data(root, now);
    }
    if (!root.is_same(value) && tensor.sizes() == value.sizes() && tensor.strides() != value.strides()) {
      functional::unsafeGetFunctionalWrapper(tensor)->regenerate_from_base();
    }
  }

  void undo() const {
    if (memory_of(tensor) != memory || memory->generation() == generation) return;
    functional::replace_(tensor, value);
    functional::commit_update(tensor);
    functional::sync(tensor);
  }
};

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

// The name without `aten::` and the underscore of an in-place form.
std::string_view stem(const c10::OperatorHandle& op) {
  std::string_view name = op.operator_name().name;
  name.remove_prefix(std::string_view("aten::").size());
  if (name.back() == '_') name.remove_suffix(1);
  return name;
}

// Those whose kernels read elsewhere than where they write, and so refuse an operand in the very place of the result too
// (at::assert_no_overlap).
bool reads_elsewhere(const c10::OperatorHandle& op) {
  static const std::unordered_set<std::string_view> names = {
      "_index_put_impl", "cat", "gather", "index_add", "index_copy", "index_fill", "index_put", "index_select",
      "kthvalue", "masked_select", "nonzero", "put", "scatter", "scatter_add", "scatter_reduce", "take"};
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

void refuse_overlap(
    const Operand& target, const std::vector<Operand>& operands, bool takes_expanded, bool takes_same_place) {
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

// One element of each group that shares a place. A view of the root: written through the expanded one, the others of the
// group would put the old value back.
Tensor narrowed(const Tensor& tensor) {
  std::vector<int64_t> size = tensor.sizes().vec();
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.stride(dim) == 0 && size[dim] > 1) size[dim] = 1;
  }
  return of_root(tensor, tensor.scalar_type(), size, tensor.strides(), offset_of(tensor));
}

// A Python kernel that has raised leaves its error with the interpreter, where no Python may run before it is fetched.
class PythonError {
 public:
  PythonError() {
    const int state = PyGILState_Ensure();
    PyErr_Fetch(&type_, &value_, &traceback_);
    PyGILState_Release(state);
  }
  void restore() {
    const int state = PyGILState_Ensure();
    PyErr_Restore(type_, value_, traceback_);  // takes the references
    type_ = value_ = traceback_ = nullptr;
    PyGILState_Release(state);
  }
  ~PythonError() {
    const int state = PyGILState_Ensure();
    for (void* object : {type_, value_, traceback_}) Py_DecRef(object);
    PyGILState_Release(state);
  }

 private:
  void *type_ = nullptr, *value_ = nullptr, *traceback_ = nullptr;
};

// Functionalization first runs an operator on meta tensors, whose kernels word many errors in their own way. Raises what
// the CPU's kernel says instead, if that says anything.
void raise_as_on_cpu(const c10::OperatorHandle& op, std::vector<c10::IValue> values) {
  constexpr int64_t affordable = 1 << 24;  // elements: a kernel that finds nothing wrong runs
  const auto stand_in = [](const Tensor& tensor) {
    if (!is_ours(tensor)) return tensor;
    return at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::kCPU)).zero_();
  };
  for (c10::IValue& value : values) {
    if (value.isTensor()) {
      if (value.toTensor().defined() && value.toTensor().numel() > affordable) return;
      value = stand_in(value.toTensor());
    } else if (value.isTensorList() || value.isOptionalTensorList()) {
      return;
    }
  }
  at::AutoDispatchBelowADInplaceOrView below;
  op.callBoxed(values);
}

// Calls the CPU's kernel on tensors of the same dtypes.
void call_without_elements(const c10::OperatorHandle& op, std::vector<c10::IValue> values) {
  const auto stand_in = [](const Tensor& tensor) {
    if (!is_ours(tensor)) return tensor;
    return at::empty(std::vector<int64_t>(tensor.dim() > 0 ? 1 : 0), tensor.options().device(c10::kCPU));
  };
  for (c10::IValue& value : values) {
    if (value.isTensor()) {
      value = stand_in(value.toTensor());
    } else if (value.isTensorList()) {
      std::vector<Tensor> tensors = value.toTensorVector();
      std::transform(tensors.begin(), tensors.end(), tensors.begin(), stand_in);
      value = tensors;
    }
  }
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

// Those whose meta kernels let pass what the CPU's refuse (torch 2.13): a result that cannot be cast to what it goes to,
// bools to subtract or to sum up. Raises what the CPU's kernel says of tensors without elements.
void refuse_dtypes(const c10::OperatorHandle& op, const Tensor& target, std::vector<c10::IValue> values) {
  static const std::unordered_set<std::string_view> names = {"add", "addcdiv", "addcmul", "mul", "sub"};
  const std::string_view name = stem(op);
  const bool scans = name == "cumsum" || name == "cumprod";
  const bool indexes = name == "index_add" || name == "index_copy";
  const bool gives_floats = name == "ldexp" || name == "logit" || name == "polygamma";
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
  if (op.operator_name().name.rfind("aten::_foreach_", 0) == 0) call_without_elements(op, values);
}

// Functionalization casts a result to the dtype of `out=`, which only some kernels do. Asks the CPU's kernel, once for each
// operator and dtypes, where that is not the dtype of the first operand.
void refuse_cast(const c10::OperatorHandle& op, const Tensor& out, const std::vector<Operand>& operands,
                 const std::vector<c10::IValue>& values) {
  if (operands[0].written || out.scalar_type() == operands[0].tensor.scalar_type()) return;
  if (op.hasTag(at::Tag::nondeterministic_seeded)) return;  // the kernel would use up random numbers
  thread_local std::unordered_set<std::string> fine;
  std::string key = toString(op.operator_name());
  for (const Operand& operand : operands) key.append(1, ' ').append(c10::toString(operand.tensor.scalar_type()));
  if (!fine.insert(key).second) return;
  try {
    raise_as_on_cpu(op, values);
  } catch (const c10::Error& error) {  // of what zeros are to blame for nothing is said here
    const std::string& message = error.msg();
    for (const char* words : {"dtype", "scalar type", "can't be cast"}) {
      if (message.find(words) == message.npos) continue;
      fine.erase(key);
      throw;
    }
  }
}

// `aten::mul.Tensor` of `aten::mul_.Tensor`, for the operators of optimizers.
std::optional<c10::OperatorHandle> pure_form(const c10::OperatorHandle& op) {
  static const std::unordered_set<std::string_view> names = {"add", "addcdiv", "addcmul", "div", "lerp", "mul", "sub"};
  thread_local std::unordered_map<std::string, std::optional<c10::OperatorHandle>> known;
  const c10::OperatorName& name = op.operator_name();
  if (name.name.back() != '_' || names.count(stem(op)) == 0) return std::nullopt;
  const auto [found, is_new] = known.try_emplace(toString(name));
  if (is_new) {
    const std::string stripped = name.name.substr(0, name.name.size() - 1);
    found->second = c10::Dispatcher::singleton().findSchema({stripped, name.overload_name});
  }
  return found->second;
}

// Whether nothing can be wrong with an elementwise operator in place: all tensors are xla's and of one dtype, that of any
// number fits it, and they broadcast to the target's sizes.
bool is_plain(const c10::OperatorHandle& op, const Tensor& target, const std::vector<c10::IValue>& values) {
  static const std::unordered_set<std::string_view> of_integers = {"add", "mul", "sub"};
  const at::ScalarType dtype = target.scalar_type();
  const bool is_integral = c10::isIntegralType(dtype, /*includeBool=*/false);
  if (dtype == at::kBool || (is_integral && of_integers.count(stem(op)) == 0)) return false;
  return std::all_of(values.begin(), values.end(), [&](const c10::IValue& value) {
    if (value.isInt() || (value.isDouble() && !is_integral)) return true;
    if (!value.isTensor() || !value.toTensor().defined()) return false;
    const Tensor& tensor = value.toTensor();
    if (tensor.unsafeGetTensorImpl()->is_wrapped_number()) {  // `x.mul_(2)`
      return tensor.scalar_type() == at::kLong || (tensor.scalar_type() == at::kDouble && !is_integral);
    }
    return is_ours(tensor) && tensor.scalar_type() == dtype && tensor.device() == target.device() &&
        !tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides() && !torch::autograd::isFwGradDefined(tensor) &&
        at::is_expandable_to(tensor.sizes(), target.sizes());
  });
}

// What functionalization does of an operator in place, but for its run on meta tensors, whose kernels are Python for
// `lerp_`, `addcmul_` and `addcdiv_` and take longer than all the rest (torch 2.13).
void write_plainly(const c10::OperatorHandle& pure, const std::vector<c10::IValue>& values, torch::jit::Stack* stack) {
  torch::jit::Stack inner = values;
  for (c10::IValue& value : inner) {
    if (!value.isTensor() || !is_ours(value.toTensor())) continue;
    functional::sync(value.toTensor());
    value = functional::from_functional_tensor(value.toTensor());
  }
  at::AutoDispatchBelowADInplaceOrView below;
  {
    at::AutoDispatchSkipFunctionalize skip;
    pure.callBoxed(&inner);
  }
  const Tensor& target = values[0].toTensor();
  functional::replace_(target, inner.back().toTensor());
  functional::commit_update(target);
  functional::sync(target);
  if (!target.is_inference()) torch::autograd::impl::bump_version(target);
  torch::jit::drop(*stack, values.size());
  stack->emplace_back(target);
}

void write(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  const std::vector<c10::IValue> values = torch::jit::last(*stack, arguments.size()).vec();
  std::vector<Operand> operands;
  std::vector<size_t> written;  // numbers of operands
  std::vector<Target> targets;
  bool in_place = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool writes = arguments[i].alias_info() != nullptr && arguments[i].alias_info()->isWrite();
    const auto take = [&](const Tensor& tensor, int64_t place) {
      if (!is_ours(tensor)) return;
      if (writes) written.push_back(operands.size());
      operands.push_back({tensor, memory_of(tensor), place, writes});
    };
    if (values[i].isTensor()) {
      take(values[i].toTensor(), -1);
      in_place |= writes && !arguments[i].kwarg_only();
    } else if (values[i].isTensorList()) {
      int64_t place = 0;
      for (const Tensor& tensor : values[i].toTensorVector()) take(tensor, place++);
    }
  }

  const std::string& name = op.operator_name().name;
  const bool only_looks = op.hasTag(at::Tag::inplace_view);
  const bool fills = name == "aten::fill_" || name == "aten::zero_";
  const bool takes_same_place = !reads_elsewhere(op);
  const bool subtracts = stem(op) == "sub";
  const bool other_strides = name == "aten::cumsum_" || name == "aten::cumprod_";
  const bool requires_grad = at::GradMode::is_enabled() &&
      std::any_of(operands.begin(), operands.end(), [](const Operand& x) { return x.tensor.requires_grad(); });
  const bool by_autograd = !in_place && requires_grad;  // it takes no `out=` of operands with gradients
  if (name == "aten::copy_" && !requires_grad && operands.size() == 2 && is_same_data(operands[0], operands[1])) {
    // which is all that torch does then, whatever overlaps (aten/src/ATen/native/Copy.cpp)
    if (!operands[0].tensor.is_inference()) torch::autograd::impl::bump_version(operands[0].tensor);
    torch::jit::drop(*stack, values.size());
    stack->emplace_back(operands[0].tensor);
    return;
  }
  if (name.rfind("aten::_foreach_", 0) == 0) {  // of all tensors, before anything else of one
    for (const size_t number : written) torch::autograd::check_inplace(operands[number].tensor, requires_grad);
  }
  for (const size_t number : written) {
    if (in_place) torch::autograd::check_inplace(operands[number].tensor, requires_grad);  // torch says this first
    if (only_looks) continue;
    if (subtracts) refuse_dtypes(op, operands[number].tensor, values);  // torch says this before the next
    try {
      refuse_overlap(operands[number], operands, fills, takes_same_place);
    } catch (const c10::Error&) {
      if (by_autograd) refuse_gradients(op, values);
      throw;
    }
    if (!subtracts && !by_autograd) refuse_dtypes(op, operands[number].tensor, values);
    if (operands[number].place == 0) refuse_list_dtypes(op, operands[number].tensor, values);
    if (!in_place && !by_autograd) refuse_cast(op, operands[number].tensor, operands, values);
    targets.emplace_back(operands[number].tensor, other_strides);
  }
  const bool to_expanded = fills && targets.size() == 1 && is_expanded(targets[0].tensor);
  Tensor left;
  if (to_expanded) {
    left = targets[0].tensor.variable_data();
    at::AutoDispatchBelowADInplaceOrView below;
    targets[0].tensor.set_data(narrowed(left));
  }
  const auto pure = requires_grad ? std::nullopt : pure_form(op);
  try {
    if (pure.has_value() && is_plain(op, values[0].toTensor(), values)) {
      write_plainly(*pure, values, stack);
    } else {
      op.callBoxedForDispatchKey(c10::DispatchKey::Autograd, *stack);
    }
  } catch (...) {
    PythonError error;
    if (to_expanded) targets[0].tensor.set_data(left);
    for (const Target& target : targets) target.undo();
    if (!written.empty() && !by_autograd) raise_as_on_cpu(op, values);
    error.restore();
    throw;
  }
  if (to_expanded) targets[0].tensor.set_data(left);
  for (const Target& target : targets) target.keep_look();
  for (const size_t number : written) {
    const Operand& operand = operands[number];
    if (operand.place >= 0 && !operand.tensor.is_inference()) torch::autograd::impl::bump_version(operand.tensor);
  }
}

// `aten::as_strided_` for XLA's own key: AOTAutograd's stand-ins, which have no memory. Torch's kernel for it is not for
// backends that functionalize.
const Tensor& restride(
    const Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride, std::optional<c10::SymInt> offset) {
  self.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, std::move(offset));
  return self;
}

// Whether an operator writes to tensors that it is given, or to how they look (`transpose_`).
bool writes(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  return std::any_of(arguments.begin(), arguments.end(), [](const c10::Argument& argument) {
    return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  });
}

}  // namespace

TORCH_LIBRARY(lazy_runtime, library) {
  library.def("of_root(Tensor self, ScalarType dtype, int[] size, int[] stride, int storage_offset) -> Tensor");
  library.def("memory_size(Tensor self) -> int");
  library.def("reroot(Tensor self) -> ()");
  library.def("check_inplace(Tensor self) -> ()");
  library.def("begin_writes(Tensor[] targets) -> (Tensor[], Tensor[])");
  library.def("of_storage(Storage storage, ScalarType dtype) -> Tensor", of_storage);
  // Functionalization has autograd's keys excluded where a kernel of torch's calls one of ours.
  for (const auto key : {c10::DispatchKey::AutogradXLA, c10::DispatchKey::Functionalize}) {
    library.impl("of_root", torch::dispatch(key, of_root));
    library.impl("memory_size", torch::dispatch(key, memory_size));
    library.impl("reroot", torch::dispatch(key, reroot));
    library.impl("check_inplace", torch::dispatch(key, check_inplace));
    library.impl("begin_writes", torch::dispatch(key, begin_writes));
  }
}

// Registers the kernel for every operator of aten's that writes, but for those that have one of their own by now.
extern "C" void xla_register_writes() {
  static torch::Library own(torch::Library::IMPL, "aten", c10::DispatchKey::XLA, __FILE__, __LINE__);
  own.impl("as_strided_", restride);
  static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradXLA, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0 || name.name == "aten::detach_") continue;  // may be called on any view
    const auto op = dispatcher.findSchema(name);
    if (!op.has_value() || !writes(*op) || !op->hasKernelForDispatchKey(c10::DispatchKey::Autograd)) continue;
    if (op->hasKernelForDispatchKey(c10::DispatchKey::AutogradXLA)) continue;
    // `matmul.out`, whose autograd is that of nested tensors; its parts write
    if (op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) continue;
    const std::string full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    library.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&write>());
  }
}
