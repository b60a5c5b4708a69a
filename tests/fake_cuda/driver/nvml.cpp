// A libnvidia-ml.so.1 without a GPU: what pynvml, PyTorch and NCCL ask of it, for the devices of the fake CUDA.
//
// Environment:
//   FAKE_CUDA_CARD     the card, FAKE_CUDA_DEVICES how many of it (card.h). Without the first no driver is there.
//   FAKE_CUDA_MIG=1    each is cut into two slices.
//   FAKE_NVML          what is out of the ordinary, by words with commas between them: `no_energy` is a card without an
//                      energy counter, `exclusive` a compute mode that takes one process at a time, `stranger` another
//                      process on each device, `held_back` clocks that the power limit lowers half of the time.
//
// Types and numbers are those that nvidia-ml-py declares for its calls. All readings are made up: the time is real.
#include <dlfcn.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>

#include "card.h"

using namespace fake;

#define NVML(name, ...) extern "C" __attribute__((visibility("default"))) Status name(__VA_ARGS__)

enum Status {
  SUCCESS = 0,
  INVALID_ARGUMENT = 2,
  NOT_SUPPORTED = 3,
  NOT_FOUND = 6,
  INSUFFICIENT_SIZE = 7,
  DRIVER_NOT_LOADED = 9,
};

constexpr uint64_t RESERVED_BYTES = 600'000'000;  // of the driver, before anybody has a context
constexpr uint64_t STRANGER_BYTES = 1'000'000'000;
constexpr double TICK_S = 0.1;                    // of the energy counter

struct Device {
  int board;
  int slice;  // -1 is the board itself
};

struct Memory {
  unsigned long long total, free, used;
};

struct MemoryV2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};

struct ProcessV1 {
  unsigned pid;
  unsigned long long used;
};

struct Process {  // nvmlProcessInfo_v2_t, and _v3
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};

struct FieldValue {
  unsigned field, scope;
  int64_t timestamp, latency;
  int type;
  int status;
  union {
    double number;
    unsigned long long count;
  } value;
};

struct Temperature {
  unsigned version;
  int sensor;
  int celsius;
};

struct Utilization {
  unsigned gpu, memory;
};

struct PciInfo {
  char bus_legacy[16];
  unsigned domain, bus, device, pci_device, pci_subsystem;
  char bus_id[32];
};

static bool is_so(const char* word) {
  const char* given = getenv("FAKE_NVML");
  return given && ("," + std::string(given) + ",").find("," + std::string(word) + ",") != std::string::npos;
}

// GA100 and the data centers' generations since.
static bool has_mig() { return card().minor == 0 && card().major >= 8; }

static bool is_consumer() { return card().device_name.find("GeForce") != std::string::npos; }

static double now_s() {
  timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec + now.tv_nsec * 1e-9;
}

static double power_watts() { return card().power_limit_watts / 2; }

static Status copy(const std::string& text, char* to, unsigned size) {
  if (text.size() >= size) return INSUFFICIENT_SIZE;
  strcpy(to, text.c_str());
  return SUCCESS;
}

static Device* device_of(int board, int slice) {
  static auto* all = new std::map<std::pair<int, int>, Device>;
  return &all->insert({{board, slice}, {board, slice}}).first->second;
}

// Of this process, by the fake CUDA in it; none where it has none, or no context.
static uint64_t own_bytes(int board) {
  auto used = (uint64_t(*)(int))dlsym(RTLD_DEFAULT, "fake_cuda_used_bytes");
  return used ? used(board) : 0;
}

static uint64_t used_bytes(const Device& device) {
  return RESERVED_BYTES + own_bytes(device.board) + (is_so("stranger") ? STRANGER_BYTES : 0);
}

// ---- the driver

NVML(nvmlInitWithFlags, unsigned) { return getenv("FAKE_CUDA_CARD") ? SUCCESS : DRIVER_NOT_LOADED; }
NVML(nvmlInit_v2) { return nvmlInitWithFlags(0); }
NVML(nvmlInit) { return nvmlInitWithFlags(0); }
NVML(nvmlShutdown) { return SUCCESS; }

extern "C" __attribute__((visibility("default"))) const char* nvmlErrorString(int status) {
  switch (status) {  // in the words of NVML
    case SUCCESS: return "Success";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NOT_FOUND: return "Not Found";
    case INSUFFICIENT_SIZE: return "Insufficient Size";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    default: return "Unknown Error";
  }
}

NVML(nvmlSystemGetDriverVersion, char* text, unsigned size) { return copy("580.00.fake", text, size); }

NVML(nvmlSystemGetCudaDriverVersion_v2, int* version) {
  *version = 13000;
  return SUCCESS;
}

NVML(nvmlDeviceGetCount_v2, unsigned* count) {
  *count = machine_device_count();
  return SUCCESS;
}
NVML(nvmlDeviceGetCount, unsigned* count) { return nvmlDeviceGetCount_v2(count); }

// ---- which device

NVML(nvmlDeviceGetHandleByIndex_v2, unsigned index, Device** found) {
  if ((int)index >= machine_device_count()) return INVALID_ARGUMENT;
  *found = device_of(index, -1);
  return SUCCESS;
}
NVML(nvmlDeviceGetHandleByIndex, unsigned index, Device** found) { return nvmlDeviceGetHandleByIndex_v2(index, found); }

NVML(nvmlDeviceGetHandleByUUID, const char* uuid, Device** found) {
  for (int board = 0; board < machine_device_count(); board++)
    for (int slice = -1; slice < (is_sliced() ? SLICES : 0); slice++) {
      *found = device_of(board, slice);
      if (uuid_text(board, slice) == uuid) return SUCCESS;
    }
  return NOT_FOUND;
}

// The bus in a PCI id of any spelling: `0000:01:00.0`, `00000000:01:00.0`.
NVML(nvmlDeviceGetHandleByPciBusId_v2, const char* bus_id, Device** found) {
  unsigned domain, bus;
  if (sscanf(bus_id, "%x:%x", &domain, &bus) != 2) return INVALID_ARGUMENT;
  if (domain != 0 || bus < 1 || (int)bus > machine_device_count()) return NOT_FOUND;
  *found = device_of(bus - 1, -1);
  return SUCCESS;
}
NVML(nvmlDeviceGetHandleByPciBusId, const char* id, Device** found) { return nvmlDeviceGetHandleByPciBusId_v2(id, found); }

NVML(nvmlDeviceGetIndex, Device* device, unsigned* index) {
  *index = device->slice < 0 ? device->board : device->slice;
  return SUCCESS;
}

NVML(nvmlDeviceGetUUID, Device* device, char* text, unsigned size) { return copy(uuid_text(device->board, device->slice), text, size); }

NVML(nvmlDeviceGetName, Device* device, char* text, unsigned size) { return copy(name_of(device->slice), text, size); }

NVML(nvmlDeviceGetPciInfo_v3, Device* device, PciInfo* info) {
  *info = {};
  info->bus = device->board + 1;
  strcpy(info->bus_legacy, pci_bus_id(device->board).c_str());
  snprintf(info->bus_id, sizeof info->bus_id, "0000%s", info->bus_legacy);  // its domain has eight digits
  return SUCCESS;
}

// ---- slices

NVML(nvmlDeviceGetMigMode, Device* device, unsigned* current, unsigned* pending) {
  if (device->slice >= 0) return INVALID_ARGUMENT;
  if (!has_mig()) return NOT_SUPPORTED;
  *current = *pending = is_sliced();
  return SUCCESS;
}

NVML(nvmlDeviceIsMigDeviceHandle, Device* device, unsigned* is_slice) {
  *is_slice = device->slice >= 0;
  return SUCCESS;
}

NVML(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, Device* slice, Device** board) {
  if (slice->slice < 0) return INVALID_ARGUMENT;
  *board = device_of(slice->board, -1);
  return SUCCESS;
}

NVML(nvmlDeviceGetMaxMigDeviceCount, Device* device, unsigned* count) {
  if (device->slice >= 0) return INVALID_ARGUMENT;
  *count = has_mig() ? 7 : 0;
  return SUCCESS;
}

NVML(nvmlDeviceGetMigDeviceHandleByIndex, Device* board, unsigned index, Device** found) {
  if (board->slice >= 0) return INVALID_ARGUMENT;
  if (!has_mig()) return NOT_SUPPORTED;
  if (!is_sliced() || index >= SLICES) return NOT_FOUND;
  *found = device_of(board->board, index);
  return SUCCESS;
}

// ---- memory and processes

NVML(nvmlDeviceGetMemoryInfo, Device* device, Memory* memory) {
  memory->total = memory_bytes_of(device->slice);
  memory->used = used_bytes(*device);
  memory->free = memory->total - memory->used;
  return SUCCESS;
}

NVML(nvmlDeviceGetMemoryInfo_v2, Device* device, MemoryV2* memory) {
  memory->total = memory_bytes_of(device->slice);
  memory->reserved = RESERVED_BYTES;
  memory->used = used_bytes(*device) - RESERVED_BYTES;
  memory->free = memory->total - memory->used - RESERVED_BYTES;
  return SUCCESS;
}

template <typename P>
static Status processes_of(const Device& device, unsigned* count, P* processes) {
  P found[2] = {};
  unsigned there = 0, room = *count;
  auto add = [&](unsigned pid, uint64_t used) { found[there].pid = pid, found[there++].used = used; };
  if (own_bytes(device.board)) add(getpid(), own_bytes(device.board));
  if (is_so("stranger")) add(1, STRANGER_BYTES);  // process 1 is there on each machine
  *count = there;
  if (there > room) return INSUFFICIENT_SIZE;
  std::copy(found, found + there, processes);
  return SUCCESS;
}

NVML(nvmlDeviceGetComputeRunningProcesses_v3, Device* device, unsigned* count, Process* processes) {
  return processes_of(*device, count, processes);
}
NVML(nvmlDeviceGetComputeRunningProcesses, Device* device, unsigned* count, ProcessV1* processes) {
  return processes_of(*device, count, processes);
}

// ---- readings, which a slice has none of

#define OF_THE_BOARD(device) \
  if ((device)->slice >= 0) return NOT_SUPPORTED

NVML(nvmlDeviceGetTotalEnergyConsumption, Device* device, unsigned long long* millijoules) {
  OF_THE_BOARD(device);
  if (is_so("no_energy")) return NOT_SUPPORTED;
  *millijoules = (uint64_t)(now_s() / TICK_S) * TICK_S * power_watts() * 1000;
  return SUCCESS;
}

NVML(nvmlDeviceGetPowerUsage, Device* device, unsigned* milliwatts) {
  OF_THE_BOARD(device);
  *milliwatts = power_watts() * 1000;
  return SUCCESS;
}

NVML(nvmlDeviceGetEnforcedPowerLimit, Device* device, unsigned* milliwatts) {
  OF_THE_BOARD(device);
  *milliwatts = card().power_limit_watts * 1000;
  return SUCCESS;
}

// By nvmlClockType_t; memory's is made up, as no GPU of tests/made/gpu_specs.py tells it.
NVML(nvmlDeviceGetMaxClockInfo, Device* device, int type, unsigned* mhz) {
  OF_THE_BOARD(device);
  *mhz = type == 2 ? 1200 : (unsigned)(card().clock_hz / 1e6);
  return SUCCESS;
}
NVML(nvmlDeviceGetClockInfo, Device* device, int type, unsigned* mhz) { return nvmlDeviceGetMaxClockInfo(device, type, mhz); }

NVML(nvmlDeviceGetTemperatureV, Device* device, Temperature* temperature) {
  OF_THE_BOARD(device);
  temperature->celsius = 50 + device->board;
  return SUCCESS;
}

NVML(nvmlDeviceGetTemperature, Device* device, int, unsigned* celsius) {
  OF_THE_BOARD(device);
  *celsius = 50 + device->board;
  return SUCCESS;
}

NVML(nvmlDeviceGetUtilizationRates, Device* device, Utilization* percent) {
  OF_THE_BOARD(device);
  *percent = {0, 0};
  return SUCCESS;
}

NVML(nvmlDeviceGetCurrentClocksEventReasons, Device* device, unsigned long long* bits) {
  OF_THE_BOARD(device);
  *bits = is_so("held_back") ? 0x4 : 0;  // the software's power cap
  return SUCCESS;
}
NVML(nvmlDeviceGetCurrentClocksThrottleReasons, Device* device, unsigned long long* bits) {
  return nvmlDeviceGetCurrentClocksEventReasons(device, bits);
}

// Nanoseconds of clocks held back, as a driver of CUDA 13 has them: 74 for power, 75 and 269 to 271 for the rest.
NVML(nvmlDeviceGetFieldValues, Device* device, int count, FieldValue* values) {
  OF_THE_BOARD(device);
  for (FieldValue* value = values; value < values + count; value++) {
    bool is_known = value->field == 74 || value->field == 75 || (value->field >= 269 && value->field <= 271);
    value->status = is_known ? SUCCESS : NOT_SUPPORTED;
    value->type = 3;  // unsigned long long
    value->value.count = value->field == 74 && is_so("held_back") ? (uint64_t)(now_s() * 0.5e9) : 1'000'000;
  }
  return SUCCESS;
}

// ---- what stays the same

NVML(nvmlDeviceGetCudaComputeCapability, Device*, int* major, int* minor) {
  *major = card().major;
  *minor = card().minor;
  return SUCCESS;
}

NVML(nvmlDeviceGetEccMode, Device* device, unsigned* current, unsigned* pending) {
  OF_THE_BOARD(device);
  if (is_consumer()) return NOT_SUPPORTED;
  *current = *pending = 1;
  return SUCCESS;
}

// Made up: no GPU of tests/made/gpu_specs.py says how it is plugged in. Boards take turns on two NUMA nodes.
NVML(nvmlDeviceGetMaxPcieLinkGeneration, Device* device, unsigned* generation) {
  OF_THE_BOARD(device);
  *generation = 4;
  return SUCCESS;
}

NVML(nvmlDeviceGetCurrPcieLinkWidth, Device* device, unsigned* width) {
  OF_THE_BOARD(device);
  *width = 16;
  return SUCCESS;
}

NVML(nvmlDeviceGetMemoryAffinity, Device* device, unsigned count, unsigned long long* nodes, int) {
  OF_THE_BOARD(device);
  std::fill_n(nodes, count, 0);
  nodes[0] = 1 << device->board % 2;
  return SUCCESS;
}

NVML(nvmlDeviceGetComputeMode, Device*, int* mode) {
  *mode = is_so("exclusive") ? 3 : 0;
  return SUCCESS;
}

NVML(nvmlDeviceGetP2PStatus, Device*, Device*, int, int* status) {
  *status = 3;  // not supported: nothing joins them but the bus
  return SUCCESS;
}
NVML(nvmlDeviceGetNvLinkState, Device*, unsigned, unsigned*) { return NOT_SUPPORTED; }
NVML(nvmlDeviceGetNvLinkRemoteDeviceType, Device*, unsigned, unsigned*) { return NOT_SUPPORTED; }
NVML(nvmlDeviceGetNvLinkRemotePciInfo_v2, Device*, unsigned, PciInfo*) { return NOT_SUPPORTED; }
NVML(nvmlDeviceGetGpuFabricInfoV, Device*, void*) { return NOT_SUPPORTED; }
