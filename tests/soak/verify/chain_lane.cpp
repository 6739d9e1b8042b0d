// SPDX-License-Identifier: Apache-2.0
#include "chain_lane.hpp"

#include <algorithm>

#include "tests/process/programs/driver.hpp"

namespace mpsshim::soak {

namespace {

using Words = std::vector<Word>;

Words result_of(Words words, std::span<const Step> steps) {
  Words next(words.size());
  for (const Step& step : steps) {
    apply(step, words, next);
    words.swap(next);
  }
  return words;
}

}  // namespace

ChainLane::ChainLane(const Tools& tools, unsigned count)
    : tools_(tools),
      first_(count * sizeof(Word)),
      second_(count * sizeof(Word)),
      scratch_(count * sizeof(Word)),
      sum_(sizeof(Sum)),
      memory_{first_.address(), second_.address(), scratch_.address(), sum_.address(), count},
      expected_(count) {
  for (Word& word : expected_) word = tools.work.random.word();
  const Stream& stream = tools.work.any_stream();
  CU(cuMemsetD32Async(second_.address(), 0x5EED, count, stream.handle));
  tools.transfers.upload(stream, memory_.from, expected_);
  tools.work.wait_for(stream);
}

void ChainLane::launch(const Step& step, const Stream& stream) {
  tools_.work.history.note(name_of(step.kind),
                           {{"from", memory_.from}, {"to", memory_.to}, {"salt", step.salt}, {"grid", step.grid}, {"number", steps_.size()}});
  tools_.work.did(tools_.work.process.kernels.launch(step, memory_, stream.handle));
  std::swap(memory_.from, memory_.to);
  steps_.push_back(step);
}

void ChainLane::verify(const Stream& stream) {
  Words wanted = result_of(expected_, steps_);
  const Words found = tools_.transfers.download(stream, memory_.from, memory_.count);
  try {
    tools_.work.expect("a chain", found, wanted);
  } catch (const test::Failure& failure) {
    throw test::Failure(std::string(failure.what()) + " " + std::to_string(steps_.size()) + " steps behind " + std::to_string(verified_) +
                        " verified results. " + diagnose(found));
  }
  expected_ = std::move(wanted);
  former_ = std::move(steps_);
  steps_.clear();
  ++verified_;
}

// A step that was lost leaves what its destination held before, two steps earlier, and its followers go on with that.
Words ChainLane::result_without(std::size_t step) const {
  Words before(memory_.count, 0);
  Words now = expected_;
  bool knows_before = false;
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    Words next(memory_.count);
    if (i == step) {
      if (!knows_before) return {};
      next = before;
    } else {
      apply(steps_[i], now, next);
    }
    before = std::move(now);
    knows_before = true;
    now = std::move(next);
  }
  return now;
}

// Which single error would have had this result. Words that are right say nothing: it is asked of those that are wrong.
std::string ChainLane::diagnose(const Words& found) const {
  const Words wanted = result_of(expected_, steps_);
  const auto explains = [&](const Words& other) {
    if (other.size() != found.size() || other == wanted) return false;
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (found[i] != wanted[i] && found[i] != other[i]) return false;
    }
    return true;
  };
  std::string text;
  const auto say = [&](const std::string& guess) { text += "It would be right if " + guess + ". "; };
  for (std::size_t i = 0; i <= steps_.size(); ++i) {
    if (explains(result_of(expected_, std::span(steps_).first(i))))
      say("only the first " + std::to_string(i) + " steps had been done when it was copied");
  }
  for (std::size_t i = 0; i < steps_.size(); ++i) {
    const std::string number = "step " + std::to_string(i) + " (" + describe(steps_[i]) + ")";
    if (explains(result_without(i))) say(number + " was lost");
    std::vector<Step> steps = steps_;
    const auto with_arguments_of = [&](const Step& other, const std::string& whose) {
      if (other.kind != steps_[i].kind) return;
      steps[i] = other;
      if (explains(result_of(expected_, steps))) say(number + " had the arguments of " + whose);
    };
    for (std::size_t j = 0; j < steps_.size(); ++j) {
      if (j != i) with_arguments_of(steps_[j], "step " + std::to_string(j));
    }
    for (const Step& step : former_) with_arguments_of(step, "a step before the last right result");
    steps = steps_;
    if (i + 1 < steps.size()) {
      std::swap(steps[i], steps[i + 1]);
      if (explains(result_of(expected_, steps))) say(number + " had come behind the next one");
    }
    for (std::size_t first = 0; first < memory_.count; first += kTile) {  // of a part of it that did not see, or was not seen by, its neighbours
      Words words = result_of(expected_, std::span(steps_).first(i)), next(memory_.count);
      const Words stale = i == 0 ? Words() : result_of(expected_, std::span(steps_).first(i - 1));
      if (stale.empty() || memory_.count > 1024 || steps_.size() > 64) break;
      apply(steps_[i], words, next);
      std::copy_n(stale.begin() + first, kTile, next.begin() + first);
      if (explains(result_of(next, std::span(steps_).subspan(i + 1)))) say("words from " + std::to_string(first) + " of " + number + " were lost");
    }
  }
  if (text.empty()) text = "No single lost, exchanged or stale step explains it. ";
  if (steps_.size() <= 12) {
    text += "The steps:";
    for (const Step& step : steps_) text += "\n    " + describe(step);
  }
  return text;
}

}  // namespace mpsshim::soak
