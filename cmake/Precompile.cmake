# SPDX-License-Identifier: Apache-2.0
# Precompiled headers, off unless MPSSHIM_PCH asks: reading the standard library and cuda.h is half of what a build of
# everything costs, and scripts/test and scripts/demo build everything. Sources stand without them: the presets used by
# hand leave them off, so that a missing #include is noticed.
#
# Several sources compiled as one, off unless MPSSHIM_UNITY asks: for the same reason, and with the same remedy. Two sources of a target must not
# have the same name in their unnamed namespaces: another name for one of them, or one place for both.
include_guard(GLOBAL)
option(MPSSHIM_UNITY "Compile several sources of the larger parts as one (set by scripts/test and scripts/demo)" OFF)
option(MPSSHIM_PCH "Precompile the headers that most sources read (set by scripts/test and scripts/demo)" OFF)

function(_mpsshim_precompile target)
  if(TARGET ${target})
    if("REUSE_FROM" IN_LIST ARGN)
      target_precompile_headers(${target} ${ARGN})
    else()
      target_precompile_headers(${target} PRIVATE ${ARGN})
    endif()
    # ccache needs it to see into a precompiled header.
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_LAUNCHER MATCHES "ccache")
      target_compile_options(${target} PRIVATE -fpch-preprocess)
    endif()
  endif()
endfunction()

# Sources that declare the driver's functions in a way of their own, and so must not see cuda.h.
function(_mpsshim_not_precompiled target)
  if(TARGET ${target})
    set_source_files_properties(${ARGN} TARGET_DIRECTORY ${target} PROPERTIES SKIP_PRECOMPILE_HEADERS ON)
  endif()
endfunction()

# Only where many sources share one target: elsewhere the header costs more than it saves.
if(MPSSHIM_PCH)
  set(_standard <algorithm> <array> <atomic> <chrono> <cstdint> <cstring> <functional> <map> <memory> <mutex> <optional> <span> <string>
    <string_view> <utility> <vector>)
  _mpsshim_precompile(mpsshim ${_standard} <cuda.h>)
  _mpsshim_not_precompiled(mpsshim "${PROJECT_SOURCE_DIR}/interposer/local/proc_address_table.cpp")
  _mpsshim_precompile(mpsbroker_control ${_standard} <cuda.h> <fmt/format.h>)
  _mpsshim_precompile(mpsbroker_executor ${_standard} <cuda.h> <fmt/format.h> <condition_variable> <thread>)
  _mpsshim_precompile(cuda_cpu ${_standard} <cuda.h> <thread> <unordered_map>)
  _mpsshim_precompile(mpsshim_ptx ${_standard} <unordered_map>)
  _mpsshim_precompile(mpsshim_forward_tested ${_standard} <cuda.h>)
  # One for all tests.
  if(TARGET mpsshim_test_support AND Catch2_FOUND AND NOT MPSSHIM_FUZZ)
    _mpsshim_precompile(mpsshim_test_support ${_standard} <filesystem> <fstream> <random> <sstream> <thread>
      "${PROJECT_SOURCE_DIR}/tests/support/catch.hpp")
    get_property(_tests GLOBAL PROPERTY MPSSHIM_TEST_CODE)
    list(REMOVE_ITEM _tests mpsshim_test_support)
    foreach(_test IN LISTS _tests)
      _mpsshim_precompile(${_test} REUSE_FROM mpsshim_test_support)
    endforeach()
  endif()
endif()

if(MPSSHIM_UNITY)
  foreach(_target IN ITEMS mpsshim mpsbroker_control mpsbroker_executor cuda_cpu mpsshim_ptx unit_control unit_executor
      conformance_test mpsbench)
    if(TARGET ${_target})
      set_target_properties(${_target} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
    endif()
  endforeach()
  # These declare the driver's functions in ways of their own.
  set_source_files_properties("${PROJECT_SOURCE_DIR}/interposer/local/proc_address_table.cpp" TARGET_DIRECTORY mpsshim
    PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  # This one asks whether others make something, and would keep those from it that are compiled with it.
  set_source_files_properties("${PROJECT_SOURCE_DIR}/interposer/channel/kept_recipes.cpp" TARGET_DIRECTORY mpsshim
    PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  if(TARGET cuda_cpu)
    set_source_files_properties("${PROJECT_SOURCE_DIR}/broker/cpudriver/api/old_names.cpp" TARGET_DIRECTORY cuda_cpu
      PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  endif()
endif()
