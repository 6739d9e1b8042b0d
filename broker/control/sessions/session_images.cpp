// SPDX-License-Identifier: Apache-2.0
// SessionManager's part in a module's load: the image an executor asks for, what a compiler process of the session's user makes of it, and what a
// linker process does of the texts in it.
#include <array>
#include <cstring>

#include "broker/control/sessions/session_manager.hpp"

namespace mpsshim::broker::control {

namespace {

void refuse_image(Executor& executor, ExecutorPacket answer, CUresult status, const std::string& why) {
  answer.header.status = static_cast<std::uint32_t>(status);
  std::strncpy(answer.text, why.c_str(), sizeof answer.text - 1);
  executor.send(answer);
}

}  // namespace

void SessionManager::give_image(Executor& executor, const ExecutorPacket& packet) {
  ExecutorPacket answer;
  answer.header = {ExecutorMessage::image_give, CUDA_SUCCESS, packet.header.session};
  answer.object = packet.object;
  answer.address = packet.address;
  const Session* const session = find(packet.header.session);
  int file = images_.sealed_file(packet.header.session, packet.object, answer.size_bytes);
  if (file < 0) return refuse_image(executor, answer, CUDA_ERROR_INVALID_HANDLE, "the image is not known to the broker");
  const int compiled = images_.compiled_file(executor.id().device, packet.object);
  if (compiled >= 0) file = compiled;
  if (!compilers_) return executor.send(answer, {&file, 1});
  const Compilers::Image image{session != nullptr ? session->client.uid : 0, packet.object, compiled >= 0, packet.purpose, packet.flags};
  have_made(*compilers_, executor, answer, image, file);
}

// Of a linker: read once, kept by nobody.
void SessionManager::check_input(Executor& executor, const ExecutorPacket& packet, const proto::FileDescriptor& input) {
  ExecutorPacket answer;
  answer.header = {ExecutorMessage::image_give, CUDA_SUCCESS, packet.header.session};
  answer.address = packet.address;
  const int file = input.get();
  if (!compilers_) return executor.send(answer, {&file, 1});
  const Session* const session = find(packet.header.session);
  have_made(*compilers_, executor, answer, {session != nullptr ? session->client.uid : 0, ++last_input_, false, packet.purpose, kImageIsInput}, file);
}

// A GPU that takes one process at a time has no context for another: there the executor has to do it itself.
void SessionManager::have_linked(Executor& executor, const ExecutorPacket& packet, const proto::FileDescriptor& request) {
  ExecutorPacket answer;
  answer.header = {ExecutorMessage::image_give, CUDA_SUCCESS, packet.header.session};
  answer.address = packet.address;
  answer.client_pid = packet.client_pid;
  const int file = request.get();
  if (!linkers_ || executor.is_exclusive()) return send_to_process(executor, answer, {&file, 1});
  linker_launcher_->use_driver(executor.driver());
  const Session* const session = find(packet.header.session);
  const bool is_of_image = packet.object != 0;
  const Compilers::Image image{session != nullptr ? session->client.uid : executor.log_user(),
                               is_of_image ? packet.object : ++last_input_,
                               false,
                               0,
                               is_of_image ? packet.flags : kImageIsInput,
                               executor.device()};
  have_made(*linkers_, executor, answer, image, file);
}

// A standby, which may serve by then, asks for what it makes again.
void SessionManager::send_to_process(Executor& executor, const ExecutorPacket& answer, std::span<const int> files) {
  if (executor.pid() == static_cast<pid_t>(answer.client_pid)) return executor.send(answer, files);
  ExecutorInstance* const standby = executor.standby();
  if (standby != nullptr && standby->pid() == static_cast<pid_t>(answer.client_pid)) standby->send(answer, files);
}

void SessionManager::have_made(Compilers& by, Executor& executor, const ExecutorPacket& answer, const Compilers::Image& image, int file) {
  const Session* const session = find(answer.header.session);
  if (session == nullptr && answer.header.session != 0) {
    return refuse_image(executor, answer, CUDA_ERROR_MPS_SERVER_NOT_READY, "its session has ended");
  }
  // Kept until then: the session may end, and the image with it.
  const auto given = std::make_shared<proto::FileDescriptor>(proto::duplicate_of(file));
  const auto done = [this, id = executor.id(), epoch = executor.epoch(), answer, given](CUresult status, const std::string& why, int made) {
    const auto asker = pool_.all().find(id);
    if (asker == pool_.all().end()) return;
    Executor& asked = *asker->second;
    ExecutorPacket reply = answer;
    if (status != CUDA_SUCCESS) {
      reply.header.status = static_cast<std::uint32_t>(status);
      std::strncpy(reply.text, why.c_str(), sizeof reply.text - 1);
    }
    const std::array<int, 2> files{given->get(), made};
    const auto sent = std::span(files).first(status == CUDA_SUCCESS ? files.size() : 0);
    if (answer.client_pid != 0) return send_to_process(asked, reply, sent);
    if (asked.epoch() == epoch) asked.send(reply, sent);  // another life has asked nothing
  };
  by.prepare(image, file, {answer.header.session, session != nullptr ? session->name() : "Executor " + executor.label()}, done);
}

void SessionManager::drop_jobs(std::uint64_t session) {
  for (Compilers* const each : {compilers_.get(), linkers_.get()}) {
    if (each != nullptr) each->drop(session);
  }
}

void SessionManager::stop_compilers() {
  for (Compilers* const each : {compilers_.get(), linkers_.get()}) {
    if (each != nullptr) each->stop();
  }
}

// What nobody has may be read again: the executors keep it loaded for a while.
void SessionManager::forget_images() {
  for (Compilers* const each : {compilers_.get(), linkers_.get()}) {
    if (each != nullptr) each->forget([this](std::uint64_t image) { return images_.is_held(image); });
  }
}

}  // namespace mpsshim::broker::control
