// SPDX-License-Identifier: Apache-2.0
#include "broker/control/images/image_store.hpp"

#include <algorithm>
#include <iterator>

#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "broker/log.hpp"
#include "proto/channel.hpp"

namespace mpsshim::broker::control {

namespace {

constexpr std::size_t kBufferBytes = 1u << 20;
constexpr std::uint64_t kSliceBytes = 4u << 20;  // a few milliseconds

bool read_all(const proto::FileDescriptor& file, std::uint64_t offset, std::span<std::byte> buffer) {
  while (!buffer.empty()) {
    const ssize_t got = pread(file.get(), buffer.data(), buffer.size(), static_cast<off_t>(offset));
    if (got <= 0) return false;
    buffer = buffer.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
  }
  return true;
}

bool write_part(const proto::FileDescriptor& file, std::uint64_t offset, std::span<const std::byte> content) {
  while (!content.empty()) {
    const ssize_t put = pwrite(file.get(), content.data(), content.size(), static_cast<off_t>(offset));
    if (put <= 0) return false;
    content = content.subspan(static_cast<std::size_t>(put));
    offset += static_cast<std::uint64_t>(put);
  }
  return true;
}

// The client could have changed the file's length until it was sealed.
bool has_length(const proto::FileDescriptor& file, std::uint64_t size_bytes) {
  const auto sealed = proto::sealed_size(file);
  return sealed && *sealed == (size_bytes + proto::kPageBytes - 1) / proto::kPageBytes * proto::kPageBytes;
}

}  // namespace

struct ImageStore::SealJob {
  std::uint64_t session = 0;
  std::uint64_t image = 0;
  Sealed done;
  std::uint64_t offset = 0;    // of the next slice
  proto::FileDescriptor copy;  // of a file that is not sealed
  proto::ContentHash hash;
};

CUresult ImageStore::offer(std::uint64_t session, std::uint64_t size_bytes, const proto::ContentDigest& digest, std::uint64_t& image, int& file,
                           uid_t house) {
  const auto known = known_.find({house, size_bytes, digest});
  if (known == known_.end()) return open(session, size_bytes, image, file, house);
  hold(images_.at(known->second), session);
  image = known->second;
  file = -1;
  return CUDA_SUCCESS;
}

CUresult ImageStore::open(std::uint64_t session, std::uint64_t size_bytes, std::uint64_t& image, int& file, uid_t house) {
  file = -1;
  if (size_bytes == 0 || size_bytes > kMaxImageBytes) return CUDA_ERROR_INVALID_IMAGE;
  const auto unsealed = std::ranges::count_if(
      images_, [&](const auto& entry) { return entry.second.state != State::sealed && entry.second.sessions.contains(session); });
  if (static_cast<std::size_t>(unsealed) >= kMaxOpenImages) return CUDA_ERROR_OUT_OF_MEMORY;
  Image made;
  made.size_bytes = size_bytes;
  made.house = house;
  made.file = proto::create_memory_file("mpsshim-image", size_bytes);
  if (!made.file.valid()) return CUDA_ERROR_OUT_OF_MEMORY;
  total_bytes_ += size_bytes;
  hold(made, session);
  image = new_id();
  file = made.file.get();
  images_.emplace(image, std::move(made));
  return CUDA_SUCCESS;
}

void ImageStore::hold(Image& image, std::uint64_t session) {
  if (!image.sessions.insert(session).second) return;
  Holding& holding = holdings_[session];
  ++holding.count;
  holding.bytes += image.size_bytes;
}

ImageStore::Holding ImageStore::held_by(std::uint64_t session) const {
  const auto found = holdings_.find(session);
  return found == holdings_.end() ? Holding{} : found->second;
}

bool ImageStore::is_held(std::uint64_t image, std::uint64_t session) const {
  const auto found = images_.find(image);
  return found != images_.end() && found->second.sessions.contains(session);
}

bool ImageStore::is_held(std::uint64_t image) const {
  const auto found = images_.find(image);
  return found != images_.end() && !found->second.sessions.empty();
}

std::uint64_t ImageStore::new_id() const {
  for (;;) {
    std::uint64_t id = 0;
    if (getrandom(&id, sizeof id, 0) == static_cast<ssize_t>(sizeof id) && id != 0 && !images_.contains(id)) return id;
  }
}

void ImageStore::seal(std::uint64_t session, std::uint64_t image, Sealed done) {
  const auto found = images_.find(image);
  if (found == images_.end() || !found->second.sessions.contains(session) || found->second.state != State::open) {
    return done(CUDA_ERROR_INVALID_VALUE, 0);
  }
  // A client that writes to the file holds a lock as long as it likes, which sealing waits for. So sealing is the client's to do, before it asks;
  // what it has not sealed is copied.
  auto job = std::make_shared<SealJob>();
  const Image& asked = found->second;
  if (!proto::is_sealed(asked.file, proto::Seal::given_content)) job->copy = proto::create_memory_file("mpsshim-image", asked.size_bytes);
  if (!job->copy.valid() && !has_length(asked.file, asked.size_bytes)) {
    erase(found);
    return done(CUDA_ERROR_INVALID_IMAGE, 0);
  }
  found->second.state = State::sealing;
  job->session = session;
  job->image = image;
  job->done = std::move(done);
  step(job);
}

void ImageStore::step(const std::shared_ptr<SealJob>& job) {
  const auto found = images_.find(job->image);
  if (found == images_.end()) return;  // its session ended: nobody waits for the answer
  Image& image = found->second;
  const CUresult status = hash_slice(*job, image);
  if (status != CUDA_SUCCESS) {
    erase(found);
    return finish(*job, status, 0);
  }
  if (job->offset < image.size_bytes) {
    loop_.defer([this, job] { step(job); });
    return;
  }
  if (job->copy.valid()) {
    if (!proto::seal(job->copy, proto::Seal::content)) {
      erase(found);
      return finish(*job, CUDA_ERROR_OUT_OF_MEMORY, 0);
    }
    image.file = std::move(job->copy);
  }
  const auto [known, is_new] = known_.try_emplace({image.house, image.size_bytes, job->hash.finish()}, job->image);
  if (!is_new) {
    const std::uint64_t other = known->second;
    erase(found);
    hold(images_.at(other), job->session);
    return finish(*job, CUDA_SUCCESS, other);
  }
  image.state = State::sealed;
  image.digest = known->first.digest;
  finish(*job, CUDA_SUCCESS, job->image);
}

CUresult ImageStore::hash_slice(SealJob& job, const Image& image) {
  const std::uint64_t end = std::min(job.offset + kSliceBytes, image.size_bytes);
  std::vector<std::byte> buffer(std::min<std::uint64_t>(kBufferBytes, end - job.offset));
  while (job.offset < end) {
    const std::span part(buffer.data(), std::min<std::uint64_t>(buffer.size(), end - job.offset));
    if (!read_all(image.file, job.offset, part)) return CUDA_ERROR_INVALID_IMAGE;
    if (job.copy.valid() && !write_part(job.copy, job.offset, part)) return CUDA_ERROR_OUT_OF_MEMORY;
    job.hash.add(part);
    job.offset += part.size();
  }
  return CUDA_SUCCESS;
}

void ImageStore::finish(SealJob& job, CUresult status, std::uint64_t image) {
  const Sealed done = std::move(job.done);
  done(status, image);
}

bool ImageStore::is_sealing() const {
  return std::ranges::any_of(images_, [](const auto& entry) { return entry.second.state == State::sealing; });
}

void ImageStore::save(StateWriter& state) const {
  state.number(images_.size());
  for (const auto& [id, image] : images_) {
    state.number(id);
    state.number(image.size_bytes);
    state.plain(image.digest);
    state.number(image.house);
    state.number(image.state == State::sealed ? 1 : 0);
    state.file(image.file);
    state.number(image.sessions.size());
    for (const std::uint64_t session : image.sessions) state.number(session);
  }
  state.number(compiled_.size());
  for (const Compiled& compiled : compiled_) {
    state.number(compiled.device);
    state.number(compiled.image);
    state.number(compiled.size_bytes);
    state.file(compiled.file);
  }
  state.number(log_.size());
  for (const Entry& entry : log_) {
    for (const std::uint64_t value : {std::uint64_t{entry.executor.device}, std::uint64_t{entry.executor.ordinal}, std::uint64_t{entry.executor.user},
                                      entry.object, std::uint64_t{static_cast<std::uint32_t>(entry.kind)}, entry.copy, std::uint64_t{entry.flags}}) {
      state.number(value);
    }
  }
}

void ImageStore::restore(StateReader& state) {
  for (std::uint64_t left = state.number(); left > 0 && state.ok(); --left) {
    const std::uint64_t id = state.number();
    Image& image = images_[id];
    image.size_bytes = state.number();
    image.digest = state.plain<proto::ContentDigest>();
    if (state.version() >= 4) image.house = static_cast<uid_t>(state.number());
    image.state = state.number() != 0 ? State::sealed : State::open;
    image.file = state.file();
    for (std::uint64_t sessions = state.number(); sessions > 0 && state.ok(); --sessions) hold(image, state.number());
    total_bytes_ += image.size_bytes;
    if (image.state == State::sealed) known_[identity_of(image)] = id;
  }
  for (std::uint64_t left = state.number(); left > 0 && state.ok(); --left) {
    Compiled& compiled = compiled_.emplace_back();
    compiled.device = static_cast<unsigned>(state.number());
    compiled.image = state.number();
    compiled.size_bytes = state.number();
    compiled.file = state.file();
  }
  for (std::uint64_t left = state.number(); left > 0 && state.ok(); --left) {
    Entry entry;
    entry.executor.device = static_cast<unsigned>(state.number());
    entry.executor.ordinal = static_cast<unsigned>(state.number());
    if (state.version() >= 4) entry.executor.user = static_cast<uid_t>(state.number());
    entry.object = state.number();
    entry.kind = static_cast<LogKind>(state.number());
    entry.copy = state.number();
    entry.flags = state.version() >= 3 ? static_cast<std::uint32_t>(state.number()) : kLoadHasVariables | kLoadTakesCodeAddresses;
    if (!note(entry)) return state.fail();
  }
}

void ImageStore::release_session(std::uint64_t session) {
  for (auto entry = images_.begin(); entry != images_.end();) {
    const auto next = std::next(entry);
    if (entry->second.sessions.erase(session) != 0) drop_if_unused(entry->first);
    entry = next;
  }
  holdings_.erase(session);
  strike_undone();
}

void ImageStore::drop_if_unused(std::uint64_t image) {
  const auto found = images_.find(image);
  if (found != images_.end() && found->second.sessions.empty() && found->second.log_entries == 0) erase(found);
}

void ImageStore::erase(std::map<std::uint64_t, Image>::iterator image) {
  if (image->second.state == State::sealed) known_.erase(identity_of(image->second));
  compiled_.remove_if([&](const Compiled& compiled) { return compiled.image == image->first; });
  for (const std::uint64_t session : image->second.sessions) {
    Holding& holding = holdings_[session];
    --holding.count;
    holding.bytes -= image->second.size_bytes;
  }
  total_bytes_ -= image->second.size_bytes;
  images_.erase(image);
}

void ImageStore::keep_compiled(unsigned device, std::uint64_t image, proto::FileDescriptor file) {
  const auto size = proto::sealed_size(file);
  if (!size || *size > kMaxCompiledBytes || !images_.contains(image)) return;
  compiled_.remove_if([&](const Compiled& compiled) { return compiled.image == image && compiled.device == device; });
  compiled_.push_front({device, image, *size, std::move(file)});
  std::uint64_t total = 0;
  for (const Compiled& compiled : compiled_) total += compiled.size_bytes;
  // First what no next life asks for: one that has to have a text compiled takes that much longer to take over.
  for (const bool goes_if_logged : {false, true}) {
    for (auto oldest = compiled_.end(); total > kMaxCompiledBytes && oldest != compiled_.begin();) {
      --oldest;
      if (oldest == compiled_.begin() || (!goes_if_logged && images_.at(oldest->image).log_entries != 0)) continue;
      total -= oldest->size_bytes;
      oldest = compiled_.erase(oldest);
    }
  }
}

int ImageStore::compiled_file(unsigned device, std::uint64_t image) {
  const auto found = std::ranges::find_if(compiled_, [&](const Compiled& compiled) { return compiled.image == image && compiled.device == device; });
  if (found == compiled_.end()) return -1;
  compiled_.splice(compiled_.begin(), compiled_, found);
  return compiled_.front().file.get();
}

int ImageStore::sealed_file(std::uint64_t session, std::uint64_t image, std::uint64_t& size_bytes) const {
  const auto found = images_.find(image);
  if (found == images_.end() || found->second.state != State::sealed) return -1;
  if (session != 0 && !found->second.sessions.contains(session)) return -1;
  size_bytes = found->second.size_bytes;
  return found->second.file.get();
}

}  // namespace mpsshim::broker::control
