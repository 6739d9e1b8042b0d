// SPDX-License-Identifier: Apache-2.0
// Whose word an executor takes for it that it has to compile by itself, and when.
#include "broker/executor/modules/linker_client.hpp"

#include <array>
#include <atomic>
#include <thread>

#include <sys/socket.h>

#include "broker/executor/link/control_link.hpp"
#include "broker/linker/link_file.hpp"
#include "tests/support/catch.hpp"
#include "tests/support/executor_messages.hpp"

namespace mpsshim::broker {
namespace {

int compute_mode = CU_COMPUTEMODE_DEFAULT;
int linked_here = 0;

CUresult CUDAAPI device_of(CUdevice* device) { return *device = 0, CUDA_SUCCESS; }
CUresult CUDAAPI attribute_of(int* value, CUdevice_attribute attribute, CUdevice) {
  return *value = attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_MODE ? compute_mode : 0, CUDA_SUCCESS;
}
CUresult CUDAAPI begin_linker(unsigned, CUjit_option*, void**, CUlinkState*) { return ++linked_here, CUDA_ERROR_NOT_SUPPORTED; }

std::unique_ptr<Driver> make_driver(int mode) {
  compute_mode = mode;
  linked_here = 0;
  DriverTable table;
  table.cuCtxGetDevice = device_of;
  table.cuDeviceGetAttribute = attribute_of;
  table.cuLinkCreate_v2 = begin_linker;
  return Driver::from_table(table);
}

// Beside a control process whose linker process says `says`.
struct Asker {
  explicit Asker(int mode) : driver(make_driver(mode)) {}
  ~Asker() {
    ::shutdown(sockets[0].fd(), SHUT_RDWR);
    control.join();
    receiver.join();
  }
  LinkOutcome ask(LinkOutcome::End linker_process_says) {
    says = linker_process_says;
    return client.run(1, 7, 0, {});
  }

  std::unique_ptr<Driver> driver;
  std::array<proto::Socket, 2> sockets = proto::Socket::pair();
  ControlLink link{std::move(sockets[1])};
  FaultReporter faults{*driver, link};
  LinkerClient client{*driver, link, faults};
  std::atomic<LinkOutcome::End> says{};
  std::atomic<int> asked{0};
  std::thread control{[this] {
    while (auto received = test::receive_message(sockets[0], proto::MessageDirection::from_executor)) {
      if (!received->is<message::LinkWant>()) continue;
      const auto [want, fds] = received->take<message::LinkWant>();
      ++asked;
      LinkOutcome outcome;
      outcome.end = says;
      if (outcome.end != LinkOutcome::End::done) outcome.status = CUDA_ERROR_NOT_SUPPORTED;
      const proto::FileDescriptor file = write_outcome(outcome);
      (void)test::send_message(sockets[0], {message::ImageGive{.question = want.question}, {.image = fds.request.get(), .prepared = file.get()}});
    }
  }};
  std::thread receiver{[this] { link.run([](ReceivedMessage&) {}); }};
};

using End = LinkOutcome::End;

}  // namespace

TEST_CASE("on a GPU that takes one process at a time an executor compiles where its linker process cannot, and asks it no more") {
  Asker asker(CU_COMPUTEMODE_EXCLUSIVE_PROCESS);
  for (int round = 1; round <= 2; ++round) {
    CHECK(asker.ask(End::not_there).status == CUDA_ERROR_NOT_SUPPORTED);  // the driver's answer
    CHECK(linked_here == round);
  }
  CHECK(asker.asked == 1);
}

TEST_CASE("a linker process that has compiled is not believed that it cannot") {
  Asker asker(CU_COMPUTEMODE_EXCLUSIVE_PROCESS);
  CHECK(asker.ask(End::done).status == CUDA_SUCCESS);
  const LinkOutcome outcome = asker.ask(End::not_there);
  CHECK(outcome.end == End::not_there);
  CHECK(linked_here == 0);
}

TEST_CASE("an executor compiles nothing by itself on a GPU that takes any process") {
  Asker asker(CU_COMPUTEMODE_DEFAULT);
  CHECK(asker.ask(End::not_there).end == End::not_there);
  CHECK(linked_here == 0);
}

TEST_CASE("an executor that is told so never compiles by itself") {
  Asker asker(CU_COMPUTEMODE_EXCLUSIVE_PROCESS);
  asker.client.never_here();
  CHECK(asker.ask(End::not_there).end == End::not_there);
  CHECK(asker.ask(End::not_there).end == End::not_there);
  CHECK(linked_here == 0);
  CHECK(asker.asked == 2);
}

}  // namespace mpsshim::broker
