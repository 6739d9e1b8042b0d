# SPDX-License-Identifier: Apache-2.0
# The project's switches, and the two INTERFACE targets every target of the project links:
#   mpsshim_options   language level, include root, sanitizers
#   mpsshim_warnings  warnings; errors only where MPSSHIM_WERROR is on (other compilers warn about other things)
include_guard(GLOBAL)

option(MPSSHIM_WERROR "Treat warnings as errors" OFF)
option(MPSSHIM_FUZZ "Build the fuzzers of this tree (needs clang); off, they are built by clang beside it where clang is present" OFF)
option(MPSSHIM_LIBRARY_EXAMPLES "Build examples/libraries: programs that need NVIDIA's libraries and a GPU" OFF)
set(MPSSHIM_SANITIZE "" CACHE STRING "Sanitizers, as -fsanitize takes them: address,undefined or thread")
set(MPSSHIM_CUDA_ARCH "" CACHE STRING "-arch for nvcc in examples and benchmarks, such as sm_90; empty: nvcc's default")
set(MPSSHIM_FUZZ_SECONDS 10 CACHE STRING "How long each fuzzer runs in the test suite")

if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
  set(CMAKE_BUILD_TYPE RelWithDebInfo CACHE STRING "Build type" FORCE)
endif()

# Every program and library of one build lies together, as it does once installed: mpsrun and mpsbroker look for
# their libraries relative to themselves, in build trees and installed trees alike.
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/bin")
set(CMAKE_LIBRARY_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")
set(CMAKE_ARCHIVE_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/lib")

set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_C_STANDARD 11)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_VISIBILITY_INLINES_HIDDEN ON)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)

add_library(mpsshim_options INTERFACE)
target_compile_features(mpsshim_options INTERFACE cxx_std_20)
target_include_directories(mpsshim_options INTERFACE "${PROJECT_SOURCE_DIR}")
target_compile_definitions(mpsshim_options INTERFACE _GNU_SOURCE MPSSHIM_VERSION="${PROJECT_VERSION}")

add_library(mpsshim_warnings INTERFACE)
target_compile_options(mpsshim_warnings INTERFACE
  -Wall -Wextra -Wpedantic -Wshadow -Wnon-virtual-dtor -Woverloaded-virtual -Wcast-align -Wunused -Wconversion
  -Wno-sign-conversion -Wdouble-promotion -Wformat=2 -Wimplicit-fallthrough -Wswitch)
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  target_compile_options(mpsshim_warnings INTERFACE -Wduplicated-cond -Wlogical-op)
endif()
if(MPSSHIM_WERROR)
  target_compile_options(mpsshim_warnings INTERFACE -Werror)
endif()

if(MPSSHIM_SANITIZE)
  target_compile_options(mpsshim_options INTERFACE
    -fsanitize=${MPSSHIM_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  target_link_options(mpsshim_options INTERFACE -fsanitize=${MPSSHIM_SANITIZE})
  # An enumeration of the driver's C interface may hold any number that a program wrote: to read it is to check it.
  if(MPSSHIM_SANITIZE MATCHES "undefined")
    target_compile_options(mpsshim_options INTERFACE -fno-sanitize=enum)
  endif()
  # One function stands for every symbol that a driver lacks, whatever its arguments (missing_symbol, broker/driver/driver.cpp).
  if(CMAKE_CXX_COMPILER_ID MATCHES "Clang" AND MPSSHIM_SANITIZE MATCHES "undefined")
    target_compile_options(mpsshim_options INTERFACE -fno-sanitize=function)
  endif()
endif()
if(MPSSHIM_FUZZ)
  if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "MPSSHIM_FUZZ needs clang, the compiler is ${CMAKE_CXX_COMPILER_ID}: use the preset \"fuzz\" or -DCMAKE_CXX_COMPILER=clang++")
  endif()
  target_compile_options(mpsshim_options INTERFACE -fsanitize=fuzzer-no-link)
endif()

# One line for each part that is not built, shown at the end of the configuration.
function(mpsshim_left_out part reason)
  set_property(GLOBAL APPEND PROPERTY MPSSHIM_LEFT_OUT "${part}: ${reason}")
endfunction()
