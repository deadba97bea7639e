#!/usr/bin/env bash
# provenance.sh READER FOLDER - the provenance files of a build, from git and CMake to the reader.
#
# A scratch repository with a one-line program is built in every state that sources can have.
# READER, the test program of ledger/provenance.c, prints what it reads from the build's files.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
tree=$PWD reader=$1 folder=$2
# shellcheck source=tests/e2e/expect.sh
source "$(dirname "$0")/../expect.sh"
rm -rf "$folder"
mkdir -p "$folder/home"
export HOME=$folder/home GIT_CONFIG_NOSYSTEM=1
export GIT_AUTHOR_NAME='A "B" C' GIT_AUTHOR_EMAIL=a@example.org GIT_AUTHOR_DATE='1700000000 +0100'
export GIT_COMMITTER_NAME=C GIT_COMMITTER_EMAIL=c@example.org GIT_COMMITTER_DATE='1700000001 +0100'

# has LINE ...: checks that the facts of the last build have these lines.
has() {
    local line facts
    facts=$("$reader" toy.out/toy.build)
    for line in "$@"; do
        grep -qxF -- "$line" <<<"$facts" || complain "no line \"$line\" in:" "$facts"
    done
}

# refuse TEXT: checks that no fact contains TEXT.
refuse() {
    "$reader" toy.out/toy.build >told
    [[ -s told ]] || complain "the build has no facts"
    ! grep -aqF -- "$1" told || complain "there should be no \"$1\""
}

build() {
    cmake --build toy.out >log 2>&1 || { cat log >&2 && exit 1; }
}

cd "$folder"
git init -q toy
mkdir toy/scripts
cp "$tree/scripts/provenance" toy/scripts/
printf 'int main(void)\n{\n    return 0;\n}\n' >toy/toy.c
printf 'one\n' >toy/notes
cat >toy/CMakeLists.txt <<TOY
cmake_minimum_required(VERSION 3.25)
project(toy VERSION 1.2.3 LANGUAGES C)
include($tree/cmake/InvarFlags.cmake)
include($tree/cmake/InvarProvenance.cmake)
add_executable(toy toy.c)
target_link_libraries(toy PRIVATE invar_flags)
invar_provenance(toy)
TOY

# A repository without a commit.
cmake -S toy -B toy.out -G Ninja >log || { cat log >&2 && exit 1; }
build
has 'build dirty unknown' 'build version 1.2.3' 'build type Release'
refuse 'build problem'

# A clean tree; the subject has characters with a meaning for CMake, the shell or the reader.
git -C toy add .
# shellcheck disable=SC2016
subject='say "a; b" [c] = ${d} $<e> `f` \g # h %s é'
git -C toy commit -q -m "$subject"
build
commit=$(git -C toy rev-parse HEAD)
tree_hash=$(git -C toy rev-parse 'HEAD^{tree}')
has 'build dirty clean' "build commit $commit" "build tree $tree_hash" \
    'build commit_time 1700000001' 'build author A "B" C <a@example.org>' \
    "build subject $subject"
"$reader" toy.out/toy.build | grep -qE '^build compiler (GNU|Clang) [0-9]' || complain "compiler?"
"$reader" toy.out/toy.build | grep -qE '^build flags -O3 .*-ffp-contract=off' || complain "flags?"
refuse 'object build diff'
refuse -Wall
refuse "$folder"

# Without changes, nothing is written or linked.
cp toy.out/toy first.program
stat -c %y toy.out/toy toy.out/toy.build toy.out/toy.build.diff >first.times
build
stat -c %y toy.out/toy toy.out/toy.build toy.out/toy.build.diff | diff first.times - ||
    complain "a build without a change wrote its files again"

# The user's settings of git do not change the diff.
cp toy.out/toy.build toy.out/toy.build.diff .
printf 'two\n\n\n\nthree\n' >>toy/notes
build
mv toy.out/toy.build.diff expected.diff
printf '[color]\nui = always\n[diff]\nnoprefix = true\nexternal = false\ncontext = 0\n' \
    >home/.gitconfig
LC_ALL=C.UTF-8 GIT_DIR=/nowhere GIT_EXTERNAL_DIFF=false GIT_PAGER=false build
cmp expected.diff toy.out/toy.build.diff || complain "the user's settings changed the diff"
has 'build dirty modified'
rm home/.gitconfig
git -C toy checkout -q notes

# Untracked files are listed by name, with any characters.
touch toy/new.c "toy/a b;c\"d" $'toy/\xff\ne'
build
has 'build dirty untracked' '# untracked: new.c' '# untracked: "a b;c\"d"' \
    '# untracked: "\377\ne"' 'object build diff text/x-diff'

# A modified tree: the diff brings the commit to the state that was built, binary files included.
printf 'two' >>toy/notes
printf '\0\1\2\3' >toy/blob
git -C toy add blob
chmod +x toy/toy.c
build
has 'build dirty modified' '# untracked: new.c' '+two'
git clone -q toy copy
git -C copy apply "$folder/toy.out/toy.build.diff" || complain "the diff does not apply"
for file in notes blob toy.c; do
    cmp "toy/$file" "copy/$file" || complain "$file: not brought back by the diff"
done
[[ -x copy/toy.c ]] || complain "toy.c: mode not brought back by the diff"

# The program is the same in all these states.
cmp first.program toy.out/toy || complain "the program depends on its provenance"

# A failed build: the files describe the program that still exists.
cp toy.out/toy.build toy.out/toy.build.diff .
echo 'broken' >>toy/toy.c
! cmake --build toy.out >log 2>&1 || complain "the broken program was built"
cmp toy.build toy.out/toy.build || complain "a failed build changed what is said of the old one"
cmp toy.build.diff toy.out/toy.build.diff || complain "a failed build changed the old diff"

# A commit makes the tree clean again, also if only the program is built.
git -C toy checkout -q toy.c
git -C toy add .
git -C toy commit -q -m $'caf\xc3\xa9 \x1b[31mred\x1b[0m \xc2\x9b31m'
touch toy/toy.c
cmake --build toy.out --target toy >log
has 'build dirty clean' "build commit $(git -C toy rev-parse HEAD)" \
    $'build subject caf\xc3\xa9 ?[31mred?[0m ?31m'

# A commit that git itself would not make: invalid UTF-8 and an endless subject.
{
    printf 'tree %s\n' "$(git -C toy rev-parse 'HEAD^{tree}')"
    printf 'author \xff <x> 1 +0000\ncommitter C <c> 1 +0000\n\n\xe9\xc3 é '
    head -c 200000 /dev/zero | tr '\0' x
} >raw
git -C toy reset -q --soft "$(git -C toy hash-object -t commit -w --stdin <raw)"
build
has 'build dirty clean' 'build author ? <x>'
length=$("$reader" toy.out/toy.build | sed -n 's/^build subject ?? ?? \(x*\)$/\1/p' | wc -c)
((length > 50000 && length < 60000)) || complain "the subject has $length bytes"

# The program finds its own files; without them its provenance is unknown.
cp "$reader" program
cp toy.out/toy.build program.build
./program own | grep -qx 'build dirty clean' || complain "program.build was not found"
rm program.build
./program own | grep -qx 'build dirty unknown' || complain "a program without files knows them"

# No git, no repository, and a folder inside of another repository.
printf 'flags = -O9\n' >facts
mkdir tools
for tool in sh env cat cmp cut iconv mkdir mktemp mv rm sed tr; do
    ln -s "$(command -v "$tool")" tools/
done
PATH=$folder/tools toy/scripts/provenance toy.out/toy.build "$folder/toy" facts
has 'build dirty unknown' 'build commit ' 'build flags -O9'
mkdir toy/inner bare
for place in "$folder/toy/inner" "$folder/bare" "$folder/nowhere"; do
    toy/scripts/provenance toy.out/toy.build "$place" facts
    has 'build dirty unknown' 'build commit '
done
toy/scripts/provenance toy.out/toy.build "$folder/toy" facts
has 'build dirty clean'

# The file cannot be written: the build does not fail, and no file of an earlier build stays.
toy/scripts/provenance /proc/none.build "$folder/toy" facts 2>log ||
    complain "provenance failed the build"
grep -q 'cannot be written' log || complain "provenance did not say that it could not write"

((failed)) || echo "all as expected"
exit "$failed"
