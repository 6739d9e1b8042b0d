// SPDX-License-Identifier: Apache-2.0
#include "interposer/channel/session_client.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <optional>
#include <utility>

#include <unistd.h>

#include "interposer/channel/connection.hpp"
#include "interposer/channel/recovery.hpp"
#include "interposer/channel/refusal.hpp"
#include "interposer/environment.hpp"
#include "interposer/local/acting_session.hpp"
#include "interposer/local/devices.hpp"
#include "interposer/log.hpp"
#include "interposer/settle.hpp"
#include "interposer/trace.hpp"
#include "proto/file_size_limit.hpp"
#include "proto/memory_limit.hpp"

namespace mpsshim::interposer {

namespace {

// What `ulimit -f` does not let be written is copied instead.
bool fill_image(const proto::FileDescriptor& file, std::span<const std::byte> content) {
  const proto::NoFileSizeSignal hold;
  for (std::size_t done = 0; done < content.size();) {
    const ssize_t written = pwrite(file.get(), content.data() + done, content.size() - done, static_cast<off_t>(done));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0 && errno == EFBIG) {
      const proto::Mapping mapping = proto::Mapping::map(file, 0, content.size(), proto::Access::read_write);
      if (!mapping) return false;
      std::memcpy(mapping.data(), content.data(), content.size());
      return true;
    }
    if (written <= 0) return false;
    done += static_cast<std::size_t>(written);
  }
  return true;
}

}  // namespace

SessionClient& SessionClient::instance() {
  return PerSession<SessionClient>::get([] { return new SessionClient(); });
}

SessionClient::SessionClient() : channel_(*this, PeerWatch{&SessionClient::has_hung_up, this}) {}

bool SessionClient::has_hung_up(const void* self) {
  const ActingSession acting(static_cast<const SessionClient*>(self)->index_);
  return Doorbell::any_is_lost() || connection().is_lost();
}

CUresult SessionClient::attach() {
  const std::lock_guard lock(attach_mutex_);
  if (attached_.load(std::memory_order_acquire)) return sticky_.load(std::memory_order_relaxed);
  return attach_locked();
}

CUresult SessionClient::attach_locked() {
  if (const CUresult error = open_connection(); error != CUDA_SUCCESS) return error;
  proto::Attached attached;
  std::shared_ptr<Link> link;
  proto::FileDescriptor fences;
  if (const CUresult error = request_link(attached, link, fences); error != CUDA_SUCCESS) return error;
  device_lease_ = attached.device_lease;
  pinned_lease_ = attached.pinned_lease;
  if (const CUresult error = reserve(device_lease_, device_reservation_); error != CUDA_SUCCESS) return error;
  if (const CUresult error = reserve(pinned_lease_, pinned_reservation_); error != CUDA_SUCCESS) return error;
  if (!fences_.map(fences)) {
    log_line("The fence words of session %llu cannot be mapped: %s.", static_cast<unsigned long long>(attached.session), strerror(errno));
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  publish_header(link->header());
  kept_.push_back(link);
  channel_.set_link(std::move(link));
  attached_.store(true, std::memory_order_release);
  trace_session(attached.session);
  debug_line(DebugTopic::channel, "Session %llu of process %d attached, epoch %llu; device memory from 0x%llx, pinned memory from 0x%llx.",
             static_cast<unsigned long long>(attached.session), static_cast<int>(getpid()), static_cast<unsigned long long>(attached.epoch),
             static_cast<unsigned long long>(device_lease_.address), static_cast<unsigned long long>(pinned_lease_.address));
  return CUDA_SUCCESS;
}

// Rounded down to MiB, which is what a chunk is made of at least. What is wrong in it is told once: the broker goes by the rest.
std::uint32_t asked_memory_limit_mib(std::uint32_t device) {
  static std::atomic<bool> told{false};
  const proto::MemoryLimitText limits = proto::parse_memory_limits(driver_facts(), environment_value(Variable::memory_limit));
  if (!limits.wrong.empty() && !told.exchange(true, std::memory_order_relaxed)) {
    log_line("%s: \"%.*s\" is no limit of device memory (DEVICE=SIZE, DEVICE an index or GPU-…, SIZE with K, M, G or T): it is left out.",
             variable_name(Variable::memory_limit), static_cast<int>(std::min<std::size_t>(limits.wrong.size(), 200)), limits.wrong.data());
  }
  const std::uint64_t bytes = device < proto::kMaxDevices ? limits.limit_bytes[device] : 0;
  return bytes == 0 ? 0 : static_cast<std::uint32_t>(std::clamp<std::uint64_t>(bytes >> 20, 1, UINT32_MAX));
}

CUresult SessionClient::request_link(proto::Attached& attached, std::shared_ptr<Link>& link, proto::FileDescriptor& fences) {
  proto::Attach question;
  question.device = broker_ordinal(settle_session_device());
  question.memory_limit_mib = asked_memory_limit_mib(question.device);
  proto::Received<proto::Attached> received;
  if (const CUresult error = connection().request(question, received); error != CUDA_SUCCESS) {
    if (!attached_.load(std::memory_order_relaxed) && !connection().is_lost()) tell_no_session(error);  // what is lost has said so
    return error;
  }
  attached = received.message;
  if (attached.lost != 0) return static_cast<CUresult>(attached.lost);
  note_thread_percentage(question.device, attached.thread_percentage);
  proto::TakenFds<proto::Attached>& fds = received.fds;
  if (!fds.completion_doorbell.valid()) {  // the last one
    log_line("The broker's answer to Attach lacks file descriptors: libmpsshim.so and mpsbroker are of different releases.");
    return CUDA_ERROR_MPS_RPC_FAILURE;
  }
  link = Link::map(fds.channel, std::move(fds.ring_doorbell), std::move(fds.completion_doorbell));
  if (link == nullptr) {
    log_line("The channel of session %llu cannot be used: %s.", static_cast<unsigned long long>(attached.session), strerror(errno));
    return errno == EPROTO ? CUDA_ERROR_MPS_RPC_FAILURE : CUDA_ERROR_OUT_OF_MEMORY;
  }
  fences = std::move(fds.fences);
  return CUDA_SUCCESS;
}

CUresult SessionClient::reserve(proto::Lease& lease, proto::Reservation& reservation) {
  constexpr int kTries = 8;
  for (int attempt = 0; attempt < kTries; ++attempt) {
    if (lease.size_bytes == 0) return CUDA_SUCCESS;
    reservation = proto::Reservation::at(lease.address, lease.size_bytes);
    if (reservation) return CUDA_SUCCESS;
    if (errno != EEXIST) break;
    proto::LeaseReplace question;
    question.refused = lease;
    proto::LeaseReplaced answer;
    if (const CUresult error = connection().ask(question, answer); error != CUDA_SUCCESS) return error;
    lease = answer.lease;
  }
  log_line(
      "No address range of %llu bytes could be kept free for the session (last tried 0x%llx: %s): look at `ulimit -v`, or give mpsbroker another "
      "address window.",
      static_cast<unsigned long long>(lease.size_bytes), static_cast<unsigned long long>(lease.address), strerror(errno));
  return CUDA_ERROR_OUT_OF_MEMORY;
}

CUresult SessionClient::take_error() {
  if (const CUresult sticky = sticky_.load(std::memory_order_relaxed); sticky != CUDA_SUCCESS) [[unlikely]]
    return sticky;
  if (fences_.has_kernel_error()) [[unlikely]]
    return fail_by_kernel();
  std::atomic<std::uint32_t>& pending = header_.load(std::memory_order_acquire)->async_error;
  if (pending.load(std::memory_order_relaxed) == 0) [[likely]]
    return CUDA_SUCCESS;
  const auto taken = static_cast<CUresult>(pending.exchange(0, std::memory_order_acq_rel));
  // Pairs with the stores of ClientChannel::set_lost_work.
  const auto lost = static_cast<CUresult>(header_.load(std::memory_order_acquire)->lost_work.load(std::memory_order_relaxed));
  return lost == CUDA_SUCCESS ? taken : fail(lost);
}

CUresult SessionClient::look() {
  if (const CUresult sticky = sticky_.load(std::memory_order_relaxed); sticky != CUDA_SUCCESS) return sticky;
  proto::ChannelHeader* header = header_.load(std::memory_order_acquire);
  if (header->session_state.load(std::memory_order_relaxed) == static_cast<std::uint32_t>(proto::SessionState::active)) return CUDA_SUCCESS;
  const std::shared_ptr<Link> link = channel_.link();
  const auto state = static_cast<proto::SessionState>(link->header().session_state.load(std::memory_order_relaxed));
  if (state == proto::SessionState::active) return CUDA_SUCCESS;
  return channel_.settle(state == proto::SessionState::failed ? WaitEnd::failed : WaitEnd::moved, *link);
}

// One whose recovery has failed is over, and stays where it is.
bool SessionClient::has_moved() const {
  const proto::ChannelHeader* const header = header_.load(std::memory_order_acquire);
  return header != nullptr && sticky_.load(std::memory_order_relaxed) == CUDA_SUCCESS &&
         header->session_state.load(std::memory_order_relaxed) == static_cast<std::uint32_t>(proto::SessionState::moved);
}

bool SessionClient::has_other_moved() const {
  if (!has_several_sessions()) return false;
  for (std::uint32_t index = 0; index < session_count(); ++index) {
    const ActingSession acting(index);
    if (index != index_ && instance().has_moved()) return true;
  }
  return false;
}

void SessionClient::follow_others() const {
  if (!has_several_sessions()) return;
  for (std::uint32_t index = 0; index < session_count(); ++index) {
    const ActingSession acting(index);
    if (index != index_ && instance().has_moved()) (void)instance().look();  // its own calls tell what comes of it
  }
}

void SessionClient::end_recipe(RecipeBook::Key key, Place place) {
  const std::uint64_t consumed = header_.load(std::memory_order_relaxed)->head.load(std::memory_order_acquire);
  recipes_.end(key, place.position, consumed);
}

bool SessionClient::keep_recipe(Recipe recipe, const Answer& answer, RecipeBook::Key& key) {
  recipe.position = 0;  // answered, so read
  recipe.expected_reply = answer.payload;
  return channel_.locked([&](Link& link) {
    if (link.epoch() != answer.epoch || !Channel::is_active(link)) return false;
    key = recipes_.add(std::move(recipe));
    return true;
  });
}

CUresult SessionClient::upload_image(std::span<const std::byte> content, std::uint64_t& image) {
  std::optional<std::uint64_t> known = known_images_.find(content);
  proto::ImageOffer offer;
  if (!known) {
    offer.size_bytes = content.size();
    offer.digest = proto::digest_of(content);
    known = known_images_.find(content, offer.digest);
  }
  if (known) {
    image = *known;
    return CUDA_SUCCESS;
  }
  if (const CUresult error = give_image(content, offer, image); error != CUDA_SUCCESS) return error;
  known_images_.add(content, offer.digest, image);
  return CUDA_SUCCESS;
}

CUresult SessionClient::adopt_image(const KnownImages::Told& told, std::uint64_t& image) {
  if (const auto known = known_images_.find(told)) {
    image = *known;
    return CUDA_SUCCESS;
  }
  proto::ImageOffer offer;
  offer.size_bytes = told.size_bytes;
  offer.digest = told.digest;
  proto::Received<proto::ImageOpened> opened;
  if (const CUresult error = connection().request(offer, opened); error != CUDA_SUCCESS) return error;
  if (opened.fds.file.valid()) return CUDA_ERROR_INVALID_IMAGE;
  image = opened.message.image;
  known_images_.add(told, image);
  return CUDA_SUCCESS;
}

CUresult SessionClient::give_image(std::span<const std::byte> content, const proto::ImageOffer& offer, std::uint64_t& image) {
  proto::Received<proto::ImageOpened> opened;
  // The control process answers in ClientConnection::on_image_offer, and the seal below in on_image_seal.
  if (const CUresult error = connection().request(offer, opened); error != CUDA_SUCCESS) return error;
  image = opened.message.image;
  proto::FileDescriptor& file = opened.fds.file;
  if (!file.valid()) return CUDA_SUCCESS;  // the broker has it
  if (!fill_image(file, content)) return CUDA_ERROR_OUT_OF_MEMORY;
  (void)proto::seal(file, proto::Seal::given_content);  // else the control process has to copy it
  file.reset();
  proto::ImageSeal seal;
  seal.image = opened.message.image;
  proto::Done sealed;
  if (const CUresult error = connection().ask(seal, sealed); error != CUDA_SUCCESS) return error;
  image = sealed.image;
  return CUDA_SUCCESS;
}

CUresult SessionClient::fail(CUresult error) {
  CUresult expected = CUDA_SUCCESS;
  if (!sticky_.compare_exchange_strong(expected, error, std::memory_order_acq_rel)) return expected;
  write_output();  // an assertion's text
  log_line(
      "The session of process %d with the broker is over (CUresult %d): every later CUDA call of this process gives the same error; "
      "start the program again. The broker's log names the reason.",
      static_cast<int>(getpid()), static_cast<int>(error));
  return error;
}

CUresult SessionClient::give_up(CUresult error) {
  CUresult expected = CUDA_SUCCESS;
  return sticky_.compare_exchange_strong(expected, error, std::memory_order_acq_rel) ? error : expected;
}

// As ClientChannel::set_failed() in the executor; waiting calls look at the state by themselves.
void SessionClient::end_with(CUresult error) {
  const std::lock_guard lock(attach_mutex_);  // no recovery changes the header meanwhile
  if (give_up(error) != error) return;
  proto::ChannelHeader& header = *header_.load(std::memory_order_acquire);
  header.session_error.store(static_cast<std::uint32_t>(error), std::memory_order_relaxed);
  header.session_state.store(static_cast<std::uint32_t>(proto::SessionState::failed), std::memory_order_release);
}

// By way of the streams that the program's own printf() writes to, as NVIDIA's driver does it.
void SessionClient::write_output() {
  struct Writer {
    explicit Writer(std::atomic<unsigned>& count) : writers(count) { writers.fetch_add(1, std::memory_order_acq_rel); }
    ~Writer() { writers.fetch_sub(1, std::memory_order_release); }
    std::atomic<unsigned>& writers;
  } const writer(output_writers_);
  const std::lock_guard lock(output_mutex_);
  for (;;) {
    proto::OutputTaken piece;
    if (connection().ask(proto::OutputTake{}, piece) != CUDA_SUCCESS) return;
    if (piece.dropped_bytes != 0) {
      log_line("%llu bytes that kernels had printed were too much to keep until a call waited for the GPU; the rest follows.",
               static_cast<unsigned long long>(piece.dropped_bytes));
    }
    if (piece.stream == 0 || piece.size_bytes > sizeof piece.text) return;
    std::FILE* const file = piece.stream == 2 ? stderr : stdout;
    std::fwrite(piece.text, 1, piece.size_bytes, file);
    std::fflush(file);
  }
}

CUresult SessionClient::recover(std::uint64_t epoch) {
  const std::lock_guard lock(attach_mutex_);
  if (const CUresult sticky = sticky_.load(std::memory_order_relaxed); sticky != CUDA_SUCCESS) return sticky;
  const std::shared_ptr<Link> old = channel_.link_behind_writers();  // from now on nobody writes
  if (old->epoch() != epoch) return CUDA_SUCCESS;                    // another thread was faster
  Recovery recovery(*this, old);
  return recovery.run();
}

}  // namespace mpsshim::interposer
