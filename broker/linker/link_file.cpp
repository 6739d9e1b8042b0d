// SPDX-License-Identifier: Apache-2.0
#include "broker/linker/link_file.hpp"

#include <algorithm>

namespace mpsshim::broker {

namespace {

// CUjit_option by number, since older toolkits lack names: 20 LTO, 21 FTZ, 22 and 23 precise division and root, 24 FMA, 30 position independent
// code, 31 blocks a multiprocessor, 32 threads a block, 33 override, 34 split compilation.
constexpr std::uint32_t kNewPlainOptions[] = {20, 21, 22, 23, 24, 30, 31, 32, 33, 34};

void write_options(PartWriter& writer, const std::vector<JitOption>& options) {
  writer.number(options.size());
  for (const JitOption& option : options) {
    writer.number(static_cast<std::uint32_t>(option.option));
    writer.number(option.value);
  }
}

// A driver takes any other for an address.
bool read_options(PartReader& reader, std::vector<JitOption>& options) {
  for (std::uint64_t left = reader.count(); left > 0 && reader.ok(); --left) {
    const std::uint64_t option = reader.number();
    const std::uint64_t value = reader.number();
    if (option > UINT32_MAX || value > UINT32_MAX || !is_plain_option(static_cast<std::uint32_t>(option))) return false;
    options.push_back({static_cast<CUjit_option>(option), static_cast<std::uint32_t>(value)});
  }
  return reader.ok();
}

std::string as_log(std::string text) {
  text.resize(std::min({text.size(), kLinkLogBytes - 1, text.find('\0')}));
  return text;
}

}  // namespace

bool is_plain_option(std::uint32_t option) {
  switch (option) {
    case CU_JIT_MAX_REGISTERS:
    case CU_JIT_THREADS_PER_BLOCK:
    case CU_JIT_OPTIMIZATION_LEVEL:
    case CU_JIT_TARGET_FROM_CUCONTEXT:
    case CU_JIT_TARGET:
    case CU_JIT_FALLBACK_STRATEGY:
    case CU_JIT_GENERATE_DEBUG_INFO:
    case CU_JIT_LOG_VERBOSE:
    case CU_JIT_GENERATE_LINE_INFO:
    case CU_JIT_CACHE_MODE:
    case CU_JIT_FAST_COMPILE: return true;
    default: break;
  }
  return std::find(std::begin(kNewPlainOptions), std::end(kNewPlainOptions), option) != std::end(kNewPlainOptions);
}

proto::FileDescriptor write_request(const LinkRequest& request) {
  PartWriter writer;
  writer.number(static_cast<std::uint64_t>(request.task));
  writer.number(request.linker);
  writer.number(request.known);
  writer.number(request.completes ? 1 : 0);
  write_options(writer, request.options);
  writer.number(request.steps.size());
  for (const LinkStep& step : request.steps) {
    writer.number(static_cast<std::uint64_t>(step.type));
    writer.place(step.bytes.bytes());
    writer.text(step.name);
    write_options(writer, step.options);
  }
  return writer.write(kRequestMagic, "mpsshim-link");
}

bool read_request(const ImageBytes& file, LinkRequest& request) {
  request = {};
  PartReader reader(kRequestMagic, file);
  request.task = static_cast<LinkRequest::Task>(reader.number());
  if (request.task > LinkRequest::Task::step) return false;
  request.linker = reader.number();
  request.known = reader.number();
  request.completes = reader.flag();
  if (!read_options(reader, request.options)) return false;
  const std::uint64_t steps = reader.count();
  if (steps > kMaxLinkSteps) return false;
  for (std::uint64_t left = steps; left > 0 && reader.ok(); --left) {
    LinkStep& step = request.steps.emplace_back();
    step.type = static_cast<CUjitInputType>(reader.number());
    step.bytes = reader.place();
    step.name = reader.text();
    if (!read_options(reader, step.options) || step.name.find('\0') != std::string::npos) return false;
  }
  if (request.task == LinkRequest::Task::load && (request.steps.size() != 1 || request.steps[0].bytes.empty())) return false;
  return reader.ok();
}

proto::FileDescriptor write_outcome(const LinkOutcome& outcome) {
  PartWriter writer;
  writer.number(static_cast<std::uint64_t>(outcome.end));
  writer.number(static_cast<std::uint64_t>(outcome.status));
  writer.text(as_log(outcome.error_log));
  writer.text(as_log(outcome.info_log));
  writer.place(outcome.code.bytes());
  return writer.write(kOutcomeMagic, "mpsshim-linked");
}

bool read_outcome(const ImageBytes& file, LinkOutcome& outcome) {
  outcome = {};
  PartReader reader(kOutcomeMagic, file);
  outcome.end = static_cast<LinkOutcome::End>(reader.number());
  outcome.status = static_cast<CUresult>(reader.number());
  outcome.error_log = as_log(reader.text());
  outcome.info_log = as_log(reader.text());
  outcome.code = reader.place();
  if (!reader.ok() || outcome.end > LinkOutcome::End::not_there || outcome.end == LinkOutcome::End::failed || outcome.code.size() > kMaxLinkBytes)
    return false;
  return outcome.end == LinkOutcome::End::done || outcome.status != CUDA_SUCCESS;
}

}  // namespace mpsshim::broker
