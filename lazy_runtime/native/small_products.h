// Products of small blocks of matrices whose sums stay in registers, so that what follows a sum costs no second pass over
// the results. For vectors of 512 bits, of which there are 32.

#pragma once

#include <algorithm>

#include "blocks.h"

namespace {

// Columns that are computed together at most.
constexpr int64_t most_columns = 64;

// Rows whose sums, of so many columns, stay in registers: three quarters of these.
constexpr int64_t rows_together(int64_t columns) { return std::min<int64_t>(12, 24 / ceil_div(columns, lanes)); }

// Where the numbers of a product lie: row i of the left matrix has number k at i * row + k * step of `left`, row k of the
// right one begins at k * stride of `right`.
struct Factors {
  const float *left, *right;
  int64_t row, step, stride, depth;
};

// Each sum of a block goes to `finish(sum, i, v)`; of its columns the last vector begins `last` after the first one.
template <int64_t rows, int64_t vectors, typename Finish>
INLINE void multiply_block(const Factors& f, int64_t last, const Finish& finish) {
  Vector sums[rows][vectors] = {};
  const float *left = f.left, *right = f.right;
  for (int64_t k = 0; k < f.depth; ++k, left += f.step, right += f.stride) {
    Vector columns[vectors];
#pragma GCC unroll 4
    for (int64_t v = 0; v < vectors; ++v) columns[v] = load(right + (v + 1 < vectors ? v * lanes : last));
#pragma GCC unroll 12
    for (int64_t i = 0; i < rows; ++i) {
#pragma GCC unroll 4
      for (int64_t v = 0; v < vectors; ++v) sums[i][v] += left[i * f.row] * columns[v];
    }
  }
#pragma GCC unroll 12
  for (int64_t i = 0; i < rows; ++i) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < vectors; ++v) finish(sums[i][v], i, v + 1 < vectors ? v * lanes : last);
  }
}

// All rows. Of a last block that is not full some are computed twice, where there are enough.
template <int64_t vectors, typename Finish>
INLINE void multiply_rows(Factors f, int64_t rows, int64_t last, const Finish& finish) {
  constexpr int64_t together = rows_together(vectors * lanes);
  const float* left = f.left;
  if (rows < together) {
    for (int64_t i = 0; i < rows; ++i) {
      f.left = left + i * f.row;
      multiply_block<1, vectors>(f, last, [&](const Vector& sum, int64_t, int64_t c) { finish(sum, i, c); });
    }
    return;
  }
  for (int64_t from = 0; from < rows; from += together) {
    int64_t first = std::min(from, rows - together);
    f.left = left + first * f.row;
    multiply_block<together, vectors>(f, last, [&](const Vector& sum, int64_t i, int64_t c) {
      if (first + i >= from) finish(sum, first + i, c);
    });
  }
}

// The product of `rows` rows and `columns` columns, 16 to 64: each vector of 16 sums goes to `finish(sum, row, column)`
// once. Where the columns are no multiple of 16, the last two vectors have some in common.
template <typename Finish>
INLINE void multiply(const Factors& f, int64_t rows, int64_t columns, const Finish& finish) {
  int64_t last = columns - lanes;
  switch (ceil_div(columns, lanes)) {
    case 1:
      return multiply_rows<1>(f, rows, last, finish);
    case 2:
      return multiply_rows<2>(f, rows, last, finish);
    case 3:
      return multiply_rows<3>(f, rows, last, finish);
    default:
      return multiply_rows<4>(f, rows, last, finish);
  }
}

}  // namespace
