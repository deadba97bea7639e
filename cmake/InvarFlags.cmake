# InvarFlags.cmake: all compiler flags. Every flag that may change a bit of a result is here.
# SPDX-License-Identifier: Apache-2.0

set(CMAKE_C_STANDARD 11)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF) # -std=gnu11 would let gcc contract a*b+c
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_ENABLE_EXPORTS ON) # exports INVAR_EXPORT functions of the program, which modules call
set(CMAKE_RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR})
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# packaging/CMakeLists.txt has the other components
set(CMAKE_INSTALL_DEFAULT_COMPONENT_NAME program)

if(NOT CMAKE_BUILD_TYPE)
  set(CMAKE_BUILD_TYPE Release)
endif()
# No NDEBUG in any configuration: INVAR_CHECK and assertions are part of the product.
foreach(config RELEASE RELWITHDEBINFO MINSIZEREL)
  string(REPLACE " -DNDEBUG" "" CMAKE_C_FLAGS_${config} "${CMAKE_C_FLAGS_${config}}")
endforeach()

# Equal sources give equal binaries: no dates or owners in archives, no paths in objects.
set(CMAKE_C_ARCHIVE_CREATE "<CMAKE_AR> qcD <TARGET> <LINK_FLAGS> <OBJECTS>")
set(CMAKE_C_ARCHIVE_FINISH "<CMAKE_RANLIB> -D <TARGET>")

# A fixed instruction set per architecture: fused multiply-add in hardware on both.
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|amd64|AMD64")
  set(INVAR_ARCH_FLAG -march=x86-64-v3)
elseif(CMAKE_SYSTEM_PROCESSOR MATCHES "aarch64|arm64")
  set(INVAR_ARCH_FLAG -march=armv8-a)
else()
  message(FATAL_ERROR "Invar runs on x86-64 and aarch64, not on ${CMAKE_SYSTEM_PROCESSOR}")
endif()

# Flags of the one file with wider vectors (kernels-deterministic/step/kernel_avx512.c).
set(INVAR_WIDE_FLAGS "")
if(CMAKE_SYSTEM_PROCESSOR MATCHES "x86_64|amd64|AMD64")
  set(INVAR_WIDE_FLAGS -mavx512f -mavx512bw -mavx512dq -mavx512vl)
endif()

# Arithmetic is computed as it is written. The last two flags change no value; they allow the
# compiler to make sqrtf one instruction and to vectorize selects.
set(INVAR_HOST_FLAGS ${INVAR_ARCH_FLAG}
  -ffp-contract=off -fno-fast-math -fno-math-errno -fno-trapping-math
  -ffile-prefix-map=${PROJECT_SOURCE_DIR}/=)

add_library(invar_flags INTERFACE)
target_include_directories(invar_flags INTERFACE ${PROJECT_SOURCE_DIR})
target_compile_definitions(invar_flags INTERFACE _POSIX_C_SOURCE=200809L)
set(warnings -Wall -Wextra -Wpedantic -Wshadow -Wstrict-prototypes -Wmissing-prototypes
  -Wconversion -Wvla -Werror)
if(CMAKE_C_COMPILER_ID STREQUAL "GNU")
  # Warnings that depend on gcc's version and optimization level are shown, but are not errors.
  foreach(guess maybe-uninitialized array-bounds stringop-overflow stringop-overread
      format-truncation format-overflow)
    list(APPEND warnings -Wno-error=${guess})
  endforeach()
endif()
target_compile_options(invar_flags INTERFACE
  "$<$<COMPILE_LANGUAGE:C>:${INVAR_HOST_FLAGS};${warnings}>")

# Flags of the CUDA compiler. A test reads them, too, if there is a compiler but no GPU.
set(INVAR_CUDA_FLAGS -gencode=arch=compute_90a,code=sm_90a
  -fmad=false -ftz=false -prec-div=true -prec-sqrt=true)

if(INVAR_CUDA)
  set(CMAKE_CUDA_STANDARD 17)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_EXTENSIONS OFF)
  # the flags name the architecture: machine code only, no PTX for a driver to compile
  set(CMAKE_CUDA_ARCHITECTURES OFF)
  enable_language(CUDA)
  # must precede a launcher that the user has set, such as ccache
  list(PREPEND CMAKE_CUDA_COMPILER_LAUNCHER ${CMAKE_CURRENT_LIST_DIR}/../scripts/compile-cuda)
  string(REPLACE " -DNDEBUG" "" CMAKE_CUDA_FLAGS_RELEASE "${CMAKE_CUDA_FLAGS_RELEASE}")
  list(JOIN INVAR_HOST_FLAGS "," host_flags)
  set(cuda_flags ${INVAR_CUDA_FLAGS}
    -Werror=all-warnings -Xcompiler=${host_flags},-Wall,-Wextra,-Werror)
  target_compile_options(invar_flags INTERFACE "$<$<COMPILE_LANGUAGE:CUDA>:${cuda_flags}>")
endif()

set(INVAR_SANITIZE "" CACHE STRING "build with sanitizers: address (and undefined), or thread")
set_property(CACHE INVAR_SANITIZE PROPERTY STRINGS "" address thread)
if(INVAR_SANITIZE STREQUAL "address")
  set(sanitize -fsanitize=address,undefined -fno-sanitize-recover=all)
elseif(INVAR_SANITIZE STREQUAL "thread")
  set(sanitize -fsanitize=thread)
elseif(INVAR_SANITIZE)
  message(FATAL_ERROR "INVAR_SANITIZE=${INVAR_SANITIZE}: expected address, thread or nothing")
endif()
if(INVAR_SANITIZE)
  target_compile_options(invar_flags INTERFACE ${sanitize} -fno-omit-frame-pointer -g)
  target_link_options(invar_flags INTERFACE ${sanitize})
endif()

# Hardening, which makes mistakes harder to exploit. It changes no bit of a result, because numbers
# are computed by the same instructions. Compilers support different parts of it. Sanitizers have
# their own checks, which fortified calls would hide.
include(CheckCCompilerFlag)
include(CheckPIESupported)
set(CMAKE_REQUIRED_QUIET ON)
check_pie_supported(LANGUAGES C)
set(harden "")
foreach(flag -fstack-protector-strong -fstack-clash-protection
    -fcf-protection=full -mbranch-protection=standard)
  string(MAKE_C_IDENTIFIER "INVAR_HAS${flag}" has)
  check_c_compiler_flag("-Werror ${flag}" ${has})
  if(${has})
    list(APPEND harden ${flag})
  endif()
endforeach()
# needs optimization; the first level that this compiler and libc support
foreach(level 3 2)
  set(flags -U_FORTIFY_SOURCE -D_FORTIFY_SOURCE=${level})
  list(JOIN flags " " CMAKE_REQUIRED_FLAGS)
  string(TOUPPER "${CMAKE_BUILD_TYPE}" type)
  string(APPEND CMAKE_REQUIRED_FLAGS " -Werror ${CMAKE_C_FLAGS_${type}}")
  check_c_source_compiles("#include <string.h>\nint main(void) { return 0; }"
    INVAR_HAS_FORTIFY_${level})
  unset(CMAKE_REQUIRED_FLAGS)
  if(INVAR_HAS_FORTIFY_${level} AND NOT INVAR_SANITIZE)
    list(APPEND harden ${flags})
    break()
  endif()
endforeach()
target_compile_options(invar_flags INTERFACE "$<$<COMPILE_LANGUAGE:C>:${harden}>")
target_link_options(invar_flags INTERFACE
  LINKER:-z,relro LINKER:-z,now LINKER:-z,noexecstack)

# invar_library(NAME [SUBDIRS dir...] [LINK target...]): makes a static library from the C sources
# of the current folder and of SUBDIRS.
function(invar_library name)
  cmake_parse_arguments(arg "" "" "SUBDIRS;LINK" ${ARGN})
  set(patterns *.c)
  foreach(dir ${arg_SUBDIRS})
    list(APPEND patterns ${dir}/*.c)
  endforeach()
  file(GLOB sources CONFIGURE_DEPENDS ${patterns})
  add_library(${name} STATIC ${sources})
  target_link_libraries(${name} PUBLIC invar_flags ${arg_LINK})
endfunction()
