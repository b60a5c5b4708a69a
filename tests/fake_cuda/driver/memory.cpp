// Device memory is the host's, taken page by page only where it is touched; copies and fills of small tensors are real.
#include <sys/mman.h>

#include <cstring>

#include "fake.h"

namespace fake {
namespace {

struct Block {
  size_t bytes;
  Memory memory;
  int device;
};

std::map<const char*, Block>& blocks() {
  static auto* all = new std::map<const char*, Block>;
  return *all;
}

std::map<int, size_t>& used_bytes() {
  static auto* of_device = new std::map<int, size_t>;
  return *of_device;
}

std::map<const char*, Block>::iterator block_at(const void* pointer) {
  auto address = static_cast<const char*>(pointer);
  auto next = blocks().upper_bound(address);
  if (next == blocks().begin()) return blocks().end();
  auto at = std::prev(next);
  return address < at->first + at->second.bytes ? at : blocks().end();
}

// Null where the card is full.
void* take(size_t bytes, Memory memory) {
  Guard guard(state());
  size_t at_least_one = bytes ? bytes : 1;
  size_t& used = used_bytes()[current_device()];
  if (memory == Memory::device && used + at_least_one > memory_bytes_of(shown_slice())) return nullptr;
  void* pointer = mmap(nullptr, at_least_one, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (pointer == MAP_FAILED) return nullptr;
  blocks()[static_cast<const char*>(pointer)] = {at_least_one, memory, current_device()};
  if (memory == Memory::device) used += at_least_one;
  return pointer;
}

void give_back(void* pointer) {
  Guard guard(state());
  auto at = blocks().find(static_cast<const char*>(pointer));
  if (at == blocks().end()) return;
  if (at->second.memory == Memory::device) used_bytes()[at->second.device] -= at->second.bytes;
  munmap(pointer, at->second.bytes);
  blocks().erase(at);
}

// Of virtual memory: what a card has of it is apart from where it is seen.
struct Physical {
  size_t bytes;
  int device;
};

Physical* physical_of(CUmemGenericAllocationHandle handle) { return reinterpret_cast<Physical*>(handle); }

const char* word_for(Memory memory) {
  switch (memory) {
    case Memory::device:
      return "device";
    case Memory::pinned:
      return "pinned";
    default:
      return "pageable";
  }
}

std::string direction(const void* to, const void* from) {
  return std::string(word_for(memory_of(from))) + "->" + word_for(memory_of(to));
}

std::string bytes_words(size_t bytes) { return "bytes=" + std::to_string(bytes); }

// The host's own memory is always written: it is read by whoever asked for it, whatever its size.
bool is_kept(const void* to, size_t bytes) { return bytes <= LARGEST_KEPT_BYTES || memory_of(to) != Memory::device; }

cudaError_t copy(void* to, const void* from, size_t bytes, void* stream) {
  bool pageable = memory_of(to) == Memory::pageable || memory_of(from) == Memory::pageable;
  if (pageable && breaks_its_capture(stream, "a copy of pageable memory")) return last_error();
  switch (submit(stream, "copy", direction(to, from), bytes_words(bytes))) {
    case Submitted::refused:
      return last_error();
    case Submitted::now:
      if (is_kept(to, bytes)) memmove(to, from, bytes);
      return cudaSuccess;
    default:
      return cudaSuccess;
  }
}

cudaError_t fill(void* to, int value, size_t bytes, void* stream) {
  switch (submit(stream, "fill", word_for(memory_of(to)), bytes_words(bytes))) {
    case Submitted::refused:
      return last_error();
    case Submitted::now:
      if (is_kept(to, bytes)) memset(to, value, bytes);
      return cudaSuccess;
    default:
      return cudaSuccess;
  }
}

}  // namespace

Memory memory_of(const void* pointer) {
  Guard guard(state());
  auto at = block_at(pointer);
  return at == blocks().end() ? Memory::pageable : at->second.memory;
}

void require_on_device(const char* call, const void* pointer) {
  if (pointer && memory_of(pointer) != Memory::device) record_fault(std::string("host pointer given to ") + call);
}

}  // namespace fake

using namespace fake;

EXPORTED cudaError_t cudaMalloc(void** pointer, size_t bytes) {
  if (breaks_a_capture("cudaMalloc")) return last_error();
  *pointer = take(bytes, Memory::device);
  record("malloc", *pointer ? "cudaMalloc" : "cudaMalloc, out of memory", bytes_words(bytes));
  return *pointer ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}

EXPORTED cudaError_t cudaFree(void* pointer) {
  if (!pointer) return cudaSuccess;
  if (breaks_a_capture("cudaFree")) return last_error();
  record("free", "cudaFree");
  give_back(pointer);
  return cudaSuccess;
}

EXPORTED cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned) {
  if (breaks_a_capture("cudaHostAlloc")) return last_error();
  *pointer = take(bytes, Memory::pinned);
  record("malloc", "cudaHostAlloc", bytes_words(bytes));
  return *pointer ? cudaSuccess : fail(cudaErrorMemoryAllocation);
}

EXPORTED cudaError_t cudaFreeHost(void* pointer) {
  if (pointer && breaks_a_capture("cudaFreeHost")) return last_error();
  give_back(pointer);
  return cudaSuccess;
}

EXPORTED cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
  Guard guard(state());
  *total = memory_bytes_of(shown_slice());
  *free = *total - used_bytes()[current_device()];
  return cudaSuccess;
}

// For the fake NVML. `place`: in the machine.
EXPORTED unsigned long long fake_cuda_used_bytes(int place) {
  Guard guard(state());
  unsigned long long used = 0;
  for (auto [device, bytes] : used_bytes())
    if (visible_devices()[device] == place) used += bytes;
  return used;
}

EXPORTED cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes, const void* pointer) {
  Guard guard(state());
  *attributes = {};
  auto at = block_at(pointer);
  if (at == blocks().end()) {
    attributes->type = cudaMemoryTypeUnregistered;
    return cudaSuccess;
  }
  attributes->type = at->second.memory == Memory::device ? cudaMemoryTypeDevice : cudaMemoryTypeHost;
  attributes->device = at->second.device;
  attributes->devicePointer = const_cast<void*>(pointer);
  attributes->hostPointer = at->second.memory == Memory::device ? nullptr : const_cast<void*>(pointer);
  return cudaSuccess;
}

EXPORTED cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
  if (breaks_a_capture("cudaMemcpy")) return last_error();
  if (cudaError_t error = copy(to, from, bytes, nullptr)) return fail(error);
  record("sync", "cudaMemcpy");
  return cudaSuccess;
}

EXPORTED cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
  return copy(to, from, bytes, stream);
}

EXPORTED cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t stream) {
  return copy(to, from, bytes, stream);
}

EXPORTED cudaError_t cudaMemset(void* to, int value, size_t bytes) { return fill(to, value, bytes, nullptr); }

EXPORTED cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return fill(to, value, bytes, stream);
}

// ---- virtual memory, of which PyTorch makes segments that grow (PYTORCH_ALLOC_CONF=expandable_segments:True)

EXPORTED CUresult cuMemGetAllocationGranularity(size_t* bytes, const CUmemAllocationProp*, CUmemAllocationGranularity_flags) {
  *bytes = 2 << 20;
  return CUDA_SUCCESS;
}

EXPORTED CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
  void* pointer = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  *address = reinterpret_cast<CUdeviceptr>(pointer);
  return pointer == MAP_FAILED ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_SUCCESS;
}

EXPORTED CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
  munmap(reinterpret_cast<void*>(address), bytes);
  return CUDA_SUCCESS;
}

EXPORTED CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* properties,
                              unsigned long long) {
  Guard guard(state());
  int device = properties->location.id;
  size_t& used = used_bytes()[device];
  bool fits = used + bytes <= memory_bytes_of(shown_slice());
  record("malloc", fits ? "cuMemCreate" : "cuMemCreate, out of memory", bytes_words(bytes));
  if (!fits) return CUDA_ERROR_OUT_OF_MEMORY;
  used += bytes;
  *handle = reinterpret_cast<CUmemGenericAllocationHandle>(new Physical{bytes, device});
  return CUDA_SUCCESS;
}

EXPORTED CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  Guard guard(state());
  record("free", "cuMemRelease");
  used_bytes()[physical_of(handle)->device] -= physical_of(handle)->bytes;
  delete physical_of(handle);
  return CUDA_SUCCESS;
}

EXPORTED CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t, CUmemGenericAllocationHandle handle,
                           unsigned long long) {
  Guard guard(state());
  blocks()[reinterpret_cast<const char*>(address)] = {bytes, Memory::device, physical_of(handle)->device};
  return CUDA_SUCCESS;
}

EXPORTED CUresult cuMemSetAccess(CUdeviceptr, size_t, const CUmemAccessDesc*, size_t) { return CUDA_SUCCESS; }

EXPORTED CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  Guard guard(state());
  auto start = reinterpret_cast<const char*>(address);
  blocks().erase(blocks().lower_bound(start), blocks().lower_bound(start + bytes));
  madvise(reinterpret_cast<void*>(address), bytes, MADV_DONTNEED);
  return CUDA_SUCCESS;
}
