// Streams, events, captures and graphs. What a real capture refuses is refused with the same error.
// Source: CUDA C++ Programming Guide, "Stream Capture"; CUDA Runtime API, cudaThreadExchangeStreamCaptureMode.
#include <pthread.h>

#include <memory>

#include "fake.h"

namespace fake {
namespace {

struct Node {
  std::vector<Node*> after;
};

// A captured one keeps only which work waits for which: what the work is stands in the log, under the graph's number.
struct Graph {
  long number;
  std::vector<std::unique_ptr<Node>> nodes;
  std::vector<Node*> dependencies_told;
};

struct Stream;

struct Capture {
  Graph* graph;
  cudaStreamCaptureMode mode;
  Stream* origin;
  pthread_t thread;
  std::set<Stream*> streams;
  bool valid = true;
};

struct Stream {
  long number;
  bool waits_for_legacy;  // not made with cudaStreamNonBlocking
  int priority;
  Capture* capture = nullptr;
  std::set<Node*> last;  // what the next node of a capture comes after
};

struct Event {
  bool recorded = false;
  long graph_number = 0;  // of the capture in which it was recorded; 0: in none
  std::set<Node*> last;
};

std::set<Capture*>& live_captures() {
  static auto* captures = new std::set<Capture*>;
  return *captures;
}

Capture* live_capture(long graph_number) {
  for (Capture* capture : live_captures())
    if (capture->graph->number == graph_number) return capture;
  return nullptr;
}

long next_number() {
  static long number = 0;
  return ++number;
}

bool is_legacy(const void* handle) { return handle == nullptr || handle == cudaStreamLegacy; }

// The handle is the stream; the default streams have handles of their own, one for each device.
Stream* stream_of(const void* handle) {
  static auto* defaults = new std::map<std::pair<int, bool>, Stream*>;
  if (!is_legacy(handle) && handle != cudaStreamPerThread) return static_cast<Stream*>(const_cast<void*>(handle));
  Stream*& stream = (*defaults)[{current_device(), is_legacy(handle)}];
  if (!stream) stream = new Stream{next_number(), true, 0};
  return stream;
}

bool is_of_this_thread(const Capture* capture) { return pthread_equal(capture->thread, pthread_self()); }

thread_local cudaStreamCaptureMode thread_mode = cudaStreamCaptureModeGlobal;

// Whether it forbids what is potentially unsafe (cudaMalloc, cudaEventQuery, ...) to the calling thread.
bool forbids(const Capture* capture) {
  if (thread_mode == cudaStreamCaptureModeRelaxed || capture->mode == cudaStreamCaptureModeRelaxed) return false;
  if (is_of_this_thread(capture)) return true;
  return thread_mode == cudaStreamCaptureModeGlobal && capture->mode == cudaStreamCaptureModeGlobal;
}

cudaError_t break_capture(Capture* capture, const std::string& by, cudaError_t error) {
  capture->valid = false;
  record_fault("capture broken by " + by);
  return fail(error);
}

// The legacy stream waits for all streams but those made otherwise, which a captured one cannot do.
Capture* implicitly_waited_for(const void* handle) {
  if (!is_legacy(handle)) return nullptr;
  for (Capture* capture : live_captures())
    for (Stream* stream : capture->streams)
      if (stream->waits_for_legacy) return capture;
  return nullptr;
}

void add_node(Stream* stream) {
  auto node = std::make_unique<Node>();
  node->after.assign(stream->last.begin(), stream->last.end());
  stream->last = {node.get()};
  stream->capture->graph->nodes.push_back(std::move(node));
}

// Whether the origin waits for all of the work, so that a replay is done when it is.
bool is_joined(const Capture* capture) {
  std::set<Node*> reached;
  std::vector<Node*> left(capture->origin->last.begin(), capture->origin->last.end());
  while (!left.empty()) {
    Node* node = left.back();
    left.pop_back();
    if (reached.insert(node).second) left.insert(left.end(), node->after.begin(), node->after.end());
  }
  return reached.size() == capture->graph->nodes.size();
}

std::string place_words(const Stream* stream) {
  std::string words = "stream=" + std::to_string(stream->number);
  if (stream->capture) words += " graph=" + std::to_string(stream->capture->graph->number);
  return words;
}

std::string with(const std::string& details, const std::string& more) { return details.empty() ? more : details + " " + more; }

cudaError_t new_stream(cudaStream_t* handle, unsigned flags, int priority) {
  Guard guard(state());
  auto* stream = new Stream{next_number(), !(flags & cudaStreamNonBlocking), priority};
  *handle = reinterpret_cast<cudaStream_t>(stream);
  return cudaSuccess;
}

Event* event_of(cudaEvent_t handle) { return reinterpret_cast<Event*>(handle); }

// Of a question about an event: it is none that can be asked of work that was captured and never ran.
bool breaks_its_capture_as_event(const Event* event, const char* call) {
  Capture* capture = event->graph_number ? live_capture(event->graph_number) : nullptr;
  if (!capture) return false;
  break_capture(capture, std::string(call) + " of a captured event", cudaErrorCapturedEvent);
  return true;
}

cudaStreamCaptureStatus status_of(const Stream* stream) {
  if (!stream->capture) return cudaStreamCaptureStatusNone;
  return stream->capture->valid ? cudaStreamCaptureStatusActive : cudaStreamCaptureStatusInvalidated;
}

void end(Capture* capture) {
  live_captures().erase(capture);
  for (Stream* stream : capture->streams) {
    stream->capture = nullptr;
    stream->last.clear();
  }
  delete capture;
}

}  // namespace

cudaError_t& last_error() {
  static thread_local cudaError_t error = cudaSuccess;
  return error;
}

cudaError_t fail(cudaError_t error) { return last_error() = error; }

bool breaks_a_capture(const char* call) {
  Guard guard(state());
  bool broken = false;
  for (Capture* capture : live_captures()) {
    if (!forbids(capture)) continue;
    break_capture(capture, call, cudaErrorStreamCaptureUnsupported);
    broken = true;
  }
  return broken;
}

bool breaks_its_capture(void* handle, const std::string& call) {
  Guard guard(state());
  Stream* stream = stream_of(handle);
  if (!stream->capture) return false;
  break_capture(stream->capture, call, cudaErrorStreamCaptureUnsupported);
  return true;
}

Submitted submit(void* handle, const std::string& kind, const std::string& what, const std::string& details) {
  Guard guard(state());
  if (Capture* capture = implicitly_waited_for(handle)) {
    break_capture(capture, "work on the legacy stream: " + what, cudaErrorStreamCaptureImplicit);
    return Submitted::refused;
  }
  Stream* stream = stream_of(handle);
  record(kind, what, with(details, place_words(stream)));
  if (!stream->capture) {
    for (const Capture* capture : live_captures())
      if (is_of_this_thread(capture)) record_fault("not captured, though this thread captures: " + what);
    return Submitted::now;
  }
  if (!stream->capture->valid) {
    fail(cudaErrorStreamCaptureInvalidated);
    return Submitted::refused;
  }
  add_node(stream);
  return Submitted::captured;
}

}  // namespace fake

using namespace fake;

// ---- streams

EXPORTED cudaError_t cudaStreamCreate(cudaStream_t* stream) { return new_stream(stream, cudaStreamDefault, 0); }

EXPORTED cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return new_stream(stream, flags, 0);
}

EXPORTED cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int priority) {
  return new_stream(stream, flags, priority);
}

// It stays, as captures that have ended may name it; there are few.
EXPORTED cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }

EXPORTED cudaError_t cudaStreamGetPriority(cudaStream_t stream, int* priority) {
  Guard guard(state());
  *priority = stream_of(stream)->priority;
  return cudaSuccess;
}

EXPORTED cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
  *least = 0;
  *greatest = -5;
  return cudaSuccess;
}

EXPORTED cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  if (breaks_its_capture(stream, "cudaStreamSynchronize")) return last_error();
  record("sync", "cudaStreamSynchronize");
  return cudaSuccess;
}

EXPORTED cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return breaks_its_capture(stream, "cudaStreamQuery") ? last_error() : cudaSuccess;
}

EXPORTED cudaError_t cudaDeviceSynchronize() {
  if (breaks_a_capture("cudaDeviceSynchronize")) return last_error();
  record("sync", "cudaDeviceSynchronize");
  return cudaSuccess;
}

EXPORTED cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  Submitted submitted = submit(stream, "host function", "cudaLaunchHostFunc");
  if (submitted == Submitted::now) function(data);
  return submitted == Submitted::refused ? last_error() : cudaSuccess;
}

EXPORTED cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void* data, unsigned) {
  if (breaks_its_capture(stream, "cudaStreamAddCallback")) return last_error();
  record("host function", "cudaStreamAddCallback");
  function(stream, cudaSuccess, data);
  return cudaSuccess;
}

// ---- events

EXPORTED cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  *event = reinterpret_cast<cudaEvent_t>(new Event);
  return cudaSuccess;
}

EXPORTED cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, cudaEventDefault); }

EXPORTED cudaError_t cudaEventDestroy(cudaEvent_t event) {
  Guard guard(state());
  delete event_of(event);
  return cudaSuccess;
}

EXPORTED cudaError_t cudaEventRecord(cudaEvent_t handle, cudaStream_t on) {
  Guard guard(state());
  Stream* stream = stream_of(on);
  Event* event = event_of(handle);
  event->recorded = true;
  event->graph_number = stream->capture ? stream->capture->graph->number : 0;
  event->last = stream->last;
  return cudaSuccess;
}

EXPORTED cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
  return cudaEventRecord(event, stream);
}

EXPORTED cudaError_t cudaEventQuery(cudaEvent_t event) {
  Guard guard(state());
  if (breaks_its_capture_as_event(event_of(event), "cudaEventQuery")) return last_error();
  return breaks_a_capture("cudaEventQuery") ? last_error() : cudaSuccess;
}

EXPORTED cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  Guard guard(state());
  if (breaks_its_capture_as_event(event_of(event), "cudaEventSynchronize")) return last_error();
  if (breaks_a_capture("cudaEventSynchronize")) return last_error();
  record("sync", "cudaEventSynchronize");
  return cudaSuccess;
}

// Nothing takes any time; never 0, as some divide by it.
EXPORTED cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t, cudaEvent_t) {
  *milliseconds = 0.01f;
  return cudaSuccess;
}

EXPORTED cudaError_t cudaStreamWaitEvent(cudaStream_t waiting, cudaEvent_t handle, unsigned) {
  Guard guard(state());
  Stream* stream = stream_of(waiting);
  Event* event = event_of(handle);
  if (!event->recorded) return cudaSuccess;
  Capture* capture = event->graph_number ? live_capture(event->graph_number) : nullptr;
  if (!capture) {
    if (!stream->capture) return cudaSuccess;
    return break_capture(stream->capture, "waiting for work that is not captured", cudaErrorStreamCaptureIsolation);
  }
  if (stream->capture && stream->capture != capture)
    return break_capture(stream->capture, "waiting for work of another capture", cudaErrorStreamCaptureMerge);
  stream->capture = capture;
  capture->streams.insert(stream);
  stream->last.insert(event->last.begin(), event->last.end());
  return cudaSuccess;
}

// ---- captures

EXPORTED cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  std::swap(*mode, thread_mode);
  return cudaSuccess;
}

EXPORTED cudaError_t cudaStreamBeginCapture(cudaStream_t handle, cudaStreamCaptureMode mode) {
  Guard guard(state());
  Stream* stream = stream_of(handle);
  if (is_legacy(handle)) return fail(cudaErrorStreamCaptureUnsupported);
  if (stream->capture) return fail(cudaErrorIllegalState);
  auto* graph = new Graph{next_number(), {}, {}};
  auto* capture = new Capture{graph, mode, stream, pthread_self(), {stream}};
  stream->capture = capture;
  stream->last.clear();
  live_captures().insert(capture);
  record("capture", "begin", "graph=" + std::to_string(graph->number));
  return cudaSuccess;
}

EXPORTED cudaError_t cudaStreamEndCapture(cudaStream_t handle, cudaGraph_t* out) {
  Guard guard(state());
  *out = nullptr;
  Capture* capture = stream_of(handle)->capture;
  if (!capture) return fail(cudaErrorIllegalState);
  if (capture->origin != stream_of(handle))
    return break_capture(capture, "an end on another stream than it began", cudaErrorStreamCaptureUnmatched);
  if (!is_of_this_thread(capture) && capture->mode != cudaStreamCaptureModeRelaxed)
    return break_capture(capture, "an end in another thread", cudaErrorStreamCaptureWrongThread);
  bool valid = capture->valid, joined = is_joined(capture);
  Graph* graph = capture->graph;
  std::string streams = std::to_string(capture->streams.size());
  if (valid && !joined) break_capture(capture, "work that is not joined", cudaErrorStreamCaptureUnjoined);
  end(capture);
  if (!valid) return fail(cudaErrorStreamCaptureInvalidated);
  if (!joined) return last_error();
  record("capture", "end",
         "graph=" + std::to_string(graph->number) + " nodes=" + std::to_string(graph->nodes.size()) + " streams=" + streams);
  *out = reinterpret_cast<cudaGraph_t>(graph);
  return cudaSuccess;
}

EXPORTED cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  Guard guard(state());
  *status = status_of(stream_of(stream));
  return cudaSuccess;
}

EXPORTED cudaError_t cudaStreamGetCaptureInfo(cudaStream_t handle, cudaStreamCaptureStatus* status,
                                              unsigned long long* number, cudaGraph_t* graph,
                                              const cudaGraphNode_t** dependencies, const cudaGraphEdgeData** edges,
                                              size_t* count) {
  Guard guard(state());
  Stream* stream = stream_of(handle);
  *status = status_of(stream);
  Graph* captured = stream->capture ? stream->capture->graph : nullptr;
  if (number) *number = captured ? captured->number : 0;
  if (graph) *graph = reinterpret_cast<cudaGraph_t>(captured);
  if (edges) *edges = nullptr;
  if (captured) captured->dependencies_told.assign(stream->last.begin(), stream->last.end());
  if (dependencies)
    *dependencies = captured ? reinterpret_cast<const cudaGraphNode_t*>(captured->dependencies_told.data()) : nullptr;
  if (count) *count = captured ? captured->dependencies_told.size() : 0;
  return cudaSuccess;
}

EXPORTED cudaError_t cudaStreamUpdateCaptureDependencies(cudaStream_t handle, cudaGraphNode_t* nodes,
                                                         const cudaGraphEdgeData*, size_t count, unsigned flags) {
  Guard guard(state());
  Stream* stream = stream_of(handle);
  if (!stream->capture) return fail(cudaErrorIllegalState);
  if (flags == cudaStreamSetCaptureDependencies) stream->last.clear();
  for (size_t i = 0; i < count; i++) stream->last.insert(reinterpret_cast<Node*>(nodes[i]));
  return cudaSuccess;
}

// ---- graphs: one that is instantiated is the graph itself

EXPORTED cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* instance, cudaGraph_t graph, unsigned long long) {
  *instance = reinterpret_cast<cudaGraphExec_t>(graph);
  record("capture", "instantiate", "graph=" + std::to_string(reinterpret_cast<Graph*>(graph)->number));
  return cudaSuccess;
}

EXPORTED cudaError_t cudaGraphLaunch(cudaGraphExec_t instance, cudaStream_t stream) {
  auto* graph = reinterpret_cast<Graph*>(instance);
  std::string details = "launched=" + std::to_string(graph->number) + " nodes=" + std::to_string(graph->nodes.size());
  return submit(stream, "graph", "cudaGraphLaunch", details) == Submitted::refused ? last_error() : cudaSuccess;
}

EXPORTED cudaError_t cudaGraphGetNodes(cudaGraph_t handle, cudaGraphNode_t* nodes, size_t* count) {
  auto* graph = reinterpret_cast<Graph*>(handle);
  size_t all = graph->nodes.size();
  for (size_t i = 0; nodes && i < *count; i++)
    nodes[i] = i < all ? reinterpret_cast<cudaGraphNode_t>(graph->nodes[i].get()) : nullptr;
  *count = nodes && *count < all ? *count : all;
  return cudaSuccess;
}

// They stay: an instance is its graph, and a replay that is in the log may ask for it.
EXPORTED cudaError_t cudaGraphDestroy(cudaGraph_t) { return cudaSuccess; }
EXPORTED cudaError_t cudaGraphExecDestroy(cudaGraphExec_t) { return cudaSuccess; }

// What a graph would free when it goes. It never does.
EXPORTED cudaError_t cudaUserObjectCreate(cudaUserObject_t* object, void*, cudaHostFn_t, unsigned, unsigned) {
  static int one;
  *object = reinterpret_cast<cudaUserObject_t>(&one);
  return cudaSuccess;
}
EXPORTED cudaError_t cudaUserObjectRelease(cudaUserObject_t, unsigned) { return cudaSuccess; }
EXPORTED cudaError_t cudaGraphRetainUserObject(cudaGraph_t, cudaUserObject_t, unsigned, unsigned) { return cudaSuccess; }
