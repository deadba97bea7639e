#!/usr/bin/env bash
# install.sh BUILD FOLDER - the files of `cmake --install` are complete and work.
#
# Installs BUILD below FOLDER, as packages do (DESTDIR), and moves it. Checks recipes, documents, a
# manual page for every command with every option of its help, completions in bash and zsh, modules,
# a plug-in that pkg-config compiles, and recipes that train to their goldens. Controls: a page with
# an error, a program without its modules.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
tree=$PWD build=$1 folder=$2
# shellcheck source=tests/e2e/expect.sh
source "$(dirname "$0")/../expect.sh"
rm -rf "$folder"
mkdir -p "$folder/work"
DESTDIR=$folder/staged cmake --install "$build" --prefix /usr >"$folder/log"
mv "$folder/staged/usr" "$folder/prefix"
prefix=$folder/prefix invar=$folder/prefix/bin/invar pages=0
rmdir "$folder/staged" || complain "something was installed outside of the prefix"

# ---- files ---------------------------------------------------------------------------------------

for file in $(scripts/sources 'recipes/*.ini' 'recipes/*.golden' 'recipes/*.points' \
    'engine/ext/example/*' 'ledger/example/*'); do
    holds cmp "$file" "$prefix/share/invar/$file"
done
for file in README.md $(scripts/sources 'docs/*.md' 'docs/adr/*.md' 'docs/ci/*' 'docs/*.png'); do
    holds cmp "$file" "$prefix/share/doc/invar/$file"
done
((checks > 60)) || complain "only $checks recipes, documents and examples were compared"
for module in "$build"/invar-*.so; do
    readelf -sW --dyn-syms "$module" >"$folder/symbols"
    holds cmp "$folder/symbols" <(readelf -sW --dyn-syms "$prefix/lib/invar/${module##*/}")
done
! grep -rlF -e "$tree" -e "$build" "$prefix" --include='*.pc' --include='*.h' --include='*.[15]' ||
    complain "the files above name the folder they were built in"
# The installed program has the provenance of the build.
holds diff <("$build/invar" version) <("$invar" version)

# ---- manual pages --------------------------------------------------------------------------------

# verbs WORD ...: prints the commands that `invar help WORD ...` lists.
verbs() {
    "$invar" help "$@" | sed -n '/^usage:/,$p' | sed -n '3,$p' | sed -n '/^$/q
        s/^  \([a-z][a-z-]*\)  .*/\1/p'
}

# render PAGE ...: formats manual pages as text, as man does; fails if groff warns.
render() {
    LC_ALL=C.UTF-8 groff -k -t -mandoc -Tutf8 -ww -rLL=100n -rLT=100n "$@" >"$folder/page" \
        2>"$folder/warnings" && [[ -s $folder/page && ! -s $folder/warnings ]]
}

# page WORD ...: checks that the page of a command has exactly the options of its help.
page() {
    local words="invar $*" file
    file=$prefix/share/man/man1/${words// /-}.1
    "$invar" help "$@" | sed '/^Every recipe key/,$d' | sed -n 's/^  --\([a-z0-9-]*\).*/\1/p' \
        >"$folder/options"
    sed 's/\\-/-/g' "$file" | sed -n 's/^\\fB--\([a-z0-9-]*\)\\fR.*/\1/p' |
        diff "$folder/options" - || complain "$file has other options than invar help $*"
    pages=$((pages + 1))
}

if command -v groff >/dev/null; then
    for verb in $(verbs); do
        page "$verb"
        for sub in $(verbs "$verb"); do
            page "$verb" "$sub"
        done
    done
    ((pages > 35)) || complain "only $pages pages of verbs were found"
    holds test "$(find "$prefix/share/man/man1" -type f | wc -l)" -eq "$((pages + 1))"
    render "$prefix"/share/man/man[15]/* || complain "manual pages:" "$(cat "$folder/warnings")"
    # bold letters are escape sequences or, in Debian, printed twice
    headings=$(sed 's/.\x08//g; s/\x1b\[[0-9;]*m//g' "$folder/page" | grep -c '^NAME')
    holds test "$headings" -eq "$((pages + 2))"
    keys=$("$invar" help train | sed '1,/^Every recipe key/d' | grep -c '^  --')
    holds test "$(grep -c '^\.B ' "$prefix/share/man/man5/invar-recipe.5")" -eq "$keys"
    sed 's/^\.SH OPTIONS/.NONE OPTIONS/' "$prefix/share/man/man1/invar-bench.1" >"$folder/bad.1"
    ! render "$folder/bad.1" || complain "the control: a page with a wrong macro is accepted"
else
    echo "no groff here: pages are not rendered"
fi

# ---- completions ---------------------------------------------------------------------------------

# Prints the completions of bash, loaded by bash-completion if that is installed.
cat >"$folder/complete.bash" <<'BASH'
loader=/usr/share/bash-completion/bash_completion file=$1/share/bash-completion/completions/invar
export BASH_COMPLETION_USER_DIR=$1/share/bash-completion
shift
if [[ -e $loader ]]; then
    source "$loader"
    _completion_loader invar
else
    source "$file"
fi
complete -p invar >&2
COMP_WORDS=(invar "$@") COMP_CWORD=$#
compopt() { :; } # compopt works only in an interactive command line
_invar
printf '%s\n' "${COMPREPLY[@]}"
BASH

# completes EXPECTED WORD ...: checks the completions, joined by blanks.
completes() {
    local wanted=$1 answer
    shift
    checks=$((checks + 1))
    answer=$(bash --norc --noprofile "$folder/complete.bash" "$prefix" "$@" 2>"$folder/log" |
        tr '\n' ' ')
    [[ $answer == "$wanted " ]] || complain "bash: invar $*: $answer, expected $wanted" \
        "$(cat "$folder/log")"
    grep -q -- '-F _invar invar$' "$folder/log" || complain "bash: no completion is registered"
}
completes train tra
completes 'show sql seal' ledger s
completes 'cpu cuda' bench --device ''
completes cuda bench --device = cu
completes 'fp32 bf16 fp8 mxfp8 int4' train recipes/moe.ini --dtype ''
completes 'true false' train --check-logprobs ''
completes --record-golden train --no-report --record
completes --rollout-batch-size train --rollout-batch
completes '' version --rollout-batch
completes staleness ledger query stal
completes 'show sql seal' help ledger s
completes dtype help dty
completes '' train --seed ''

if command -v zsh >/dev/null; then
    # An interactive command line: TAB completes each line, ^X prints it.
    cat >"$folder/complete.zsh" <<'ZSH'
zmodload zsh/zpty
zpty z TERM=dumb zsh -f -i
zpty -w z "source $2 $1"
for line in "${@:3}"; do
    zpty -n -w z "$line"$'\t\x18'
    zpty -r -m z answer "*<*>*"
    print -r -- "${${answer##*<}%%>*}"
    zpty -n -w z $'\x15' # ^U deletes the line
done
ZSH
    cat >"$folder/typed.zsh" <<'ZSH'
fpath=($1/share/zsh/site-functions $fpath) PS1=
autoload -U compinit
compinit -u -D
show() { print -r -- "<$BUFFER>" }
zle -N show
bindkey '^X' show
ZSH
    lines=('invar tra:invar train ' 'invar ledger verif:invar ledger verify '
        'invar train --dtype mxf:invar train --dtype mxfp8 '
        'invar bench --dev:invar bench --device=' 'invar help sel:invar help selfcheck '
        'invar ledger query stal:invar ledger query staleness ')
    timeout 120 zsh -f "$folder/complete.zsh" "$prefix" "$folder/typed.zsh" "${lines[@]%%:*}" |
        tr -d '\r' >"$folder/answers" || complain "zsh failed"
    holds diff <(printf '%s\n' "${lines[@]#*:}") "$folder/answers"
else
    echo "no zsh here: its completion is not tried"
fi

# ---- the program ---------------------------------------------------------------------------------

cd "$folder/work"
ln -s "$prefix/share/invar/"{recipes,engine} .
for recipe in quickstart guess; do
    env -i PATH="$PATH" "$invar" train recipes/$recipe.ini --num-rollout 1 --no-report \
        --golden recipes/$recipe.golden >log 2>&1 || complain "$recipe:" "$(cat log)"
    holds grep -q '^golden *identical, 1 of ' log
done

# A plug-in that is compiled with the installed headers has the bits of the build's own.
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
read -ra cflags <<<"$(pkg-config --cflags invar-plugin)"
cc -std=c11 -Wall -Wextra -Werror -shared -fPIC "${cflags[@]}" engine/ext/example/reward.c \
    -o reward.so
for plugin in "$PWD/reward.so" "$build/plugins/reward.so"; do
    "$invar" train recipes/quickstart.ini --fresh --num-rollout 1 --no-report \
        --rm-type none --custom-rm-path "$plugin" --json 2>log || complain "$plugin:" "$(cat log)"
done >results
[[ $(sed -n 's/^ *"content": "\([0-9a-f]*\)".*/\1/p' results | uniq -c | xargs) == '2 '* ]] ||
    complain "two builds of one plug-in gave other bits:" "$(cat results)"

# Modules are found next to the program, wherever it is; a missing module is reported.
export INVAR_API_KEY=0123456789abcdef0123456789abcdef
serve=(serve recipes/quickstart.ini --load= --host 300.0.0.1)
expect 2 'cannot listen at host 300.0.0.1' "${serve[@]}"
mv "$prefix/lib/invar" "$prefix/lib/elsewhere"
expect 2 'the module invar-serve.so is not beside the program' "${serve[@]}"
INVAR_MODULES=$prefix/lib/elsewhere expect 2 'cannot listen at host 300.0.0.1' "${serve[@]}"

((failed)) || echo "all as expected: $checks checks, $pages pages"
exit "$failed"
