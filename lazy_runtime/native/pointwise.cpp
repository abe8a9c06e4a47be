// Convolutions with filters of 1x1: products of matrices, of pixels and filters. A bias, a sum and an activation find the
// products in registers. oneDNN's own convolution takes 20 us at each call to find out what it has found out before, and
// loses a NaN to an activation that it computes itself.

#include <ATen/core/Tensor.h>
#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <optional>

#include "blocks.h"
#include "epilogue.h"
#include "small_products.h"

namespace {

// Columns that are computed together, and how many numbers of the pixels a block has, but of these not too few or many.
constexpr int64_t block_numbers = 16'384, least_rows = 32, most_rows = 128;

// The width of the panels that filters are cut into; the last one may be narrower.
int64_t panel_of(int64_t out) {
  int64_t panels = ceil_div(out, most_columns);
  return std::min(out, ceil_div(ceil_div(out, panels), lanes) * lanes);
}

// Some rows of the results, columns `first` up to `first + width`, a panel's.
FOR_EACH_PROCESSOR void compute(const float* pixels, const float* matrix, int64_t in, int64_t out, int64_t row,
                                int64_t rows, int64_t first, int64_t width, const Epilogue& epilogue, float* results) {
  Factors factors{pixels + row * in, matrix + first * in, in, 1, width, in};
  if (width >= lanes) {
    multiply(factors, rows, width, [&](const Vector& sum, int64_t i, int64_t c) {
      epilogue(sum, first + c, (row + i) * out + first + c, results);
    });
    return;
  }
  float* padded = scratch(in * lanes);
  std::fill_n(padded, in * lanes, 0.0f);
  for (int64_t k = 0; k < in; ++k) std::copy_n(factors.right + k * width, width, padded + k * lanes);
  factors.right = padded;
  factors.stride = lanes;
  multiply(factors, rows, lanes, [&](const Vector& sum, int64_t i, int64_t) {
    for (int64_t c = 0; c < width; ++c) epilogue(sum[c], first + c, (row + i) * out + first + c, results);
  });
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
  Epilogue epilogue(row, summand, low, high);
  const float *pixels = images.const_data_ptr<float>(), *matrix = filters.const_data_ptr<float>();
  float* to = results.mutable_data_ptr<float>();

  int64_t threads = at::get_num_threads(), most = std::clamp(block_numbers / in, least_rows, most_rows);
  int64_t blocks = ceil_div(rows, most);
  if (rows >= threads * least_rows) blocks = ceil_div(blocks, threads) * threads;
  int64_t together = rows_together(panel), block = ceil_div(ceil_div(rows, blocks), together) * together;
  // what is read again and again is the smaller matrix
  bool by_rows = out <= rows && blocks >= threads;
  auto compute = [&](int64_t from, int64_t count, int64_t first) {
    ::compute(pixels, matrix, in, out, from, count, first, std::min(panel, out - first), epilogue, to);
  };
  for_each(
      by_rows ? blocks : blocks * panels,
      [&](int64_t item) {
        int64_t from = (by_rows ? item : item % blocks) * block, count = std::min(block, rows - from);
        int64_t first = by_rows ? 0 : item / blocks, end = by_rows ? panels : first + 1;
        if (count <= 0) return;
        for (int64_t p = first; p < end; ++p) compute(from, count, p * panel);
      },
      rows * in * out);
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
