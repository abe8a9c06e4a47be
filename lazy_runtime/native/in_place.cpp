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

#include <ATen/ExpandUtils.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/_propagate_xla_data.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <c10/util/strides.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/library.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <tuple>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "linear.h"
#include "in_place_checks.h"
#include "shared_memory.h"
#include "sparse_checks.h"

// Python.h declares them; the symbols are those of the process.
extern "C" {
int PyGILState_Ensure();
void PyGILState_Release(int);
void PyErr_Fetch(void**, void**, void**);
void PyErr_Restore(void*, void*, void*);
void Py_DecRef(void*);
}

namespace {

// How many views may lead from the root to a tensor before a shorter way is looked for, and before any is taken.
constexpr size_t many_views = 8, most_views = 32;

// Shortens the way from the root to a tensor. A write goes that way back and forth, and functionalization never forgets a
// step: in a loop of `h = h.detach()` or `x.t_()` each write would cost more than the one before.
void shorten(const Tensor& tensor) {
  const size_t count = functional::unsafeGetFunctionalWrapper(tensor)->view_metas().size();
  if (count <= many_views) return;
  functional::sync(tensor);
  const Tensor& root = memory_of(tensor)->base();
  const int64_t offset = offset_of(tensor);
  const bool is_whole =
      root.scalar_type() == tensor.scalar_type() && offset == root.storage_offset() && root.numel() == tensor.numel();
  if (is_whole && root.sizes() == tensor.sizes() && root.strides() == tensor.strides()) {
    tensor.set_data(root_of(tensor));
  } else if (is_whole && root.is_contiguous() && tensor.is_contiguous()) {
    at::AutoDispatchBelowADInplaceOrView below;
    tensor.set_data(root_of(tensor).view(tensor.sizes()));
  } else if (count > most_views) {
    tensor.set_data(of_root(tensor, tensor.scalar_type(), tensor.sizes(), tensor.strides(), offset));
  }
}

// Makes a tensor a view of its root, by its strides alone, if a write could not go back through its views: torch's inverse
// of `unfold` forgets what no window shows, that of `expand` adds a difference to what is there, and that of `view` with
// another dtype needs the strides of the view, which an operator's result may not have. So does that of `view` if a
// transposition has followed, where the operator's result is known to have other strides than its target. Elements of an
// `as_strided` may share a place: a write through a part of it would be undone by the rest.
void reroot_if(const Tensor& tensor, bool other_strides) {
  shorten(tensor);
  const auto& views = functional::unsafeGetFunctionalWrapper(tensor)->view_metas();
  const bool is_transposed = other_strides && !views.empty() && !tensor.is_contiguous();
  const bool needed = is_transposed || std::any_of(views.begin(), views.end(), [&](const auto& view) {
                        return is_view_by(view, "unfold_ViewMeta") || is_view_by(view, "expand_ViewMeta") ||
                               is_view_by(view, "view_dtype_ViewMeta") ||
                               (is_view_by(view, "as_strided_ViewMeta") && &view != &views.back());
                      });
  if (!needed) return;
  tensor.set_data(of_root(tensor, tensor.scalar_type(), tensor.sizes(), tensor.strides(), offset_of(tensor)));
}

void reroot(const Tensor& tensor) { reroot_if(tensor, false); }

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

size_t holders(const Tensor& tensor) { return holders(tensor.unsafeGetTensorImpl(), tensor.use_count()); }

// Whether no other tensor shows the memory of `tensor`, which shows all of it, and no other has its value.
bool is_alone(const Tensor& tensor) {
  const auto& storage = tensor.storage();
  if (holders(storage.unsafeGetStorageImpl(), storage.use_count()) != 1) return false;
  const auto* wrapper = functional::unsafeGetFunctionalWrapper(tensor);
  // A parameter is what `detach` gave of the tensor that it was made of.
  const auto& views = wrapper->view_metas();
  const bool shows_all = std::all_of(views.begin(), views.end(), [](const auto& view) {
    return is_view_by(view, "detach_ViewMeta") || is_view_by(view, "alias_ViewMeta");
  });
  if (!shows_all) return false;
  const Tensor &value = wrapper->value(), &root = memory_of(tensor)->base();
  return root.is_same(value) ? holders(value) == 2 : holders(value) == 1 && holders(root) == 1;
}

// For many tensors whose values are about to be exchanged: the value of each that is alone, and what its memory holds if that
// is another tensor. Whoever writes may change the two where they are. Undefined for the other tensors, and nothing at all
// if `all` of them have to be alone and one is not.
std::tuple<std::vector<Tensor>, std::vector<Tensor>> values_alone(at::TensorList targets, bool all) {
  std::vector<Tensor> values(targets.size()), roots(targets.size());
  for (size_t i = 0; i < targets.size(); ++i) {
    const Tensor& target = targets[i];
    const bool ours = is_ours(target);
    if (ours) functional::sync(target);
    if (!ours || !is_alone(target)) {
      if (all) return {};
      continue;
    }
    const Tensor& root = memory_of(target)->base();
    values[i] = functional::unsafeGetFunctionalWrapper(target)->value();
    if (!root.is_same(values[i])) roots[i] = root;
  }
  return {std::move(values), std::move(roots)};
}

// Counts a write to each of the tensors, for autograd.
void count_writes(at::TensorList targets) {
  for (const Tensor& target : targets) {
    if (!target.is_inference()) torch::autograd::impl::bump_version(target);
  }
}

// `values_alone` for tensors that are written to now: the write to each that is alone is counted.
std::tuple<std::vector<Tensor>, std::vector<Tensor>> begin_writes(at::TensorList targets) {
  auto found = values_alone(targets, false);
  for (size_t i = 0; i < targets.size(); ++i) {
    if (std::get<0>(found)[i].defined()) count_writes(targets[i]);
  }
  return found;
}

// What torch says first of every operator that writes: not to a leaf that requires a gradient, nor to one of several
// views that one operator has made.
void check_inplace(const Tensor& tensor) {
  torch::autograd::check_inplace(tensor, at::GradMode::is_enabled() && tensor.requires_grad());
}

// Gives a tensor that nobody has seen yet a count of writes of its own, instead of that of its value. Of one that shares
// its count, torch's factories in C++ return a copy, which `torch.jit.trace` does not know.
void own_version(const Tensor& tensor) {
  if (!tensor.is_inference()) torch::autograd::impl::set_version_counter(tensor, c10::VariableVersion(0));
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

// Gives the tensors of `out=` the sizes that the operator's results will have, where one shares its memory with other
// tensors: functionalization exchanges all of a tensor's memory instead, which a view cannot have and other views would not
// survive. Returns whether sizes have changed, of which torch has warned then.
bool resize_shared(const c10::OperatorHandle& op, const std::vector<Tensor>& outs, std::vector<c10::IValue> values) {
  const auto is_shared = [](const Tensor& out) { return functional::sync(out), !is_alone(out); };
  if (std::none_of(outs.begin(), outs.end(), is_shared)) return false;
  std::vector<Tensor> results(outs.size());
  const auto stand_in = [&](const Tensor& tensor) {
    if (!is_ours(tensor)) return tensor;
    Tensor meta = at::empty_strided(tensor.sizes(), tensor.strides(), tensor.options().device(c10::kMeta));
    for (size_t i = 0; i < outs.size(); ++i) {
      if (outs[i].is_same(tensor)) results[i] = meta;
    }
    return meta;
  };
  replace_tensors(values, stand_in);
  try {
    at::AutoDispatchBelowADInplaceOrView below;
    op.callBoxed(values);
  } catch (...) {  // the operator itself will say it
    const PythonError dropped;
    return false;
  }
  bool changed = false;
  for (size_t i = 0; i < outs.size(); ++i) {
    if (results[i].sizes() == outs[i].sizes()) continue;
    outs[i].resize_(results[i].sizes());
    changed = true;
  }
  return changed;
}

// Gives a tensor other strides; on xla they are only its look.
void set_strides(const Tensor& tensor, at::IntArrayRef strides) {
  at::AutoDispatchBelowADInplaceOrView below;
  const Tensor& root = memory_of(tensor)->base();
  Tensor look;
  {
    at::AutoDispatchSkipFunctionalize skip;
    look = at::empty_strided(root.sizes(), strides, root.options());
  }
  at::_propagate_xla_data(look, root);
  if (!root.is_same(functional::from_functional_tensor(tensor))) {
    functional::unsafeGetFunctionalWrapper(tensor)->regenerate_from_base();
  }
}

// Where an operator has resized `out=`, functionalization leaves the strides of the pure form's result. Of these, whose
// results are not contiguous, the kernels of the other form copy them into what is.
void restride_resized(const c10::OperatorHandle& op, const std::vector<Target>& targets) {
  static const std::unordered_set<std::string_view> names = {"_fft_c2c", "_fft_c2r", "_fft_r2c", "cholesky",
                                                             "cholesky_solve"};
  if (names.count(stem(op)) == 0) return;
  for (const Target& target : targets) {
    const Tensor& tensor = target.tensor;
    if (tensor.sizes() == target.value.sizes() || !functional::isBaseTensor(tensor)) continue;
    const auto strides = c10::contiguous_strides(tensor.sizes());
    if (tensor.strides() != at::IntArrayRef(strides)) set_strides(tensor, strides);
  }
}

// A storage says how large it is, also where an operator has resized `out=`, as factories do with the empty tensor that
// they begin with.
void resize_storages(const std::vector<Tensor>& outs) {
  for (const Tensor& tensor : outs) {
    if (!is_ours(tensor) || tensor.unsafeGetTensorImpl()->has_symbolic_sizes_strides()) continue;
    FunctionalStorageImpl* memory = memory_of(tensor);
    if (memory->base().unsafeGetTensorImpl()->has_symbolic_sizes_strides()) continue;
    const auto size = static_cast<size_t>(memory_size(tensor));
    if (memory->nbytes() != size) memory->set_nbytes(size);
  }
}

// Elementwise operators whose result has the dtype of floating-point operands, and those of which integers' has too.
const std::unordered_set<std::string_view> of_floats = {
    "acos",  "acosh", "addcdiv", "addcmul",     "asin",      "asinh",    "atan",       "atan2",      "atanh", "ceil",
    "cos",   "cosh",  "digamma", "div",         "elu",       "erf",      "erfc",       "erfinv",     "exp",   "exp2",
    "expm1", "floor", "gelu",    "hardsigmoid", "hardswish", "hardtanh", "hypot",      "leaky_relu", "lerp",  "lgamma",
    "log",   "log10", "log1p",   "log2",        "mish",      "pow",      "reciprocal", "round",      "rsqrt", "sigmoid",
    "silu",  "sin",   "sinc",    "sinh",        "sqrt",      "tan",      "tanh",       "threshold",  "trunc", "xlogy"};
const std::unordered_set<std::string_view> of_integers = {"add", "clamp", "clamp_max", "clamp_min", "fmod", "mul",
                                                          "neg", "relu",  "remainder", "sign",      "sub"};

// `aten::mul.Tensor` of `aten::mul_.Tensor`, for these.
std::optional<c10::OperatorHandle> pure_form(const c10::OperatorHandle& op) {
  thread_local std::unordered_map<std::string, std::optional<c10::OperatorHandle>> known;
  const c10::OperatorName& name = op.operator_name();
  if (name.name.back() != '_' || of_floats.count(stem(op)) + of_integers.count(stem(op)) == 0) return std::nullopt;
  const auto [found, is_new] = known.try_emplace(toString(name));
  if (is_new) {
    const std::string stripped = name.name.substr(0, name.name.size() - 1);
    const std::string overload =
        (stripped == "aten::pow" ? "Tensor_" : "") + name.overload_name;  // of two tensors, say
    found->second = c10::Dispatcher::singleton().findSchema({stripped, overload});
  }
  return found->second;
}

// `aten::exponential` of `aten::exponential_` and its like, where the user has passed a generator: torch's meta kernels
// for them, which functionalization runs first, take none.
std::optional<c10::OperatorHandle> drawn_form(const c10::OperatorHandle& op, const std::vector<c10::IValue>& values) {
  static const std::unordered_set<std::string_view> names = {"cauchy", "exponential", "geometric", "log_normal"};
  if (!values.back().isGenerator()) return std::nullopt;  // first: hardly any write has one
  const std::string& name = op.operator_name().name;
  if (name.back() != '_' || names.count(stem(op)) == 0) return std::nullopt;
  return c10::Dispatcher::singleton().findSchema({name.substr(0, name.size() - 1), op.operator_name().overload_name});
}

// Whether nothing can be wrong with an elementwise operator in place: all tensors are xla's and of one dtype, that of any
// number fits it, and they broadcast to the target's sizes.
bool is_plain(const c10::OperatorHandle& op, const Tensor& target, const std::vector<c10::IValue>& values) {
  static const std::unordered_set<std::string_view> of_complex = {"add",  "addcdiv", "addcmul", "div",
                                                                  "lerp", "mul",     "sub"};
  const at::ScalarType dtype = target.scalar_type();
  const bool is_integral = c10::isIntegralType(dtype, /*includeBool=*/false);
  if (dtype == at::kBool || (is_integral && of_integers.count(stem(op)) == 0)) return false;
  if (c10::isComplexType(dtype) && of_complex.count(stem(op)) == 0) return false;
  return std::all_of(values.begin(), values.end(), [&](const c10::IValue& value) {
    if (value.isInt() || value.isNone() || value.isString() || (value.isDouble() && !is_integral)) return true;
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

// Of these, those whose gradient torch computes from the operand, in place or not.
bool saves_operand(const c10::OperatorHandle& op) {
  static const std::unordered_set<std::string_view> names = {
      "clamp", "clamp_max", "clamp_min", "gelu", "hardsigmoid", "hardswish", "hardtanh", "mish", "silu"};
  return names.count(stem(op)) != 0;
}

// What functionalization does once it has an operator's result.
void put(const Tensor& target, const Tensor& inner) {
  at::AutoDispatchBelowADInplaceOrView below;
  functional::replace_(target, inner);
  functional::commit_update(target);
  functional::sync(target);
  if (!target.is_inference()) torch::autograd::impl::bump_version(target);
}

// What functionalization does of an operator in place, but for its run on meta tensors, whose kernels are Python for
// most of these and take up to fifty times as long as all the rest (torch 2.13).
void write_plainly(const c10::OperatorHandle& pure, const std::vector<c10::IValue>& values, torch::jit::Stack* stack) {
  torch::jit::Stack inner = values;
  for (c10::IValue& value : inner) {
    if (!value.isTensor() || !is_ours(value.toTensor())) continue;
    functional::sync(value.toTensor());
    value = functional::from_functional_tensor(value.toTensor());
  }
  {
    at::AutoDispatchBelowADInplaceOrView below;
    at::AutoDispatchSkipFunctionalize skip;
    pure.callBoxed(&inner);
  }
  const Tensor& target = values[0].toTensor();
  put(target, inner.back().toTensor());
  torch::jit::drop(*stack, values.size());
  stack->emplace_back(target);
}

// The same where autograd follows: the pure form is of a tensor with the target's value and history, and its result's
// history becomes the target's, as it would be after torch's kernel for the operator in place.
void write_plainly_with_gradient(const c10::OperatorHandle& pure, const std::vector<c10::IValue>& values,
                                 torch::jit::Stack* stack) {
  namespace autograd = torch::autograd::impl;
  const Tensor& target = values[0].toTensor();
  functional::sync(target);
  Tensor before;
  {
    at::AutoDispatchBelowADInplaceOrView below;
    before = functional::to_functional_tensor(functional::from_functional_tensor(target));
  }
  autograd::set_version_counter(before, c10::VariableVersion(0));  // else that of the value, which the target shares
  if (target.requires_grad()) autograd::set_gradient_edge(before, autograd::gradient_edge(target));
  torch::jit::Stack operands = values;
  operands[0] = before;
  pure.callBoxed(&operands);
  const Tensor& result = operands.back().toTensor();
  functional::sync(result);
  put(target, functional::from_functional_tensor(result));
  autograd::rebase_history(target, autograd::gradient_edge(result));
  torch::jit::drop(*stack, values.size());
  stack->emplace_back(target);
}

void write(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const auto& arguments = op.schema().arguments();
  std::vector<c10::IValue> values = torch::jit::last(*stack, arguments.size()).vec();
  std::vector<Operand> operands;
  std::vector<size_t> written;  // numbers of operands
  std::vector<Target> targets;
  std::vector<Tensor> outs;
  bool in_place = false, sparse = false;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const bool writes = arguments[i].alias_info() != nullptr && arguments[i].alias_info()->isWrite();
    const auto take = [&](const Tensor& tensor, int64_t place) {
      sparse |= tensor.defined() && tensor.is_sparse();
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
  sparse &= !operands.empty();          // beside dense tensors
  if (sparse && is_multi_tensor(op)) {  // one after another, each as if it were called so
    op.callBoxedForDispatchKey(c10::DispatchKey::CompositeExplicitAutograd, *stack);
    return;
  }
  if (sparse && !op.hasKernelForDispatchKey(c10::DispatchKey::SparseXLA)) refuse_sparse(op);
  const bool only_looks = op.hasTag(at::Tag::inplace_view);
  const bool fills = name == "aten::fill_" || name == "aten::zero_";
  const bool takes_same_place = !reads_elsewhere(op);
  const bool subtracts = stem(op) == "sub";
  const bool other_strides = name == "aten::cumsum_" || name == "aten::cumprod_";
  const bool requires_grad =
      at::GradMode::is_enabled() &&
      std::any_of(operands.begin(), operands.end(), [](const Operand& x) { return x.tensor.requires_grad(); });
  const bool by_autograd = !in_place && requires_grad;  // it takes no `out=` of operands with gradients
  if (name == "aten::copy_" && !requires_grad && operands.size() == 2 && is_same_data(operands[0], operands[1])) {
    // which is all that torch does then, whatever overlaps (aten/src/ATen/native/Copy.cpp)
    if (!operands[0].tensor.is_inference()) torch::autograd::impl::bump_version(operands[0].tensor);
    torch::jit::drop(*stack, values.size());
    stack->emplace_back(operands[0].tensor);
    return;
  }
  // `make_fx`, for which functionalization waits, traces the operator as it was called, and nothing else. It raises
  // what its own calls find wrong (`proxy_tracing.py`).
  const bool is_traced = c10::impl::tls_is_dispatch_key_excluded(c10::DispatchKey::Functionalize);
  if (is_multi_tensor(op)) {  // of all tensors, before anything else of one
    for (const size_t number : written) torch::autograd::check_inplace(operands[number].tensor, requires_grad);
    for (const size_t number : written) refuse_conjugate(op, operands[number].tensor);
  }
  for (const size_t number : written) {
    if (in_place) torch::autograd::check_inplace(operands[number].tensor, requires_grad);  // torch says this first
    if (only_looks || sparse || is_traced) continue;  // a kernel for sparse tensors refuses what it does not take
    if (subtracts) refuse_dtypes(op, operands[number].tensor, values);  // torch says this before the next
    try {
      refuse_overlap(operands[number], operands, fills, takes_same_place);
    } catch (const c10::Error&) {
      if (by_autograd) refuse_gradients(op, values);
      if (!op.hasTag(at::Tag::nondeterministic_seeded)) raise_as_on_cpu(op, values);  // what torch would say before it
      throw;
    }
    if (!subtracts && !by_autograd) refuse_dtypes(op, operands[number].tensor, values);
    if (operands[number].place == 0) refuse_list_dtypes(op, operands[number].tensor, values);
    if (!in_place && !by_autograd) {
      refuse_cast(op, operands[number].tensor, operands, values);
      broadcast_to(operands[number].tensor, op, values);
      outs.push_back(operands[number].tensor);
    }
  }
  if (!outs.empty()) std::copy(values.begin(), values.end(), stack->end() - static_cast<ptrdiff_t>(values.size()));
  if (!outs.empty() && resize_shared(op, outs, values) && !takes_same_place) {  // whose kernels resize first, then look
    for (const size_t number : written) refuse_overlap(operands[number], operands, fills, takes_same_place);
  }
  for (const size_t number : written) {
    if (only_looks) shorten(operands[number].tensor);
    if (!only_looks && !sparse) targets.emplace_back(operands[number].tensor, other_strides);
  }
  const bool to_expanded = fills && targets.size() == 1 && is_expanded(targets[0].tensor);
  Tensor left;
  if (to_expanded) {
    left = targets[0].tensor.variable_data();
    at::AutoDispatchBelowADInplaceOrView below;
    targets[0].tensor.set_data(narrowed(left));
  }
  const auto pure = is_traced || (requires_grad && !saves_operand(op)) ? std::nullopt : pure_form(op);
  const auto drawn = is_traced || operands.empty() ? std::nullopt : drawn_form(op, values);
  try {
    if (drawn.has_value()) {
      (requires_grad ? write_plainly_with_gradient : write_plainly)(*drawn, values, stack);
    } else if (pure.has_value() && is_plain(op, values[0].toTensor(), values)) {
      (requires_grad ? write_plainly_with_gradient : write_plainly)(*pure, values, stack);
    } else if (sparse) {
      const c10::impl::ExcludeDispatchKeyGuard off(c10::DispatchKey::Functionalize);  // `sparse.cpp` says why
      op.callBoxedForDispatchKey(c10::DispatchKey::Autograd, *stack);
    } else {
      op.callBoxedForDispatchKey(c10::DispatchKey::Autograd, *stack);
    }
  } catch (...) {
    PythonError error;
    if (to_expanded) targets[0].tensor.set_data(left);
    for (const Target& target : targets) target.undo();
    if (!written.empty() && !by_autograd && !sparse && !is_traced) raise_as_on_cpu(op, values);
    error.restore();
    throw;
  }
  if (to_expanded) targets[0].tensor.set_data(left);
  for (const Target& target : targets) target.keep_look();
  if (!outs.empty()) restride_resized(op, targets);
  if (!sparse) resize_storages(outs);
  for (const size_t number : written) {
    const Operand& operand = operands[number];
    if (operand.place >= 0 && !operand.tensor.is_inference()) torch::autograd::impl::bump_version(operand.tensor);
  }
}

// `aten::as_strided_` for XLA's own key: AOTAutograd's stand-ins, which have no memory. Torch's kernel for it is not for
// backends that functionalize.
const Tensor& restride(const Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                       std::optional<c10::SymInt> offset) {
  self.unsafeGetTensorImpl()->set_sizes_and_strides(size, stride, std::move(offset));
  return self;
}

// `aten::detach` for autograd's key: a loop may detach what it has detached before, and write to parts of it.
void detach(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  op.callBoxedForDispatchKey(c10::DispatchKey::Autograd, *stack);
  const Tensor& result = stack->back().toTensor();
  if (is_ours(result)) shorten(result);
}

// Whether torch traces: what is made then are stand-ins, whatever their device.
bool is_tracing() {
  using Key = c10::impl::TorchDispatchModeKey;
  const auto is_on = [](Key key) { return c10::impl::TorchDispatchModeTLS::get_mode(key).has_value(); };
  return is_on(Key::FAKE) || is_on(Key::PROXY) || is_on(Key::FUNCTIONAL);
}

// The device itself, where `device` is the current one of its kind.
c10::Device with_index(c10::Device device) {
  if (device.has_index() || !device.is_xla()) return device;
  return c10::impl::VirtualGuardImpl(device.type()).getDevice();
}

// `aten::zeros_like` and its like for functionalization: what torch's fallback does, and `own_version`. That fallback
// takes what comes of a functional tensor for one more. What is made on another device is none: it is made like a
// tensor without elements, of which these operators read none.
void make_like(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const size_t first = stack->size() - op.schema().arguments().size();
  const c10::IValue& wanted = (*stack)[first + *op.schema().argumentIndexWithName("device")];
  bool wraps = false;
  for (size_t i = first; i < stack->size(); ++i) {
    c10::IValue& value = (*stack)[i];
    if (!value.isTensor() || !functional::isFunctionalTensor(value.toTensor())) continue;
    functional::sync(value.toTensor());
    const Tensor inner = functional::from_functional_tensor(value.toTensor());
    wraps = wanted.isNone() || !inner.is_xla() || is_tracing() || with_index(wanted.toDevice()) == inner.device();
    value = wraps ? inner : at::empty_strided(inner.sizes(), inner.strides(), inner.options().device(at::kMeta));
  }
  {
    at::AutoDispatchSkipFunctionalize skip;
    op.callBoxed(stack);
  }
  if (!wraps) return;
  const Tensor made = functional::to_functional_tensor(stack->back().toTensor());
  own_version(made);
  stack->back() = made;
}

// Whether an operator writes to tensors that it is given, or to how they look (`transpose_`).
bool writes(const c10::OperatorHandle& op) {
  const auto& arguments = op.schema().arguments();
  return std::any_of(arguments.begin(), arguments.end(), [](const c10::Argument& argument) {
    return argument.alias_info() != nullptr && argument.alias_info()->isWrite();
  });
}

// Registers a kernel in Python for the XLA key of the operator of a name (`subclasses.py`).
void (*register_kernel)(const char*) = nullptr;

// The fallback of the XLA key. Torch looks up Python's kernels by their operators, and so finds no fallback in Python
// for a tensor with a Python key, or within a mode: each operator that comes here gets a kernel of its own.
void by_own_kernel(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  register_kernel(c10::toString(op.operator_name()).c_str());
  TORCH_CHECK_NOT_IMPLEMENTED(op.hasKernelForDispatchKey(c10::DispatchKey::XLA), op.operator_name(),
                              " could get no kernel for xla tensors");
  op.callBoxedForDispatchKey(c10::DispatchKey::XLA, *stack);
}

}  // namespace

TORCH_LIBRARY(lazy_runtime, library) {
  library.def("of_root(Tensor self, ScalarType dtype, int[] size, int[] stride, int storage_offset) -> Tensor");
  library.def("memory_size(Tensor self) -> int");
  library.def("reroot(Tensor self) -> ()");
  library.def("own_version(Tensor self) -> ()");
  library.def("check_inplace(Tensor self) -> ()");
  library.def("begin_writes(Tensor[] targets) -> (Tensor[], Tensor[])");
  library.def("values_alone(Tensor[] targets, bool all) -> (Tensor[], Tensor[])");
  library.def("count_writes(Tensor[] targets) -> ()");
  library.def("of_storage(Storage storage, ScalarType dtype) -> Tensor", of_storage);
  library.def("make_resizable(Tensor[] tensors) -> ()", [](at::TensorList tensors) {
    for (const Tensor& tensor : tensors) make_resizable(tensor);
  });
  library.def("whole_of_storage(Storage storage) -> Tensor", whole_of_storage);
  // Functionalization has autograd's keys excluded where a kernel of torch's calls one of ours.
  for (const auto key : {c10::DispatchKey::AutogradXLA, c10::DispatchKey::Functionalize}) {
    library.impl("of_root", torch::dispatch(key, of_root));
    library.impl("memory_size", torch::dispatch(key, memory_size));
    library.impl("reroot", torch::dispatch(key, reroot));
    library.impl("own_version", torch::dispatch(key, own_version));
    library.impl("check_inplace", torch::dispatch(key, check_inplace));
    library.impl("begin_writes", torch::dispatch(key, begin_writes));
    library.impl("values_alone", torch::dispatch(key, values_alone));
    library.impl("count_writes", torch::dispatch(key, count_writes));
  }
}

extern "C" void xla_register_fallback(void (*registers)(const char*)) {
  register_kernel = registers;
  static torch::Library library(torch::Library::IMPL, "_", c10::DispatchKey::XLA, __FILE__, __LINE__);
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&by_own_kernel>());
}

// Registers the kernel for every operator of aten's that writes, but for those that have one of their own by now.
extern "C" void xla_register_writes() {
  static torch::Library own(torch::Library::IMPL, "aten", c10::DispatchKey::XLA, __FILE__, __LINE__);
  own.impl("as_strided_", restride);
  static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradXLA, __FILE__, __LINE__);
  library.impl("detach", torch::CppFunction::makeFromBoxedFunction<&detach>());
  static torch::Library above(torch::Library::IMPL, "aten", c10::DispatchKey::Functionalize, __FILE__, __LINE__);
  for (const char* name : {"empty_like", "full_like", "new_empty", "new_empty_strided", "new_full", "new_ones",
                           "new_zeros", "ones_like", "rand_like", "randint_like", "randint_like.low_dtype",
                           "randn_like", "zeros_like"}) {
    above.impl(name, torch::CppFunction::makeFromBoxedFunction<&make_like>());
  }
  library.impl("linear", linear);
  above.impl("linear", linear);  // in inference mode
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
