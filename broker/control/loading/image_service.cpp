// SPDX-License-Identifier: Apache-2.0
#include "broker/control/loading/image_service.hpp"

#include <utility>

namespace mpsshim::broker::control {

ImageService::ImageService(EventLoop& loop, const SessionLimits& limits, const SessionTable& sessions, const ExecutorPool& pool, ImageStore& images,
                           CompilerLauncher* compilers, CompilerLauncher* linkers)
    : sessions_(sessions), pool_(pool), images_(images), linker_launcher_(linkers), shares_(limits.user_minute) {
  if (compilers != nullptr) compilers_ = std::make_unique<Compilers>(loop, *compilers, shares_, limits.compilers);
  if (linkers != nullptr) linkers_ = std::make_unique<Compilers>(loop, *linkers, shares_, limits.linkers, trade_of_linkers(limits.link_time));
}

void ImageService::expect(uid_t user) {
  if (compilers_) compilers_->expect(user);
}

void ImageService::give_image(ManagedExecutor& executor, const message::ImageWant& want) {
  Answer answer{.give = {.session = want.session, .question = want.question}};
  const ClientSession* const session = sessions_.find(want.session);
  int file = images_.sealed_file(want.session, want.image, answer.give.size_bytes);
  if (file < 0) return refuse(executor, answer, CUDA_ERROR_INVALID_HANDLE, "the image is not known to the broker");
  const int compiled = images_.compiled_file(executor.id().device, want.image);
  if (compiled >= 0) file = compiled;
  if (!compilers_) return give(executor, answer, {.image = file});
  const Compilers::Image image{session != nullptr ? session->client.uid : 0, want.image, compiled >= 0, want.compute, want.flags};
  have_made(*compilers_, executor, answer, image, file);
}

void ImageService::check_input(ManagedExecutor& executor, const Received<message::ImageCheck>& received) {
  const auto& [check, fds] = received;
  const Answer answer{.give = {.session = check.session, .question = check.question}};
  if (!compilers_) return give(executor, answer, {.image = fds.input.get()});
  const ClientSession* const session = sessions_.find(check.session);
  have_made(*compilers_, executor, answer, {session != nullptr ? session->client.uid : 0, ++last_input_, false, check.input_type, kImageIsInput},
            fds.input.get());
}

void ImageService::have_linked(ManagedExecutor& executor, const Received<message::LinkWant>& received) {
  const auto& [want, fds] = received;
  const Answer answer{.give = {.session = want.session, .question = want.question}, .asker = static_cast<pid_t>(want.asker_pid)};
  if (!linkers_) return give(executor, answer, {.image = fds.request.get()});
  linker_launcher_->use_driver(executor.driver());
  const ClientSession* const session = sessions_.find(want.session);
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
void ImageService::give(ManagedExecutor& executor, const Answer& answer, LentFds<message::ImageGive> files) {
  if (answer.asker == 0 || executor.pid() == answer.asker) return executor.send({answer.give, files});
  ExecutorInstance* const standby = executor.standby();
  if (standby != nullptr && standby->pid() == answer.asker) standby->send({answer.give, files});
}

void ImageService::refuse(ManagedExecutor& executor, const Answer& answer, CUresult status, const std::string& why) {
  Answer refusal = answer;
  refusal.give.status = static_cast<std::uint32_t>(status);
  set_text(refusal.give.text, why);
  give(executor, refusal, {});
}

void ImageService::have_made(Compilers& by, ManagedExecutor& executor, const Answer& answer, const Compilers::Image& image, int file) {
  const ClientSession* const session = sessions_.find(answer.give.session);
  if (session == nullptr && answer.give.session != 0) {
    return refuse(executor, answer, CUDA_ERROR_MPS_SERVER_NOT_READY, "its session has ended");
  }
  // Kept until then: the session may end, and the image with it.
  const auto given = std::make_shared<proto::FileDescriptor>(proto::duplicate_of(file));
  const auto done = [this, id = executor.id(), epoch = executor.epoch(), answer, given](CUresult status, const std::string& why, int made) {
    const auto asker = pool_.all().find(id);
    if (asker == pool_.all().end()) return;
    ManagedExecutor& asked = *asker->second;
    if (answer.asker == 0 && asked.epoch() != epoch) return;  // another life has asked nothing
    if (status != CUDA_SUCCESS) return refuse(asked, answer, status, why);
    give(asked, answer, {.image = given->get(), .prepared = made});
  };
  by.prepare(image, file, {answer.give.session, session != nullptr ? session->name() : "Executor " + executor.label()}, done);
}

void ImageService::drop_jobs(std::uint64_t session) {
  for (Compilers* const each : {compilers_.get(), linkers_.get()}) {
    if (each != nullptr) each->drop(session);
  }
}

void ImageService::stop() {
  for (Compilers* const each : {compilers_.get(), linkers_.get()}) {
    if (each != nullptr) each->stop();
  }
}

// What nobody has may be read again: the executors keep it loaded for a while.
void ImageService::forget_unheld() {
  for (Compilers* const each : {compilers_.get(), linkers_.get()}) {
    if (each != nullptr) each->forget([this](std::uint64_t image) { return images_.is_held(image); });
  }
}

}  // namespace mpsshim::broker::control
