#!/usr/bin/env bash
# live.sh INVAR FOLDER - Hugging Face folders of five versions of transformers, in both directions.
#
# Installs each version beside the virtual environment in FOLDER that the other oracles use, too,
# lets it save models of every family that it has (make.py), and compares Invar's tokens and
# log-probabilities (compare.py). Then Invar exports: every folder converted, and a run with save-hf
# that starts from it. The version that wrote the folder loads both. After a conversion tokens and
# log-probabilities must be unchanged; after a run they must be Invar's. Control: training must have
# changed them.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/oracle/venv.sh
source "$here/../venv.sh"
invar=$1 folder=$2

venv "$folder" -r "$here/../requirements.txt"
newest=$(sed -n 's/^transformers==//p' "$here/../requirements.txt")

# with VERSION ARGUMENT ...: runs Python with this version of transformers.
with() {
    local version=$1
    shift
    PYTHONPATH=$folder/transformers-$version "$python" -W ignore "$@"
}

# install VERSION TOKENIZERS: installs transformers and the packages that need other versions; the
# others are shared.
install() {
    local to=$folder/transformers-$1
    [[ -e $to/done ]] || {
        rm -rf "$to"
        "$python" -m pip install --quiet --no-deps --target "$to" "transformers==$1" \
            "tokenizers==$2" huggingface-hub==0.36.0 requests==2.32.5 urllib3==2.5.0 \
            certifi==2025.8.3 charset-normalizer==3.4.3
        touch "$to/done"
    }
}
install 4.40.2 0.19.1
install 4.46.3 0.20.3
install 4.51.3 0.21.4
install 4.57.6 0.22.2

work=$folder/folders
rm -rf "$work"
for version in 4.40.2 4.46.3 4.51.3 4.57.6 "$newest"; do
    made=$work/$version
    mkdir -p "$made" "$made.converted" "$made.trained"
    with "$version" "$here/make.py" "$made"
    python3 "$here/compare.py" "$invar" "$made"
    for path in "$made"/*/; do
        name=$(basename "$path")
        "$invar" convert "$path" "$made.converted/$name" >"$work/log"
        "$invar" train "$here/train.ini" --hf-checkpoint "$path" --no-report --run "$work/run" \
            --prompt-data "$here/train.jsonl" --save-hf "$made.trained/$name-{rollout_id}" \
            >"$work/log" 2>&1 || { cat "$work/log" && exit 1; }
        mv "$made.trained/$name-1" "$made.trained/$name"
        rm -rf "$work/run" "$made.trained/$name-0"
    done
    with "$version" "$here/make.py" --again "$made.converted"
    with "$version" "$here/make.py" --again "$made.trained"
    for path in "$made"/*.json; do
        cmp "$path" "$made.converted/$(basename "$path")"
        if cmp -s "$path" "$made.trained/$(basename "$path")"; then
            echo "$path: training changed nothing" >&2
            exit 1
        fi
    done
    python3 "$here/compare.py" "$invar" "$made.trained"
done
