// Attention of a few queries, as a token has that is decoded: keys and values, a cache, are read once and where they lie,
// for all heads of queries that share them. To pack them, as `attention.cpp` does, takes longer than what follows.
//
// As torch's kernel has it, a row whose keys are all masked gives 0, and 0 as the logarithm of its sum.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "attention_rows.h"

namespace {

// Rows of scores that are computed together, and features whose weighted sums stay in registers.
constexpr int64_t together = 4, wide = 4 * lanes;

// Keys whose scores are made before their values are read: those of a few rows stay in a core's first cache.
constexpr int64_t most_keys = 512;

// Scores of `rows` rows, which lie one after another, with keys up to `count`, which is padded to whole vectors.
template <int64_t rows, typename T>
INLINE void scores_of(const float* queries, const T* keys, int64_t by_row, int64_t count, int64_t features, float* scores) {
  for (int64_t k = 0; k < count; k += lanes) {
    for (int64_t r = 0; r < rows; ++r) {
      Vector sums[lanes];
#pragma GCC unroll 16
      for (int64_t i = 0; i < lanes; ++i) {
        const T* key = keys + std::min(k + i, count - 1) * by_row;
        Vector sum{};
        for (int64_t f = 0; f < features; f += lanes) sum += load(queries + r * features + f) * widened(key + f);
        sums[i] = sum;
      }
      store(scores + r * most_keys + k, totals(sums));
    }
  }
}

// Adds the values up to `count`, weighted, to the sums of `rows` rows.
template <int64_t rows, int64_t vectors, typename T>
INLINE void add_values(const float* weights, const T* values, int64_t by_row, int64_t count, int64_t features, float* sums) {
  Vector found[rows][vectors];
#pragma GCC unroll 4
  for (int64_t r = 0; r < rows; ++r) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < vectors; ++v) found[r][v] = load(sums + r * features + v * lanes);
  }
  for (int64_t k = 0; k < count; ++k) {
    Vector value[vectors];
#pragma GCC unroll 4
    for (int64_t v = 0; v < vectors; ++v) value[v] = widened(values + k * by_row + v * lanes);
#pragma GCC unroll 4
    for (int64_t r = 0; r < rows; ++r) {
      const float weight = weights[r * most_keys + k];
#pragma GCC unroll 4
      for (int64_t v = 0; v < vectors; ++v) found[r][v] += weight * value[v];
    }
  }
#pragma GCC unroll 4
  for (int64_t r = 0; r < rows; ++r) {
#pragma GCC unroll 4
    for (int64_t v = 0; v < vectors; ++v) store(sums + r * features + v * lanes, found[r][v]);
  }
}

template <int64_t rows, typename T>
INLINE void all_values(const float* weights, const T* values, int64_t by_row, int64_t count, int64_t features, float* sums) {
  int64_t f = 0;
  for (; f + wide <= features; f += wide) {
    add_values<rows, 4>(weights, values + f, by_row, count, features, sums + f);
  }
  for (; f < features; f += lanes) add_values<rows, 1>(weights, values + f, by_row, count, features, sums + f);
}

#define FOR_ROWS(name, function, T)                                                                                   \
  FOR_EACH_PROCESSOR void name(int64_t rows, const float* given, const T* heads, int64_t by_row, int64_t count,       \
                               int64_t features, float* made) {                                                       \
    switch (rows) {                                                                                                   \
      case 1: return function<1>(given, heads, by_row, count, features, made);                                        \
      case 2: return function<2>(given, heads, by_row, count, features, made);                                        \
      case 3: return function<3>(given, heads, by_row, count, features, made);                                        \
      default: return function<4>(given, heads, by_row, count, features, made);                                       \
    }                                                                                                                 \
  }

FOR_ROWS(score, scores_of, float)
FOR_ROWS(score, scores_of, BFloat16)
FOR_ROWS(weigh_values, all_values, float)
FOR_ROWS(weigh_values, all_values, BFloat16)

template <typename T>
struct FewQueries {
  Heads<const T> query, key, value;
  Heads<T> attended;
  const at::Tensor& logsumexp;
  const std::optional<at::Tensor>& mask;
  int64_t group, queries, keys, features;  // heads of queries that share keys
  bool causal;
  float scale;

  // All rows of the queries that share the keys of a head, a few at a time.
  void compute(int64_t batch, int64_t shared) const {
    for (int64_t first = 0; first < group * queries; first += together) {
      compute_rows(batch, shared, first, std::min(together, group * queries - first));
    }
  }

  void compute_rows(int64_t batch, int64_t shared, int64_t first, int64_t count) const {
    float* rows = scratch(count * (2 * features + most_keys));
    float *sums = rows + count * features, *scores = sums + count * features;
    const auto head = [&](int64_t r) { return shared * group + (first + r) / queries; };
    const auto number = [&](int64_t r) { return (first + r) % queries; };
    for (int64_t r = 0; r < count; ++r) std::copy_n(query.at(batch, head(r), number(r)), features, rows + r * features);
    std::fill_n(sums, count * features, 0.0f);
    Row found[together];
    for (int64_t k = 0; k < keys; k += most_keys) {
      const int64_t here = std::min(most_keys, keys - k);
      score(count, rows, key.at(batch, shared, k), key.by_row, here, features, scores);
      for (int64_t r = 0; r < count; ++r) {
        const int64_t valid = causal ? std::clamp<int64_t>(number(r) + 1 - k, 0, here) : here;
        float* of_row = scores + r * most_keys;
        const float before = weigh(of_row, of_row, valid, rounded_up(here, lanes), scale,
                                   added(mask, batch, head(r), number(r), k), found[r]);
        if (k > 0 && before != 1.0f) multiply(sums + r * features, before, sums + r * features, features);
      }
      weigh_values(count, scores, value.at(batch, shared, k), value.by_row, here, features, sums);
    }
    for (int64_t r = 0; r < count; ++r) {
      const float sum = found[r].sum == 0 ? 1 : found[r].sum;
      multiply(sums + r * features, 1 / sum, attended.at(batch, head(r), number(r)), features);
      float* of_head = logsumexp.data_ptr<float>() + batch * logsumexp.stride(0) + head(r) * logsumexp.stride(1);
      of_head[number(r) * logsumexp.stride(2)] =
          (found[r].largest == -infinity ? 0 : found[r].largest) + std::log(sum);
    }
  }
};

template <typename T>
void attend(const FewQueries<T>& attention, int64_t batch, int64_t shared) {
  const int64_t each = attention.group * attention.queries * attention.keys * attention.features;
  for_each(batch * shared, [&](int64_t item) { attention.compute(item / shared, item % shared); }, batch * shared * each);
}

std::tuple<at::Tensor, at::Tensor> few_queries_attention(const at::Tensor& query, const at::Tensor& key,
                                                         const at::Tensor& value, const std::optional<at::Tensor>& mask,
                                                         bool causal, double scale) {
  const int64_t batch = query.size(0), heads = query.size(1), queries = query.size(2), features = query.size(3);
  const int64_t shared = key.size(1), keys = key.size(2);
  TORCH_CHECK(features % lanes == 0 && key.sizes() == value.sizes() && key.size(0) == batch && shared > 0 && keys > 0 &&
                  heads % shared == 0 && key.size(3) == features,
              "attention of queries ", query.sizes(), ", keys ", key.sizes(), " and values ", value.sizes());
  const auto results = results_for(query);
  const at::Tensor &attended = results.first, &logsumexp = results.second;
  const std::optional<at::Tensor> seen = seen_by_rows(mask, {batch, heads, queries, keys});
  const at::Tensor q = side_by_side(query), k = side_by_side(key), v = side_by_side(value);
  const auto compute = [&](auto zero) {
    using T = decltype(zero);
    attend<T>({Heads<const T>(q), Heads<const T>(k), Heads<const T>(v), Heads<T>(attended), logsumexp, seen,
               heads / shared, queries, keys, features, causal, static_cast<float>(scale)},
              batch, shared);
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
      "few_queries_attention(Tensor query, Tensor key, Tensor value, Tensor? mask, bool causal, float scale) -> "
      "(Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(lazy_runtime_kernels, CPU, library) { library.impl("few_queries_attention", few_queries_attention); }

}  // namespace
