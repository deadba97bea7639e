# Third-party libraries, each as one target.
# SPDX-License-Identifier: Apache-2.0

find_package(Threads REQUIRED)

# invar_find(NAME header package [LIBRARY name]): makes the target NAME with the header and the
# library.
function(invar_find name header package)
  cmake_parse_arguments(PARSE_ARGV 3 arg "" "LIBRARY" "")
  find_path(${name}_INCLUDE ${header})
  if(NOT ${name}_INCLUDE)
    message(FATAL_ERROR "${header} is missing: run scripts/setup or apt-get install ${package}")
  endif()
  add_library(${name} INTERFACE IMPORTED GLOBAL)
  target_include_directories(${name} SYSTEM INTERFACE ${${name}_INCLUDE})
  if(arg_LIBRARY)
    find_library(${name}_LIBRARY ${arg_LIBRARY})
    if(NOT ${name}_LIBRARY)
      message(FATAL_ERROR
        "lib${arg_LIBRARY} is missing: run scripts/setup or apt-get install ${package}")
    endif()
    target_link_libraries(${name} INTERFACE ${${name}_LIBRARY})
  endif()
endfunction()

# xxHash is compiled from its header (base/hash.c has the reason), so a cross build needs no
# library.
invar_find(xxhash xxhash.h libxxhash-dev)

# Without BUILD_TESTING, a CUDA build (scripts/bundle) has the GPU tests if cmocka exists.
find_path(cmocka_INCLUDE cmocka.h)
if(BUILD_TESTING OR (INVAR_CUDA AND cmocka_INCLUDE))
  invar_find(cmocka cmocka.h libcmocka-dev LIBRARY cmocka)
endif()

# The CUDA build includes CUTLASS's headers (fetched by scripts/cutlass, or part of a bundle).
if(INVAR_CUDA)
  find_package(CUDAToolkit REQUIRED)
  find_path(cutlass_INCLUDE cute/arch/mma_sm90_gmma.hpp
    HINTS ${PROJECT_SOURCE_DIR}/.cache/cutlass/include)
  if(NOT cutlass_INCLUDE)
    message(FATAL_ERROR "CUTLASS's headers are missing: run scripts/setup cuda")
  endif()
  add_library(cutlass INTERFACE IMPORTED GLOBAL)
  target_include_directories(cutlass SYSTEM INTERFACE ${cutlass_INCLUDE})
endif()
