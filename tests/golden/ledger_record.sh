#!/usr/bin/env bash
# ledger_record.sh BUILD - records a golden ledger: tests/golden/ledger-VERSION.db and .txt.
#
# Run it once for each version of the schema, when the schema is final. The ledger has rows in every
# table: a run that crashed and was resumed, with more points than usual, NaN, -0, a modified tree
# and a seal; and an imported run, a fork without its old detail. The text is computed by the second
# implementation of the hashes and the plain sqlite3 shell, so nothing in it comes from Invar's
# code.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
build=$(realpath "$1")
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
queries=(resume-overlap restore-points dirty-runs)

"$build/tests/ledger_make" "$work/whole.db" name=whole steps=10 crash=3 resume=2 finer=1 \
    fault=dirty:0 fault=nan:8:layer.1.mlp.out fault=logp_mismatch:1:2:-0.0
"$build/invar" ledger seal "$work/whole.db" --store 2>"$work/hints"
"$build/tests/ledger_make" "$work/fork.db" name=short steps=2 seed=7 fork=4 \
    parent=00112233445566778899aabbccddeeff
"$build/invar" ledger backup "$work/fork.db" --out "$work/short.db" --keep-last 1
"$build/invar" ledger import "$work/short.db" --into "$work/whole.db"
[[ ! -e $work/whole.db-wal ]]

golden=tests/golden/ledger-$(sqlite3 "file:$work/whole.db?immutable=1" 'PRAGMA user_version')
[[ ! -e $golden.db ]] || { echo "$golden.db is there, and stays as it is" >&2; exit 1; }
cp "$work/whole.db" "$golden.db"
{
    tests/oracle/ledger_hashes.py "$work/whole.db"
    for query in "${queries[@]}"; do
        echo "query $query"
        printf '%s\n' '.param set :run 1' ".read ledger/queries/$query.sql" |
            sqlite3 -readonly "$work/whole.db"
    done
} >"$golden.txt"
cat "$golden.txt"
