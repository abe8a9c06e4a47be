// Convolutions with filters of 3x3 by Winograd's F(4x4, 3x3): a tile of 4x4 results takes 36 products per pair of
// channels where the definition takes 144. Lavin and Gray, "Fast Algorithms for Convolutional Neural Networks"
// (arXiv:1509.09308); the matrices below are theirs.
//
// A block of tiles at a time, so that all of it stays in a core's cache: the tiles are transformed to 36 matrices of
// (tiles, channels), these multiplied with the 36 of the filters by oneDNN's kernel for small matrices, and the products
// transformed back, where a bias, a sum and relu cost nothing more.
//
// From a NaN or an infinity in an image all of its tile becomes NaN, and from numbers near the largest one too, so a tile
// that is not finite is computed again by the definition.

#include <ATen/core/Tensor.h>
#include <ATen/native/CPUBlas.h>

#ifdef CPUBLAS_BRGEMM_F32F32F32  // else the operators are not there

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>

#include "blocks.h"
#include "epilogue.h"
#include "winograd_tiles.h"

namespace {

// Numbers of a block's matrices: they take two thirds of the second level of a cache. But so many tiles at least that a
// matrix of the filters is worth reading. Both were measured, on Zen 4.
constexpr int64_t block_numbers = 160'000, least_tiles = 28;

// A^T m of six rows.
INLINE void back(const Vector* m, Vector* y) {
  Vector near = m[1] + m[2], far = m[3] + m[4], nearby = m[1] - m[2], away = m[3] - m[4];
  y[0] = m[0] + near + far;
  y[1] = nearby + 2.0f * away;
  y[2] = near + 4.0f * far;
  y[3] = nearby + 8.0f * away + m[5];
}

using Double = double __attribute__((vector_size(lanes * sizeof(double)), aligned(8), may_alias));

// G g of three rows.
INLINE void of_filter(const Double& a, const Double& b, const Double& c, Double* u) {
  Double sum = a + c, wide = (a + 4.0 * c) * (1.0 / 24), half = b * (1.0 / 12);  // divisions take longer than all else
  u[0] = a * 0.25;
  u[1] = (sum + b) * (-1.0 / 6);
  u[2] = (b - sum) * (1.0 / 6);
  u[3] = wide + half;
  u[4] = wide - half;
  u[5] = c;
}

INLINE int64_t index(const Sizes& s, const Place& place, int64_t i, int64_t j, int64_t c) {
  return ((place.image * s.rows + place.row + i) * s.columns + place.column + j) * s.out + c;
}

// A tile of results, channels from `first` up to `end`, of 36 rows of them that are `stride` apart. Whether all are finite.
FOR_EACH_PROCESSOR bool transform_back(const Sizes& s, const float* from, int64_t stride, int64_t number, int64_t first,
                                       int64_t end, const Epilogue& epilogue, float* results) {
  Place place(s, number);
  int64_t rows = std::min(tile, s.rows - place.row), columns = std::min(tile, s.columns - place.column);
  Vector unlike{};  // NaN where something is not finite
  for (int64_t c = first; c < end; c += lanes) {
    Vector middle[tile * window], m[window], y[tile];
    for (int64_t j = 0; j < window; ++j) {
      for (int64_t i = 0; i < window; ++i) m[i] = load(from + (i * window + j) * stride + c - first);
      back(m, y);
      for (int64_t i = 0; i < tile; ++i) middle[i * window + j] = y[i];
    }
    for (int64_t i = 0; i < rows; ++i) {
      back(middle + i * window, y);
      for (int64_t j = 0; j < columns; ++j) {
        unlike += 0.0f * y[j];
        epilogue(y[j], c, index(s, place, i, j, c), results);
      }
    }
  }
  float sum = 0;
  for (int64_t lane = 0; lane < lanes; ++lane) sum += unlike[lane];
  return sum == 0;
}

// The same by the definition, of filters that are won back.
FOR_EACH_PROCESSOR void define(const Sizes& s, const float* images, const float* filters, int64_t panel, int64_t number,
                               int64_t first, int64_t end, const Epilogue& epilogue, float* results) {
  Place place(s, number);
  int64_t rows = std::min(tile, s.rows - place.row), columns = std::min(tile, s.columns - place.column);
  for (int64_t c = first; c < end; c += lanes) {
    Vector sums[tile * tile] = {};
    const float* matrix = filters + c / panel * s.in * panel + c % panel;
    for (int64_t channel = 0; channel < s.in; ++channel, matrix += panel) {
      // Inlined at every level of optimization: a lambda is compiled for the default processor, where a vector is returned
      // in another way than the clone that calls it expects.
      auto at = [&](int64_t i, int64_t j)
                    __attribute__((always_inline)) { return load(matrix + (i * window + j) * s.in * s.out); };
      Vector g[3][3], middle[3][window];
      for (int64_t j : {0, 1, 2, 5}) {
        middle[0][j] = 4.0f * at(0, j);
        middle[1][j] = 3.0f * (at(2, j) - at(1, j));
        middle[2][j] = at(5, j);
      }
      for (int64_t i = 0; i < 3; ++i) {
        g[i][0] = 4.0f * middle[i][0];
        g[i][1] = 3.0f * (middle[i][2] - middle[i][1]);
        g[i][2] = middle[i][5];
      }
      for (int64_t i = 0; i < rows + 2; ++i) {
        int64_t row = place.row - s.up + i;
        for (int64_t j = 0; j < columns + 2; ++j) {
          int64_t column = place.column - s.left + j;
          if (row < 0 || row >= s.height || column < 0 || column >= s.width) continue;
          float x = images[((place.image * s.height + row) * s.width + column) * s.in + channel];
          for (int64_t k = std::max<int64_t>(0, i - rows + 1); k <= std::min<int64_t>(2, i); ++k) {
            for (int64_t l = std::max<int64_t>(0, j - columns + 1); l <= std::min<int64_t>(2, j); ++l) {
              sums[(i - k) * tile + j - l] += x * g[k][l];
            }
          }
        }
      }
    }
    for (int64_t i = 0; i < rows; ++i) {
      for (int64_t j = 0; j < columns; ++j) epilogue(sums[i * tile + j], c, index(s, place, i, j, c), results);
    }
  }
}

// How many columns of the filters' matrices lie together.
int64_t panel_of(int64_t out) {
  for (int64_t panel : {64, 48, 32}) {
    if (out % panel == 0) return panel;
  }
  return lanes;
}

// Some tiles, channels from `first` up to `end`.
void compute(const Sizes& s, const float* images, const float* filters, const Epilogue& epilogue, float* results,
             int64_t tile_from, int64_t count, int64_t first, int64_t end) {
  // a little more than a power of two, or all 36 rows fall on the same lines of the cache
  int64_t in_stride = count * s.in + lanes, width = end - first, out_stride = count * width + lanes;
  int64_t panel = panel_of(s.out);
  float* zeros = scratch(s.in + points * (in_stride + out_stride));
  float *in = zeros + s.in, *out = in + points * in_stride;
  std::fill_n(zeros, s.in, 0.0f);
  for (int64_t t = 0; t < count; ++t) transform(s, images, zeros, tile_from + t, in + t * s.in, in_stride);
  for (int64_t p = 0; p < points; ++p) {
    for (int64_t c = first; c < end; c += panel) {
      at::native::cpublas::brgemm(count, panel, s.in, s.in, panel, width, false, in + p * in_stride,
                                  filters + p * s.in * s.out + c * s.in, out + p * out_stride + c - first);
    }
  }
  at::native::cpublas::brgemm_release(false);
  for (int64_t t = 0; t < count; ++t) {
    if (!transform_back(s, out + t * width, out_stride, tile_from + t, first, end, epilogue, results)) {
      define(s, images, filters, panel, tile_from + t, first, end, epilogue, results);
    }
  }
}

// How filters lie.
struct Filters {
  const float* data;
  int64_t out, in, by_out, by_in;  // numbers of them, and how far apart the next one is
  bool turned;                     // by 180 degrees
};

// As many channels of a panel are transformed together.
constexpr int64_t channels_together = 32;

// Filters of a panel's `panel` results and of `count` channels, to 36 matrices that begin `stride` apart.
FOR_EACH_PROCESSOR void transform_filters(const Filters& filters, int64_t first, int64_t panel, int64_t channel,
                                          int64_t count, float* to, int64_t stride) {
  float filter[channels_together][9][lanes];  // all before the first is read as a vector, which has to wait for them
  const int64_t last = filters.turned ? 8 : 0, direction = filters.turned ? -1 : 1;
  for (int64_t lane = 0; lane < panel; lane += lanes) {
    for (int64_t l = 0; l < lanes; ++l) {
      const float* from = filters.data + (first + lane + l) * filters.by_out + channel * filters.by_in;
      for (int64_t c = 0; c < count; ++c, from += filters.by_in) {
        for (int64_t k = 0; k < 9; ++k) filter[c][last + direction * k][l] = from[k];
      }
    }
    for (int64_t c = 0; c < count; ++c) {
      Double g[9], columns[3][window], u[window];
      for (int64_t k = 0; k < 9; ++k) g[k] = __builtin_convertvector(load(filter[c][k]), Double);
      for (int64_t j = 0; j < 3; ++j) of_filter(g[j], g[3 + j], g[6 + j], columns[j]);
      for (int64_t i = 0; i < window; ++i) {
        of_filter(columns[0][i], columns[1][i], columns[2][i], u);
        for (int64_t j = 0; j < window; ++j) {
          store(to + (i * window + j) * stride + c * panel + lane, __builtin_convertvector(u[j], Vector));
        }
      }
    }
  }
}

// Filters (out, in, 3, 3) as 36 matrices (out / panel, in, panel); `backward` those of the convolution of gradients that
// gives an image's.
at::Tensor filters(const at::Tensor& given, bool backward) {
  at::Tensor plain = given.contiguous();
  int64_t size = plain.size(1) * 9;
  Filters filters{plain.const_data_ptr<float>(), plain.size(0), plain.size(1), size, 9, backward};
  if (backward) {
    std::swap(filters.out, filters.in);
    std::swap(filters.by_out, filters.by_in);
  }
  int64_t panel = panel_of(filters.out), all = filters.in * filters.out;
  int64_t parts = ceil_div(filters.in, channels_together);
  at::Tensor result = at::empty({points, filters.out / panel, filters.in, panel}, plain.options());
  float* to = result.mutable_data_ptr<float>();
  for_each(filters.out / panel * parts, [&](int64_t item) {
    int64_t first = item / parts * panel, channel = item % parts * channels_together;
    int64_t count = std::min(channels_together, filters.in - channel), numbers = count * panel;
    float* block = scratch(points * numbers);  // not where they go, which is 36 pages that a cache takes for one
    transform_filters(filters, first, panel, channel, count, block, numbers);
    for (int64_t p = 0; p < points; ++p) {
      std::copy_n(block + p * numbers, numbers, to + p * all + first * filters.in + channel * panel);
    }
  });
  return result;
}

at::Tensor convolution(const at::Tensor& given, const at::Tensor& filters, const std::optional<at::Tensor>& bias,
                       at::IntArrayRef padding, const std::optional<at::Tensor>& other, std::optional<double> low,
                       std::optional<double> high) {
  at::Tensor images = given.contiguous(at::MemoryFormat::ChannelsLast);
  int64_t panel = filters.size(3), out = filters.size(1) * panel;
  Sizes s{images.size(0), images.size(2), images.size(3), images.size(1), out, padding[0], padding[1]};
  TORCH_CHECK(filters.is_contiguous() && filters.size(0) == points && filters.size(2) == s.in && s.in % lanes == 0 &&
                  panel == panel_of(out),
              "filters of shape ", filters.sizes(), " for images of shape ", given.sizes());
  s.rows = s.height + 2 * s.up - 2;
  s.columns = s.width + 2 * s.left - 2;
  s.down = ceil_div(s.rows, tile);
  s.across = ceil_div(s.columns, tile);
  at::Tensor results = at::empty({s.batch, s.out, s.rows, s.columns}, images.options(), at::MemoryFormat::ChannelsLast);
  at::Tensor summand = other ? other->contiguous(at::MemoryFormat::ChannelsLast) : at::Tensor();
  at::Tensor row = bias ? bias->contiguous() : at::Tensor();
  Epilogue epilogue(row, summand, low, high);
  const float *from = images.const_data_ptr<float>(), *matrices = filters.const_data_ptr<float>();
  float* to = results.mutable_data_ptr<float>();

  int64_t threads = at::get_num_threads(), parts = 1, share = ceil_div(s.tiles(), threads);
  if (share < least_tiles) {  // the threads share the filters instead
    parts = std::min(threads, out / panel);
    share = s.tiles();
  }
  int64_t most = std::max(least_tiles, block_numbers / (points * (s.in + out)));
  int64_t count = ceil_div(share, ceil_div(share, most)), panels = ceil_div(out / panel, parts);
  for_each(ceil_div(s.tiles(), count) * parts, [&](int64_t item) {
    int64_t tile_from = item / parts * count, first = item % parts * panels * panel;
    int64_t end = std::min(out, first + panels * panel);
    if (first >= end) return;
    compute(s, from, matrices, epilogue, to, tile_from, std::min(count, s.tiles() - tile_from), first, end);
  });
  return results;
}

TORCH_LIBRARY_FRAGMENT(lazy_runtime_kernels, library) {
  library.def("winograd_filters(Tensor filters, bool backward=False) -> Tensor");
  library.def(
      "winograd(Tensor image, Tensor filters, Tensor? bias, int[] padding, Tensor? other, float? low, "
      "float? high) -> Tensor");
}
TORCH_LIBRARY_IMPL(lazy_runtime_kernels, CPU, library) {
  library.impl("winograd_filters", filters);
  library.impl("winograd", convolution);
}

}  // namespace

#endif
