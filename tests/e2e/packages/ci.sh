#!/usr/bin/env bash
# ci.sh WHAT CACHE FOLDER - runs the commands of our CI files or Dockerfile in a minimal Debian.
#
# WHAT is github, gitlab or docker. HEAD is cloned into a Debian 12 (chroot.sh), where each `run:`
# of docs/ci/github-actions.yml, each `script:` of docs/ci/gitlab-ci.yml, or each RUN of
# packaging/Dockerfile, stage by stage, is executed as written. For github, the root has git and
# sudo, as on GitHub. Exit code 77 if this is impossible here.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
tree=$PWD what=$1 cache=$2 folder=$3
# shellcheck source=tests/e2e/expect.sh
source "$(dirname "$0")/../expect.sh"
# shellcheck source=tests/e2e/packages/chroot.sh
source "$(dirname "$0")/chroot.sh"
commands=$tree/tests/e2e/packages/commands.py
mkdir -p "$folder"

# Control: commands.py finds the commands of small files, and rejects a file without commands.
cat >"$folder/a.yml" <<'YAML'
jobs:
  a:
    steps:
      - name: b
        run: |
          one
          two
      - run: three
YAML
printf 'bits:\n  script:\n    - one two\n    # no\n    - three\n  artifacts:\n' >"$folder/b.yml"
for file in a b; do
    holds test "$("$commands" "$folder/$file.yml" | tail -n +2 | xargs)" = 'one two three'
done
echo 'bits:' >"$folder/c.yml"
! "$commands" "$folder/c.yml" 2>/dev/null || complain "the control: no command is fine, too"

# execute ROOT FOLDER FILE [STAGE]: runs the commands of the file in the root.
execute() {
    local root=$1 place=$2
    shift 2
    {
        echo "cd $place"
        [[ $what == docker ]] || echo 'export CI=true'
        "$commands" "$@"
    } >"$root/tmp/commands"
    checks=$((checks + $(grep -c . "$root/tmp/commands")))
    inside "$root" bash /tmp/commands >"$folder/log" 2>&1 ||
        { complain "$*:" "$(tail -n 30 "$folder/log")" && return 1; }
}

# fresh ROOT PACKAGE ...: makes a minimal root with these packages, and with HEAD in /source.
fresh() {
    local root=$1
    shift
    bare_root "$cache" "$root"
    (($# == 0)) || inside "$root" apt-get install -qqy --no-install-recommends "$@" >/dev/null
    git clone -q "$tree" "$root/source"
}

case $what in
github | gitlab)
    if [[ $what == github ]]; then
        fresh "$folder/root" git sudo
        execute "$folder/root" /source docs/ci/github-actions.yml || exit 1
    else
        fresh "$folder/root"
        execute "$folder/root" /source docs/ci/gitlab-ci.yml || exit 1
    fi
    holds grep -q '<testsuite.* failures="0"' "$folder/root/source/bits.xml"
    grep -E '^[a-z0-9-]+: ' "$folder/log" || true
    ;;
docker)
    fresh "$folder/root"
    execute "$folder/root" /source packaging/Dockerfile 0 || exit 1
    bare_root "$cache" "$folder/image"
    mv "$folder/root/source/build/packages" "$folder/image/packages"
    execute "$folder/image" / packaging/Dockerfile 1 || exit 1
    holds grep -q ' identical, 0 different, 0 not recorded' "$folder/log"
    ;;
*) complain "github, gitlab or docker, not $what" && exit 2 ;;
esac
((failed)) || echo "all as expected: $checks checks and lines"
rm -rf "$folder/root" "$folder/image"
exit "$failed"
