// NCCL between processes that each have a device: nothing is sent. Each rank finds what it would if all had its values.
#include <unistd.h>

#include <cstring>

#include "fake.h"

namespace fake {
namespace {

struct Communicator {
  int rank, size;
};

Communicator* communicator_of(ncclComm_t handle) { return reinterpret_cast<Communicator*>(handle); }

size_t bytes_of(ncclDataType_t type) {
  switch (type) {
    case ncclInt8:
    case ncclUint8:
      return 1;
    case ncclFloat16:
    case ncclBfloat16:
      return 2;
    case ncclInt64:
    case ncclUint64:
    case ncclFloat64:
      return 8;
    default:
      return 4;
  }
}

std::string type_word(ncclDataType_t type) {
  switch (type) {
    case ncclFloat16:
      return "f16";
    case ncclBfloat16:
      return "bf16";
    case ncclFloat32:
      return "f32";
    case ncclFloat64:
      return "f64";
    case ncclInt64:
      return "i64";
    default:
      return "ncclDataType" + std::to_string(type);
  }
}

// `times`: how often what is sent stands in what is received.
ncclResult_t collective(const char* call, const void* sent, void* received, size_t count, ncclDataType_t type, int times,
                        ncclComm_t handle, cudaStream_t stream) {
  require_on_device(call, sent);
  require_on_device(call, received);
  std::string details = "count=" + std::to_string(count) + " type=" + type_word(type) +
                        " ranks=" + std::to_string(communicator_of(handle)->size);
  Submitted submitted = submit(stream, "nccl", call, details);
  size_t bytes = count * bytes_of(type);
  if (submitted == Submitted::now && bytes <= LARGEST_KEPT_BYTES)
    for (int i = 0; i < times; i++) memmove(static_cast<char*>(received) + i * bytes, sent, bytes);
  return submitted == Submitted::refused ? ncclUnhandledCudaError : ncclSuccess;
}

ncclResult_t new_communicator(ncclComm_t* handle, int size, int rank) {
  if (breaks_a_capture("ncclCommInitRank")) return ncclUnhandledCudaError;
  record("handle", "ncclCommInitRank", "rank=" + std::to_string(rank) + " ranks=" + std::to_string(size));
  *handle = reinterpret_cast<ncclComm_t>(new Communicator{rank, size});
  return ncclSuccess;
}

}  // namespace
}  // namespace fake

using namespace fake;

EXPORTED ncclResult_t ncclGetVersion(int* version) {
  *version = NCCL_VERSION_CODE;
  return ncclSuccess;
}

EXPORTED ncclResult_t ncclGetUniqueId(ncclUniqueId* id) {
  memset(id, 0, sizeof *id);
  int process = getpid();
  memcpy(id, &process, sizeof process);
  return ncclSuccess;
}

// ---- communicators

EXPORTED ncclResult_t ncclCommInitRank(ncclComm_t* handle, int size, ncclUniqueId, int rank) {
  return new_communicator(handle, size, rank);
}

EXPORTED ncclResult_t ncclCommInitRankConfig(ncclComm_t* handle, int size, ncclUniqueId, int rank, ncclConfig_t*) {
  return new_communicator(handle, size, rank);
}

EXPORTED ncclResult_t ncclCommInitRankScalable(ncclComm_t* handle, int size, int rank, int, ncclUniqueId*, ncclConfig_t*) {
  return new_communicator(handle, size, rank);
}

EXPORTED ncclResult_t ncclCommFinalize(ncclComm_t) { return ncclSuccess; }
EXPORTED ncclResult_t ncclCommAbort(ncclComm_t) { return ncclSuccess; }
EXPORTED ncclResult_t ncclCommDestroy(ncclComm_t) { return ncclSuccess; }

EXPORTED ncclResult_t ncclCommGetAsyncError(ncclComm_t, ncclResult_t* error) {
  *error = ncclSuccess;
  return ncclSuccess;
}

EXPORTED ncclResult_t ncclCommCount(const ncclComm_t handle, int* size) {
  *size = communicator_of(handle)->size;
  return ncclSuccess;
}

EXPORTED ncclResult_t ncclCommUserRank(const ncclComm_t handle, int* rank) {
  *rank = communicator_of(handle)->rank;
  return ncclSuccess;
}

EXPORTED ncclResult_t ncclCommRegister(const ncclComm_t, void*, size_t, void** handle) {
  *handle = nullptr;
  return ncclSuccess;
}
EXPORTED ncclResult_t ncclCommDeregister(const ncclComm_t, void*) { return ncclSuccess; }

EXPORTED ncclResult_t ncclGroupStart() { return ncclSuccess; }
EXPORTED ncclResult_t ncclGroupEnd() { return ncclSuccess; }
EXPORTED const char* ncclGetErrorString(ncclResult_t) { return "an error of the fake NCCL"; }
EXPORTED const char* ncclGetLastError(ncclComm_t) { return ""; }

// ---- what is sent

EXPORTED ncclResult_t ncclAllReduce(const void* sent, void* received, size_t count, ncclDataType_t type, ncclRedOp_t,
                                    ncclComm_t handle, cudaStream_t stream) {
  return collective("ncclAllReduce", sent, received, count, type, 1, handle, stream);
}

EXPORTED ncclResult_t ncclAllGather(const void* sent, void* received, size_t count, ncclDataType_t type, ncclComm_t handle,
                                    cudaStream_t stream) {
  return collective("ncclAllGather", sent, received, count, type, communicator_of(handle)->size, handle, stream);
}

EXPORTED ncclResult_t ncclReduceScatter(const void* sent, void* received, size_t count, ncclDataType_t type, ncclRedOp_t,
                                        ncclComm_t handle, cudaStream_t stream) {
  return collective("ncclReduceScatter", sent, received, count, type, 1, handle, stream);
}

EXPORTED ncclResult_t ncclBroadcast(const void* sent, void* received, size_t count, ncclDataType_t type, int,
                                    ncclComm_t handle, cudaStream_t stream) {
  return collective("ncclBroadcast", sent, received, count, type, 1, handle, stream);
}

EXPORTED ncclResult_t ncclBcast(void* buffer, size_t count, ncclDataType_t type, int, ncclComm_t handle,
                                cudaStream_t stream) {
  return collective("ncclBroadcast", buffer, buffer, count, type, 1, handle, stream);
}
