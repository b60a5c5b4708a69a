"""An autospecced NVML: its real signatures and constants, and two GPUs of one kind."""

import os
from types import FunctionType, SimpleNamespace
from typing import Any
from unittest.mock import create_autospec

import pynvml

NOT_SUPPORTED = pynvml.NVMLError(pynvml.NVML_ERROR_NOT_SUPPORTED)
UUIDS = ["GPU-11111111-aaaa", "GPU-22222222-bbbb"]
CLOCKS_MHZ = {pynvml.NVML_CLOCK_SM: 1410, pynvml.NVML_CLOCK_MEM: 1215}
MAX_CLOCKS_MHZ = {pynvml.NVML_CLOCK_SM: 1980, pynvml.NVML_CLOCK_MEM: 2619}


def process(pid: int, used_bytes: int | None) -> SimpleNamespace:
    return SimpleNamespace(pid=pid, usedGpuMemory=used_bytes)


def counter(field: int, nanoseconds: int, status: int = pynvml.NVML_SUCCESS) -> Any:
    """An answer of nvmlDeviceGetFieldValues, in NVML's own structure."""
    answer = pynvml.c_nvmlFieldValue_t(fieldId=field, nvmlReturn=status)
    answer.valueType = pynvml.NVML_VALUE_TYPE_UNSIGNED_LONG_LONG
    answer.value.ullVal = nanoseconds
    return answer


class Nvml:
    """pynvml's constants and classes as they are, and its functions with their signatures, made when one is asked for:
    a mock of all of them takes half a second."""

    def __getattr__(self, name: str) -> Any:
        real = getattr(pynvml, name)
        setattr(self, name, create_autospec(real) if isinstance(real, FunctionType) else real)
        return vars(self)[name]


def two_gpus() -> Any:
    """Handles are their indices. The process's own context is on both."""
    mock: Any = Nvml()
    mock.nvmlDeviceGetCount.return_value = 2
    mock.nvmlDeviceGetHandleByIndex.side_effect = lambda index: index
    mock.nvmlDeviceGetUUID.side_effect = lambda handle: UUIDS[handle]
    mock.nvmlDeviceGetIndex.side_effect = lambda handle: handle
    mock.nvmlDeviceGetName.return_value = "NVIDIA A100-SXM4-80GB"
    mock.nvmlDeviceIsMigDeviceHandle.return_value = SimpleNamespace(value=0)
    mock.nvmlDeviceGetMigMode.return_value = [0, 0]
    mock.nvmlSystemGetDriverVersion.return_value = "580.65.06"
    mock.nvmlSystemGetCudaDriverVersion_v2.return_value = 13020
    mock.nvmlDeviceGetCudaComputeCapability.return_value = (8, 0)
    mock.nvmlDeviceGetMemoryInfo.return_value = SimpleNamespace(total=85_899_345_920, used=600_000_000)
    mock.nvmlDeviceGetEnforcedPowerLimit.return_value = 400_000
    mock.nvmlDeviceGetPowerUsage.return_value = 251_500
    mock.nvmlDeviceGetTotalEnergyConsumption.return_value = 1_234_567
    mock.nvmlDeviceGetClockInfo.side_effect = lambda handle, kind: CLOCKS_MHZ[kind]
    mock.nvmlDeviceGetMaxClockInfo.side_effect = lambda handle, kind: MAX_CLOCKS_MHZ[kind]
    mock.nvmlDeviceGetTemperatureV.return_value = 61
    mock.nvmlDeviceGetCurrentClocksEventReasons.return_value = 0x4 | 0x40
    mock.nvmlDeviceGetFieldValues.side_effect = lambda handle, fields: [counter(field, 0) for field in fields]
    mock.nvmlDeviceGetEccMode.return_value = [1, 1]
    mock.nvmlDeviceGetMaxPcieLinkGeneration.return_value, mock.nvmlDeviceGetCurrPcieLinkWidth.return_value = 4, 16
    mock.nvmlDeviceGetMemoryAffinity.side_effect = lambda handle, words, scope: [0, 1 << 1] + [0] * (words - 2)
    mock.nvmlDeviceGetNvLinkState.side_effect = NOT_SUPPORTED
    mock.nvmlDeviceGetComputeMode.return_value = 3
    mock.nvmlDeviceGetComputeRunningProcesses.return_value = [process(os.getpid(), 1_500_000_000)]
    return mock
