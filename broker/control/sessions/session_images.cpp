// SPDX-License-Identifier: Apache-2.0
// SessionManager's part in a module's load: the image an executor asks for, what a compiler process of the session's user makes of it, and what a
// linker process does of the texts in it.
#include <memory>

#include "broker/control/sessions/session_manager.hpp"

namespace mpsshim::broker::control {

void SessionManager::give_image(ManagedExecutor& executor, const message::ImageWant& want) {
  ImageAnswer answer{.give = {.session = want.session, .question = want.question}};
  const ClientSession* const session = find(want.session);
  int file = images_.sealed_file(want.session, want.image, answer.give.size_bytes);
  if (file < 0) return refuse_image(executor, answer, CUDA_ERROR_INVALID_HANDLE, "the image is not known to the broker");
  const int compiled = images_.compiled_file(executor.id().device, want.image);
  if (compiled >= 0) file = compiled;
  if (!compilers_) return give(executor, answer, {.image = file});
  const Compilers::Image image{session != nullptr ? session->client.uid : 0, want.image, compiled >= 0, want.compute, want.flags};
  have_made(*compilers_, executor, answer, image, file);
}

// Of a linker: read once, kept by nobody.
void SessionManager::check_input(ManagedExecutor& executor, const Received<message::ImageCheck>& received) {
  const auto& [check, fds] = received;
  const ImageAnswer answer{.give = {.session = check.session, .question = check.question}};
  if (!compilers_) return give(executor, answer, {.image = fds.input.get()});
  const ClientSession* const session = find(check.session);
  have_made(*compilers_, executor, answer, {session != nullptr ? session->client.uid : 0, ++last_input_, false, check.input_type, kImageIsInput},
            fds.input.get());
}

// A GPU that takes one process at a time has no context for another: there the executor has to do it itself.
void SessionManager::have_linked(ManagedExecutor& executor, const Received<message::LinkWant>& received) {
  const auto& [want, fds] = received;
  const ImageAnswer answer{.give = {.session = want.session, .question = want.question}, .asker = static_cast<pid_t>(want.asker_pid)};
  if (!linkers_ || executor.is_exclusive()) return give(executor, answer, {.image = fds.request.get()});
  linker_launcher_->use_driver(executor.driver());
  const ClientSession* const session = find(want.session);
  const bool is_of_image = want.image != 0;
  const Compilers::Image image{session != nullptr ? session->client.uid : executor.log_user(),
                               is_of_image ? want.image : ++last_input_,
                               false,
                               0,
                               is_of_image ? want.flags : kImageIsInput,
                               executor.device()};
  have_made(*linkers_, executor, answer, image, fds.request.get());
}

// A standby, which may serve by then, asks for what it makes again.
void SessionManager::give(ManagedExecutor& executor, const ImageAnswer& answer, LentFds<message::ImageGive> files) {
  if (answer.asker == 0 || executor.pid() == answer.asker) return executor.send({answer.give, files});
  ExecutorInstance* const standby = executor.standby();
  if (standby != nullptr && standby->pid() == answer.asker) standby->send({answer.give, files});
}

void SessionManager::refuse_image(ManagedExecutor& executor, const ImageAnswer& answer, CUresult status, const std::string& why) {
  ImageAnswer refusal = answer;
  refusal.give.status = static_cast<std::uint32_t>(status);
  set_text(refusal.give.text, why);
  give(executor, refusal, {});
}

void SessionManager::have_made(Compilers& by, ManagedExecutor& executor, const ImageAnswer& answer, const Compilers::Image& image, int file) {
  const ClientSession* const session = find(answer.give.session);
  if (session == nullptr && answer.give.session != 0) {
    return refuse_image(executor, answer, CUDA_ERROR_MPS_SERVER_NOT_READY, "its session has ended");
  }
  // Kept until then: the session may end, and the image with it.
  const auto given = std::make_shared<proto::FileDescriptor>(proto::duplicate_of(file));
  const auto done = [this, id = executor.id(), epoch = executor.epoch(), answer, given](CUresult status, const std::string& why, int made) {
    const auto asker = pool_.all().find(id);
    if (asker == pool_.all().end()) return;
    ManagedExecutor& asked = *asker->second;
    if (answer.asker == 0 && asked.epoch() != epoch) return;  // another life has asked nothing
    if (status != CUDA_SUCCESS) return refuse_image(asked, answer, status, why);
    give(asked, answer, {.image = given->get(), .prepared = made});
  };
  by.prepare(image, file, {answer.give.session, session != nullptr ? session->name() : "Executor " + executor.label()}, done);
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
