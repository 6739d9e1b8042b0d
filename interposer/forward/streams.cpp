// SPDX-License-Identifier: Apache-2.0
#include "interposer/forward/streams.hpp"

#include <algorithm>
#include <array>
#include <utility>

#include "interposer/entry.hpp"
#include "interposer/forward/graphs/capture.hpp"
#include "interposer/forward/green_contexts.hpp"
#include "interposer/forward/hooks.hpp"
#include "interposer/local/acting_session.hpp"
#include "proto/mutex.hpp"

namespace mpsshim::interposer::forward {

namespace {

// A thread's own streams end with the thread. The destructor may run late, even after exit() began: it only posts.
struct PerThreadStreams {
  std::array<CUstream, kMaxSessions> handles{};  // one of each session, by its number
  ~PerThreadStreams() {
    for (std::uint32_t session = 0; session < kMaxSessions; ++session) {
      const CUstream handle = std::exchange(handles[session], nullptr);
      if (handle == nullptr || !is_initialised()) continue;
      const ActingSession acting(session);
      (void)Streams::instance().destroy(id_of<proto::HandleKind::stream>(handle));
    }
  }
};
thread_local PerThreadStreams per_thread_own;

std::atomic<std::uint64_t> last_unique_id{0};  // of all sessions

}  // namespace

Streams& Streams::instance() {
  return PerSession<Streams>::get([] { return new Streams(); });
}

Stream* Streams::null_stream() {
  if (GreenContexts::any()) [[unlikely]] {
    if (GreenObject* green = GreenContexts::instance().current_place()) return GreenContexts::instance().null_stream(*green);
  }
  return legacy_default();
}

CUresult Streams::missing(CUstream handle) {
  const std::lock_guard lock(mutex_);
  return orphans_.contains(reinterpret_cast<std::uintptr_t>(handle)) ? CUDA_ERROR_CONTEXT_IS_DESTROYED : CUDA_ERROR_INVALID_HANDLE;
}

Stream* Streams::legacy_default() {
  if (Stream* stream = null_.load(std::memory_order_acquire)) [[likely]]
    return stream;
  const std::lock_guard lock(mutex_);
  if (Stream* stream = null_.load(std::memory_order_relaxed)) return stream;
  auto object = std::make_unique<Stream>();
  Stream* stream = object.get();
  stream->id = proto::kNullStream;
  stream->is_null_stream = true;
  stream->unique_id = last_unique_id.fetch_add(1, std::memory_order_relaxed) + 1;
  live_.reserve(proto::kFenceWords);
  live_.push_back(stream);
  // It is the first in the table: 0 is the word of kNullStream, the name by which the executor has the stream from the session's start. Nothing is
  // posted, and no program is given the table's id.
  const proto::StreamId id = table_.add(std::move(object));
  if (id.index() != proto::kNullStream.index()) return nullptr;
  null_.store(stream, std::memory_order_release);
  return stream;
}

Stream* Streams::per_thread() {
  if (GreenContexts::any() && GreenContexts::instance().current_place() != nullptr) [[unlikely]]
    return nullptr;
  CUstream& own = per_thread_own.handles[ActingSession::index()];
  if (own != nullptr) return table_.find(proto::StreamId{reinterpret_cast<std::uintptr_t>(own)}).get();
  Stream* stream = nullptr;
  if (create(CU_STREAM_DEFAULT, 0, nullptr, stream) != CUDA_SUCCESS) return nullptr;
  own = reinterpret_cast<CUstream>(stream->id.value);  // NOLINT(performance-no-int-to-ptr)
  return stream;
}

Stream* Streams::default_stream() { return PerThreadDefaultStream::active() ? per_thread() : null_stream(); }

void Streams::reuse_retired() {
  const auto over = [&](const Retiring& retired) {
    if (!session().fences().reached(retired.word, retired.value)) return false;
    table_.release_index(retired.word);
    return true;
  };
  std::erase_if(retiring_, over);
}

CUresult Streams::wait_for_word() {
  for (;;) {
    reuse_retired();
    if (live_.size() + retiring_.size() < proto::kFenceWords) return CUDA_SUCCESS;
    if (retiring_.empty()) return CUDA_ERROR_OUT_OF_MEMORY;
    const Retiring oldest = retiring_.front();
    const Unlocked meanwhile(mutex_);
    if (const CUresult error = session().wait_fence(oldest.word, oldest.value, "the work of a destroyed stream"); error != CUDA_SUCCESS) return error;
  }
}

CUresult Streams::create(const StreamShape& shape, Stream*& stream) {
  if (legacy_default() == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;  // takes id 0 first
  auto object = std::make_unique<Stream>();
  // Those of a green context are ordered with no NULL stream, whatever was asked for (as natively). A context's part is none to the program.
  const bool is_green = GreenContexts::instance().told_of(shape.green) != proto::GreenContextId{};
  object->flags = is_green && !shape.is_null_stream ? shape.flags | CU_STREAM_NON_BLOCKING : shape.flags;
  object->is_blocking = !is_green && (object->flags & CU_STREAM_NON_BLOCKING) == 0;
  object->priority = shape.priority;
  object->context = shape.context;
  object->green = shape.green;
  object->is_null_stream = shape.is_null_stream;
  object->unique_id = last_unique_id.fetch_add(1, std::memory_order_relaxed) + 1;
  {
    const std::lock_guard lock(mutex_);
    if (const CUresult error = wait_for_word(); error != CUDA_SUCCESS) return error;
    // The table gives out the lowest numbers, so with fewer streams than words the index is one of a word.
    const proto::StreamId id = table_.add(std::move(object));
    stream = table_.find(id).get();
    if (stream == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    stream->id = id;
    stream->word = id.index();
    live_.push_back(stream);
  }
  return post_create(*stream);
}

CUresult Streams::post_create(Stream& stream) {
  const auto post = [&]<typename Record>(const Record& content) {
    return session().channel().post<Record>(stream.id, 0, [&](Record& record, std::byte*, Place place) {
      record = content;
      stream.recipe = session().recipes().add(recipe_of(stream.id, record, place.position));
    });
  };
  if (stream.green == proto::GreenContextId{}) return post(proto::StreamCreateRecord{stream.flags, stream.priority});
  const std::uint32_t order = !stream.is_blocking ? 0 : stream.is_null_stream ? 2 : 1;
  return post(proto::GreenStreamCreateRecord{stream.green, stream.priority, order});
}

CUresult Streams::destroy(proto::StreamId id) {
  const std::lock_guard ending(ending_mutex_);
  const proto::Known<Stream> found = table_.find(id);
  if (!found) return CUDA_ERROR_INVALID_HANDLE;
  Stream& stream = *found;
  Captures::instance().forget(stream);
  // Held throughout: who waits for all streams meanwhile posts no fence behind the stream's end.
  const std::lock_guard lock(mutex_);
  std::uint32_t last = 0;
  CUresult error = fence(stream, last);
  if (error == CUDA_SUCCESS) {
    error = session().channel().post<proto::StreamDestroyRecord>(
        id, 0, [&](proto::StreamDestroyRecord&, std::byte*, Place place) { session().end_recipe(stream.recipe, place); });
  }
  std::erase(live_, &stream);
  retiring_.push_back({id.index(), last});
  (void)table_.take(id, false);
  return error;
}

void Streams::orphan_all_of(proto::GreenContextId green) {
  std::vector<proto::StreamId> ended;
  {
    const std::lock_guard lock(mutex_);
    for (Stream* stream : live_) {
      if (stream->green != green) continue;
      ended.push_back(stream->id);
      if (!stream->is_null_stream) orphans_.insert(stream->id.value);
    }
  }
  for (const proto::StreamId id : ended) (void)destroy(id);
}

void Streams::destroy_all_of(CUcontext context) {
  std::vector<proto::StreamId> ended;
  {
    const std::lock_guard lock(mutex_);
    for (const Stream* stream : live_) {
      if (stream->context == context && stream->id != proto::kNullStream) ended.push_back(stream->id);
    }
  }
  for (const proto::StreamId id : ended) (void)destroy(id);
}

CUresult synchronize_all_streams() {
  if (!session().is_attached()) return CUDA_SUCCESS;
  if (const CUresult error = session().begin_call(); error != CUDA_SUCCESS) return error;
  return Streams::instance().synchronize_all();
}

std::uint64_t unique_stream_id(CUstream handle) {
  if (session().ensure_attached() != CUDA_SUCCESS) return 0;
  const Stream* stream = Streams::instance().resolve(handle);
  return stream != nullptr ? stream->unique_id : 0;
}

}  // namespace mpsshim::interposer::forward
