// SPDX-License-Identifier: Apache-2.0
// The linker. Inputs come in pieces and go to the linker process by a helper, which waits as long as it takes; the session goes on meanwhile.
#include <algorithm>
#include <cstring>
#include <utility>

#include <unistd.h>

#include "broker/compiler/prepared_file.hpp"
#include "broker/executor/link/control_link.hpp"
#include "broker/executor/modules/module_store.hpp"
#include "broker/executor/records/dispatch.hpp"
#include "broker/log.hpp"

namespace mpsshim::broker {

namespace {

constexpr unsigned kInputTimeoutMs = 300'000;  // as of images: the control process answers in any case

struct WireOption {
  std::uint32_t option;
  std::uint32_t value;
};

// False: they exceed the record.
bool read_options(std::span<const std::byte> trailing, std::uint32_t count, std::vector<JitOption>& options) {
  if (count > trailing.size() / sizeof(WireOption)) return false;
  for (std::uint32_t i = 0; i < count; ++i) {
    WireOption wire;
    std::memcpy(&wire, trailing.data() + i * sizeof wire, sizeof wire);
    options.push_back({static_cast<CUjit_option>(wire.option), wire.value});
  }
  return true;
}

// A client of a later release may know others, and a program may ask for any.
bool are_plain(const std::vector<JitOption>& options) {
  return std::all_of(options.begin(), options.end(),
                     [](const JitOption& option) { return is_plain_option(static_cast<std::uint32_t>(option.option)); });
}

// Of a post. A link that is not known here is one that the session had in another executor: the next call about it tells the client.
proto::Known<SessionLink> posted(SessionPost& incoming, proto::Id<proto::HandleKind::link_state> id) {
  if (!id.has_kind()) incoming.malformed("an id is of another kind");
  return incoming.session.links().find(id);
}

// By the process that reads images: the driver is given nothing that has not been unpacked and walked through elsewhere.
CUresult check_input(const Session& session, std::span<const std::byte> input, CUjitInputType type) {
  const proto::FileDescriptor file = proto::create_memory_file("mpsshim-input", input.size());
  const auto size = static_cast<ssize_t>(input.size());
  const bool is_written = file.valid() && pwrite(file.get(), input.data(), input.size(), 0) == size && proto::seal(file, proto::Seal::content);
  if (!is_written) return CUDA_ERROR_OUT_OF_MEMORY;
  if (input.empty()) return CUDA_SUCCESS;  // which the driver refuses
  const ControlLink::FetchedImage answer = session.parts().control.check_input(session.id(), file, type, kInputTimeoutMs);
  CUresult status = answer.status;
  std::string why = answer.log;
  if (status == CUDA_SUCCESS && answer.prepared.valid()) {
    Preparation preparation;
    status = read_prepared(answer.prepared, {}, preparation) ? preparation.status : CUDA_ERROR_INVALID_IMAGE;
    why = preparation.log;
  }
  if (status != CUDA_SUCCESS) {
    log_warning("Session {} (pid {}): an input of a linker of {} bytes is refused ({}): {}", session.id(), session.client_pid(), input.size(),
                session.parts().driver.describe(status), why);
  }
  return status;
}

template <typename Body>
void answer_with_logs(Reply& reply, CUresult result, Body body, LinkState& link) {
  const LinkState::Logs logs = link.logs();
  body.error_log_bytes = static_cast<std::uint32_t>(logs.error.size());
  body.info_log_bytes = static_cast<std::uint32_t>(logs.info.size());
  const std::string both = logs.error + logs.info;
  reply.answer_with(result, body, std::as_bytes(std::span(both)));
}

}  // namespace

void handle(OutOfLineCall& incoming, const proto::LinkCreateRecord& record) {
  Session& session = incoming.session;
  std::vector<JitOption> options;
  if (!record.link.has_kind()) return incoming.malformed("its link id is of another kind");
  if (!read_options(incoming.trailing, record.option_count, options)) return incoming.malformed("its options exceed it");
  if (!are_plain(options)) return incoming.reject(CUDA_ERROR_INVALID_VALUE);
  std::size_t count = 0;
  session.links().for_each([&](auto, SessionLink&) { ++count; });
  if (count >= kMaxLinks) return incoming.reject(CUDA_ERROR_OUT_OF_MEMORY);
  auto link = std::make_unique<SessionLink>();
  link->state = std::make_shared<LinkState>(session.parts().modules.linker(), session.id());
  const std::shared_ptr<LinkState> state = link->state;
  if (!session.links().insert(record.link, std::move(link))) return incoming.malformed("its link id is in use or out of range");
  session.start_job([reply = incoming.share_reply(), id = record.link, state, options = std::move(options)](const std::shared_ptr<Session>& owner) {
    const CUresult result = state->create(options);
    owner->finish_job([owner, reply, id, result] {
      if (result != CUDA_SUCCESS) (void)owner->links().take(id);
      reply->answer(result);
    });
  });
}

void handle(SessionPost& incoming, const proto::LinkDataRecord& record) {
  const proto::Known<SessionLink> link = posted(incoming, record.link);
  if (!link) return;
  std::size_t held = incoming.trailing.size();
  incoming.session.links().for_each([&](auto, const SessionLink& each) { held += each.input.size() + each.state->kept_bytes(); });
  if (held > kMaxLinkBytes) {
    link->is_too_long = true;
    return;
  }
  link->input.insert(link->input.end(), incoming.trailing.begin(), incoming.trailing.end());
}

void handle(OutOfLineCall& incoming, const proto::LinkAddRecord& record) {
  Session& session = incoming.session;
  const proto::Known<SessionLink> link = incoming.find(session.links(), record.link);
  if (!link) return;
  std::vector<std::byte> input = std::exchange(link->input, {});
  std::vector<JitOption> options;
  if (!read_options(incoming.trailing, record.option_count, options)) return incoming.malformed("its options exceed it");
  if (!are_plain(options)) return incoming.reject(CUDA_ERROR_INVALID_VALUE);
  const auto text = incoming.trailing.subspan(record.option_count * sizeof(WireOption));
  const std::string name(reinterpret_cast<const char*>(text.data()), strnlen(reinterpret_cast<const char*>(text.data()), text.size()));
  if (std::exchange(link->is_too_long, false)) return incoming.reject(CUDA_ERROR_OUT_OF_MEMORY);
  session.start_job([reply = incoming.share_reply(), state = link->state, type = static_cast<CUjitInputType>(record.type), name,
                     options = std::move(options), input = std::move(input)](const std::shared_ptr<Session>& owner) mutable {
    CUresult result = check_input(*owner, input, type);
    if (result == CUDA_SUCCESS) result = state->add({type, ImageBytes(std::move(input)), name, options});
    answer_with_logs(*reply, result, proto::LinkAddReply{}, *state);
    owner->finish_job();
  });
}

void handle(OutOfLineCall& incoming, const proto::LinkCompleteRecord& record) {
  const proto::Known<SessionLink> link = incoming.find(incoming.session.links(), record.link);
  if (!link) return;
  incoming.session.start_job([reply = incoming.share_reply(), state = link->state, id = record.link](const std::shared_ptr<Session>& owner) {
    std::vector<std::byte> linked;
    const CUresult result = state->complete(linked);
    owner->finish_job([owner, reply, state, id, result, linked = std::move(linked)]() mutable {
      const proto::LinkCompleteReply body{linked.size(), 0, 0};
      if (const proto::Known<SessionLink> completed = owner->links().find(id)) completed->result = std::move(linked);
      answer_with_logs(*reply, result, body, *state);
    });
  });
}

void handle(SessionCall& incoming, const proto::LinkReadRecord& record) {
  const proto::Known<SessionLink> link = incoming.find(incoming.session.links(), record.link);
  if (!link) return;
  const std::vector<std::byte>& result = link->result;
  if (record.offset > result.size()) return incoming.reject(CUDA_ERROR_INVALID_VALUE);
  const std::size_t size = std::min(result.size() - record.offset, proto::kMaxReplyBytes - proto::LinkReadReply::kBodyBytes);
  incoming.answer_with(CUDA_SUCCESS, proto::LinkReadReply{size}, std::span(result).subspan(record.offset, size));
}

void handle(SessionPost& incoming, const proto::LinkDestroyRecord& record) {
  if (posted(incoming, record.link)) (void)incoming.session.links().take(record.link);
}

}  // namespace mpsshim::broker
