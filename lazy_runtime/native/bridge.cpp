// ATen kernels as custom calls inside XLA:CPU programs.
//
// XLA's own convolutions on the CPU reach from half of the machine's peak down to 0.2 % of it (depthwise, grouped);
// torch carries oneDNN. A handler sees XLA's buffers as tensors and runs torch's kernel on them.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/convolution.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <array>
#include <optional>
#include <string>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

// A handler runs in the caller's thread for small programs and in one of XLA's own for large ones. Whatever modes that
// thread is in (autocast, FakeTensorMode, autograd), the kernel is to see plain CPU tensors: only the CPU's own keys
// stay, and BackendSelect, through which kernels allocate.
class PlainCPU {
 public:
  PlainCPU()
      : guard_(c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
               c10::DispatchKeySet(c10::DispatchKeySet::FULL) - c10::DispatchKeySet(c10::DispatchKey::CPU) -
                   c10::DispatchKeySet(c10::DispatchKey::BackendSelect)) {}

 private:
  c10::impl::ForceDispatchKeyGuard guard_;
};

std::optional<at::ScalarType> scalar_type(ffi::DataType type) {
  switch (type) {
    case ffi::DataType::F32:
      return at::kFloat;
    case ffi::DataType::F64:
      return at::kDouble;
    case ffi::DataType::BF16:
      return at::kBFloat16;
    case ffi::DataType::F16:
      return at::kHalf;
    default:
      return std::nullopt;
  }
}

// A tensor over XLA's row-major buffer. Activations come as (batch, space..., channels) and are seen as torch's (batch,
// channels, space...) in channels_last memory; filters lie as torch has them.
at::Tensor view(ffi::AnyBuffer buffer, bool activation) {
  auto dims = buffer.dimensions();
  auto type = scalar_type(buffer.element_type());
  TORCH_CHECK(type.has_value(), "the ATen bridge has no tensors of XLA's element type ",
              static_cast<int>(buffer.element_type()));
  at::Tensor tensor = at::from_blob(buffer.untyped_data(), at::IntArrayRef(dims.begin(), dims.size()),
                                    at::TensorOptions().dtype(*type));
  return activation ? tensor.movedim(-1, 1) : tensor;
}

template <typename Function>
ffi::Error guarded(Function function) {
  try {
    PlainCPU plain;
    function();
    return ffi::Error::Success();
  } catch (const c10::Error& error) {
    return ffi::Error::Internal(std::string("ATen: ") + error.what_without_backtrace());
  } catch (const std::exception& error) {
    return ffi::Error::Internal(std::string("ATen: ") + error.what());
  }
}

using Ints = ffi::Span<const int64_t>;
at::IntArrayRef ints(Ints span) { return {span.begin(), span.size()}; }

ffi::Error convolution(ffi::AnyBuffer x, ffi::AnyBuffer weight, ffi::Result<ffi::AnyBuffer> y, Ints stride, Ints padding, Ints dilation, bool transposed, Ints output_padding, int64_t groups) {
  return guarded([&] {
    at::Tensor out = view(*y, true);
    out.copy_(at::convolution(view(x, true), view(weight, false), {}, ints(stride), ints(padding),
                              ints(dilation), transposed, ints(output_padding), groups));
  });
}

ffi::Error convolution_backward(ffi::AnyBuffer grad, ffi::AnyBuffer x, ffi::AnyBuffer weight, ffi::RemainingRets results,
                                Ints stride, Ints padding, Ints dilation, bool transposed,
                                Ints output_padding, int64_t groups, bool input_gradient, bool weight_gradient) {
  return guarded([&] {
    auto gradients = at::convolution_backward(
        view(grad, true), view(x, true), view(weight, false), {}, ints(stride), ints(padding),
        ints(dilation), transposed, ints(output_padding), groups, {input_gradient, weight_gradient, false});
    size_t next = 0;
    if (input_gradient) view(**results.get<ffi::AnyBuffer>(next++), true).copy_(std::get<0>(gradients));
    if (weight_gradient) view(**results.get<ffi::AnyBuffer>(next++), false).copy_(std::get<1>(gradients));
  });
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(aten_convolution, convolution,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<Ints>("stride")
                                  .Attr<Ints>("padding")
                                  .Attr<Ints>("dilation")
                                  .Attr<bool>("transposed")
                                  .Attr<Ints>("output_padding")
                                  .Attr<int64_t>("groups"));

XLA_FFI_DEFINE_HANDLER_SYMBOL(aten_convolution_backward, convolution_backward,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .RemainingRets()
                                  .Attr<Ints>("stride")
                                  .Attr<Ints>("padding")
                                  .Attr<Ints>("dilation")
                                  .Attr<bool>("transposed")
                                  .Attr<Ints>("output_padding")
                                  .Attr<int64_t>("groups")
                                  .Attr<bool>("input_gradient")
                                  .Attr<bool>("weight_gradient"));
