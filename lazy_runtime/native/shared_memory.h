// The memory that xla tensors share: torch's functionalization keeps one value for it, the root's, and the views that lead
// from it to each tensor.

#pragma once

#include <ATen/EmptyTensor.h>
#include <ATen/FunctionalTensorWrapper.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <string_view>
#include <typeinfo>
#include <utility>

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
int64_t offset_of(const Tensor& tensor) { return tensor.sym_storage_offset().expect_int(); }

// Whether a step of `view_metas()` is of this class of torch's, as `unfold_ViewMeta`.
template <typename View>
bool is_view_by(const View& view, std::string_view name) {
  const auto& meta = *view;
  return std::string_view(typeid(meta).name()).find(name) != std::string_view::npos;
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

// Where the last element lies behind the first, in elements, or -1 for what no tensor looks like.
int64_t reach(at::IntArrayRef size, at::IntArrayRef stride) {
  if (size.size() != stride.size()) return -1;
  int64_t last = 0, step = 0;
  for (size_t dim = 0; dim < size.size(); ++dim) {
    if (size[dim] < 0 || stride[dim] < 0) return -1;
    if (size[dim] > 0 && __builtin_mul_overflow(size[dim] - 1, stride[dim], &step)) return -1;
    if (size[dim] > 0 && __builtin_add_overflow(last, step, &last)) return -1;
  }
  return last;
}

// The memory of `tensor`, seen with these sizes and strides (in elements of `dtype`), outside of autograd's books.
Tensor of_root(const Tensor& tensor, at::ScalarType dtype, at::IntArrayRef size, at::IntArrayRef stride,
               int64_t offset) {
  const auto itemsize = static_cast<int64_t>(c10::elementSize(dtype));
  const int64_t held = memory_size(tensor) / itemsize;
  const int64_t last = reach(size, stride);
  const bool is_empty = std::find(size.begin(), size.end(), 0) != size.end();
  if (last < 0 || offset < 0 || (!is_empty && (offset >= held || last >= held - offset))) {
    at::empty({held}, at::dtype(dtype)).as_strided(size, stride, offset);  // raises, in torch's words
    TORCH_CHECK(false, "size ", size, ", stride ", stride, " and offset ", offset, " of a memory of ", held,
                " elements");
  }
  at::AutoDispatchBelowADInplaceOrView below;
  Tensor whole = root_of(tensor);
  if (whole.scalar_type() != dtype) {
    whole = whole.as_strided({held * itemsize / static_cast<int64_t>(whole.element_size())}, {1}, 0).view(dtype);
  }
  return whole.as_strided(size, stride, offset);
}

// Has torch resize the memory of a CPU tensor, which somebody else has allocated, as its own: by copying it.
void make_resizable(const Tensor& tensor) {
  if (!tensor.defined() || !tensor.device().is_cpu() || !tensor.has_storage()) return;
  c10::StorageImpl* memory = tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl();
  if (memory->resizable()) return;
  memory->set_allocator(c10::GetAllocator(c10::kCPU));
  memory->set_resizable(true);
}

// All of a storage of xla's, as it was made: a view of nothing.
Tensor whole_of_storage(at::Storage storage) {
  auto* memory = dynamic_cast<FunctionalStorageImpl*>(storage.unsafeGetStorageImpl());
  TORCH_CHECK_NOT_IMPLEMENTED(memory != nullptr, "an xla tensor cannot take the storage of a tensor on another device");
  memory->apply_updates();
  Tensor whole = functional::to_functional_tensor(memory->base());
  whole.unsafeGetTensorImpl()->set_storage_keep_dtype(std::move(storage));
  functional::sync(whole);
  return whole;
}

// The same, flat, for AOTAutograd, which puts what it has taken apart together again over the storage.
Tensor of_storage(at::Storage storage, at::ScalarType dtype) {
  const Tensor whole = whole_of_storage(std::move(storage));
  return of_root(whole, dtype, {memory_size(whole) / static_cast<int64_t>(c10::elementSize(dtype))}, {1}, 0);
}

}  // namespace
