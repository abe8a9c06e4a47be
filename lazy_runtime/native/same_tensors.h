// Whether tensors are the ones they were, asked at each call of a compiled model for each of its hundreds of parameters.

#pragma once

#include <torch/custom_class.h>

#include <vector>

#include "shared_memory.h"

// Knows what was inside of some tensors on xla devices and keeps none of it: a value that nobody else has is donated.
class SameTensors final : public torch::CustomClassHolder {
 public:
  explicit SameTensors(const c10::List<Tensor>& tensors) {
    inner_.reserve(tensors.size());
    for (size_t i = 0; i < tensors.size(); ++i) inner_.emplace_back(inside(tensors[i]).getIntrusivePtr());
  }

  // Whether the same is inside of these, with every write through their aliases applied. While a weak reference is there
  // nothing else comes to lie at its address.
  bool are(const c10::List<Tensor>& tensors) const {
    if (tensors.size() != inner_.size()) return false;
    for (size_t i = 0; i < tensors.size(); ++i) {
      if (inside(tensors[i]).unsafeGetTensorImpl() != inner_[i]._unsafe_get_target()) return false;
    }
    return true;
  }

 private:
  static const Tensor& inside(const Tensor& tensor) {
    TORCH_CHECK_TYPE(is_ours(tensor), "expected a tensor on an xla device, got one on ", tensor.device());
    functional::sync(tensor);
    return functional::unsafeGetFunctionalWrapper(tensor)->value();
  }

  std::vector<c10::weak_intrusive_ptr<c10::TensorImpl, c10::UndefinedTensorImpl>> inner_;
};
