# SPDX-License-Identifier: Apache-2.0
# The .deb: `cpack -G DEB` in a built tree. It has what cmake/Install.cmake installs, under /usr, and settings in /etc, which are conffiles: dpkg keeps
# what an administrator has changed. No script of ours runs: units are enabled by whoever wants them, and nothing has to be cleaned up.
include_guard(GLOBAL)
set(MPSSHIM_PACKAGE_MAINTAINER "mpsshim maintainers <root@localhost>" CACHE STRING "Who answers for the package: NAME <ADDRESS>")

set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME mpsshim)
set(CPACK_PACKAGE_VENDOR mpsshim)
set(CPACK_PACKAGE_CONTACT "${MPSSHIM_PACKAGE_MAINTAINER}")
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "${PROJECT_DESCRIPTION}")
set(CPACK_PACKAGE_DESCRIPTION
  "CUDA programs, unmodified, share one context on a GPU: a library in the place of libcuda.so.1 forwards their calls to a broker. A fault of one\nreaches no others that are idle.")
set(CPACK_RESOURCE_FILE_LICENSE "${PROJECT_SOURCE_DIR}/LICENSE")
set(CPACK_STRIP_FILES ON)
# With DESTDIR the prefix is what it will be, which units name, and /etc is /etc.
set(CPACK_SET_DESTDIR ON)
set(CPACK_INSTALL_PREFIX /usr)
set(CPACK_PACKAGE_RELOCATABLE OFF)

set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_MAINTAINER "${MPSSHIM_PACKAGE_MAINTAINER}")
set(CPACK_DEBIAN_PACKAGE_SECTION contrib/utils) # of no use without NVIDIA's driver, but for tests
set(CPACK_DEBIAN_PACKAGE_SHLIBDEPS ON)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS "libedit2")   # mpsctl at a terminal
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
file(WRITE "${PROJECT_BINARY_DIR}/packaging/conffiles" "/etc/default/mpsshim\n")
set(CPACK_DEBIAN_PACKAGE_CONTROL_EXTRA "${PROJECT_BINARY_DIR}/packaging/conffiles")
set(CPACK_PRE_BUILD_SCRIPTS "${PROJECT_SOURCE_DIR}/cmake/PackageFolders.cmake")
include(CPack)
