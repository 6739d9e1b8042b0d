// SPDX-License-Identifier: Apache-2.0
// Images for executors that load a module: the file that one asks for, what a compiler process of the session's user makes of it, and what a linker
// process does of the texts in it. Every question is answered, or its executor has died.
// Owned by SessionManager; the control process's thread. Executors ask on behalf of sessions, whose images the store knows. stop() comes before the
// end of the pool: it answers whoever waits.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <cuda.h>

#include "broker/control/executors/executor_pool.hpp"
#include "broker/control/images/compilers.hpp"
#include "broker/control/images/image_store.hpp"
#include "broker/control/sessions/session_table.hpp"
#include "broker/control_messages.hpp"

namespace mpsshim::broker::control {

class ImageService {
 public:
  // Without `compilers` executors read images themselves, without `linkers` they compile and link them.
  ImageService(EventLoop& loop, const SessionLimits& limits, const SessionTable& sessions, const ExecutorPool& pool, ImageStore& images,
               CompilerLauncher* compilers, CompilerLauncher* linkers);

  // Questions of executors.
  void give_image(ManagedExecutor& executor, const message::ImageWant& want);
  void check_input(ManagedExecutor& executor, const Received<message::ImageCheck>& received);  // of a linker: read once, kept by nobody
  void have_linked(ManagedExecutor& executor, const Received<message::LinkWant>& received);

  void expect(uid_t user);                // images of that user may come soon
  void drop_jobs(std::uint64_t session);  // which waits for nothing any more
  void forget_unheld();                   // what was made of images that no session has
  void stop();                            // jobs fail; what comes later is served again

 private:
  // To whoever has asked for an image: the executor's process that serves, or that of `asker`.
  struct Answer {
    message::ImageGive give;
    pid_t asker = 0;
  };
  void have_made(Compilers& by, ManagedExecutor& executor, const Answer& answer, const Compilers::Image& image, int file);
  static void give(ManagedExecutor& executor, const Answer& answer, LentFds<message::ImageGive> files);
  static void refuse(ManagedExecutor& executor, const Answer& answer, CUresult status, const std::string& why);

  const SessionTable& sessions_;
  const ExecutorPool& pool_;
  ImageStore& images_;
  CompilerLauncher* const linker_launcher_;
  ProcessorShares shares_;        // of compilers_ and linkers_
  std::uint64_t last_input_ = 0;  // of a linker
  std::unique_ptr<Compilers> compilers_;
  std::unique_ptr<Compilers> linkers_;
};

}  // namespace mpsshim::broker::control
