#pragma once

// What is inside of torch's functional wrapper. The wrapper's sizes and strides are those of its inner tensor, by
// reference. A kernel of torch's that holds on to them (`auto sizes = grad.sym_sizes()`) while the wrapper exchanges its
// inner tensor, as it does at the next use of a view whose base has been written to, read memory that was free: the
// gradient of `torch.fft.rfft` took the sizes of whatever had come to lie there. So the memory of an inner tensor that
// nobody holds any more stays for a while.

#include <Python.h>
#include <ATen/EmptyTensor.h>
#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Dtype.h>
#include <torch/csrc/autograd/python_variable.h>

#include <array>
#include <utility>

#include "python_objects.h"

namespace {

// The last inner tensors of this thread that nobody holds: more than any kernel exchanges while it holds on to sizes.
class Recent {
 public:
  // Takes over one weak reference.
  static void add(c10::TensorImpl* impl) {
    if (ended) return c10::raw::weak_intrusive_ptr::decref(impl);
    thread_local Recent recent;
    std::swap(recent.impls_[recent.next_], impl);
    recent.next_ = (recent.next_ + 1) % recent.impls_.size();
    if (impl != nullptr) c10::raw::weak_intrusive_ptr::decref(impl);
  }

 private:
  Recent() = default;
  ~Recent() {
    ended = true;
    for (c10::TensorImpl* impl : impls_) {
      if (impl != nullptr) c10::raw::weak_intrusive_ptr::decref(impl);
    }
  }

  inline static thread_local bool ended = false;  // tensors may outlive it
  std::array<c10::TensorImpl*, 256> impls_{};
  size_t next_ = 0;
};

class InnerTensor : public c10::TensorImpl {
 public:
  using c10::TensorImpl::TensorImpl;

  void release_resources() override {
    c10::TensorImpl::release_resources();
    Recent::add(this);
  }
};

c10::SmallVector<int64_t, 6> integers(PyObject* tuple) {
  c10::SmallVector<int64_t, 6> result;
  for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); ++i)
    result.push_back(PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i)));
  return result;
}

// Makes inner tensors that have no handle yet.
class InnerTensors {
 public:
  // What `torch.Tensor._make_wrapper_subclass` makes for a spec, which parses its arguments longer than it works.
  PyObject* make(PyTypeObject* type, PyObject* spec) const {
    const auto sizes = integers(shape_.of(spec)), strides = integers(stride_.of(spec));
    const int64_t offset = PyLong_AsLongLong(offset_.of(spec));
    const auto dtype = c10::scalarTypeToTypeMeta(reinterpret_cast<THPDtype*>(dtype_.of(spec))->scalar_type);
    const c10::Device device = reinterpret_cast<THPDevice*>(torch_device_.of(spec))->device;
    const size_t bytes = at::detail::computeStorageNbytes(sizes, strides, dtype.itemsize(), offset);
    c10::Storage storage(c10::Storage::use_byte_size_t(), bytes, c10::GetAllocator(c10::kMeta), /*resizable=*/true);
    storage.set_data_ptr_noswap(at::DataPtr(nullptr, device));
    const c10::DispatchKeySet keys(c10::computeDispatchKey(std::nullopt, std::nullopt, device));
    auto tensor = at::detail::make_tensor<InnerTensor>(std::move(storage), keys, dtype);
    c10::raw::weak_intrusive_ptr::incref(tensor.unsafeGetTensorImpl());  // for `Recent`, or it would be freed at once
    tensor.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, offset);
    tensor.unsafeGetTensorImpl()->set_python_dispatch(true);
    return checked(THPVariable_Wrap(std::move(tensor), type));
  }

 private:
  Held type_{attribute(module("ir.spec"), "TensorSpec")};
  Slot dtype_{type_, "dtype"}, shape_{type_, "shape"}, stride_{type_, "stride"}, offset_{type_, "offset"};
  Slot torch_device_{type_, "torch_device"};
};

}  // namespace
