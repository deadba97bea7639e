# CPack runs this before it packs, to add what Debian requires: compressed manual pages and
# changelogs, a copyright file per package, and zsh's completions in their own folder.
# SPDX-License-Identifier: Apache-2.0
cmake_minimum_required(VERSION 3.25)
set(version ${CPACK_PACKAGE_VERSION}-${CPACK_DEBIAN_PACKAGE_RELEASE})
string(TIMESTAMP date "%a, %d %b %Y %H:%M:%S +0000" UTC) # the time of SOURCE_DATE_EPOCH

# compress(FILE...): replaces each file by FILE.gz, whose bytes depend on nothing else.
function(compress)
  execute_process(COMMAND gzip -9nf ${ARGV} COMMAND_ERROR_IS_FATAL ANY)
endfunction()

foreach(component ${CPACK_COMPONENTS_ALL})
  string(TOUPPER ${component} key)
  set(name ${CPACK_DEBIAN_${key}_PACKAGE_NAME})
  set(usr ${CPACK_TEMPORARY_DIRECTORY}/${component}${CPACK_PACKAGING_INSTALL_PREFIX})
  set(doc ${usr}/share/doc/${name})
  if(component STREQUAL "program")
    file(GLOB pages ${usr}/share/man/man*/*)
    compress(${pages})
    file(MAKE_DIRECTORY ${usr}/share/zsh/vendor-completions)
    file(RENAME ${usr}/share/zsh/site-functions/_invar ${usr}/share/zsh/vendor-completions/_invar)
    file(REMOVE_RECURSE ${usr}/share/zsh/site-functions)
    file(REMOVE ${doc}/LICENSE) # every Debian system has this license
    file(COPY_FILE ${doc}/docs/changelog.md ${doc}/changelog)
    compress(${doc}/changelog)
  endif()
  file(COPY ${CMAKE_CURRENT_LIST_DIR}/copyright DESTINATION ${doc}
    FILE_PERMISSIONS OWNER_READ OWNER_WRITE GROUP_READ WORLD_READ)
  file(WRITE ${doc}/changelog.Debian "invar (${version}) unstable; urgency=medium

  * Version ${CPACK_PACKAGE_VERSION}: its changes are in changelog.gz of the package invar.

 -- ${CPACK_PACKAGE_CONTACT}  ${date}
")
  compress(${doc}/changelog.Debian)
  # permissions must not depend on the umask of the build
  execute_process(COMMAND find ${usr} -type d -exec chmod 755 {} + COMMAND_ERROR_IS_FATAL ANY)
  execute_process(COMMAND find ${usr}/share/doc -name *.gz -exec chmod 644 {} +
    COMMAND_ERROR_IS_FATAL ANY)
endforeach()
