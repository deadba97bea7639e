# From what a program was built, in files beside it: the ledger records them (ledger/provenance.h).
# SPDX-License-Identifier: Apache-2.0

# invar_provenance(TARGET): every build ends by writing PROGRAM.build and PROGRAM.build.diff. They
# are read when the program runs, never compiled in: equal sources give equal programs.
function(invar_provenance target)
  set(facts ${CMAKE_CURRENT_BINARY_DIR}/${target}.facts)
  string(TOUPPER "${CMAKE_BUILD_TYPE}" type)
  # as the compiler gets them, less what changes no program: warnings, and where the sources lie
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
  # after the program: when that cannot be built, the files still tell about the one that is there
  add_custom_target(${target}.provenance ALL COMMAND ${command}
    COMMENT "Writing ${target}.build" VERBATIM)
  add_dependencies(${target}.provenance ${target})
  add_custom_command(TARGET ${target} POST_BUILD COMMAND ${command} VERBATIM) # when built alone
endfunction()
