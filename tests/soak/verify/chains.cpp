// SPDX-License-Identifier: Apache-2.0
// Chains of dependent kernels, of 1 to 300 steps: a launch that is lost, doubled, out of order or given another's arguments shows.
#include <vector>

#include "chain_lane.hpp"

namespace mpsshim::soak {

namespace {

constexpr std::size_t kMostLanes = 6;
constexpr unsigned kMostWork = 400'000;  // words times steps of a chain: the host computes them as well

// What sort of kernels a chain is made of. Most programs launch what can be chained, with something else in between.
struct Flavour {
  unsigned plain;  // weights
  unsigned wide;
  unsigned shared;
  unsigned local;
  unsigned large_local;
  unsigned special;  // sums, cooperative, dependent, clusters
};
constexpr Flavour kFlavours[] = {
    {1, 0, 0, 0, 0, 0},   // nothing but
    {20, 2, 2, 1, 0, 1},  // a bit of everything
    {10, 0, 0, 2, 0, 0},  // [plain, local] runs
    {6, 0, 0, 1, 1, 0},   // and large local arrays
    {4, 3, 2, 0, 0, 0},   // arguments of all sizes
    {3, 0, 0, 0, 0, 4},   // launches with attributes
    {10, 0, 0, 1, 0, 5},  // as libraries of matrix products
    {3, 1, 2, 1, 1, 1},
};

class Chains final : public Exercise {
 public:
  explicit Chains(const Tools& tools) : tools_(tools) {}
  void run() override;

 private:
  [[nodiscard]] ChainLane& any_lane();
  [[nodiscard]] StepKind choose_kind(const Flavour& flavour);

  Tools tools_;
  std::vector<std::unique_ptr<ChainLane>> lanes_;
};

ChainLane& Chains::any_lane() {
  Random& random = tools_.work.random;
  if (lanes_.empty() || (lanes_.size() < kMostLanes && random.one_in(200))) {
    const auto tiles = static_cast<unsigned>(random.of_any_size(tools_.work.sizes().words / kTile));
    lanes_.push_back(std::make_unique<ChainLane>(tools_, tiles * kTile));
    return *lanes_.back();
  }
  return *lanes_[random.below(lanes_.size())];
}

StepKind Chains::choose_kind(const Flavour& flavour) {
  Random& random = tools_.work.random;
  const StepKernels& kernels = tools_.work.process.kernels;
  struct Group {
    unsigned weight;
    std::vector<StepKind> kinds;
  };
  using enum StepKind;
  static const std::vector<StepKind> kGroups[] = {{brief, brief, warp},      {few, many, more, much, most},
                                                  {tile, dynamic, floats},   {local_64, local_512},
                                                  {local_4096, local_32768}, {sum, cooperative, dependent, dependent, cluster}};
  const unsigned weights[] = {flavour.plain, flavour.wide, flavour.shared, flavour.local, flavour.large_local, flavour.special};
  unsigned all = 0;
  for (const unsigned weight : weights) all += weight;
  for (;;) {
    std::size_t choice = random.below(all), group = 0;
    while (choice >= weights[group]) choice -= weights[group++];
    const StepKind kind = kGroups[group][random.below(kGroups[group].size())];
    if (!kernels.offers(kind)) {
      if (weights[0] == 0) return brief;
      continue;
    }
    if (kind == local_32768 && !random.one_in(8)) continue;  // takes its time
    return kind;
  }
}

void Chains::run() {
  Workplace& work = tools_.work;
  Random& random = work.random;
  const Flavour& flavour = kFlavours[random.below(std::size(kFlavours))];
  const unsigned most_ticks = random.one_in(4) ? work.sizes().ticks : 0;
  const std::size_t lanes = work.streams().size() > 1 && random.one_in(4) ? 2 : 1;
  struct Pair {
    ChainLane* lane;
    Stream stream;
  };
  std::vector<Pair> pairs;
  if (lanes_.size() > 1 && random.one_in(500)) lanes_.erase(lanes_.begin());
  for (std::size_t i = 0; i < lanes; ++i) {
    ChainLane& lane = any_lane();
    if (!pairs.empty() && pairs.front().lane == &lane) break;
    pairs.push_back({&lane, work.any_stream()});
  }
  const std::size_t most = std::min<std::size_t>(work.sizes().steps, kMostWork / pairs.front().lane->count());
  for (std::size_t left = random.of_any_size(most); left > 0; --left) {
    for (const Pair& pair : pairs) {
      pair.lane->launch(work.process.kernels.choose(choose_kind(flavour), pair.lane->count(), random, most_ticks), pair.stream);
      work.keep_pace(pair.stream);
    }
  }
  for (const Pair& pair : pairs) {
    pair.lane->verify(pair.stream);
    work.verified(Kind::chains);
  }
}

}  // namespace

std::unique_ptr<Exercise> make_chains(const Tools& tools) { return std::make_unique<Chains>(tools); }

}  // namespace mpsshim::soak
