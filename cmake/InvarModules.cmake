# Modules: parts of the program that are separate files (base/process/module.h).
# SPDX-License-Identifier: Apache-2.0

# The program, its modules, libinvar, examples and manual pages: everything that a user runs, loads
# or reads in a build folder, without tests. scripts/quickstart builds this target.
add_custom_target(programs)

# invar_module(NAME component): the library invar_NAME becomes the module invar-NAME.so, in the
# package of the component. The program depends on every module, and packages are made from this
# list.
function(invar_module name component)
  set_target_properties(invar_${name} PROPERTIES PREFIX "" OUTPUT_NAME invar-${name} SUFFIX .so
    LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR} INVAR_COMPONENT ${component})
  install(TARGETS invar_${name} LIBRARY DESTINATION lib/invar COMPONENT ${component})
  set_property(TARGET programs APPEND PROPERTY INVAR_MODULES ${name})
endfunction()
