// Products of a tall matrix and a wide one with few numbers between them, as the gradient of a large linear layer's weight
// is of a small batch: nearly all of the time goes by in writing the result. It is written past the caches, which would
// first read what is overwritten.

#if defined(__x86_64__) && defined(__GNUC__)  // else the operator is not there

#include <ATen/core/Tensor.h>
#include <immintrin.h>
#include <torch/library.h>

#include <algorithm>

#include "blocks.h"

namespace {

constexpr int64_t most_terms = 64;

// The part of the result that is one piece of work.
constexpr int64_t columns_together = 1024, rows_together = 128;

// Columns of y (terms, columns) from `first` up to `end`, vector by vector: where they lie, those of all terms may compete
// for one place in the cache.
__attribute__((target("avx512f"))) inline void pack(const float* y, int64_t columns, int64_t terms, int64_t first,
                                                    int64_t end, float* to) {
  for (int64_t c = first; c < end; c += lanes) {
    for (int64_t k = 0; k < terms; ++k, to += lanes) _mm512_storeu_ps(to, _mm512_loadu_ps(y + k * columns + c));
  }
}

// `count` rows of the result, of x (terms, rows) from its row on, and of packed columns.
template <int64_t count>
__attribute__((target("avx512f"))) inline void write_rows(const float* x, int64_t rows, const float* packed,
                                                          int64_t terms, int64_t width, float* results,
                                                          int64_t columns) {
  float factors[most_terms * count];
  for (int64_t k = 0; k < terms; ++k) std::copy_n(x + k * rows, count, factors + k * count);
  for (int64_t c = 0; c < width; c += lanes) {
    __m512 sums[count];
    for (int64_t r = 0; r < count; ++r) sums[r] = _mm512_setzero_ps();
    for (int64_t k = 0; k < terms; ++k, packed += lanes) {
      __m512 right = _mm512_loadu_ps(packed);
      for (int64_t r = 0; r < count; ++r) {
        sums[r] = _mm512_fmadd_ps(_mm512_set1_ps(factors[k * count + r]), right, sums[r]);
      }
    }
    for (int64_t r = 0; r < count; ++r) _mm512_stream_ps(results + r * columns + c, sums[r]);
  }
}

at::Tensor& small_k_matmul(const at::Tensor& x, const at::Tensor& y, at::Tensor& out) {
  int64_t terms = x.size(0), rows = x.size(1), columns = y.size(1);
  bool is_aligned = columns % lanes == 0 && reinterpret_cast<uintptr_t>(out.data_ptr()) % 64 == 0;
  TORCH_CHECK(x.is_contiguous() && y.is_contiguous() && out.is_contiguous() && y.size(0) == terms &&
                  terms <= most_terms && out.dim() == 2 && out.size(0) == rows && out.size(1) == columns && is_aligned,
              "matrices of shapes ", x.sizes(), " and ", y.sizes(), " into one of ", out.sizes());
  const float *left = x.const_data_ptr<float>(), *right = y.const_data_ptr<float>();
  float* to = out.mutable_data_ptr<float>();
  int64_t wide = ceil_div(columns, columns_together);
  for_each(ceil_div(rows, rows_together) * wide, [&](int64_t item) {
    constexpr int64_t count = 8;
    int64_t row = item / wide * rows_together, last = std::min(rows, row + rows_together);
    int64_t first = item % wide * columns_together, end = std::min(columns, first + columns_together);
    float* packed = scratch(terms * columns_together);
    pack(right, columns, terms, first, end, packed);
    for (; row + count <= last; row += count) {
      write_rows<count>(left + row, rows, packed, terms, end - first, to + row * columns + first, columns);
    }
    for (; row < last; ++row) {
      write_rows<1>(left + row, rows, packed, terms, end - first, to + row * columns + first, columns);
    }
    _mm_sfence();  // before anybody is told that it is done
  });
  return out;
}

TORCH_LIBRARY_FRAGMENT(lazy_runtime_kernels, library) {
  library.def("small_k_matmul(Tensor x, Tensor y, *, Tensor(a!) out) -> Tensor(a!)");
}
TORCH_LIBRARY_IMPL(lazy_runtime_kernels, CPU, library) { library.impl("small_k_matmul", small_k_matmul); }

}  // namespace

#endif
