// SPDX-License-Identifier: Apache-2.0
//
//   printing_client NUMBER LAUNCHES LINES    its kernels print that many lines each, and it writes a line of its own whenever it has waited
//   printing_client NUMBER assert            its kernel prints a line and fails in an assertion
//   printing_client NUMBER images COUNT      the same, with the last of so many images, loaded and unloaded one behind the other, that may assert
//   printing_client NUMBER hold TURNS        the kernel that would fail does not, so often, with a wait each
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "tests/process/programs/driver.hpp"

using namespace mpsshim::test;

namespace {

constexpr char kPtx[] = R"(
.version 6.4
.target sm_75
.address_size 64
.extern .func (.param .b32 func_retval0) vprintf(.param .b64 vprintf_param_0, .param .b64 vprintf_param_1);
.extern .func __assertfail(.param .b64 a, .param .b64 b, .param .b32 c, .param .b64 d, .param .b64 e);
.global .align 1 .b8 $str[31] = {99, 108, 105, 101, 110, 116, 32, 37, 117, 58, 32, 108, 97, 117, 110, 99, 104, 32, 37, 117, 44, 32,
  108, 105, 110, 101, 32, 37, 117, 10, 0};
.global .align 1 .b8 $str1[6] = {102, 97, 108, 115, 101, 0};
.global .align 1 .b8 $str2[8] = {99, 111, 100, 101, 46, 99, 117, 0};
.global .align 1 .b8 __unnamed_1[5] = {102, 97, 105, 108, 0};

.visible .entry say(.param .u32 client, .param .u32 launch, .param .u32 lines)
{
  .local .align 8 .b8 room[16];
  .reg .b64 %SP;
  .reg .b64 %rd<5>;
  .reg .b32 %r<7>;
  .reg .pred %p;
  mov.u64 %SP, room;
  cvta.local.u64 %rd1, %SP;
  ld.param.u32 %r1, [client];
  ld.param.u32 %r2, [launch];
  ld.param.u32 %r3, [lines];
  mov.u32 %r4, 0;
NEXT:
  setp.ge.u32 %p, %r4, %r3;
  @%p bra DONE;
  st.local.u32 [%SP], %r1;
  st.local.u32 [%SP+4], %r2;
  st.local.u32 [%SP+8], %r4;
  mov.u64 %rd2, $str;
  cvta.global.u64 %rd3, %rd2;
  {
    .param .b64 param0;
    st.param.b64 [param0+0], %rd3;
    .param .b64 param1;
    st.param.b64 [param1+0], %rd1;
    .param .b32 retval0;
    call.uni (retval0), vprintf, (param0, param1);
    ld.param.b32 %r5, [retval0+0];
  }
  add.u32 %r4, %r4, 1;
  bra NEXT;
DONE:
  ret;
}

.visible .entry fail(.param .u32 fails)
{
  .reg .b64 %rd<7>;
  .reg .b32 %r1;
  .reg .pred %p;
  ld.param.u32 %r1, [fails];
  setp.eq.u32 %p, %r1, 0;
  @%p bra HOLDS;
  mov.u64 %rd1, $str1;
  cvta.global.u64 %rd2, %rd1;
  mov.u64 %rd3, $str2;
  cvta.global.u64 %rd4, %rd3;
  mov.u64 %rd5, __unnamed_1;
  cvta.global.u64 %rd6, %rd5;
  {
    .param .b64 param0;
    st.param.b64 [param0+0], %rd2;
    .param .b64 param1;
    st.param.b64 [param1+0], %rd4;
    .param .b32 param2;
    st.param.b32 [param2+0], 7;
    .param .b64 param3;
    st.param.b64 [param3+0], %rd6;
    .param .b64 param4;
    st.param.b64 [param4+0], 1;
    call.uni __assertfail, (param0, param1, param2, param3, param4);
  }
HOLDS:
  ret;
}
)";

struct Printer {
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUfunction say = nullptr;
  CUfunction fail = nullptr;
  unsigned number;

  explicit Printer(unsigned client) : number(client) {
    CU(cuInit(0));
    CU(cuDevicePrimaryCtxRetain(&context, 0));
    CU(cuCtxSetCurrent(context));
    load(kPtx);
  }
  void load(const char* text) {
    CU(cuModuleLoadData(&module, text));
    CU(cuModuleGetFunction(&say, module, "say"));
    CU(cuModuleGetFunction(&fail, module, "fail"));
  }
  void change_image(int image) {
    CU(cuModuleUnload(module));
    std::string text(kPtx);
    text.append("// ").append(std::to_string(image)).append("\n");
    load(text.c_str());
  }
  void launch(unsigned turn, unsigned lines, CUstream stream) {
    void* arguments[] = {&number, &turn, &lines};
    CU(cuLaunchKernel(say, 1, 1, 1, 1, 1, 1, 0, stream, arguments, nullptr));
  }
};

void launch_assertion(const Printer& printer, unsigned fails) {
  void* arguments[] = {&fails};
  CU(cuLaunchKernel(printer.fail, 1, 1, 1, 1, 1, 1, 0, nullptr, arguments, nullptr));
}

// By each kind of call that makes the driver write, in turn.
void wait(unsigned turn, CUstream stream, CUevent event) {
  switch (turn % 3) {
    case 0: return CU(cuStreamSynchronize(stream));
    case 1: return CU(cuCtxSynchronize());
    default: CU(cuEventRecord(event, stream)); return CU(cuEventSynchronize(event));
  }
}

void print(Printer& printer, unsigned launches, unsigned lines) {
  CUstream stream = nullptr;
  CUevent event = nullptr;
  CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
  CU(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING));
  for (unsigned turn = 0; turn < launches; ++turn) {
    printer.launch(turn, lines, stream);
    if (turn % 4 == 3) continue;  // two launches before the next wait
    wait(turn, stream, event);
    std::printf("client %u: waited %u\n", printer.number, turn);
  }
  CU(cuStreamDestroy(stream));
  CU(cuCtxSynchronize());
  std::printf("client %u: done\n", printer.number);
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc < 3) return 2;
  Printer printer(static_cast<unsigned>(std::atoi(argv[1])));
  if (std::strcmp(argv[2], "hold") == 0) {
    for (int turn = 0; turn < (argc > 3 ? std::atoi(argv[3]) : 1); ++turn) {
      launch_assertion(printer, 0);
      CU(cuCtxSynchronize());
    }
    return 0;
  }
  const bool changes_images = std::strcmp(argv[2], "images") == 0;
  for (int image = 0; changes_images && image < (argc > 3 ? std::atoi(argv[3]) : 1); ++image) printer.change_image(image);
  if (!changes_images && std::strcmp(argv[2], "assert") != 0) {
    print(printer, static_cast<unsigned>(std::atoi(argv[2])), argc > 3 ? static_cast<unsigned>(std::atoi(argv[3])) : 1);
    return 0;
  }
  printer.launch(0, 1, nullptr);
  CU(cuCtxSynchronize());
  launch_assertion(printer, 1);
  CU_GIVES(CUDA_ERROR_ASSERT, cuCtxSynchronize());
  CU_GIVES(CUDA_ERROR_ASSERT, cuCtxSynchronize());
  return 0;
} catch (const std::exception& failure) {
  std::fprintf(stderr, "printing_client: %s\n", failure.what());
  return 1;
}
