// SPDX-License-Identifier: Apache-2.0
#include "broker/control/base/pod_identity.hpp"

#include <string>

#include "tests/support/catch.hpp"

using namespace mpsshim::broker::control;

namespace {

const std::string kPod = "2b7a1f0e-6c1d-4c8e-9f3a-0123456789ab";
const std::string kPodOfSystemd = "2b7a1f0e_6c1d_4c8e_9f3a_0123456789ab";
const std::string kContainer(64, 'c');

}  // namespace

TEST_CASE("pods: the known shapes of a cgroup's path are understood") {
  const std::string paths[] = {
      "/kubepods/burstable/pod" + kPod + "/" + kContainer,
      "/kubepods/pod" + kPod + "/" + kContainer,
      "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod" + kPodOfSystemd + ".slice/cri-containerd-" + kContainer + ".scope",
      "/kubepods.slice/kubepods-pod" + kPodOfSystemd + ".slice/crio-" + kContainer + ".scope",
      "/kubelet.slice/kubelet-kubepods.slice/x/kubepods-burstable-pod" + kPodOfSystemd + ".slice/docker-" + kContainer + ".scope",
  };
  for (const std::string& path : paths) {
    INFO(path);
    for (const std::string& text : {"0::" + path + "\n", "12:pids:/\n3:cpu,cpuacct:" + path + "\n0::/\n", "0::" + path}) {
      const PodIdentity found = pod_in(text);
      CHECK(found.pod == kPod);
      CHECK(found.container == kContainer);
    }
  }
  CHECK(pod_in("0::/docker/" + kContainer + "\n").container == kContainer);
  CHECK(pod_in("0::/docker/" + kContainer + "\n").pod.empty());
  CHECK(pod_in("0::/kubepods/besteffort/pod" + std::string(32, '5') + "/x\n").pod == std::string(32, '5'));
}

TEST_CASE("pods: whatever else a path says is nothing") {
  const std::string texts[] = {
      "",
      "\n",
      "0::/\n",
      "0::/user.slice/user-1000.slice/session-3.scope\n",
      "no colons at all",
      "1:2",
      "0::/kubepods/pod\n",
      "0::/kubepods/pod" + kPod + "a/x\n",
      "0::/kubepods/pod" + kPod.substr(1) + "/x\n",
      "0::/kubepods/pod2B7A1F0E-6C1D-4C8E-9F3A-0123456789AB/x\n",
      "0::/kubepods/pod2b7a1f0e-6c1d-4c8e-9f3a-0123456789a\"/x\n",
      "0::/kubepods/pod" + kPodOfSystemd + "/x\n",
      "0::/other-pod" + kPodOfSystemd + ".slice/x\n",
      "0::/a/" + kContainer.substr(1) + "\n",
      "0::/a/" + kContainer + "c\n",
      "0::/" + kContainer + "/b\n",
      "0::/evil-" + kContainer + ".scope\n",
      "0::/docker-" + kContainer + "\n",
      std::string("0::/kubepods/pod\0", 17) + kPod,
      std::string(20'000, '/'),
  };
  for (const std::string& text : texts) {
    INFO(text.substr(0, 200));
    CHECK(pod_in(text).pod.empty());
    CHECK(pod_in(text).container.empty());
  }
}

TEST_CASE("pods: of a process that is not there, or cannot be seen, nothing is known") {
  for (const pid_t pid : {pid_t{0}, pid_t{-1}, pid_t{1 << 30}}) {
    CHECK(pod_of(pid).pod.empty());
    CHECK(pod_of(pid).container.empty());
  }
}
