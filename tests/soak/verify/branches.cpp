// SPDX-License-Identifier: Apache-2.0
// A random graph of dependencies in several streams, held together by events: every node is made of three earlier ones, and every one is looked at.
#include <algorithm>
#include <vector>

#include "exercise.hpp"
#include "tests/process/programs/driver.hpp"

namespace mpsshim::soak {

namespace {

constexpr std::size_t kMostNodes = 60;
constexpr std::size_t kMostStreams = 6;
constexpr Word kPoison = 0x0DDBA11;

struct Node {
  std::size_t stream = 0;
  std::array<std::size_t, 3> sources{};
  Word salt = 0;
};

class Branches final : public Exercise {
 public:
  explicit Branches(const Tools& tools)
      : tools_(tools),
        join_(tools.work.process.kernels.function("join")),
        words_(kTile << tools.work.random.below(3)),
        nodes_((kMostNodes + 1) * words_ * sizeof(Word)) {
    for (CUevent& event : events_) CU(cuEventCreate(&event, tools.work.random.below(2) == 0 ? CU_EVENT_DISABLE_TIMING : CU_EVENT_DEFAULT));
  }
  ~Branches() override {
    if (tools_.work.process.options.leaves_at_once) return;
    for (const CUevent event : events_) cuEventDestroy(event);
    drop_streams();
  }
  void run() override;

 private:
  void make_streams();
  void drop_streams();
  void launch(std::size_t number, const Node& node);
  [[nodiscard]] CUdeviceptr address(std::size_t node) const { return nodes_.address() + node * words_ * sizeof(Word); }
  [[nodiscard]] std::vector<Word> result_of(const Node& node, const std::vector<Word>& all) const;

  Tools tools_;
  CUfunction join_;
  std::size_t words_;  // of a node
  DeviceMemory nodes_;
  std::array<CUevent, kMostNodes + 1> events_{};
  std::array<std::size_t, kMostNodes + 1> stream_of_{};
  std::vector<CUstream> streams_;
};

void Branches::make_streams() {
  Random& random = tools_.work.random;
  if (!streams_.empty() && !random.one_in(4)) return;
  drop_streams();
  for (std::size_t left = 2 + random.below(kMostStreams - 1); left > 0; --left) {
    streams_.emplace_back();
    CU(cuStreamCreate(&streams_.back(), random.below(2) == 0 ? CU_STREAM_NON_BLOCKING : CU_STREAM_DEFAULT));
  }
}

void Branches::drop_streams() {
  for (const CUstream stream : streams_) cuStreamDestroy(stream);
  streams_.clear();
}

// Node 0 is what was uploaded.
void Branches::launch(std::size_t number, const Node& node) {
  Workplace& work = tools_.work;
  const CUstream stream = streams_[node.stream];
  for (const std::size_t source : node.sources) {
    if (stream_of_[source] != node.stream) CU(cuStreamWaitEvent(stream, events_[source], 0));
  }
  CUdeviceptr out = address(number), a = address(node.sources[0]), b = address(node.sources[1]), c = address(node.sources[2]);
  auto count = static_cast<unsigned>(words_);
  unsigned ticks = work.random.one_in(3) ? static_cast<unsigned>(work.random.of_any_size(work.sizes().ticks)) : 0;
  Word salt = node.salt;
  void* arguments[] = {&out, &a, &b, &c, &count, &salt, &ticks};
  work.history.note("join", {{"node", number}, {"stream", node.stream}, {"of", node.sources[0]}, {"and", node.sources[1]}, {"and", node.sources[2]}});
  CU(cuLaunchKernel(join_, 1 + static_cast<unsigned>(work.random.below(4)), 1, 1, 64, 1, 1, 0, stream, arguments, nullptr));
  CU(cuEventRecord(events_[number], stream));
  stream_of_[number] = node.stream;
  work.did(2);
}

std::vector<Word> Branches::result_of(const Node& node, const std::vector<Word>& all) const {
  std::vector<Word> out(words_);
  for (std::size_t i = 0; i < words_; ++i) {
    const Word a = all[node.sources[0] * words_ + i];
    const Word b = all[node.sources[1] * words_ + (i + 1) % words_];
    const Word c = all[node.sources[2] * words_ + (i + 2) % words_];
    out[i] = mix(mix(mix(node.salt + static_cast<Word>(i), a), b), c);
  }
  return out;
}

void Branches::run() {
  Workplace& work = tools_.work;
  Random& random = work.random;
  make_streams();
  const std::size_t count = 2 + random.below(kMostNodes - 1);
  std::vector<Word> wanted(words_);
  for (Word& word : wanted) word = random.word();
  const Stream first{streams_[0], false};  // as if it were non-blocking, whatever it is
  CU(cuMemsetD32Async(nodes_.address(), kPoison, (count + 1) * words_, first.handle));
  tools_.transfers.upload(first, nodes_.address(), wanted);
  CU(cuEventRecord(events_[0], first.handle));
  stream_of_[0] = 0;
  for (std::size_t number = 1; number <= count; ++number) {
    Node node;
    node.stream = random.below(streams_.size());
    node.salt = random.word();
    for (std::size_t& source : node.sources) source = random.one_in(3) ? number - 1 : random.below(number);
    launch(number, node);
    const std::vector<Word> words = result_of(node, wanted);
    wanted.insert(wanted.end(), words.begin(), words.end());
    work.keep_pace({streams_[node.stream], false});
  }
  for (std::size_t stream = 1; stream < streams_.size(); ++stream) {  // joined by the last event of each
    CUevent last = nullptr;
    for (std::size_t number = 1; number <= count; ++number) {
      if (stream_of_[number] == stream) last = events_[number];
    }
    if (last != nullptr) CU(cuStreamWaitEvent(first.handle, last, 0));
  }
  const std::vector<Word> found = tools_.transfers.download(first, nodes_.address(), wanted.size());
  for (std::size_t number = 0; number <= count; ++number) {
    const auto part = [&](const std::vector<Word>& words) { return std::span(words).subspan(number * words_, words_); };
    work.expect(("node " + std::to_string(number) + " of a graph of dependencies").c_str(), part(found), part(wanted));
  }
  work.verified(Kind::branches);
}

}  // namespace

std::unique_ptr<Exercise> make_branches(const Tools& tools) { return std::make_unique<Branches>(tools); }

}  // namespace mpsshim::soak
