// The devices that the fakes of CUDA and of NVML show: one card, FAKE_CUDA_DEVICES times.
#pragma once

#include <array>
#include <string>
#include <vector>

namespace fake {

// As tests/made/gpu_specs.py has it: that table stands once, and comes here in the variable FAKE_CUDA_CARD.
struct Card {
  std::string device_name;
  int major, minor;
  int multiprocessors;
  size_t memory_bytes;
  double memory_bytes_per_s;
  size_t l2_bytes;
  double clock_hz;
  double power_limit_watts;
  int shared_bytes_per_multiprocessor;
  int shared_bytes_per_block;  // at most, for a kernel that asks for it
  int threads_per_multiprocessor;
};

// Ends the process where FAKE_CUDA_CARD is missing or incomplete: nothing is guessed.
const Card& card();

// All of the machine, and those of them that CUDA_VISIBLE_DEVICES shows, in its order: by index or GPU-UUID.
int machine_device_count();
const std::vector<int>& visible_devices();

// FAKE_CUDA_MIG=1: each card is cut into two slices, of which CUDA shows one; -1 where nothing is cut.
constexpr int SLICES = 2;
bool is_sliced();
int shown_slice();
// Of a card or of a slice of it.
std::string name_of(int slice);
size_t memory_bytes_of(int slice);

// Of a device by its place in the machine.
std::array<unsigned char, 16> uuid_of(int place, int slice = -1);
std::string uuid_text(int place, int slice = -1);
std::string pci_bus_id(int place);

}  // namespace fake
