// Functions of vectors of floats.

#pragma once

#include <c10/util/BFloat16.h>

#include <cstring>
#include <utility>

#include "blocks.h"

namespace {

using Integers = int32_t __attribute__((vector_size(lanes * sizeof(int32_t)), aligned(4), may_alias));

using Halves = uint16_t __attribute__((vector_size(lanes * sizeof(uint16_t)), aligned(2), may_alias));

// A vector of numbers that follow one another, as floats.
INLINE Vector widened(const float* from) { return load(from); }

INLINE Vector widened(const c10::BFloat16* from) {
  Halves halves;  // a copy: through a reference clang takes them for aligned
  std::memcpy(&halves, from, sizeof(halves));
  const Integers bits = __builtin_convertvector(halves, Integers) << 16;
  return reinterpret_cast<const Vector&>(bits);
}

// e^x for x <= 0, to 1e-7 of it, and 0 where that is no normal number; NaN of NaN. Cephes' polynomial.
INLINE Vector exponential(Vector x) {
  const Vector least = Vector{} - 87.0f;
  Vector bounded = x < least ? least : x;
  Vector shifted = bounded * 1.44269504088896341f + 12582912.0f;  // rounds: 1.5 * 2^23
  Vector n = shifted - 12582912.0f;
  Vector r = bounded - n * 0.693359375f + n * 2.12194440e-4f;
  Vector y = r * 1.9875691500e-4f + 1.3981999507e-3f;
  y = y * r + 8.3334519073e-3f;
  y = y * r + 4.1665795894e-2f;
  y = y * r + 1.6666665459e-1f;
  y = y * r + 5.0000001201e-1f;
  y = y * r * r + r + 1.0f;
  Integers power = (reinterpret_cast<Integers&>(shifted) << 23) + (127 << 23);
  return x < least ? Vector{} : y * reinterpret_cast<Vector&>(power);
}

INLINE Vector magnitude(const Vector& x) {
  const Integers bits = reinterpret_cast<const Integers&>(x) & 0x7fffffff;
  return reinterpret_cast<const Vector&>(bits);
}

// 1 / (1 + e^-x), to 2e-7 of it.
INLINE Vector sigmoid(const Vector& x) {
  const Vector e = exponential(-magnitude(x));
  return (x < 0.0f ? e : Vector{} + 1.0f) / (1.0f + e);
}

// To 3e-7 of it. Cephes' polynomial where the exponential would cancel.
INLINE Vector hyperbolic_tangent(const Vector& x) {
  const Vector y = magnitude(x), e = exponential(-2.0f * y), z = x * x;
  Vector p = z * -5.70498872745e-3f + 2.06390887954e-2f;
  p = p * z - 5.37397155531e-2f;
  p = p * z + 1.33314422036e-1f;
  p = p * z - 3.33332819422e-1f;
  const Vector far = (1.0f - e) / (1.0f + e);
  return y < 0.625f ? p * z * x + x : x < 0.0f ? -far : far;
}

// Lanes of two vectors: the number of each, those of the second counted on from the first's.
template <int... from>
INLINE Vector picked(const Vector& x, const Vector& y, std::integer_sequence<int, from...>) {
#ifdef __clang__
  return __builtin_shufflevector(x, y, from...);
#else
  return __builtin_shuffle(x, y, Integers{from...});
#endif
}

template <int half, int... lane>
INLINE Vector sum_of_halves(const Vector& x, const Vector& y, std::integer_sequence<int, lane...>) {
  constexpr auto first = std::integer_sequence<int, ((lane & half) != 0 ? lanes + lane - half : lane)...>();
  constexpr auto second = std::integer_sequence<int, ((lane & half) != 0 ? lanes + lane : lane + half)...>();
  return picked(x, y, first) + picked(x, y, second);
}

// Lane i becomes the sum of the lanes of vector i: halves of two vectors are added until one is left.
template <int half>
INLINE void add_halves(Vector* x) {
#pragma GCC unroll 8
  for (int i = 0; i < half; ++i) x[i] = sum_of_halves<half>(x[i], x[i + half], std::make_integer_sequence<int, lanes>());
}

INLINE Vector totals(Vector (&x)[lanes]) {
  add_halves<8>(x);
  add_halves<4>(x);
  add_halves<2>(x);
  add_halves<1>(x);
  return x[0];
}

}  // namespace
