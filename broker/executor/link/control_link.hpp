// SPDX-License-Identifier: Apache-2.0
// The executor's end of the socket to the control process. Any thread sends; one thread (the executor's main) receives and files what
// arrives: images and segments are kept until somebody takes them, everything else goes to the handler.
// The control process is trusted; its end (hang-up) ends this process.
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <thread>
#include <utility>

#include "broker/compiler/prepare_image.hpp"
#include "broker/control_messages.hpp"
#include "proto/cond_var.hpp"
#include "proto/mutex.hpp"
#include "proto/socket.hpp"

namespace mpsshim::broker {

struct ReceivedSegment {
  proto::SegmentPurpose purpose{};
  std::uint64_t address = 0;
  std::uint64_t size_bytes = 0;
  bool is_peers = false;
  proto::FileDescriptor file;
};

struct ReceivedPiece {
  std::uint64_t size_bytes = 0;
  std::uint32_t handle_type = 0;  // of another interface: CUexternalMemoryHandleType
  std::uint64_t number = 0;       // for PieceTaken and PieceEnded
  proto::FileDescriptor handle;
};

struct ReceivedLease {
  proto::Lease lease;
  bool is_peers = false;  // another session's
};

class ControlLink {
 public:
  using Handler = std::function<void(ReceivedMessage&)>;

  explicit ControlLink(proto::Socket socket) : socket_(std::move(socket)) {}

  void send(const OutgoingMessage& message);
  // Adds to the load log, which the executor's next life makes again. Sent before the driver is called. Hold what it returns until the driver has
  // been: so the driver gets everything in the log's order, whichever threads ask. `session`: for the log file. `flags`: of a load, kLoad...
  using InOrder = std::unique_lock<std::mutex>;
  [[nodiscard]] InOrder note(LogKind kind, std::uint64_t object, std::uint64_t copy = 0, std::uint64_t session = 0, std::uint32_t flags = 0);
  // Receives until the control process hangs up or sends Quit. `handler` sees all but what keep() has.
  void run(const Handler& handler);

  // The same until that message comes, which is true, or the control process hangs up or sends Quit. Nothing else is due meanwhile.
  [[nodiscard]] bool await(ExecutorMessage type);

  // Asks for an image and what a compiler process makes of it, for a load of `session`, and waits for it, at most `timeout_ms`. Called by helper
  // threads.
  struct FetchedImage {
    CUresult status = CUDA_ERROR_MPS_SERVER_NOT_READY;
    std::string log;                 // why not
    proto::FileDescriptor image;     // sealed
    proto::FileDescriptor prepared;  // broker/compiler/prepared_file.hpp; invalid: nobody has read the image
  };
  [[nodiscard]] FetchedImage fetch_image(std::uint64_t session, std::uint64_t image, const ImageTarget& target, unsigned timeout_ms);
  // Has an input of a linker of the session looked through. `status` and `log` alone where it is refused. Called by helper threads.
  [[nodiscard]] FetchedImage check_input(std::uint64_t session, const proto::FileDescriptor& input, CUjitInputType type, unsigned timeout_ms);
  // Whether the session may have so much more device memory; DeviceLimit asks. Called by helper threads.
  struct MemoryAnswer {
    CUresult status = CUDA_ERROR_MPS_RPC_FAILURE;
    std::uint64_t number = 0;      // what was granted is known by
    std::uint64_t left_bytes = 0;  // to its user
  };
  [[nodiscard]] MemoryAnswer ask_for_memory(std::uint64_t session, std::uint64_t size_bytes);
  void give_memory_back(std::uint64_t session, std::uint64_t number);
  // Has the linker process do what the request says (linker_client.hpp). `prepared` is the outcome; invalid: there is no such process. Called by
  // helper threads, and by the one that receives: for a replay.
  [[nodiscard]] FetchedImage link(std::uint64_t session, std::uint64_t image, std::uint32_t flags, const proto::FileDescriptor& request,
                                  unsigned timeout_ms);
  // True once nobody waits for an answer any more: asked while something is waited for, at the start and after look_again().
  using IsGone = std::function<bool()>;
  // The segment that the control process announced, which it does before its client learns the id. One that has not arrived is asked about, so
  // a busy control process or link makes nothing fail and a false id waits for nothing. CUDA_ERROR_INVALID_VALUE: never announced;
  // CUDA_ERROR_MPS_RPC_FAILURE: no answer within a minute, which is logged. Called by helper threads.
  [[nodiscard]] CUresult take_segment(std::uint64_t session, std::uint64_t segment, const IsGone& is_gone, ReceivedSegment& taken);
  // The further device range at `address`, or another session's, that the control process announced; as take_segment.
  [[nodiscard]] CUresult take_lease(std::uint64_t session, std::uint64_t address, const IsGone& is_gone, ReceivedLease& taken);
  // One that has been announced and will not be used; false: there is none.
  bool forget_lease(std::uint64_t session, std::uint64_t address);
  // The memory of another session, or of another interface, that the control process announced under this id; as take_segment.
  [[nodiscard]] CUresult take_piece(std::uint64_t session, std::uint64_t memory, const IsGone& is_gone, ReceivedPiece& taken);
  void look_again();
  // Waits, at most `timeout_ms`, until the control process has dealt with all that was sent so far, or nobody waits any more; false: it was too
  // long. Called by helper threads.
  static constexpr unsigned kSettleTimeoutMs = 2'000;
  bool settle(
      unsigned timeout_ms = kSettleTimeoutMs, const IsGone& is_gone = [] { return false; });
  void forget_session(std::uint64_t session);

 private:
  using Announced = std::pair<std::uint64_t, std::uint64_t>;  // session, and what it is known by
  template <class Kind>
  [[nodiscard]] CUresult take(std::map<Announced, Kind> ControlLink::*announced, Announced which, const IsGone& is_gone, Kind& taken);
  template <class Question>
  [[nodiscard]] FetchedImage ask(Question question, LentFds<Question> fds, unsigned timeout_ms);
  void receive_until(const std::function<bool()>& is_enough);
  [[nodiscard]] bool receive(ReceivedMessage& received);
  void file(ReceivedMessage& received, const Handler& handler);
  void keep(Received<message::ImageGive> given);
  void keep(Received<message::SegmentAdd> added);
  void keep(Received<message::PieceAdd> added);
  void keep(const Received<message::LeaseAdd>& added);
  void keep(const Received<message::MemoryGrant>& answer);
  void keep(const Received<message::Settled>& answer);

  proto::Socket socket_;
  std::atomic<std::thread::id> receiver_{};  // the thread in run(), once there is one
  std::deque<ReceivedMessage> deferred_;             // what came while that thread waited for an answer; it alone has these
  bool is_over_ = false;
  Mutex send_mutex_;
  std::mutex order_mutex_;  // of the load log; without annotations, which cannot follow a lock into its caller's hands
  Mutex settle_mutex_;  // so that tickets are sent in order
  std::uint64_t settles_asked_ GUARDED_BY(settle_mutex_) = 0;
  Mutex mutex_;  // held for look-ups alone
  CondVar arrived_;
  std::uint64_t settles_answered_ GUARDED_BY(mutex_) = 0;
  std::uint64_t images_asked_ GUARDED_BY(mutex_) = 0;
  std::uint64_t memory_asked_ GUARDED_BY(mutex_) = 0;
  std::map<std::uint64_t, std::optional<MemoryAnswer>> memory_answers_ GUARDED_BY(mutex_);  // by number of the question
  std::map<std::uint64_t, std::optional<FetchedImage>> images_ GUARDED_BY(mutex_);          // by number of the question
  std::map<Announced, ReceivedLease> leases_ GUARDED_BY(mutex_);                            // by address
  std::map<Announced, ReceivedSegment> segments_ GUARDED_BY(mutex_);                        // by segment
  std::map<Announced, ReceivedPiece> pieces_ GUARDED_BY(mutex_);
};

}  // namespace mpsshim::broker
