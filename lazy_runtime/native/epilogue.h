// What follows the sums of a convolution's products before they are written.

#pragma once

#include <ATen/core/Tensor.h>

#include <limits>
#include <optional>

#include "blocks.h"

namespace {

struct Epilogue {
  const float *bias, *other;  // or null
  float low, high;            // infinite where nothing bounds

  // Of tensors that outlive it, as they lie: channels last.
  Epilogue(const at::Tensor& bias, const at::Tensor& other, std::optional<double> low, std::optional<double> high)
      : bias(bias.defined() ? bias.const_data_ptr<float>() : nullptr),
        other(other.defined() ? other.const_data_ptr<float>() : nullptr),
        low(low.value_or(-std::numeric_limits<double>::infinity())),
        high(high.value_or(std::numeric_limits<double>::infinity())) {}

  // What becomes of the sum of products `y`, of channel `c` of the result at `at`.
  INLINE void operator()(Vector y, int64_t c, int64_t at, float* results) const {
    if (bias) y += load(bias + c);
    if (other) y += load(other + at);
    y = y < low ? Vector{} + low : y;  // a NaN stays one
    store(results + at, y > high ? Vector{} + high : y);
  }

  INLINE void operator()(float y, int64_t c, int64_t at, float* results) const {
    if (bias) y += bias[c];
    if (other) y += other[at];
    y = y < low ? low : y;
    results[at] = y > high ? high : y;
  }
};

}  // namespace
