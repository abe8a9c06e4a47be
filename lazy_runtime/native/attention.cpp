// Scaled dot-product attention, forward, without the scores in memory: Dao et al., "FlashAttention" (arXiv:2205.14135).
//
// A block of queries at a time meets blocks of keys. Scores and weighted sums are products by oneDNN's kernel for small
// matrices, in bfloat16 too where the processor has such products; between them the scores are in float32 and in a core's
// cache. Torch's own kernel for the CPU uses these products on processors with AMX alone.
//
// As torch's kernel has it, a row whose keys are all masked gives 0, and 0 as the logarithm of its sum.

#include <ATen/core/Tensor.h>
#include <ATen/native/CPUBlas.h>

#if defined(CPUBLAS_BRGEMM_F32F32F32) && defined(CPUBLAS_BRGEMM_BF16BF16F32)  // else the operators are not there

#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <optional>
#include <tuple>
#include <type_traits>

#include "blocks.h"

namespace {

using at::BFloat16;

// Of queries and of keys in a block: its scores take 128 KiB.
constexpr int64_t most_queries = 64, most_keys = 512;

// How many columns of a packed matrix lie together, as oneDNN's kernel wants bfloat16.
constexpr int64_t panel = 64;

using Integers = int32_t __attribute__((vector_size(lanes * sizeof(int32_t)), aligned(4), may_alias));
using Halves = uint16_t __attribute__((vector_size(lanes * sizeof(uint16_t)), aligned(2), may_alias));

int64_t rounded_up(int64_t x, int64_t to) { return ceil_div(x, to) * to; }

constexpr float infinity = std::numeric_limits<float>::infinity();

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
      Halves halves;  // a copy: through a reference clang takes them for aligned
      std::memcpy(&halves, static_cast<const BFloat16*>(row) + column, sizeof(halves));
      Integers bits = __builtin_convertvector(halves, Integers) << 16;
      x += reinterpret_cast<Vector&>(bits);
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

// How many rows of a matrix of this type lie together, number by number.
template <typename T>
constexpr int64_t pairs = sizeof(float) / sizeof(T);

// The keys of a head as a matrix of (features, keys), in panels of keys.
template <typename T>
void pack_keys(const T* from, int64_t by_row, int64_t keys, int64_t features, T* to) {
  for (int64_t first = 0; first < keys; first += panel) {
    const int64_t width = std::min(panel, rounded_up(keys - first, lanes)), count = std::min(width, keys - first);
    T* block = to + first * features;
    for (int64_t f = 0; f < features; f += pairs<T>) {
      T* row = block + f * width;
      for (int64_t k = 0; k < count; ++k)
        std::memcpy(row + k * pairs<T>, from + (first + k) * by_row + f, sizeof(float));
      std::fill(row + count * pairs<T>, row + width * pairs<T>, T(0.0f));
    }
  }
}

// The values of a head as a matrix of (keys, features), in panels of features; `rows` of them with what is padded.
template <typename T>
void pack_values(const T* from, int64_t by_row, int64_t keys, int64_t rows, int64_t features, T* to) {
  for (int64_t first = 0; first < features; first += panel) {
    const int64_t width = std::min(panel, features - first);
    T* block = to + first * rows;
    for (int64_t k = 0; k < rows; ++k) {
      T* row = block + k / pairs<T> * width * pairs<T> + k % pairs<T>;
      const T* source = from + k * by_row + first;
      for (int64_t f = 0; f < width; ++f) row[f * pairs<T>] = k < keys ? source[f] : T(0.0f);
    }
  }
}

template <typename T>
struct Attention {
  Heads<const T> query, key, value;
  Heads<T> attended;
  const at::Tensor& logsumexp;
  const std::optional<at::Tensor>& mask;
  int64_t heads, queries, keys, features;
  bool causal;
  float scale;

  int64_t padded() const { return rounded_up(keys, lanes); }
  int64_t packed() const { return padded() * features; }

  Added added(int64_t batch, int64_t head, int64_t row, int64_t column) const {
    if (!mask) return {};
    const int64_t place =
        batch * mask->stride(0) + head * mask->stride(1) + row * mask->stride(2) + column * mask->stride(3);
    const auto* data = static_cast<const char*>(mask->const_data_ptr()) + place * mask->element_size();
    return {data, mask->scalar_type() == at::kBFloat16, mask->stride(3) == 0};
  }

  void pack(int64_t batch, int64_t head, T* to) const {
    pack_keys(key.at(batch, head, 0), key.by_row, keys, features, to);
    pack_values(value.at(batch, head, 0), value.by_row, keys, padded(), features, to + packed());
  }

  // Some queries of a head whose keys and values are packed.
  void compute(int64_t batch, int64_t head, int64_t first, int64_t count, const T* packed_keys) const {
    const T* packed_values = packed_keys + packed();
    const int64_t width = std::min(most_keys, padded());
    float* scores = scratch(2 * count * width + count * features);
    float* sums = scores + count * width;
    T* weights =
        std::is_same_v<T, float> ? reinterpret_cast<T*>(scores) : reinterpret_cast<T*>(sums + count * features);
    Row rows[most_queries];
    const int64_t end = causal ? std::min(keys, first + count) : keys;
    for (int64_t k = 0; k < end; k += most_keys) {
      const int64_t here = std::min(most_keys, end - k), columns = rounded_up(here, lanes);
      for (int64_t c = 0; c < columns; c += panel) {
        const int64_t lying = std::min(panel, padded() - k - c);  // of the panel, which may reach further
        at::native::cpublas::brgemm(count, lying, features, query.by_row, lying, width, false,
                                    query.at(batch, head, first), packed_keys + (k + c) * features, scores + c);
      }
      for (int64_t r = 0; r < count; ++r) {
        const int64_t valid = causal ? std::clamp<int64_t>(first + r + 1 - k, 0, here) : here;
        float before = weigh(scores + r * width, weights + r * width, valid, columns, scale,
                             added(batch, head, first + r, k), rows[r]);
        if (k > 0 && before != 1.0f) multiply(sums + r * features, before, sums + r * features, features);
      }
      for (int64_t f = 0; f < features; f += panel) {
        const int64_t lying = std::min(panel, features - f);
        at::native::cpublas::brgemm(count, lying, columns, width, lying, features, k > 0, weights,
                                    packed_values + f * padded() + k * lying, sums + f);
      }
    }
    at::native::cpublas::brgemm_release(!std::is_same_v<T, float>);
    float* sums_of_rows = logsumexp.data_ptr<float>() + batch * logsumexp.stride(0) + head * logsumexp.stride(1);
    for (int64_t r = 0; r < count; ++r) {
      const float sum = rows[r].sum == 0 ? 1 : rows[r].sum;
      multiply(sums + r * features, 1 / sum, attended.at(batch, head, first + r), features);
      const float largest = rows[r].largest == -infinity ? 0 : rows[r].largest;
      sums_of_rows[(first + r) * logsumexp.stride(2)] = largest + std::log(sum);
    }
  }
};

template <typename T>
void attend(const Attention<T>& attention, int64_t batch) {
  const int64_t all = batch * attention.heads, both = 2 * attention.packed();
  at::Tensor memory = at::empty({all * both}, at::TensorOptions().dtype(c10::CppTypeToScalarType<T>::value));
  T* packed = memory.mutable_data_ptr<T>();
  for_each(all,
           [&](int64_t item) { attention.pack(item / attention.heads, item % attention.heads, packed + item * both); });
  const int64_t blocks = ceil_div(attention.queries, most_queries), count = ceil_div(attention.queries, blocks);
  for_each(all * blocks, [&](int64_t item) {
    const int64_t head = item / blocks, first = item % blocks * count;
    if (first >= attention.queries) return;
    attention.compute(head / attention.heads, head % attention.heads, first, std::min(count, attention.queries - first),
                      packed + head * both);
  });
}

at::Tensor side_by_side(const at::Tensor& heads) { return heads.stride(3) == 1 ? heads : heads.contiguous(); }

std::tuple<at::Tensor, at::Tensor> attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                             const std::optional<at::Tensor>& mask, bool causal, double scale) {
  const int64_t batch = query.size(0), heads = query.size(1), queries = query.size(2), features = query.size(3);
  const int64_t keys = key.size(2);
  TORCH_CHECK(features % lanes == 0 && key.sizes() == value.sizes() && key.size(0) == batch && key.size(1) == heads &&
                  key.size(3) == features,
              "attention of queries ", query.sizes(), ", keys ", key.sizes(), " and values ", value.sizes());
  at::Tensor attended = at::empty({batch, queries, heads, features}, query.options()).transpose(1, 2);
  at::Tensor logsumexp = at::empty({batch, queries, heads}, query.options().dtype(at::kFloat)).transpose(1, 2);
  std::optional<at::Tensor> seen;
  if (mask) {
    TORCH_CHECK(mask->scalar_type() == at::kFloat || mask->scalar_type() == at::kBFloat16, "a mask of ", mask->dtype());
    seen = (mask->stride(-1) == 1 || mask->size(-1) == 1 ? *mask : mask->contiguous())
               .expand({batch, heads, queries, keys});
  }
  const at::Tensor q = side_by_side(query), k = side_by_side(key), v = side_by_side(value);
  const auto compute = [&](auto zero) {
    using T = decltype(zero);
    attend<T>({Heads<const T>(q), Heads<const T>(k), Heads<const T>(v), Heads<T>(attended), logsumexp, seen, heads,
               queries, keys, features, causal, static_cast<float>(scale)},
              batch);
  };
  if (query.scalar_type() == at::kBFloat16) {
    compute(BFloat16(0.0f));
  } else {
    compute(0.0f);
  }
  return {attended, logsumexp};
}

TORCH_LIBRARY_FRAGMENT(lazy_runtime_kernels, library) {
  library.def(
      "attention(Tensor query, Tensor key, Tensor value, Tensor? mask, bool causal, float scale) -> (Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(lazy_runtime_kernels, CPU, library) { library.impl("attention", attention); }

}  // namespace

#endif
