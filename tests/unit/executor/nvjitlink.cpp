// SPDX-License-Identifier: Apache-2.0
#include "broker/linker/nvjitlink.hpp"

#include <cstdint>
#include <cstring>
#include <string>

#include "tests/support/catch.hpp"

using namespace mpsshim::broker;

namespace {

using Words = std::vector<std::string>;

// That of this machine's toolkit, whichever it is of those that have the interface.
std::unique_ptr<NvJitLink> of_this_machine(unsigned compute) {
  std::string why;
  for (const int version : {13000, 12030}) {
    if (auto library = NvJitLink::load("", {version, compute}, why)) return library;
  }
  return nullptr;
}

LinkStep text(const std::string& header, const std::string& body) {
  const std::string all = header + ".address_size 64\n" + body;
  const auto bytes = std::as_bytes(std::span(all));
  return {CU_JIT_INPUT_PTX, ImageBytes(std::vector<std::byte>(bytes.begin(), bytes.end())), "text", {}};
}

constexpr const char* kPlain = ".version 6.4\n.target sm_75\n";
constexpr const char* kEntry = ".visible .entry nothing() { ret; }\n";

CUresult add(Link& link, const LinkStep& step) {
  REQUIRE(link.create({}) == CUDA_SUCCESS);
  return link.add(step);
}

}  // namespace

TEST_CASE("options in the words of nvJitLink") {
  CHECK(NvJitLink::words_of({}, 75) == Words{"-arch=sm_75"});
  CHECK(NvJitLink::words_of({}, 90) == Words{"-arch=sm_90a"});
  CHECK(NvJitLink::words_of({{CU_JIT_TARGET, 80}}, 90) == Words{"-arch=sm_80"});
  CHECK(NvJitLink::words_of({{CU_JIT_TARGET, 0x10000 + 100}}, 90) == Words{"-arch=sm_100a"});
  CHECK(NvJitLink::words_of({{CU_JIT_MAX_REGISTERS, 40}, {CU_JIT_OPTIMIZATION_LEVEL, 0}, {CU_JIT_GENERATE_LINE_INFO, 1}}, 80) ==
        Words{"-O0", "-lineinfo", "-maxrregcount=40", "-arch=sm_80"});
  CHECK(NvJitLink::words_of({{CU_JIT_THREADS_PER_BLOCK, 1000}, {CU_JIT_MAX_REGISTERS, 200}}, 80) == Words{"-maxrregcount=64", "-arch=sm_80"});
  CHECK(NvJitLink::words_of({{CU_JIT_THREADS_PER_BLOCK, 0}, {CU_JIT_CACHE_MODE, 0}, {CU_JIT_GENERATE_DEBUG_INFO, 0}}, 80) == Words{"-arch=sm_80"});
}

TEST_CASE("an nvJitLink that is not there, or of another CUDA version, is not taken") {
  std::string why;
  CHECK(NvJitLink::load("/nowhere/libnvJitLink.so.13", {13000, 90}, why) == nullptr);
  CHECK(why.find("there is no /nowhere/libnvJitLink.so.13 of CUDA 13.0 or a later 13.x") == 0);
  CHECK(NvJitLink::load("", {99010, 90}, why) == nullptr);
  CHECK(why.find("there is no libnvJitLink.so.99 of CUDA 99.1") == 0);
}

TEST_CASE("nvJitLink compiles and links as the driver's linker does") {
  const auto library = of_this_machine(90);
  if (!library) MPSSHIM_SKIP("there is no nvJitLink on this machine");
  const auto link = library->begin();
  REQUIRE(link->create({}) == CUDA_SUCCESS);
  REQUIRE(link->add(text(kPlain, ".visible .func (.reg .b32 r) seven() { mov.b32 r, 7; ret; }\n")) == CUDA_SUCCESS);
  REQUIRE(link->add(text(".version 8.0\n.target sm_90a\n",
                         ".extern .func (.reg .b32 r) seven();\n.visible .entry asks()\n"
                         "{\n .reg .b32 %r;\n call (%r), seven;\n trap;\n}\n")) == CUDA_SUCCESS);
  ImageBytes code;
  const CUresult completed = link->complete(code);
  INFO(link->error_log());
  REQUIRE(completed == CUDA_SUCCESS);
  REQUIRE(code.size() > 64);
  CHECK(std::memcmp(code.data(),
                    "\x7f"
                    "ELF",
                    4) == 0);
  CHECK(std::string(reinterpret_cast<const char*>(code.data()), code.size()).find(".text.asks") != std::string::npos);
}

TEST_CASE("what nvJitLink refuses is the driver's error, with its words") {
  const auto library = of_this_machine(90);
  if (!library) MPSSHIM_SKIP("there is no nvJitLink on this machine");
  const auto link = library->begin();
  SECTION("an instruction that there is not") {
    CHECK(add(*link, text(kPlain, ".visible .entry wrong() { frobnicate; }\n")) == CUDA_ERROR_INVALID_PTX);
    CHECK(link->error_log().find("frobnicate") != std::string::npos);
  }
  SECTION("a version to come") { CHECK(add(*link, text(".version 99.9\n.target sm_75\n", kEntry)) == CUDA_ERROR_UNSUPPORTED_PTX_VERSION); }
  SECTION("machine code that is none") {
    const std::string junk(4096, 'x');
    const auto bytes = std::as_bytes(std::span(junk));
    CHECK(add(*link, {CU_JIT_INPUT_CUBIN, ImageBytes(std::vector<std::byte>(bytes.begin(), bytes.end())), "junk", {}}) == CUDA_ERROR_INVALID_IMAGE);
  }
  SECTION("a function that no input has") {
    REQUIRE(add(*link, text(kPlain, ".extern .func other();\n.visible .entry asks() { call other; ret; }\n")) == CUDA_SUCCESS);
    ImageBytes code;
    CHECK(link->complete(code) == CUDA_ERROR_INVALID_IMAGE);
    CHECK(link->error_log().find("other") != std::string::npos);
    CHECK(code.size() == 0);
  }
  SECTION("inputs with different options") {
    REQUIRE(add(*link, text(kPlain, kEntry)) == CUDA_SUCCESS);
    LinkStep other = text(kPlain, ".visible .entry other() { ret; }\n");
    other.options.push_back({CU_JIT_MAX_REGISTERS, 32});
    CHECK(link->add(other) == CUDA_ERROR_NOT_SUPPORTED);
    CHECK(link->error_log().find("the same options") != std::string::npos);
  }
  SECTION("a text of a version that only the driver loads") {
    std::string log;
    CHECK(library->try_load(text(".version 2.3\n.target sm_20\n", kEntry).bytes, log) == CUDA_ERROR_INVALID_PTX);
    CHECK(log.find("--ptx-compiler driver") != std::string::npos);
  }
  SECTION("a text that the driver is to load") {
    std::string log;
    CHECK(library->try_load(text(".version 8.0\n.target sm_90a\n", kEntry).bytes, log) == CUDA_SUCCESS);
    CHECK(log.empty());
  }
}
