// Devices as the runtime and the driver see them: both number their attributes alike.
#include <algorithm>
#include <cstdio>
#include <cstring>

#include "fake.h"

namespace fake {

int& current_device() {
  static thread_local int device = 0;
  return device;
}

namespace {

constexpr int VERSION = CUDA_VERSION;
constexpr int RESERVED_SHARED_BYTES = 1024;  // of each block, by CUDA itself

int device_count() { return int(visible_devices().size()); }

int attribute_of(int attribute, int device) {
  const Card& one = card();
  switch (attribute) {
    case cudaDevAttrMaxThreadsPerBlock:
    case cudaDevAttrMaxBlockDimX:
    case cudaDevAttrMaxBlockDimY:
      return 1024;
    case cudaDevAttrMaxBlockDimZ:
      return 64;
    case cudaDevAttrMaxGridDimX:
      return 2147483647;
    case cudaDevAttrMaxGridDimY:
    case cudaDevAttrMaxGridDimZ:
      return 65535;
    case cudaDevAttrMaxSharedMemoryPerBlock:
      return 49152;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin:
      return one.shared_bytes_per_block;
    case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
      return one.shared_bytes_per_multiprocessor;
    case cudaDevAttrReservedSharedMemoryPerBlock:
      return one.major >= 8 ? RESERVED_SHARED_BYTES : 0;
    case cudaDevAttrWarpSize:
      return 32;
    case cudaDevAttrMaxRegistersPerBlock:
    case cudaDevAttrMaxRegistersPerMultiprocessor:
      return 65536;
    case cudaDevAttrMultiProcessorCount:
      return one.multiprocessors;
    case cudaDevAttrMaxThreadsPerMultiProcessor:
      return one.threads_per_multiprocessor;
    case cudaDevAttrMaxBlocksPerMultiprocessor:
      return one.major >= 8 ? (one.minor == 0 ? 32 : 16) : 16;
    case cudaDevAttrComputeCapabilityMajor:
      return one.major;
    case cudaDevAttrComputeCapabilityMinor:
      return one.minor;
    case cudaDevAttrClockRate:
    case cudaDevAttrMemoryClockRate:
      return int(one.clock_hz / 1e3);
    case cudaDevAttrGlobalMemoryBusWidth:
      // So that a cost model that multiplies width, clock and two finds the card's memory rate.
      return int(one.memory_bytes_per_s * 8 / (2 * one.clock_hz));
    case cudaDevAttrL2CacheSize:
      return int(one.l2_bytes);
    case cudaDevAttrPciBusId:
      return visible_devices()[device] + 1;
    case cudaDevAttrUnifiedAddressing:
    case cudaDevAttrCooperativeLaunch:
    case cudaDevAttrComputePreemptionSupported:
      return 1;
    case cudaDevAttrTextureAlignment:
      return 512;
    default:
      return 0;  // a feature that this device lacks
  }
}

}  // namespace
}  // namespace fake

using namespace fake;

// ---- the runtime

EXPORTED cudaError_t cudaGetDeviceCount(int* count) {
  *count = device_count();
  return *count ? cudaSuccess : fail(cudaErrorNoDevice);
}

EXPORTED cudaError_t cudaGetDevice(int* device) {
  *device = current_device();
  return cudaSuccess;
}

EXPORTED cudaError_t cudaSetDevice(int device) {
  if (device < 0 || device >= device_count()) return fail(cudaErrorInvalidDevice);
  current_device() = device;
  return cudaSuccess;
}

EXPORTED cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
  *value = attribute_of(attribute, device);
  return cudaSuccess;
}

EXPORTED cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
  if (device < 0 || device >= device_count()) return fail(cudaErrorInvalidDevice);
  auto value = [&](cudaDeviceAttr attribute) { return attribute_of(attribute, device); };
  *properties = {};
  snprintf(properties->name, sizeof properties->name, "%s", name_of(shown_slice()).c_str());
  auto uuid = uuid_of(visible_devices()[device], shown_slice());
  memcpy(properties->uuid.bytes, uuid.data(), uuid.size());
  properties->totalGlobalMem = memory_bytes_of(shown_slice());
  properties->major = card().major;
  properties->minor = card().minor;
  properties->multiProcessorCount = card().multiprocessors;
  properties->sharedMemPerBlock = value(cudaDevAttrMaxSharedMemoryPerBlock);
  properties->sharedMemPerBlockOptin = card().shared_bytes_per_block;
  properties->sharedMemPerMultiprocessor = card().shared_bytes_per_multiprocessor;
  properties->reservedSharedMemPerBlock = value(cudaDevAttrReservedSharedMemoryPerBlock);
  properties->regsPerBlock = value(cudaDevAttrMaxRegistersPerBlock);
  properties->regsPerMultiprocessor = value(cudaDevAttrMaxRegistersPerMultiprocessor);
  properties->warpSize = value(cudaDevAttrWarpSize);
  properties->maxThreadsPerBlock = value(cudaDevAttrMaxThreadsPerBlock);
  properties->maxThreadsDim[0] = value(cudaDevAttrMaxBlockDimX);
  properties->maxThreadsDim[1] = value(cudaDevAttrMaxBlockDimY);
  properties->maxThreadsDim[2] = value(cudaDevAttrMaxBlockDimZ);
  properties->maxGridSize[0] = value(cudaDevAttrMaxGridDimX);
  properties->maxGridSize[1] = value(cudaDevAttrMaxGridDimY);
  properties->maxGridSize[2] = value(cudaDevAttrMaxGridDimZ);
  properties->maxThreadsPerMultiProcessor = card().threads_per_multiprocessor;
  properties->maxBlocksPerMultiProcessor = value(cudaDevAttrMaxBlocksPerMultiprocessor);
  properties->l2CacheSize = value(cudaDevAttrL2CacheSize);
  properties->memoryBusWidth = value(cudaDevAttrGlobalMemoryBusWidth);
  properties->textureAlignment = value(cudaDevAttrTextureAlignment);
  properties->memPitch = 2147483647;
  properties->unifiedAddressing = 1;
  properties->cooperativeLaunch = 1;
  properties->pciBusID = value(cudaDevAttrPciBusId);
  return cudaSuccess;
}

EXPORTED cudaError_t cudaDeviceGetPCIBusId(char* text, int length, int device) {
  snprintf(text, length, "%s", pci_bus_id(visible_devices()[device]).c_str());
  return cudaSuccess;
}

EXPORTED cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
  *can = 1;
  return cudaSuccess;
}
EXPORTED cudaError_t cudaDeviceEnablePeerAccess(int, unsigned) { return cudaSuccess; }

EXPORTED cudaError_t cudaDriverGetVersion(int* version) {
  *version = VERSION;
  return cudaSuccess;
}

EXPORTED cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

// ---- errors, in CUDA's own words where a program may look for them

EXPORTED cudaError_t cudaGetLastError() {
  cudaError_t error = last_error();
  last_error() = cudaSuccess;
  return error;
}

EXPORTED cudaError_t cudaPeekAtLastError() { return last_error(); }

EXPORTED const char* cudaGetErrorString(cudaError_t error) {
  switch (error) {
    case cudaSuccess:
      return "no error";
    case cudaErrorMemoryAllocation:
      return "out of memory";
    case cudaErrorNoDevice:
      return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice:
      return "invalid device ordinal";
    case cudaErrorIllegalState:
      return "the operation cannot be performed in the present state";
    case cudaErrorStreamCaptureUnsupported:
      return "operation not permitted when stream is capturing";
    case cudaErrorStreamCaptureInvalidated:
      return "operation failed due to a previous error during capture";
    case cudaErrorStreamCaptureMerge:
      return "operation would result in a merge of separate capture sequences";
    case cudaErrorStreamCaptureUnmatched:
      return "capture was not ended in the same stream as it began";
    case cudaErrorStreamCaptureUnjoined:
      return "capturing stream has unjoined work";
    case cudaErrorStreamCaptureIsolation:
      return "dependency created on uncaptured work in another stream";
    case cudaErrorStreamCaptureImplicit:
      return "operation would make the legacy stream depend on a capturing blocking stream";
    case cudaErrorCapturedEvent:
      return "operation not permitted on an event last recorded in a capturing stream";
    case cudaErrorStreamCaptureWrongThread:
      return "attempt to terminate a thread-local capture sequence from another thread";
    case cudaErrorNotSupported:
      return "operation not supported by the fake CUDA";
    default:
      return "an error that the fake CUDA does not know";
  }
}

EXPORTED const char* cudaGetErrorName(cudaError_t error) { return cudaGetErrorString(error); }

// ---- the driver

EXPORTED CUresult cuInit(unsigned) { return CUDA_SUCCESS; }

EXPORTED CUresult cuDriverGetVersion(int* version) {
  *version = VERSION;
  return CUDA_SUCCESS;
}

EXPORTED CUresult cuDeviceGetCount(int* count) {
  *count = device_count();
  return CUDA_SUCCESS;
}

EXPORTED CUresult cuDeviceGet(CUdevice* device, int place) {
  if (place < 0 || place >= device_count()) return CUDA_ERROR_INVALID_DEVICE;
  *device = place;
  return CUDA_SUCCESS;
}

EXPORTED CUresult cuDeviceGetName(char* text, int length, CUdevice) {
  snprintf(text, length, "%s", name_of(shown_slice()).c_str());
  return CUDA_SUCCESS;
}

EXPORTED CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice device) {
  auto bytes = uuid_of(visible_devices()[device], shown_slice());
  memcpy(uuid->bytes, bytes.data(), bytes.size());
  return CUDA_SUCCESS;
}

EXPORTED CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice) {
  *bytes = memory_bytes_of(shown_slice());
  return CUDA_SUCCESS;
}

EXPORTED CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice device) {
  *value = attribute_of(attribute, device);
  return CUDA_SUCCESS;
}
