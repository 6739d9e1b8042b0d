// SPDX-License-Identifier: Apache-2.0
#include "broker/control/image_store.hpp"

#include <cstring>
#include <span>

#include <sys/mman.h>
#include <unistd.h>

#include "tests/support/catch.hpp"

using namespace mpsshim::broker;
using namespace mpsshim::broker::control;

namespace {

class Images {
 public:
  std::uint64_t open_and_fill(std::uint64_t session, const std::string& content) {
    std::uint64_t image = 0;
    int file = -1;
    REQUIRE(store.open(session, content.size(), image, file) == CUDA_SUCCESS);
    REQUIRE(pwrite(file, content.data(), content.size(), 0) == static_cast<ssize_t>(content.size()));
    return image;
  }
  CUresult seal(std::uint64_t session, std::uint64_t image, std::uint64_t& result) {
    CUresult status = CUDA_ERROR_UNKNOWN;
    bool answered = false;
    store.seal(session, image, [&](CUresult sealed, std::uint64_t id) {
      answered = true;
      status = sealed;
      result = id;
    });
    turns = 0;
    while (!answered && turns < 10'000) {
      loop.turn(0);
      ++turns;
    }
    REQUIRE(answered);
    return status;
  }
  std::uint64_t add(std::uint64_t session, const std::string& content) {
    std::uint64_t result = 0;
    REQUIRE(seal(session, open_and_fill(session, content), result) == CUDA_SUCCESS);
    return result;
  }

  EventLoop loop;
  ImageStore store{loop};
  int turns = 0;
};

}  // namespace

TEST_CASE("equal content has one id, other content another") {
  Images images;
  const std::uint64_t first = images.add(1, "the same image");
  CHECK(images.add(2, "the same image") == first);
  CHECK(images.add(2, "the some image") != first);
  CHECK(images.add(2, std::string("the same image\0", 15)) != first);
  std::uint64_t size = 0;
  CHECK(images.store.sealed_file(1, first, size) >= 0);
  CHECK(size == 14);
  CHECK(images.store.sealed_file(2, first, size) >= 0);
}

TEST_CASE("an offer of what is known needs no content, and gives what is there") {
  Images images;
  const std::string content = "the same image";
  const auto digest = mpsshim::proto::digest_of(std::as_bytes(std::span(content)));
  std::uint64_t image = 0;
  int file = -1;
  REQUIRE(images.store.offer(1, content.size(), digest, image, file) == CUDA_SUCCESS);
  REQUIRE(file >= 0);
  REQUIRE(pwrite(file, content.data(), content.size(), 0) == static_cast<ssize_t>(content.size()));
  std::uint64_t sealed = 0;
  REQUIRE(images.seal(1, image, sealed) == CUDA_SUCCESS);
  REQUIRE(images.store.offer(2, content.size(), digest, image, file) == CUDA_SUCCESS);
  CHECK(file == -1);
  CHECK(image == sealed);
  std::uint64_t size = 0;
  CHECK(images.store.sealed_file(2, image, size) >= 0);
  CHECK(images.store.offer(2, content.size() + 1, digest, image, file) == CUDA_SUCCESS);
  CHECK(file >= 0);
}

TEST_CASE("a digest that is not that of the content is of no use to whoever offers it") {
  Images images;
  const std::string claimed = "what another client has";
  const std::string content = "what this one fills in!";
  const auto digest = mpsshim::proto::digest_of(std::as_bytes(std::span(claimed)));
  std::uint64_t image = 0;
  int file = -1;
  REQUIRE(images.store.offer(1, content.size(), digest, image, file) == CUDA_SUCCESS);
  REQUIRE(pwrite(file, content.data(), content.size(), 0) == static_cast<ssize_t>(content.size()));
  std::uint64_t sealed = 0;
  REQUIRE(images.seal(1, image, sealed) == CUDA_SUCCESS);
  CHECK(images.add(2, claimed) != sealed);
  CHECK(images.add(2, content) == sealed);
}

TEST_CASE("compiled code is kept for its device, and goes with its image") {
  Images images;
  const std::uint64_t image = images.add(1, "some PTX");
  mpsshim::proto::FileDescriptor file = mpsshim::proto::create_memory_file("cubin", 4096);
  REQUIRE(mpsshim::proto::seal(file, mpsshim::proto::Seal::content));
  images.store.keep_compiled(0, image + 100, file.duplicate());
  images.store.keep_compiled(0, image, std::move(file));
  CHECK(images.store.compiled_file(0, image) >= 0);
  CHECK(images.store.compiled_file(1, image) == -1);
  CHECK(images.store.compiled_file(0, image + 100) == -1);
  images.store.release_session(1);
  CHECK(images.store.compiled_file(0, image) == -1);
}

TEST_CASE("large images are read in slices, and differ by their last byte") {
  Images images;
  std::string content(40u << 20, 'x');
  const std::uint64_t first = images.add(1, content);
  CHECK(images.turns >= 2);
  CHECK(images.add(2, content) == first);
  content.back() = 'y';
  CHECK(images.add(2, content) != first);
}

TEST_CASE("a sealed image cannot be changed by whoever filled it") {
  Images images;
  std::uint64_t image = 0;
  int file = -1;
  REQUIRE(images.store.open(1, 4096, image, file) == CUDA_SUCCESS);
  const int kept = dup(file);
  std::uint64_t result = 0;
  REQUIRE(images.seal(1, image, result) == CUDA_SUCCESS);
  CHECK(pwrite(kept, "x", 1, 0) == -1);
  CHECK(ftruncate(kept, 0) != 0);
  close(kept);
}

TEST_CASE("an image that is still mapped for writing, or was cut, is refused") {
  Images images;
  std::uint64_t image = 0;
  std::uint64_t result = 0;
  int file = -1;
  REQUIRE(images.store.open(1, 4096, image, file) == CUDA_SUCCESS);
  void* mapped = mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  CHECK(images.seal(1, image, result) == CUDA_ERROR_INVALID_IMAGE);
  munmap(mapped, 4096);
  REQUIRE(images.store.open(1, 3 * 4096, image, file) == CUDA_SUCCESS);
  REQUIRE(ftruncate(file, 4096) == 0);
  CHECK(images.seal(1, image, result) == CUDA_ERROR_INVALID_IMAGE);
  CHECK(images.store.count() == 0);
}

TEST_CASE("sizes, and how many may be open at a time") {
  Images images;
  std::uint64_t image = 0;
  int file = -1;
  CHECK(images.store.open(1, 0, image, file) == CUDA_ERROR_INVALID_IMAGE);
  CHECK(images.store.open(1, kMaxImageBytes + 1, image, file) == CUDA_ERROR_INVALID_IMAGE);
  CHECK(images.store.open(1, kMaxImageBytes, image, file) == CUDA_SUCCESS);
  for (std::size_t i = 1; i < kMaxOpenImages; ++i) CHECK(images.store.open(1, 1, image, file) == CUDA_SUCCESS);
  CHECK(images.store.open(1, 1, image, file) == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(images.store.open(2, 1, image, file) == CUDA_SUCCESS);
}

TEST_CASE("images of others, sealed twice, or unknown are refused") {
  Images images;
  std::uint64_t result = 0;
  const std::uint64_t image = images.open_and_fill(1, "mine");
  CHECK(images.seal(2, image, result) == CUDA_ERROR_INVALID_VALUE);
  CHECK(images.seal(1, 999, result) == CUDA_ERROR_INVALID_VALUE);
  std::uint64_t size = 0;
  CHECK(images.store.sealed_file(1, image, size) == -1);
  CHECK(images.seal(1, image, result) == CUDA_SUCCESS);
  CHECK(images.seal(1, image, result) == CUDA_ERROR_INVALID_VALUE);
  CHECK(images.store.sealed_file(2, image, size) == -1);
  CHECK(images.store.sealed_file(0, image, size) >= 0);
}

TEST_CASE("an image goes with its last session, unless the load log names it") {
  Images images;
  const std::uint64_t kept = images.add(1, "loaded");
  const std::uint64_t shared = images.add(1, "shared");
  images.add(2, "shared");
  images.open_and_fill(1, "never sealed");
  CHECK(images.store.note({ExecutorId{}, LogKind::load, kept}));
  CHECK_FALSE(images.store.note({ExecutorId{}, LogKind::load, 999}));
  images.store.release_session(1);
  CHECK(images.store.count() == 2);
  images.store.release_session(2);
  CHECK(images.store.count() == 1);
  std::uint64_t size = 0;
  CHECK(images.store.sealed_file(0, kept, size) >= 0);
  CHECK(images.store.sealed_file(0, shared, size) == -1);
  CHECK(images.add(3, "loaded") == kept);
}

TEST_CASE("a session that ends while its image is being read is not answered") {
  Images images;
  const std::uint64_t image = images.open_and_fill(1, std::string(40u << 20, 'x'));
  bool answered = false;
  images.store.seal(1, image, [&](CUresult, std::uint64_t) { answered = true; });
  images.store.release_session(1);
  for (int i = 0; i < 10; ++i) images.loop.turn(0);
  CHECK_FALSE(answered);
  CHECK(images.store.count() == 0);
}

TEST_CASE("a new life is spared what was made behind the last load that a session may use, loads excepted") {
  Images images;
  const ExecutorId executor{0, 0};
  const ExecutorId other{0, 1};
  const std::uint64_t held = images.add(1, "held");
  const std::uint64_t left = images.add(2, "left");
  (void)images.store.note({executor, LogKind::graph, 1});
  (void)images.store.note({executor, LogKind::load, held, 1});
  (void)images.store.note({executor, LogKind::graph, 2});
  (void)images.store.note({executor, LogKind::load, left, 2});
  (void)images.store.note({other, LogKind::stream, 3});
  (void)images.store.note({executor, LogKind::stream, 4});
  const auto in_log = [&] {
    std::vector<std::uint64_t> objects;
    for (const ImageStore::Entry& entry : images.store.log()) objects.push_back(entry.object);
    return objects;
  };
  CHECK(images.store.forget_extras(executor) == 1);
  CHECK(in_log() == std::vector<std::uint64_t>{1, held, 2, left, 3});
  images.store.release_session(2);
  CHECK(images.store.forget_extras(executor) == 1);
  CHECK(in_log() == std::vector<std::uint64_t>{1, held, left, 3});
  images.store.release_session(1);
  CHECK(images.store.forget_extras(executor) == 1);
  CHECK(in_log() == std::vector<std::uint64_t>{held, left, 3});
  CHECK(images.store.forget_extras(other) == 1);
  CHECK(in_log() == std::vector<std::uint64_t>{held, left});
}

TEST_CASE("loads that were undone leave the log beyond a limit, and images that nothing else names go with them") {
  Images images;
  const ExecutorId executor{0, 0};
  const std::uint64_t kept = images.add(1, "still loaded");
  REQUIRE(images.store.note({executor, LogKind::load, kept, 1}));
  std::uint64_t copy = 2;
  for (std::size_t i = 0; i < kMaxUndoneLoads; ++i, ++copy) {
    const std::uint64_t image = images.add(2, "module " + std::to_string(i));
    REQUIRE(images.store.note({executor, LogKind::load, image, copy}));
    REQUIRE(images.store.note({executor, LogKind::unload, image, copy}));
  }
  images.store.release_session(2);
  CHECK(images.store.count() == 1 + kMaxUndoneLoads);
  CHECK(images.store.log().size() == 1 + 2 * kMaxUndoneLoads);
  const std::uint64_t last = images.add(1, "one more");
  REQUIRE(images.store.note({executor, LogKind::load, last, copy}));
  REQUIRE(images.store.note({executor, LogKind::unload, last, copy}));
  CHECK(images.store.count() == 2);  // both are session 1's
  REQUIRE(images.store.log().size() == 1);
  CHECK(images.store.log().front().object == kept);
  images.store.release_session(1);
  CHECK(images.store.count() == 1);
  images.store.forget_log(executor);
  CHECK(images.store.count() == 0);
  CHECK(images.store.total_bytes() == 0);
  CHECK(images.store.held_by(1).count == 0);
}
