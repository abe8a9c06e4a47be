// Products of a few rows with a large matrix, as linear layers have of small batches, forward and backward: the time goes by
// in reading the matrix, once. MKL's take twice that.

#if defined(__x86_64__) && defined(__GNUC__)  // else the operator is not there

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <immintrin.h>
#include <torch/library.h>

#include <algorithm>
#include <array>
#include <utility>

#include "blocks.h"

#define AVX512 __attribute__((target("avx512f")))

namespace {

constexpr int64_t most_rows = 8;

struct Sizes {
  int64_t in, out;  // columns of the few rows, and of their products
};

AVX512 inline __mmask16 up_to(int64_t count) {
  return count >= lanes ? 0xffff : static_cast<__mmask16>((1 << count) - 1);
}

// Products with `count` rows of the matrix (out, in), whose first makes column `first` of the result.
template <int64_t rows, int64_t count>
AVX512 inline void dot(const Sizes& s, const float* x, const float* matrix, int64_t first, float* result) {
  __m512 sums[rows][count];
  for (auto& row : sums) {
    for (auto& sum : row) sum = _mm512_setzero_ps();
  }
  for (int64_t k = 0; k < s.in; k += lanes) {
    const __mmask16 mask = up_to(s.in - k);
    __m512 numbers[count];
    for (int64_t c = 0; c < count; ++c) numbers[c] = _mm512_maskz_loadu_ps(mask, matrix + (first + c) * s.in + k);
    for (int64_t r = 0; r < rows; ++r) {
      const __m512 row = _mm512_maskz_loadu_ps(mask, x + r * s.in + k);
      for (int64_t c = 0; c < count; ++c) sums[r][c] = _mm512_fmadd_ps(row, numbers[c], sums[r][c]);
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < count; ++c) result[r * s.out + first + c] = _mm512_reduce_add_ps(sums[r][c]);
  }
}

template <int64_t rows>
AVX512 void dots(const Sizes& s, const float* x, const float* matrix, int64_t first, int64_t end, float* result) {
  constexpr int64_t count = rows <= 4 ? 4 : 2;  // whose sums stay in registers
  for (; first + count <= end; first += count) dot<rows, count>(s, x, matrix, first, result);
  for (; first < end; ++first) dot<rows, 1>(s, x, matrix, first, result);
}

// Adds what `count` rows of the matrix (in, out) give, from row `k` on.
template <int64_t rows, int64_t count>
AVX512 inline void add(const Sizes& s, const float* x, const float* matrix, int64_t k, float* result) {
  float factors[rows][count];
  for (int64_t r = 0; r < rows; ++r) std::copy_n(x + r * s.in + k, count, factors[r]);
  for (int64_t c = 0; c < s.out; c += lanes) {
    const __mmask16 mask = up_to(s.out - c);
    __m512 sums[rows];
    for (int64_t r = 0; r < rows; ++r) sums[r] = _mm512_maskz_loadu_ps(mask, result + r * s.out + c);
    for (int64_t m = 0; m < count; ++m) {
      const __m512 numbers = _mm512_maskz_loadu_ps(mask, matrix + (k + m) * s.out + c);
      for (int64_t r = 0; r < rows; ++r) sums[r] = _mm512_fmadd_ps(_mm512_set1_ps(factors[r][m]), numbers, sums[r]);
    }
    for (int64_t r = 0; r < rows; ++r) _mm512_mask_storeu_ps(result + r * s.out + c, mask, sums[r]);
  }
}

template <int64_t rows>
AVX512 void adds(const Sizes& s, const float* x, const float* matrix, int64_t first, int64_t end, float* result) {
  constexpr int64_t count = 8;
  std::fill_n(result, rows * s.out, 0.0f);
  for (; first + count <= end; first += count) add<rows, count>(s, x, matrix, first, result);
  for (; first < end; ++first) add<rows, 1>(s, x, matrix, first, result);
}

using Part = void (*)(const Sizes&, const float*, const float*, int64_t, int64_t, float*);

template <size_t... rows>
constexpr std::array<std::pair<Part, Part>, most_rows> of_rows(std::index_sequence<rows...>) {
  return {std::pair<Part, Part>{dots<rows + 1>, adds<rows + 1>}...};
}

void multiply_turned(Part part, const Sizes& s, const float* x, const float* matrix, int64_t work, float* result) {
  constexpr int64_t together = 32;
  for_each(
      ceil_div(s.out, together),
      [&](int64_t item) { part(s, x, matrix, item * together, std::min(s.out, (item + 1) * together), result); }, work);
}

void multiply(Part part, const Sizes& s, const float* x, const float* matrix, int64_t rows, int64_t work,
              float* result) {
  const int64_t parts = std::clamp<int64_t>(at::get_num_threads(), 1, s.in), share = ceil_div(s.in, parts);
  const int64_t size = rows * s.out;
  at::Tensor others = at::empty({parts - 1, size});
  float* partial = others.mutable_data_ptr<float>();
  for_each(
      parts,
      [&](int64_t item) {
        float* to = item == 0 ? result : partial + (item - 1) * size;
        part(s, x, matrix, std::min(s.in, item * share), std::min(s.in, (item + 1) * share), to);
      },
      work);
  for (int64_t item = 0; item < parts - 1; ++item) {
    for (int64_t k = 0; k < size; ++k) result[k] += partial[item * size + k];
  }
}

// x (rows, in) times a matrix (in, out), or (out, in) if it is turned.
at::Tensor& skinny_matmul(const at::Tensor& x, const at::Tensor& matrix, bool turned, at::Tensor& out) {
  const int64_t rows = x.size(0);
  const Sizes s{x.size(1), matrix.size(turned ? 0 : 1)};
  TORCH_CHECK(x.is_contiguous() && matrix.is_contiguous() && out.is_contiguous() &&
                  matrix.size(turned ? 1 : 0) == s.in && rows >= 1 && rows <= most_rows && s.in >= 1 &&
                  out.dim() == 2 && out.size(0) == rows && out.size(1) == s.out,
              "matrices of shapes ", x.sizes(), " and ", matrix.sizes(), " into one of ", out.sizes());
  static constexpr auto parts = of_rows(std::make_index_sequence<most_rows>());
  const auto [of_dots, of_adds] = parts[rows - 1];
  const float *left = x.const_data_ptr<float>(), *right = matrix.const_data_ptr<float>();
  float* result = out.mutable_data_ptr<float>();
  if (turned) {
    multiply_turned(of_dots, s, left, right, rows * matrix.numel(), result);
  } else {
    multiply(of_adds, s, left, right, rows, rows * matrix.numel(), result);
  }
  return out;
}

TORCH_LIBRARY_FRAGMENT(lazy_runtime_kernels, library) {
  library.def("skinny_matmul(Tensor x, Tensor matrix, bool turned, *, Tensor(a!) out) -> Tensor(a!)");
}
TORCH_LIBRARY_IMPL(lazy_runtime_kernels, CPU, library) { library.impl("skinny_matmul", skinny_matmul); }

}  // namespace

#endif
