// Convolutions of each channel by itself: a vector of channels at a time, whose filters stay in registers, and what
// follows the sums before they are written. oneDNN's kernel takes 20 us at each call to find out what it has found out
// before, and loses a NaN to an activation that it computes itself.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>

#include "blocks.h"
#include "epilogue.h"

namespace {

struct Sizes {
  int64_t batch, height, width, channels;  // of the images
  int64_t stride, up, left;
  int64_t rows, columns;  // of the results
};

// Rows of results that are computed together, which read the same rows of an image.
constexpr int64_t rows_together = 4;

// Rows of a window that lie in the image.
struct Rows {
  int64_t from, end;
};

// `count` results of a row beside each other, whose windows share most of their pixels, all columns in the image.
template <int64_t side, int64_t stride, int64_t count>
INLINE void together(const Sizes& s, const float* window, const Vector* w, Rows rows, int64_t c, int64_t at,
                     const Epilogue& epilogue, float* results) {
  constexpr int64_t columns = (count - 1) * stride + side;
  Vector sums[count] = {};
#pragma GCC unroll 5
  for (int64_t k = rows.from; k < rows.end; ++k) {
#pragma GCC unroll 16
    for (int64_t l = 0; l < columns; ++l) {
      Vector x = load(window + (k * s.width + l) * s.channels);
#pragma GCC unroll 4
      for (int64_t j = 0; j < count; ++j) {
        if (l >= j * stride && l < j * stride + side) sums[j] += w[k * side + l - j * stride] * x;
      }
    }
  }
  for (int64_t j = 0; j < count; ++j) epilogue(sums[j], c, at + j * s.channels + c, results);
}

// Results of a row from `from` up to `end`, of channels `c` and following, whose windows' columns lie in the image.
template <int64_t side, int64_t stride>
INLINE void inner(const Sizes& s, const float* top, const Vector* w, Rows rows, int64_t from, int64_t end, int64_t c,
                  int64_t at, const Epilogue& epilogue, float* results) {
  constexpr int64_t count = 4;
  int64_t j = from;
  auto next = [&] { return top + (j * s.stride - s.left) * s.channels + c; };
  if constexpr (stride > 0) {
    for (; j + count <= end; j += count) {
      together<side, stride, count>(s, next(), w, rows, c, at + j * s.channels, epilogue, results);
    }
  }
  for (; j < end; ++j) together<side, 1, 1>(s, next(), w, rows, c, at + j * s.channels, epilogue, results);
}

// The same where columns lie beyond the image.
template <int64_t side>
INLINE void outer(const Sizes& s, const float* top, const Vector* w, Rows rows, int64_t from, int64_t end, int64_t c,
                  int64_t at, const Epilogue& epilogue, float* results) {
  for (int64_t j = from; j < end; ++j) {
    Vector sum{};
    int64_t left = j * s.stride - s.left;
    for (int64_t l = std::max<int64_t>(0, -left); l < std::min(side, s.width - left); ++l) {
      for (int64_t k = rows.from; k < rows.end; ++k) {
        sum += w[k * side + l] * load(top + (k * s.width + left + l) * s.channels + c);
      }
    }
    epilogue(sum, c, at + j * s.channels + c, results);
  }
}

template <int64_t side, int64_t stride>
INLINE void compute(const Sizes& s, const float* image, const float* filters, int64_t first, int64_t end,
                    int64_t result, const Epilogue& epilogue, float* results) {
  // the columns whose window lies within the image
  int64_t from = std::min(s.columns, ceil_div(s.left, s.stride));
  int64_t to = s.width - side + s.left < 0 ? 0 : std::min(s.columns, (s.width - side + s.left) / s.stride + 1);
  for (int64_t begin = 0; begin < s.channels; begin += lanes) {
    int64_t c = std::min(begin, s.channels - lanes);  // of a last vector that is not full, some are computed twice
    Vector w[side * side];
    for (int64_t k = 0; k < side * side; ++k) w[k] = load(filters + k * s.channels + c);
    for (int64_t i = first; i < end; ++i) {
      int64_t at = result + i * s.columns * s.channels, row = i * s.stride - s.up;
      const float* top = image + row * s.width * s.channels;
      Rows rows{std::max<int64_t>(0, -row), std::min(side, s.height - row)};
      outer<side>(s, top, w, rows, 0, from, c, at, epilogue, results);
      if (rows.end - rows.from == side) {  // known when this is compiled, the loop over them is none
        inner<side, stride>(s, top, w, {0, side}, from, to, c, at, epilogue, results);
      } else {
        inner<side, stride>(s, top, w, rows, from, to, c, at, epilogue, results);
      }
      outer<side>(s, top, w, rows, std::max(from, to), s.columns, c, at, epilogue, results);
    }
  }
}

#define COMPUTE(name, side, stride)                                                                                  \
  FOR_EACH_PROCESSOR void name(const Sizes& s, const float* image, const float* filters, int64_t first, int64_t end, \
                               int64_t result, const Epilogue& epilogue, float* results) {                           \
    compute<side, stride>(s, image, filters, first, end, result, epilogue, results);                                 \
  }

COMPUTE(compute3, 3, 0)  // of any stride
COMPUTE(compute3_by_1, 3, 1)
COMPUTE(compute3_by_2, 3, 2)
COMPUTE(compute5, 5, 0)
COMPUTE(compute5_by_1, 5, 1)
COMPUTE(compute5_by_2, 5, 2)

auto kernel(int64_t side, int64_t stride) {
  if (side == 3) return stride == 1 ? compute3_by_1 : stride == 2 ? compute3_by_2 : compute3;
  return stride == 1 ? compute5_by_1 : stride == 2 ? compute5_by_2 : compute5;
}

at::Tensor convolution(const at::Tensor& given, const at::Tensor& filters, const std::optional<at::Tensor>& bias,
                       int64_t stride, at::IntArrayRef padding, const std::optional<at::Tensor>& other,
                       std::optional<double> low, std::optional<double> high) {
  at::Tensor images = given.contiguous(at::MemoryFormat::ChannelsLast);
  int64_t side = filters.size(0);
  Sizes s{images.size(0), images.size(2), images.size(3), images.size(1), stride, padding[0], padding[1]};
  TORCH_CHECK(filters.is_contiguous() && filters.dim() == 3 && filters.size(1) == side &&
                  filters.size(2) == s.channels && (side == 3 || side == 5) && s.channels >= lanes,
              "filters of shape ", filters.sizes(), " for images of shape ", given.sizes());
  s.rows = (s.height + 2 * s.up - side) / stride + 1;
  s.columns = (s.width + 2 * s.left - side) / stride + 1;
  at::Tensor results =
      at::empty({s.batch, s.channels, s.rows, s.columns}, images.options(), at::MemoryFormat::ChannelsLast);
  at::Tensor summand = other ? other->contiguous(at::MemoryFormat::ChannelsLast) : at::Tensor();
  at::Tensor row = bias ? bias->contiguous() : at::Tensor();
  Epilogue epilogue(row, summand, low, high);
  const float *from = images.const_data_ptr<float>(), *numbers = filters.const_data_ptr<float>();
  float* to = results.mutable_data_ptr<float>();
  auto compute = kernel(side, stride);
  int64_t parts = ceil_div(s.rows, rows_together);
  for_each(
      s.batch * parts,
      [&](int64_t item) {
        int64_t image = item / parts, first = item % parts * rows_together;
        compute(s, from + image * s.height * s.width * s.channels, numbers, first,
                std::min(s.rows, first + rows_together), image * s.rows * s.columns * s.channels, epilogue, to);
      },
      results.numel() * side * side);
  return results;
}

TORCH_LIBRARY_FRAGMENT(lazy_runtime_kernels, library) {
  library.def(
      "depthwise(Tensor image, Tensor filters, Tensor? bias, int stride, int[] padding, Tensor? other, float? low, "
      "float? high) -> Tensor");
}
TORCH_LIBRARY_IMPL(lazy_runtime_kernels, CPU, library) { library.impl("depthwise", convolution); }

}  // namespace
