// SPDX-License-Identifier: Apache-2.0
#include "broker/control/sessions/channel_memory.hpp"

#include <sys/eventfd.h>

#include "proto/futex.hpp"

namespace mpsshim::broker::control {

std::optional<ChannelMemory> ChannelMemory::make(std::uint64_t session, std::uint64_t epoch, std::uint32_t layout_minor) {
  ChannelMemory made;
  made.channel_ = proto::create_memory_file("mpsshim-channel", proto::kChannelBytes);
  made.fences_ = proto::create_memory_file("mpsshim-fences", proto::kFenceSegmentBytes);
  made.ring_doorbell_ = proto::FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  made.completion_doorbell_ = proto::FileDescriptor(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!made.channel_.valid() || !made.fences_.valid() || !made.ring_doorbell_.valid() || !made.completion_doorbell_.valid()) return std::nullopt;
  if (!proto::seal(made.channel_, proto::Seal::size) || !proto::seal(made.fences_, proto::Seal::size)) return std::nullopt;
  made.page_ = proto::Mapping::map(made.channel_, 0, proto::kPageBytes, proto::Access::read_write);
  if (!made.page_) return std::nullopt;
  made.write_header(session, epoch, layout_minor);
  return made;
}

std::optional<ChannelMemory> ChannelMemory::adopt(std::array<proto::FileDescriptor, 4> fds) {
  ChannelMemory made;
  made.channel_ = std::move(fds[0]);
  made.fences_ = std::move(fds[1]);
  made.ring_doorbell_ = std::move(fds[2]);
  made.completion_doorbell_ = std::move(fds[3]);
  made.page_ = proto::Mapping::map(made.channel_, 0, proto::kPageBytes, proto::Access::read_write);
  if (!made.page_) return std::nullopt;
  return made;
}

proto::ChannelHeader& ChannelMemory::header() const { return *reinterpret_cast<proto::ChannelHeader*>(page_.data()); }

void ChannelMemory::write_header(std::uint64_t session, std::uint64_t epoch, std::uint32_t layout_minor) {
  proto::ChannelHeader& page = header();
  page.magic = proto::kChannelMagic;
  page.layout_major = proto::kLayoutMajor;
  page.layout_minor = layout_minor;
  page.epoch = epoch;
  page.session = session;
  page.session_error.store(0, std::memory_order_relaxed);
  page.session_state.store(static_cast<std::uint32_t>(proto::SessionState::active), std::memory_order_release);
}

void ChannelMemory::tell_moved() { tell_gone(proto::SessionState::moved); }

void ChannelMemory::tell_on_trial() { tell_gone(proto::SessionState::on_trial); }

void ChannelMemory::tell_gone(proto::SessionState state) {
  // An executor may have failed the session before it died; that stands.
  auto expected = static_cast<std::uint32_t>(proto::SessionState::active);
  header().session_state.compare_exchange_strong(expected, static_cast<std::uint32_t>(state), std::memory_order_acq_rel);
  wake_client();
}

void ChannelMemory::tell_failed(std::uint32_t error) {
  header().session_error.store(error, std::memory_order_relaxed);
  // Pairs with the client's acquire load of session_state, so that it reads the error stored above.
  header().session_state.store(static_cast<std::uint32_t>(proto::SessionState::failed), std::memory_order_release);
  wake_client();
}

// Release: pairs with the client's look behind the fence that the text came before.
void ChannelMemory::tell_output(bool is_waiting) { header().output_waiting.store(is_waiting ? 1 : 0, std::memory_order_release); }

void ChannelMemory::tell_thread_percentage(std::uint32_t percentage) const {
  header().thread_percentage.store(percentage, std::memory_order_relaxed);
}

// Sleepers are found by what they have written there, which only decides whom a system call is made for. All but the header is mapped for the
// moment: it is needed once in a channel's life.
void ChannelMemory::wake_client() const {
  const proto::Mapping all = proto::Mapping::map(channel_, 0, proto::kRingOffset, proto::Access::read_write);
  if (!all) return;  // they look at the state by themselves
  auto& page = *reinterpret_cast<proto::ChannelHeader*>(all.data());
  if (page.producer_waiting.load(std::memory_order_relaxed) != 0) proto::futex_wake_all(page.head_futex);
  for (std::uint32_t i = 0; i < proto::kFenceWaiters; ++i) {
    const auto& waiter = reinterpret_cast<const proto::FenceWaiter*>(all.data() + proto::kFenceWaiterOffset)[i];
    if (waiter.state.load(std::memory_order_relaxed) == proto::FenceWaiter::armed) proto::futex_wake_all(waiter.state);
  }
  for (std::uint32_t i = 0; i < proto::kReplySlots; ++i) {
    const auto& slot = *reinterpret_cast<const proto::ReplySlot*>(all.data() + proto::kReplyOffset + i * proto::kReplySlotBytes);
    if (slot.state.load(std::memory_order_relaxed) == proto::ReplySlot::sleeping) proto::futex_wake_all(slot.state);
  }
}

std::uint32_t ChannelMemory::failure() const {
  if (header().session_state.load(std::memory_order_acquire) != static_cast<std::uint32_t>(proto::SessionState::failed)) return 0;
  return header().session_error.load(std::memory_order_relaxed);
}

bool ChannelMemory::is_unused() const { return written_bytes() == 0; }

std::uint64_t ChannelMemory::written_bytes() const { return header().tail.load(std::memory_order_acquire); }

}  // namespace mpsshim::broker::control
