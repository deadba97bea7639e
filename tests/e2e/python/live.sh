#!/usr/bin/env bash
# live.sh INVAR VENVS FOLDER - the installed Python package, with real torch and other libraries.
#
# Builds the wheel, installs it into a fresh environment and uses it there; then into the oracles'
# environment in VENVS (some GB): mypy checks it, operators are compared with PyTorch's, models are
# swept over batches, and the examples run with PyTorch, transformers and pandas. Equal runs must be
# identical. Control: for a planted change, the diff names the step and the tensor.
# SPDX-License-Identifier: Apache-2.0
set -euo pipefail
invar=$1 venvs=$2 folder=$3 here=$PWD/tests/e2e/python tree=$PWD
# shellcheck source=tests/e2e/expect.sh
source "$here/../expect.sh"
# shellcheck source=tests/oracle/venv.sh
source "$tree/tests/oracle/venv.sh"
rm -rf "$folder"
mkdir -p "$folder"
unset INVAR_LIBRARY PYTHONPATH

# The wheel works in an environment that has nothing else.
venv "$folder" pip
"$python" -m pip wheel --quiet --no-deps --wheel-dir "$folder/wheels" "$tree/python"
wheel=("$folder"/wheels/invar-*-py3-none-linux_*.whl)
holds test -f "${wheel[0]}"
"$python" -m pip install --quiet "${wheel[0]}"
(cd "$folder" && "$python" - <<'PYTHON') || complain "the wheel does not work alone"
import array, invar
with invar.Ledger("fresh") as ledger:
    ledger.step(loss=1, digests=invar.hash_tensors({"w": array.array("f", [1, 2])}))
assert invar.verify("fresh") and invar.read("fresh").steps()[0]["train/loss"] == 1
PYTHON

# The wheel in the environment with the other libraries.
venv "$venvs" -r "$tree/tests/oracle/requirements.txt" -r "$here/requirements.txt"
"$python" -m pip install --quiet --force-reinstall --no-deps "${wheel[0]}"
(cd "$tree/python" && "$python" -m mypy --cache-dir "$folder/mypy") || complain "mypy objects"
cd "$folder"
"$python" "$here/libraries.py" "$folder/libraries" || complain "libraries.py failed"
"$python" -W ignore "$here/trainer.py" "$folder/trainer" >"$folder/log" 2>&1 ||
    complain "$(cat "$folder/log")"
"$python" -W ignore "$here/invariant.py" || complain "invariant.py failed"
"$python" -W ignore "$here/formats.py" || complain "formats.py failed"
"$python" -W ignore "$here/models.py" || complain "models.py failed"

# A plain loop and a Trainer: two equal runs, and one with a change.
for run in a b 'c --change 7'; do
    read -ra words <<<"$run"
    "$python" "$tree/python/examples/plain_torch.py" "plain/${words[0]}" "${words[@]:1}" >/dev/null
    "$python" -W ignore "$tree/python/examples/hf_trainer.py" "hf/${words[0]}" \
        "${words[@]:1}" --steps 10 >/dev/null 2>"$folder/log" || complain "$(cat "$folder/log")"
done
for kind in plain hf; do
    expect 0 "identical: " diff $kind/a $kind/b
    expect 0 "clean" ledger verify $kind/a
    expect 0 "report" ledger report $kind/a --out $kind/report.html
    holds test -s $kind/report.html
done
expect 3 "first at step 7, point 2.weight.grad (backward" diff plain/a plain/c
expect 3 "first at step 7, point model.layers.1.mlp.up_proj.weight (optimizer" diff hf/a hf/c
# An edited script explains the difference, so the verdict is "different".
sed 's/lr=1e-3/lr=2e-3/; s/learning_rate=1e-3/learning_rate=1.001e-3/' \
    "$tree/python/examples/hf_trainer.py" >edited.py
"$python" -W ignore edited.py hf/d --steps 4 >/dev/null 2>&1
expect 1 "arguments.learning_rate" diff hf/a hf/d

((failed)) || echo "all as expected, $checks checks"
exit "$failed"
