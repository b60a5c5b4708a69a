// Which devices there are. Both fakes are built with this file, so they agree.
#include "card.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <sstream>

namespace fake {
namespace {

[[noreturn]] void give_up(const std::string& why) {
  fprintf(stderr, "The fake CUDA is loaded, and %s. tests/fake_cuda/environment.py sets it.\n", why.c_str());
  _Exit(2);
}

std::map<std::string, std::string> fields_of(const char* text) {
  std::map<std::string, std::string> fields;
  std::istringstream stream(text);
  for (std::string field; std::getline(stream, field, ';');) {
    auto sign = field.find('=');
    if (sign != std::string::npos) fields[field.substr(0, sign)] = field.substr(sign + 1);
  }
  return fields;
}

Card read_card() {
  const char* text = getenv("FAKE_CUDA_CARD");
  if (!text) give_up("FAKE_CUDA_CARD is not set");
  auto fields = fields_of(text);
  auto value = [&](const char* name) -> const std::string& {
    if (!fields.count(name)) give_up(std::string("FAKE_CUDA_CARD has no ") + name);
    return fields[name];
  };
  auto number = [&](const char* name) { return std::stod(value(name)); };
  Card card;
  card.device_name = value("device_name");
  card.major = int(number("major"));
  card.minor = int(number("minor"));
  card.multiprocessors = int(number("multiprocessors"));
  card.memory_bytes = std::stoull(value("memory_bytes"));
  card.memory_bytes_per_s = number("memory_bytes_per_s");
  card.l2_bytes = std::stoull(value("l2_bytes"));
  card.clock_hz = number("clock_hz");
  card.power_limit_watts = number("power_limit_watts");
  card.shared_bytes_per_multiprocessor = int(number("shared_bytes_per_multiprocessor"));
  card.shared_bytes_per_block = int(number("shared_bytes_per_block"));
  card.threads_per_multiprocessor = int(number("threads_per_multiprocessor"));
  return card;
}

// The place of what CUDA_VISIBLE_DEVICES calls a device; -1 where there is none such.
int place_of(const std::string& word) {
  if (word.rfind("GPU-", 0) == 0) {  // the beginning of a UUID is enough for CUDA
    for (int place = 0; place < machine_device_count(); place++)
      if (uuid_text(place).rfind(word, 0) == 0) return place;
    return -1;
  }
  char* end = nullptr;
  long place = strtol(word.c_str(), &end, 10);
  return end != word.c_str() && place >= 0 && place < machine_device_count() ? int(place) : -1;
}

// Of slices CUDA shows one: that which is named, else the first of the first card.
std::pair<int, int> read_shown_slice() {
  const char* given = getenv("CUDA_VISIBLE_DEVICES");
  for (int place = 0; place < machine_device_count(); place++)
    for (int slice = 0; slice < SLICES; slice++)
      if (!given || uuid_text(place, slice) == given || place_of(given) == place) return {place, slice};
  return {-1, -1};
}

std::vector<int> read_visible_devices() {
  std::vector<int> places;
  const char* given = getenv("CUDA_VISIBLE_DEVICES");
  if (is_sliced()) {
    int place = read_shown_slice().first;
    return place < 0 ? places : std::vector<int>{place};
  }
  if (!given) {
    for (int place = 0; place < machine_device_count(); place++) places.push_back(place);
    return places;
  }
  std::istringstream stream(given);
  for (std::string word; std::getline(stream, word, ',');) {
    int place = place_of(word);
    if (place < 0) break;  // CUDA shows what stands before the first that it does not know
    places.push_back(place);
  }
  return places;
}

}  // namespace

const Card& card() {
  static const Card* one = new Card(read_card());
  return *one;
}

int machine_device_count() {
  const char* count = getenv("FAKE_CUDA_DEVICES");
  return count ? atoi(count) : 1;
}

const std::vector<int>& visible_devices() {
  static const auto* places = new std::vector<int>(read_visible_devices());
  return *places;
}

bool is_sliced() {
  const char* given = getenv("FAKE_CUDA_MIG");
  return given && !strcmp(given, "1");
}

int shown_slice() {
  static const int slice = is_sliced() ? read_shown_slice().second : -1;
  return slice;
}

std::string name_of(int slice) {
  if (slice < 0) return card().device_name;
  return card().device_name + " MIG 3g." + std::to_string((memory_bytes_of(slice) >> 30) + 1) + "gb";
}

size_t memory_bytes_of(int slice) { return slice < 0 ? card().memory_bytes : card().memory_bytes / SLICES; }

std::array<unsigned char, 16> uuid_of(int place, int slice) {
  std::array<unsigned char, 16> bytes{};
  bytes[0] = 0xfa;
  bytes[1] = 0xce;
  bytes[14] = static_cast<unsigned char>(slice + 1);
  bytes[15] = static_cast<unsigned char>(place + 1);
  return bytes;
}

std::string uuid_text(int place, int slice) {
  std::string text = slice < 0 ? "GPU-" : "MIG-";
  auto bytes = uuid_of(place, slice);
  for (size_t i = 0; i < bytes.size(); i++) {
    if (i == 4 || i == 6 || i == 8 || i == 10) text += "-";
    char two[3];
    snprintf(two, sizeof two, "%02x", bytes[i]);
    text += two;
  }
  return text;
}

std::string pci_bus_id(int place) {
  char text[16];
  snprintf(text, sizeof text, "0000:%02x:00.0", place + 1);
  return text;
}

}  // namespace fake

// The mark of the fake, for which harness/measure/fake_cuda_guard.py looks. Returns what FAKE_CUDA_CARD holds.
extern "C" __attribute__((visibility("default"))) const char* fake_cuda_card() {
  const char* text = getenv("FAKE_CUDA_CARD");
  return text ? text : "";
}
