# InvarEmbed.cmake: embeds files as C arrays. The build includes it for invar_embed; with -P it
# writes the C file.
# SPDX-License-Identifier: Apache-2.0

# invar_embed(TARGET symbol FILE...): adds `const invar_embedded symbol[]` to TARGET, with one
# element per file in the given order, then one whose name is NULL (base/embedded.h).
function(invar_embed target symbol)
  set(out ${CMAKE_CURRENT_BINARY_DIR}/${symbol}.c)
  add_custom_command(OUTPUT ${out}
    COMMAND ${CMAKE_COMMAND} -D symbol=${symbol} -D out=${out} "-D files=${ARGN}"
      -P ${PROJECT_SOURCE_DIR}/cmake/InvarEmbed.cmake
    DEPENDS ${ARGN} ${PROJECT_SOURCE_DIR}/cmake/InvarEmbed.cmake
    VERBATIM)
  target_sources(${target} PRIVATE ${out})
endfunction()

if(NOT CMAKE_SCRIPT_MODE_FILE STREQUAL CMAKE_CURRENT_LIST_FILE)
  return()
endif()

set(arrays "")
set(elements "")
set(n 0)
foreach(file ${files})
  cmake_path(GET file FILENAME name)
  file(READ ${file} hex HEX)
  string(LENGTH "${hex}" digits)
  math(EXPR bytes "${digits} / 2")
  string(REGEX REPLACE "(................................)" "\\1\n" hex "${hex}")
  string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," hex "${hex}")
  string(APPEND arrays "static const unsigned char file${n}[] = {\n${hex}0};\n")
  string(APPEND elements "    {\"${name}\", (const char *)file${n}, ${bytes}},\n")
  math(EXPR n "${n} + 1")
endforeach()
file(WRITE ${out}.new "#include \"base/embedded.h\"
${arrays}extern const invar_embedded ${symbol}[];
const invar_embedded ${symbol}[] = {\n${elements}    {NULL, NULL, 0},\n};\n")
file(COPY_FILE ${out}.new ${out} ONLY_IF_DIFFERENT)
# ninja expects a new time stamp even if nothing changed
file(TOUCH_NOCREATE ${out})
file(REMOVE ${out}.new)
