// A call of an ATen operator as text: "aten::name.overload|result views|argument|argument|...", an argument being
//   t           the next buffer, as it is          a           the next buffer, as channels-last activation
//   x           the next buffer, transposed        o           the next result's buffer, for the kernel to write to
//   h           the next buffer, dimensions 1 and 2 exchanged
//   n           None                               i7 d0.5 b1  int, double (hexadecimal), bool
//   I1,2,3      list of int                        B1,0        list of bool
//   sTEXT       str                            F0.5,1     list of double
//   c0.5,1      complex                        Dfloat32   dtype
//   V           the CPU as device              Lttn       list of tensors, some of them None
//   mfloat32;64;1024           a part of the next buffer: dtype, sizes, where it begins (bytes)
//   pfloat32;64,64,3,3;0       a weight in an order of oneDNN's own (`Packed`): the same
//   w           the next buffer, as a weight that oneDNN's kernels read in the order in which it lies
// and the result views one letter per result, lists of them flattened: t, a, x, h, n for an undefined one, o for one that
// the kernel has written to, or p for a weight in oneDNN's order.
//
// Lines after the first are operators that go on in place, with what came before as their first argument (n).
#pragma once

#include <ATen/core/List.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/ops/scalar_tensor.h>
#include <locale.h>

#include <cstdlib>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "buffers.h"

namespace {

// Where buffers go among the arguments: one letter for a tensor, one for each item of a list.
struct Place {
  size_t argument;
  std::string kinds;
  bool list;
  bool optional;  // a list whose items may be None
  std::optional<Part> part{};
};

// A parsed call: the arguments, with placeholders where buffers go, and what is done in place to its result.
struct Call {
  c10::OperatorHandle op;
  std::string results;
  torch::jit::Stack arguments;
  std::vector<Place> places;
  std::vector<Call> then;
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

// The type of the items of a list whose items may be None, or nothing.
c10::TypePtr optional_items(const c10::OperatorHandle& op, size_t argument) {
  c10::TypePtr type = op.schema().arguments().at(argument).type();
  if (auto optional = type->cast<c10::OptionalType>()) type = optional->getElementType();
  auto list = type->cast<c10::ListType>();
  return list && list->getElementType()->kind() == c10::OptionalType::Kind ? list->getElementType() : nullptr;
}

// A number as Python's float.hex() writes it. std::stod would stop at the point where the user's locale has a comma.
double parse_double(const std::string& text) {
  static const locale_t locale = newlocale(LC_ALL_MASK, "C", nullptr);
  char* end = nullptr;
  double value = strtod_l(text.c_str(), &end, locale);
  TORCH_CHECK(!text.empty() && *end == '\0', "not a number: '", text, "'");
  return value;
}

Call parse(std::string_view text) {
  if (size_t end = text.find('\n'); end != std::string_view::npos) {
    Call call = parse(text.substr(0, end));
    for (auto line : split(text.substr(end + 1), '\n')) call.then.push_back(parse(line));
    return call;
  }
  auto parts = split(text, '|');
  auto name = split(parts.at(0), '.');
  Call call{c10::Dispatcher::singleton().findSchemaOrThrow(std::string(name[0]).c_str(),
                                                           name.size() > 1 ? std::string(name[1]).c_str() : ""),
            std::string(parts.at(1)),
            {},
            {},
            {}};
  for (size_t i = 2; i < parts.size(); ++i) {
    std::string body(parts[i].substr(1));
    auto items = body.empty() ? std::vector<std::string_view>() : split(body, ',');
    auto number = [&](size_t n) { return parse_double(std::string(items.at(n))); };
    size_t argument = call.arguments.size();
    TORCH_CHECK(argument < call.op.schema().arguments().size(), call.op.operator_name(), " takes no argument ",
                parts[i]);
    switch (parts[i].at(0)) {
      case 't':
      case 'a':
      case 'x':
      case 'h':
      case 'o':
      case 'w':
        call.places.push_back({argument, std::string(1, parts[i][0]), false, false});
        [[fallthrough]];
      case 'n':
        call.arguments.emplace_back();
        break;
      case 'm':
      case 'p':
        call.places.push_back({argument, std::string(1, parts[i][0]), false, false, Part::parse(body)});
        call.arguments.emplace_back();
        break;
      case 'L':
        call.places.push_back({argument, body, true, optional_items(call.op, argument) != nullptr});
        call.arguments.emplace_back();
        break;
      case 'i':
        call.arguments.emplace_back(static_cast<int64_t>(std::stoll(body)));
        break;
      case 'd':
        call.arguments.emplace_back(parse_double(body));
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
        if (auto type = optional_items(call.op, argument)) {
          c10::impl::GenericList numbers(type);
          for (int64_t item : list) numbers.push_back(item);
          call.arguments.emplace_back(numbers);
        } else {
          call.arguments.emplace_back(list);
        }
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
  // A boxed kernel takes what lies on the stack, and reads beyond its end where that is too little.
  TORCH_CHECK(call.arguments.size() == call.op.schema().arguments().size(), call.op.operator_name(), " takes ",
              call.op.schema().arguments().size(), " arguments, not ", call.arguments.size());
  return call;
}

const Call& parsed(std::string_view text) {
  // never destroyed: XLA's threads and the kernel thread may still run when a process ends
  static auto& mutex = *new std::mutex;
  static auto& known = *new std::unordered_map<std::string, Call>;
  std::lock_guard<std::mutex> lock(mutex);
  auto found = known.find(std::string(text));
  if (found == known.end()) found = known.emplace(std::string(text), parse(text)).first;
  return found->second;
}

}  // namespace
