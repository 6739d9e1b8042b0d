// SPDX-License-Identifier: Apache-2.0
#include "broker/control/images/image_store.hpp"

#include <cstring>
#include <span>

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/unit/control/support/image_fixture.hpp"

using namespace mpsshim::broker;
using namespace mpsshim::broker::control;
using namespace mpsshim::broker::control::testing;

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

TEST_CASE("compiled code that a next life asks for is kept before other") {
  Images images;
  const auto keep = [&](std::uint64_t image) {
    mpsshim::proto::FileDescriptor file = mpsshim::proto::create_memory_file("cubin", kMaxCompiledBytes / 2);
    REQUIRE(mpsshim::proto::seal(file, mpsshim::proto::Seal::content));
    images.store.keep_compiled(0, image, std::move(file));
  };
  const std::uint64_t logged = images.add(1, "a text that is loaded");
  const std::uint64_t second = images.add(1, "a second text");
  const std::uint64_t third = images.add(1, "a third text");
  REQUIRE(images.store.note({{0, 0}, LogKind::load, logged, 1, 0}));
  keep(logged);
  keep(second);
  keep(third);
  CHECK(images.store.compiled_file(0, logged) >= 0);
  CHECK(images.store.compiled_file(0, second) == -1);
  CHECK(images.store.compiled_file(0, third) >= 0);
  // All that are kept are in the log: the one that was used last stays.
  REQUIRE(images.store.note({{0, 0}, LogKind::load, third, 2, 0}));
  REQUIRE(images.store.note({{0, 0}, LogKind::load, second, 3, 0}));
  keep(second);
  CHECK(images.store.compiled_file(0, logged) == -1);
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
  (void)!pwrite(kept, "x", 1, 0);  // into a file that is no longer the image's
  close(kept);
  std::uint64_t size = 0;
  const int sealed = images.store.sealed_file(1, result, size);
  char first = 'y';
  CHECK(pread(sealed, &first, 1, 0) == 1);
  CHECK(first == 0);
  CHECK(pwrite(sealed, "x", 1, 0) == -1);
  CHECK(ftruncate(sealed, 0) != 0);
}

TEST_CASE("what its client has not sealed is copied, so that nothing written later is in it") {
  Images images;
  std::uint64_t image = 0;
  std::uint64_t result = 0;
  int file = -1;
  REQUIRE(images.store.open(1, 4096, image, file) == CUDA_SUCCESS);
  auto* const mapped = static_cast<char*>(mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
  mapped[0] = 'a';
  REQUIRE(images.seal(1, image, result) == CUDA_SUCCESS);
  mapped[0] = 'b';
  std::uint64_t size = 0;
  char first = 0;
  REQUIRE(pread(images.store.sealed_file(1, result, size), &first, 1, 0) == 1);
  CHECK(first == 'a');
  munmap(mapped, 4096);
}

TEST_CASE("what its client has sealed is taken as it is") {
  Images images;
  std::uint64_t image = 0;
  std::uint64_t result = 0;
  int file = -1;
  REQUIRE(images.store.open(1, 4096, image, file) == CUDA_SUCCESS);
  REQUIRE(fcntl(file, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | F_SEAL_WRITE) == 0);
  REQUIRE(images.seal(1, image, result) == CUDA_SUCCESS);
  std::uint64_t size = 0;
  CHECK(images.store.sealed_file(1, result, size) == file);
}

TEST_CASE("an image that was cut is refused") {
  Images images;
  std::uint64_t image = 0;
  std::uint64_t result = 0;
  int file = -1;
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
