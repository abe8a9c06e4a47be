// The gradient of filters of 3x3 by Winograd's F(3x3, 4x4): a tile of 4x4 gradients and its window of the image take 36
// products per pair of channels where the definition takes 144. The matrices are those of the same points as in
// `winograd.cpp`, with the roles of the filter and the results exchanged.
//
// Windows and tiles of gradients are transformed to 36 matrices each, of (tiles, channels); their products are summed up
// over all tiles and transformed to the filters. Where these are not finite, they are computed
// again by the definition: Winograd's has NaN where infinities or large numbers would give one of them.

#include <ATen/core/Tensor.h>
#include <ATen/ops/convolution_backward.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>

#include "blocks.h"
#include "small_products.h"
#include "winograd_tiles.h"

namespace {

constexpr int64_t side = 3;

// Numbers of the sums that a cache holds, and of the transformed matrices that are made at a time, where it holds all sums
// and where not: then those of some outputs are finished before the next ones, if no other tiles have to be added to them.
constexpr int64_t most_sums = 1 << 20, most_numbers = 1 << 21, most_numbers_of_parts = 1 << 23;

// Tiles of a piece of work.
constexpr int64_t tiles_together = 4;

// Channels of the image in a piece of work of the products.
constexpr int64_t rows_of_item = 96;

// G g of four rows of gradients.
INLINE void of_gradients(const Vector* g, Vector* u) {
  Vector even = g[0] + g[2], odd = g[1] + g[3];
  Vector wide = (g[0] + 4.0f * g[2]) * (1.0f / 24), half = (g[1] + 4.0f * g[3]) * (1.0f / 12);
  u[0] = g[0] * 0.25f;
  u[1] = (even + odd) * (-1.0f / 6);
  u[2] = (odd - even) * (1.0f / 6);
  u[3] = wide + half;
  u[4] = wide - half;
  u[5] = g[3];
}

// A^T m of six rows.
INLINE void to_filter(const Vector* m, Vector* y) {
  Vector near = m[1] + m[2], far = m[3] + m[4];
  y[0] = m[0] + near + far;
  y[1] = m[1] - m[2] + 2.0f * (m[3] - m[4]);
  y[2] = near + 4.0f * far + m[5];
}

// A tile of gradients, as 36 rows of `out` numbers that are `stride` apart.
FOR_EACH_PROCESSOR void transform_gradients(const Sizes& s, const float* gradients, int64_t number, float* to,
                                            int64_t stride) {
  Place place(s, number);
  int64_t rows = std::min(tile, s.rows - place.row), columns = std::min(tile, s.columns - place.column);
  const float* from = gradients + ((place.image * s.rows + place.row) * s.columns + place.column) * s.out;
  for (int64_t c = 0; c < s.out; c += lanes) {
    Vector middle[window * tile], g[tile], u[window];
    for (int64_t j = 0; j < tile; ++j) {
      for (int64_t i = 0; i < tile; ++i) {
        g[i] = i < rows && j < columns ? load(from + (i * s.columns + j) * s.out + c) : Vector{};
      }
      of_gradients(g, u);
      for (int64_t i = 0; i < window; ++i) middle[i * tile + j] = u[i];
    }
    for (int64_t i = 0; i < window; ++i) {
      of_gradients(middle + i * tile, u);
      for (int64_t j = 0; j < window; ++j) store(to + (i * window + j) * stride + c, u[j]);
    }
  }
}

// What `results` outputs' sums of products (in, results) give for 16 channels, from `in` on, and 16 of the outputs, from `out`
// on; the first of all is number `first`. Whether all are finite.
FOR_EACH_PROCESSOR bool transform_back(const Sizes& s, const float* sums, int64_t results, int64_t in, int64_t out,
                                       int64_t first, float* filters) {
  constexpr int64_t numbers = side * side;
  float block[lanes][lanes * numbers];
  Vector unlike{};  // NaN where something is not finite
  for (int64_t channel = 0; channel < lanes; ++channel) {
    Vector middle[side * window], m[window], y[side];
    const float* from = sums + (in + channel) * results + out;
    for (int64_t j = 0; j < window; ++j) {
      for (int64_t i = 0; i < window; ++i) m[i] = load(from + (i * window + j) * s.in * results);
      to_filter(m, y);
      for (int64_t i = 0; i < side; ++i) middle[i * window + j] = y[i];
    }
    for (int64_t i = 0; i < side; ++i) {
      to_filter(middle + i * window, y);
      for (int64_t j = 0; j < side; ++j) {
        unlike += 0.0f * y[j];
        for (int64_t lane = 0; lane < lanes; ++lane) block[lane][channel * numbers + i * side + j] = y[j][lane];
      }
    }
  }
  for (int64_t lane = 0; lane < lanes; ++lane) {
    std::copy_n(block[lane], lanes * numbers, filters + ((first + out + lane) * s.in + in) * numbers);
  }
  float sum = 0;
  for (int64_t lane = 0; lane < lanes; ++lane) sum += unlike[lane];
  return sum == 0;
}

// Products of some rows and columns, which are written, or added, to rows that are `stride` apart.
FOR_EACH_PROCESSOR void sum_up(const Factors& factors, int64_t rows, int64_t columns, bool adds, float* to,
                               int64_t stride) {
  if (adds) {
    multiply(factors, rows, columns, [&](const Vector& sum, int64_t i, int64_t c) {
      store(to + i * stride + c, load(to + i * stride + c) + sum);
    });
  } else {
    multiply(factors, rows, columns, [&](const Vector& sum, int64_t i, int64_t c) { store(to + i * stride + c, sum); });
  }
}

// Windows and tiles of gradients, transformed.
struct Transformed {
  int64_t count;  // of tiles
  int64_t in_stride, out_stride;
  at::Tensor windows, tiles;

  // a little more than a power of two, or all 36 rows fall on the same lines of the cache
  Transformed(const Sizes& s, int64_t count, const at::TensorOptions& options)
      : count(count), in_stride(count * s.in + lanes), out_stride(count * s.out + lanes),
        windows(at::empty({points * in_stride}, options)), tiles(at::empty({points * out_stride}, options)) {}

  // Those from `first` on, as many as there are.
  void fill(const Sizes& s, const float* images, const float* gradients, int64_t first) {
    float *to_windows = windows.mutable_data_ptr<float>(), *to_tiles = tiles.mutable_data_ptr<float>();
    count = std::min(count, s.tiles() - first);
    for_each(ceil_div(count, tiles_together), [&](int64_t item) {
      float* zeros = scratch(s.in);
      std::fill_n(zeros, s.in, 0.0f);
      for (int64_t t = item * tiles_together; t < std::min(count, (item + 1) * tiles_together); ++t) {
        transform(s, images, zeros, first + t, to_windows + t * s.in, in_stride);
        transform_gradients(s, gradients, first + t, to_tiles + t * s.out, out_stride);
      }
    });
  }

  // The 36 products (in, results), of the outputs from `first` on, written or added to `sums`.
  void multiply(const Sizes& s, int64_t first, bool adds, at::Tensor& sums) const {
    const float *left = windows.const_data_ptr<float>(), *right = tiles.const_data_ptr<float>() + first;
    float* to = sums.mutable_data_ptr<float>();
    int64_t results = sums.size(2), across = ceil_div(results, most_columns), down = ceil_div(s.in, rows_of_item);
    for_each(points * across * down, [&](int64_t item) {
      int64_t point = item / (across * down), column = item / down % across * most_columns,
              row = item % down * rows_of_item;
      Factors factors{left + point * in_stride + row, right + point * out_stride + column, 1, s.in, s.out, count};
      sum_up(factors, std::min(rows_of_item, s.in - row), std::min(most_columns, results - column), adds,
             to + (point * s.in + row) * results + column, results);
    });
  }
};

// The filters of as many outputs as there are sums of, from number `first` on. Whether all are finite.
bool transform_back(const Sizes& s, const at::Tensor& sums, int64_t first, float* filters) {
  std::atomic<bool> is_finite{true};
  const float* from = sums.const_data_ptr<float>();
  int64_t across = s.in / lanes, results = sums.size(2);
  for_each(results / lanes * across, [&](int64_t item) {
    if (!transform_back(s, from, results, item % across * lanes, item / across * lanes, first, filters))
      is_finite = false;
  });
  return is_finite;
}

// Whether all are finite.
bool compute(const Sizes& s, const float* images, const float* gradients, const at::TensorOptions& options,
             float* filters) {
  int64_t numbers = points * s.in * s.out > most_sums ? most_numbers_of_parts : most_numbers;
  int64_t most = std::max<int64_t>(1, numbers / (points * (s.in + s.out)));
  Transformed transformed(s, ceil_div(s.tiles(), ceil_div(s.tiles(), most)), options);
  if (transformed.count < s.tiles()) {
    at::Tensor sums = at::empty({points, s.in, s.out}, options);
    for (int64_t first = 0, count = transformed.count; first < s.tiles(); first += count) {
      transformed.fill(s, images, gradients, first);
      transformed.multiply(s, 0, first > 0, sums);
    }
    return transform_back(s, sums, 0, filters);
  }
  transformed.fill(s, images, gradients, 0);
  int64_t results = std::clamp(most_sums / (points * s.in) / lanes * lanes, lanes, s.out);
  bool is_finite = true;
  for (int64_t first = 0; first < s.out; first += results) {  // from a cache
    at::Tensor sums = at::empty({points, s.in, std::min(results, s.out - first)}, options);
    transformed.multiply(s, first, false, sums);
    is_finite &= transform_back(s, sums, first, filters);
  }
  return is_finite;
}

at::Tensor gradient(const at::Tensor& given_gradient, const at::Tensor& given, at::IntArrayRef padding) {
  at::Tensor gradients = given_gradient.contiguous(at::MemoryFormat::ChannelsLast);
  at::Tensor images = given.contiguous(at::MemoryFormat::ChannelsLast);
  Sizes s{images.size(0), images.size(2), images.size(3), images.size(1), gradients.size(1), padding[0], padding[1]};
  s.rows = s.height + 2 * s.up - 2;
  s.columns = s.width + 2 * s.left - 2;
  s.down = ceil_div(s.rows, tile);
  s.across = ceil_div(s.columns, tile);
  TORCH_CHECK(gradients.size(0) == s.batch && gradients.size(2) == s.rows && gradients.size(3) == s.columns &&
                  s.tiles() > 0 && s.in % lanes == 0 && s.out % lanes == 0,
              "gradients of shape ", given_gradient.sizes(), " for images of shape ", given.sizes());
  at::Tensor filters = at::empty({s.out, s.in, side, side}, images.options());
  bool is_finite = compute(s, images.const_data_ptr<float>(), gradients.const_data_ptr<float>(), images.options(),
                           filters.mutable_data_ptr<float>());
  if (is_finite) return filters;
  return std::get<1>(at::convolution_backward(gradients, images, filters, {}, {1, 1}, padding, {1, 1}, false, {0, 0}, 1,
                                              {false, true, false}))
      .contiguous();
}

TORCH_LIBRARY_FRAGMENT(lazy_runtime_kernels, library) {
  library.def("winograd_gradient(Tensor gradient, Tensor image, int[] padding) -> Tensor");
}
TORCH_LIBRARY_IMPL(lazy_runtime_kernels, CPU, library) { library.impl("winograd_gradient", gradient); }

}  // namespace
