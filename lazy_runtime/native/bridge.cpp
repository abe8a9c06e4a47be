// Any ATen operator as a custom call inside an XLA:CPU program.
//
// One handler serves all: the operator's name and its static arguments come as one string, XLA's buffers are seen as
// tensors, and torch's dispatcher is called boxed. It exists for operators in which torch's CPU kernels are far ahead of
// XLA's (convolutions: oneDNN) and needs no Python.
//
// The string: "aten::name.overload|result views|argument|argument|...", an argument being
//   t           the next buffer, as it is          a           the next buffer, as channels-last activation
//   n           None                               i7 d0.5 b1  int, double (hexadecimal), bool
//   I1,2,3      list of int                        B1,0        list of bool
//   sTEXT       str
// and the result views one letter per defined result: t, a, or n for an undefined one.

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/from_blob.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "xla/ffi/api/ffi.h"

namespace ffi = xla::ffi;

namespace {

// A handler runs in the caller's thread for small programs and in one of XLA's own for large ones. Whatever modes that
// thread is in (autocast, FakeTensorMode, autograd), the kernel is to see plain CPU tensors: only the CPU's own keys
// stay, and BackendSelect, through which kernels allocate.
class PlainCPU {
 public:
  PlainCPU()
      : guard_(c10::DispatchKeySet(c10::DispatchKey::BackendSelect),
               c10::DispatchKeySet(c10::DispatchKeySet::FULL) - c10::DispatchKeySet(c10::DispatchKey::CPU) -
                   c10::DispatchKeySet(c10::DispatchKey::BackendSelect)) {}

 private:
  c10::impl::ForceDispatchKeyGuard guard_;
};

at::ScalarType scalar_type(ffi::DataType type) {
  switch (type) {
    case ffi::DataType::PRED:
      return at::kBool;
    case ffi::DataType::U8:
      return at::kByte;
    case ffi::DataType::S8:
      return at::kChar;
    case ffi::DataType::S16:
      return at::kShort;
    case ffi::DataType::S32:
      return at::kInt;
    case ffi::DataType::S64:
      return at::kLong;
    case ffi::DataType::F16:
      return at::kHalf;
    case ffi::DataType::BF16:
      return at::kBFloat16;
    case ffi::DataType::F32:
      return at::kFloat;
    case ffi::DataType::F64:
      return at::kDouble;
    case ffi::DataType::C64:
      return at::kComplexFloat;
    case ffi::DataType::C128:
      return at::kComplexDouble;
    default:
      TORCH_CHECK(false, "no tensors of XLA's element type ", static_cast<int>(type));
  }
}

// A tensor over XLA's row-major buffer. An activation comes as (batch, space..., channels) and is seen as torch's
// (batch, channels, space...) in channels_last memory.
at::Tensor view(ffi::AnyBuffer buffer, bool activation) {
  auto dims = buffer.dimensions();
  at::Tensor tensor = at::from_blob(buffer.untyped_data(), at::IntArrayRef(dims.begin(), dims.size()),
                                    at::TensorOptions().dtype(scalar_type(buffer.element_type())));
  return activation ? tensor.movedim(-1, 1) : tensor;
}

std::vector<std::string_view> split(std::string_view text, char separator) {
  std::vector<std::string_view> parts;
  while (true) {
    size_t end = text.find(separator);
    parts.push_back(text.substr(0, end));
    if (end == std::string_view::npos) return parts;
    text.remove_prefix(end + 1);
  }
}

// A parsed call: the arguments, with placeholders where buffers go.
struct Call {
  c10::OperatorHandle op;
  std::string results;
  torch::jit::Stack arguments;
  std::vector<std::pair<size_t, bool>> buffers;  // (argument number, is an activation)
};

Call parse(std::string_view text) {
  auto parts = split(text, '|');
  auto name = split(parts.at(0), '.');
  Call call{c10::Dispatcher::singleton().findSchemaOrThrow(
                std::string(name[0]).c_str(), name.size() > 1 ? std::string(name[1]).c_str() : ""),
            std::string(parts.at(1)),
            {},
            {}};
  for (size_t i = 2; i < parts.size(); ++i) {
    std::string body(parts[i].substr(1));
    auto items = body.empty() ? std::vector<std::string_view>() : split(body, ',');
    switch (parts[i].at(0)) {
      case 't':
      case 'a':
        call.buffers.emplace_back(call.arguments.size(), parts[i][0] == 'a');
        [[fallthrough]];
      case 'n':
        call.arguments.emplace_back();
        break;
      case 'i':
        call.arguments.emplace_back(static_cast<int64_t>(std::stoll(body)));
        break;
      case 'd':
        call.arguments.emplace_back(std::stod(body));
        break;
      case 'b':
        call.arguments.emplace_back(body == "1");
        break;
      case 's':
        call.arguments.emplace_back(body);
        break;
      case 'I': {
        c10::List<int64_t> list;
        for (auto item : items) list.push_back(std::stoll(std::string(item)));
        call.arguments.emplace_back(list);
        break;
      }
      case 'B': {
        c10::List<bool> list;
        for (auto item : items) list.push_back(item == "1");
        call.arguments.emplace_back(list);
        break;
      }
      default:
        TORCH_CHECK(false, "unknown argument ", parts[i], " in ", text);
    }
  }
  return call;
}

const Call& parsed(std::string_view text) {
  static std::mutex mutex;
  static std::unordered_map<std::string, Call> known;
  std::lock_guard<std::mutex> lock(mutex);
  auto found = known.find(std::string(text));
  if (found == known.end()) found = known.emplace(std::string(text), parse(text)).first;
  return found->second;
}

void run(ffi::RemainingArgs buffers, ffi::RemainingRets results, std::string_view text) {
  PlainCPU plain;
  const Call& call = parsed(text);
  torch::jit::Stack stack = call.arguments;
  for (size_t i = 0; i < call.buffers.size(); ++i) {
    stack[call.buffers[i].first] = view(*buffers.get<ffi::AnyBuffer>(i), call.buffers[i].second);
  }
  call.op.callBoxed(stack);
  for (size_t i = 0, next = 0; i < call.results.size(); ++i) {
    if (call.results[i] == 'n') continue;
    view(**results.get<ffi::AnyBuffer>(next++), call.results[i] == 'a').copy_(stack.at(i).toTensor());
  }
}

ffi::Error call(ffi::RemainingArgs buffers, ffi::RemainingRets results, std::string_view text) {
  try {
    run(buffers, results, text);
    return ffi::Error::Success();
  } catch (const c10::Error& error) {
    return ffi::Error::Internal(std::string(text) + ": " + error.what_without_backtrace());
  } catch (const std::exception& error) {
    return ffi::Error::Internal(std::string(text) + ": " + error.what());
  }
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(aten_call, call,
                              ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attr<std::string_view>("call"));
