// Any ATen operator as a custom call inside an XLA:CPU program.
//
// One handler serves all: the operator's name and its static arguments come as one string, XLA's buffers are seen as
// tensors, and torch's dispatcher is called boxed. It exists for operators in which torch's CPU kernels are far ahead of
// XLA's (convolutions: oneDNN) and needs no Python.
//
// The string: "aten::name.overload|result views|argument|argument|...", an argument being
//   t           the next buffer, as it is          a           the next buffer, as channels-last activation
//   x           the next buffer, transposed        o           the next result's buffer, for the kernel to write to
//   n           None                               i7 d0.5 b1  int, double (hexadecimal), bool
//   I1,2,3      list of int                        B1,0        list of bool
//   sTEXT       str                            F0.5,1     list of double
//   c0.5,1      complex                        Dfloat32   dtype
//   V           the CPU as device              Lttn       list of tensors, some of them None
// and the result views one letter per result, lists of them flattened: t, a, n for an undefined one, or o for one that the
// kernel has written to.
//
// A kernel's error goes through XLA as "[aten #NUMBER KIND] message [end] in OPERATOR": which call of the program it was
// (`number`), and which of torch's exceptions. `lazy_runtime/checks.py` raises it again.

#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/List.h>
#include <ATen/core/stack.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/scalar_tensor.h>
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
// stay, BackendSelect, through which kernels allocate, and what a kernel's own temporaries may be (conjugate views,
// sparse tensors).
class PlainCPU {
 public:
  PlainCPU() : guard_(c10::DispatchKeySet(c10::DispatchKey::BackendSelect), excluded()) {}

 private:
  static c10::DispatchKeySet excluded() {
    auto keys = c10::DispatchKeySet(c10::DispatchKeySet::FULL);
    for (auto kept : {c10::DispatchKey::CPU, c10::DispatchKey::BackendSelect, c10::DispatchKey::Conjugate,
                      c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor, c10::DispatchKey::SparseCPU,
                      c10::DispatchKey::SparseCsrCPU, c10::DispatchKey::MkldnnCPU}) {
      keys = keys - c10::DispatchKeySet(kept);
    }
    return keys;
  }

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

// A tensor over XLA's row-major buffer. An activation (`a`) comes as (batch, space..., channels) and is seen as torch's
// (batch, channels, space...) in channels_last memory.
at::Tensor view(ffi::AnyBuffer buffer, char kind) {
  auto dims = buffer.dimensions();
  at::Tensor tensor = at::from_blob(buffer.untyped_data(), at::IntArrayRef(dims.begin(), dims.size()),
                                    at::TensorOptions().dtype(scalar_type(buffer.element_type())));
  return kind == 'a' ? tensor.movedim(-1, 1) : kind == 'x' ? tensor.transpose(-1, -2) : tensor;
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

// Where buffers go among the arguments: one letter for a tensor, one for each item of a list.
struct Place {
  size_t argument;
  std::string kinds;
  bool list;
  bool optional;  // a list whose items may be None
};

// A parsed call: the arguments, with placeholders where buffers go.
struct Call {
  c10::OperatorHandle op;
  std::string results;
  torch::jit::Stack arguments;
  std::vector<Place> places;
};

// A number where the schema wants a tensor is one that does not take part in type promotion, as torch's own parser has it.
c10::IValue wrapped(const c10::OperatorHandle& op, size_t argument, c10::IValue value) {
  c10::TypePtr type = op.schema().arguments().at(argument).type();
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  if (type->kind() != c10::TensorType::Kind || !value.isScalar()) return value;
  at::Tensor tensor = at::scalar_tensor(value.toScalar(), at::TensorOptions().dtype(value.toScalar().type()));
  tensor.unsafeGetTensorImpl()->set_wrapped_number(true);
  return tensor;
}

bool has_optional_items(const c10::OperatorHandle& op, size_t argument) {
  c10::TypePtr type = op.schema().arguments().at(argument).type();
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  auto list = type->cast<c10::ListType>();
  return list && list->getElementType()->kind() == c10::OptionalType::Kind;
}

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
    auto number = [&](size_t n) { return std::stod(std::string(items.at(n))); };
    size_t argument = call.arguments.size();
    switch (parts[i].at(0)) {
      case 't':
      case 'a':
      case 'x':
      case 'o':
        call.places.push_back({argument, std::string(1, parts[i][0]), false, false});
        [[fallthrough]];
      case 'n':
        call.arguments.emplace_back();
        break;
      case 'L':
        call.places.push_back({argument, body, true, has_optional_items(call.op, argument)});
        call.arguments.emplace_back();
        break;
      case 'i':
        call.arguments.emplace_back(static_cast<int64_t>(std::stoll(body)));
        break;
      case 'd':
        call.arguments.emplace_back(std::stod(body));
        break;
      case 'c':
        call.arguments.emplace_back(c10::complex<double>(number(0), number(1)));
        break;
      case 'b':
        call.arguments.emplace_back(body == "1");
        break;
      case 's':
        call.arguments.emplace_back(body);
        break;
      case 'D':
        call.arguments.emplace_back(static_cast<int64_t>(c10::getStringToDtypeMap().at(body)));
        break;
      case 'V':
        call.arguments.emplace_back(c10::Device(c10::kCPU));
        break;
      case 'I': {
        c10::List<int64_t> list;
        for (auto item : items) list.push_back(std::stoll(std::string(item)));
        call.arguments.emplace_back(list);
        break;
      }
      case 'F': {
        c10::List<double> list;
        for (size_t n = 0; n < items.size(); ++n) list.push_back(number(n));
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
    call.arguments.back() = wrapped(call.op, argument, call.arguments.back());
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

// The argument that a place stands for; takes its buffers from `buffers`, beginning with number `next`, and those of
// results from `results`, beginning with number `next_result`.
c10::IValue filled(
    const Place& place, ffi::RemainingArgs& buffers, ffi::RemainingRets& results, size_t& next, size_t& next_result) {
  std::vector<std::optional<at::Tensor>> tensors;
  for (char kind : place.kinds) {
    if (kind == 'n') {
      tensors.emplace_back();
    } else if (kind == 'o') {
      tensors.emplace_back(view(**results.get<ffi::AnyBuffer>(next_result++), kind));
    } else {
      tensors.emplace_back(view(*buffers.get<ffi::AnyBuffer>(next++), kind));
    }
  }
  if (!place.list) return *tensors.at(0);
  if (place.optional) return c10::List<std::optional<at::Tensor>>(tensors);
  c10::List<at::Tensor> list;
  for (auto& tensor : tensors) list.push_back(*tensor);
  return list;
}

void run(ffi::RemainingArgs buffers, ffi::RemainingRets results, std::string_view text) {
  PlainCPU plain;
  const Call& call = parsed(text);
  torch::jit::Stack stack = call.arguments;
  size_t next = 0, next_result = 0;
  for (const Place& place : call.places) {
    stack[place.argument] = filled(place, buffers, results, next, next_result);
  }
  call.op.callBoxed(stack);
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& value : stack) {
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) tensors.push_back(tensor);
    } else {
      tensors.push_back(value.isTensor() ? value.toTensor() : at::Tensor());
    }
  }
  next = 0;
  for (size_t i = 0; i < call.results.size(); ++i) {
    if (call.results[i] == 'n') continue;
    at::Tensor target = view(**results.get<ffi::AnyBuffer>(next++), call.results[i]);
    const at::Tensor& result = tensors.at(i);
    TORCH_CHECK(result.sizes() == target.sizes() && result.scalar_type() == target.scalar_type(), text, " gave ",
                result.scalar_type(), result.sizes(), " where ", target.scalar_type(), target.sizes(),
                " was expected");
    if (call.results[i] != 'o') target.copy_(result);
  }
}

ffi::Error failed(std::string_view text, int64_t number, const char* kind, const char* message) {
  return ffi::Error::Internal("[aten #" + std::to_string(number) + " " + kind + "] " + message + " [end] in " +
                              std::string(text.substr(0, text.find('|'))));
}

ffi::Error call(ffi::RemainingArgs buffers, ffi::RemainingRets results, std::string_view text, int64_t number) {
  try {
    run(buffers, results, text);
    return ffi::Error::Success();
  } catch (const c10::IndexError& error) {
    return failed(text, number, "IndexError", error.what_without_backtrace());
  } catch (const c10::ValueError& error) {
    return failed(text, number, "ValueError", error.what_without_backtrace());
  } catch (const c10::TypeError& error) {
    return failed(text, number, "TypeError", error.what_without_backtrace());
  } catch (const c10::NotImplementedError& error) {
    return failed(text, number, "NotImplementedError", error.what_without_backtrace());
  } catch (const c10::LinAlgError& error) {
    return failed(text, number, "LinAlgError", error.what_without_backtrace());
  } catch (const c10::Error& error) {
    return failed(text, number, "RuntimeError", error.what_without_backtrace());
  } catch (const std::exception& error) {
    return failed(text, number, "RuntimeError", error.what());
  }
}

}  // namespace

XLA_FFI_DEFINE_HANDLER_SYMBOL(aten_call, call,
                              ffi::Ffi::Bind().RemainingArgs().RemainingRets().Attr<std::string_view>("call").Attr<int64_t>("number"));
