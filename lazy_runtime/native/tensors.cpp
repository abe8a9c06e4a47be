// What Python asks of hundreds of tensors in one call, at each call of a compiled model: an operator of torch's takes
// 0.15 µs for each tensor of a list that it is given, ten times what is done with it here.

#include <Python.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/autograd/python_variable.h>
#include <torch/csrc/utils/object_ptr.h>

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <vector>

#include "inner_tensor.h"
#include "shared_memory.h"

namespace {

// What is inside of a tensor on an xla device, with every write through its aliases applied. Subclasses of others hold
// inner tensors themselves.
const Tensor& inside(PyObject* object) {
  TORCH_CHECK_TYPE(THPVariable_Check(object), "expected a tensor, got ", Py_TYPE(object)->tp_name);
  const Tensor& tensor = THPVariable_Unpack(object);
  static Held inner{attribute(module("tensor.xla_tensor"), "XLATensor")};
  if (Py_TYPE(object) == reinterpret_cast<PyTypeObject*>(inner.get())) return tensor;
  TORCH_CHECK_TYPE(is_ours(tensor), "expected a tensor on an xla device, got one on ", tensor.device());
  functional::sync(tensor);
  return functional::unsafeGetFunctionalWrapper(tensor)->value();
}

// What is in a list or a tuple.
c10::ArrayRef<PyObject*> items(PyObject* sequence) {
  TORCH_CHECK_TYPE(PyList_Check(sequence) || PyTuple_Check(sequence), "expected a list or a tuple, got ",
                   Py_TYPE(sequence)->tp_name);
  return {PySequence_Fast_ITEMS(sequence), static_cast<size_t>(PySequence_Fast_GET_SIZE(sequence))};
}

// Knows what was inside of some tensors and keeps none of it: a value that nobody else has is donated.
using Known = std::vector<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>>;

constexpr const char* known_name = "lazy_runtime.known";

void forget(PyObject* capsule) { delete static_cast<Known*>(PyCapsule_GetPointer(capsule, known_name)); }

}  // namespace

// An inner tensor of this class, with this look and no handle yet.
extern "C" PyObject* inner_tensor(PyObject* type, PyObject* spec) {
  HANDLE_TH_ERRORS
  static const InnerTensors inner_tensors;
  return inner_tensors.make(reinterpret_cast<PyTypeObject*>(type), spec);
  END_HANDLE_TH_ERRORS
}

// A list of what is inside of the tensors of a list or a tuple.
extern "C" PyObject* inner_tensors(PyObject* tensors) {
  HANDLE_TH_ERRORS
  const auto given = items(tensors);
  THPObjectPtr result(PyList_New(static_cast<Py_ssize_t>(given.size())));
  if (!result) return nullptr;
  for (size_t i = 0; i < given.size(); ++i) {
    PyObject* inner = THPVariable_Wrap(inside(given[i]));
    if (inner == nullptr) return nullptr;
    PyList_SET_ITEM(result.get(), i, inner);
  }
  return result.release();
  END_HANDLE_TH_ERRORS
}

// What `are_same` compares with.
extern "C" PyObject* know_tensors(PyObject* tensors) {
  HANDLE_TH_ERRORS
  auto known = std::make_unique<Known>();
  for (PyObject* tensor : items(tensors)) known->emplace_back(inside(tensor).getIntrusivePtr());
  PyObject* capsule = PyCapsule_New(known.get(), known_name, forget);
  if (capsule != nullptr) known.release();
  return capsule;
  END_HANDLE_TH_ERRORS
}

// Whether the same is inside of the tensors as was inside of the known ones. While a weak reference is there nothing else
// comes to lie at its address.
extern "C" PyObject* are_same(PyObject* capsule, PyObject* tensors) {
  HANDLE_TH_ERRORS
  const auto* known = static_cast<const Known*>(PyCapsule_GetPointer(capsule, known_name));
  if (known == nullptr) return nullptr;
  const auto given = items(tensors);
  bool same = given.size() == known->size();
  for (size_t i = 0; same && i < given.size(); ++i) {
    same = inside(given[i]).unsafeGetTensorImpl() == (*known)[i]._unsafe_get_target();
  }
  return PyBool_FromLong(same);
  END_HANDLE_TH_ERRORS
}

// `make_resizable` of what a list or a tuple has of tensors.
extern "C" PyObject* make_all_resizable(PyObject* objects) {
  HANDLE_TH_ERRORS
  for (PyObject* object : items(objects)) {
    if (THPVariable_Check(object)) make_resizable(THPVariable_Unpack(object));
  }
  Py_RETURN_NONE;
  END_HANDLE_TH_ERRORS
}

// For each tensor, the number of the first among the first `count` of them that has the same memory, or -1.
extern "C" PyObject* sharing(PyObject* tensors, PyObject* count) {
  HANDLE_TH_ERRORS
  const auto given = items(tensors);
  const auto first = std::min(PyLong_AsSize_t(count), given.size());
  if (PyErr_Occurred()) return nullptr;
  const auto memory = [&](size_t i) {
    TORCH_CHECK_TYPE(THPVariable_Check(given[i]), "expected a tensor, got ", Py_TYPE(given[i])->tp_name);
    return THPVariable_Unpack(given[i]).unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  };
  std::unordered_map<const c10::StorageImpl*, long> known(first);
  for (size_t i = 0; i < first; ++i) known.emplace(memory(i), static_cast<long>(i));
  known.erase(nullptr);  // of subclasses that hold other tensors
  THPObjectPtr result(PyTuple_New(static_cast<Py_ssize_t>(given.size())));
  if (!result) return nullptr;
  for (size_t i = 0; i < given.size(); ++i) {
    const auto found = known.find(memory(i));
    PyObject* number = PyLong_FromLong(found == known.end() ? -1 : found->second);
    if (number == nullptr) return nullptr;
    PyTuple_SET_ITEM(result.get(), i, number);
  }
  return result.release();
  END_HANDLE_TH_ERRORS
}
