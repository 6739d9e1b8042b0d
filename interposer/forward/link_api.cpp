// SPDX-License-Identifier: Apache-2.0
// Linking at run time (CUDA Driver API manual, cuLink* of "Module Management"). The executor's driver links; inputs go there in pieces, logs and
// the result come back. A link state lives in one executor. So what it was made with and was given is kept here, and told again to an executor that
// does not know it.
#include <algorithm>
#include <chrono>
#include <cstring>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "gen/api_declarations.hpp"
#include "interposer/entry.hpp"
#include "interposer/forward/begin.hpp"
#include "interposer/forward/jit_options.hpp"
#include "interposer/forward/read_file.hpp"
#include "interposer/local/acting_session.hpp"
#include "proto/handle_table.hpp"

namespace mpsshim::interposer::api {

using namespace forward;

namespace {

using LinkId = proto::Id<proto::HandleKind::link_state>;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kInputPieceBytes = 60 * 1024;
constexpr std::size_t kKeptBytes = std::size_t{256} << 20;  // of inputs: what an executor takes
constexpr unsigned kMostMoves = 8;                          // of the session, within one call

struct WireOption {
  std::uint32_t option;
  std::uint32_t value;
};

// The options of one call: those that are numbers travel, logs and the time stay here.
struct LinkOptions {
  std::vector<WireOption> plain;
  JitOptions logs;
  void** wall_time = nullptr;  // a float, in milliseconds
};

struct Input {
  CUjitInputType type{};
  std::uint32_t option_count = 0;
  std::vector<std::byte> bytes;
  std::vector<std::byte> trailing;  // of its record: options, name
};

struct Link {
  LinkId id;
  std::uint64_t epoch = 0;  // of the executor that knows it
  std::uint32_t option_count = 0;
  std::vector<std::byte> trailing;  // of the record that makes it: options
  std::vector<Input> inputs;        // so far
  std::size_t input_bytes = 0;
  JitOptions logs;
  void** wall_time = nullptr;
  Clock::duration spent{};
  std::vector<std::byte> result;  // what cuLinkComplete gave out: lives until cuLinkDestroy
};

proto::HandleTable<proto::HandleKind::link_state, Link>& links() {
  using Table = proto::HandleTable<proto::HandleKind::link_state, Link>;
  return PerSession<Table>::get([] { return new Table(ActingSession::index()); });
}

// CUDA_ERROR_NOT_SUPPORTED: options that name addresses of this process.
CUresult read_options(unsigned int count, CUjit_option* options, void** values, LinkOptions& read) {
  if (count != 0 && (options == nullptr || values == nullptr)) return CUDA_ERROR_INVALID_VALUE;
  read.logs = JitOptions(count, options, values);
  for (unsigned int i = 0; i < count; ++i) {
    switch (static_cast<int>(options[i])) {
      case CU_JIT_ERROR_LOG_BUFFER:
      case CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES:
      case CU_JIT_INFO_LOG_BUFFER:
      case CU_JIT_INFO_LOG_BUFFER_SIZE_BYTES: break;
      case CU_JIT_WALL_TIME: read.wall_time = &values[i]; break;
      case CU_JIT_NEW_SM3X_OPT: break;  // "internal"; has no effect since CUDA 8
      case CU_JIT_GLOBAL_SYMBOL_NAMES:
      case CU_JIT_GLOBAL_SYMBOL_ADDRESSES:
      case 25:  // CU_JIT_REFERENCED_KERNEL_NAMES and the like, deprecated since 12.0
      case 26:
      case 27:
      case 28:
      case 29: return unsupported(ApiId::cuLinkCreate_v2);
      case CU_JIT_GLOBAL_SYMBOL_COUNT:
        if (values[i] != nullptr) return unsupported(ApiId::cuLinkCreate_v2);
        break;
      default:
        if (options[i] < 0 || options[i] >= CU_JIT_NUM_OPTIONS) return CUDA_ERROR_INVALID_VALUE;
        read.plain.push_back({static_cast<std::uint32_t>(options[i]), static_cast<std::uint32_t>(reinterpret_cast<std::uintptr_t>(values[i]))});
    }
  }
  return CUDA_SUCCESS;
}

std::vector<std::byte> trailing_of(const LinkOptions& options, std::string_view name = {}) {
  const auto plain = std::as_bytes(std::span(options.plain));
  std::vector<std::byte> bytes(plain.begin(), plain.end());
  const auto text = std::as_bytes(std::span(name));
  bytes.insert(bytes.end(), text.begin(), text.end());
  return bytes;
}

// What the linker has said so far, of an answer that failed as well.
template <typename Reply>
void report(Link& link, const Answer& answer) {
  Reply reply{};
  if (answer.payload.size() < sizeof reply) return;
  std::memcpy(&reply, answer.payload.data(), sizeof reply);
  const std::string_view both(reinterpret_cast<const char*>(answer.payload.data()) + sizeof reply, answer.payload.size() - sizeof reply);
  const std::size_t error_bytes = std::min<std::size_t>(reply.error_log_bytes, both.size());
  link.logs.report(both.substr(0, error_bytes), both.substr(error_bytes));
}

class Timed {
 public:
  explicit Timed(Link& link) : link_(link), began_(Clock::now()) {}
  Timed(const Timed&) = delete;
  Timed& operator=(const Timed&) = delete;
  ~Timed() {
    link_.spent += Clock::now() - began_;
    const float milliseconds = std::chrono::duration<float, std::milli>(link_.spent).count();
    if (link_.wall_time != nullptr) std::memcpy(link_.wall_time, &milliseconds, sizeof milliseconds);
  }

 private:
  Link& link_;
  Clock::time_point began_;
};

CUresult send_input(Link& link, std::span<const std::byte> input) {
  for (std::size_t done = 0; done < input.size(); done += kInputPieceBytes) {
    const auto piece = input.subspan(done, std::min(kInputPieceBytes, input.size() - done));
    if (const CUresult error = session().channel().post({}, proto::LinkDataRecord{link.id}, piece); error != CUDA_SUCCESS) return error;
  }
  return CUDA_SUCCESS;
}

CUresult make(Link& link) {
  proto::LinkCreateRecord record{};
  record.link = link.id;
  record.option_count = link.option_count;
  proto::LinkCreateReply reply{};
  Answer answer;
  const CUresult error = session().channel().call({}, record, link.trailing, reply, &answer);
  link.epoch = answer.epoch;
  return error;
}

CUresult give(Link& link, const Input& input, Answer& answer) {
  if (const CUresult error = send_input(link, input.bytes); error != CUDA_SUCCESS) return error;
  const proto::LinkAddRecord record{link.id, static_cast<std::uint32_t>(input.type), input.option_count};
  proto::LinkAddReply reply{};
  return session().channel().call({}, record, input.trailing, reply, &answer);
}

// To an executor that does not know it. What has been refused once is refused again.
CUresult tell_again(Link& link) {
  if (const CUresult error = session().channel().post({}, proto::LinkDestroyRecord{link.id}); error != CUDA_SUCCESS) return error;
  if (const CUresult error = make(link); error != CUDA_SUCCESS) return error;
  for (const Input& input : link.inputs) {
    Answer answer;
    (void)give(link, input, answer);
  }
  return CUDA_SUCCESS;
}

// `ask(Answer&)` is a call about the link. The session may have come to another executor since the last one.
template <typename F>
CUresult ask_who_knows(Link& link, F&& ask) {
  for (unsigned move = 0;; ++move) {
    Answer answer;
    const CUresult result = ask(answer);
    const bool is_unknown = result == CUDA_ERROR_INVALID_HANDLE && answer.epoch != link.epoch;
    if (!is_unknown || link.input_bytes > kKeptBytes || move == kMostMoves) return result;
    if (const CUresult error = tell_again(link); error != CUDA_SUCCESS) return error;
  }
}

CUresult add(Link& link, CUjitInputType type, std::span<const std::byte> bytes, std::string_view name, const LinkOptions& options) {
  const Timed timed(link);
  Input input{.type = type,
              .option_count = static_cast<std::uint32_t>(options.plain.size()),
              .bytes = {bytes.begin(), bytes.end()},
              .trailing = trailing_of(options, name.substr(0, 256))};
  const CUresult error = ask_who_knows(link, [&](Answer& answer) {
    const CUresult result = give(link, input, answer);
    report<proto::LinkAddReply>(link, answer);
    return result;
  });
  if (error == CUDA_ERROR_OUT_OF_MEMORY) return error;  // no linker has seen it
  link.input_bytes += input.bytes.size() + input.trailing.size();
  if (link.input_bytes > kKeptBytes) {
    link.inputs.clear();
  } else {
    link.inputs.push_back(std::move(input));
  }
  return error;
}

CUresult fetch_result(Link& link, std::uint64_t size_bytes, Answer& answer) {
  link.result.clear();
  while (link.result.size() < size_bytes) {
    proto::LinkReadReply reply{};
    const CUresult error = session().channel().call({}, proto::LinkReadRecord{link.id, link.result.size()}, {}, reply, &answer);
    if (error != CUDA_SUCCESS) return error;
    const auto bytes = std::span(answer.payload).subspan(sizeof reply);
    if (bytes.empty() || bytes.size() != reply.returned_bytes) return CUDA_ERROR_MPS_RPC_FAILURE;
    link.result.insert(link.result.end(), bytes.begin(), bytes.end());
  }
  return CUDA_SUCCESS;
}

template <typename F>
CUresult with_link(CUlinkState handle, F&& f) {
  if (const CUresult error = begin_with_handle(); error != CUDA_SUCCESS) return error;
  Link* link = links().find(id_of<proto::HandleKind::link_state>(handle)).get();
  return link != nullptr ? f(*link) : CUDA_ERROR_INVALID_HANDLE;
}

}  // namespace

CUresult cuLinkCreate_v2(unsigned int numOptions, CUjit_option* options, void** optionValues, CUlinkState* stateOut) {
  if (stateOut == nullptr) return CUDA_ERROR_INVALID_VALUE;
  LinkOptions read;
  if (const CUresult error = read_options(numOptions, options, optionValues, read); error != CUDA_SUCCESS) return error;
  if (const CUresult error = begin(); error != CUDA_SUCCESS) return error;
  auto object = std::make_unique<Link>();
  Link* link = object.get();
  link->logs = read.logs;
  link->wall_time = read.wall_time;
  link->option_count = static_cast<std::uint32_t>(read.plain.size());
  link->trailing = trailing_of(read);
  const LinkId id = links().add(std::move(object));
  if (id == LinkId{}) return CUDA_ERROR_OUT_OF_MEMORY;  // and the link is gone
  link->id = id;
  if (const CUresult error = make(*link); error != CUDA_SUCCESS) {
    (void)links().take(link->id);
    return error;
  }
  *stateOut = to_handle<CUlinkState>(link->id);
  return CUDA_SUCCESS;
}

CUresult cuLinkAddData_v2(CUlinkState state, CUjitInputType type, void* data, size_t size, const char* name, unsigned int numOptions,
                          CUjit_option* options, void** optionValues) {
  if (data == nullptr || size == 0) return CUDA_ERROR_INVALID_VALUE;
  LinkOptions read;
  if (const CUresult error = read_options(numOptions, options, optionValues, read); error != CUDA_SUCCESS) return error;
  return with_link(state, [&](Link& link) {
    return add(link, type, {static_cast<const std::byte*>(data), size}, name != nullptr ? name : "", read);
  });
}

CUresult cuLinkAddFile_v2(CUlinkState state, CUjitInputType type, const char* path, unsigned int numOptions, CUjit_option* options,
                          void** optionValues) {
  if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
  LinkOptions read;
  if (const CUresult error = read_options(numOptions, options, optionValues, read); error != CUDA_SUCCESS) return error;
  return with_link(state, [&](Link& link) {
    std::vector<std::byte> content;
    if (!read_file(path, content)) return CUDA_ERROR_FILE_NOT_FOUND;
    if (type == CU_JIT_INPUT_PTX) content.push_back(std::byte{0});  // a text's length counts its terminator
    return content.empty() ? CUDA_ERROR_INVALID_IMAGE : add(link, type, content, path, read);
  });
}

CUresult cuLinkComplete(CUlinkState state, void** cubinOut, size_t* sizeOut) {
  if (cubinOut == nullptr) return CUDA_ERROR_INVALID_VALUE;
  return with_link(state, [&](Link& link) {
    const Timed timed(link);
    const CUresult error = ask_who_knows(link, [&](Answer& answer) {
      proto::LinkCompleteReply reply{};
      const CUresult result = session().channel().call({}, proto::LinkCompleteRecord{link.id}, {}, reply, &answer);
      report<proto::LinkCompleteReply>(link, answer);
      return result == CUDA_SUCCESS ? fetch_result(link, reply.size_bytes, answer) : result;
    });
    if (error != CUDA_SUCCESS) return error;
    *cubinOut = link.result.data();
    if (sizeOut != nullptr) *sizeOut = link.result.size();
    return CUDA_SUCCESS;
  });
}

CUresult cuLinkDestroy(CUlinkState state) {
  return with_link(state, [](Link& link) {
    const CUresult error = session().channel().post({}, proto::LinkDestroyRecord{link.id});
    (void)links().take(link.id);
    return error;
  });
}

}  // namespace mpsshim::interposer::api
