// SPDX-License-Identifier: Apache-2.0
// Segments of host memory, as the control process gives them.
#include <utility>

#include "interposer/channel/connection.hpp"
#include "interposer/channel/session_client.hpp"
#include "interposer/settle.hpp"

namespace mpsshim::interposer {

CUresult SessionClient::create_segment(proto::SegmentPurpose purpose, std::uint64_t size_bytes, std::uint64_t address, proto::FileDescriptor& file,
                                       std::uint64_t& segment) {
  proto::SegmentCreate question;
  question.purpose = purpose;
  question.size_bytes = size_bytes;
  question.address = address;
  return request_segment(question, file, segment);
}

CUresult SessionClient::open_segment(const proto::MemoryName& name, std::uint64_t size_bytes, std::uint64_t address, proto::FileDescriptor& file,
                                     std::uint64_t& segment) {
  proto::SegmentOpen question;
  question.name = name;
  question.size_bytes = size_bytes;
  question.address = address;
  return request_segment(question, file, segment);
}

CUresult SessionClient::open_peer_segment(std::uint64_t address, std::uint64_t& segment) {
  proto::PeerSegment question;
  question.address = address;
  proto::FileDescriptor file;  // this process has it mapped already
  return request_segment(question, file, segment);
}

template <typename Request>
CUresult SessionClient::request_segment(const Request& question, proto::FileDescriptor& file, std::uint64_t& segment) {
  proto::Received<proto::SegmentCreated> answer;
  for (;;) {
    // The control process takes no request for memory while the session is without an executor: it has to attach again before.
    if (const CUresult error = look(); error != CUDA_SUCCESS) return error;
    const std::uint64_t epoch = channel_.link()->epoch();
    const CUresult error = connection().request(question, answer);
    if (error == CUDA_SUCCESS) break;
    if (error != CUDA_ERROR_MPS_SERVER_NOT_READY) return error;
    if (const CUresult lost = look(); lost != CUDA_SUCCESS) return lost;
    if (channel_.link()->epoch() == epoch) return error;
  }
  file = std::move(answer.fds.file);
  segment = answer.message.segment;
  return CUDA_SUCCESS;
}

}  // namespace mpsshim::interposer
