// Python's objects in C++: errors that are thrown, slots of classes read and written in place, globals that change.

#pragma once

#include <Python.h>
#include <structmember.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/utils/object_ptr.h>

#include <string>
#include <string_view>
#include <vector>

namespace {

using Held = THPObjectPtr;

// What a function of Python's API gave; it has set an error where that is null.
PyObject* checked(PyObject* object) {
  if (object == nullptr) throw python_error();
  return object;
}

void check(int status) {
  if (status < 0) throw python_error();
}

// The entry of a dictionary; null if there is none.
PyObject* find(PyObject* dictionary, PyObject* key) {
  PyObject* found = PyDict_GetItemWithError(dictionary, key);
  if (found == nullptr && PyErr_Occurred()) throw python_error();
  return found;
}

PyObject* attribute(PyObject* object, const char* name) { return checked(PyObject_GetAttrString(object, name)); }

// A module of the package.
Held module(const char* name) {
  return Held(checked(PyImport_ImportModule((std::string("lazy_runtime.") + name).c_str())));
}

bool is_true(PyObject* object) {
  const int truth = PyObject_IsTrue(object);
  check(truth);
  return truth != 0;
}

// A slot of a Python class with `__slots__`.
class Slot {
 public:
  Slot(PyObject* type, const char* name) {
    Held member(attribute(type, name));
    TORCH_CHECK(Py_IS_TYPE(member.get(), &PyMemberDescr_Type), name, " is no slot");
    offset_ = reinterpret_cast<PyMemberDescrObject*>(member.get())->d_member->offset;
  }
  // Null while nothing was put there.
  PyObject*& of(PyObject* object) const {
    return *reinterpret_cast<PyObject**>(reinterpret_cast<char*>(object) + offset_);
  }
  void put(PyObject* object, PyObject* owned) const { Py_XSETREF(of(object), owned); }

 private:
  Py_ssize_t offset_;
};

// Makes objects that are like one that the class's own `__init__` made.
class Copies {
 public:
  Copies(PyObject* type, PyObject* arguments) : model_(checked(PyObject_CallObject(type, arguments))) {
    Held names(attribute(type, "__slots__"));
    for (Py_ssize_t i = 0; i < PyTuple_Size(names.get()); ++i) {
      const char* name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(names.get(), i));
      if (std::string_view(name) != "__weakref__") slots_.emplace_back(type, name);
    }
  }
  PyObject* make() {
    PyObject* made = checked(Py_TYPE(model_.get())->tp_alloc(Py_TYPE(model_.get()), 0));
    for (const Slot& slot : slots_) slot.of(made) = Py_XNewRef(slot.of(model_.get()));
    return made;
  }
  Slot slot(const char* name) { return {reinterpret_cast<PyObject*>(Py_TYPE(model_.get())), name}; }

 private:
  Held model_;
  std::vector<Slot> slots_;
};

// A name in a module whose value may change.
class Global {
 public:
  Global(const char* where, const char* name)
      : names_(Py_NewRef(PyModule_GetDict(module(where)))), name_(checked(PyUnicode_InternFromString(name))) {}
  PyObject* now() {
    PyObject* found = find(names_, name_.get());
    TORCH_CHECK(found != nullptr, "no such name in the module: ", PyUnicode_AsUTF8(name_.get()));
    return found;
  }

 private:
  Held names_, name_;
};

}  // namespace
