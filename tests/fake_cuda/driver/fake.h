// What the parts of the fake CUDA know of each other: the log, memory, streams and captures.
#pragma once

#include <map>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "card.h"
#include "cuda_headers.h"

namespace fake {

// ---- one lock for all state: PyTorch calls from several threads (autograd, NCCL's watchdog, compilers)

using Guard = std::lock_guard<std::recursive_mutex>;
std::recursive_mutex& state();

// ---- the log (log.cpp): one line a call, `captured <tab> kind <tab> what <tab> details`; calls.py reads it

void record(const std::string& kind, const std::string& what, const std::string& details = "");
// What a real GPU would refuse, or would do wrong without a word.
void record_fault(const std::string& what);

// ---- memory (memory.cpp)

enum class Memory { pageable, device, pinned };
Memory memory_of(const void* pointer);
// Of an operand of a kernel or of a library.
void require_on_device(const char* call, const void* pointer);
// Values are kept of small tensors only, so that large ones cost no memory: what a host reads is small.
constexpr size_t LARGEST_KEPT_BYTES = 1 << 16;

// ---- streams and captures (streams.cpp)

enum class Submitted { now, captured, refused };
// Work of the device: written down, and made a node of the graph where the stream is captured.
Submitted submit(void* stream, const std::string& kind, const std::string& what, const std::string& details = "");
// Of a call that a capture of this thread forbids, as cudaMalloc: true, and the capture is over.
bool breaks_a_capture(const char* call);
// Of a call that this stream must not see while it is captured, as cudaStreamSynchronize: the same.
bool breaks_its_capture(void* stream, const std::string& call);
cudaError_t fail(cudaError_t error);
// The last error of this thread.
cudaError_t& last_error();

// ---- kernels

int& current_device();
std::string demangled(const std::string& name);
// Computes what is tiny and known, so that a host that reads it reads the truth (tiny_kernels.cpp).
void compute_if_tiny(const std::string& name, void** arguments);

}  // namespace fake
