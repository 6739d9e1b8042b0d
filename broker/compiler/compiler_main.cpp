// SPDX-License-Identifier: Apache-2.0
#include "broker/compiler/compiler_main.hpp"

#include <array>
#include <cerrno>
#include <new>

#include <malloc.h>
#include <unistd.h>

#include "broker/compiler/compiler_messages.hpp"
#include "broker/compiler/prepare_image.hpp"
#include "broker/compiler/prepared_file.hpp"
#include "broker/compiler/sandbox.hpp"
#include "broker/compiler/test_faults.hpp"
#include "broker/control_messages.hpp"
#include "proto/socket.hpp"

namespace mpsshim::broker {

namespace {

CUresult prepare(const CompilerJob& job, const proto::FileDescriptor& file, proto::FileDescriptor& prepared, bool has_test_faults) {
  const ImageBytes image = map_sealed(file);
  if (image.empty()) return CUDA_ERROR_OUT_OF_MEMORY;
  if (has_test_faults) fail_as_asked(image, "mpsshim-test:");
  const ImageTarget target{job.compute, (job.flags & kImageForTexts) != 0, (job.flags & kImageHasObjects) != 0,
                           (job.flags & kImageOpensAssertions) != 0};
  Preparation preparation;
  preparation.status = (job.flags & kImageIsInput) != 0 ? check_link_input(image, static_cast<CUjitInputType>(job.compute), preparation.log)
                                                        : prepare_image(image, target, preparation.image, preparation.log);
  if (preparation.status != CUDA_SUCCESS) preparation.image = {};
  prepared = write_prepared(preparation, image);
  return prepared.valid() ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

void serve(const proto::Socket& control, const CompilerOptions& options) {
  for (;;) {
    CompilerJob job;
    std::size_t received = 0;
    proto::ReceivedFds fds;
    if (control.receive(std::as_writable_bytes(std::span(&job, 1)), received, fds) != proto::SocketStatus::ok) return;
    if (received != sizeof job || fds.count != 1) return;
    limit_job_time(kCompilerJobTime);
    CompilerAnswer answer{job.number, CUDA_SUCCESS, 0};
    proto::FileDescriptor prepared;
    try {
      answer.status = static_cast<std::uint32_t>(prepare(job, fds.fds[0], prepared, options.has_test_faults));
    } catch (const std::bad_alloc&) {
      answer.status = CUDA_ERROR_OUT_OF_MEMORY;
    }
    malloc_trim(0);
    const std::array<int, 1> fd{prepared.get()};
    proto::SocketStatus sent = proto::SocketStatus::failed;
    do {  // where this user's sockets hold too many descriptors for now
      sent = proto::send_message(control, answer, std::span(fd).first(prepared.valid() ? 1 : 0));
    } while (sent == proto::SocketStatus::failed && proto::is_shortage(errno));
    if (sent != proto::SocketStatus::ok) return;
  }
}

}  // namespace

int compiler_main(const CompilerOptions& options) {
  const proto::Socket control{proto::FileDescriptor(kCompilerControlFd)};
  CompilerAnswer ready;
  if (const Restraint missing = restrain(); missing != Restraint::none) {
    ready.status = static_cast<std::uint32_t>(errno);
    ready.restraint = static_cast<std::uint32_t>(missing);
  }
  if (proto::send_message(control, ready) == proto::SocketStatus::ok) serve(control, options);
  _exit(0);
}

}  // namespace mpsshim::broker
