// Memory of XLA's that torch's kernels get: for their operands, and for the results that they allocate.
#pragma once

#include <ATen/TensorUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <cstring>
#include <optional>
#include <utility>
#include <vector>

namespace {

// Whether two tensors of the same shape lie alike in memory.
bool same_strides(at::IntArrayRef sizes, at::IntArrayRef left, at::IntArrayRef right) {
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] > 1 && left[d] != right[d]) return false;
  }
  return true;
}

// What tensors over XLA's memory stand on. Where a kernel keeps one beyond the call, in a cache of its own say, that gets a
// copy, since XLA will use the memory for something else.
class BorrowedStorage {
 public:
  BorrowedStorage() = default;
  BorrowedStorage(const BorrowedStorage&) = delete;
  BorrowedStorage& operator=(const BorrowedStorage&) = delete;

  at::Tensor operator()(at::Tensor tensor) {
    storages_.push_back(tensor.storage());
    return tensor;
  }

  ~BorrowedStorage() {
    for (c10::Storage& storage : storages_) {
      if (storage.use_count() == 1) continue;
      c10::DataPtr copy = c10::GetCPUAllocator()->allocate(storage.nbytes());
      std::memcpy(copy.get(), storage.data(), storage.nbytes());
      storage.set_data_ptr_noswap(std::move(copy));
    }
  }

 private:
  std::vector<c10::Storage> storages_;
};

// Most kernels allocate their results, which would be copied to where XLA wants them, out of fresh pages that the system
// has to clear. While a handler runs a kernel, the first tensor that it allocates in the likeness of a result lies in
// XLA's memory for that. If it was a temporary instead, then the result is elsewhere, and copied after all.
class OutputAllocator {
 public:
  OutputAllocator(std::vector<at::Tensor> targets, BorrowedStorage& borrowed)
      : targets_(std::move(targets)), borrowed_(borrowed), before_(current_) {
    current_ = this;
  }
  ~OutputAllocator() { current_ = before_; }
  OutputAllocator(const OutputAllocator&) = delete;
  OutputAllocator& operator=(const OutputAllocator&) = delete;

  static std::optional<at::Tensor> take(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype) {
    if (current_ == nullptr) return std::nullopt;
    for (at::Tensor& target : current_->targets_) {
      if (target.defined() && target.scalar_type() == dtype && target.sizes() == sizes &&
          same_strides(sizes, target.strides(), strides)) {
        void* memory = std::exchange(target, at::Tensor()).data_ptr();
        return current_->borrowed_(at::from_blob(memory, sizes, strides, at::TensorOptions().dtype(dtype)));
      }
    }
    return std::nullopt;
  }

 private:
  std::vector<at::Tensor> targets_;  // undefined once they are taken
  BorrowedStorage& borrowed_;
  OutputAllocator* before_;
  static thread_local OutputAllocator* current_;
};

thread_local OutputAllocator* OutputAllocator::current_ = nullptr;

std::vector<int64_t> strides_of(at::IntArrayRef sizes, at::MemoryFormat format) {
  switch (format) {
    case at::MemoryFormat::ChannelsLast:
      return c10::get_channels_last_strides_2d(sizes);
    case at::MemoryFormat::ChannelsLast3d:
      return c10::get_channels_last_strides_3d(sizes);
    default:
      return at::detail::defaultStrides(sizes);
  }
}

using Dtype = std::optional<at::ScalarType>;
using Layout = std::optional<at::Layout>;
using Device = std::optional<at::Device>;

bool is_plain(Layout layout, Device device) {
  return layout.value_or(at::kStrided) == at::kStrided && device.value_or(at::kCPU).is_cpu();
}

at::Tensor empty(at::IntArrayRef sizes, Dtype dtype, Layout layout, Device device, std::optional<bool> pin,
                 std::optional<at::MemoryFormat> format) {
  if (is_plain(layout, device)) {
    auto strides = strides_of(sizes, format.value_or(at::MemoryFormat::Contiguous));
    if (auto taken = OutputAllocator::take(sizes, strides, c10::dtype_or_default(dtype))) return *taken;
  }
  c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::DeferredInit);
  return at::empty(sizes, dtype, layout, device, pin, format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, Dtype dtype, Layout layout, Device device,
                         std::optional<bool> pin) {
  if (is_plain(layout, device)) {
    if (auto taken = OutputAllocator::take(sizes, strides, c10::dtype_or_default(dtype))) return *taken;
  }
  c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::DeferredInit);
  return at::empty_strided(sizes, strides, dtype, layout, device, pin);
}

// oneDNN's convolutions allocate nothing at first, and resize that.
const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef sizes, std::optional<at::MemoryFormat> format) {
  if (self.numel() == 0 && self.storage().nbytes() == 0) {
    auto strides = strides_of(sizes, format.value_or(at::MemoryFormat::Contiguous));
    if (auto taken = OutputAllocator::take(sizes, strides, self.scalar_type())) {
      self.unsafeGetTensorImpl()->set_storage_keep_dtype(taken->storage());
      self.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
      return self;
    }
  }
  c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::DeferredInit);
  return self.resize_(sizes, format);
}

// DeferredInit is there for whoever wants to stand between a factory and its memory; torch itself leaves it free. Only
// the handlers' threads have it switched on.
TORCH_LIBRARY_IMPL(_, DeferredInit, library) { library.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, DeferredInit, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("resize_", resize);
}

}  // namespace
