# SPDX-License-Identifier: Apache-2.0
# Run by cpack between installation and packing: libraries go where Debian has those of an architecture. A tree that was configured for another prefix
# installs them in lib, where cpack would have ldconfig look at a folder that it is to leave alone.
execute_process(COMMAND dpkg-architecture -qDEB_HOST_MULTIARCH OUTPUT_VARIABLE _multiarch OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
set(_usr "${CPACK_TEMPORARY_DIRECTORY}/usr")
if(EXISTS "${_usr}/lib/mpsshim")
  file(MAKE_DIRECTORY "${_usr}/lib/${_multiarch}")
  file(RENAME "${_usr}/lib/mpsshim" "${_usr}/lib/${_multiarch}/mpsshim")
endif()
