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
#include <optional>
#include <tuple>
#include <type_traits>

#include "attention_rows.h"

namespace {

// Of queries and of keys in a block: its scores take 128 KiB.
constexpr int64_t most_queries = 64, most_keys = 512;

// How many columns of a packed matrix lie together, as oneDNN's kernel wants bfloat16.
constexpr int64_t panel = 64;

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
                             added(mask, batch, head, first + r, k), rows[r]);
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

std::tuple<at::Tensor, at::Tensor> attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                             const std::optional<at::Tensor>& mask, bool causal, double scale) {
  const int64_t batch = query.size(0), heads = query.size(1), queries = query.size(2), features = query.size(3);
  const int64_t keys = key.size(2);
  TORCH_CHECK(features % lanes == 0 && key.sizes() == value.sizes() && key.size(0) == batch && key.size(1) == heads &&
                  key.size(3) == features,
              "attention of queries ", query.sizes(), ", keys ", key.sizes(), " and values ", value.sizes());
  const auto results = results_for(query);
  const at::Tensor &attended = results.first, &logsumexp = results.second;
  const std::optional<at::Tensor> seen = seen_by_rows(mask, {batch, heads, queries, keys});
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
