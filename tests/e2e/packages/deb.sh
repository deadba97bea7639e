#!/usr/bin/env bash
# deb.sh BUILD FOLDER - packages for Debian: their files and dependencies.
#
# Makes packages of BUILD. Each file of `cmake --install` is in exactly one package, with the files
# that Debian requires; dependencies are those of the linked libraries; the SBOM agrees. The
# unpacked program runs. Controls: the SBOM of another package, a package without copyright. Exit
# code: 0 if all is as expected, else 1; 77 if there is no dpkg.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
build=$1 folder=$2
# shellcheck source=tests/e2e/expect.sh
source "$(dirname "$0")/../expect.sh"
if ! command -v dpkg-shlibdeps >/dev/null; then
    echo "no dpkg-shlibdeps here (apt-get install dpkg-dev)"
    exit 77
fi
rm -rf "$folder"
mkdir -p "$folder/root"
packages=$folder/packages
cpack --config "$build/CPackConfig.cmake" -B "$folder/work" \
    -D CPACK_OUTPUT_FILE_PREFIX="$packages" >"$folder/log" 2>&1 ||
    { cat "$folder/log" && exit 1; }

# field PACKAGE NAME: prints a field of its control file.
field() {
    dpkg-deb -f "$packages/$1"_*.deb "$2"
}

# ---- control files -------------------------------------------------------------------------------

version=$("$build/invar" version | sed -n 's/^invar //p')-1
for file in "$packages"/*.deb; do
    name=${file##*/}
    name=${name%%_*}
    names+=" $name"
    holds test "$(field "$name" Version)" = "$version"
    holds test "$(field "$name" Architecture)" = "$(dpkg --print-architecture)"
    [[ $name == invar ]] || holds grep -q "^invar (= $version)" <<<"$(field "$name" Depends)"
    dpkg-deb -x "$file" "$folder/root/$name"
    ! dpkg-deb -c "$file" | grep -vE '^(-rw-r--r--|[-d]rwxr-xr-x) root/root ' ||
        complain "$name: these belong to somebody, or have odd permissions"
    for document in copyright changelog.Debian.gz; do
        holds test -s "$folder/root/$name/usr/share/doc/$name/$document"
    done
    checks=$((checks + 1))
    gzip -dc "$folder/root/$name/usr/share/doc/$name/changelog.Debian.gz" |
        grep -q "^invar ($version) " || complain "$name: its changelog has another version"
done
wanted=' invar invar-dev'
for module in cuda mpi nccl; do
    [[ ! -e $build/invar-$module.so ]] || wanted+=" invar-$module"
done
holds diff <(tr ' ' '\n' <<<"$names" | sort) <(tr ' ' '\n' <<<"$wanted" | sort)

# Libraries of the program and its modules, but not of modules that have packages of their own.
for library in libc6 libsqlite3-0 libjansson4 zlib1g libutf8proc libcurl libmicrohttpd; do
    holds grep -q "\\b$library" <<<"$(field invar Depends)"
done
for library in libopenmpi libgit2 libcmocka python; do
    ! field invar Depends | grep "$library" || complain "invar does not need $library"
done
[[ ! -e $build/invar-mpi.so ]] || holds grep -q mpi <<<"$(field invar-mpi Depends | cut -d , -f 2-)"
soname=$(grep -oaE 'libgit2\.so\.[0-9.]+' "$build/invar")
holds grep -q "libgit2-${soname#libgit2.so.}" <<<"$(field invar Recommends)"

# ---- files ---------------------------------------------------------------------------------------

# SBOMs have the hashes of the files, and the libraries that dpkg-shlibdeps found.
cat >"$folder/sbom.py" <<'PYTHON'
import hashlib, json, re, subprocess, sys
root, package = sys.argv[1:3]
name = re.search(r"invar[^_/]*(?=_[^/]*$)", package)[0]
sbom = json.load(open(f"{root}/{name}/usr/share/doc/{name}/sbom.spdx.json", encoding="utf-8"))
for file in sbom["files"]:
    data = open(f"{root}/{name}/usr/{file['fileName']}", "rb").read()
    for sum in file["checksums"]:
        assert sum["checksumValue"] == hashlib.new(sum["algorithm"], data).hexdigest(), file
names = {p["SPDXID"]: p["name"] for p in sbom["packages"]}
linked = {names[r["relatedSpdxElement"]] for r in sbom["relationships"]
          if r["relationshipType"] == "DYNAMIC_LINK"}
fields = subprocess.run(["dpkg-deb", "-f", sys.argv[3] if sys.argv[3:] else package, "Depends"],
                        capture_output=True, text=True, check=True).stdout
depends = {name for name in re.findall(r"(?:^|, )(lib[^ ,]+|zlib1g)", fields.strip())
           if not name.endswith("-dev")}
assert linked == depends, (linked, depends)
assert name != "invar" or any(names.get(r["spdxElementId"]) == "libxxhash-dev"
                              for r in sbom["relationships"]), "no xxHash"
PYTHON
for name in $names; do
    holds python3 "$folder/sbom.py" "$folder/root" "$packages/$name"_*.deb
done
if [[ -e $packages/invar-mpi_$version"_$(dpkg --print-architecture)".deb ]]; then
    ! python3 "$folder/sbom.py" "$folder/root" "$packages"/invar_*.deb "$packages"/invar-mpi_*.deb \
        2>"$folder/log" || complain "the control: the SBOM of invar agrees with another package"
    holds grep -q '^AssertionError: ({' "$folder/log"
fi

# Maps an installed file to its path in a Debian package; deleted if packages do not have it.
cat >"$folder/debian.sed" <<'SED'
\,^share/doc/invar/LICENSE$,d
s,^share/man/.*,&.gz,
s,^share/zsh/site-functions/,share/zsh/vendor-completions/,
SED
# By default the install skips the SBOMs that packages are compared with above: each takes seconds.
if [[ ${INVAR_TEST_FULL:-} ]]; then
    DESTDIR=$folder/staged cmake --install "$build" --prefix /usr >"$folder/log"
else
    cat >"$folder/install.cmake" <<'CMAKE'
function(execute_process)
  list(FIND ARGN COMMAND_ERROR_IS_FATAL last)
  math(EXPR last "${last} - 1")
  foreach(i RANGE ${last})
    if(ARGV${i} MATCHES "/sbom[.]py$")
      math(EXPR name "${i} + 3")
      file(WRITE "$ENV{DESTDIR}/usr/share/doc/${ARGV${name}}/sbom.spdx.json" "")
      return()
    endif()
  endforeach()
  message(FATAL_ERROR "the install runs another command: ${ARGN}")
endfunction()
include(${BUILD}/cmake_install.cmake)
CMAKE
    DESTDIR=$folder/staged cmake -D BUILD="$build" -D CMAKE_INSTALL_PREFIX=/usr \
        -P "$folder/install.cmake" >"$folder/log"
fi
(cd "$folder/staged/usr" && find . -type f) | cut -c 3- | sed -f "$folder/debian.sed" |
    sort >"$folder/installed"
(cd "$folder/root" && find . -type f) | sed 's,^./[^/]*/usr/,,' |
    grep -vE '^share/doc/[^/]*/(copyright|changelog(\.Debian)?\.gz)$' | sort >"$folder/packed"
diff "$folder/installed" "$folder/packed" || complain "packages have other files than the install"
holds test "$(wc -l <"$folder/packed")" -gt 150

# ---- the unpacked program ------------------------------------------------------------------------

holds diff <("$build/invar" version) <("$folder/root/invar/usr/bin/invar" version)
readelf -SW "$folder/root/invar/usr/bin/invar" >"$folder/sections"
holds grep -qF ' .dynsym ' "$folder/sections"
lacks ' \.symtab ' "$folder/sections" # the packed program is stripped
holds gzip -t "$folder"/root/invar/usr/share/man/man1/*.gz

# lintian, with INVAR_TEST_FULL=1. Suppressed: CPack treats lib/invar as a folder of the dynamic
# linker, and runs ldconfig instead of a trigger. libinvar is loaded by its name, and reports its
# version itself. The other two tags are about uploads to Debian and about cross compilers.
if [[ ${INVAR_TEST_FULL:-} ]] && command -v lintian >/dev/null; then
    known=maintscript-calls-ldconfig,initial-upload-closes-no-bugs
    known+=,pkg-config-unavailable-for-cross-compilation,lacks-ldconfig-trigger
    known+=,package-name-doesnt-match-sonames,shared-library-lacks-version
    lintian --allow-root --fail-on error,warning --suppress-tags $known \
        "$packages"/*.deb >"$folder/lintian" 2>&1 || complain "lintian:" "$(cat "$folder/lintian")"
    rm -rf "$folder/bad"
    dpkg-deb -R "$packages/invar-dev_${version}"_*.deb "$folder/bad"
    rm "$folder/bad/usr/share/doc/invar-dev/copyright"
    dpkg-deb --root-owner-group -b "$folder/bad" "$folder/bad.deb" >/dev/null
    ! lintian --allow-root --fail-on error "$folder/bad.deb" >/dev/null 2>&1 ||
        complain "the control: lintian accepts a package without copyright"
fi

((failed)) || echo "all as expected: $checks checks, packages:$names"
exit "$failed"
