// `cpu_tensor.to("xla")` keeps the order of dimensions in memory, as torch's copies to other devices do.
//
// Torch's own kernel makes a contiguous tensor on a device that it takes to have no strides
// (c10::Device::supports_as_strided, false for XLA). No kernel of ours is asked: the only tensor is the one on the CPU.

#include <ATen/ATen.h>
#include <ATen/ops/_to_copy_compositeexplicitautograd_dispatch.h>
#include <torch/library.h>

namespace {

at::Tensor to_copy(
    const at::Tensor& self, std::optional<at::ScalarType> dtype, std::optional<at::Layout> layout,
    std::optional<at::Device> device, std::optional<bool> pin_memory, bool non_blocking,
    std::optional<at::MemoryFormat> format) {
  namespace kernel = at::compositeexplicitautograd;
  if (device.has_value() && device->is_xla() && self.layout() == at::kStrided && !self.is_quantized()) {
    // what torch does on a device that has strides
    const at::Tensor look = kernel::_to_copy(self, dtype, layout, at::kMeta, pin_memory, non_blocking, format);
    return at::empty_strided(look.sizes(), look.strides(), look.options().device(*device)).copy_(self, non_blocking);
  }
  return kernel::_to_copy(self, dtype, layout, device, pin_memory, non_blocking, format);
}

}  // namespace

extern "C" void xla_register_moves() {
  static torch::Library library(torch::Library::IMPL, "aten", c10::DispatchKey::CPU, __FILE__, __LINE__);
  library.impl("_to_copy", to_copy);
}
