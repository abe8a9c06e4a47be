// Products of a few rows with a large matrix, as linear layers have of small batches and of a token that is decoded,
// forward and backward: the time goes by in reading the matrix, once. A matrix of bfloat16 or of int8 is widened in
// registers, so that it takes a half or a quarter of that time. MKL's read twice as much, XLA's and oneDNN's of one row
// with one core.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cstring>

#include "vector_math.h"

namespace {

constexpr int64_t most_rows = 8;

struct Sizes {
  int64_t rows, in, out;  // columns of the few rows, and of their products
};

using Bits = uint32_t __attribute__((vector_size(lanes * sizeof(uint32_t)), aligned(4), may_alias));

template <typename To, typename From>
INLINE To same_bits(const From& from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}

template <typename To>
INLINE To read(const void* from) {
  To to;
  std::memcpy(&to, from, sizeof(to));
  return to;
}

// Numbers of which so many lie in the place of a float.
template <typename Number>
constexpr int64_t parts = sizeof(float) / sizeof(Number);

// As many vectors as `parts`, of the numbers of a vector's bytes: vector p has each `parts`-th from number p on. To take them
// in their order would need shuffles, of which processors do fewer at a time than shifts.
INLINE void widen(const float* from, Vector* to) { to[0] = load(from); }

INLINE void widen(const at::BFloat16* from, Vector* to) {
  const Bits bits = read<Bits>(from);
  to[0] = same_bits<Vector>(bits << 16);
  to[1] = same_bits<Vector>(bits & 0xffff0000u);
}

INLINE void widen(const int8_t* from, Vector* to) {
  const Integers bytes = read<Integers>(from);
  to[0] = __builtin_convertvector(bytes << 24 >> 24, Vector);
  to[1] = __builtin_convertvector(bytes << 16 >> 24, Vector);
  to[2] = __builtin_convertvector(bytes << 8 >> 24, Vector);
  to[3] = __builtin_convertvector(bytes >> 24, Vector);
}

// A row of floats in the order in which `widen` gives what is multiplied with it; those after the last vector as they are.
template <typename Number>
void arrange(const float* from, int64_t count, float* to) {
  constexpr int64_t group = lanes * parts<Number>;
  int64_t k = 0;
  for (; k + group <= count; k += group) {
    for (int64_t i = 0; i < group; ++i) to[k + i % parts<Number> * lanes + i / parts<Number>] = from[k + i];
  }
  std::copy_n(from + k, count - k, to + k);
}

INLINE float total(const Vector& x) {
  float halves[lanes];
  std::memcpy(halves, &x, sizeof(halves));
#pragma GCC unroll 4
  for (int64_t width = lanes / 2; width > 0; width /= 2) {
    for (int64_t i = 0; i < width; ++i) halves[i] += halves[i + width];
  }
  return halves[0];
}

// Rows that are multiplied together, whose sums stay in registers; the others follow while a cache holds the matrix's.
constexpr int64_t together = 4;

// Products with `count` rows of the matrix (out, in), whose first makes column `first` of the result; `x` is arranged.
template <int64_t rows, int64_t count, typename Number>
INLINE void dot(const Sizes& s, const float* x, const Number* matrix, int64_t first, float* result) {
  constexpr int64_t group = lanes * parts<Number>;
  Vector sums[rows][count] = {};
  const Number* row = matrix + first * s.in;
  int64_t k = 0;
  for (; k + group <= s.in; k += group) {
    Vector numbers[count][parts<Number>];
#pragma GCC unroll 4
    for (int64_t c = 0; c < count; ++c) widen(row + c * s.in + k, numbers[c]);
#pragma GCC unroll 4
    for (int64_t p = 0; p < parts<Number>; ++p) {
#pragma GCC unroll 4
      for (int64_t r = 0; r < rows; ++r) {
        const Vector of_row = load(x + r * s.in + k + p * lanes);
#pragma GCC unroll 4
        for (int64_t c = 0; c < count; ++c) sums[r][c] += of_row * numbers[c][p];
      }
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < count; ++c) {
      float sum = total(sums[r][c]);
      for (int64_t j = k; j < s.in; ++j) sum += x[r * s.in + j] * static_cast<float>(row[c * s.in + j]);
      result[r * s.out + first + c] = sum;
    }
  }
}

template <int64_t rows, typename Number>
INLINE void dots(const Sizes& s, const float* x, const Number* matrix, int64_t first, int64_t end, float* result) {
  constexpr int64_t count = 4;
  for (; first + count <= end; first += count) dot<rows, count>(s, x, matrix, first, result);
  for (; first < end; ++first) dot<rows, 1>(s, x, matrix, first, result);
}

// Adds what `count` rows of the matrix (in, out) give, from row `k` on.
template <int64_t rows, int64_t count, typename Number>
INLINE void add(const Sizes& s, const float* x, const Number* matrix, int64_t k, float* result) {
  const Number* row = matrix + k * s.out;
  int64_t c = 0;
  for (; c + lanes <= s.out; c += lanes) {
    Vector sums[rows];
#pragma GCC unroll 4
    for (int64_t r = 0; r < rows; ++r) sums[r] = load(result + r * s.out + c);
#pragma GCC unroll 8
    for (int64_t m = 0; m < count; ++m) {
      const Vector numbers = widened(row + m * s.out + c);
#pragma GCC unroll 4
      for (int64_t r = 0; r < rows; ++r) sums[r] += x[r * s.in + k + m] * numbers;
    }
#pragma GCC unroll 4
    for (int64_t r = 0; r < rows; ++r) store(result + r * s.out + c, sums[r]);
  }
  for (; c < s.out; ++c) {
    for (int64_t r = 0; r < rows; ++r) {
      for (int64_t m = 0; m < count; ++m) {
        result[r * s.out + c] += x[r * s.in + k + m] * static_cast<float>(row[m * s.out + c]);
      }
    }
  }
}

constexpr int64_t added = 8;  // rows of the matrix, at once

template <int64_t rows, typename Number>
INLINE void adds(const Sizes& s, const float* x, const Number* matrix, int64_t first, int64_t end, float* result) {
  for (; first + added <= end; first += added) add<rows, added>(s, x, matrix, first, result);
  for (; first < end; ++first) add<rows, 1>(s, x, matrix, first, result);
}

#define FOR_ROWS(name, function, Number)                                                                         \
  FOR_EACH_PROCESSOR void name(const Sizes& s, int64_t rows, const float* x, const Number* matrix, int64_t first, \
                               int64_t end, float* result) {                                                     \
    switch (rows) {                                                                                              \
      case 1: return function<1>(s, x, matrix, first, end, result);                                              \
      case 2: return function<2>(s, x, matrix, first, end, result);                                              \
      case 3: return function<3>(s, x, matrix, first, end, result);                                              \
      default: return function<4>(s, x, matrix, first, end, result);                                             \
    }                                                                                                            \
  }

// Columns `first` to `end` of the products with a matrix (out, in).
FOR_ROWS(dots_of_floats, dots, float)
FOR_ROWS(dots_of_bfloats, dots, at::BFloat16)
FOR_ROWS(dots_of_bytes, dots, int8_t)
// Adds all that rows `first` to `end` of a matrix (in, out) give.
FOR_ROWS(adds_of_floats, adds, float)
FOR_ROWS(adds_of_bfloats, adds, at::BFloat16)

template <typename Number>
using Part = void (*)(const Sizes&, int64_t, const float*, const Number*, int64_t, int64_t, float*);

template <typename Number>
void in_groups(Part<Number> part, const Sizes& s, const float* x, const Number* matrix, int64_t first, int64_t end,
               float* result) {
  for (int64_t r = 0; r < s.rows; r += together) {
    part(s, std::min(together, s.rows - r), x + r * s.in, matrix, first, end, result + r * s.out);
  }
}

template <typename Number>
void multiply_turned(Part<Number> part, const Sizes& s, const float* x, const Number* matrix, float* result) {
  constexpr int64_t columns = 32;
  for_each(
      ceil_div(s.out, columns),
      [&](int64_t item) {
        in_groups(part, s, x, matrix, item * columns, std::min(s.out, (item + 1) * columns), result);
      },
      s.rows * s.in * s.out);
}

template <typename Number>
void multiply(Part<Number> part, const Sizes& s, const float* x, const Number* matrix, float* result) {
  const int64_t parts = std::clamp<int64_t>(has_openmp() ? omp_get_max_threads() : 1, 1, s.in);
  const int64_t share = ceil_div(s.in, parts), size = s.rows * s.out;
  const at::Tensor others = at::empty({parts - 1, size});
  float* partial = others.mutable_data_ptr<float>();
  for_each(
      parts,
      [&](int64_t item) {
        float* to = item == 0 ? result : partial + (item - 1) * size;
        std::fill_n(to, size, 0.0f);
        const int64_t end = std::min(s.in, (item + 1) * share);
        for (int64_t k = item * share; k < end; k += added) {
          in_groups(part, s, x, matrix, k, std::min(end, k + added), to);
        }
      },
      s.rows * s.in * s.out);
  for (int64_t item = 0; item < parts - 1; ++item) {
    for (int64_t k = 0; k < size; ++k) result[k] += partial[item * size + k];
  }
}

template <typename Number>
void multiply(Part<Number> dots, Part<Number> adds, const Sizes& s, const float* x, const at::Tensor& matrix, bool turned,
              float* result) {
  const Number* numbers = matrix.const_data_ptr<Number>();
  if (!turned) return multiply(adds, s, x, numbers, result);
  if constexpr (parts<Number> == 1) return multiply_turned(dots, s, x, numbers, result);
  const at::Tensor arranged = at::empty({s.rows * s.in});
  float* to = arranged.mutable_data_ptr<float>();
  for (int64_t r = 0; r < s.rows; ++r) arrange<Number>(x + r * s.in, s.in, to + r * s.in);
  multiply_turned(dots, s, to, numbers, result);
}

void multiply(const Sizes& s, const float* x, const at::Tensor& matrix, bool turned, float* result) {
  const auto type = matrix.scalar_type();
  TORCH_CHECK(type == at::kFloat || type == at::kBFloat16 || (type == at::kChar && turned), "a matrix of ", type);
  if (type == at::kFloat) {
    multiply<float>(dots_of_floats, adds_of_floats, s, x, matrix, turned, result);
  } else if (type == at::kBFloat16) {
    multiply<at::BFloat16>(dots_of_bfloats, adds_of_bfloats, s, x, matrix, turned, result);
  } else {
    multiply<int8_t>(dots_of_bytes, nullptr, s, x, matrix, turned, result);
  }
}

// x (rows, in) of float32 or bfloat16 times a matrix (in, out), or (out, in) if it is turned, of these dtypes; a turned one
// may be of int8. The result has x's dtype, or float32, which sums have.
at::Tensor& skinny_matmul(const at::Tensor& x, const at::Tensor& matrix, bool turned, at::Tensor& out) {
  const Sizes s{x.size(0), x.size(1), matrix.size(turned ? 0 : 1)};
  TORCH_CHECK(x.is_contiguous() && matrix.is_contiguous() && out.is_contiguous() &&
                  matrix.size(turned ? 1 : 0) == s.in && s.rows >= 1 && s.rows <= most_rows && s.in >= 1 &&
                  out.dim() == 2 && out.size(0) == s.rows && out.size(1) == s.out,
              "matrices of shapes ", x.sizes(), " and ", matrix.sizes(), " into one of ", out.sizes());
  const bool narrow = x.scalar_type() == at::kBFloat16, rounds = out.scalar_type() == at::kBFloat16;
  TORCH_CHECK((narrow || x.scalar_type() == at::kFloat) && ((narrow && rounds) || out.scalar_type() == at::kFloat),
              "rows of ", x.scalar_type(), " into ", out.scalar_type());
  const int64_t given = x.numel(), made = out.numel();
  const at::Tensor floats = at::empty({(narrow ? given : 0) + (rounds ? made : 0)});
  float* of_x = floats.mutable_data_ptr<float>();
  if (narrow) std::copy_n(x.const_data_ptr<at::BFloat16>(), given, of_x);
  float* result = rounds ? of_x + given : out.mutable_data_ptr<float>();
  multiply(s, narrow ? of_x : x.const_data_ptr<float>(), matrix, turned, result);
  if (rounds) std::copy_n(result, made, out.mutable_data_ptr<at::BFloat16>());
  return out;
}

TORCH_LIBRARY_FRAGMENT(lazy_runtime_kernels, library) {
  library.def("skinny_matmul(Tensor x, Tensor matrix, bool turned, *, Tensor(a!) out) -> Tensor(a!)");
}
TORCH_LIBRARY_IMPL(lazy_runtime_kernels, CPU, library) { library.impl("skinny_matmul", skinny_matmul); }

}  // namespace
