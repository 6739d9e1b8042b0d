# SPDX-License-Identifier: Apache-2.0
# The launcher is a script; a copy lies beside mpsbroker, where it finds its library as it does once installed.
include_guard(GLOBAL)
if(EXISTS "${PROJECT_SOURCE_DIR}/scripts/mpsrun")
  configure_file("${PROJECT_SOURCE_DIR}/scripts/mpsrun" "${CMAKE_RUNTIME_OUTPUT_DIRECTORY}/mpsrun" COPYONLY)
endif()
