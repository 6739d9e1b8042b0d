// SPDX-License-Identifier: Apache-2.0
#include "broker/cpudriver/ptx/unsupported.hpp"

#include <algorithm>

namespace mpsshim::ptx {
namespace {

constexpr std::string_view kTextures = "textures";
constexpr std::string_view kSurfaces = "surfaces";
constexpr std::string_view kMatrices = "matrix instructions (tensor cores)";
constexpr std::string_view kClusters = "thread block clusters";
constexpr std::string_view kVideo = "SIMD video instructions";
constexpr std::string_view kCachePolicies = "cache policies";

struct UnsupportedRow {
  std::string_view name;
  std::string_view what;
};

constexpr UnsupportedRow kUnsupportedInstructions[] = {
    {"tex", kTextures},
    {"tld4", kTextures},
    {"txq", kTextures},
    {"istypep", kTextures},
    {"suld", kSurfaces},
    {"sust", kSurfaces},
    {"sured", kSurfaces},
    {"suq", kSurfaces},
    {"wmma", kMatrices},
    {"mma", kMatrices},
    {"wgmma", kMatrices},
    {"tcgen05", kMatrices},
    {"ldmatrix", kMatrices},
    {"stmatrix", kMatrices},
    {"movmatrix", kMatrices},
    {"mbarrier", "asynchronous barriers (mbarrier)"},
    {"cp", "asynchronous copies (cp.async)"},
    {"mapa", kClusters},
    {"getctarank", kClusters},
    {"clusterlaunchcontrol", kClusters},
    {"multimem", "multicast operations"},
    {"setmaxnreg", "changes of the register count (setmaxnreg)"},
    {"elect", "elections of a lane (elect)"},
    {"brx", "branches through a table (brx.idx)"},
    {"alloca", "stack allocations (alloca)"},
    {"stacksave", "stack allocations (alloca)"},
    {"stackrestore", "stack allocations (alloca)"},
    {"createpolicy", kCachePolicies},
    {"applypriority", kCachePolicies},
    {"discard", kCachePolicies},
};

constexpr std::string_view kVideoOpcodes[] = {"vadd", "vsub", "vabsdiff", "vmin", "vmax", "vshl", "vshr", "vmad", "vset", "vavrg"};

constexpr UnsupportedRow kUnsupportedDirectives[] = {
    {"texref", kTextures},
    {"tex", kTextures},
    {"samplerref", kTextures},
    {"surfref", kSurfaces},
    {"reqnctapercluster", kClusters},
    {"explicitcluster", kClusters},
    {"maxclusterrank", kClusters},
    {"blocksareclusters", kClusters},
};

}  // namespace

std::string_view unsupported_instruction(std::string_view opcode) {
  for (const UnsupportedRow& row : kUnsupportedInstructions) {
    if (row.name == opcode) return row.what;
  }
  if (opcode.ends_with('2') || opcode.ends_with('4')) opcode.remove_suffix(1);
  return std::ranges::find(kVideoOpcodes, opcode) != std::end(kVideoOpcodes) ? kVideo : std::string_view();
}

std::string_view unsupported_directive(std::string_view name) {
  for (const UnsupportedRow& row : kUnsupportedDirectives) {
    if (row.name == name) return row.what;
  }
  return {};
}

std::string_view unsupported_register(std::string_view name) {
  const bool is_of_clusters = name.starts_with("%cluster") || name.starts_with("%ncluster") || name.starts_with("%is_explicit_cluster");
  return is_of_clusters ? kClusters : std::string_view();
}

std::string unsupported_sentence(std::string_view what, std::string_view where, std::string_view function) {
  std::string sentence = std::string(what) + " are not supported by the CPU driver ('" + std::string(where) + "'";
  if (!function.empty()) sentence += " in '" + std::string(function) + "'";
  return sentence + ")";
}

}  // namespace mpsshim::ptx
