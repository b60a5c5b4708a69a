// The log of all calls, as text that Python takes in one piece.
#include "fake.h"

namespace fake {
namespace {

std::string& text() {
  static auto* log = new std::string;
  return *log;
}

}  // namespace

std::recursive_mutex& state() {
  static auto* lock = new std::recursive_mutex;
  return *lock;
}

void record(const std::string& kind, const std::string& what, const std::string& details) {
  Guard guard(state());
  text() += kind + '\t' + what + '\t' + details + '\n';
}

void record_fault(const std::string& what) { record("fault", what); }

}  // namespace fake

EXPORTED void fake_cuda_reset() {
  fake::Guard guard(fake::state());
  fake::text().clear();
}

// The text stays as long as nothing else is called.
EXPORTED const char* fake_cuda_log(size_t* length) {
  fake::Guard guard(fake::state());
  *length = fake::text().size();
  return fake::text().data();
}

// Called by the generated stubs: a function of CUDA that PyTorch needs and nobody has written here.
EXPORTED void fake_cuda_stub(const char* name) { fake::record("stub", name); }
