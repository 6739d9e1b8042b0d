// SPDX-License-Identifier: Apache-2.0
// Opens libraries in the ways that programs have, and says what it got. Linked with nothing of CUDA, as programs are that open the driver by name.
//   opens WAY NAME [WAY NAME]...
// base: dlopen · new: dlmopen into a namespace of its own · noload: dlopen with RTLD_NOLOAD · library: dlopen, called by libopener.so
// threads: dlopen in 16 threads at once · close: dlopen, dlclose three times, and used afterwards · plain: dlopen of what is no driver
// A driver is asked for cuInit and cuDriverGetVersion; of anything else the file's name is told. NAME "NULL" is a null pointer.
#include <dlfcn.h>
#include <link.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

extern "C" void* open_in_library(const char* file, int mode);

namespace {

const char* name_of(const char* argument) { return std::strcmp(argument, "NULL") == 0 ? nullptr : argument; }

void tell_failure(const char* way) {
  const char* text = dlerror();
  std::printf("%s: failed: %s\n", way, text == nullptr ? "(no text)" : text);
}

// The last two parts of the path, which do not depend on where the test runs.
std::string short_path(const char* path) {
  const std::string whole = path;
  std::size_t slash = whole.rfind('/');
  if (slash != std::string::npos && slash > 0) slash = whole.rfind('/', slash - 1);
  return slash == std::string::npos ? whole : whole.substr(slash + 1);
}

void ask_driver(const char* way, void* library) {
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(library, "cuInit"));
  const auto get_version = reinterpret_cast<int (*)(int*)>(dlsym(library, "cuDriverGetVersion"));
  if (init == nullptr || get_version == nullptr) return tell_failure(way);
  Dl_info info{};
  dladdr(reinterpret_cast<void*>(init), &info);
  int version = 0;
  const int version_result = get_version(&version);
  std::printf("%s: %s cuDriverGetVersion %d (%d) cuInit %d\n", way, short_path(info.dli_fname == nullptr ? "?" : info.dli_fname).c_str(),
              version_result, version, init(0));
}

void tell_library(const char* way, void* library) {
  link_map* map = nullptr;
  if (dlinfo(library, RTLD_DI_LINKMAP, &map) != 0) return tell_failure(way);
  const bool has_error = dlerror() != nullptr;
  std::printf("%s: %s%s\n", way, short_path(map->l_name).c_str(), has_error ? " and an error" : "");
}

void open_in_threads(const char* name) {
  std::vector<std::thread> threads;
  std::vector<void*> libraries(16);
  for (void*& library : libraries) threads.emplace_back([&library, name] { library = dlopen(name, RTLD_NOW); });
  for (std::thread& thread : threads) thread.join();
  for (const void* library : libraries) {
    if (library == nullptr || library != libraries.front()) {
      std::printf("threads: not all have the same\n");
      return;
    }
  }
  ask_driver("threads", libraries.front());
}

void open_and_close(const char* name) {
  void* library = dlopen(name, RTLD_NOW);
  if (library == nullptr) return tell_failure("close");
  for (int i = 0; i < 3; ++i) {
    if (dlclose(library) != 0) return tell_failure("close");
    library = dlopen(name, RTLD_NOW);
  }
  const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(library, "cuInit"));
  dlclose(library);
  std::printf("close: cuInit %d\n", init(0));
}

void open(const std::string& way, const char* name) {
  if (way == "threads") return open_in_threads(name);
  if (way == "close") return open_and_close(name);
  errno = 4711;
  void* library = nullptr;
  if (way == "new") {
    library = dlmopen(LM_ID_NEWLM, name, RTLD_NOW);
  } else if (way == "space") {
    library = dlmopen(LM_ID_BASE, name, RTLD_NOW);
  } else if (way == "library") {
    library = open_in_library(name, RTLD_NOW);
  } else {
    library = dlopen(name, way == "noload" ? RTLD_NOW | RTLD_NOLOAD : way == "nomode" ? 0 : RTLD_LAZY);
  }
  if (library == nullptr) {
    // RTLD_NOLOAD of what is not there is no error and has no text.
    return tell_failure(way.c_str());
  }
  if (way == "plain" || dlsym(library, "cuInit") == nullptr) {
    (void)dlerror();
    return tell_library(way.c_str(), library);
  }
  ask_driver(way.c_str(), library);
}

}  // namespace

int main(int argc, char** argv) {
  std::setvbuf(stdout, nullptr, _IOLBF, 0);
  for (int i = 1; i + 1 < argc; i += 2) open(argv[i], name_of(argv[i + 1]));
  return 0;
}
