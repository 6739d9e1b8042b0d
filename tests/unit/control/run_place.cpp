// SPDX-License-Identifier: Apache-2.0
// Where an mpsrun looks for a broker and makes one, and what it gives on.
#include <map>
#include <string>

#include "broker/run/device.hpp"
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

TEST_CASE("mpsrun --device: one that is named, or the local rank's") {
  std::string why;
  unsigned asked = 0;
  const auto device = [&](const std::string& option, std::map<std::string, std::string> environment, std::optional<unsigned> count = 4) {
    why.clear();
    asked = 0;
    return choose_device(
        option, [&](const char* name) { return environment[name]; }, [&](std::string&) { return ++asked, count; }, why);
  };
  CHECK(device("3", {}) == "3");
  CHECK(device("GPU-4b", {{"OMPI_COMM_WORLD_LOCAL_RANK", "1"}}) == "GPU-4b");
  CHECK(device("MIG-4b", {}) == "MIG-4b");
  CHECK(asked == 0);
  for (const char* word : {"", "-1", "1,2", "gpu", "Local", "1x"}) {
    CHECK_FALSE(device(word, {}));
    CHECK(why.find("is no device: an index from 0") != std::string::npos);
  }
  for (const char* name : {"OMPI_COMM_WORLD_LOCAL_RANK", "MPI_LOCALRANKID", "MV2_COMM_WORLD_LOCAL_RANK", "PALS_LOCAL_RANKID", "FLUX_TASK_LOCAL_ID",
                           "JSM_NAMESPACE_LOCAL_RANK", "LOCAL_RANK", "SLURM_LOCALID"}) {
    CHECK(device("local", {{name, "2"}}) == "2");
    CHECK(asked == 1);
    CHECK(device("local", {{name, "6"}}) == "2");
    CHECK(device("local", {{name, "6"}}, 1) == "0");
    CHECK(device("local", {{name, "1"}, {"CUDA_VISIBLE_DEVICES", "5,7"}}) == "7");
    CHECK(device("local", {{name, "4"}, {"CUDA_VISIBLE_DEVICES", "GPU-a,7,GPU-c"}}) == "7");
    CHECK(asked == 0);
  }
  CHECK(device("local", {{"SLURM_LOCALID", "0"}, {"OMPI_COMM_WORLD_LOCAL_RANK", "3"}}) == "3");  // mpirun in a batch script
  CHECK_FALSE(device("local", {}));
  CHECK(why.find("no launcher has said") != std::string::npos);
  CHECK_FALSE(device("local", {{"SLURM_LOCALID", "x"}}));
  CHECK(why.find("SLURM_LOCALID=x is no number") != std::string::npos);
  CHECK_FALSE(device("local", {{"SLURM_LOCALID", "0"}}, std::nullopt));
}

TEST_CASE("mpsrun --gpu-share: a percentage, unless a lower one is there") {
  CHECK(with_gpu_share("30%", "") == "30.0");
  CHECK(with_gpu_share("12.5", "") == "12.5");
  CHECK(with_gpu_share("30", "20") == "20.0");
  CHECK(with_gpu_share("30", "40") == "30.0");
  CHECK(with_gpu_share("100%", "nonsense") == "100.0");
  for (const char* word : {"", "%", "0", "0%", "101%", "30%%", "-1", "a third", "30 %"}) CHECK_FALSE(with_gpu_share(word, ""));
}

TEST_CASE("mpsrun --mem: for all devices, beside limits that are there") {
  CHECK(with_memory_limit("4G", "") == "all=4G");
  CHECK(with_memory_limit("900MiB", "0=1G") == "0=1G,all=900MiB");
  for (const char* word : {"", "4", "0G", "-1G", "4X", "G", "4G,0=9G", "99999999999999999999G"}) CHECK_FALSE(with_memory_limit(word, ""));
}
