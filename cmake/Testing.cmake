# SPDX-License-Identifier: Apache-2.0
# How tests are added. tests/support/catch.hpp hides whether Catch2 is version 2 or 3.
include_guard(GLOBAL)

if(BUILD_TESTING)
  find_package(Catch2 QUIET)
  if(Catch2_FOUND)
    include(Catch)
    if(Catch2_VERSION VERSION_LESS 3 AND (MPSSHIM_SANITIZE OR NOT TARGET Catch2::Catch2WithMain))
      # Version 2 is one header; where its main() comes as no library it is compiled once, here, and not in every test.
      add_library(mpsshim_catch2 STATIC EXCLUDE_FROM_ALL "${PROJECT_SOURCE_DIR}/tests/support/catch_main_v2.cpp")
      target_link_libraries(mpsshim_catch2 PUBLIC Catch2::Catch2 PRIVATE mpsshim_options)
      target_compile_options(mpsshim_catch2 PRIVATE -O0 -g0) # optimising it takes longer than all tests run
    else()
      add_library(mpsshim_catch2 INTERFACE)
      target_link_libraries(mpsshim_catch2 INTERFACE Catch2::Catch2WithMain)
    endif()
  else()
    mpsshim_left_out("unit, wire and process tests" "install catch2")
  endif()
endif()

# tests_KIND builds the tests of one kind and what they need, and nothing else; it exists even where it has none.
foreach(kind IN ITEMS unit wire process faults)
  add_custom_target(tests_${kind})
endforeach()

# mpsshim_test_code(TARGET): the sources of this program or static library are the tests' own. They are built more often than they run, so they
# get less optimisation than what they test, and all alike: one precompiled header serves them (cmake/Precompile.cmake).
function(mpsshim_test_code target)
  target_compile_options(${target} PRIVATE $<$<CONFIG:RelWithDebInfo>:-O1>)
  get_target_property(type ${target} TYPE)
  if(type STREQUAL "STATIC_LIBRARY") # for programs alone
    set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE OFF)
    target_compile_options(${target} PRIVATE ${CMAKE_CXX_COMPILE_OPTIONS_PIE})
  endif()
  set_property(GLOBAL APPEND PROPERTY MPSSHIM_TEST_CODE ${target})
endfunction()

# mpsshim_add_test(NAME SOURCES file... [LIBS target...] [LABEL unit|wire|process|faults|gpu] [TIMEOUT seconds]
#                  [DEPENDS target...] [SERIAL] [CASES spec] [RUN_BY program])
# One executable, one CTest entry per TEST_CASE. The label is the folder under tests/ (unit where there is none).
# A target named in LIBS or DEPENDS that does not exist leaves the test out, with a line in the summary.
# A case leaves early with MPSSHIM_SKIP("why"); CTest counts and names it as skipped.
# LOCK names what one case at a time may use.
# CASES takes only those that a Catch2 test specification names; RUN_BY runs each as "program executable case".
function(mpsshim_add_test name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "SERIAL" "LABEL;TIMEOUT;CASES;RUN_BY;LOCK" "SOURCES;LIBS;DEPENDS")
  if(NOT BUILD_TESTING OR NOT Catch2_FOUND)
    return()
  endif()
  foreach(needed IN LISTS arg_LIBS arg_DEPENDS)
    if(needed MATCHES "^(mpsshim|mpsbroker|mpsctl|cuda_cpu|run_as_client)" AND NOT TARGET ${needed})
      mpsshim_left_out("test ${name}" "the target ${needed} is not built")
      return()
    endif()
  endforeach()
  if(NOT arg_LABEL)
    file(RELATIVE_PATH folder "${PROJECT_SOURCE_DIR}/tests" "${CMAKE_CURRENT_SOURCE_DIR}")
    if(folder MATCHES "^(wire|process|gpu|bench)")
      set(arg_LABEL ${CMAKE_MATCH_1})
    else()
      set(arg_LABEL unit)
    endif()
  endif()
  if(NOT arg_TIMEOUT)
    if(arg_LABEL STREQUAL "unit")
      set(arg_TIMEOUT 60)
    else()
      set(arg_TIMEOUT 120)
    endif()
  endif()
  add_executable(${name} ${arg_SOURCES})
  target_link_libraries(${name} PRIVATE ${arg_LIBS} mpsshim_options mpsshim_warnings mpsshim_catch2 Threads::Threads)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY "${PROJECT_BINARY_DIR}/tests")
  mpsshim_test_code(${name})
  if(NOT TARGET tests_${arg_LABEL})
    add_custom_target(tests_${arg_LABEL})
  endif()
  add_dependencies(tests_${arg_LABEL} ${name})
  if(arg_DEPENDS)
    add_dependencies(${name} ${arg_DEPENDS})
  endif()
  # What may take long begins first, so that nothing long is left alone at the end.
  set(properties LABELS "${arg_LABEL}" TIMEOUT ${arg_TIMEOUT} COST ${arg_TIMEOUT} SKIP_REGULAR_EXPRESSION "mpsshim-skip: ")
  if(arg_SERIAL)
    list(APPEND properties RUN_SERIAL TRUE)
  endif()
  if(arg_LOCK)
    list(APPEND properties RESOURCE_LOCK ${arg_LOCK})
  endif()
  if(arg_RUN_BY)
    set_target_properties(${name} PROPERTIES CROSSCOMPILING_EMULATOR "${arg_RUN_BY}")
  endif()
  set(selection "")
  if(arg_CASES)
    set(selection TEST_SPEC "${arg_CASES}")
  endif()
  # The list of cases is read when CTest runs: a build need not run what it has just built.
  # (The version 2 module has no DISCOVERY_MODE and would take it for more of TEST_SPEC, did it come later.)
  catch_discover_tests(${name} TEST_PREFIX "${name}." DISCOVERY_MODE PRE_TEST ${selection} PROPERTIES ${properties})
endfunction()

# mpsshim_add_fuzzer(NAME SOURCES file... [LIBS target...] [DICT file] [CORPUS folder])
# libFuzzer needs clang. In a clang tree configured with MPSSHIM_FUZZ the fuzzer is built and run here; in any other
# tree it is built by clang in <build>/fuzz and run from there; without clang it is left out.
function(mpsshim_add_fuzzer name)
  cmake_parse_arguments(PARSE_ARGV 1 arg "" "DICT;CORPUS" "SOURCES;LIBS")
  foreach(needed IN LISTS arg_LIBS)
    if(needed MATCHES "^(mpsshim|mpsbroker|cuda_cpu)" AND NOT TARGET ${needed})
      mpsshim_left_out("fuzzer ${name}" "the target ${needed} is not built")
      return()
    endif()
  endforeach()
  if(MPSSHIM_FUZZ)
    add_executable(${name} ${arg_SOURCES})
    target_link_libraries(${name} PRIVATE ${arg_LIBS} mpsshim_options mpsshim_warnings)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    if(NOT TARGET fuzzers)
      add_custom_target(fuzzers)
    endif()
    add_dependencies(fuzzers ${name})
    set(program "$<TARGET_FILE:${name}>")
  elseif(MPSSHIM_CLANGXX AND MPSSHIM_CLANG_FUZZES)
    _mpsshim_fuzz_tree()
    set(program "${PROJECT_BINARY_DIR}/fuzz/bin/${name}")
  else()
    mpsshim_left_out("fuzzer ${name}" "install clang and its libFuzzer (libclang-rt-dev)")
    return()
  endif()
  # New inputs go to the build tree, the seeds in the source tree are only read.
  set(found "${PROJECT_BINARY_DIR}/fuzz-corpus/${name}")
  file(MAKE_DIRECTORY "${found}")
  set(command "${program}" -max_total_time=${MPSSHIM_FUZZ_SECONDS} -timeout=10 -rss_limit_mb=2048 -max_len=65536 -len_control=0 "-artifact_prefix=${found}/")
  if(arg_DICT)
    list(APPEND command "-dict=${arg_DICT}")
  endif()
  list(APPEND command "${found}")
  if(arg_CORPUS)
    list(APPEND command "${arg_CORPUS}")
  endif()
  add_test(NAME "${name}" COMMAND ${command})
  # A fuzzed executor just goes, with what its sessions still hold: that is no leak of a process that lives on.
  set_tests_properties("${name}" PROPERTIES LABELS fuzz TIMEOUT 120 COST 180 ENVIRONMENT "ASAN_OPTIONS=detect_leaks=0")
endfunction()

# Another compiler's tree needs a clang that can link libFuzzer: its runtime is a package of its own on some systems.
if(BUILD_TESTING AND NOT MPSSHIM_FUZZ)
  find_program(MPSSHIM_CLANGXX NAMES clang++ clang++-18 clang++-17 clang++-16 clang++-15 clang++-14 DOC "clang++, for the fuzzers")
  find_program(MPSSHIM_CLANG NAMES clang clang-18 clang-17 clang-16 clang-15 clang-14 DOC "clang, for the fuzzers")
  if(MPSSHIM_CLANGXX AND NOT DEFINED MPSSHIM_CLANG_FUZZES)
    set(_probe "${PROJECT_BINARY_DIR}/CMakeFiles/fuzzer_probe")
    file(WRITE "${_probe}.cpp" "extern \"C\" int LLVMFuzzerTestOneInput(const unsigned char*, unsigned long) { return 0; }\n")
    execute_process(COMMAND "${MPSSHIM_CLANGXX}" -fsanitize=fuzzer,address "${_probe}.cpp" -o "${_probe}"
      RESULT_VARIABLE _probe_result OUTPUT_QUIET ERROR_QUIET)
    if(_probe_result EQUAL 0)
      set(MPSSHIM_CLANG_FUZZES ON CACHE INTERNAL "clang++ links libFuzzer")
    else()
      set(MPSSHIM_CLANG_FUZZES OFF CACHE INTERNAL "clang++ links libFuzzer")
    endif()
  endif()
endif()

# The second tree that builds the fuzzers, made once however many fuzzers there are.
function(_mpsshim_fuzz_tree)
  if(TARGET fuzz_tree)
    return()
  endif()
  include(ExternalProject)
  ExternalProject_Add(fuzz_tree
    SOURCE_DIR "${PROJECT_SOURCE_DIR}"
    BINARY_DIR "${PROJECT_BINARY_DIR}/fuzz"
    PREFIX "${PROJECT_BINARY_DIR}/fuzz-stamps"
    CMAKE_ARGS -DCMAKE_CXX_COMPILER=${MPSSHIM_CLANGXX} -DCMAKE_C_COMPILER=${MPSSHIM_CLANG} -DMPSSHIM_FUZZ=ON
      -DMPSSHIM_SANITIZE=address,undefined -DCMAKE_BUILD_TYPE=RelWithDebInfo "-DCMAKE_CXX_FLAGS_RELWITHDEBINFO=-O1 -g1" -DMPSSHIM_PCH=${MPSSHIM_PCH}
      -DMPSSHIM_UNITY=${MPSSHIM_UNITY}
      -DMPSSHIM_CUDA_INCLUDE_DIR=${MPSSHIM_CUDA_INCLUDE_DIR} -DPython3_EXECUTABLE=${Python3_EXECUTABLE}
      -DCMAKE_CXX_COMPILER_LAUNCHER=${CMAKE_CXX_COMPILER_LAUNCHER} -DCMAKE_C_COMPILER_LAUNCHER=${CMAKE_C_COMPILER_LAUNCHER}
    BUILD_COMMAND "${CMAKE_COMMAND}" --build <BINARY_DIR> --target fuzzers
    INSTALL_COMMAND ""
    BUILD_ALWAYS TRUE USES_TERMINAL_BUILD TRUE)
endfunction()
