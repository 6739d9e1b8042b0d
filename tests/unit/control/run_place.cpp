// SPDX-License-Identifier: Apache-2.0
// Where an mpsrun looks for a broker and makes one, and what it gives on.
#include <map>
#include <string>

#include "broker/run/parts.hpp"
#include "broker/run/place.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim::broker::run;

namespace {

const std::vector<std::string> kUsual = {"/run/user/7/mpsshim", "/tmp/mpsshim-7", "/run/mpsshim"};

std::optional<Place> place(std::map<std::string, std::string> environment, bool for_job = false, const std::string& option = "") {
  return choose_place(
      option, for_job, [&](const char* name) { return environment[name]; }, "/tmp/mpsshim-7", kUsual);
}

}  // namespace

TEST_CASE("a named place is the only one") {
  const auto by_option = place({{"CUDA_MPS_PIPE_DIRECTORY", "/b"}, {"SLURM_JOB_ID", "5"}}, false, "/a");
  CHECK(by_option->search == std::vector<std::string>{"/a"});
  CHECK(by_option->make == "/a");
  CHECK(by_option->is_named);
  CHECK(place({{"CUDA_MPS_PIPE_DIRECTORY", "/b"}}, true)->make == "/b");
}

TEST_CASE("outside of a job the usual places") {
  const auto usual = place({});
  CHECK(usual->search == kUsual);
  CHECK(usual->make == "/tmp/mpsshim-7");
  CHECK_FALSE(usual->is_named);
  CHECK_FALSE(place({}, true));
}

TEST_CASE("a job's broker comes first, and a step of Slurm makes its own") {
  const auto step = place({{"SLURM_JOB_ID", "5"}, {"SLURM_STEP_ID", "2"}});
  REQUIRE(step->search.size() == 3 + kUsual.size());
  CHECK(step->search[0] == "/tmp/mpsshim-7/job-5");
  CHECK(step->search[1] == "/run/mpsshim/job-5");
  CHECK(step->search[2] == "/tmp/mpsshim-7/step-5.2");
  CHECK(step->make == "/tmp/mpsshim-7/step-5.2");
  CHECK(place({{"SLURM_JOB_ID", "5"}})->make == "/tmp/mpsshim-7/step-5.batch");
  CHECK(place({{"SLURM_JOB_ID", "5"}, {"SLURM_STEP_ID", "2"}}, true)->make == "/tmp/mpsshim-7/job-5");
  CHECK(place({{"PBS_JOBID", "8.host/../x"}}, true)->make == "/tmp/mpsshim-7/job-8.host_.._x");
  CHECK(place({{"PBS_JOBID", "8.host"}})->make == "/tmp/mpsshim-7");
}

TEST_CASE("lists of libraries and folders keep what they have, and get ours once") {
  CHECK(with_preloaded("/l.so", "") == "/l.so");
  CHECK(with_preloaded("/l.so", "a.so b.so") == "a.so b.so:/l.so");
  CHECK(with_preloaded("/l.so", "a.so /l.so") == "a.so /l.so");
  CHECK(with_first("/f", "") == "/f");
  CHECK(with_first("/f", ":/a:") == "/f::/a:");
  CHECK(with_first("/f", "/a:/f:/f:/b") == "/f:/a:/b");
  CHECK(with_first("/f", "/f") == "/f");
}
