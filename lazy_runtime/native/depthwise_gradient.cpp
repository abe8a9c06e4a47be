// The gradient of the filters of convolutions of each channel by itself: sixteen channels of an image at a time, framed with
// zeros where the windows reach beyond it, so that the sums of a window stay in registers, or those of some of its rows.
// oneDNN's takes five to eight times as long with filters of 5x5 and 7x7, and as long as this with 3x3.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>

#include "blocks.h"

namespace {

struct Sizes {
  int64_t batch, height, width, channels;  // of the images
  int64_t stride, up, left;
  int64_t rows, columns;  // of the gradients

  template <int64_t side>
  int64_t framed_height() const {
    return (rows - 1) * stride + side;
  }
  template <int64_t side>
  int64_t framed_width() const {
    return (columns - 1) * stride + side;
  }
};

// Of the 32 registers that there are of 512 bits.
constexpr int64_t most_sums = 28;

// As much of an image as its windows see, with the frame, of the channels `c` and following.
template <int64_t side>
INLINE void frame(const Sizes& s, const float* image, int64_t c, float* to) {
  for (int64_t i = -s.up; i < s.framed_height<side>() - s.up; ++i) {
    for (int64_t j = -s.left; j < s.framed_width<side>() - s.left; ++j, to += lanes) {
      bool is_inside = i >= 0 && i < s.height && j >= 0 && j < s.width;
      store(to, is_inside ? load(image + (i * s.width + j) * s.channels + c) : Vector{});
    }
  }
}

// Adds what one image gives for `count` rows of the filters from `k` on, row by row of the gradients: sums of few numbers
// are put together, which keeps them precise.
template <int64_t side, int64_t count>
INLINE void add_rows(const Sizes& s, const float* framed, const float* gradients, int64_t c, int64_t k, Vector* sums) {
  int64_t width = s.framed_width<side>() * lanes;
  for (int64_t i = 0; i < s.rows; ++i) {
    Vector row[count * side] = {};
    const float* windows = framed + (i * s.stride + k) * width;
    for (int64_t j = 0; j < s.columns; ++j) {
      Vector gradient = load(gradients + (i * s.columns + j) * s.channels + c);
      const float* window = windows + j * s.stride * lanes;
      for (int64_t m = 0; m < count; ++m) {
        for (int64_t l = 0; l < side; ++l) row[m * side + l] += gradient * load(window + m * width + l * lanes);
      }
    }
    for (int64_t m = 0; m < count * side; ++m) sums[k * side + m] += row[m];
  }
}

template <int64_t side>
INLINE void add_image(const Sizes& s, const float* framed, const float* gradients, int64_t c, Vector* sums) {
  constexpr int64_t together = std::min(side, most_sums / side), rest = side % together;
  for (int64_t k = 0; k + together <= side; k += together) {
    add_rows<side, together>(s, framed, gradients, c, k, sums);
  }
  if constexpr (rest > 0) add_rows<side, rest>(s, framed, gradients, c, side - rest, sums);
}

// The sums over the images `first`, `first` + `step` and so on, of the channels from `begin` up to `end`.
template <int64_t side>
INLINE void compute(const Sizes& s, const float* images, const float* gradients, int64_t begin, int64_t end,
                    int64_t first, int64_t step, float* results) {
  int64_t c = std::min(begin, s.channels - lanes);  // of a last vector that is not full, some are computed twice
  Vector sums[side * side] = {};
  float* framed = scratch(s.framed_height<side>() * s.framed_width<side>() * lanes);
  for (int64_t image = first; image < s.batch; image += step) {
    frame<side>(s, images + image * s.height * s.width * s.channels, c, framed);
    add_image<side>(s, framed, gradients + image * s.rows * s.columns * s.channels, c, sums);
  }
  for (int64_t k = 0; k < side * side; ++k) {
    for (int64_t channel = begin; channel < end; ++channel) results[k * s.channels + channel] = sums[k][channel - c];
  }
}

FOR_EACH_PROCESSOR void compute5(const Sizes& s, const float* images, const float* gradients, int64_t begin,
                                 int64_t end, int64_t first, int64_t step, float* results) {
  compute<5>(s, images, gradients, begin, end, first, step, results);
}

FOR_EACH_PROCESSOR void compute7(const Sizes& s, const float* images, const float* gradients, int64_t begin,
                                 int64_t end, int64_t first, int64_t step, float* results) {
  compute<7>(s, images, gradients, begin, end, first, step, results);
}

// Images are divided among as many partial sums at most.
constexpr int64_t most_parts = 8;

at::Tensor gradient(const at::Tensor& given_gradient, const at::Tensor& given, int64_t side, int64_t stride,
                    at::IntArrayRef padding) {
  at::Tensor gradients = given_gradient.contiguous(at::MemoryFormat::ChannelsLast);
  at::Tensor images = given.contiguous(at::MemoryFormat::ChannelsLast);
  Sizes s{images.size(0), images.size(2), images.size(3),    images.size(1),   stride,
          padding[0],     padding[1],     gradients.size(2), gradients.size(3)};
  bool fits =
      s.rows == (s.height + 2 * s.up - side) / stride + 1 && s.columns == (s.width + 2 * s.left - side) / stride + 1;
  TORCH_CHECK(fits && gradients.size(0) == s.batch && gradients.size(1) == s.channels && (side == 5 || side == 7) &&
                  s.channels >= lanes,
              "gradients of shape ", given_gradient.sizes(), " for images of shape ", given.sizes());
  int64_t parts = std::min(s.batch, most_parts), blocks = ceil_div(s.channels, lanes), size = side * side * s.channels;
  at::Tensor partial = at::empty({parts, side, side, s.channels}, images.options());
  const float *from = images.const_data_ptr<float>(), *numbers = gradients.const_data_ptr<float>();
  float* to = partial.mutable_data_ptr<float>();
  for_each(
      parts * blocks,
      [&](int64_t item) {
        int64_t part = item % parts, begin = item / parts * lanes;
        (side == 5 ? compute5 : compute7)(s, from, numbers, begin, std::min(begin + lanes, s.channels), part, parts,
                                          to + part * size);
      },
      gradients.numel() * side * side);
  for (int64_t part = 1; part < parts; ++part) {
    for (int64_t k = 0; k < size; ++k) to[k] += to[part * size + k];
  }
  return partial.select(0, 0);
}

TORCH_LIBRARY_FRAGMENT(lazy_runtime_kernels, library) {
  library.def("depthwise_gradient(Tensor gradient, Tensor image, int side, int stride, int[] padding) -> Tensor");
}
TORCH_LIBRARY_IMPL(lazy_runtime_kernels, CPU, library) { library.impl("depthwise_gradient", gradient); }

}  // namespace
