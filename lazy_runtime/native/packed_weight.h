// Weights in an order of oneDNN's own.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>

#include <cstring>
#include <map>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "buffers.h"

// What AOTInductor keeps packed weights by. A torch that was built without oneDNN has none of it.
namespace at::native {
__attribute__((weak)) Tensor mkldnn_tensor_from_data_ptr(void* memory, IntArrayRef sizes, ScalarType dtype,
                                                         c10::Device device, const uint8_t* order, int64_t order_bytes);
__attribute__((weak)) void* data_ptr_from_mkldnn(const Tensor& tensor);
__attribute__((weak)) int64_t nbytes_from_mkldnn(const Tensor& tensor);
}  // namespace at::native

namespace {

// A weight as oneDNN's kernels read it, which says itself how it lies: oneDNN's choice depends on the number of threads
// too, and the thread that packs may have another number than the one that compiled. In front is the size of oneDNN's
// description, 0 for a weight in torch's order, then that; the weight follows, aligned as XLA's buffers are.
struct Packed {
  static size_t data_offset(size_t order_bytes) { return (sizeof(uint64_t) + order_bytes + 63) / 64 * 64; }

  static at::Tensor view(const Part& part, ffi::AnyBuffer buffer) {
    uint8_t* memory = part.memory(buffer);
    uint64_t order_bytes;
    std::memcpy(&order_bytes, memory, sizeof(order_bytes));
    uint8_t* data = memory + data_offset(order_bytes);
    if (order_bytes == 0) return at::from_blob(data, part.sizes, at::TensorOptions().dtype(part.dtype));
    return at::native::mkldnn_tensor_from_data_ptr(data, part.sizes, part.dtype, c10::Device(c10::kCPU),
                                                   memory + sizeof(order_bytes), order_bytes);
  }

  static at::Tensor describe(const at::Tensor& packed) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("mkldnn::_get_mkldnn_serialized_md", "")
                               .typed<at::Tensor(const at::Tensor&)>();
    return op.call(packed);
  }

  // Falls back on torch's order where the packed weight takes more than there is.
  static void write(const at::Tensor& plain, const at::Tensor& packed, const at::Tensor& target) {
    at::Tensor order = describe(packed), from = plain.contiguous();
    uint64_t order_bytes = order.numel();
    size_t bytes = at::native::nbytes_from_mkldnn(packed);
    const void* data = at::native::data_ptr_from_mkldnn(packed);
    if (data_offset(order_bytes) + bytes > static_cast<size_t>(target.numel())) {
      order_bytes = 0;
      bytes = from.nbytes();
      data = from.data_ptr();
    }
    TORCH_CHECK(data_offset(order_bytes) + bytes <= static_cast<size_t>(target.numel()), "no room for a weight");
    auto* memory = static_cast<uint8_t*>(target.data_ptr());
    std::memcpy(memory, &order_bytes, sizeof(order_bytes));
    std::memcpy(memory + sizeof(order_bytes), order.data_ptr(), order_bytes);
    std::memcpy(memory + data_offset(order_bytes), data, bytes);
  }
};

// oneDNN's description of a weight in torch's order.
at::Tensor order_of(at::IntArrayRef sizes, at::ScalarType dtype) {
  using Kind = std::pair<std::vector<int64_t>, at::ScalarType>;
  static std::mutex mutex;
  // never destroyed: the kernel thread may still run when a process ends
  static auto& known = *new std::map<Kind, at::Tensor>;
  static const auto give = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("aten::to_mkldnn", "")
                               .typed<at::Tensor(const at::Tensor&, std::optional<at::ScalarType>)>();
  std::lock_guard<std::mutex> lock(mutex);
  at::Tensor& order = known[{sizes.vec(), dtype}];
  if (!order.defined()) order = Packed::describe(give.call(at::empty(sizes, dtype), std::nullopt));
  return order;
}

// A weight in torch's order as oneDNN's kernels read it.
at::Tensor opaque(const at::Tensor& weight) {
  at::Tensor order = order_of(weight.sizes(), weight.scalar_type());
  return at::native::mkldnn_tensor_from_data_ptr(weight.data_ptr(), weight.sizes(), weight.scalar_type(),
                                                 weight.device(), order.data_ptr<uint8_t>(), order.numel());
}

}  // namespace
