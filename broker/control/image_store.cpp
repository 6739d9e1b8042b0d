// SPDX-License-Identifier: Apache-2.0
#include "broker/control/image_store.hpp"

#include <algorithm>
#include <cstring>

#include <sys/stat.h>
#include <unistd.h>

#include "broker/control/content_hash.hpp"
#include "proto/channel.hpp"

namespace mpsshim::broker::control {

namespace {

constexpr std::size_t kBufferBytes = 1u << 20;
constexpr std::uint64_t kSliceBytes = 16u << 20;  // a few milliseconds

bool read_all(const proto::FileDescriptor& file, std::uint64_t offset, std::span<std::byte> buffer) {
  while (!buffer.empty()) {
    const ssize_t got = pread(file.get(), buffer.data(), buffer.size(), static_cast<off_t>(offset));
    if (got <= 0) return false;
    buffer = buffer.subspan(static_cast<std::size_t>(got));
    offset += static_cast<std::uint64_t>(got);
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
  std::uint64_t offset = 0;  // of the next slice, in hashing or in the current comparison
  ContentHash hash;
  bool hashed = false;
  std::vector<std::uint64_t> candidates;  // sealed, of equal size and hash; the last is being compared
};

CUresult ImageStore::open(std::uint64_t session, std::uint64_t size_bytes, std::uint64_t& image, int& file) {
  file = -1;
  if (size_bytes == 0 || size_bytes > kMaxImageBytes) return CUDA_ERROR_INVALID_IMAGE;
  const auto unsealed = std::ranges::count_if(images_, [&](const auto& entry) {
    return entry.second.state != State::sealed && entry.second.sessions.contains(session);
  });
  if (static_cast<std::size_t>(unsealed) >= kMaxOpenImages) return CUDA_ERROR_OUT_OF_MEMORY;
  Image made;
  made.size_bytes = size_bytes;
  made.file = proto::create_memory_file("mpsshim-image", size_bytes);
  if (!made.file.valid()) return CUDA_ERROR_OUT_OF_MEMORY;
  made.sessions.insert(session);
  image = next_id_++;
  file = made.file.get();
  images_.emplace(image, std::move(made));
  return CUDA_SUCCESS;
}

void ImageStore::seal(std::uint64_t session, std::uint64_t image, Sealed done) {
  const auto found = images_.find(image);
  if (found == images_.end() || !found->second.sessions.contains(session) || found->second.state != State::open) {
    return done(CUDA_ERROR_INVALID_VALUE, 0);
  }
  // Refused by the kernel while the client has the file mapped for writing.
  if (!proto::seal(found->second.file, proto::Seal::content) || !has_length(found->second.file, found->second.size_bytes)) {
    images_.erase(found);
    return done(CUDA_ERROR_INVALID_IMAGE, 0);
  }
  found->second.state = State::sealing;
  auto job = std::make_shared<SealJob>();
  job->session = session;
  job->image = image;
  job->done = std::move(done);
  step(job);
}

void ImageStore::step(const std::shared_ptr<SealJob>& job) {
  const auto found = images_.find(job->image);
  if (found == images_.end()) return;  // its session ended: nobody waits for the answer
  Image& image = found->second;
  const CUresult status = job->hashed ? compare_slice(*job, image) : hash_slice(*job, image);
  if (status != CUDA_SUCCESS) {
    images_.erase(found);
    return finish(*job, status, 0);
  }
  if (job->hashed && !job->candidates.empty() && job->offset >= image.size_bytes) {
    const std::uint64_t known = job->candidates.back();
    images_.erase(found);
    images_.at(known).sessions.insert(job->session);
    return finish(*job, CUDA_SUCCESS, known);
  }
  if (job->hashed && job->candidates.empty()) {
    image.state = State::sealed;
    image.hash = job->hash.value();
    return finish(*job, CUDA_SUCCESS, job->image);
  }
  loop_.defer([this, job] { step(job); });
}

CUresult ImageStore::hash_slice(SealJob& job, Image& image) {
  const std::uint64_t end = std::min(job.offset + kSliceBytes, image.size_bytes);
  std::vector<std::byte> buffer(kBufferBytes);
  while (job.offset < end) {
    const std::span part(buffer.data(), std::min<std::uint64_t>(buffer.size(), end - job.offset));
    if (!read_all(image.file, job.offset, part)) return CUDA_ERROR_INVALID_IMAGE;
    job.hash.add(part);
    job.offset += part.size();
  }
  if (job.offset < image.size_bytes) return CUDA_SUCCESS;
  job.hashed = true;
  job.offset = 0;
  for (const auto& [id, other] : images_) {
    if (other.state == State::sealed && other.size_bytes == image.size_bytes && other.hash == job.hash.value()) job.candidates.push_back(id);
  }
  return CUDA_SUCCESS;
}

// Steps on to the next candidate at the first difference; at the end of the content `offset` is the size and the last candidate is equal.
CUresult ImageStore::compare_slice(SealJob& job, const Image& image) {
  if (job.candidates.empty()) return CUDA_SUCCESS;
  const auto other = images_.find(job.candidates.back());
  std::vector<std::byte> ours(kBufferBytes);
  std::vector<std::byte> theirs(kBufferBytes);
  const std::uint64_t end = std::min(job.offset + kSliceBytes, image.size_bytes);
  while (other != images_.end() && job.offset < end) {
    const auto length = static_cast<std::size_t>(std::min<std::uint64_t>(kBufferBytes, end - job.offset));
    if (!read_all(image.file, job.offset, {ours.data(), length})) return CUDA_ERROR_INVALID_IMAGE;
    if (!read_all(other->second.file, job.offset, {theirs.data(), length}) || std::memcmp(ours.data(), theirs.data(), length) != 0) break;
    job.offset += length;
  }
  if (other == images_.end() || job.offset < end) {
    job.candidates.pop_back();
    job.offset = 0;
  }
  return CUDA_SUCCESS;
}

void ImageStore::finish(SealJob& job, CUresult status, std::uint64_t image) {
  const Sealed done = std::move(job.done);
  done(status, image);
}

void ImageStore::release_session(std::uint64_t session) {
  for (auto entry = images_.begin(); entry != images_.end();) {
    const auto next = std::next(entry);
    if (entry->second.sessions.erase(session) != 0) drop_if_unused(entry->first);
    entry = next;
  }
}

void ImageStore::drop_if_unused(std::uint64_t image) {
  const auto found = images_.find(image);
  if (found != images_.end() && found->second.sessions.empty() && !found->second.logged) images_.erase(found);
}

int ImageStore::sealed_file(std::uint64_t session, std::uint64_t image, std::uint64_t& size_bytes) const {
  const auto found = images_.find(image);
  if (found == images_.end() || found->second.state != State::sealed) return -1;
  if (session != 0 && !found->second.sessions.contains(session)) return -1;
  size_bytes = found->second.size_bytes;
  return found->second.file.get();
}

bool ImageStore::note(unsigned device, std::uint64_t image, bool load) {
  const auto found = images_.find(image);
  if (found == images_.end() || found->second.state != State::sealed) return false;
  found->second.logged = true;
  log_.push_back({device, image, load});
  return true;
}

}  // namespace mpsshim::broker::control
