// SPDX-License-Identifier: Apache-2.0
// SessionManager's part in a module's load: the image an executor asks for, and what a compiler process of the session's user makes of it.
#include <cstring>

#include "broker/control/session_manager.hpp"

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
  have_read(executor, session, answer, image, file);
}

// Of a linker: read once, kept by nobody.
void SessionManager::check_input(Executor& executor, const ExecutorPacket& packet, const proto::FileDescriptor& input) {
  ExecutorPacket answer;
  answer.header = {ExecutorMessage::image_give, CUDA_SUCCESS, packet.header.session};
  answer.address = packet.address;
  const int file = input.get();
  if (!compilers_) return executor.send(answer, {&file, 1});
  const Session* const session = find(packet.header.session);
  have_read(executor, session, answer, {session != nullptr ? session->client.uid : 0, ++last_input_, false, packet.purpose, kImageIsInput}, file);
}

void SessionManager::have_read(Executor& executor, const Session* session, const ExecutorPacket& answer, const Compilers::Image& image, int file) {
  if (session == nullptr) return refuse_image(executor, answer, CUDA_ERROR_MPS_SERVER_NOT_READY, "its session has ended");
  // Kept until then: the session may end, and the image with it.
  const auto given = std::make_shared<proto::FileDescriptor>(proto::duplicate_of(file));
  const auto done = [this, id = executor.id(), epoch = executor.epoch(), answer, given](CUresult status, const std::string& why, int prepared) {
    const auto asker = pool_.all().find(id);
    if (asker == pool_.all().end() || asker->second->epoch() != epoch) return;  // another life has asked nothing
    if (status != CUDA_SUCCESS) return refuse_image(*asker->second, answer, status, why);
    const int files[] = {given->get(), prepared};
    asker->second->send(answer, files);
  };
  compilers_->prepare(image, file, {session->id, session->name()}, done);
}

// What nobody has may be read again: the executors keep it loaded for a while.
void SessionManager::forget_images() {
  if (compilers_) compilers_->forget([this](std::uint64_t image) { return images_.is_held(image); });
}

}  // namespace mpsshim::broker::control
