#!/usr/bin/env bash
# ledger_queries.sh LEDGER_MAKE FOLDER - the plain sqlite3 shell runs every named query on a ledger
# with planted faults, and returns these faults.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
make=$1 folder=$2
ledger=$folder/ledger.db

# Values of the parameters without a default, as SQL.
declare -A values=([run]=1 [a]=1 [b]=2 [metric]="'train/grad_norm'" [limit]=1 [step]=30
    [prompt]=3 [sample]=2 [case]="'tiny'" [experiment]="'lr'")

rm -rf "$folder"
mkdir -p "$folder"
"$make" "$ledger" steps=40 crash=25 resume=15
"$make" "$ledger" add=1 steps=40 name=bad fault=diverges:33:layer.1.mlp.out fault=spike:30
"$make" "$ledger" series=ci steps=2 changes=1

# shell: runs standard input on the ledger, opened read-only.
shell() {
    sqlite3 -readonly -bail -header "$ledger"
}

# settings FILE: prints `.param set` for every parameter that the file's second line names.
settings() {
    local list param name default
    list=$(sed -n '2s/^-- params: //p' "$1")
    [[ $list != none ]] || return 0
    while read -r param; do
        name=${param#:} name=${name%% *}
        default=${param##* = }
        if [[ $param != *" = "* ]]; then
            default=${values[$name]}
        elif [[ $param == *" text = "* ]]; then
            default="'$default'"
        fi
        printf '.param set :%s "%s"\n' "$name" "$default"
    done < <(tr ',' '\n' <<<"$list")
}

# query NAME [DOT-COMMAND ...]: prints the result of the query; the commands come after the
# settings.
query() {
    local file=ledger/queries/$1.sql
    shift
    { settings "$file"; (($# == 0)) || printf '%s\n' "$@"; echo ".read $file"; } | shell
}

count=0
for file in ledger/queries/*.sql; do
    query "$(basename "$file" .sql)" >"$folder/answer" 2>"$folder/errors" || {
        echo "$file: sqlite3 failed: $(<"$folder/errors")" >&2
        exit 1
    }
    [[ ! -s $folder/errors ]] || {
        echo "$file: $(<"$folder/errors")" >&2
        exit 1
    }
    count=$((count + 1))
done
((count >= 25)) || { echo "only $count queries" >&2; exit 1; }

# The results are the planted faults, and a healthy run has none.
same() {
    [[ $1 == "$2" ]] || { printf 'expected:\n%s\ngot:\n%s\n' "$2" "$1" >&2; exit 1; }
}
same "$(query first-divergence | cut -d'|' -f1-3)" \
    $'compared_steps|differing_steps|first_step\n40|7|33'
same "$(query first-divergence '.param set :b 1' | cut -d'|' -f1-3)" \
    $'compared_steps|differing_steps|first_step\n40|0|'
same "$(query metric-jump '.param set :run 2' | cut -d'|' -f1-2)" $'step|value\n30|25.0'
same "$(query metric-jump)" ""

# Controls: a query of an unknown column is an error, and so is a query that writes.
if echo "SELECT nothing FROM timeline;" | shell 2>"$folder/errors" ||
    echo "DELETE FROM event;" | shell 2>"$folder/errors" ||
    ! grep -q readonly "$folder/errors"; then
    echo "sqlite3 accepted what it had to refuse: $(<"$folder/errors")" >&2
    exit 1
fi
echo "$count queries"
