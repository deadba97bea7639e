#!/usr/bin/env bash
# live.sh INVAR FOLDER - adapters in both directions: peft writes, Invar reads, trains and writes,
# peft reads.
#
# Uses transformers 4, in which experts are modules.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
# shellcheck source=tests/oracle/venv.sh
source "$here/../venv.sh"
invar=$1 folder=$2 bases=$here/../folders/4.57.6 work=$2/peft

venv "$folder" -r "$here/../requirements.txt"
to=$folder/peft-0.21.2
[[ -e $to/done ]] || {
    rm -rf "$to"
    "$python" -m pip install --quiet --no-deps --target "$to" peft==0.21.2 accelerate==1.15.0 \
        psutil==7.2.2 transformers==4.57.6 tokenizers==0.22.2 huggingface-hub==0.36.0 \
        requests==2.32.5 urllib3==2.5.0 certifi==2025.8.3 charset-normalizer==3.4.3
    touch "$to/done"
}
rm -rf "$work"
mkdir -p "$work/made" "$work/trained"
PYTHONPATH=$to "$python" -W ignore "$here/make.py" "$bases" "$work/made"
python3 "$here/compare.py" "$invar" "$bases" "$work/made"
for path in "$work"/made/*.json; do
    name=$(basename "$path" .json)
    field() { python3 -c 'import json, sys
value = json.load(open(sys.argv[1])).get(sys.argv[2], json.loads(sys.argv[3]))
print(",".join(value) if isinstance(value, list) else
      value if isinstance(value, str) else json.dumps(value))' "$path" "$1" "${2:-null}"; }
    "$invar" train "$here/../folders/train.ini" --hf-checkpoint "$bases/$(field base)" --no-report \
        --prompt-data "$here/../folders/train.jsonl" --run "$work/run" --entropy-coef 0.01 \
        --lora-rank "$(field rank)" --lora-alpha "$(field alpha)" \
        --use-rslora "$(field use_rslora false)" --rank-pattern "$(field rank_pattern '""')" \
        --alpha-pattern "$(field alpha_pattern '""')" \
        --target-modules "$(field layers)" --lora-adapter-path "$work/made/$name" \
        --save-hf "$work/trained/$name-{rollout_id}" >"$work/log" 2>&1 ||
        { cat "$work/log" && exit 1; }
    mv "$work/trained/$name-1" "$work/trained/$name"
    rm -rf "$work/run" "$work/trained/$name-0"
done
PYTHONPATH=$to "$python" -W ignore "$here/make.py" --again "$bases" "$work/trained"
python3 "$here/compare.py" "$invar" "$bases" "$work/trained"
for path in "$work"/made/*.json; do
    if cmp -s "$path" "$work/trained/$(basename "$path")"; then
        echo "$path: training changed nothing" >&2
        exit 1
    fi
done
