// One direction of a recurrent layer, forward: all steps in one call. Each thread computes the same features of the hidden
// state in every step, so that its rows of the weight stay in its caches, and meets the others once a step.
//
// Formulas: torch.nn.LSTM, GRU and RNN. The inputs' part of the gates is given.

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <sched.h>
#include <torch/library.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <tuple>

#include "vector_math.h"

namespace {

enum Mode : int64_t { lstm, gru, rnn_tanh, rnn_relu };

constexpr int64_t gates_of[] = {4, 3, 1, 1};
constexpr int64_t reserved_of[] = {5, 4, 0, 0};

// What the threads of a region do before it, all have done after it.
class Barrier {
 public:
  explicit Barrier(int threads) : threads_(threads) {}

  void meet() {
    const int round = round_.load(std::memory_order_relaxed);
    if (arrived_.fetch_add(1, std::memory_order_acq_rel) + 1 == threads_) {
      arrived_.store(0, std::memory_order_relaxed);
      round_.store(round + 1, std::memory_order_release);
      return;
    }
    constexpr int spins = 2000;  // some microseconds; then others may need the core
    for (int i = 0; round_.load(std::memory_order_acquire) == round; ++i) {
      if (i >= spins) sched_yield();
    }
  }

 private:
  const int threads_;
  alignas(64) std::atomic<int> arrived_{0};
  alignas(64) std::atomic<int> round_{0};
};

struct Sizes {
  int64_t steps, batch, features, gates, reserved;
};

struct Layer {
  Sizes s;
  const float *given, *weight, *bias;  // the inputs' gates; bias may be null
  float *output, *cell, *reserve;
};

// Rows of the hidden state and of the weight that are multiplied together.
constexpr int64_t together = 4;

// Products of `rows` rows with rows of the weight that follow one another: each to a place of its own.
template <int64_t rows>
INLINE void product(int64_t features, const float* hidden, const float* weight, float* to, int64_t by_row) {
  Vector sums[lanes] = {};
  for (int64_t k = 0; k < features; k += lanes) {
    Vector numbers[together];
#pragma GCC unroll 4
    for (int64_t c = 0; c < together; ++c) numbers[c] = load(weight + c * features + k);
#pragma GCC unroll 4
    for (int64_t r = 0; r < rows; ++r) {
      const Vector row = load(hidden + r * features + k);
#pragma GCC unroll 4
      for (int64_t c = 0; c < together; ++c) sums[r * together + c] += row * numbers[c];
    }
  }
  const Vector found = totals(sums);
  for (int64_t r = 0; r < rows; ++r) std::copy_n(reinterpret_cast<const float*>(&found) + r * together, together, to + r * by_row);
}

// The hidden state's part of the gates of features `first` to `end`: (batch, gates, features of these).
INLINE void products(const Layer& layer, const float* hidden, int64_t first, int64_t end, float* sums) {
  const Sizes& s = layer.s;
  const int64_t width = end - first, by_row = s.gates * width;
  for (int64_t gate = 0; gate < s.gates; ++gate) {
    for (int64_t f = first; f < end; f += together) {
      const float* weight = layer.weight + (gate * s.features + f) * s.features;
      float* to = sums + gate * width + f - first;
      int64_t r = 0;
      for (; r + together <= s.batch; r += together) {
        product<together>(s.features, hidden + r * s.features, weight, to + r * by_row, by_row);
      }
      for (; r < s.batch; ++r) product<1>(s.features, hidden + r * s.features, weight, to + r * by_row, by_row);
    }
  }
}

// What a step makes of the gates of one vector of features of a row.
template <Mode mode>
INLINE void activate(const Layer& layer, int64_t step, int64_t row, const float* hidden, const float* sums, int64_t width,
                     int64_t f) {
  const Sizes& s = layer.s;
  const int64_t place = step * s.batch + row, here = row * s.features + f;
  const float* given = layer.given + place * s.gates * s.features + f;
  const auto from_hidden = [&](int64_t gate) {
    const Vector sum = load(sums + gate * width);
    return layer.bias == nullptr ? sum : sum + load(layer.bias + gate * s.features + f);
  };
  const auto gate = [&](int64_t number) { return load(given + number * s.features) + from_hidden(number); };
  float* reserve = layer.reserve + place * s.reserved * s.features + f;
  const auto keep = [&](int64_t number, const Vector& x) { store(reserve + number * s.features, x); };
  float* output = layer.output + step * s.batch * s.features + here;
  if constexpr (mode == lstm) {
    const Vector enter = sigmoid(gate(0)), forget = sigmoid(gate(1)), made = hyperbolic_tangent(gate(2));
    const Vector out = sigmoid(gate(3)), cell = forget * load(layer.cell + here) + enter * made;
    store(layer.cell + here, cell);
    store(output, out * hyperbolic_tangent(cell));
    keep(0, enter), keep(1, forget), keep(2, made), keep(3, out), keep(4, cell);
  } else if constexpr (mode == gru) {
    const Vector reset = sigmoid(gate(0)), update = sigmoid(gate(1)), of_hidden = from_hidden(2);
    const Vector made = hyperbolic_tangent(load(given + 2 * s.features) + of_hidden * reset);
    store(output, (load(hidden + here) - made) * update + made);
    keep(0, reset), keep(1, update), keep(2, made), keep(3, of_hidden);
  } else {
    const Vector x = gate(0);
    store(output, mode == rnn_tanh ? hyperbolic_tangent(x) : x <= 0.0f ? Vector{} : x);
  }
}

template <Mode mode>
INLINE void step_of(const Layer& layer, int64_t step, const float* hidden, int64_t first, int64_t end, float* sums) {
  products(layer, hidden, first, end, sums);
  const int64_t width = end - first;
  for (int64_t row = 0; row < layer.s.batch; ++row) {
    const float* of_row = sums + row * layer.s.gates * width;
    for (int64_t f = first; f < end; f += lanes) activate<mode>(layer, step, row, hidden, of_row + f - first, width, f);
  }
}

// Features `first` to `end` of a step's results.
#define STEP(name, mode)                                                                                              \
  FOR_EACH_PROCESSOR void name(const Layer& layer, int64_t step, const float* hidden, int64_t first, int64_t end,     \
                               float* sums) {                                                                         \
    step_of<mode>(layer, step, hidden, first, end, sums);                                                             \
  }

STEP(step_of_lstm, lstm)
STEP(step_of_gru, gru)
STEP(step_of_tanh, rnn_tanh)
STEP(step_of_relu, rnn_relu)

using Step = void (*)(const Layer&, int64_t, const float*, int64_t, int64_t, float*);
constexpr Step steps_of[] = {step_of_lstm, step_of_gru, step_of_tanh, step_of_relu};

// All steps of some features; `memory` is of this thread.
void run_features(Step step, const Layer& layer, const float* start, bool reverse, int64_t first, int64_t end,
                  float* memory, Barrier& barrier) {
  const int64_t size = layer.s.batch * layer.s.features;
  const float* hidden = start;
  for (int64_t i = 0; i < layer.s.steps; ++i) {
    const int64_t number = reverse ? layer.s.steps - 1 - i : i;
    if (first < end) step(layer, number, hidden, first, end, memory);
    barrier.meet();
    hidden = layer.output + number * size;
  }
}

void run(Mode mode, const Layer& layer, const float* start, bool reverse) {
  const Sizes& s = layer.s;
  const int64_t blocks = s.features / lanes, all = s.batch * s.gates * s.features;
  const Step step = steps_of[mode];
  at::Tensor memory = at::empty({all});
  float* sums = memory.mutable_data_ptr<float>();
  const bool alone = all * s.features < divided || !has_openmp() || omp_get_max_threads() == 1;
  Barrier barrier(alone ? 1 : omp_get_max_threads());
  if (alone) return run_features(step, layer, start, reverse, 0, s.features, sums, barrier);
  in_all_threads([&] {
    const int threads = omp_get_num_threads(), thread = omp_get_thread_num();
    if (threads != omp_get_max_threads()) {  // a limit allowed fewer: the first does it all
      Barrier none(1);
      if (thread == 0) run_features(step, layer, start, reverse, 0, s.features, sums, none);
      return;
    }
    const int64_t first = blocks * thread / threads * lanes, end = blocks * (thread + 1) / threads * lanes;
    run_features(step, layer, start, reverse, first, end, sums + s.batch * s.gates * first, barrier);
  });
}

std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor> recurrence(
    int64_t mode, const at::Tensor& gates, const at::Tensor& hidden, const std::optional<at::Tensor>& cell,
    const at::Tensor& weight, const std::optional<at::Tensor>& bias, bool reverse) {
  TORCH_CHECK(mode >= lstm && mode <= rnn_relu && gates.dim() == 3 && hidden.dim() == 2, "a recurrence of mode ", mode);
  const Sizes s{gates.size(0), gates.size(1), hidden.size(1), gates_of[mode], reserved_of[mode]};
  const auto is_dense = [](const at::Tensor& x) { return x.is_contiguous() && x.scalar_type() == at::kFloat; };
  TORCH_CHECK(is_dense(gates) && is_dense(hidden) && is_dense(weight) && s.steps > 0 && s.features > 0 &&
                  s.features % lanes == 0 && gates.size(2) == s.gates * s.features && hidden.size(0) == s.batch &&
                  weight.sizes() == at::IntArrayRef({s.gates * s.features, s.features}) &&
                  (mode == lstm) == cell.has_value() && (!cell || (is_dense(*cell) && cell->sizes() == hidden.sizes())) &&
                  (!bias || (is_dense(*bias) && bias->numel() == s.gates * s.features)),
              "a recurrence of gates ", gates.sizes(), ", hidden states ", hidden.sizes(), " and a weight ", weight.sizes());
  at::Tensor output = at::empty({s.steps, s.batch, s.features});
  at::Tensor last = at::empty({s.batch, s.features}), last_cell = at::empty(cell ? last.sizes() : at::IntArrayRef({0}));
  at::Tensor reserve = at::empty({s.steps, s.batch, s.reserved * s.features});
  if (cell) last_cell.copy_(*cell);
  const Layer layer{s,
                    gates.const_data_ptr<float>(),
                    weight.const_data_ptr<float>(),
                    bias ? bias->const_data_ptr<float>() : nullptr,
                    output.mutable_data_ptr<float>(),
                    last_cell.mutable_data_ptr<float>(),
                    reserve.mutable_data_ptr<float>()};
  if (s.batch > 0) run(static_cast<Mode>(mode), layer, hidden.const_data_ptr<float>(), reverse);
  last.copy_(output.select(0, reverse ? 0 : s.steps - 1));
  return {output, last, last_cell, reserve};
}

TORCH_LIBRARY_FRAGMENT(lazy_runtime_kernels, library) {
  library.def(
      "recurrence(int mode, Tensor gates, Tensor hidden, Tensor? cell, Tensor weight, Tensor? bias, bool reverse) -> "
      "(Tensor, Tensor, Tensor, Tensor)");
}
TORCH_LIBRARY_IMPL(lazy_runtime_kernels, CPU, library) { library.impl("recurrence", recurrence); }

}  // namespace
