// Any ATen operator as a custom call inside an XLA:CPU program.
//
// One handler serves all: the operator's name and its static arguments come as one string, XLA's buffers are seen as
// tensors, and torch's dispatcher is called boxed. It exists for operators in which torch's CPU kernels are far ahead of
// XLA's (convolutions: oneDNN) and needs no Python.
//
// The string: "aten::name.overload|result views|argument|argument|...", an argument being
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
//
// A kernel's error goes through XLA as "[aten #NUMBER KIND] message [end] in OPERATOR": which call of the program it was
// (`number`), and which of torch's exceptions. `lazy_runtime/checks.py` raises it again.

#include <ATen/TensorUtils.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/List.h>
#include <ATen/core/stack.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "xla/ffi/api/ffi.h"

#include "kernel_thread.h"

namespace ffi = xla::ffi;

// What AOTInductor keeps packed weights by. A torch that was built without oneDNN has none of it.
namespace at::native {
__attribute__((weak)) Tensor mkldnn_tensor_from_data_ptr(
    void* memory, IntArrayRef sizes, ScalarType dtype, Device device, const uint8_t* order, int64_t order_bytes);
__attribute__((weak)) void* data_ptr_from_mkldnn(const Tensor& tensor);
__attribute__((weak)) int64_t nbytes_from_mkldnn(const Tensor& tensor);
}  // namespace at::native

namespace {

// A handler runs in the caller's thread for small programs and in one of XLA's own for large ones. Whatever modes that
// thread is in (autocast, FakeTensorMode, autograd), the kernel is to see plain CPU tensors: only the CPU's own keys
// stay, BackendSelect, through which kernels allocate, DeferredInit, where `Offers` waits for that, and what a kernel's
// own temporaries may be (conjugate views, sparse tensors).
class PlainCPU {
 public:
  PlainCPU()
      : guard_(c10::DispatchKeySet({c10::DispatchKey::BackendSelect, c10::DispatchKey::DeferredInit}), excluded()) {}

 private:
  static c10::DispatchKeySet excluded() {
    auto keys = c10::DispatchKeySet(c10::DispatchKeySet::FULL);
    for (auto kept : {c10::DispatchKey::CPU, c10::DispatchKey::BackendSelect, c10::DispatchKey::DeferredInit,
                      c10::DispatchKey::Conjugate, c10::DispatchKey::Negative, c10::DispatchKey::ZeroTensor,
                      c10::DispatchKey::SparseCPU, c10::DispatchKey::SparseCsrCPU, c10::DispatchKey::MkldnnCPU}) {
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
  return kind == 'a'   ? tensor.movedim(-1, 1)
         : kind == 'x' ? tensor.transpose(-1, -2)
         : kind == 'h' ? tensor.transpose(1, 2)
                       : tensor;
}

// Whether two tensors of the same shape lie alike in memory.
bool same_strides(at::IntArrayRef sizes, at::IntArrayRef left, at::IntArrayRef right) {
  for (size_t d = 0; d < sizes.size(); ++d) {
    if (sizes[d] > 1 && left[d] != right[d]) return false;
  }
  return true;
}

// Whether a kernel's result lies where it is wanted, and as it is wanted.
bool is_there(const at::Tensor& result, const at::Tensor& target) {
  return result.layout() == at::kStrided && !result._is_zerotensor() && result.is_conj() == target.is_conj() &&
         result.is_neg() == target.is_neg() && result.data_ptr() == target.data_ptr() &&
         same_strides(result.sizes(), result.strides(), target.strides());
}

bool lies_in(const at::Tensor& tensor, const at::Tensor& memory) {
  if (!tensor.has_storage()) return false;
  const char* start = static_cast<const char*>(memory.data_ptr());
  const char* data = static_cast<const char*>(tensor.storage().data());
  return start <= data && data < start + memory.nbytes();
}

// What tensors over XLA's memory stand on. Where a kernel keeps one beyond the call, in a cache of its own say, that gets a
// copy, since XLA will use the memory for something else.
class Lent {
 public:
  Lent() = default;
  Lent(const Lent&) = delete;
  Lent& operator=(const Lent&) = delete;

  at::Tensor operator()(at::Tensor tensor) {
    storages_.push_back(tensor.storage());
    return tensor;
  }

  ~Lent() {
    for (c10::Storage& storage : storages_) {
      if (storage.use_count() == 1) continue;
      c10::DataPtr copy = c10::GetCPUAllocator()->allocate(storage.nbytes());
      std::memcpy(copy.get(), storage.data(), storage.nbytes());
      storage.set_data_ptr_noswap(std::move(copy));
    }
  }

 private:
  std::vector<c10::Storage> storages_;
};

// Most kernels allocate their results, which would be copied to where XLA wants them, out of fresh pages that the system
// has to clear. While a handler runs a kernel, the first tensor that it allocates in the likeness of a result lies in
// XLA's memory for that. If it was a temporary instead, then the result is elsewhere, and copied after all.
class Offers {
 public:
  Offers(std::vector<at::Tensor> targets, Lent& lent)
      : targets_(std::move(targets)), lent_(lent), before_(current_) {
    current_ = this;
  }
  ~Offers() { current_ = before_; }
  Offers(const Offers&) = delete;
  Offers& operator=(const Offers&) = delete;

  static std::optional<at::Tensor> take(at::IntArrayRef sizes, at::IntArrayRef strides, at::ScalarType dtype) {
    if (current_ == nullptr) return std::nullopt;
    for (at::Tensor& target : current_->targets_) {
      if (target.defined() && target.scalar_type() == dtype && target.sizes() == sizes &&
          same_strides(sizes, target.strides(), strides)) {
        void* memory = std::exchange(target, at::Tensor()).data_ptr();
        return current_->lent_(at::from_blob(memory, sizes, strides, at::TensorOptions().dtype(dtype)));
      }
    }
    return std::nullopt;
  }

 private:
  std::vector<at::Tensor> targets_;  // undefined once they are taken
  Lent& lent_;
  Offers* before_;
  static thread_local Offers* current_;
};

thread_local Offers* Offers::current_ = nullptr;

std::vector<int64_t> strides_of(at::IntArrayRef sizes, at::MemoryFormat format) {
  switch (format) {
    case at::MemoryFormat::ChannelsLast:
      return c10::get_channels_last_strides_2d(sizes);
    case at::MemoryFormat::ChannelsLast3d:
      return c10::get_channels_last_strides_3d(sizes);
    default:
      return at::detail::defaultStrides(sizes);
  }
}

using Dtype = std::optional<at::ScalarType>;
using Layout = std::optional<at::Layout>;
using Device = std::optional<at::Device>;

bool is_plain(Layout layout, Device device) {
  return layout.value_or(at::kStrided) == at::kStrided && device.value_or(at::kCPU).is_cpu();
}

at::Tensor empty(at::IntArrayRef sizes, Dtype dtype, Layout layout, Device device, std::optional<bool> pin,
                 std::optional<at::MemoryFormat> format) {
  if (is_plain(layout, device)) {
    auto strides = strides_of(sizes, format.value_or(at::MemoryFormat::Contiguous));
    if (auto taken = Offers::take(sizes, strides, c10::dtype_or_default(dtype))) return *taken;
  }
  c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::DeferredInit);
  return at::empty(sizes, dtype, layout, device, pin, format);
}

at::Tensor empty_strided(at::IntArrayRef sizes, at::IntArrayRef strides, Dtype dtype, Layout layout, Device device,
                         std::optional<bool> pin) {
  if (is_plain(layout, device)) {
    if (auto taken = Offers::take(sizes, strides, c10::dtype_or_default(dtype))) return *taken;
  }
  c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::DeferredInit);
  return at::empty_strided(sizes, strides, dtype, layout, device, pin);
}

// oneDNN's convolutions allocate nothing at first, and resize that.
const at::Tensor& resize(const at::Tensor& self, at::IntArrayRef sizes, std::optional<at::MemoryFormat> format) {
  if (self.numel() == 0 && self.storage().nbytes() == 0) {
    auto strides = strides_of(sizes, format.value_or(at::MemoryFormat::Contiguous));
    if (auto taken = Offers::take(sizes, strides, self.scalar_type())) {
      self.unsafeGetTensorImpl()->set_storage_keep_dtype(taken->storage());
      self.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides);
      return self;
    }
  }
  c10::impl::ExcludeDispatchKeyGuard below(c10::DispatchKey::DeferredInit);
  return self.resize_(sizes, format);
}

// DeferredInit is there for whoever wants to stand between a factory and its memory; torch itself leaves it free. Only
// the handlers' threads have it switched on.
TORCH_LIBRARY_IMPL(_, DeferredInit, library) { library.fallback(torch::CppFunction::makeFallthrough()); }
TORCH_LIBRARY_IMPL(aten, DeferredInit, library) {
  library.impl("empty.memory_format", empty);
  library.impl("empty_strided", empty_strided);
  library.impl("resize_", resize);
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

// Where in a buffer something lies, and as what.
struct Part {
  at::ScalarType dtype;
  std::vector<int64_t> sizes;
  size_t offset;  // bytes
  std::vector<int64_t> strides{};  // none where it is contiguous

  static Part parse(std::string_view text) {
    auto parts = split(text, ';');
    Part part{c10::getStringToDtypeMap().at(std::string(parts.at(0))), {}, std::stoull(std::string(parts.at(2)))};
    for (auto size : split(parts.at(1), ',')) part.sizes.push_back(std::stoll(std::string(size)));
    if (parts.size() > 3) {
      for (auto stride : split(parts[3], ',')) part.strides.push_back(std::stoll(std::string(stride)));
    }
    return part;
  }

  uint8_t* memory(ffi::AnyBuffer buffer) const { return static_cast<uint8_t*>(buffer.untyped_data()) + offset; }

  at::Tensor view(ffi::AnyBuffer buffer) const {
    const auto options = at::TensorOptions().dtype(dtype);
    if (strides.empty()) return at::from_blob(memory(buffer), sizes, options);
    return at::from_blob(memory(buffer), sizes, strides, options);
  }
};

// A weight as oneDNN's kernels read it, which says itself how it lies: oneDNN's choice depends on the number of threads
// too, and the thread that packs may have another number than the one that compiled. In front is the size of oneDNN's
// description, 0 for a weight in torch's order, then that; the weight follows, aligned as XLA's buffers are.
struct Packed {
  static size_t data_offset(size_t order_bytes) { return (sizeof(uint64_t) + order_bytes + 63) / 64 * 64; }

  static at::Tensor view(const Part& part, ffi::AnyBuffer buffer) {
    uint8_t* memory = part.memory(buffer);
    uint64_t order_bytes;
    std::memcpy(&order_bytes, memory, sizeof(order_bytes));
    uint8_t* data = memory + data_offset(order_bytes);
    if (order_bytes == 0) return at::from_blob(data, part.sizes, at::TensorOptions().dtype(part.dtype));
    return at::native::mkldnn_tensor_from_data_ptr(
        data, part.sizes, part.dtype, c10::Device(c10::kCPU), memory + sizeof(order_bytes), order_bytes);
  }

  static at::Tensor describe(const at::Tensor& packed) {
    static const auto op = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("mkldnn::_get_mkldnn_serialized_md", "")
                               .typed<at::Tensor(const at::Tensor&)>();
    return op.call(packed);
  }

  // Falls back on torch's order where the packed weight takes more than there is.
  static void write(const at::Tensor& plain, const at::Tensor& packed, const at::Tensor& target) {
    at::Tensor order = describe(packed), from = plain.contiguous();
    uint64_t order_bytes = order.numel();
    size_t bytes = at::native::nbytes_from_mkldnn(packed);
    const void* data = at::native::data_ptr_from_mkldnn(packed);
    if (data_offset(order_bytes) + bytes > static_cast<size_t>(target.numel())) {
      order_bytes = 0;
      bytes = from.nbytes();
      data = from.data_ptr();
    }
    TORCH_CHECK(data_offset(order_bytes) + bytes <= static_cast<size_t>(target.numel()), "no room for a weight");
    auto* memory = static_cast<uint8_t*>(target.data_ptr());
    std::memcpy(memory, &order_bytes, sizeof(order_bytes));
    std::memcpy(memory + sizeof(order_bytes), order.data_ptr(), order_bytes);
    std::memcpy(memory + data_offset(order_bytes), data, bytes);
  }
};

// oneDNN's description of a weight in torch's order.
at::Tensor order_of(at::IntArrayRef sizes, at::ScalarType dtype) {
  using Kind = std::pair<std::vector<int64_t>, at::ScalarType>;
  static std::mutex mutex;
  // never destroyed: the kernel thread may still run when a process ends
  static auto& known = *new std::map<Kind, at::Tensor>;
  static const auto give = c10::Dispatcher::singleton()
                               .findSchemaOrThrow("aten::to_mkldnn", "")
                               .typed<at::Tensor(const at::Tensor&, std::optional<at::ScalarType>)>();
  std::lock_guard<std::mutex> lock(mutex);
  at::Tensor& order = known[{sizes.vec(), dtype}];
  if (!order.defined()) order = Packed::describe(give.call(at::empty(sizes, dtype), std::nullopt));
  return order;
}

// A weight in torch's order as oneDNN's kernels read it.
at::Tensor opaque(const at::Tensor& weight) {
  at::Tensor order = order_of(weight.sizes(), weight.scalar_type());
  return at::native::mkldnn_tensor_from_data_ptr(weight.data_ptr(), weight.sizes(), weight.scalar_type(),
                                                 weight.device(), order.data_ptr<uint8_t>(), order.numel());
}

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

Call parse(std::string_view text) {
  if (size_t end = text.find('\n'); end != std::string_view::npos) {
    Call call = parse(text.substr(0, end));
    for (auto line : split(text.substr(end + 1), '\n')) call.then.push_back(parse(line));
    return call;
  }
  auto parts = split(text, '|');
  auto name = split(parts.at(0), '.');
  Call call{c10::Dispatcher::singleton().findSchemaOrThrow(
                std::string(name[0]).c_str(), name.size() > 1 ? std::string(name[1]).c_str() : ""),
            std::string(parts.at(1)),
            {},
            {},
            {}};
  for (size_t i = 2; i < parts.size(); ++i) {
    std::string body(parts[i].substr(1));
    auto items = body.empty() ? std::vector<std::string_view>() : split(body, ',');
    auto number = [&](size_t n) { return std::stod(std::string(items.at(n))); };
    size_t argument = call.arguments.size();
    TORCH_CHECK(argument < call.op.schema().arguments().size(), call.op.operator_name(), " takes no argument ", parts[i]);
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
  static std::mutex mutex;
  static std::unordered_map<std::string, Call> known;
  std::lock_guard<std::mutex> lock(mutex);
  auto found = known.find(std::string(text));
  if (found == known.end()) found = known.emplace(std::string(text), parse(text)).first;
  return found->second;
}

// The argument that a place stands for; takes its buffers from `buffers`, beginning with number `next`, and those of
// results from `results`, beginning with number `next_result`.
c10::IValue filled(const Place& place, ffi::RemainingArgs& buffers, ffi::RemainingRets& results, size_t& next,
                   size_t& next_result, Lent& lent) {
  std::vector<std::optional<at::Tensor>> tensors;
  if (place.part) {
    ffi::AnyBuffer buffer = *buffers.get<ffi::AnyBuffer>(next++);
    return place.kinds == "p" ? Packed::view(*place.part, buffer) : lent(place.part->view(buffer));
  }
  for (char kind : place.kinds) {
    if (kind == 'n') {
      tensors.emplace_back();
    } else if (kind == 'w') {
      tensors.emplace_back(opaque(view(*buffers.get<ffi::AnyBuffer>(next++), 't')));
    } else if (kind == 'o') {
      tensors.emplace_back(lent(view(**results.get<ffi::AnyBuffer>(next_result++), kind)));
    } else {
      tensors.emplace_back(lent(view(*buffers.get<ffi::AnyBuffer>(next++), kind)));
    }
  }
  if (!place.list) return *tensors.at(0);
  if (place.optional) return c10::List<std::optional<at::Tensor>>(tensors);
  c10::List<at::Tensor> list;
  for (auto& tensor : tensors) list.push_back(*tensor);
  return list;
}

// A call with its buffers.
struct Filled {
  const Call& call;
  Lent lent;  // outlives our own references
  torch::jit::Stack stack;
  std::vector<at::Tensor> targets;  // where results are wanted, undefined ones apart
  std::vector<at::Tensor> offered;

  Filled(ffi::RemainingArgs& buffers, ffi::RemainingRets& results, std::string_view text)
      : call(parsed(text)), stack(call.arguments) {
    size_t next = 0, next_result = 0;
    for (const Place& place : call.places) {
      stack[place.argument] = filled(place, buffers, results, next, next_result, lent);
    }
    next = 0;
    for (char kind : call.results) {
      targets.push_back(kind == 'n' ? at::Tensor() : view(**results.get<ffi::AnyBuffer>(next++), kind));
      // torch's attention allocates its results as they lie, and gives transposed views of them
      offered.push_back(kind == 'h' ? targets.back().transpose(1, 2) : targets.back());
    }
  }

  void run();
};

void Filled::run() {
  const at::Tensor first = !stack.empty() && stack[0].isTensor() ? stack[0].toTensor() : at::Tensor();
  {
    Offers offers(offered, lent);
    call.op.callBoxed(stack);
  }
  for (const Call& then : call.then) {
    torch::jit::Stack next = then.arguments;
    next.at(0) = stack.at(0);
    then.op.callBoxed(next);
    stack = std::move(next);
  }
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& value : stack) {
    if (value.isTensorList()) {
      for (const at::Tensor& tensor : value.toTensorVector()) tensors.push_back(tensor);
    } else {
      tensors.push_back(value.isTensor() ? value.toTensor() : at::Tensor());
    }
  }
  std::vector<size_t> elsewhere;
  for (size_t i = 0; i < targets.size(); ++i) {
    const at::Tensor &result = tensors.at(i), &target = targets[i];
    if (!target.defined()) continue;
    TORCH_CHECK(!result.key_set().has(c10::DispatchKey::Python),
                "the kernel gave a tensor of a Python class, which has no memory of its own");
    if (call.results[i] == 'p') {
      Packed::write(first, result, target);
      continue;
    }
    TORCH_CHECK(result.sizes() == target.sizes() && result.scalar_type() == target.scalar_type(),
                call.op.operator_name(), " gave ", result.scalar_type(), result.sizes(), " where ",
                target.scalar_type(), target.sizes(), " was expected");
    if (result.numel() && !is_there(result, target)) elsewhere.push_back(i);
  }
  for (size_t i : elsewhere) {  // a result may lie in what was meant for another one
    for (const at::Tensor& target : targets) {
      if (target.defined() && lies_in(tensors[i], target)) tensors[i] = tensors[i].clone();
    }
  }
  for (size_t i : elsewhere) targets[i].copy_(tensors[i]);
}

ffi::Error failed(const std::string& name, int64_t number, const char* kind, const char* message) {
  return ffi::Error::Internal("[aten #" + std::to_string(number) + " " + kind + "] " + message + " [end] in " + name);
}

// Runs something, and says what it threw.
template <typename Function>
ffi::Error checked(const std::string& name, int64_t number, Function function) {
  try {
    PlainCPU plain;
    function();
    return ffi::Error::Success();
  } catch (const c10::IndexError& error) {
    return failed(name, number, "IndexError", error.what_without_backtrace());
  } catch (const c10::ValueError& error) {
    return failed(name, number, "ValueError", error.what_without_backtrace());
  } catch (const c10::TypeError& error) {
    return failed(name, number, "TypeError", error.what_without_backtrace());
  } catch (const c10::NotImplementedError& error) {
    return failed(name, number, "NotImplementedError", error.what_without_backtrace());
  } catch (const c10::LinAlgError& error) {
    return failed(name, number, "LinAlgError", error.what_without_backtrace());
  } catch (const c10::Error& error) {
    return failed(name, number, "RuntimeError", error.what_without_backtrace());
  } catch (const std::exception& error) {
    return failed(name, number, "RuntimeError", error.what());
  }
}

// What a handler gives: an error or success at once, or a promise of one.
struct Outcome {
  ffi::Error now = ffi::Error::Success();
  std::optional<ffi::Future> later{};
};

Outcome call(int32_t device, ffi::RemainingArgs buffers, ffi::RemainingRets results, std::string_view text,
             int64_t number, bool own_thread) {
  std::string name(text.substr(0, text.find('|')));
  std::shared_ptr<Filled> filled;
  ffi::Error error = checked(name, number, [&] { filled = std::make_shared<Filled>(buffers, results, text); });
  if (error.failure()) return {error};
  auto run = [filled = std::move(filled), name = std::move(name), number]() mutable {
    ffi::Error error = checked(name, number, [&] { filled->run(); });
    filled.reset();  // XLA's memory is not ours any more once it knows
    return error;
  };
  if (!own_thread) return {run()};
  KernelThread& thread = KernelThread::of(device);
  const void* site = text.data();
  if (thread.runs_here(site)) {
    ffi::Error error = run();
    thread.ran(site);
    return {std::move(error)};
  }
  ffi::Promise promise;
  ffi::Future future(promise);
  auto outcome = std::make_shared<ffi::Error>();
  auto then = [outcome, promise]() mutable {
    if (outcome->failure()) {
      promise.SetError(std::move(*outcome));
    } else {
      promise.SetAvailable();  // which carries on with the program
    }
  };
  auto kernel = [run = std::move(run), outcome]() mutable { *outcome = run(); };
  thread.add({site, std::move(kernel), std::move(then)});
  return {ffi::Error::Success(), std::move(future)};
}

}  // namespace

template <ffi::ExecutionStage stage>
struct ffi::ResultEncoding<stage, Outcome> {
  static std::variant<XLA_FFI_Error*, XLA_FFI_Future*> Encode(const XLA_FFI_Api* api, XLA_FFI_ExecutionContext* context,
                                                              Outcome outcome) {
    if (outcome.later) return ResultEncoding<stage, Future>::Encode(api, context, std::move(*outcome.later));
    return ResultEncoding<stage, Error>::Encode(api, context, std::move(outcome.now));
  }
};

XLA_FFI_DEFINE_HANDLER_SYMBOL(aten_call, call,
                              ffi::Ffi::Bind()
                                  .Ctx<ffi::DeviceOrdinal>()
                                  .RemainingArgs()
                                  .RemainingRets()
                                  .Attr<std::string_view>("call")
                                  .Attr<int64_t>("number")
                                  .Attr<bool>("own_thread"));

extern "C" void release_workers() { end_workers(); }
