// `aten::linear` with what the CPU refuses of a bias.

#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/linear_native.h>

#include <optional>

#include "in_place_checks.h"

namespace {

// For more or fewer than two dimensions torch multiplies, and adds the bias, on any device but the CPU and CUDA: it takes
// a bias of any dtype, and of more dimensions. Those have `addmm`, which does not.
Tensor linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias) {
  const bool adds = bias.has_value() && bias->defined() && x.dim() != 2;
  if (adds && (bias->scalar_type() != x.scalar_type() || bias->dim() != 1) && is_ours(x) && is_ours(*bias)) {
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("aten::linear", "");
    raise_as_on_cpu(op, {x, weight, *bias});
  }
  return at::native::linear(x, weight, bias);
}

}  // namespace
