// Convolutions with filters of 1x1: products of matrices, of pixels and filters, by oneDNN's kernel for small ones.
//
// A block of results at a time, so that a bias, a sum and an activation find it in the first levels of a cache. oneDNN's
// own convolution takes 20 us at each call to find out what it has found out before, and loses a NaN to an activation that
// it computes itself.

#include <ATen/core/Tensor.h>
#include <ATen/native/CPUBlas.h>

#ifdef CPUBLAS_BRGEMM_F32F32F32  // else the operator is not there

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>

#include "blocks.h"
#include "ending.h"

namespace {

// Columns that are computed together, and how many numbers of the pixels a block has, but of these not too few or many.
constexpr int64_t most_columns = 64, block_numbers = 16'384, least_rows = 32, most_rows = 128;

// The width of the panels that filters are cut into; the last one may be narrower.
int64_t panel_of(int64_t out) {
  int64_t panels = ceil_div(out, most_columns);
  return std::min(out, ceil_div(ceil_div(out, panels), lanes) * lanes);
}

FOR_EACH_PROCESSOR void finish(float* results, int64_t row, int64_t rows, int64_t first, int64_t end, int64_t out,
                               const Ending& ending) {
  for (int64_t i = row; i < row + rows; ++i) {
    int64_t c = first;
    for (; c + lanes <= end; c += lanes) ending(load(results + i * out + c), c, i * out + c, results);
    for (; c < end; ++c) ending(results[i * out + c], c, i * out + c, results);
  }
}

// Filters (out, in) as panels, one after the other, of (in, panel).
at::Tensor filters(const at::Tensor& given) {
  at::Tensor plain = given.contiguous();
  int64_t out = plain.size(0), in = plain.size(1), panel = panel_of(out);
  at::Tensor result = at::empty({in * out}, plain.options());
  const float* from = plain.const_data_ptr<float>();
  float* to = result.mutable_data_ptr<float>();
  for (int64_t first = 0; first < out; first += panel) {
    int64_t width = std::min(panel, out - first);
    for (int64_t k = 0; k < in; ++k) {
      for (int64_t c = 0; c < width; ++c) *to++ = from[(first + c) * in + k];
    }
  }
  return result;
}

at::Tensor convolution(const at::Tensor& given, const at::Tensor& filters, const std::optional<at::Tensor>& bias,
                       const std::optional<at::Tensor>& other, std::optional<double> low, std::optional<double> high) {
  at::Tensor images = given.contiguous(at::MemoryFormat::ChannelsLast);
  int64_t in = images.size(1), out = filters.numel() / in, panel = panel_of(out);
  int64_t rows = images.numel() / in, panels = ceil_div(out, panel);
  TORCH_CHECK(filters.is_contiguous() && out * in == filters.numel(), filters.numel(), " numbers for images of shape ",
              given.sizes());
  at::Tensor results = at::empty({images.size(0), out, images.size(2), images.size(3)}, images.options(),
                                 at::MemoryFormat::ChannelsLast);
  at::Tensor summand = other ? other->contiguous(at::MemoryFormat::ChannelsLast) : at::Tensor();
  at::Tensor row = bias ? bias->contiguous() : at::Tensor();
  Ending ending(row, summand, low, high);
  const float *pixels = images.const_data_ptr<float>(), *matrix = filters.const_data_ptr<float>();
  float* to = results.mutable_data_ptr<float>();

  int64_t threads = at::get_num_threads(), most = std::clamp(block_numbers / in, least_rows, most_rows);
  int64_t blocks = ceil_div(rows, most);
  if (rows >= threads * least_rows) blocks = ceil_div(blocks, threads) * threads;
  int64_t block = ceil_div(rows, blocks);
  // what is read again and again is the smaller matrix
  bool by_rows = out <= rows && blocks >= threads;
  auto compute = [&](int64_t from, int64_t count, int64_t first) {
    int64_t width = std::min(panel, out - first);
    at::native::cpublas::brgemm(count, width, in, in, width, out, false, pixels + from * in, matrix + first * in,
                                to + from * out + first);
    finish(to, from, count, first, first + width, out, ending);
  };
  for_each(by_rows ? blocks : blocks * panels, [&](int64_t item) {
    int64_t from = (by_rows ? item : item % blocks) * block, count = std::min(block, rows - from);
    int64_t first = by_rows ? 0 : item / blocks, end = by_rows ? panels : first + 1;
    if (count <= 0) return;
    for (int64_t p = first; p < end; ++p) compute(from, count, p * panel);
    at::native::cpublas::brgemm_release(false);
  }, rows * in * out);
  return results;
}

TORCH_LIBRARY_FRAGMENT(lazy_runtime_kernels, library) {
  library.def("pointwise_filters(Tensor filters) -> Tensor");
  library.def(
      "pointwise(Tensor image, Tensor filters, Tensor? bias, Tensor? other, float? low, float? high) -> Tensor");
}
TORCH_LIBRARY_IMPL(lazy_runtime_kernels, CPU, library) {
  library.impl("pointwise_filters", filters);
  library.impl("pointwise", convolution);
}

}  // namespace

#endif
