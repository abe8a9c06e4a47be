// What batch normalization adds up over all but the channels: XLA makes four loops of it, which read the images six times,
// and writes them once more without their mean. Here they are read once forward, and once with their gradients backward.
//
// A block of rows at a time: it is read for its mean, and again, from the core's cache, for the squares of what differs
// from that. Blocks are put together in double (Chan, Golub and LeVeque, "Updating Formulae and a Pairwise Algorithm for
// Computing Sample Variances", 1979), in their order, so that the number of threads changes nothing.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_like.h>
#include <torch/library.h>

#include <algorithm>
#include <tuple>

#include "blocks.h"

namespace {

// Numbers of a block: they stay in the second level of a cache. And the most rows, whose sum in float is near enough.
constexpr int64_t block_numbers = 1 << 15, most_rows = 512;

// So many blocks at least, if their rows suffice, for the threads to share; else they share the channels too.
constexpr int64_t least_blocks = 8;

// How an image's numbers (rows, channels) are cut into blocks.
struct Blocks {
  int64_t rows, channels, height, width, down, across;

  Blocks(int64_t rows, int64_t channels) : rows(rows), channels(channels) {
    height = std::clamp<int64_t>(block_numbers / channels, 16, most_rows);
    down = ceil_div(rows, height);
    width = ceil_div(ceil_div(channels, lanes), ceil_div(least_blocks, down)) * lanes;
    across = ceil_div(channels, width);
  }
  int64_t count() const { return down * across; }
  int64_t row(int64_t block) const { return block / across * height; }
  int64_t channel(int64_t block) const { return block % across * width; }
  int64_t rows_of(int64_t block) const { return std::min(height, rows - row(block)); }
  int64_t channels_of(int64_t block) const { return std::min(width, channels - channel(block)); }
};

// Mean and sum of squared differences from it, of each channel of a block.
FOR_EACH_PROCESSOR void moments(const float* from, int64_t rows, int64_t stride, int64_t channels,
                                float* __restrict__ mean, float* __restrict__ squares) {
  std::fill_n(mean, channels, 0.0f);
  std::fill_n(squares, channels, 0.0f);
  int64_t r = 0;
  for (; r + 4 <= rows; r += 4) {  // so many in one pass: sums come and go through memory
    const float *a = from + r * stride, *b = a + stride, *c = b + stride, *d = c + stride;
    for (int64_t i = 0; i < channels; ++i) mean[i] += (a[i] + b[i]) + (c[i] + d[i]);
  }
  for (; r < rows; ++r) {
    for (int64_t i = 0; i < channels; ++i) mean[i] += from[r * stride + i];
  }
  for (int64_t i = 0; i < channels; ++i) mean[i] /= static_cast<float>(rows);
  for (r = 0; r + 4 <= rows; r += 4) {
    const float *a = from + r * stride, *b = a + stride, *c = b + stride, *d = c + stride;
    for (int64_t i = 0; i < channels; ++i) {
      float m = mean[i], p = a[i] - m, q = b[i] - m, s = c[i] - m, t = d[i] - m;
      squares[i] += (p * p + q * q) + (s * s + t * t);
    }
  }
  for (; r < rows; ++r) {
    for (int64_t i = 0; i < channels; ++i)
      squares[i] += (from[r * stride + i] - mean[i]) * (from[r * stride + i] - mean[i]);
  }
}

// Sums of the gradients of each channel of a block, and of their products with what differs from the mean.
FOR_EACH_PROCESSOR void products(const float* gradients, const float* from, int64_t rows, int64_t stride,
                                 int64_t channels, const float* mean, float* __restrict__ sum,
                                 float* __restrict__ product) {
  std::fill_n(sum, channels, 0.0f);
  std::fill_n(product, channels, 0.0f);
  int64_t r = 0;
  for (; r + 2 <= rows; r += 2) {
    const float *g = gradients + r * stride, *h = g + stride, *a = from + r * stride, *b = a + stride;
    for (int64_t i = 0; i < channels; ++i) {
      sum[i] += g[i] + h[i];
      product[i] += g[i] * (a[i] - mean[i]) + h[i] * (b[i] - mean[i]);
    }
  }
  for (; r < rows; ++r) {
    for (int64_t i = 0; i < channels; ++i) {
      sum[i] += gradients[r * stride + i];
      product[i] += gradients[r * stride + i] * (from[r * stride + i] - mean[i]);
    }
  }
}

// The channels' means and variances (of all the rows, not of a sample) from those of blocks.
void put_together(const Blocks& blocks, const float* means, const float* squares, float* mean, float* variance) {
  auto rows = static_cast<double>(blocks.rows);
  for (int64_t i = 0; i < blocks.channels; ++i) {
    double sum = 0, square = 0;
    for (int64_t d = 0; d < blocks.down; ++d) {
      sum += static_cast<double>(means[d * blocks.channels + i]) * blocks.rows_of(d * blocks.across);
    }
    double middle = sum / rows;
    for (int64_t d = 0; d < blocks.down; ++d) {
      double away = means[d * blocks.channels + i] - middle;
      square += squares[d * blocks.channels + i] + away * away * blocks.rows_of(d * blocks.across);
    }
    mean[i] = static_cast<float>(middle);
    variance[i] = static_cast<float>(square / rows);
  }
}

void check(const at::Tensor& images) {
  TORCH_CHECK(images.dim() == 2 && images.is_contiguous() && images.scalar_type() == at::kFloat && images.numel() > 0,
              "batch normalization of ", images.sizes(), ": rows of channels are needed, in float32");
}

std::tuple<at::Tensor, at::Tensor> statistics(const at::Tensor& images) {
  check(images);
  Blocks blocks(images.size(0), images.size(1));
  const float* from = images.const_data_ptr<float>();
  at::Tensor partial = at::empty({2, blocks.down, blocks.channels}, images.options());
  at::Tensor mean = at::empty({blocks.channels}, images.options()), variance = at::empty_like(mean);
  float *means = partial.mutable_data_ptr<float>(), *squares = means + blocks.down * blocks.channels;
  for_each(blocks.count(), [&](int64_t block) {
    int64_t channel = blocks.channel(block), to = block / blocks.across * blocks.channels + channel;
    moments(from + blocks.row(block) * blocks.channels + channel, blocks.rows_of(block), blocks.channels,
            blocks.channels_of(block), means + to, squares + to);
  });
  put_together(blocks, means, squares, mean.mutable_data_ptr<float>(), variance.mutable_data_ptr<float>());
  return {mean, variance};
}

std::tuple<at::Tensor, at::Tensor> gradients(const at::Tensor& given, const at::Tensor& images,
                                             const at::Tensor& mean) {
  check(given);
  check(images);
  TORCH_CHECK(given.sizes() == images.sizes() && mean.numel() == images.size(1) && mean.is_contiguous(),
              "gradients of shape ", given.sizes(), " for images of shape ", images.sizes());
  Blocks blocks(images.size(0), images.size(1));
  const float *of = given.const_data_ptr<float>(), *from = images.const_data_ptr<float>();
  const float* middle = mean.const_data_ptr<float>();
  at::Tensor partial = at::empty({2, blocks.down, blocks.channels}, images.options());
  float* sums = partial.mutable_data_ptr<float>();
  for_each(blocks.count(), [&](int64_t block) {
    int64_t channel = blocks.channel(block), to = block / blocks.across * blocks.channels + channel;
    int64_t first = blocks.row(block) * blocks.channels + channel;
    products(of + first, from + first, blocks.rows_of(block), blocks.channels, blocks.channels_of(block),
             middle + channel, sums + to, sums + blocks.down * blocks.channels + to);
  });
  at::Tensor results[2];
  for (at::Tensor& result : results) {
    result = at::empty({blocks.channels}, images.options());
    float* to = result.mutable_data_ptr<float>();
    for (int64_t i = 0; i < blocks.channels; ++i) {
      double sum = 0;
      for (int64_t d = 0; d < blocks.down; ++d) sum += sums[d * blocks.channels + i];
      to[i] = static_cast<float>(sum);
    }
    sums += blocks.down * blocks.channels;
  }
  return {results[0], results[1]};
}

TORCH_LIBRARY_FRAGMENT(lazy_runtime_kernels, library) {
  library.def("batch_statistics(Tensor images) -> (Tensor, Tensor)");
  library.def("batch_gradients(Tensor gradients, Tensor images, Tensor mean) -> (Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(lazy_runtime_kernels, CPU, library) {
  library.impl("batch_statistics", statistics);
  library.impl("batch_gradients", gradients);
}

}  // namespace
