// Tiles of Winograd's F(4x4, 3x3) and F(3x3, 4x4): what convolutions with filters of 3x3 and the gradients of their filters
// have in common.

#pragma once

#include "blocks.h"

namespace {

constexpr int64_t tile = 4, window = 6, points = window * window;

// B^T d of six rows.
INLINE void into(const Vector* d, Vector* v) {
  Vector even = d[4] - 4.0f * d[2], odd = d[3] - 4.0f * d[1];
  Vector near = d[4] - d[2], far = 2.0f * (d[3] - d[1]);
  v[0] = 4.0f * d[0] - 5.0f * d[2] + d[4];
  v[1] = even + odd;
  v[2] = even - odd;
  v[3] = near + far;
  v[4] = near - far;
  v[5] = 4.0f * d[1] - 5.0f * d[3] + d[5];
}

struct Sizes {
  int64_t batch, height, width, in, out;  // of the images, and channels
  int64_t up, left;                       // padding
  int64_t rows, columns;                  // of the results
  int64_t down, across;                   // tiles

  int64_t tiles() const { return batch * down * across; }
};

// Where a tile lies.
struct Place {
  int64_t image, row, column;  // of its first result

  Place(const Sizes& s, int64_t number)
      : image(number / (s.down * s.across)), row(number / s.across % s.down * tile), column(number % s.across * tile) {}
};

// A tile, as 36 rows of `in` numbers that are `stride` apart.
FOR_EACH_PROCESSOR void transform(const Sizes& s, const float* images, const float* zeros, int64_t number, float* to,
                                  int64_t stride) {
  Place place(s, number);
  const float* from[points];
  for (int64_t i = 0; i < window; ++i) {
    for (int64_t j = 0; j < window; ++j) {
      int64_t row = place.row - s.up + i, column = place.column - s.left + j;
      bool inside = 0 <= row && row < s.height && 0 <= column && column < s.width;
      from[i * window + j] = inside ? images + ((place.image * s.height + row) * s.width + column) * s.in : zeros;
    }
  }
  for (int64_t c = 0; c < s.in; c += lanes) {
    Vector middle[points], d[window], v[window];
    for (int64_t j = 0; j < window; ++j) {
      for (int64_t i = 0; i < window; ++i) d[i] = load(from[i * window + j] + c);
      into(d, v);
      for (int64_t i = 0; i < window; ++i) middle[i * window + j] = v[i];
    }
    for (int64_t i = 0; i < window; ++i) {
      into(middle + i * window, v);
      for (int64_t j = 0; j < window; ++j) store(to + (i * window + j) * stride + c, v[j]);
    }
  }
}

}  // namespace
