#!/usr/bin/env bash
# reproducible.sh FOLDER - a release that is built twice from one commit has the same bytes.
#
# Clones HEAD twice below FOLDER and runs scripts/release in each: the second time in a path with
# blanks, with another umask, language and time zone. Programs, modules, the library, manual pages,
# completions, packages and sources must be equal. The compiler cache is off. Controls:
# scripts/release rejects wrong arguments; packages with another commit time differ. Exit code: 0 if
# all is as expected, else 1; 77 if there is no dpkg.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
tree=$PWD folder=$1
# shellcheck source=tests/e2e/expect.sh
source "$(dirname "$0")/../expect.sh"
if ! command -v dpkg-shlibdeps >/dev/null; then
    echo "no dpkg-shlibdeps here (scripts/setup deb installs it)"
    exit 77
fi
rm -rf "$folder"
mkdir -p "$folder/another place"
unset CMAKE_C_COMPILER_LAUNCHER SOURCE_DATE_EPOCH
export CCACHE_DISABLE=1 GIT_CONFIG_GLOBAL=/dev/null
version=$(sed -n 's/^project(invar VERSION \([0-9.]*\).*/\1/p' CMakeLists.txt)

# refuses TEXT ARGUMENT ...: checks that scripts/release fails with TEXT and creates nothing.
refuses() {
    local text=$1 said rc=0
    shift
    said=$("$folder/one/scripts/release" "$@" 2>&1) || rc=$?
    [[ $rc == 2 && $said == *"$text"* ]] || complain "scripts/release $*: $rc: $said"
    [[ ! -e $folder/none ]] || complain "scripts/release $* was refused, and made a folder"
}
git clone -q "$tree" "$folder/one"
refuses 'expected a version and a folder'
refuses '"1.2" is no version' 1.2 "$folder/none"
refuses "CMakeLists.txt has version $version" 9.9.9 "$folder/none"
refuses 'is there already' "$version" "$folder"
cd "$folder/one"
git checkout -q -B release
if ! grep -m 1 '^## ' docs/changelog.md | grep -q "^## $version"; then
    refuses 'the newest section of docs/changelog.md is' "$version" "$folder/none"
    sed -i "0,/^## .*/s//## $version/" docs/changelog.md
    refuses 'this tree is not what was committed' "$version" "$folder/none"
    git -c user.name=a -c user.email=a@example.org commit -qam "release: $version"
fi
git clone -q "$folder/one" "$folder/another place/sources"

scripts/release "$version" "$folder/one.out" >"$folder/log.one" 2>&1 ||
    { tail -n 20 "$folder/log.one" && exit 1; }
(
    cd "$folder/another place/sources"
    umask 077
    export LC_ALL=C.UTF-8 TZ=Asia/Kathmandu
    scripts/release "$version" "$folder/another place/out"
) >"$folder/log.two" 2>&1 || { tail -n 20 "$folder/log.two" && exit 1; }

# products FOLDER: prints digest and name of each file that a user gets.
products() {
    (cd "$1" && find ./*.* SHA256SUMS build/invar build/invar.build build/*.so build/plugins \
        build/pages build/ledger/alone -type f ! -name written -print0 | sort -z |
        xargs -0 sha256sum)
}
products "$folder/one.out" >"$folder/products.one"
products "$folder/another place/out" >"$folder/products.two"
diff "$folder/products.one" "$folder/products.two" || complain "these differ"
holds test "$(wc -l <"$folder/products.one")" -gt 45
for name in build/invar build/invar-http.so build/ledger/alone/libinvar_ledger.a SHA256SUMS \
    "./invar-$version.tar.gz" "./invar_$version-1_$(dpkg --print-architecture).deb"; do
    holds grep -qF "  $name" "$folder/products.one"
done
(cd "$folder/one.out" && sha256sum --quiet -c SHA256SUMS) || complain "SHA256SUMS is wrong"
holds grep -q "^## $version" "$folder/one.out/NOTES.md"

# Control: packages with another commit time differ.
(cd "$folder/one.out/build" && SOURCE_DATE_EPOCH=1700000000 \
    cpack -D CPACK_OUTPUT_FILE_PREFIX="$folder/later") >"$folder/log" 2>&1
for file in "$folder"/later/*.deb; do
    files_differ "package of another time" "$file" "$folder/one.out/${file##*/}"
done

((failed)) || echo "all as expected: $(wc -l <"$folder/products.one") files are equal"
rm -rf "$folder"/one{,.out} "$folder/another place" "$folder/later"
exit "$failed"
