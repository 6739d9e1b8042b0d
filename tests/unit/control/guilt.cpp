// SPDX-License-Identifier: Apache-2.0
#include "broker/control/guilt.hpp"

#include <chrono>
#include <cstring>
#include <memory>

#include "broker/control/lease_table.hpp"
#include "broker/control/recovery.hpp"
#include "tests/support/catch.hpp"

using namespace mpsshim;
using namespace mpsshim::broker;
using namespace mpsshim::broker::control;

namespace {

using Sessions = std::vector<SessionCondition>;

constexpr std::uint64_t kMemoryBytes = 1ull << 30;  // of each session
const DeathReport kFault{DeathReport::Cause::fault, CUDA_ERROR_ILLEGAL_ADDRESS, 0};

SessionCondition with_kernel(std::uint64_t id) {
  SessionCondition condition{id, true};
  condition.kernels = "k";
  condition.ranges = {{id * 64 * kMemoryBytes, kMemoryBytes}};
  return condition;
}

void check(const Guilt& guilt, std::uint64_t session, Proof proof) {
  CHECK(guilt.session == session);
  CHECK(static_cast<int>(guilt.proof) == static_cast<int>(proof));
}

// A stream whose last launch is `launched`.
void set(ProgressFile& file, std::size_t index, std::uint64_t session, std::uint32_t issued, std::uint32_t completed, std::uint32_t launched,
         std::uint32_t function = 0) {
  StreamProgress& stream = file.table.stream[index];
  stream.session = session;
  stream.issued = issued;
  stream.completed = completed;
  stream.launched = launched;
  stream.function = function;
}

}  // namespace

TEST_CASE("who alone had a kernel under way is guilty, whoever else was busy") {
  check(find_guilty(kFault, Sessions{{1, false}, {2, true}, with_kernel(3)}, std::nullopt), 3, Proof::only_suspect);
  check(find_guilty(kFault, Sessions{{1, false}, {2, true}}, std::nullopt), 2, Proof::only_suspect);
}

TEST_CASE("of several with kernels none is shown guilty, nor of several without") {
  check(find_guilty(kFault, Sessions{with_kernel(1), with_kernel(2), {3, true}}, std::nullopt), 0, Proof::none);
  check(find_guilty(kFault, Sessions{{1, true}, {2, true}}, std::nullopt), 0, Proof::none);
  check(find_guilty(kFault, Sessions{{1, false}}, std::nullopt), 0, Proof::none);
  CHECK(find_suspects(Sessions{with_kernel(1), with_kernel(2), {3, true}, {4, false}}) == std::vector<std::uint64_t>{1, 2});
}

TEST_CASE("an address shows guilty whose ranges it lies in, if that one is a suspect") {
  const Sessions sessions{with_kernel(1), with_kernel(2), {3, true}};
  check(find_guilty(kFault, sessions, 128 * kMemoryBytes + 4096), 2, Proof::address);
  check(find_guilty(kFault, sessions, 64 * kMemoryBytes + kMemoryBytes + kLeaseGuardBytes - 1), 1, Proof::address);  // just behind its memory
  check(find_guilty(kFault, sessions, 64 * kMemoryBytes - kLeaseGuardBytes), 1, Proof::address);
  check(find_guilty(kFault, sessions, 64 * kMemoryBytes + kMemoryBytes + kLeaseGuardBytes), 0, Proof::none);
  check(find_guilty(kFault, sessions, 0x10), 0, Proof::none);
  check(find_guilty(kFault, sessions, ~0ull), 0, Proof::none);
  Sessions others = sessions;
  others[2].ranges = {{192 * kMemoryBytes, kMemoryBytes}};
  check(find_guilty(kFault, others, 192 * kMemoryBytes), 0, Proof::none);  // memory of one that had no kernel under way
}

TEST_CASE("nobody is guilty of a crash or a replacement") {
  for (const auto cause : {DeathReport::Cause::crash, DeathReport::Cause::replaced}) {
    check(find_guilty(DeathReport{cause, CUDA_SUCCESS, 0}, Sessions{with_kernel(1)}, std::nullopt), 0, Proof::none);
  }
}

TEST_CASE("what failed by itself is no program's doing") {
  for (const CUresult error : {CUDA_ERROR_ILLEGAL_ADDRESS, CUDA_ERROR_ASSERT, CUDA_ERROR_LAUNCH_FAILED}) CHECK(is_a_programs_doing(error));
  for (const CUresult error : {CUDA_ERROR_ECC_UNCORRECTABLE, CUDA_ERROR_NVLINK_UNCORRECTABLE}) CHECK_FALSE(is_a_programs_doing(error));
}

TEST_CASE("a kernel is under way until the word has come to its launch") {
  const auto file = std::make_unique<ProgressFile>();
  const char name[] = "_Z4axpyPfi";
  std::memcpy(file->names.text + 1, name, sizeof name);
  set(*file, 0, 1, 5, 4, 5, 1);              // its last operation is a kernel
  set(*file, 1, 1, 9, 2, 6, 0);              // another stream of it: a kernel, then copies
  set(*file, 2, 2, 7, 5, 5, 1);              // its kernels are done, a copy runs
  set(*file, 3, 3, 4, 4, 4, 1);              // idle
  set(*file, 4, 0, 4, 1, 4, 1);              // nobody's
  set(*file, 5, 4, 2, 0xffff'fffe, 1, ~0u);  // the count has wrapped; a name outside the memory
  const KernelsUnderWay kernels = kernels_under_way(*file);
  CHECK(kernels.size() == 2);
  CHECK(kernels.at(1) == "(name unknown), axpy(float*, int)");
  CHECK(kernels.at(4) == "(name unknown)");
}

TEST_CASE("a name that would be gigabytes when demangled is shown as it is, at once") {
  // Each type is a pair of the one before: twice as long.
  std::string name = "_Z1fSt4pairIiiE";
  for (const char number : std::string("0123456789ABCDEFGHIJKLMNOPQ")) name += std::string("S_IS") + number + "_S" + number + "_E";
  const auto began = std::chrono::steady_clock::now();
  CHECK(readable_function(name).starts_with("_Z1fSt4pairIiiE"));
  CHECK(std::chrono::steady_clock::now() - began < std::chrono::milliseconds(100));
}

TEST_CASE("names are readable, of bounded length, and harmless in a log") {
  CHECK(readable_function("add") == "add");
  CHECK(readable_function("_Z3addIfEvPT_") == "void add<float>(float*)");
  CHECK(readable_function("a\nb") == "a?b");
  CHECK(readable_function(std::string(1000, 'x')).size() == 200);
  CHECK(readable_function("_ZN2at6native29vectorized_elementwise_kernelILi4ENS0_11FillFunctorIfEEEEviT0_").starts_with("void at::native::vectorized"));
}
