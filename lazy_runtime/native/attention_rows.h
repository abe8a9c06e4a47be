// What attention kernels have in common: rows of scores, and the tensors whose heads they read.

#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <utility>

#include "vector_math.h"

namespace {

using at::BFloat16;

int64_t rounded_up(int64_t x, int64_t to) { return ceil_div(x, to) * to; }

constexpr float infinity = std::numeric_limits<float>::infinity();

INLINE Vector column_numbers() {
  Vector numbers;
  for (int64_t lane = 0; lane < lanes; ++lane) numbers[lane] = static_cast<float>(lane);
  return numbers;
}

INLINE float sum_of(const Vector& x) {
  float sum = 0;
  for (int64_t lane = 0; lane < lanes; ++lane) sum += x[lane];
  return sum;
}

INLINE void store_as(float* to, const Vector& x) { store(to, x); }

// Rounded to the nearest, to an even one between two.
INLINE void store_as(BFloat16* to, Vector x) {
  const Integers bits = reinterpret_cast<Integers&>(x);
  const Integers rounded = bits + 0x7fff + ((bits >> 16) & 1);
  Halves halves = __builtin_convertvector((x == x ? rounded : bits | 0x400000) >> 16, Halves);
  std::memcpy(to, &halves, sizeof(halves));  // by a pointer, clang takes them for aligned
}

// What is added to a row of scores: nothing, numbers of a mask, or one number of it for all.
struct Added {
  const void* row = nullptr;
  bool narrow = false, once = false;

  INLINE float at(int64_t column) const {
    return narrow ? static_cast<float>(static_cast<const BFloat16*>(row)[column])
                  : static_cast<const float*>(row)[column];
  }

  // To the scores from a column on, of which so many are valid.
  INLINE void operator()(Vector& x, int64_t column, int64_t count) const {
    if (row == nullptr) return;
    if (once) {
      x += at(0);
    } else if (count < lanes) {
      for (int64_t lane = 0; lane < count; ++lane) x[lane] += at(column + lane);
    } else if (narrow) {
      x += widened(static_cast<const BFloat16*>(row) + column);
    } else {
      x += load(static_cast<const float*>(row) + column);
    }
  }
};

// What is known of a row so far: its largest score, and the sum of e^(score - largest).
struct Row {
  float largest = -infinity, sum = 0;
};

// Makes weights of a block's scores, of which `count` are valid, up to `padded`; returns what the sums before have to be
// multiplied with.
template <typename T>
INLINE float weigh_with(float* scores, T* weights, int64_t count, int64_t padded, float scale, const Added& added,
                        Row& row) {
  const Vector lowest = Vector{} - infinity, numbers = column_numbers();
  Vector largest = lowest;
  for (int64_t c = 0; c < count; c += lanes) {
    Vector x = load(scores + c) * scale;
    added(x, c, count - c);
    x = numbers < Vector{} + static_cast<float>(count - c) ? x : lowest;
    largest = x > largest ? x : largest;
    store(scores + c, x);
  }
  float now = row.largest;
  for (int64_t lane = 0; lane < lanes; ++lane) now = std::max(now, largest[lane]);
  Vector sum{};
  const float base = now == -infinity ? 0 : now;  // all masked, or NaN, which the sum becomes
  const int64_t whole = rounded_up(count, lanes);
  for (int64_t c = 0; c < whole; c += lanes) {
    Vector y = exponential(load(scores + c) - base);
    sum += y;
    store_as(weights + c, y);
  }
  std::fill(weights + whole, weights + std::max(whole, padded), T(0.0f));
  const float before = row.largest == -infinity ? 0.0f : std::exp(row.largest - base);
  row.largest = now;
  row.sum = row.sum * before + sum_of(sum);
  return before;
}

FOR_EACH_PROCESSOR float weigh(float* scores, float* weights, int64_t count, int64_t padded, float scale,
                               const Added& added, Row& row) {
  return weigh_with(scores, weights, count, padded, scale, added, row);
}

FOR_EACH_PROCESSOR float weigh(float* scores, BFloat16* weights, int64_t count, int64_t padded, float scale,
                               const Added& added, Row& row) {
  return weigh_with(scores, weights, count, padded, scale, added, row);
}

template <typename T>
INLINE void multiply_with(const float* row, float factor, T* to, int64_t count) {
  for (int64_t c = 0; c < count; c += lanes) store_as(to + c, load(row + c) * factor);
}

FOR_EACH_PROCESSOR void multiply(const float* row, float factor, float* to, int64_t count) {
  multiply_with(row, factor, to, count);
}

FOR_EACH_PROCESSOR void multiply(const float* row, float factor, BFloat16* to, int64_t count) {
  multiply_with(row, factor, to, count);
}

// A tensor (batch, heads, rows, features) whose features lie side by side.
template <typename T>
struct Heads {
  T* data;
  int64_t by_batch, by_head, by_row;

  explicit Heads(const at::Tensor& tensor)
      : data(static_cast<T*>(tensor.data_ptr())), by_batch(tensor.stride(0)), by_head(tensor.stride(1)),
        by_row(tensor.stride(2)) {}

  T* at(int64_t batch, int64_t head, int64_t row) const {
    return data + batch * by_batch + head * by_head + row * by_row;
  }
};

// What a mask adds to a row of scores from a column on.
inline Added added(const std::optional<at::Tensor>& mask, int64_t batch, int64_t head, int64_t row, int64_t column) {
  if (!mask) return {};
  const int64_t place =
      batch * mask->stride(0) + head * mask->stride(1) + row * mask->stride(2) + column * mask->stride(3);
  const auto* data = static_cast<const char*>(mask->const_data_ptr()) + place * mask->element_size();
  return {data, mask->scalar_type() == at::kBFloat16, mask->stride(3) == 0};
}

// A mask of float32 or bfloat16 as every row of scores sees it.
inline std::optional<at::Tensor> seen_by_rows(const std::optional<at::Tensor>& mask, at::IntArrayRef scores) {
  if (!mask) return std::nullopt;
  TORCH_CHECK(mask->scalar_type() == at::kFloat || mask->scalar_type() == at::kBFloat16, "a mask of ", mask->dtype());
  return (mask->stride(-1) == 1 || mask->size(-1) == 1 ? *mask : mask->contiguous()).expand(scores);
}

// Where attention of these queries writes its results and the logarithms of its sums: heads behind the rows.
inline std::pair<at::Tensor, at::Tensor> results_for(const at::Tensor& query) {
  const int64_t batch = query.size(0), heads = query.size(1), queries = query.size(2), features = query.size(3);
  return {at::empty({batch, queries, heads, features}, query.options()).transpose(1, 2),
          at::empty({batch, queries, heads}, query.options().dtype(at::kFloat)).transpose(1, 2)};
}

inline at::Tensor side_by_side(const at::Tensor& heads) { return heads.stride(3) == 1 ? heads : heads.contiguous(); }

}  // namespace
