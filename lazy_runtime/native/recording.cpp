// The hot path of lazy mode: an operator whose call is known becomes a node of the pending graph. It does what
// `dispatch.record` does for everyday calls, in a third of the time, and leaves all others to it: the first call of a kind,
// random operators, eager mode, programs that are traced aside, recomputation, debugging. What it makes are objects of
// Python's classes; it knows the names of their slots and nothing else of them.

#include <Python.h>
#include <ATen/EmptyTensor.h>
#include <c10/core/DefaultDtype.h>
#include <c10/core/InferenceMode.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/Layout.h>
#include <torch/csrc/MemoryFormat.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/python_variable.h>

#include <memory>
#include <unordered_map>
#include <utility>

#include "inner_tensor.h"
#include "python_objects.h"

namespace {

// Of an operator of the table.
struct Operator {
  Held calls;    // the calls that are known, by what they mean
  Held counter;  // its name
  bool dynamic_scalars, products, is_view;
};

// What the arguments of a call hold: what flows into the graph.
struct Arguments {
  Held inputs;  // a list of values
  // keep what is read from being taken for dead by another thread's sync, until the node is on the list
  c10::SmallVector<Held, 4> read;
  bool dynamic;       // numbers are inputs of the graph
  Held floats, ints;  // lists of them; null while there are none

  static void add(Held& list, PyObject* item) {
    if (!list) list = checked(PyList_New(0));
    check(PyList_Append(list.get(), item));
  }
};

class Recorder {
 public:
  Recorder()
      : tensor_type_(attribute(module("tensor.xla_tensor"), "XLATensor")),
        handle_type_(attribute(module("ir.graph"), "Handle")),
        nodes_(Held(attribute(module("ir.graph"), "Node")), Held(Py_BuildValue("(O()()())", Py_None))),
        values_(Held(attribute(module("ir.graph"), "Value")), Held(Py_BuildValue("(Oi)", Py_None, 0))) {}

  // `XLATensor.__torch_dispatch__`; `kwargs` may be null.
  PyObject* dispatch(PyObject* func, PyObject* types, PyObject* args, PyObject* kwargs) {
    Held result(quickly(func, args, kwargs != nullptr && PyDict_GET_SIZE(kwargs) > 0 ? kwargs : nullptr));
    if (result) return result.release();
    return checked(PyObject_CallFunctionObjArgs(slowly_, tensor_type_.get(), func, types, args, kwargs, nullptr));
  }

 private:
  // Null where this is not for here.
  PyObject* quickly(PyObject* func, PyObject* args, PyObject* kwargs) {
    const std::shared_ptr<Operator> op = known(func);
    if (op == nullptr || is_aside() || (op->is_view && c10::InferenceMode::is_enabled())) return nullptr;
    Arguments arguments{Held(checked(PyList_New(0))), {}, op->dynamic_scalars};
    Held key(meaning(*op, args, kwargs, arguments));
    if (!key) return nullptr;
    Held call(Py_XNewRef(find(op->calls, key)));
    if (!call || is_true(call_.located.of(call))) return nullptr;
    PyObject* device = call_.device.of(call);
    {
      Held pending(checked(PyObject_GetAttr(device, pending_name_)));
      const Py_ssize_t length = PyList_GET_SIZE(pending.get());
      if (length == 0 || length + 1 == PyLong_AsSsize_t(pending_limit_.now())) return nullptr;
    }
    Held node(nodes_.make());
    node_.call.put(node, Py_NewRef(call.get()));
    node_.inputs.put(node, arguments.inputs.release());
    if (arguments.floats) node_.floats.put(node, arguments.floats.release());
    if (arguments.ints) node_.ints.put(node, arguments.ints.release());
    if (!is_noted_) {
      Held none(checked(PyObject_CallNoArgs(note_)));
      is_noted_ = true;
    }
    if (is_true(several_.now())) node_.thread.put(node, checked(PyLong_FromUnsignedLong(PyThread_get_thread_ident())));
    Held result(results(call, node));
    count(op->counter);
    Held pending(checked(PyObject_GetAttr(device, pending_name_)));  // now: what was made since may have run anything
    check(PyList_Append(pending, node));
    return result.release();
  }

  // Null where the overload is not in the table, or is served by a handler, or draws a seed.
  std::shared_ptr<Operator> known(PyObject* func) {
    const auto sizes = std::pair(PyDict_GET_SIZE(handlers_.get()), PyDict_GET_SIZE(operators_.get()));
    if (sizes != known_sizes_) {  // one was registered
      known_.clear();
      known_sizes_ = sizes;
    }
    const auto found = known_.find(func);
    if (found != known_.end()) return found->second;
    if (find(handlers_, func) != nullptr) return nullptr;
    PyObject* entry = find(operators_, func);
    if (entry == nullptr || is_true(operator_.random.of(entry))) return nullptr;
    const auto made = std::make_shared<Operator>();
    made->calls = Py_NewRef(operator_.calls.of(entry));
    made->counter = Py_NewRef(operator_.counter.of(entry));
    made->dynamic_scalars = is_true(operator_.dynamic_scalars.of(entry));
    made->products = is_true(operator_.products.of(entry));
    made->is_view = is_true(Held(checked(PyObject_CallOneArg(is_view_, func))));
    return known_[func] = made;  // the table keeps its overloads: nothing else comes to lie at their addresses
  }

  // Whether what is recorded now is not for the pending graph alone.
  bool is_aside() {
    return is_true(traces_.now()) || is_true(is_eager_.now()) || is_true(keeps_lines_.now()) ||
           c10::get_default_dtype_as_scalartype() != c10::kFloat ||
           (torch::autograd::get_current_graph_task_id() != -1 &&
            is_true(Held(checked(PyObject_CallNoArgs(is_recomputing_)))));
  }

  // The key of a call, as `dispatch.record` makes it; null where it has an argument that is not taken here.
  PyObject* meaning(Operator& op, PyObject* args, PyObject* kwargs, Arguments& arguments) {
    const Py_ssize_t named = kwargs == nullptr ? 0 : PyDict_GET_SIZE(kwargs);
    Held key(checked(PyTuple_New(PyTuple_GET_SIZE(args) + 2 * named + op.products)));
    Py_ssize_t filled = 0;
    const auto add = [&](PyObject* owned) {
      if (owned != nullptr) PyTuple_SET_ITEM(key.get(), filled++, owned);
      return owned != nullptr;
    };
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(args); ++i) {
      if (!add(key_of(PyTuple_GET_ITEM(args, i), arguments))) return nullptr;
    }
    PyObject *name = nullptr, *argument = nullptr;
    for (Py_ssize_t i = 0; named > 0 && PyDict_Next(kwargs, &i, &name, &argument);) {
      add(Py_NewRef(name));
      if (!add(key_of(argument, arguments))) return nullptr;
    }
    if (PyList_GET_SIZE(arguments.inputs.get()) == 0) return nullptr;  // its device is not told by its inputs
    if (op.products) add(checked(PyObject_CallNoArgs(precision_)));
    return key.release();
  }

  // `_Scan.key_of`
  PyObject* key_of(PyObject* arg, Arguments& arguments) {
    if (Py_IS_TYPE(arg, type(tensor_type_)) && tensor_.handle.of(arg) != nullptr) {
      PyObject* handle = tensor_.handle.of(arg);
      arguments.read.emplace_back(Py_NewRef(handle));
      check(PyList_Append(arguments.inputs, handle_.value.of(handle)));
      return Py_NewRef(tensor_.spec.of(arg));
    }
    if (arg == Py_None || PyUnicode_CheckExact(arg) || THPDtype_Check(arg) || THPDevice_Check(arg) ||
        THPLayout_Check(arg) || THPMemoryFormat_Check(arg)) {
      return Py_NewRef(arg);
    }
    if (PyLong_CheckExact(arg)) {
      const bool is_special = !arguments.dynamic || (is_at_most(lowest_.now(), arg) && is_at_most(arg, highest_.now()));
      if (is_special) return Py_NewRef(arg);
      Arguments::add(arguments.ints, arg);
      return Py_NewRef(dynamic_int_.get());
    }
    if (PyFloat_CheckExact(arg)) {
      const int is_special = arguments.dynamic ? PySequence_Contains(special_floats_.now(), arg) : 1;
      check(is_special);
      if (is_special) return checked(PyObject_CallMethodNoArgs(arg, hex_name_));
      Arguments::add(arguments.floats, arg);
      return Py_NewRef(dynamic_float_.get());
    }
    if (PyBool_Check(arg) || PyComplex_CheckExact(arg)) return checked(PyTuple_Pack(2, Py_TYPE(arg), arg));
    if (PyList_CheckExact(arg) || PyTuple_CheckExact(arg)) return key_of_items(arg, arguments);
    return nullptr;
  }

  PyObject* key_of_items(PyObject* sequence, Arguments& arguments) {
    const Py_ssize_t size = PySequence_Fast_GET_SIZE(sequence);
    PyObject** items = PySequence_Fast_ITEMS(sequence);
    if (size > 0 && PyLong_CheckExact(items[0])) return checked(PySequence_Tuple(sequence));  // sizes
    const bool dynamic = std::exchange(arguments.dynamic, false);
    Held key(checked(PyTuple_New(size)));
    for (Py_ssize_t i = 0; i < size; ++i) {
      PyObject* item = key_of(items[i], arguments);
      if (item == nullptr) return nullptr;
      PyTuple_SET_ITEM(key.get(), i, item);
    }
    arguments.dynamic = dynamic;
    return key.release();
  }

  static bool is_at_most(PyObject* lower, PyObject* upper) {
    const int answer = PyObject_RichCompareBool(lower, upper, Py_LE);
    check(answer);
    return answer != 0;
  }

  // What a node's operator returns; the node knows the handles of its results from now on.
  PyObject* results(PyObject* call, PyObject* node) {
    PyObject* specs = call_.outputs.of(call);
    const Py_ssize_t size = PyTuple_GET_SIZE(specs);
    Held owners(checked(PyTuple_New(size))), found(checked(PyList_New(size)));
    for (Py_ssize_t i = 0; i < size; ++i) {
      PyObject* spec = PyTuple_GET_ITEM(specs, i);
      const bool is_defined = spec != Py_None;
      Held handle(is_defined ? new_handle(node, i) : Py_NewRef(Py_None));
      PyTuple_SET_ITEM(owners.get(), i, is_defined ? owner_of(handle) : Py_NewRef(Py_None));
      PyList_SET_ITEM(found.get(), i, is_defined ? tensor(handle.release(), spec) : handle.release());
    }
    node_.outputs.put(node, owners.release());
    PyObject* container = call_.container.of(call);
    return container == Py_None ? Py_NewRef(PyList_GET_ITEM(found.get(), 0))
                                : checked(PyObject_CallOneArg(container, found));
  }

  // `Handle(Value(node, index))`
  PyObject* new_handle(PyObject* node, Py_ssize_t index) {
    Held value(values_.make());
    value_.node.put(value, Py_NewRef(node));
    value_.index.put(value, checked(PyLong_FromSsize_t(index)));
    Held handle(checked(type(handle_type_)->tp_alloc(type(handle_type_), 0)));
    value_.owner.put(value, checked(PyWeakref_NewRef(handle, died_)));
    handle_.value.put(handle, value.release());
    Held number(checked(PyObject_CallNoArgs(born_)));
    return handle.release();
  }

  PyObject* owner_of(PyObject* handle) { return Py_NewRef(value_.owner.of(handle_.value.of(handle))); }

  // `make(handle, spec)`; takes the reference to the handle.
  PyObject* tensor(PyObject* handle, PyObject* spec) {
    Held held(handle), result(inner_tensors_.make(type(tensor_type_), spec));
    tensor_.handle.put(result, held.release());
    tensor_.spec.put(result, Py_NewRef(spec));
    return result.release();
  }

  void count(PyObject* name) {
    PyObject* before = find(counters_, name);
    Held after(before == nullptr ? Py_NewRef(one_.get()) : checked(PyNumber_Add(before, one_)));
    check(PyDict_SetItem(counters_, name, after));
  }

  static PyTypeObject* type(Held& held) { return reinterpret_cast<PyTypeObject*>(held.get()); }

  Held tensor_type_, handle_type_;
  Copies nodes_, values_;
  struct {
    Slot handle, spec;
  } tensor_{{tensor_type_, "handle"}, {tensor_type_, "spec"}};
  struct {
    Slot value;
  } handle_{{handle_type_, "value"}};
  struct {
    Slot node, index, owner;
  } value_{values_.slot("node"), values_.slot("index"), values_.slot("owner")};
  struct {
    Slot call, inputs, floats, ints, outputs, thread;
  } node_{nodes_.slot("call"), nodes_.slot("inputs"),  nodes_.slot("floats"),
          nodes_.slot("ints"), nodes_.slot("outputs"), nodes_.slot("thread")};
  struct CallSlots {
    Held type{attribute(module("ir.graph"), "Call")};
    Slot device{type, "device"}, outputs{type, "outputs"}, container{type, "container"}, located{type, "located"};
  } call_;
  InnerTensors inner_tensors_;
  struct OperatorSlots {
    Held type{attribute(module("ops.registry"), "Operator")};
    Slot calls{type, "calls"}, counter{type, "counter"}, random{type, "random"}, products{type, "products"};
    Slot dynamic_scalars{type, "dynamic_scalars"};
  } operator_;

  Held handlers_{attribute(module("recording.dispatch"), "_handlers")};
  Held operators_{attribute(module("ops.registry"), "table")};
  Held is_view_{attribute(module("recording.dispatch"), "_is_view")};
  Held slowly_{attribute(module("recording.dispatch"), "dispatch")};
  Held dynamic_float_{attribute(module("recording.dispatch"), "_DYNAMIC_FLOAT")};
  Held dynamic_int_{attribute(module("recording.dispatch"), "_DYNAMIC_INT")};
  Held is_recomputing_{attribute(module("recording.recompute"), "is_running")};
  Held precision_{attribute(module("lowering.precision"), "level")};
  Held counters_{attribute(module("common.metrics"), "counters")};
  Held born_{attribute(module("ir.lifetimes"), "born")};
  Held died_{attribute(module("ir.lifetimes"), "died")};
  Held note_{attribute(module("execution.recorders"), "note")};
  Held one_{checked(PyLong_FromLong(1))};
  Held pending_name_{checked(PyUnicode_InternFromString("pending"))},
      hex_name_{checked(PyUnicode_InternFromString("hex"))};
  Global traces_{"recording.dispatch", "_traces"};
  Global lowest_{"common.special_numbers", "LOWEST"};
  Global highest_{"common.special_numbers", "HIGHEST"};
  Global special_floats_{"common.special_numbers", "FLOATS"};
  Global keeps_lines_{"common.source_locations", "keep"};
  Global is_eager_{"execution.execute", "eager"};
  Global pending_limit_{"execution.execute", "pending_limit"};
  Global several_{"execution.recorders", "several"};

  static inline thread_local bool is_noted_ = false;

  std::unordered_map<PyObject*, std::shared_ptr<Operator>> known_;
  std::pair<Py_ssize_t, Py_ssize_t> known_sizes_;
};

Recorder* recorder = nullptr;

PyObject* dispatch(PyObject*, PyObject* const* given, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(count == 3 || count == 4, "__torch_dispatch__ takes (func, types, args, kwargs)");
  return recorder->dispatch(given[0], given[1], given[2], count == 4 ? given[3] : nullptr);
  END_HANDLE_TH_ERRORS
}

PyMethodDef method{"__torch_dispatch__", reinterpret_cast<PyCFunction>(reinterpret_cast<void (*)()>(dispatch)),
                   METH_FASTCALL, "`dispatch.dispatch`, with what is known already recorded in C++."};

}  // namespace

// A function to be `XLATensor.__torch_dispatch__`.
extern "C" PyObject* make_dispatch() {
  HANDLE_TH_ERRORS
  if (recorder == nullptr) recorder = new Recorder();
  return PyCFunction_New(&method, nullptr);
  END_HANDLE_TH_ERRORS
}
