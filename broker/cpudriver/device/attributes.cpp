// SPDX-License-Identifier: Apache-2.0
#include "broker/cpudriver/device/attributes.hpp"

#include <climits>

#include "broker/cpudriver/config.hpp"

namespace mpsshim::cpudriver {
namespace {

using Table = std::array<int, kLastAttribute + 1>;

// What depends on the compute capability (CUDA Programming Guide, "Technical Specifications per Compute Capability").
struct Generation {
  int capability;
  int threads_per_multiprocessor;
  int blocks_per_multiprocessor;
  int shared_per_multiprocessor;
  int shared_per_block_optin;
  int reserved_shared_per_block;
};

constexpr Generation kGenerations[] = {
    {75, 1024, 16, 64 << 10, 64 << 10, 0},         {80, 2048, 32, 164 << 10, 163 << 10, 1 << 10},
    {86, 1536, 16, 100 << 10, 99 << 10, 1 << 10},  {87, 1536, 16, 164 << 10, 163 << 10, 1 << 10},
    {89, 1536, 24, 100 << 10, 99 << 10, 1 << 10},  {90, 2048, 32, 228 << 10, 227 << 10, 1 << 10},
    {100, 2048, 32, 228 << 10, 227 << 10, 1 << 10}, {120, 1536, 24, 100 << 10, 99 << 10, 1 << 10},
};

const Generation& generation_of(int capability) {
  const Generation* best = kGenerations;
  for (const Generation& generation : kGenerations) {
    if (generation.capability <= capability) best = &generation;
  }
  return *best;
}

void fill_execution(Table& t, const Generation& generation) {
  t[1] = 1024;                 // threads per block
  t[2] = t[3] = 1024;          // block x, y
  t[4] = 64;                   // block z
  t[5] = INT_MAX;              // grid x
  t[6] = t[7] = 65535;         // grid y, z
  t[8] = 48 << 10;             // shared memory per block without opting in
  t[9] = 64 << 10;             // constant memory
  t[10] = 32;                  // warp size
  t[12] = t[82] = 64 << 10;    // registers per block, per multiprocessor
  t[16] = kMultiprocessors;
  t[31] = 1;                   // concurrent kernels
  t[39] = generation.threads_per_multiprocessor;
  t[75] = Config::get().capability_major;
  t[76] = Config::get().capability_minor;
  t[78] = 1;                   // priorities are accepted
  t[79] = t[80] = 1;           // L1 caches
  t[81] = generation.shared_per_multiprocessor;
  t[87] = 32;                  // single to double precision
  t[90] = 1;                   // preemption
  t[95] = 1;                   // cooperative launch; 96, on several devices, was withdrawn
  t[97] = generation.shared_per_block_optin;
  t[106] = generation.blocks_per_multiprocessor;
  t[111] = generation.reserved_shared_per_block;
  t[126] = 1;                  // memory synchronisation domains
}

void fill_memory(Table& t) {
  t[11] = INT_MAX;             // pitch
  t[13] = 1590000;             // clock, kHz
  t[14] = 512;                 // texture alignment
  t[15] = 1;                   // copies beside kernels
  t[19] = 1;                   // maps host memory
  t[30] = 512;                 // surface alignment
  t[33] = 0;                   // PCI bus, of the first device (cuDeviceGetAttribute); 34 and 50 (device, domain) likewise 0
  t[36] = 5001000;             // memory clock, kHz
  t[37] = 256;                 // bus width
  t[38] = 4 << 20;             // L2
  t[40] = 3;                   // asynchronous engines
  t[41] = 1;                   // unified addressing
  t[51] = 32;                  // texture pitch alignment
  t[83] = 1;                   // managed memory
  t[86] = 1;                   // native atomics on host memory: it is one memory
  t[89] = 1;                   // concurrent managed access
  t[91] = 1;                   // host pointers of registered memory
  t[99] = 1;                   // host registration
  t[102] = t[103] = 1;         // VMM, file descriptors
  t[107] = 1;                  // compressible memory: it is told apart, and no byte of it is compressed
  t[108] = 3 << 20;            // persisting lines of L2; the limit is kept, as a hint may be
  t[109] = 32 << 20;           // access policy windows
  t[110] = 1;                  // RDMA flag of cuMemCreate is accepted
  t[113] = 1;                  // read-only registration
  t[122] = t[123] = 1;         // 64-bit memory operations, NOR
  t[92] = t[93] = t[94] = 1;   // the same by their old names
  t[98] = 1;                   // flush of remote writes
  t[134] = -1;                 // host NUMA node
  t[131] = -1;                 // the memory's NUMA node
}

void fill_textures(Table& t) {
  struct Limit {
    int first;
    int values[8];
    int count;
  };
  constexpr Limit kLimits[] = {
      {21, {131072, 131072, 65536, 16384, 16384, 16384, 32768, 32768}, 8}, {29, {2048}, 1},
      {42, {32768, 2048, 0, 32768, 32768, 8192, 8192, 32768}, 8},          {52, {32768, 32768, 2046, 32768}, 4},
      {56, {131072, 65536, 16384, 16384, 16384, 32768, 2048, 32768}, 8},   {64, {32768, 2048, 32768, 32768, 2046}, 5},
      {69, {268435456, 131072, 65000, 2097120, 32768, 32768}, 6},          {77, {32768}, 1},
  };
  for (const Limit& limit : kLimits) {
    for (int i = 0; i < limit.count; ++i) t[limit.first + i] = limit.values[i];
  }
}

Table make_table() {
  Table table{};
  fill_execution(table, generation_of(Config::get().capability_major * 10 + Config::get().capability_minor));
  fill_memory(table);
  fill_textures(table);
  table[CU_DEVICE_ATTRIBUTE_COMPUTE_MODE] = Config::get().exclusive.empty() ? CU_COMPUTEMODE_DEFAULT : CU_COMPUTEMODE_EXCLUSIVE_PROCESS;
  return table;
}

}  // namespace

bool device_attribute(int attribute, int& value) {
  static const Table table = make_table();
  if (attribute < kFirstAttribute || attribute > kLastAttribute) return false;
  value = table[static_cast<std::size_t>(attribute)];
  return true;
}

int attribute_of(CUdevice_attribute attribute) {
  int value = 0;
  return device_attribute(attribute, value) ? value : 0;
}

}  // namespace mpsshim::cpudriver
