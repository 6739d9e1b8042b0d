# SPDX-License-Identifier: Apache-2.0
# Runs proto/gen/generate.py at build time and offers what it writes as targets:
#   mpsshim_generated    INTERFACE: include root of gen/*, the driver's headers under plain names (no macros of cuda.h); linking it orders the build
#   mpsshim_generated_declarations  INTERFACE: the include root alone, for what knows nothing of the driver; it orders the build as well
#   mpsshim_spec_checks  objects compiled for their static assertions: the spec against the installed cuda.h
# ${MPSSHIM_GENERATED_DIR}/gen/exports.cpp and exports.map are for libmpsshim.so alone.
include_guard(GLOBAL)

set(MPSSHIM_GENERATED_DIR "${PROJECT_BINARY_DIR}/generated")

# mpsshim_generate(TARGET SPEC_FOLDER OUT_FOLDER): an INTERFACE target for what follows from one spec.
function(mpsshim_generate target spec_folder out_folder)
  set(generator "${PROJECT_SOURCE_DIR}/proto/gen/generate.py")
  file(GLOB spec CONFIGURE_DEPENDS "${spec_folder}/*.toml")
  file(GLOB scripts CONFIGURE_DEPENDS "${PROJECT_SOURCE_DIR}/proto/gen/*.py")
  execute_process(COMMAND "${Python3_EXECUTABLE}" -B "${generator}" --spec "${spec_folder}" --list-outputs
    OUTPUT_VARIABLE names OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
  list(TRANSFORM names PREPEND "${out_folder}/gen/" OUTPUT_VARIABLE outputs)

  # Files whose content stays the same keep their time; the stamp says that the spec was read.
  set(stamp "${out_folder}/generated.stamp")
  add_custom_command(OUTPUT "${stamp}" BYPRODUCTS ${outputs}
    COMMAND "${Python3_EXECUTABLE}" -B "${generator}" --spec "${spec_folder}" --out "${out_folder}" --cuda-include "${MPSSHIM_CUDA_INCLUDE_DIR}"
    COMMAND "${CMAKE_COMMAND}" -E touch "${stamp}"
    DEPENDS ${spec} ${scripts} "${MPSSHIM_CUDA_INCLUDE_DIR}/cuda.h"
    COMMENT "Generating declarations from ${spec_folder}" VERBATIM)
  add_custom_target(${target}_files DEPENDS "${stamp}")
  set_source_files_properties(${outputs} PROPERTIES GENERATED TRUE)

  add_library(${target}_declarations INTERFACE)
  add_dependencies(${target}_declarations ${target}_files)
  target_include_directories(${target}_declarations INTERFACE "${out_folder}")
  add_library(${target} INTERFACE)
  # With this, cuda.h declares every ABI version under its own name and renames nothing.
  target_compile_definitions(${target} INTERFACE __CUDA_API_VERSION_INTERNAL)
  target_link_libraries(${target} INTERFACE ${target}_declarations mpsshim_cuda_headers)
endfunction()

# The generator's own tests need no build.
function(_mpsshim_generator_test name)
  add_test(NAME "generator: ${name}" COMMAND "${Python3_EXECUTABLE}" -B ${ARGN})
  set_tests_properties("generator: ${name}" PROPERTIES LABELS unit TIMEOUT 60)
endfunction()

mpsshim_generate(mpsshim_generated "${PROJECT_SOURCE_DIR}/proto/spec" "${MPSSHIM_GENERATED_DIR}")
add_library(mpsshim_spec_checks OBJECT "${MPSSHIM_GENERATED_DIR}/gen/checks.cpp")
target_link_libraries(mpsshim_spec_checks PRIVATE mpsshim_options mpsshim_warnings mpsshim_generated)

if(BUILD_TESTING)
  set(_gen "${PROJECT_SOURCE_DIR}/proto/gen")
  set(_spec --spec "${PROJECT_SOURCE_DIR}/proto/spec")
  _mpsshim_generator_test("validation" "${_gen}/test_generate.py")
  _mpsshim_generator_test("validation of messages" "${_gen}/test_messages.py")
  _mpsshim_generator_test("look-ups of a CUDA 13.0 runtime" "${_gen}/check_resolves.py" ${_spec} --expected "${PROJECT_SOURCE_DIR}/tests/data/cudart13_resolves.tsv")
  _mpsshim_generator_test("the toolkit's headers" "${_gen}/check_headers.py" ${_spec} --cuda-include "${MPSSHIM_CUDA_INCLUDE_DIR}" --stub "${MPSSHIM_CUDA_STUB}")
  _mpsshim_generator_test("coverage table is current" "${_gen}/generate.py" ${_spec} --coverage "${PROJECT_SOURCE_DIR}/docs/coverage.md" --check)
  _mpsshim_generator_test("tables of messages are current" "${_gen}/generate.py" ${_spec} --messages "${PROJECT_SOURCE_DIR}/docs/messages.md" --check)
endif()
