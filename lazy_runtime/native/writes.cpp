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
#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/Contiguity.h>
#include <torch/csrc/autograd/VariableTypeUtils.h>
#include <torch/library.h>

#include <algorithm>
#include <string>
#include <string_view>
#include <typeinfo>
#include <unordered_set>
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

// Makes a tensor a view of its root, by its strides alone, if a write could not go back through its views: torch's inverse
// of `unfold` forgets what no window shows, that of `expand` adds a difference to what is there, and that of `view` with
// another dtype needs the strides of the view, which an operator's result may not have.
void reroot(const Tensor& tensor) {
  const auto& views = functional::unsafeGetFunctionalWrapper(tensor)->view_metas();
  const bool needed = std::any_of(views.begin(), views.end(), [](const auto& view) {
    const auto& meta = *view;
    const std::string_view name = typeid(meta).name();
    return name.find("unfold_ViewMeta") != name.npos || name.find("expand_ViewMeta") != name.npos ||
        name.find("view_dtype_ViewMeta") != name.npos;
  });
  if (!needed) return;
  tensor.set_data(of_root(tensor, tensor.scalar_type(), tensor.sizes(), tensor.strides(), tensor.storage_offset()));
}

// What an operator writes to, as it was before.
struct Target {
  Tensor tensor;
  FunctionalStorageImpl* memory;
  size_t generation;
  Tensor value;  // what the tensor showed
  Tensor root;   // what all of the memory held

  explicit Target(const Tensor& written) : tensor(written) {
    functional::sync(tensor);
    reroot(tensor);
    memory = memory_of(tensor);
    generation = memory->generation();
    value = functional::from_functional_tensor(tensor);
    root = memory->base();
  }

  // The root may have taken over the strides of an operator's result.
  void keep_look() const {
    if (memory_of(tensor) != memory) return;  // `out=` may exchange it
    const Tensor& now = memory->base();
    if (now.sizes() == root.sizes() && now.strides() != root.strides()) functional::propagate_xla_data_direct(root, now);
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

// Whether torch can tell that tensors of one memory share some of their elements, and not each with its own
// (aten/src/ATen/MemoryOverlap.cpp, which looks at addresses).
bool overlap_partially(const Tensor& x, const Tensor& y) {
  if (x.is_same(y) || x.numel() == 0 || y.numel() == 0) return false;
  if (!is_dense(x) || !is_dense(y)) return false;
  const int64_t x_first = x.storage_offset() * x.element_size(), x_end = x_first + x.numel() * x.element_size();
  const int64_t y_first = y.storage_offset() * y.element_size(), y_end = y_first + y.numel() * y.element_size();
  if (x_first == y_first && x_end == y_end) return x.strides() != y.strides();
  return x_first < y_end && y_first < x_end;
}

// A tensor among an operator's arguments.
struct Operand {
  Tensor tensor;
  FunctionalStorageImpl* memory;
  int64_t place;  // in a list, whose tensors meet those of other lists in the same place; -1 outside of one

  bool meets(const Operand& other) const {
    return memory == other.memory && (place == other.place || place < 0 || other.place < 0);
  }
};

void refuse_overlap(const Operand& target, const std::vector<Operand>& operands, bool takes_expanded) {
  TORCH_CHECK(
      takes_expanded || !is_expanded(target.tensor),
      "unsupported operation: more than one element of the written-to tensor refers to a single memory location. "
      "Please clone() the tensor before performing the operation.");
  for (const Operand& operand : operands) {
    TORCH_CHECK(
        !target.meets(operand) || !overlap_partially(target.tensor, operand.tensor),
        "unsupported operation: some elements of the input tensor and the written-to tensor refer to a single memory "
        "location. Please clone() the tensor before performing the operation.");
  }
}

// Those whose meta kernels let pass what the CPU's refuse (torch 2.13): a result that cannot be cast to what it goes to,
// bools to subtract. Raises what the CPU's kernel says of tensors without elements.
void refuse_dtypes(const c10::OperatorHandle& op, const Tensor& target, std::vector<c10::IValue> values) {
  static const std::unordered_set<std::string_view> names = {"add", "addcdiv", "addcmul", "mul", "sub"};
  std::string_view name = op.operator_name().name;
  name.remove_prefix(std::string_view("aten::").size());
  if (name.back() == '_') name.remove_suffix(1);
  if (names.count(name) == 0) return;
  const at::ScalarType dtype = target.scalar_type();
  const bool subtracts = name == "sub";
  bool fits = true;
  for (const c10::IValue& value : values) {
    if (!value.isTensor()) continue;
    const at::ScalarType other = value.toTensor().scalar_type();
    fits &= c10::canCast(other, dtype) && !(subtracts && other == at::kBool);
  }
  if (fits) return;
  for (c10::IValue& value : values) {
    if (!value.isTensor() || !is_ours(value.toTensor())) continue;
    const std::vector<int64_t> size(value.toTensor().dim() > 0 ? 1 : 0);
    value = at::empty(size, value.toTensor().options().device(c10::kCPU));
  }
  at::AutoDispatchBelowADInplaceOrView below;
  op.callBoxed(values);
}

// One element of each group that shares a place. A view of the root: written through the expanded one, the others of the
// group would put the old value back.
Tensor narrowed(const Tensor& tensor) {
  std::vector<int64_t> size = tensor.sizes().vec();
  for (int64_t dim = 0; dim < tensor.dim(); ++dim) {
    if (tensor.stride(dim) == 0 && size[dim] > 1) size[dim] = 1;
  }
  return of_root(tensor, tensor.scalar_type(), size, tensor.strides(), tensor.storage_offset());
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
      operands.push_back({tensor, memory_of(tensor), place});
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
  const bool requires_grad = at::GradMode::is_enabled() &&
      std::any_of(operands.begin(), operands.end(), [](const Operand& x) { return x.tensor.requires_grad(); });
  for (const size_t number : written) {
    if (in_place) torch::autograd::check_inplace(operands[number].tensor, requires_grad);  // torch says this first
    if (only_looks) continue;
    refuse_overlap(operands[number], operands, fills);
    refuse_dtypes(op, operands[number].tensor, values);
    targets.emplace_back(operands[number].tensor);
  }
  const bool to_expanded = fills && targets.size() == 1 && is_expanded(targets[0].tensor);
  Tensor left;
  if (to_expanded) {
    left = targets[0].tensor.variable_data();
    at::AutoDispatchBelowADInplaceOrView below;
    targets[0].tensor.set_data(narrowed(left));
  }
  try {
    op.callBoxedForDispatchKey(c10::DispatchKey::Autograd, *stack);
  } catch (...) {
    PythonError error;
    if (to_expanded) targets[0].tensor.set_data(left);
    for (const Target& target : targets) target.undo();
    const bool by_autograd = !in_place && requires_grad;  // it takes no `out=` of operands with gradients
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
  // Functionalization has autograd's keys excluded where a kernel of torch's calls one of ours.
  for (const auto key : {c10::DispatchKey::AutogradXLA, c10::DispatchKey::Functionalize}) {
    library.impl("of_root", torch::dispatch(key, of_root));
    library.impl("memory_size", torch::dispatch(key, memory_size));
    library.impl("reroot", torch::dispatch(key, reroot));
  }
}

// Registers the kernel for every operator of aten's that writes, but for those that have one of their own by now.
extern "C" void xla_register_writes() {
  static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::AutogradXLA, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (name.name.rfind("aten::", 0) != 0 || name.name == "aten::detach_") continue;  // may be called on any view
    const auto op = dispatcher.findSchema(name);
    if (!op.has_value() || !writes(*op) || !op->hasKernelForDispatchKey(c10::DispatchKey::Autograd)) continue;
    if (op->hasKernelForDispatchKey(c10::DispatchKey::AutogradXLA)) continue;
    const std::string full = name.overload_name.empty() ? name.name : name.name + "." + name.overload_name;
    library.impl(full.c_str(), torch::CppFunction::makeFromBoxedFunction<&write>());
  }
}
