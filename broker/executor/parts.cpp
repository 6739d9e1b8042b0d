// SPDX-License-Identifier: Apache-2.0
#include "broker/executor/parts.hpp"

#include "broker/log.hpp"

namespace mpsshim::broker {

namespace {

constexpr char kNopPtx[] =
    ".version 6.0\n.target sm_50\n.address_size 64\n"
    ".visible .entry mpsshim_nop()\n{\n  ret;\n}\n";

}  // namespace

ExecutorParts::ExecutorParts(const ExecutorPartsInput& input)
    : ExecutorPartsInput(input), progress(input.progress_table, input.progress_address), streams(input.driver, progress), events(input.driver) {}

CUresult ExecutorParts::start() {
  CUmodule module = nullptr;
  CUresult result = driver->cuModuleLoadData(&module, kNopPtx);
  if (result == CUDA_SUCCESS) result = driver->cuModuleGetFunction(&nop_function, module, "mpsshim_nop");
  if (result != CUDA_SUCCESS) {
    nop_function = nullptr;
    log_warning("Launches are issued one by one, not in chains: the driver does not load the kernel for graph templates: {}", driver.describe(result));
  }
  return CUDA_SUCCESS;
}

}  // namespace mpsshim::broker
