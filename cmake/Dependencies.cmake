# SPDX-License-Identifier: Apache-2.0
# Each thing taken from outside is one INTERFACE target, so that no other file names a package:
#   mpsshim_cuda_headers  cuda.h, 12.4 or newer (required)   mpsshim_cuda_stub  the toolkit's libcuda stub, for examples
#   Boost::headers        Boost headers (required)           mpsshim_log        spdlog and fmt (required)
#   mpsshim_cli11         CLI11 (required)                   mpsshim_catch2     Catch2 2 or 3 with its main()
#   mpsshim_lz4, mpsshim_zstd  image decompression; define MPSSHIM_HAVE_LZ4 / MPSSHIM_HAVE_ZSTD where present
#   mpsshim_toml  toml++, for mpsbroker -a; defines MPSSHIM_HAVE_TOML where present
# The targets of optional things exist always; they are empty where the package is missing.
include_guard(GLOBAL)

find_package(Threads REQUIRED)
find_package(Python3 3.11 COMPONENTS Interpreter)
if(NOT Python3_Interpreter_FOUND)
  message(FATAL_ERROR "Python 3.11 or newer is needed for the generator (tomllib): install python3, or name one with -DPython3_EXECUTABLE=")
endif()
# python3 may be a launcher that looks for the interpreter at each start: ask once, and name the interpreter.
execute_process(COMMAND "${Python3_EXECUTABLE}" -c "import sys; print(sys.executable)"
  OUTPUT_VARIABLE _python_itself OUTPUT_STRIP_TRAILING_WHITESPACE RESULT_VARIABLE _python_result)
if(_python_result EQUAL 0 AND EXISTS "${_python_itself}")
  set(Python3_EXECUTABLE "${_python_itself}")
endif()

# --- CUDA: the whole toolkit, or cuda.h alone (then what needs nvcc or the stub is left out) ---
find_package(CUDAToolkit QUIET)
if(CUDAToolkit_FOUND)
  set(_cuda_include_hints ${CUDAToolkit_INCLUDE_DIRS})
  set(_cuda_root_hints "${CUDAToolkit_BIN_DIR}" "${CUDAToolkit_LIBRARY_ROOT}")
endif()
file(GLOB _cuda_versioned LIST_DIRECTORIES true "/usr/local/cuda-*")
list(SORT _cuda_versioned COMPARE NATURAL ORDER DESCENDING)
set(_cuda_roots ${_cuda_root_hints} "$ENV{CUDA_HOME}" "$ENV{CUDA_PATH}" /usr/local/cuda ${_cuda_versioned})
find_path(MPSSHIM_CUDA_INCLUDE_DIR cuda.h HINTS ${_cuda_include_hints} ${_cuda_roots}
  PATH_SUFFIXES include targets/x86_64-linux/include DOC "The folder of cuda.h")
if(NOT MPSSHIM_CUDA_INCLUDE_DIR)
  message(FATAL_ERROR "cuda.h was not found: install the CUDA Toolkit (12.4 or newer, https://developer.nvidia.com/cuda-downloads) or name its folder with -DMPSSHIM_CUDA_INCLUDE_DIR=")
endif()
file(STRINGS "${MPSSHIM_CUDA_INCLUDE_DIR}/cuda.h" _cuda_version_line REGEX "^#define CUDA_VERSION [0-9]+")
string(REGEX REPLACE "[^0-9]" "" MPSSHIM_CUDA_VERSION "${_cuda_version_line}")
if(MPSSHIM_CUDA_VERSION LESS 12040)
  message(FATAL_ERROR "${MPSSHIM_CUDA_INCLUDE_DIR}/cuda.h is of CUDA version ${MPSSHIM_CUDA_VERSION}, 12040 (12.4) or newer is needed: https://developer.nvidia.com/cuda-downloads")
endif()
add_library(mpsshim_cuda_headers INTERFACE)
target_include_directories(mpsshim_cuda_headers SYSTEM INTERFACE "${MPSSHIM_CUDA_INCLUDE_DIR}")

find_program(MPSSHIM_NVCC nvcc HINTS ${_cuda_roots} PATH_SUFFIXES bin DOC "NVIDIA's compiler, for the examples")
# Only the stub: an example linked with it asks for libcuda.so.1 and builds on a machine without a driver.
find_library(MPSSHIM_CUDA_STUB cuda HINTS ${_cuda_roots} NO_DEFAULT_PATH
  PATH_SUFFIXES lib64/stubs lib/stubs targets/x86_64-linux/lib/stubs DOC "The toolkit's stub of libcuda.so.1")
add_library(mpsshim_cuda_stub INTERFACE)
target_link_libraries(mpsshim_cuda_stub INTERFACE mpsshim_cuda_headers)
if(MPSSHIM_CUDA_STUB)
  target_link_libraries(mpsshim_cuda_stub INTERFACE "${MPSSHIM_CUDA_STUB}")
endif()

# --- Boost: headers only (Interprocess). CMake's own FindBoost went away with policy CMP0167. ---
if(POLICY CMP0167)
  cmake_policy(SET CMP0167 NEW)
endif()
find_path(MPSSHIM_BOOST_INCLUDE_DIR boost/interprocess/mapped_region.hpp DOC "The folder that holds boost/")
if(NOT MPSSHIM_BOOST_INCLUDE_DIR)
  message(FATAL_ERROR "Boost.Interprocess was not found: install libboost-dev, or name the folder with -DMPSSHIM_BOOST_INCLUDE_DIR=")
endif()
if(NOT TARGET Boost::headers)
  add_library(Boost::headers INTERFACE IMPORTED GLOBAL)
  target_include_directories(Boost::headers INTERFACE "${MPSSHIM_BOOST_INCLUDE_DIR}")
endif()

# --- command lines and logs of the broker ---
find_package(CLI11 REQUIRED)
add_library(mpsshim_cli11 INTERFACE)
target_link_libraries(mpsshim_cli11 INTERFACE CLI11::CLI11)

find_package(fmt REQUIRED)
find_package(spdlog REQUIRED)
add_library(mpsshim_log INTERFACE)
target_link_libraries(mpsshim_log INTERFACE spdlog::spdlog fmt::fmt)

# --- decompression of fat binaries; neither library has a CMake package on both distributions ---
function(_mpsshim_compression name header library package)
  string(TOUPPER "${name}" upper)
  find_path(MPSSHIM_${upper}_INCLUDE_DIR ${header})
  find_library(MPSSHIM_${upper}_LIBRARY ${library})
  add_library(mpsshim_${name} INTERFACE)
  if(MPSSHIM_${upper}_INCLUDE_DIR AND MPSSHIM_${upper}_LIBRARY)
    target_include_directories(mpsshim_${name} SYSTEM INTERFACE "${MPSSHIM_${upper}_INCLUDE_DIR}")
    target_link_libraries(mpsshim_${name} INTERFACE "${MPSSHIM_${upper}_LIBRARY}")
    target_compile_definitions(mpsshim_${name} INTERFACE MPSSHIM_HAVE_${upper}=1)
  else()
    mpsshim_left_out("${name} compressed images" "install ${package}")
  endif()
endfunction()
_mpsshim_compression(lz4 lz4.h lz4 liblz4-dev)
_mpsshim_compression(zstd zstd.h zstd libzstd-dev)

# --- toml++, its headers alone: the file of mpsbroker -a ---
find_path(MPSSHIM_TOML_INCLUDE_DIR toml++/toml.h)
add_library(mpsshim_toml INTERFACE)
if(MPSSHIM_TOML_INCLUDE_DIR)
  target_include_directories(mpsshim_toml SYSTEM INTERFACE "${MPSSHIM_TOML_INCLUDE_DIR}")
  target_compile_definitions(mpsshim_toml INTERFACE MPSSHIM_HAVE_TOML=1)
else()
  mpsshim_left_out("mpsbroker -a (a file of settings)" "install libtomlplusplus-dev")
endif()
