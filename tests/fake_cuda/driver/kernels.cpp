// Kernels of the runtime: registered by name when PyTorch's libraries are loaded, written down when they are launched.
#include <cxxabi.h>

#include <algorithm>
#include <cstdlib>
#include <unordered_map>

#include "fake.h"

namespace fake {
namespace {

struct Kernel {
  std::string mangled;
  std::string name;  // demangled at the first launch: there are tens of thousands
};

// By the host's stub, whose address also serves as the kernel's handle.
std::unordered_map<const void*, Kernel>& kernels() {
  static auto* all = new std::unordered_map<const void*, Kernel>;
  return *all;
}

const std::string& name_of(const void* function) {
  static const auto* unknown = new std::string("a kernel that was never registered");
  auto at = kernels().find(function);
  if (at == kernels().end()) return *unknown;
  if (at->second.name.empty()) at->second.name = demangled(at->second.mangled);
  return at->second.name;
}

std::string words_of(dim3 size) {
  return std::to_string(size.x) + "," + std::to_string(size.y) + "," + std::to_string(size.z);
}

cudaError_t launch(const void* function, dim3 grid, dim3 block, size_t shared, void** arguments, void* stream) {
  Guard guard(state());
  const std::string& name = name_of(function);
  std::string details = "grid=" + words_of(grid) + " block=" + words_of(block) + " shared=" + std::to_string(shared);
  switch (submit(stream, "kernel", name, details)) {
    case Submitted::refused:
      return last_error();
    case Submitted::now:
      compute_if_tiny(name, arguments);
      return cudaSuccess;
    default:
      return cudaSuccess;
  }
}

struct Configuration {
  dim3 grid, block;
  size_t shared;
  void* stream;
};
thread_local Configuration configuration;

}  // namespace

std::string demangled(const std::string& name) {
  int status = 0;
  char* text = abi::__cxa_demangle(name.c_str(), nullptr, nullptr, &status);
  std::string found = status == 0 && text ? text : name;
  free(text);
  return found;
}

}  // namespace fake

using namespace fake;

// ---- what nvcc's generated code calls: <<<...>>> pushes a configuration, and the kernel's stub pops it

EXPORTED void** __cudaRegisterFatBinary(void*) {
  static void* handle[8];
  return handle;
}
EXPORTED void __cudaRegisterFatBinaryEnd(void**) {}
EXPORTED void __cudaUnregisterFatBinary(void**) {}
EXPORTED void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
EXPORTED char __cudaInitModule(void**) { return 1; }

EXPORTED void __cudaRegisterFunction(void**, const char* stub, char*, const char* name, int, uint3*, uint3*, dim3*,
                                     dim3*, int*) {
  Guard guard(state());
  kernels()[stub] = {name, ""};
}

EXPORTED unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, struct CUstream_st* stream) {
  configuration = {grid, block, shared, stream};
  return 0;
}

EXPORTED cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
  *grid = configuration.grid;
  *block = configuration.block;
  *shared = configuration.shared;
  *static_cast<void**>(stream) = configuration.stream;
  return cudaSuccess;
}

EXPORTED cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* stub) {
  *kernel = reinterpret_cast<cudaKernel_t>(const_cast<void*>(stub));
  return cudaSuccess;
}

EXPORTED cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments, size_t shared,
                                        cudaStream_t stream) {
  return launch(kernel, grid, block, shared, arguments, stream);
}

// ---- launches

EXPORTED cudaError_t cudaLaunchKernel(const void* function, dim3 grid, dim3 block, void** arguments, size_t shared,
                                      cudaStream_t stream) {
  return launch(function, grid, block, shared, arguments, stream);
}

EXPORTED cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t* how, const void* function, void** arguments) {
  return launch(function, how->gridDim, how->blockDim, how->dynamicSmemBytes, arguments, how->stream);
}

EXPORTED cudaError_t cudaLaunchCooperativeKernel(const void* function, dim3 grid, dim3 block, void** arguments,
                                                 size_t shared, cudaStream_t stream) {
  return launch(function, grid, block, shared, arguments, stream);
}

// ---- what a launcher asks before

EXPORTED cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void*) {
  *attributes = {};
  attributes->maxThreadsPerBlock = 1024;
  attributes->numRegs = 32;
  attributes->binaryVersion = attributes->ptxVersion = 10 * card().major + card().minor;
  attributes->maxDynamicSharedSizeBytes = card().shared_bytes_per_block;
  return cudaSuccess;
}

EXPORTED cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
EXPORTED cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t, cudaFuncAttribute, int, int) { return cudaSuccess; }

// As many as the threads allow: registers and shared memory of a kernel are not known.
EXPORTED cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int threads,
                                                                            size_t, unsigned) {
  *blocks = std::max(1, card().threads_per_multiprocessor / std::max(1, threads));
  return cudaSuccess;
}
EXPORTED cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* function, int threads,
                                                                   size_t shared) {
  return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, function, threads, shared, 0);
}
