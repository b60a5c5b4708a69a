// cuBLAS and cuBLASLt: products with their types, shapes, layouts and arithmetic, and none of them computed.
#include <sstream>

#include "fake.h"

namespace fake {
namespace {

struct Blas {
  cudaStream_t stream = nullptr;
  cublasMath_t math = CUBLAS_DEFAULT_MATH;
  cublasPointerMode_t pointers = CUBLAS_POINTER_MODE_HOST;
};

Blas* blas_of(cublasHandle_t handle) { return reinterpret_cast<Blas*>(handle); }

std::string type_word(cudaDataType type) {
  switch (type) {
    case CUDA_R_64F:
      return "f64";
    case CUDA_R_32F:
      return "f32";
    case CUDA_R_16F:
      return "f16";
    case CUDA_R_16BF:
      return "bf16";
    case CUDA_R_8I:
      return "i8";
    case CUDA_R_32I:
      return "i32";
    default:
      return "cudaDataType" + std::to_string(type);
  }
}

// What the library multiplies in and adds up in.
std::string compute_word(cublasComputeType_t compute) {
  switch (compute) {
    case CUBLAS_COMPUTE_64F:
      return "f64";
    case CUBLAS_COMPUTE_32F:
      return "f32";
    case CUBLAS_COMPUTE_32F_PEDANTIC:
      return "f32_pedantic";
    case CUBLAS_COMPUTE_32F_FAST_TF32:
      return "tf32";
    case CUBLAS_COMPUTE_32F_FAST_16F:
      return "f32_by_f16";
    case CUBLAS_COMPUTE_32F_FAST_16BF:
      return "f32_by_bf16";
    case CUBLAS_COMPUTE_16F:
      return "f16";
    default:
      return "cublasComputeType" + std::to_string(compute);
  }
}

std::string math_word(cublasMath_t math) {
  switch (math & 0xf) {  // the flags above say what a reduction may not do
    case CUBLAS_DEFAULT_MATH:
      return "default";
    case CUBLAS_TF32_TENSOR_OP_MATH:
      return "tf32";
    case CUBLAS_PEDANTIC_MATH:
      return "pedantic";
    default:
      return "cublasMath" + std::to_string(math);
  }
}

const char* transposed(cublasOperation_t operation) { return operation == CUBLAS_OP_N ? "n" : "t"; }

struct Shape {
  cublasOperation_t of_a, of_b;
  long long m, n, k, batch = 1;
};

struct Types {
  cudaDataType a, b, result;
  cublasComputeType_t compute;
};

struct Operands {
  const void *a, *b;
  void* result;
};

std::string words_of(const Shape& shape, const Types& types) {
  std::ostringstream words;
  words << "a=" << type_word(types.a) << " b=" << type_word(types.b) << " compute=" << compute_word(types.compute)
        << " result=" << type_word(types.result) << " transposed=" << transposed(shape.of_a) << transposed(shape.of_b)
        << " m=" << shape.m << " n=" << shape.n << " k=" << shape.k << " batch=" << shape.batch;
  return words.str();
}

cublasStatus_t started(Submitted submitted) {
  return submitted == Submitted::refused ? CUBLAS_STATUS_EXECUTION_FAILED : CUBLAS_STATUS_SUCCESS;
}

cublasStatus_t product(cublasHandle_t handle, const char* call, const Shape& shape, const Types& types,
                       const Operands& operands) {
  for (const void* operand : {operands.a, operands.b, static_cast<const void*>(operands.result)})
    require_on_device(call, operand);
  Blas* blas = blas_of(handle);
  return started(submit(blas->stream, "cublas", call, words_of(shape, types) + " math=" + math_word(blas->math)));
}

constexpr Types ALL_F32 = {CUDA_R_32F, CUDA_R_32F, CUDA_R_32F, CUBLAS_COMPUTE_32F};
constexpr Types ALL_F64 = {CUDA_R_64F, CUDA_R_64F, CUDA_R_64F, CUBLAS_COMPUTE_64F};

}  // namespace
}  // namespace fake

using namespace fake;

// ---- handles

EXPORTED cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
  if (breaks_a_capture("cublasCreate")) return CUBLAS_STATUS_NOT_INITIALIZED;
  record("handle", "cublasCreate");
  *handle = reinterpret_cast<cublasHandle_t>(new Blas);
  return CUBLAS_STATUS_SUCCESS;
}

EXPORTED cublasStatus_t cublasDestroy_v2(cublasHandle_t handle) {
  delete blas_of(handle);
  return CUBLAS_STATUS_SUCCESS;
}

EXPORTED cublasStatus_t cublasSetStream_v2(cublasHandle_t handle, cudaStream_t stream) {
  blas_of(handle)->stream = stream;
  return CUBLAS_STATUS_SUCCESS;
}

EXPORTED cublasStatus_t cublasSetMathMode(cublasHandle_t handle, cublasMath_t math) {
  blas_of(handle)->math = math;
  return CUBLAS_STATUS_SUCCESS;
}

EXPORTED cublasStatus_t cublasGetMathMode(cublasHandle_t handle, cublasMath_t* math) {
  *math = blas_of(handle)->math;
  return CUBLAS_STATUS_SUCCESS;
}

EXPORTED cublasStatus_t cublasSetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t mode) {
  blas_of(handle)->pointers = mode;
  return CUBLAS_STATUS_SUCCESS;
}

EXPORTED cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t handle, cublasPointerMode_t* mode) {
  *mode = blas_of(handle)->pointers;
  return CUBLAS_STATUS_SUCCESS;
}

EXPORTED cublasStatus_t cublasSetWorkspace_v2(cublasHandle_t, void*, size_t) { return CUBLAS_STATUS_SUCCESS; }
EXPORTED const char* cublasGetStatusString(cublasStatus_t) { return "a status of the fake cuBLAS"; }
EXPORTED const char* cublasGetStatusName(cublasStatus_t) { return "a status of the fake cuBLAS"; }

// ---- products of one type

EXPORTED cublasStatus_t cublasSgemm_v2(cublasHandle_t handle, cublasOperation_t of_a, cublasOperation_t of_b, int m, int n,
                                       int k, const float*, const float* a, int, const float* b, int, const float*,
                                       float* result, int) {
  return product(handle, "cublasSgemm", {of_a, of_b, m, n, k}, ALL_F32, {a, b, result});
}

EXPORTED cublasStatus_t cublasDgemm_v2(cublasHandle_t handle, cublasOperation_t of_a, cublasOperation_t of_b, int m, int n,
                                       int k, const double*, const double* a, int, const double* b, int, const double*,
                                       double* result, int) {
  return product(handle, "cublasDgemm", {of_a, of_b, m, n, k}, ALL_F64, {a, b, result});
}

EXPORTED cublasStatus_t cublasSgemmStridedBatched(cublasHandle_t handle, cublasOperation_t of_a, cublasOperation_t of_b,
                                                  int m, int n, int k, const float*, const float* a, int, long long,
                                                  const float* b, int, long long, const float*, float* result, int,
                                                  long long, int batch) {
  return product(handle, "cublasSgemmStridedBatched", {of_a, of_b, m, n, k, batch}, ALL_F32, {a, b, result});
}

EXPORTED cublasStatus_t cublasDgemmStridedBatched(cublasHandle_t handle, cublasOperation_t of_a, cublasOperation_t of_b,
                                                  int m, int n, int k, const double*, const double* a, int, long long,
                                                  const double* b, int, long long, const double*, double* result, int,
                                                  long long, int batch) {
  return product(handle, "cublasDgemmStridedBatched", {of_a, of_b, m, n, k, batch}, ALL_F64, {a, b, result});
}

EXPORTED cublasStatus_t cublasSgemv_v2(cublasHandle_t handle, cublasOperation_t of_a, int m, int n, const float*,
                                       const float* a, int, const float* x, int, const float*, float* result, int) {
  // A matrix with m rows and n columns in memory: the sum goes over the columns, or over the rows where it is transposed.
  bool plain = of_a == CUBLAS_OP_N;
  Shape shape = {of_a, CUBLAS_OP_N, plain ? m : n, 1, plain ? n : m};
  return product(handle, "cublasSgemv", shape, ALL_F32, {a, x, result});
}

EXPORTED cublasStatus_t cublasSdot_v2(cublasHandle_t handle, int n, const float* x, int, const float* y, int, float*) {
  return product(handle, "cublasSdot", {CUBLAS_OP_T, CUBLAS_OP_N, 1, 1, n}, ALL_F32, {x, y, nullptr});
}

EXPORTED cublasStatus_t cublasDotEx(cublasHandle_t handle, int n, const void* x, cudaDataType type_x, int, const void* y,
                                    cudaDataType type_y, int, void*, cudaDataType type, cudaDataType execution) {
  Types types = {type_x, type_y, type, execution == CUDA_R_64F ? CUBLAS_COMPUTE_64F : CUBLAS_COMPUTE_32F};
  return product(handle, "cublasDotEx", {CUBLAS_OP_T, CUBLAS_OP_N, 1, 1, n}, types, {x, y, nullptr});
}

// ---- products of mixed types

EXPORTED cublasStatus_t cublasGemmEx(cublasHandle_t handle, cublasOperation_t of_a, cublasOperation_t of_b, int m, int n,
                                     int k, const void*, const void* a, cudaDataType type_a, int, const void* b,
                                     cudaDataType type_b, int, const void*, void* result, cudaDataType type_result, int,
                                     cublasComputeType_t compute, cublasGemmAlgo_t) {
  Types types = {type_a, type_b, type_result, compute};
  return product(handle, "cublasGemmEx", {of_a, of_b, m, n, k}, types, {a, b, result});
}

EXPORTED cublasStatus_t cublasGemmStridedBatchedEx(cublasHandle_t handle, cublasOperation_t of_a, cublasOperation_t of_b,
                                                   int m, int n, int k, const void*, const void* a, cudaDataType type_a,
                                                   int, long long, const void* b, cudaDataType type_b, int, long long,
                                                   const void*, void* result, cudaDataType type_result, int, long long,
                                                   int batch, cublasComputeType_t compute, cublasGemmAlgo_t) {
  Types types = {type_a, type_b, type_result, compute};
  return product(handle, "cublasGemmStridedBatchedEx", {of_a, of_b, m, n, k, batch}, types, {a, b, result});
}

// ---- cuBLASLt: what is multiplied stands in descriptors

namespace {

struct LtProduct {
  cublasComputeType_t compute;
  cublasOperation_t of_a = CUBLAS_OP_N, of_b = CUBLAS_OP_N;
  cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
};

struct LtMatrix {
  cudaDataType type;
  uint64_t rows, columns;
  int32_t batch = 1;
};

LtProduct* product_of(cublasLtMatmulDesc_t handle) { return reinterpret_cast<LtProduct*>(handle); }
LtMatrix* matrix_of(cublasLtMatrixLayout_t handle) { return reinterpret_cast<LtMatrix*>(handle); }

}  // namespace

// PyTorch takes the handle of cuBLAS for that of cuBLASLt, as the documentation allows.
EXPORTED cublasStatus_t cublasLtCreate(cublasLtHandle_t* handle) {
  *handle = reinterpret_cast<cublasLtHandle_t>(new Blas);
  return CUBLAS_STATUS_SUCCESS;
}

EXPORTED cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* handle, cublasComputeType_t compute, cudaDataType) {
  *handle = reinterpret_cast<cublasLtMatmulDesc_t>(new LtProduct{compute});
  return CUBLAS_STATUS_SUCCESS;
}

EXPORTED cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t handle) {
  delete product_of(handle);
  return CUBLAS_STATUS_SUCCESS;
}

EXPORTED cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t handle,
                                                       cublasLtMatmulDescAttributes_t attribute, const void* value,
                                                       size_t) {
  LtProduct* one = product_of(handle);
  switch (attribute) {
    case CUBLASLT_MATMUL_DESC_TRANSA:
      one->of_a = *static_cast<const cublasOperation_t*>(value);
      break;
    case CUBLASLT_MATMUL_DESC_TRANSB:
      one->of_b = *static_cast<const cublasOperation_t*>(value);
      break;
    case CUBLASLT_MATMUL_DESC_EPILOGUE:
      one->epilogue = *static_cast<const cublasLtEpilogue_t*>(value);
      break;
    default:
      break;  // pointers and scales change nothing that is written down
  }
  return CUBLAS_STATUS_SUCCESS;
}

EXPORTED cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* handle, cudaDataType type, uint64_t rows,
                                                   uint64_t columns, int64_t) {
  *handle = reinterpret_cast<cublasLtMatrixLayout_t>(new LtMatrix{type, rows, columns});
  return CUBLAS_STATUS_SUCCESS;
}

EXPORTED cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t handle) {
  delete matrix_of(handle);
  return CUBLAS_STATUS_SUCCESS;
}

EXPORTED cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t handle,
                                                         cublasLtMatrixLayoutAttribute_t attribute, const void* value,
                                                         size_t) {
  if (attribute == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) matrix_of(handle)->batch = *static_cast<const int32_t*>(value);
  return CUBLAS_STATUS_SUCCESS;
}

EXPORTED cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* handle) {
  static int one;
  *handle = reinterpret_cast<cublasLtMatmulPreference_t>(&one);
  return CUBLAS_STATUS_SUCCESS;
}
EXPORTED cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t) { return CUBLAS_STATUS_SUCCESS; }
EXPORTED cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t,
                                                             cublasLtMatmulPreferenceAttributes_t, const void*, size_t) {
  return CUBLAS_STATUS_SUCCESS;
}

// One algorithm for everything, without a workspace.
EXPORTED cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t, cublasLtMatmulDesc_t, cublasLtMatrixLayout_t,
                                                       cublasLtMatrixLayout_t, cublasLtMatrixLayout_t,
                                                       cublasLtMatrixLayout_t, cublasLtMatmulPreference_t, int wanted,
                                                       cublasLtMatmulHeuristicResult_t* results, int* found) {
  *found = wanted > 0;
  if (*found) results[0] = {};
  return CUBLAS_STATUS_SUCCESS;
}

EXPORTED cublasStatus_t cublasLtMatmul(cublasLtHandle_t handle, cublasLtMatmulDesc_t how, const void*, const void* a,
                                       cublasLtMatrixLayout_t layout_a, const void* b, cublasLtMatrixLayout_t layout_b,
                                       const void*, const void*, cublasLtMatrixLayout_t, void* result,
                                       cublasLtMatrixLayout_t layout_result, const cublasLtMatmulAlgo_t*, void*, size_t,
                                       cudaStream_t stream) {
  (void)handle;
  const LtProduct* one = product_of(how);
  const LtMatrix *of_a = matrix_of(layout_a), *of_b = matrix_of(layout_b), *of_result = matrix_of(layout_result);
  for (const void* operand : {a, b, static_cast<const void*>(result)}) require_on_device("cublasLtMatmul", operand);
  long long k = one->of_a == CUBLAS_OP_N ? of_a->columns : of_a->rows;
  Shape shape = {one->of_a,   one->of_b, static_cast<long long>(of_result->rows), static_cast<long long>(of_result->columns),
                 k, of_result->batch};
  Types types = {of_a->type, of_b->type, of_result->type, one->compute};
  std::string epilogue = " epilogue=" + std::to_string(one->epilogue);
  return started(submit(stream, "cublas", "cublasLtMatmul", words_of(shape, types) + epilogue));
}

EXPORTED size_t cublasLtGetVersion() { return CUBLAS_VERSION; }
