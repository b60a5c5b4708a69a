// The driver's functions that Triton and PyTorch's launchers of compiled kernels call. Devices are in devices.cpp.
#include <dlfcn.h>
#include <elf.h>

#include <algorithm>
#include <cstring>

#include "fake.h"

namespace fake {
namespace {

// A module is a cubin. Two kernels of one name and one digest are one program.
struct Module {
  std::string code_digest;
};

struct Function {
  std::string name;
  std::string code_digest;
};

constexpr unsigned long long FNV_START = 1469598103934665603ull, FNV_FACTOR = 1099511628211ull;

// Of the machine code alone: the rest of a cubin names the file that it was compiled from.
std::string digest_of_code(const void* image) {
  auto* bytes = static_cast<const char*>(image);
  if (!image || memcmp(bytes, ELFMAG, SELFMAG) != 0) return "unknown";
  auto* header = reinterpret_cast<const Elf64_Ehdr*>(bytes);
  auto* sections = reinterpret_cast<const Elf64_Shdr*>(bytes + header->e_shoff);
  const char* names = bytes + sections[header->e_shstrndx].sh_offset;
  unsigned long long digest = FNV_START;
  for (int i = 0; i < header->e_shnum; i++) {
    if (strncmp(names + sections[i].sh_name, ".text.", 6) != 0) continue;
    for (size_t at = 0; at < sections[i].sh_size; at++)
      digest = (digest ^ static_cast<unsigned char>(bytes[sections[i].sh_offset + at])) * FNV_FACTOR;
  }
  char text[17];
  snprintf(text, sizeof text, "%016llx", digest);
  return text;
}

Function* function_of(CUfunction handle) { return reinterpret_cast<Function*>(handle); }

CUresult launch(CUfunction handle, const unsigned (&grid)[3], const unsigned (&block)[3], unsigned shared, void* stream) {
  auto words = [](const unsigned (&size)[3]) {
    return std::to_string(size[0]) + "," + std::to_string(size[1]) + "," + std::to_string(size[2]);
  };
  std::string details = "grid=" + words(grid) + " block=" + words(block) + " shared=" + std::to_string(shared) +
                        " code=" + function_of(handle)->code_digest;
  Submitted submitted = submit(stream, "kernel", function_of(handle)->name, details);
  return submitted == Submitted::refused ? static_cast<CUresult>(last_error()) : CUDA_SUCCESS;
}

CUcontext context_of(int device) { return reinterpret_cast<CUcontext>(static_cast<intptr_t>(device + 1)); }
int device_of(CUcontext context) { return int(reinterpret_cast<intptr_t>(context)) - 1; }

thread_local bool has_no_context = false;

// PyTorch looks up dozens of functions at once and calls few of them. Which of them this was, only a debugger tells.
CUresult unknown_function() {
  record("stub", "a function of the driver that was looked up by name");
  return CUDA_ERROR_NOT_SUPPORTED;
}

}  // namespace
}  // namespace fake

using namespace fake;

// ---- functions by name

EXPORTED cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                                      cudaDriverEntryPointQueryResult* found) {
  *function = dlsym(RTLD_DEFAULT, name);
  if (!*function) *function = dlsym(RTLD_DEFAULT, (std::string(name) + "_v2").c_str());
  if (!*function) *function = reinterpret_cast<void*>(unknown_function);
  if (found) *found = cudaDriverEntryPointSuccess;
  return cudaSuccess;
}

EXPORTED CUresult cuGetErrorString(CUresult error, const char** text) {
  // Where both have the same error, they number it alike.
  *text = cudaGetErrorString(static_cast<cudaError_t>(error));
  return CUDA_SUCCESS;
}
EXPORTED CUresult cuGetErrorName(CUresult error, const char** text) { return cuGetErrorString(error, text); }

// PyTorch gives it a function that prints the driver's own messages.
EXPORTED CUresult cuLogsRegisterCallback(CUlogsCallback, void*, CUlogsCallbackHandle* handle) {
  *handle = nullptr;
  return CUDA_SUCCESS;
}
EXPORTED CUresult cuLogsUnregisterCallback(CUlogsCallbackHandle) { return CUDA_SUCCESS; }

// ---- contexts: each device has its one, which is there from the beginning

EXPORTED CUresult cuCtxGetCurrent(CUcontext* context) {
  *context = has_no_context ? nullptr : context_of(current_device());
  return CUDA_SUCCESS;
}

EXPORTED CUresult cuCtxSetCurrent(CUcontext context) {
  has_no_context = !context;
  if (context) current_device() = device_of(context);
  return CUDA_SUCCESS;
}

EXPORTED CUresult cuCtxGetDevice(CUdevice* device) {
  *device = current_device();
  return CUDA_SUCCESS;
}

EXPORTED CUresult cuCtxGetLimit(size_t* value, CUlimit) {
  *value = 1 << 20;
  return CUDA_SUCCESS;
}
EXPORTED CUresult cuCtxSetLimit(CUlimit, size_t) { return CUDA_SUCCESS; }

EXPORTED CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
  *context = context_of(device);
  return CUDA_SUCCESS;
}

EXPORTED CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) {
  *flags = 0;
  *active = 1;
  return CUDA_SUCCESS;
}

// ---- modules and kernels

EXPORTED CUresult cuModuleLoadData(CUmodule* module, const void* image) {
  if (breaks_a_capture("cuModuleLoadData")) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  *module = reinterpret_cast<CUmodule>(new Module{digest_of_code(image)});
  return CUDA_SUCCESS;
}

EXPORTED CUresult cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned, CUjit_option*, void**) {
  return cuModuleLoadData(module, image);
}

EXPORTED CUresult cuModuleLoad(CUmodule* module, const char* path) {
  std::string image;
  if (FILE* file = fopen(path, "rb")) {
    char part[1 << 14];
    while (size_t count = fread(part, 1, sizeof part, file)) image.append(part, count);
    fclose(file);
  }
  return image.empty() ? CUDA_ERROR_FILE_NOT_FOUND : cuModuleLoadData(module, image.data());
}

EXPORTED CUresult cuModuleUnload(CUmodule) { return CUDA_SUCCESS; }

EXPORTED CUresult cuModuleGetFunction(CUfunction* function, CUmodule module, const char* name) {
  auto& digest = reinterpret_cast<Module*>(module)->code_digest;
  *function = reinterpret_cast<CUfunction>(new Function{demangled(name), digest});
  return CUDA_SUCCESS;
}

EXPORTED CUresult cuFuncGetAttribute(int* value, CUfunction_attribute attribute, CUfunction) {
  *value = attribute == CU_FUNC_ATTRIBUTE_NUM_REGS                ? 32
           : attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024
                                                                  : 0;
  return CUDA_SUCCESS;
}
EXPORTED CUresult cuFuncSetAttribute(CUfunction, CUfunction_attribute, int) { return CUDA_SUCCESS; }
EXPORTED CUresult cuFuncSetCacheConfig(CUfunction, CUfunc_cache) { return CUDA_SUCCESS; }

EXPORTED CUresult cuLaunchKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                                 unsigned block_y, unsigned block_z, unsigned shared, CUstream stream, void**, void**) {
  return launch(function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, stream);
}

EXPORTED CUresult cuLaunchKernelEx(const CUlaunchConfig* how, CUfunction function, void**, void**) {
  return launch(function, {how->gridDimX, how->gridDimY, how->gridDimZ}, {how->blockDimX, how->blockDimY, how->blockDimZ},
                how->sharedMemBytes, how->hStream);
}

EXPORTED CUresult cuLaunchCooperativeKernel(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                                            unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared,
                                            CUstream stream, void**) {
  return launch(function, {grid_x, grid_y, grid_z}, {block_x, block_y, block_z}, shared, stream);
}

EXPORTED CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, CUfunction, int threads, size_t) {
  *blocks = std::max(1, card().threads_per_multiprocessor / std::max(1, threads));
  return CUDA_SUCCESS;
}

EXPORTED CUresult cuOccupancyMaxActiveClusters(int* clusters, CUfunction, const CUlaunchConfig*) {
  *clusters = 1;
  return CUDA_SUCCESS;
}

EXPORTED CUresult cuTensorMapEncodeTiled(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void* address, const cuuint64_t*,
                                         const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                                         CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  require_on_device("cuTensorMapEncodeTiled", address);
  return CUDA_SUCCESS;
}

// ---- pointers: Triton's launcher asks for each operand whether the device can read it

EXPORTED CUresult cuPointerGetAttribute(void* value, CUpointer_attribute attribute, CUdeviceptr pointer) {
  Memory memory = memory_of(reinterpret_cast<void*>(pointer));
  switch (attribute) {
    case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
      if (pointer && memory == Memory::pageable) {
        record_fault("host pointer given to a compiled kernel");
        return CUDA_ERROR_INVALID_VALUE;
      }
      *static_cast<CUdeviceptr*>(value) = pointer;
      return CUDA_SUCCESS;
    case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
      if (memory == Memory::pageable) return CUDA_ERROR_INVALID_VALUE;
      *static_cast<unsigned*>(value) = memory == Memory::device ? CU_MEMORYTYPE_DEVICE : CU_MEMORYTYPE_HOST;
      return CUDA_SUCCESS;
    default:
      record("stub", "cuPointerGetAttribute", "attribute=" + std::to_string(attribute));
      return CUDA_ERROR_NOT_SUPPORTED;
  }
}
