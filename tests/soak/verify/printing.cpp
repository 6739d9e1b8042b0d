// SPDX-License-Identifier: Apache-2.0
// Kernels that print: the text is the program's own, all of it, once. Standard output is a memory file meanwhile.
#include <sys/mman.h>
#include <unistd.h>

#include <cstdio>
#include <mutex>
#include <string>

#include "exercise.hpp"
#include "tests/process/programs/driver.hpp"

namespace mpsshim::soak {

namespace {

std::mutex one_at_a_time;  // standard output is the process's

class CapturedOutput {
 public:
  CapturedOutput() : file_(memfd_create("printed", MFD_CLOEXEC)), former_(dup(STDOUT_FILENO)) {
    test::require(file_ >= 0 && former_ >= 0, "no memory file");
    std::fflush(stdout);
    dup2(file_, STDOUT_FILENO);
  }
  CapturedOutput(const CapturedOutput&) = delete;
  ~CapturedOutput() {
    std::fflush(stdout);
    dup2(former_, STDOUT_FILENO);
    close(former_);
    close(file_);
  }
  [[nodiscard]] std::string text() const {
    std::fflush(stdout);
    std::string text(static_cast<std::size_t>(lseek(file_, 0, SEEK_END)), '\0');
    return pread(file_, text.data(), text.size(), 0) == static_cast<ssize_t>(text.size()) ? text : "(cannot be read)";
  }

 private:
  const int file_;
  const int former_;
};

class Printing final : public Exercise {
 public:
  explicit Printing(const Tools& tools) : tools_(tools), say_(tools.work.process.kernels.function("say")) {}
  void run() override;

 private:
  Tools tools_;
  CUfunction say_;
  unsigned nonce_ = 0;
};

void Printing::run() {
  Workplace& work = tools_.work;
  const Stream& stream = work.any_stream();
  const std::lock_guard lock(one_at_a_time);
  const CapturedOutput output;
  std::string wanted;
  for (std::size_t left = 1 + work.random.below(3); left > 0; --left) {
    unsigned nonce = ++nonce_, value = work.random.word();
    void* arguments[] = {&nonce, &value};
    work.history.note("say", {{"nonce", nonce}, {"value", value}});
    work.did();
    CU(cuLaunchKernel(say_, 1, 1, 1, 1, 1, 1, 0, stream.handle, arguments, nullptr));
    wanted += "soak " + std::to_string(nonce) + " says " + std::to_string(value) + "\n";
  }
  CU(cuStreamSynchronize(stream.handle));
  const std::string found = output.text();
  test::require(found == wanted, "a kernel has printed \"" + found + "\" and not \"" + wanted + "\"");
  work.verified(Kind::printing);
}

}  // namespace

std::unique_ptr<Exercise> make_printing(const Tools& tools) { return std::make_unique<Printing>(tools); }

}  // namespace mpsshim::soak
