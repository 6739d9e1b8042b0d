# SPDX-License-Identifier: Apache-2.0
# What is installed, in one place. The libraries carry the SONAMEs libcuda.so.1 and libnvidia-ml.so.1, so they go into a folder of their
# own: in an ordinary library folder ldconfig would make libcuda.so.1 point at them, for every program of the machine.
# The folder libcuda in it is for LD_LIBRARY_PATH, and so has nothing but the driver's names.
include_guard(GLOBAL)
set(MPSSHIM_INSTALL_LIBDIR "${CMAKE_INSTALL_LIBDIR}/mpsshim")
foreach(library IN ITEMS mpsshim mpsshim_nvml cuda_cpu)
  if(TARGET ${library})
    install(TARGETS ${library} LIBRARY DESTINATION "${MPSSHIM_INSTALL_LIBDIR}" COMPONENT mpsshim)
  endif()
endforeach()
if(TARGET mpsshim)
  foreach(name IN ITEMS libcuda.so libcuda.so.1 libnvidia-ml.so libnvidia-ml.so.1) # links to ../libmpsshim.so, ../libmpsshim-nvml.so
    install(FILES "${CMAKE_LIBRARY_OUTPUT_DIRECTORY}/libcuda/${name}" DESTINATION "${MPSSHIM_INSTALL_LIBDIR}/libcuda" COMPONENT mpsshim)
  endforeach()
endif()
foreach(program IN ITEMS mpsbroker mpsctl mpsrun)
  if(TARGET ${program})
    install(TARGETS ${program} RUNTIME DESTINATION "${CMAKE_INSTALL_BINDIR}" COMPONENT mpsshim)
    set(pages "${MPSSHIM_PAGES_DIR}")
    install(FILES "${pages}/${program}.1" DESTINATION "${CMAKE_INSTALL_MANDIR}/man1" COMPONENT mpsshim)
    install(FILES "${pages}/${program}" DESTINATION "${CMAKE_INSTALL_DATADIR}/bash-completion/completions" COMPONENT mpsshim)
    install(FILES "${pages}/_${program}" DESTINATION "${CMAKE_INSTALL_DATADIR}/zsh/site-functions" COMPONENT mpsshim)
    install(FILES "${pages}/${program}.fish" DESTINATION "${CMAKE_INSTALL_DATADIR}/fish/vendor_completions.d" COMPONENT mpsshim)
  endif()
endforeach()
if(TARGET nvidia_control) # by no name that a machine with NVIDIA's program has in its PATH
  install(TARGETS nvidia_control RUNTIME DESTINATION "${CMAKE_INSTALL_LIBEXECDIR}/mpsshim/nvidia" COMPONENT mpsshim)
endif()
install(FILES "${PROJECT_SOURCE_DIR}/README.md" "${PROJECT_SOURCE_DIR}/LICENSE" DESTINATION "${CMAKE_INSTALL_DOCDIR}" COMPONENT mpsshim)

# Units of systemd name the programs by the path that is installed, which is known when that is done. With the prefix /usr settings are in /etc.
if(TARGET mpsbroker)
  set(_packaging "${PROJECT_SOURCE_DIR}/packaging")
  install(CODE "
    set(MPSSHIM_BIN \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}\")
    set(MPSSHIM_ETC \"\${CMAKE_INSTALL_PREFIX}/etc\")
    if(CMAKE_INSTALL_PREFIX STREQUAL \"/usr\")
      set(MPSSHIM_ETC /etc)
    endif()
    set(_units \"\${CMAKE_INSTALL_PREFIX}/lib/systemd\")
    file(INSTALL DESTINATION \"\${_units}/system\" TYPE FILE FILES \"${_packaging}/systemd/mpsshim.socket\")
    file(INSTALL DESTINATION \"\${_units}/user\" TYPE FILE FILES \"${_packaging}/systemd/mpsshim-user.socket\" RENAME mpsshim.socket)
    configure_file(\"${_packaging}/systemd/mpsshim.service.in\" \"\$ENV{DESTDIR}\${_units}/system/mpsshim.service\" @ONLY)
    configure_file(\"${_packaging}/systemd/mpsshim-user.service.in\" \"\$ENV{DESTDIR}\${_units}/user/mpsshim.service\" @ONLY)
    list(APPEND CMAKE_INSTALL_MANIFEST_FILES \"\${_units}/system/mpsshim.service\" \"\${_units}/user/mpsshim.service\")
    if(NOT EXISTS \"\$ENV{DESTDIR}\${MPSSHIM_ETC}/default/mpsshim\") # settings are the administrator's
      file(INSTALL DESTINATION \"\${MPSSHIM_ETC}/default\" TYPE FILE FILES \"${_packaging}/mpsshim.default\" RENAME mpsshim)
    endif()
  " COMPONENT mpsshim)
endif()
