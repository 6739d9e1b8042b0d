// SPDX-License-Identifier: Apache-2.0
#include "broker/run/place.hpp"

#include <algorithm>
#include <cctype>

#include "proto/pipe_directory.hpp"

namespace mpsshim::broker::run {

namespace {

constexpr const char* kJobVariables[] = {"SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "FLUX_JOB_ID", "JOB_ID"};

// It becomes the name of a folder.
std::string plain(std::string text) {
  std::ranges::replace_if(
      text, [](unsigned char c) { return std::isalnum(c) == 0 && c != '.' && c != '-' && c != '_'; }, '_');
  return text;
}

std::string job_of(const Environment& environment) {
  for (const char* name : kJobVariables) {
    if (const std::string value = environment(name); !value.empty()) return plain(value);
  }
  return "";
}

}  // namespace

std::optional<Place> choose_place(const std::string& option, bool for_job, const Environment& environment, const std::string& base,
                                  const std::vector<std::string>& usual) {
  const std::string named = option.empty() ? environment("CUDA_MPS_PIPE_DIRECTORY") : option;
  if (!named.empty()) return Place{{named}, named, true};
  const std::string job = job_of(environment);
  if (job.empty()) return for_job ? std::nullopt : std::optional(Place{usual, base, false});
  Place place;
  const std::string of_job = base + "/job-" + job;
  place.search = {of_job, std::string(proto::kSystemPipeDirectory) + "/job-" + job};
  place.make = of_job;
  if (for_job) return place;
  const std::string step = environment("SLURM_JOB_ID").empty() ? "" : plain(environment("SLURM_STEP_ID"));
  place.make = base;
  if (!environment("SLURM_JOB_ID").empty()) place.make += "/step-" + job + "." + (step.empty() ? "batch" : step);
  place.search.push_back(place.make);
  place.search.insert(place.search.end(), usual.begin(), usual.end());
  return place;
}

}  // namespace mpsshim::broker::run
