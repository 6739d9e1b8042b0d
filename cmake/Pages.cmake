# SPDX-License-Identifier: Apache-2.0
# Manual pages (docs/man) and completions of bash, zsh and fish, made by scripts/lib/operators_pages.py of what each program says of itself, so that
# they have the options and commands that it has. cmake/Install.cmake puts them where they are looked for.
include_guard(GLOBAL)
set(MPSSHIM_PAGES_DIR "${PROJECT_BINARY_DIR}/pages")
set(_pages "")
foreach(_program IN ITEMS mpsbroker mpsctl mpsrun)
  if(TARGET ${_program})
    set(_files ${MPSSHIM_PAGES_DIR}/${_program}.1 ${MPSSHIM_PAGES_DIR}/${_program} ${MPSSHIM_PAGES_DIR}/_${_program} ${MPSSHIM_PAGES_DIR}/${_program}.fish)
    set(_template "${PROJECT_SOURCE_DIR}/docs/man/${_program}.1.in")
    set(_maker "${PROJECT_SOURCE_DIR}/scripts/lib/operators_pages.py")
    add_custom_command(OUTPUT ${_files}
      COMMAND "${Python3_EXECUTABLE}" -B "${_maker}" "$<TARGET_FILE:${_program}>" "${_template}" "${PROJECT_VERSION}" "${MPSSHIM_PAGES_DIR}"
      DEPENDS ${_program} "${_template}" "${_maker}" "${PROJECT_SOURCE_DIR}/scripts/lib/completion.py"
        "${PROJECT_SOURCE_DIR}/scripts/lib/completion_fish.py"
      COMMENT "Manual page and completions of ${_program}" VERBATIM)
    list(APPEND _pages ${_files})
  endif()
endforeach()
add_custom_target(operators_pages ALL DEPENDS ${_pages})
add_dependencies(tests_unit operators_pages)    # "scripts: pages"
add_dependencies(tests_process operators_pages) # process_install
