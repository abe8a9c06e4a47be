// XLA's buffers as tensors.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/from_blob.h>

#include <string>
#include <string_view>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

at::ScalarType scalar_type(ffi::DataType type) {
  switch (type) {
    case ffi::DataType::PRED:
      return at::kBool;
    case ffi::DataType::U8:
      return at::kByte;
    case ffi::DataType::S8:
      return at::kChar;
    case ffi::DataType::S16:
      return at::kShort;
    case ffi::DataType::S32:
      return at::kInt;
    case ffi::DataType::S64:
      return at::kLong;
    case ffi::DataType::F16:
      return at::kHalf;
    case ffi::DataType::BF16:
      return at::kBFloat16;
    case ffi::DataType::F32:
      return at::kFloat;
    case ffi::DataType::F64:
      return at::kDouble;
    case ffi::DataType::C64:
      return at::kComplexFloat;
    case ffi::DataType::C128:
      return at::kComplexDouble;
    default:
      TORCH_CHECK(false, "no tensors of XLA's element type ", static_cast<int>(type));
  }
}

// A tensor over XLA's row-major buffer. An activation (`a`) comes as (batch, space..., channels) and is seen as torch's
// (batch, channels, space...) in channels_last memory.
at::Tensor view(ffi::AnyBuffer buffer, char kind) {
  auto dims = buffer.dimensions();
  at::Tensor tensor = at::from_blob(buffer.untyped_data(), at::IntArrayRef(dims.begin(), dims.size()),
                                    at::TensorOptions().dtype(scalar_type(buffer.element_type())));
  return kind == 'a'   ? tensor.movedim(-1, 1)
         : kind == 'x' ? tensor.transpose(-1, -2)
         : kind == 'h' ? tensor.transpose(1, 2)
                       : tensor;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// Where in a buffer something lies, and as what.
struct Part {
  at::ScalarType dtype;
  std::vector<int64_t> sizes;
  size_t offset;                   // bytes
  std::vector<int64_t> strides{};  // none where it is contiguous

  static Part parse(std::string_view text) {
    auto parts = split(text, ';');
    Part part{c10::getStringToDtypeMap().at(std::string(parts.at(0))), {}, std::stoull(std::string(parts.at(2)))};
    for (auto size : split(parts.at(1), ',')) part.sizes.push_back(std::stoll(std::string(size)));
    if (parts.size() > 3) {
      for (auto stride : split(parts[3], ',')) part.strides.push_back(std::stoll(std::string(stride)));
    }
    return part;
  }

  uint8_t* memory(ffi::AnyBuffer buffer) const { return static_cast<uint8_t*>(buffer.untyped_data()) + offset; }

  at::Tensor view(ffi::AnyBuffer buffer) const {
    const auto options = at::TensorOptions().dtype(dtype);
    if (strides.empty()) return at::from_blob(memory(buffer), sizes, options);
    return at::from_blob(memory(buffer), sizes, strides, options);
  }
};

}  // namespace
