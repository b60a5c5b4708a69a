// cuDNN: its backend's descriptors keep what they are given, and a plan that is executed is written down with the types,
// layouts and shapes of its operations. There is one engine for everything, and it takes no workspace.
#include <algorithm>
#include <cstring>
#include <sstream>

#include "fake.h"

namespace fake {
namespace {

struct Dnn {
  cudaStream_t stream = nullptr;
};

Dnn* dnn_of(cudnnHandle_t handle) { return reinterpret_cast<Dnn*>(handle); }

cudnnStatus_t started(Submitted submitted) {
  return submitted == Submitted::refused ? CUDNN_STATUS_EXECUTION_FAILED : CUDNN_STATUS_SUCCESS;
}

// ---- descriptors of the backend: a type, and attributes by name

struct Attribute {
  cudnnBackendAttributeType_t type;
  int64_t count = 0;
  std::vector<char> bytes;
};

struct Descriptor {
  cudnnBackendDescriptorType_t type;
  std::map<cudnnBackendAttributeName_t, Attribute> attributes;

  bool has(cudnnBackendAttributeName_t name) const { return attributes.count(name) > 0; }

  template <typename Value>
  std::vector<Value> all(cudnnBackendAttributeName_t name) const {
    auto at = attributes.find(name);
    if (at == attributes.end()) return {};
    std::vector<Value> values(at->second.bytes.size() / sizeof(Value));
    memcpy(values.data(), at->second.bytes.data(), values.size() * sizeof(Value));
    return values;
  }

  template <typename Value>
  Value one(cudnnBackendAttributeName_t name, Value missing) const {
    auto values = all<Value>(name);
    return values.empty() ? missing : values.front();
  }

  const Descriptor* child(cudnnBackendAttributeName_t name) const { return one<Descriptor*>(name, nullptr); }

  void set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t attribute_type, int64_t count,
           const void* values);
};

Descriptor* descriptor_of(cudnnBackendDescriptor_t handle) { return reinterpret_cast<Descriptor*>(handle); }

size_t size_of(cudnnBackendAttributeType_t type) {
  switch (type) {
    case CUDNN_TYPE_CHAR:
    case CUDNN_TYPE_BOOLEAN:
      return 1;
    case CUDNN_TYPE_HANDLE:
    case CUDNN_TYPE_INT64:
    case CUDNN_TYPE_DOUBLE:
    case CUDNN_TYPE_VOID_PTR:
    case CUDNN_TYPE_BACKEND_DESCRIPTOR:
      return 8;
    case CUDNN_TYPE_FRACTION:
      return 16;
    default:
      return 4;  // int32, float and all enumerations
  }
}

void Descriptor::set(cudnnBackendAttributeName_t name, cudnnBackendAttributeType_t attribute_type, int64_t count,
                     const void* values) {
  auto* bytes = static_cast<const char*>(values);
  attributes[name] = {attribute_type, count, std::vector<char>(bytes, bytes + size_of(attribute_type) * count)};
}

void set_child(Descriptor* parent, cudnnBackendAttributeName_t name, const Descriptor* child) {
  parent->set(name, CUDNN_TYPE_BACKEND_DESCRIPTOR, 1, &child);
}

void set_number(Descriptor* descriptor, cudnnBackendAttributeName_t name, int64_t number) {
  descriptor->set(name, CUDNN_TYPE_INT64, 1, &number);
}

// ---- what cuDNN would find out itself

// The heuristics' one answer: a configuration of the one engine for the graph that was asked about.
void answer_heuristics(const Descriptor* heuristics, Descriptor* configuration) {
  auto* engine = new Descriptor{CUDNN_BACKEND_ENGINE_DESCRIPTOR, {}};
  set_child(engine, CUDNN_ATTR_ENGINE_OPERATION_GRAPH, heuristics->child(CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH));
  set_number(engine, CUDNN_ATTR_ENGINE_GLOBAL_INDEX, 0);
  set_child(configuration, CUDNN_ATTR_ENGINECFG_ENGINE, engine);
}

// Attributes that are read and never set.
const std::map<cudnnBackendAttributeName_t, int64_t>& found_out() {
  static const auto* numbers = new std::map<cudnnBackendAttributeName_t, int64_t>{
      {CUDNN_ATTR_OPERATIONGRAPH_ENGINE_GLOBAL_COUNT, 1},
      {CUDNN_ATTR_ENGINE_GLOBAL_INDEX, 0},
      {CUDNN_ATTR_ENGINECFG_SHARED_MEMORY_USED, 0},
      {CUDNN_ATTR_ENGINECFG_WORKSPACE_SIZE, 0},
      {CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, 0},
  };
  return *numbers;
}

// ---- words for the log

std::string type_word(int type) {
  switch (type) {
    case CUDNN_DATA_DOUBLE:
      return "f64";
    case CUDNN_DATA_FLOAT:
      return "f32";
    case CUDNN_DATA_HALF:
      return "f16";
    case CUDNN_DATA_BFLOAT16:
      return "bf16";
    case CUDNN_DATA_INT32:
      return "i32";
    case CUDNN_DATA_INT64:
      return "i64";
    default:
      return "cudnnDataType" + std::to_string(type);
  }
}

// `nhwc` where channels are innermost, and `either` where there is nothing to tell the two apart.
std::string layout_word(const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides) {
  if (sizes.size() != 4 || strides.size() != 4) return "any";
  bool one_channel = sizes[1] == 1, one_pixel = sizes[2] == 1 && sizes[3] == 1;
  if (one_channel || one_pixel) return "either";
  if (strides[1] == 1) return "nhwc";
  return strides[3] == 1 ? "nchw" : "strided";
}

std::string shape_word(const std::vector<int64_t>& sizes) {
  std::string words;
  for (int64_t size : sizes) words += (words.empty() ? "" : ",") + std::to_string(size);
  return "[" + words + "]";
}

std::string tensor_words(int type, const std::vector<int64_t>& sizes, const std::vector<int64_t>& strides) {
  return type_word(type) + "/" + layout_word(sizes, strides) + "/" + shape_word(sizes);
}

std::string tensor_words(const Descriptor* tensor) {
  if (!tensor) return "none";
  return tensor_words(tensor->one<int>(CUDNN_ATTR_TENSOR_DATA_TYPE, -1), tensor->all<int64_t>(CUDNN_ATTR_TENSOR_DIMENSIONS),
                      tensor->all<int64_t>(CUDNN_ATTR_TENSOR_STRIDES));
}

struct ConvolutionNames {
  const char* name;
  cudnnBackendAttributeName_t how, input, weight, output;
};

const std::map<cudnnBackendDescriptorType_t, ConvolutionNames>& convolutions() {
  static const auto* names = new std::map<cudnnBackendDescriptorType_t, ConvolutionNames>{
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
       {"convolution", CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
        CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W, CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y}},
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
       {"convolution_input_gradient", CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY}},
      {CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
       {"convolution_weight_gradient", CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X, CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
        CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY}},
  };
  return *names;
}

std::string convolution_words(const Descriptor* operation, const ConvolutionNames& names) {
  const Descriptor* how = operation->child(names.how);
  int compute = how ? how->one<int>(CUDNN_ATTR_CONVOLUTION_COMP_TYPE, -1) : -1;
  std::ostringstream words;
  words << "x=" << tensor_words(operation->child(names.input)) << " w=" << tensor_words(operation->child(names.weight))
        << " y=" << tensor_words(operation->child(names.output)) << " compute=" << type_word(compute);
  if (how)
    words << " stride=" << shape_word(how->all<int64_t>(CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES))
          << " padding=" << shape_word(how->all<int64_t>(CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS));
  return words.str();
}

// Of operations that are no convolutions: all their tensors, in the order of the attributes' numbers.
std::string operands_words(const Descriptor* operation) {
  std::string words;
  for (const auto& [name, attribute] : operation->attributes) {
    if (attribute.type != CUDNN_TYPE_BACKEND_DESCRIPTOR) continue;
    const Descriptor* child = operation->child(name);
    if (child && child->type == CUDNN_BACKEND_TENSOR_DESCRIPTOR)
      words += (words.empty() ? "" : " ") + std::string("tensor=") + tensor_words(child);
  }
  return words;
}

// Newer than the oldest headers that this is compiled with.
constexpr int ATTENTION = 41;           // CUDNN_BACKEND_OPERATION_SDPA_FWD_DESCRIPTOR
constexpr int ATTENTION_GRADIENT = 43;  // CUDNN_BACKEND_OPERATION_SDPA_BWD_DESCRIPTOR

std::string operation_name(const Descriptor* operation) {
  auto at = convolutions().find(operation->type);
  if (at != convolutions().end()) return at->second.name;
  switch (operation->type) {
    case CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR:
      return "product";
    case CUDNN_BACKEND_OPERATION_POINTWISE_DESCRIPTOR:
      return "pointwise";
    case CUDNN_BACKEND_OPERATION_REDUCTION_DESCRIPTOR:
      return "reduction";
    case CUDNN_BACKEND_OPERATION_RESHAPE_DESCRIPTOR:
      return "reshape";
    default:
      if (operation->type == ATTENTION) return "attention";
      if (operation->type == ATTENTION_GRADIENT) return "attention_gradient";
      return "operation" + std::to_string(operation->type);
  }
}

// Attention is one operation, or the graph of its parts: two products with a softmax between them, and in its gradient
// five of them.
std::string graph_name(const std::vector<Descriptor*>& operations) {
  std::string words;
  int products = 0;
  for (const Descriptor* operation : operations) {
    words += (words.empty() ? "" : "+") + operation_name(operation);
    products += operation->type == CUDNN_BACKEND_OPERATION_MATMUL_DESCRIPTOR;
  }
  if (products == 2) return "attention";
  return products == 5 ? "attention_gradient" : words;
}

const Descriptor* graph_of(const Descriptor* plan) {
  const Descriptor* configuration = plan->child(CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG);
  const Descriptor* engine = configuration ? configuration->child(CUDNN_ATTR_ENGINECFG_ENGINE) : nullptr;
  return engine ? engine->child(CUDNN_ATTR_ENGINE_OPERATION_GRAPH) : nullptr;
}

}  // namespace
}  // namespace fake

using namespace fake;

// ---- the library

EXPORTED cudnnStatus_t cudnnCreate(cudnnHandle_t* handle) {
  if (breaks_a_capture("cudnnCreate")) return CUDNN_STATUS_NOT_INITIALIZED;
  record("handle", "cudnnCreate");
  *handle = reinterpret_cast<cudnnHandle_t>(new Dnn);
  return CUDNN_STATUS_SUCCESS;
}

EXPORTED cudnnStatus_t cudnnDestroy(cudnnHandle_t handle) {
  delete dnn_of(handle);
  return CUDNN_STATUS_SUCCESS;
}

EXPORTED cudnnStatus_t cudnnSetStream(cudnnHandle_t handle, cudaStream_t stream) {
  dnn_of(handle)->stream = stream;
  return CUDNN_STATUS_SUCCESS;
}

EXPORTED cudnnStatus_t cudnnGetStream(cudnnHandle_t handle, cudaStream_t* stream) {
  *stream = dnn_of(handle)->stream;
  return CUDNN_STATUS_SUCCESS;
}

EXPORTED size_t cudnnGetVersion() { return CUDNN_VERSION; }

EXPORTED cudnnStatus_t cudnnGetProperty(libraryPropertyType part, int* value) {
  *value = part == MAJOR_VERSION ? CUDNN_MAJOR : part == MINOR_VERSION ? CUDNN_MINOR : CUDNN_PATCHLEVEL;
  return CUDNN_STATUS_SUCCESS;
}

EXPORTED size_t cudnnGetCudartVersion() { return CUDART_VERSION; }
EXPORTED const char* cudnnGetErrorString(cudnnStatus_t) { return "a status of the fake cuDNN"; }
EXPORTED void cudnnGetLastErrorString(char* text, size_t length) {
  if (length) text[0] = 0;
}

// ---- the backend

EXPORTED cudnnStatus_t cudnnBackendCreateDescriptor(cudnnBackendDescriptorType_t type, cudnnBackendDescriptor_t* handle) {
  *handle = reinterpret_cast<cudnnBackendDescriptor_t>(new Descriptor{type, {}});
  return CUDNN_STATUS_SUCCESS;
}

// It stays: others may name it, and there are few.
EXPORTED cudnnStatus_t cudnnBackendDestroyDescriptor(cudnnBackendDescriptor_t) { return CUDNN_STATUS_SUCCESS; }
EXPORTED cudnnStatus_t cudnnBackendFinalize(cudnnBackendDescriptor_t) { return CUDNN_STATUS_SUCCESS; }

EXPORTED cudnnStatus_t cudnnBackendSetAttribute(cudnnBackendDescriptor_t handle, cudnnBackendAttributeName_t name,
                                                cudnnBackendAttributeType_t type, int64_t count, const void* values) {
  Guard guard(state());
  descriptor_of(handle)->set(name, type, count, values);
  return CUDNN_STATUS_SUCCESS;
}

EXPORTED cudnnStatus_t cudnnBackendGetAttribute(cudnnBackendDescriptor_t handle, cudnnBackendAttributeName_t name,
                                                cudnnBackendAttributeType_t type, int64_t wanted, int64_t* found,
                                                void* values) {
  Guard guard(state());
  Descriptor* descriptor = descriptor_of(handle);
  int64_t nobody_asked = 0;
  int64_t& count = found ? *found : nobody_asked;
  count = 0;
  if (name == CUDNN_ATTR_ENGINEHEUR_RESULTS) {
    count = 1;
    if (values && wanted > 0) answer_heuristics(descriptor, static_cast<Descriptor**>(values)[0]);
    return CUDNN_STATUS_SUCCESS;
  }
  auto at = descriptor->attributes.find(name);
  if (at == descriptor->attributes.end()) {
    auto number = found_out().find(name);
    if (number == found_out().end()) return CUDNN_STATUS_SUCCESS;  // an empty list: of notes, of knobs
    count = 1;
    if (values && wanted > 0) memcpy(values, &number->second, size_of(type));
    return CUDNN_STATUS_SUCCESS;
  }
  count = at->second.count;
  if (!values) return CUDNN_STATUS_SUCCESS;
  if (at->second.type == CUDNN_TYPE_BACKEND_DESCRIPTOR) {
    // Into the descriptors that the caller has made for it.
    auto stored = descriptor->all<Descriptor*>(name);
    auto** given = static_cast<Descriptor**>(values);
    for (int64_t i = 0; i < std::min(wanted, count); i++)
      if (given[i] && stored[i]) given[i]->attributes = stored[i]->attributes;
    return CUDNN_STATUS_SUCCESS;
  }
  memcpy(values, at->second.bytes.data(), std::min(at->second.bytes.size(), size_t(wanted) * size_of(type)));
  return CUDNN_STATUS_SUCCESS;
}

EXPORTED cudnnStatus_t cudnnBackendExecute(cudnnHandle_t handle, cudnnBackendDescriptor_t plan,
                                           cudnnBackendDescriptor_t operands) {
  Guard guard(state());
  const Descriptor* graph = graph_of(descriptor_of(plan));
  if (!graph) return CUDNN_STATUS_BAD_PARAM;
  auto operations = graph->all<Descriptor*>(CUDNN_ATTR_OPERATIONGRAPH_OPS);
  std::string details;
  bool has_convolution = false;
  for (const Descriptor* operation : operations) {
    auto names = convolutions().find(operation->type);
    bool is_convolution = names != convolutions().end();
    has_convolution |= is_convolution;
    details += details.empty() ? "" : " ";
    details += is_convolution ? convolution_words(operation, names->second) : operands_words(operation);
  }
  if (has_convolution)  // elsewhere a number may be given by its address on the host
    for (void* pointer : descriptor_of(operands)->all<void*>(CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS))
      require_on_device("cudnnBackendExecute", pointer);
  return started(submit(dnn_of(handle)->stream, "cudnn", graph_name(operations), details));
}

// A graph of CUDA made by cuDNN itself: PyTorch then executes the plan in a capture.
EXPORTED cudnnStatus_t cudnnBackendPopulateCudaGraph(cudnnHandle_t, cudnnBackendDescriptor_t, cudnnBackendDescriptor_t,
                                                     cudaGraph_t) {
  return CUDNN_STATUS_NOT_SUPPORTED;
}

// ---- batch normalization, whose functions are older than the backend

namespace {

struct Tensor {
  int type = -1;
  std::vector<int64_t> sizes, strides;
};

Tensor* tensor_of(cudnnTensorDescriptor_t handle) { return reinterpret_cast<Tensor*>(handle); }

cudnnStatus_t normalize(cudnnHandle_t handle, const char* what, cudnnTensorDescriptor_t input) {
  const Tensor* tensor = tensor_of(input);
  std::string details = "x=" + tensor_words(tensor->type, tensor->sizes, tensor->strides);
  return started(submit(dnn_of(handle)->stream, "cudnn", what, details));
}

cudnnStatus_t no_bytes(size_t* bytes) {
  *bytes = 0;
  return CUDNN_STATUS_SUCCESS;
}

}  // namespace

EXPORTED cudnnStatus_t cudnnCreateTensorDescriptor(cudnnTensorDescriptor_t* handle) {
  *handle = reinterpret_cast<cudnnTensorDescriptor_t>(new Tensor);
  return CUDNN_STATUS_SUCCESS;
}

EXPORTED cudnnStatus_t cudnnDestroyTensorDescriptor(cudnnTensorDescriptor_t handle) {
  delete tensor_of(handle);
  return CUDNN_STATUS_SUCCESS;
}

EXPORTED cudnnStatus_t cudnnSetTensorNdDescriptor(cudnnTensorDescriptor_t handle, cudnnDataType_t type, int dimensions,
                                                  const int* sizes, const int* strides) {
  *tensor_of(handle) = {type, {sizes, sizes + dimensions}, {strides, strides + dimensions}};
  return CUDNN_STATUS_SUCCESS;
}

EXPORTED cudnnStatus_t cudnnCreateActivationDescriptor(cudnnActivationDescriptor_t* handle) {
  static int one;
  *handle = reinterpret_cast<cudnnActivationDescriptor_t>(&one);
  return CUDNN_STATUS_SUCCESS;
}
EXPORTED cudnnStatus_t cudnnDestroyActivationDescriptor(cudnnActivationDescriptor_t) { return CUDNN_STATUS_SUCCESS; }

EXPORTED cudnnStatus_t cudnnGetBatchNormalizationForwardTrainingExWorkspaceSize(
    cudnnHandle_t, cudnnBatchNormMode_t, cudnnBatchNormOps_t, const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
    const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t, const cudnnActivationDescriptor_t, size_t* bytes) {
  return no_bytes(bytes);
}

EXPORTED cudnnStatus_t cudnnGetBatchNormalizationBackwardExWorkspaceSize(
    cudnnHandle_t, cudnnBatchNormMode_t, cudnnBatchNormOps_t, const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
    const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t, const cudnnTensorDescriptor_t,
    const cudnnTensorDescriptor_t, const cudnnActivationDescriptor_t, size_t* bytes) {
  return no_bytes(bytes);
}

EXPORTED cudnnStatus_t cudnnGetBatchNormalizationTrainingExReserveSpaceSize(cudnnHandle_t, cudnnBatchNormMode_t,
                                                                            cudnnBatchNormOps_t,
                                                                            const cudnnActivationDescriptor_t,
                                                                            const cudnnTensorDescriptor_t, size_t* bytes) {
  return no_bytes(bytes);
}

EXPORTED cudnnStatus_t cudnnBatchNormalizationForwardTrainingEx(
    cudnnHandle_t handle, cudnnBatchNormMode_t, cudnnBatchNormOps_t, const void*, const void*,
    const cudnnTensorDescriptor_t input, const void*, const cudnnTensorDescriptor_t, const void*,
    const cudnnTensorDescriptor_t, void*, const cudnnTensorDescriptor_t, const void*, const void*, double, void*, void*,
    double, void*, void*, cudnnActivationDescriptor_t, void*, size_t, void*, size_t) {
  return normalize(handle, "batch_norm", input);
}

EXPORTED cudnnStatus_t cudnnBatchNormalizationBackwardEx(
    cudnnHandle_t handle, cudnnBatchNormMode_t, cudnnBatchNormOps_t, const void*, const void*, const void*, const void*,
    const cudnnTensorDescriptor_t input, const void*, const cudnnTensorDescriptor_t, const void*,
    const cudnnTensorDescriptor_t, const void*, const cudnnTensorDescriptor_t, void*, const cudnnTensorDescriptor_t, void*,
    const cudnnTensorDescriptor_t, const void*, const void*, void*, void*, double, const void*, const void*,
    cudnnActivationDescriptor_t, void*, size_t, void*, size_t) {
  return normalize(handle, "batch_norm_gradient", input);
}

EXPORTED cudnnStatus_t cudnnBatchNormalizationForwardInference(
    cudnnHandle_t handle, cudnnBatchNormMode_t, const void*, const void*, const cudnnTensorDescriptor_t input, const void*,
    const cudnnTensorDescriptor_t, void*, const cudnnTensorDescriptor_t, const void*, const void*, const void*, const void*,
    double) {
  return normalize(handle, "batch_norm_inference", input);
}
