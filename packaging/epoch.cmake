# CPack reads this first. It sets one time for all files of a package, the time of the commit, so
# that equal sources give equal packages. SOURCE_DATE_EPOCH in the environment has precedence.
# SPDX-License-Identifier: Apache-2.0
if(NOT DEFINED ENV{SOURCE_DATE_EPOCH})
  file(STRINGS ${CPACK_INVAR_FACTS} line REGEX "^commit-time = [0-9]+$")
  string(REPLACE "commit-time = " "" line "${line}")
  if(NOT line)
    message(FATAL_ERROR "invar.build says no commit-time: set SOURCE_DATE_EPOCH for the package")
  endif()
  set(ENV{SOURCE_DATE_EPOCH} ${line})
endif()
