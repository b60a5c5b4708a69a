// The declarations of CUDA's libraries as the wheels of PyTorch and Triton bring them, for a C++ compiler alone.
#pragma once

// The headers of the half types are device code and want libcu++, which no wheel brings. Only their names are needed.
#define __CUDA_FP16_H__
#define __CUDA_BF16_H__
#define __CUDA_FP8_H__
struct __half {
  unsigned short bits;
};
struct __half2 {
  __half x, y;
};
struct __nv_bfloat16 {
  unsigned short bits;
};
typedef __half half;

#include <cublasLt.h>
#include <cublas_v2.h>
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <cudnn.h>
#include <nccl.h>

// What PyTorch, Triton and ctypes find by name.
#define EXPORTED extern "C" __attribute__((visibility("default")))
