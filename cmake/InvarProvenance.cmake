# The origin of a program's build, in files beside the program; the ledger records them
# (ledger/provenance.h).
# SPDX-License-Identifier: Apache-2.0

# invar_provenance(TARGET): every build ends by writing PROGRAM.build and PROGRAM.build.diff. The
# program reads them when it runs; they are never compiled in, so equal sources give equal programs.
function(invar_provenance target)
  set(facts ${CMAKE_CURRENT_BINARY_DIR}/${target}.facts)
  string(TOUPPER "${CMAKE_BUILD_TYPE}" type)
  # the compiler's options, without those that change no program: warnings, and the path of the
  # sources
  set(options $<TARGET_PROPERTY:${target},COMPILE_OPTIONS>)
  set(options "$<JOIN:$<FILTER:${options},EXCLUDE,^(-W|-ffile-prefix-map=)>, >")
  file(GENERATE OUTPUT ${facts}.$<COMPILE_LANGUAGE> CONTENT "\
compiler = ${CMAKE_C_COMPILER_ID} ${CMAKE_C_COMPILER_VERSION}
flags = ${CMAKE_C_FLAGS} ${CMAKE_C_FLAGS_${type}} -std=c${CMAKE_C_STANDARD} ${options}
version = ${PROJECT_VERSION}
type = ${CMAKE_BUILD_TYPE}
" TARGET ${target})
  set(command ${PROJECT_SOURCE_DIR}/scripts/provenance $<TARGET_FILE:${target}>.build
    ${PROJECT_SOURCE_DIR} ${facts}.C)
  # runs after the program: if its build fails, the files still describe the existing program
  add_custom_target(${target}.provenance ALL COMMAND ${command}
    COMMENT "Writing ${target}.build" VERBATIM)
  add_dependencies(${target}.provenance ${target})
  # if TARGET alone is built
  add_custom_command(TARGET ${target} POST_BUILD COMMAND ${command} VERBATIM)
endfunction()
