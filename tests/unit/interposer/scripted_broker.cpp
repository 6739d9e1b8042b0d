// SPDX-License-Identifier: Apache-2.0
#include "tests/unit/interposer/scripted_broker.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <sstream>
#include <stdexcept>
#include <vector>

#include <dlfcn.h>
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "proto/handshake.hpp"
#include "tests/unit/interposer/fake_facts.hpp"

namespace mpsshim::test {

using proto::MessageType;

namespace {

std::string temporary_directory() {
  std::string name = "/tmp/mpsshim-test-XXXXXX";
  if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp failed");
  return name;
}

// Sealed as the control process seals it.
proto::FileDescriptor sealed(proto::FileDescriptor file) {
  if (!proto::seal(file, proto::Seal::size)) throw std::runtime_error("sealing failed");
  return file;
}

proto::FileDescriptor facts_file(std::uint32_t devices) {
  proto::FileDescriptor file = proto::create_memory_file("facts", sizeof(proto::DriverFacts));
  const auto facts = std::make_unique<proto::DriverFacts>();
  fill_fake_facts(*facts, devices);
  if (pwrite(file.get(), facts.get(), sizeof *facts, 0) != static_cast<ssize_t>(sizeof *facts)) throw std::runtime_error("pwrite failed");
  return sealed(std::move(file));
}

proto::FileDescriptor channel_file() {
  proto::FileDescriptor file = proto::create_memory_file("channel", proto::kChannelBytes);
  const std::array<std::uint64_t, 4> header = {proto::kChannelMagic, (std::uint64_t{proto::kLayoutMinor} << 32) | proto::kLayoutMajor, 1, 1};
  if (pwrite(file.get(), header.data(), sizeof header, 0) != static_cast<ssize_t>(sizeof header)) throw std::runtime_error("pwrite failed");
  return sealed(std::move(file));
}

}  // namespace

ScriptedBroker::ScriptedBroker(std::uint32_t devices, std::uint32_t hello_status, proto::Version version)
    : devices_(devices), hello_status_(hello_status), version_(version), directory_(temporary_directory()) {
  listener_ = proto::Socket::listen_at(directory_ + '/' + proto::kClientSocketName, 16);
  if (!listener_.valid()) throw std::runtime_error("the scripted broker cannot listen");
  thread_ = std::thread([this] { serve(); });
}

ScriptedBroker::~ScriptedBroker() {
  stop_ = true;
  thread_.join();
  std::filesystem::remove_all(directory_);
}

void ScriptedBroker::serve() {
  std::vector<proto::Socket> clients;
  while (!stop_) {
    if (listener_.wait_readable(clients.empty() ? 20 : 1)) {
      if (proto::Socket client = listener_.accept(); client.valid()) clients.push_back(std::move(client));
    }
    for (std::size_t i = 0; i < clients.size();) {
      std::array<std::byte, proto::kMaxMessageBytes> packet;
      std::size_t bytes = 0;
      proto::ReceivedFds fds;
      const proto::SocketStatus status = clients[i].receive(packet, bytes, fds);
      if (status == proto::SocketStatus::ok) {
        proto::MessageHeader header;
        std::memcpy(&header, packet.data(), sizeof header);
        answer(clients[i], static_cast<std::uint32_t>(header.type), packet, fds);
      }
      if (status == proto::SocketStatus::ok || status == proto::SocketStatus::would_block) {
        ++i;
      } else {
        clients.erase(clients.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
  }
}

void ScriptedBroker::answer(const proto::Socket& client, std::uint32_t type, std::span<const std::byte> packet, proto::ReceivedFds& fds) {
  if (type == static_cast<std::uint32_t>(MessageType::hello)) {
    ++hellos_;
    if (fds.count == 1) ++pidfds_;
    proto::Welcome welcome;
    welcome.header.status = hello_status_;
    welcome.layout_major = version_.major;
    welcome.layout_minor = version_.minor;
    const proto::FileDescriptor facts = facts_file(devices_);
    (void)(hello_status_ == 0 ? proto::send_message(client, welcome, {.facts = facts.get()}) : proto::send_message(client, welcome));
  } else if (type == static_cast<std::uint32_t>(MessageType::provision_ask)) {
    proto::ProvisionAsk ask;
    std::memcpy(&ask, packet.data(), sizeof ask);
    proto::ProvisionTold told;
    std::ranges::fill(told.thread_percentage, ask.thread_percentage);
    (void)proto::send_message(client, told);
  } else if (type == static_cast<std::uint32_t>(MessageType::device_order_ask)) {
    proto::DeviceOrderTold told;
    told.count = devices_;
    for (std::uint32_t i = 0; i < devices_; ++i) told.device[i] = is_turned_ ? devices_ - 1 - i : i;
    (void)proto::send_message(client, told);
  } else if (type == static_cast<std::uint32_t>(MessageType::attach)) {
    ++attaches_;
    const proto::FileDescriptor channel = channel_file();
    const proto::FileDescriptor fences = sealed(proto::create_memory_file("fences", proto::kFenceSegmentBytes));
    const proto::FileDescriptor ring_bell(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    const proto::FileDescriptor completion_bell(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    proto::Attached attached;
    attached.session = 1;
    attached.epoch = 1;
    attached.device_lease = {0x2000'0000'0000, 1ull << 34};
    attached.pinned_lease = {0x3800'0000'0000, 1ull << 34};
    (void)proto::send_message(
        client, attached,
        {.channel = channel.get(), .fences = fences.get(), .ring_doorbell = ring_bell.get(), .completion_doorbell = completion_bell.get()});
  }
}

void Report::expect(bool holds, const std::string& statement) const {
  if (holds) return;
  const std::string line = statement + '\n';
  if (write(fd_, line.data(), line.size()) < 0) _exit(3);
}

void Report::equal(long long found, long long expected, const std::string& what) const {
  expect(found == expected, what + " is " + std::to_string(found) + ", not " + std::to_string(expected));
}

Library::Library() : handle_(dlopen(MPSSHIM_LIBRARY, RTLD_NOW | RTLD_LOCAL)) {
  if (handle_ == nullptr) throw std::runtime_error(dlerror());
}

void* Library::symbol(const char* name) const { return dlsym(handle_, name); }

namespace {

std::string read_all(int fd) {
  std::string text;
  std::array<char, 4096> part;
  lseek(fd, 0, SEEK_SET);
  for (ssize_t got = 0; (got = read(fd, part.data(), part.size())) > 0;) text.append(part.data(), static_cast<std::size_t>(got));
  return text;
}

void set_environment(const std::string& directory, const std::string& environment) {
  for (const char* name : {"XDG_RUNTIME_DIR", "MPSSHIM_REQUIRE", "MPSSHIM_DISABLE", "MPSSHIM_DEBUG", "MPSSHIM_REAL_DRIVER", "CUDA_VISIBLE_DEVICES",
                           "CUDA_MODULE_LOADING"}) {
    unsetenv(name);
  }
  setenv("CUDA_MPS_PIPE_DIRECTORY", directory.c_str(), 1);
  std::istringstream words(environment);
  for (std::string word; words >> word;) {
    const std::size_t equals = word.find('=');
    setenv(word.substr(0, equals).c_str(), word.substr(equals + 1).c_str(), 1);
  }
}

}  // namespace

ChildEnd in_child(const std::string& directory, const std::string& environment, const std::function<void(const Report&, const Library&)>& body) {
  const proto::FileDescriptor complaints = proto::create_memory_file("complaints", 0);
  const proto::FileDescriptor errors = proto::create_memory_file("errors", 0);
  const pid_t child = fork();
  if (child == 0) {
    dup2(errors.get(), STDERR_FILENO);
    alarm(30);
    int status = 0;
    try {
      set_environment(directory, environment);
      const Library library;
      body(Report(complaints.get()), library);
    } catch (const std::exception& error) {
      Report(complaints.get()).expect(false, error.what());
      status = 2;
    }
    _exit(status);
  }
  int status = 0;
  waitpid(child, &status, 0);
  return {read_all(complaints.get()), read_all(errors.get()), WIFEXITED(status) && WEXITSTATUS(status) == 0};
}

}  // namespace mpsshim::test
