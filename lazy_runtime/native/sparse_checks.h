// What users read of an operator that has no kernel for sparse tensors; `lazy_runtime/errors.py` has the same words.

#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

namespace {

[[noreturn]] void refuse_sparse(const c10::OperatorHandle& op) {
  C10_THROW_ERROR(NotImplementedError,
                  c10::str(toString(op.operator_name()),
                           " is not implemented for sparse tensors on xla: convert them first "
                           "(`x.to_dense()`), or move them to the CPU for this operator (`x.cpu()`)"));
}

}  // namespace
