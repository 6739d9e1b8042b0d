// SPDX-License-Identifier: Apache-2.0
#include "interposer/loader.hpp"

#include <atomic>
#include <cstring>

#include <dlfcn.h>

// Called from the code at the end of this file. Two threads that look a function up at once store the same.
extern "C" {
extern const char* mpsshim_file_to_load(const char* file) noexcept;
extern constinit std::atomic<void*> mpsshim_next_dlopen;
extern constinit std::atomic<void*> mpsshim_next_dlmopen;
constinit std::atomic<void*> mpsshim_next_dlopen{nullptr};
constinit std::atomic<void*> mpsshim_next_dlmopen{nullptr};
}

namespace mpsshim::interposer {

namespace {

constexpr char kSoname[] = "libcuda.so.1";

// RTLD_NEXT is counted from the library that calls dlsym, so this must stand in this library.
void look_up(std::atomic<void*>& function, const char* name) {
  if (function.load(std::memory_order_relaxed) == nullptr) function.store(dlsym(RTLD_NEXT, name), std::memory_order_relaxed);
}

// As the loader knows us, by which it finds us even where the file is gone or the program has changed its directory. In another namespace it
// opens the file.
const char* own_path() {
  Dl_info info;
  if (dladdr(reinterpret_cast<void*>(&mpsshim_file_to_load), &info) == 0 || info.dli_fname == nullptr) return kSoname;
  return std::strchr(info.dli_fname, '/') != nullptr ? info.dli_fname : kSoname;
}

}  // namespace

void* next_dlopen(const char* file, int mode) {
  look_up(mpsshim_next_dlopen, "dlopen");
  const auto next = reinterpret_cast<decltype(&::dlopen)>(mpsshim_next_dlopen.load(std::memory_order_relaxed));
  return next == nullptr ? nullptr : next(file, mode);
}

}  // namespace mpsshim::interposer

const char* mpsshim_file_to_load(const char* file) noexcept {
  using namespace mpsshim::interposer;
  look_up(mpsshim_next_dlopen, "dlopen");
  look_up(mpsshim_next_dlmopen, "dlmopen");
  return names_driver(file) ? own_path() : file;
}

// void* dlopen(const char* file, int mode); void* dlmopen(Lmid_t space, const char* file, int mode);
// A call at the end of a C++ function need not become a jump, so they are written out: keep the arguments, ask for the file, jump. No stack is
// left behind and the return address is the caller's. The C library behind us has both. On other
// processors than x86-64 they are not there, and those loads go the loader's way.
#if defined(__x86_64__)
static_assert(sizeof(std::atomic<void*>) == sizeof(void*) && std::atomic<void*>::is_always_lock_free, "the code below reads it as it is");
__asm__(R"(
    .pushsection .text.mpsshim_doors, "ax", @progbits
    .globl dlopen
    .type dlopen, @function
    .p2align 4
dlopen:
    .cfi_startproc
    endbr64
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    call mpsshim_file_to_load
    movq %rax, %rdi
    popq %rsi
    .cfi_adjust_cfa_offset -8
    jmpq *mpsshim_next_dlopen(%rip)
    .cfi_endproc
    .size dlopen, . - dlopen

    .globl dlmopen
    .type dlmopen, @function
    .p2align 4
dlmopen:
    .cfi_startproc
    endbr64
    pushq %rdi
    .cfi_adjust_cfa_offset 8
    pushq %rdx
    .cfi_adjust_cfa_offset 8
    subq $8, %rsp
    .cfi_adjust_cfa_offset 8
    movq %rsi, %rdi
    call mpsshim_file_to_load
    movq %rax, %rsi
    addq $8, %rsp
    .cfi_adjust_cfa_offset -8
    popq %rdx
    .cfi_adjust_cfa_offset -8
    popq %rdi
    .cfi_adjust_cfa_offset -8
    jmpq *mpsshim_next_dlmopen(%rip)
    .cfi_endproc
    .size dlmopen, . - dlmopen
    .popsection
)");
#endif
