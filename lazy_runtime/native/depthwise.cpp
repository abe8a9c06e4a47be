// Convolutions of each channel by itself: a vector of channels at a time, whose filters stay in registers, and what
// follows the sums before they are written. oneDNN's kernel takes 20 us at each call to find out what it has found out
// before, and loses a NaN to an activation that it computes itself.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>

#include "blocks.h"
#include "ending.h"

namespace {

struct Sizes {
  int64_t batch, height, width, channels;  // of the images
  int64_t stride, up, left;
  int64_t rows, columns;  // of the results
};

// Rows of results that are computed together, which read the same rows of an image.
constexpr int64_t rows_together = 4;

// Results of a row from `from` up to `end`, of channels `c` and following, whose whole window lies in the image.
template <int64_t side>
INLINE void inner(const Sizes& s, const float* top, const Vector* w, int64_t from, int64_t end, int64_t c, int64_t at,
                  const Ending& ending, float* results) {
  for (int64_t j = from; j < end; ++j) {
    Vector sum{};
    const float* window = top + (j * s.stride - s.left) * s.channels + c;
    for (int64_t k = 0; k < side; ++k) {
      for (int64_t l = 0; l < side; ++l) sum += w[k * side + l] * load(window + (k * s.width + l) * s.channels);
    }
    ending(sum, c, at + j * s.channels + c, results);
  }
}

// The same where the window reaches beyond the image.
template <int64_t side>
INLINE void outer(const Sizes& s, const float* image, const Vector* w, int64_t i, int64_t from, int64_t end, int64_t c,
                  int64_t at, const Ending& ending, float* results) {
  for (int64_t j = from; j < end; ++j) {
    Vector sum{};
    for (int64_t k = 0; k < side; ++k) {
      int64_t row = i * s.stride - s.up + k;
      if (row < 0 || row >= s.height) continue;
      for (int64_t l = 0; l < side; ++l) {
        int64_t column = j * s.stride - s.left + l;
        if (column < 0 || column >= s.width) continue;
        sum += w[k * side + l] * load(image + (row * s.width + column) * s.channels + c);
      }
    }
    ending(sum, c, at + j * s.channels + c, results);
  }
}

template <int64_t side>
INLINE void compute(const Sizes& s, const float* image, const float* filters, int64_t first, int64_t end,
                    int64_t result, const Ending& ending, float* results) {
  // the columns whose window lies within the image
  int64_t from = std::min(s.columns, ceil_div(s.left, s.stride));
  int64_t to = s.width - side + s.left < 0 ? 0 : std::min(s.columns, (s.width - side + s.left) / s.stride + 1);
  for (int64_t begin = 0; begin < s.channels; begin += lanes) {
    int64_t c = std::min(begin, s.channels - lanes);  // of a last vector that is not full, some are computed twice
    Vector w[side * side];
    for (int64_t k = 0; k < side * side; ++k) w[k] = load(filters + k * s.channels + c);
    for (int64_t i = first; i < end; ++i) {
      int64_t at = result + i * s.columns * s.channels, row = i * s.stride - s.up;
      if (row < 0 || row + side > s.height || from >= to) {
        outer<side>(s, image, w, i, 0, s.columns, c, at, ending, results);
        continue;
      }
      outer<side>(s, image, w, i, 0, from, c, at, ending, results);
      inner<side>(s, image + row * s.width * s.channels, w, from, to, c, at, ending, results);
      outer<side>(s, image, w, i, to, s.columns, c, at, ending, results);
    }
  }
}

FOR_EACH_PROCESSOR void compute3(const Sizes& s, const float* image, const float* filters, int64_t first, int64_t end,
                                 int64_t result, const Ending& ending, float* results) {
  compute<3>(s, image, filters, first, end, result, ending, results);
}

FOR_EACH_PROCESSOR void compute5(const Sizes& s, const float* image, const float* filters, int64_t first, int64_t end,
                                 int64_t result, const Ending& ending, float* results) {
  compute<5>(s, image, filters, first, end, result, ending, results);
}

at::Tensor convolution(const at::Tensor& given, const at::Tensor& filters, const std::optional<at::Tensor>& bias,
                       int64_t stride, at::IntArrayRef padding, const std::optional<at::Tensor>& other,
                       std::optional<double> low, std::optional<double> high) {
  at::Tensor images = given.contiguous(at::MemoryFormat::ChannelsLast);
  int64_t side = filters.size(0);
  Sizes s{images.size(0), images.size(2), images.size(3), images.size(1), stride, padding[0], padding[1]};
  TORCH_CHECK(filters.is_contiguous() && filters.dim() == 3 && filters.size(1) == side && filters.size(2) == s.channels &&
                  (side == 3 || side == 5) && s.channels >= lanes,
              "filters of shape ", filters.sizes(), " for images of shape ", given.sizes());
  s.rows = (s.height + 2 * s.up - side) / stride + 1;
  s.columns = (s.width + 2 * s.left - side) / stride + 1;
  at::Tensor results =
      at::empty({s.batch, s.channels, s.rows, s.columns}, images.options(), at::MemoryFormat::ChannelsLast);
  at::Tensor summand = other ? other->contiguous(at::MemoryFormat::ChannelsLast) : at::Tensor();
  at::Tensor row = bias ? bias->contiguous() : at::Tensor();
  Ending ending(row, summand, low, high);
  const float *from = images.const_data_ptr<float>(), *numbers = filters.const_data_ptr<float>();
  float* to = results.mutable_data_ptr<float>();
  int64_t parts = ceil_div(s.rows, rows_together);
  for_each(s.batch * parts, [&](int64_t item) {
    int64_t image = item / parts, first = item % parts * rows_together;
    (side == 3 ? compute3 : compute5)(s, from + image * s.height * s.width * s.channels, numbers, first,
                                      std::min(s.rows, first + rows_together),
                                      image * s.rows * s.columns * s.channels, ending, to);
  }, results.numel() * side * side);
  return results;
}

TORCH_LIBRARY_FRAGMENT(lazy_runtime_kernels, library) {
  library.def(
      "depthwise(Tensor image, Tensor filters, Tensor? bias, int stride, int[] padding, Tensor? other, float? low, "
      "float? high) -> Tensor");
}
TORCH_LIBRARY_IMPL(lazy_runtime_kernels, CPU, library) { library.impl("depthwise", convolution); }

}  // namespace
