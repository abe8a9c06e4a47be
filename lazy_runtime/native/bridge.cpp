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

// A tensor over XLA's buffer. With `channels_last` the memory holds the channels (dimension 1) innermost, which is the
// layout that the lowering has declared to XLA for activations. Filters are row-major, as parameters are.
at::Tensor view(ffi::AnyBuffer buffer, bool channels_last) {
  auto dims = buffer.dimensions();
  std::vector<int64_t> sizes(dims.begin(), dims.end());
  std::vector<int64_t> strides(sizes.size());
  int64_t step = 1;
  if (channels_last) {
    strides[1] = step;
    step *= std::max<int64_t>(sizes[1], 1);
  }
  for (int64_t d = static_cast<int64_t>(sizes.size()) - 1; d >= 0; --d) {
    if (channels_last && d == 1) continue;
    strides[d] = step;
    step *= std::max<int64_t>(sizes[d], 1);
  }
  auto type = scalar_type(buffer.element_type());
  TORCH_CHECK(type.has_value(), "the ATen bridge has no tensors of XLA's element type ", static_cast<int>(buffer.element_type()));
  return at::from_blob(buffer.untyped_data(), sizes, strides, at::TensorOptions().dtype(*type));
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

ffi::Error convolution(ffi::AnyBuffer x, ffi::AnyBuffer weight, ffi::Result<ffi::AnyBuffer> y, bool channels_last,
                       Ints stride, Ints padding, Ints dilation, bool transposed, Ints output_padding, int64_t groups) {
  return guarded([&] {
    at::Tensor out = view(*y, channels_last);
    out.copy_(at::convolution(view(x, channels_last), view(weight, false), {}, ints(stride), ints(padding),
                              ints(dilation), transposed, ints(output_padding), groups));
  });
}

ffi::Error convolution_backward(ffi::AnyBuffer grad, ffi::AnyBuffer x, ffi::AnyBuffer weight, ffi::RemainingRets results,
                                bool channels_last, Ints stride, Ints padding, Ints dilation, bool transposed,
                                Ints output_padding, int64_t groups, bool input_gradient, bool weight_gradient) {
  return guarded([&] {
    auto gradients = at::convolution_backward(
        view(grad, channels_last), view(x, channels_last), view(weight, false), {}, ints(stride), ints(padding),
        ints(dilation), transposed, ints(output_padding), groups, {input_gradient, weight_gradient, false});
    size_t next = 0;
    if (input_gradient) view(**results.get<ffi::AnyBuffer>(next++), channels_last).copy_(std::get<0>(gradients));
    if (weight_gradient) view(**results.get<ffi::AnyBuffer>(next++), false).copy_(std::get<1>(gradients));
  });
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(aten_convolution, convolution,
                              ffi::Ffi::Bind()
                                  .Arg<ffi::AnyBuffer>()
                                  .Arg<ffi::AnyBuffer>()
                                  .Ret<ffi::AnyBuffer>()
                                  .Attr<bool>("channels_last")
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
                                  .Attr<bool>("channels_last")
                                  .Attr<Ints>("stride")
                                  .Attr<Ints>("padding")
                                  .Attr<Ints>("dilation")
                                  .Attr<bool>("transposed")
                                  .Attr<Ints>("output_padding")
                                  .Attr<int64_t>("groups")
                                  .Attr<bool>("input_gradient")
                                  .Attr<bool>("weight_gradient"));
