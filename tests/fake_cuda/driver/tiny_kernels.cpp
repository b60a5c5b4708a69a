// The kernels whose result a host asks for while a program is built, computed where they are of few elements: fills, and
// comparisons with a number. torch.optim compares a learning rate that lies on the device with zero. What a kernel is
// stands in its name, and its arguments are those of ATen's elementwise kernels: count, functor, and the operands'
// addresses, the result's first (aten/src/ATen/native/cuda/CUDALoops.cuh).
#include <cstring>

#include "fake.h"

namespace fake {
namespace {

constexpr int FEW_ELEMENTS = 1024;

bool has(const std::string& name, const std::string& part) { return name.find(part) != std::string::npos; }

struct Elementwise {
  int count;
  const char* functor;
  char* const* operands;

  explicit Elementwise(void** arguments)
      : count(*static_cast<int*>(arguments[0])),
        functor(static_cast<const char*>(arguments[1])),
        operands(static_cast<char* const*>(arguments[2])) {}
};

// FillFunctor<Value> holds the value.
void fill(const Elementwise& kernel, size_t bytes_of_value) {
  for (int i = 0; i < kernel.count; i++) memcpy(kernel.operands[0] + i * bytes_of_value, kernel.functor, bytes_of_value);
}

// OpType of aten/src/ATen/native/cuda/CompareKernels.cu, whose lambda holds it, and the number behind it.
enum class Comparison : int { greater_or_equal, greater, less_or_equal, less };

template <typename Value>
void compare(const Elementwise& kernel) {
  struct Functor {
    Comparison comparison;
    Value right;
  } functor;
  memcpy(&functor, kernel.functor, sizeof functor);
  auto holds = [&](Value left) {
    switch (functor.comparison) {
      case Comparison::greater_or_equal:
        return left >= functor.right;
      case Comparison::greater:
        return left > functor.right;
      case Comparison::less_or_equal:
        return left <= functor.right;
      default:
        return left < functor.right;
    }
  };
  auto* result = reinterpret_cast<bool*>(kernel.operands[0]);
  auto* values = reinterpret_cast<const Value*>(kernel.operands[1]);
  for (int i = 0; i < kernel.count; i++) result[i] = holds(values[i]);
}

}  // namespace

void compute_if_tiny(const std::string& name, void** arguments) {
  bool is_vectorized = name.rfind("void at::native::vectorized_elementwise_kernel<", 0) == 0;
  if (!is_vectorized || *static_cast<int*>(arguments[0]) > FEW_ELEMENTS) return;
  Elementwise kernel(arguments);
  if (has(name, "FillFunctor<float>") || has(name, "FillFunctor<int>")) fill(kernel, 4);
  if (has(name, "FillFunctor<double>") || has(name, "FillFunctor<long>")) fill(kernel, 8);
  if (has(name, "FillFunctor<bool>")) fill(kernel, 1);
  if (has(name, "compare_scalar_kernel<float>")) compare<float>(kernel);
  if (has(name, "compare_scalar_kernel<double>")) compare<double>(kernel);
}

}  // namespace fake
