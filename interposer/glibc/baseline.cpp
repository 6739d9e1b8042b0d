// SPDX-License-Identifier: Apache-2.0
// What came with versions of the C library later than 2.28, written again by what was there: so this library goes into programs and containers that
// are older than the machine that made it. Each function here stands before the C library's for all of the library, our sources and the C++ runtime
// that is linked in, and for nobody else: the version script hides it. Functions that were there, but in other libraries, are old_library.h's
// subject. tests/artefact/check_exports.sh looks at the built file and names what is missing in both.
#include <cerrno>
#include <cstddef>
#include <cstdint>
#include <ctime>

#include <dlfcn.h>
#include <link.h>
#include <pthread.h>
#include <sys/stat.h>

// NAME jumps to OLD, which is that version of a function of the C library. In a section of its own: what nobody calls is left out.
#define MPSSHIM_JUMP(name, old)                                                                                                            \
  __asm__(".symver mpsshim_old_" #name ", " old "\n.pushsection .text.baseline." #name                                                     \
          ", \"ax\", @progbits\n"                                                                                                          \
          ".globl " #name "\n.hidden " #name "\n.type " #name ", @function\n.p2align 4\n" #name ":\n  endbr64\n  jmpq *mpsshim_old_" #name \
          "@GOTPCREL(%rip)\n.size " #name ", . - " #name "\n.popsection")

// 2.38: the names that newer headers give these for C23, in which "0b1" is a number too: not under the formats that we use (%x, %s), and the C++
// runtime reads nothing but its own settings.
MPSSHIM_JUMP(__isoc23_sscanf, "__isoc99_sscanf@GLIBC_2.7");
MPSSHIM_JUMP(__isoc23_strtol, "strtol@GLIBC_2.2.5");
MPSSHIM_JUMP(__isoc23_strtoll, "strtoll@GLIBC_2.2.5");
MPSSHIM_JUMP(__isoc23_strtoul, "strtoul@GLIBC_2.2.5");
MPSSHIM_JUMP(__isoc23_strtoull, "strtoull@GLIBC_2.2.5");

extern "C" {

// 2.33. Before, <sys/stat.h> made this call of it, with the number of the structure's layout.
int mpsshim_old_fxstat(int layout, int fd, struct stat* status) noexcept;
__asm__(".symver mpsshim_old_fxstat, __fxstat@GLIBC_2.2.5");
int fstat(int fd, struct stat* status) noexcept { return mpsshim_old_fxstat(1, fd, status); }

// 2.32, read by the C++ runtime where it counts references: plain instructions do while a process has one thread. It always says that there may
// be more.
extern char __libc_single_threaded;
char __libc_single_threaded = 0;

// 2.30, for std::condition_variable's waits on the steady clock. What there was waits on the clock of the day, which somebody may set: so a long
// wait is divided, and each division ends as an early wake-up, after which the caller looks at its clock again.
int pthread_cond_clockwait(pthread_cond_t* condition, pthread_mutex_t* mutex, clockid_t clock, const timespec* until) {
  constexpr std::int64_t kSecond_ns = 1'000'000'000;
  constexpr std::int64_t kDivision_s = 1;
  timespec now{};
  timespec end{};
  if (clock_gettime(clock, &now) != 0 || clock_gettime(CLOCK_REALTIME, &end) != 0) return EINVAL;
  std::int64_t left_s = until->tv_sec - now.tv_sec;
  std::int64_t left_ns = until->tv_nsec - now.tv_nsec;
  if (left_ns < 0) {
    left_ns += kSecond_ns;
    --left_s;
  }
  const bool whole = left_s < kDivision_s;
  if (left_s < 0) left_s = left_ns = 0;
  if (!whole) left_s = kDivision_s, left_ns = 0;
  end.tv_sec += left_s;
  end.tv_nsec += left_ns;
  if (end.tv_nsec >= kSecond_ns) {
    end.tv_nsec -= kSecond_ns;
    ++end.tv_sec;
  }
  const int result = pthread_cond_timedwait(condition, mutex, &end);
  return result == ETIMEDOUT && !whole ? 0 : result;
}

#ifdef DLFO_STRUCT_HAS_EH_DBASE
// 2.35, with which the unwinder that is linked in finds the tables of a frame. Before, it asked dl_iterate_phdr, as here.
namespace {

struct FrameSearch {
  std::uintptr_t address;
  dl_find_object* found;
};

int look_in_object(dl_phdr_info* object, std::size_t, void* context) {
  const auto& search = *static_cast<FrameSearch*>(context);
  std::uintptr_t begin = UINTPTR_MAX;
  std::uintptr_t end = 0;
  void* tables = nullptr;
  bool holds_address = false;
  for (int i = 0; i < object->dlpi_phnum; ++i) {
    const ElfW(Phdr)& header = object->dlpi_phdr[i];
    const std::uintptr_t at = object->dlpi_addr + header.p_vaddr;
    if (header.p_type == PT_GNU_EH_FRAME) tables = reinterpret_cast<void*>(at);
    if (header.p_type != PT_LOAD) continue;
    begin = at < begin ? at : begin;
    end = at + header.p_memsz > end ? at + header.p_memsz : end;
    holds_address = holds_address || (search.address >= at && search.address - at < header.p_memsz);
  }
  if (!holds_address) return 0;
  if (tables == nullptr) return -1;
  *search.found = {};
  search.found->dlfo_map_start = reinterpret_cast<void*>(begin);
  search.found->dlfo_map_end = reinterpret_cast<void*>(end);
  search.found->dlfo_eh_frame = tables;
  return 1;
}

}  // namespace

int _dl_find_object(void* address, dl_find_object* found) noexcept {
  FrameSearch search{reinterpret_cast<std::uintptr_t>(address), found};
  return dl_iterate_phdr(&look_in_object, &search) == 1 ? 0 : -1;
}
#endif

}  // extern "C"
