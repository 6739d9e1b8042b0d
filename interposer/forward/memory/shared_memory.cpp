// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/memory/shared_memory.hpp"

#include <unistd.h>

#include "interposer/channel/connection.hpp"
#include "interposer/settle.hpp"
#include "proto/file_size_limit.hpp"

namespace mpsshim::interposer::forward {

namespace {

struct NameFile {
  std::uint64_t magic = 0;
  proto::MemoryName name;
  NameOf what = NameOf::memory;
  std::uint32_t reserved = 0;
};
constexpr std::uint64_t kNameMagic = 0x6d50'5368'6e61'6d65;

}  // namespace

CUresult share_memory(std::uint64_t object, proto::MemoryName& name) {
  if (const CUresult error = session().look(); error != CUDA_SUCCESS) return error;
  proto::MemoryShare question;
  question.object = object;
  proto::MemoryShared answer;
  const CUresult error = connection().ask(question, answer);
  name = answer.name;
  return error;
}

CUresult open_shared_memory(const proto::MemoryName& name, proto::MemoryId id, OpenedMemory& opened) {
  if (const CUresult error = session().look(); error != CUDA_SUCCESS) return error;
  proto::MemoryOpen question;
  question.name = name;
  question.memory = id.value;
  proto::MemoryOpened answer;
  const CUresult error = connection().ask(question, answer);
  opened = {answer.is_own != 0, answer.device};
  return error;
}

proto::FileDescriptor write_name(const proto::MemoryName& name, NameOf what) {
  proto::FileDescriptor file = proto::create_memory_file("mpsshim-memory", sizeof(NameFile));
  const NameFile content{kNameMagic, name, what};
  const proto::NoFileSizeSignal hold;
  if (!file.valid() || pwrite(file.get(), &content, sizeof content, 0) != static_cast<ssize_t>(sizeof content)) return {};
  return file;
}

bool read_name(int fd, proto::MemoryName& name, NameOf what) {
  NameFile content;
  if (pread(fd, &content, sizeof content, 0) != static_cast<ssize_t>(sizeof content) || content.magic != kNameMagic) return false;
  if (content.what != what) return false;
  name = content.name;
  return true;
}

}  // namespace mpsshim::interposer::forward
