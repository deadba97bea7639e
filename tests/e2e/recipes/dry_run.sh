#!/usr/bin/env bash
# dry_run.sh INVAR FOLDER - invar train --dry-run reports the identity of a run and writes nothing.
#
# Recipes that train rejects must be rejected here with the same message, before a run folder
# exists.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
invar=$(realpath "$1") folder=$2 recipes=$PWD/recipes
divided=$PWD/tests/e2e/ranks/sharded_model.ini
# shellcheck source=tests/e2e/expect.sh
source "$(dirname "$0")/../expect.sh"
rm -rf "$folder"
mkdir -p "$folder" && cd "$folder" || exit 2
expect_verb=(train)

# identity ARGUMENT ...: prints the identity that a dry run reports.
identity() {
    "$invar" train "$@" --dry-run | sed -n 's/^identity  //p'
}

tiny_recipe 2 >tiny.ini
expect 0 'identity  ' tiny.ini --dry-run
holds [ "$(ls)" = tiny.ini ]
# The golden of a recipe has the same identity.
holds grep -qx "identity $(identity "$recipes/quickstart.ini")" "$recipes/quickstart.golden"
# Free keys do not change the identity, semantic keys do.
own=$(identity tiny.ini)
holds [ ${#own} -eq 32 ]
holds [ "$own" = "$(identity tiny.ini --threads 2 --num-rollout 9)" ]
for flags in '--lr 1e-5' '--task-size 9'; do
    # shellcheck disable=SC2086 # words
    other=$(identity tiny.ini $flags)
    holds [ ${#other} -eq 32 ]
    holds [ "$own" != "$other" ]
done
# The run has the same identity.
expect 0 'chain ' tiny.ini --run made --no-report
holds [ "$own" = "$(column made 'SELECT lower(hex(identity)) FROM run')" ]
expect 0 'nothing is written' tiny.ini --run made --dry-run
# Keys that differ from their defaults come first; the printed keys are a recipe again.
"$invar" train tiny.ini --lr 3e-5 --dry-run >shown
holds [ "$(sed -n '/^\[optimizer\]/{n;p;q}' shown)" = 'lr = 3e-05' ]
sed '/^# all other/,$d' shown >again.ini
again=$(identity again.ini)
holds [ ${#again} -eq 32 ]
holds [ "$again" = "$(identity tiny.ini --lr 3e-5)" ]

# A missing file is reported after the keys.
sed 's/^prompt-data.*/prompt-data = none.jsonl/' tiny.ini >none.ini
expect 129 "needs a tokenizer" none.ini --dry-run
printf '[ckpt]\nref-load = nowhere\n' >>tiny.ini
expect 2 'nowhere' tiny.ini --dry-run
holds [ ! -e runs ]
for option in --json '--until 1' '--fork made' --fresh '--golden x'; do
    # shellcheck disable=SC2086
    expect 129 'with a recipe, its keys and --ranks alone' again.ini --dry-run $option
done

# Without a GPU, the message advises a command that exists.
advice="choose device = cpu, or plan for a GPU of another machine with 'invar plan RECIPE --memory"
CUDA_VISIBLE_DEVICES='' INVAR_MODULES=/nowhere expect 125 "$advice 80GB'" again.ini --device cuda \
    --dry-run

# alike FLAG ...: checks that train and the dry run reject the flags with the same message.
alike() {
    local dry train
    dry=$("$invar" train again.ini --dry-run --run refused "$@" 2>&1 >/dev/null | tail -1)
    train=$("$invar" train again.ini --no-report --run refused "$@" 2>&1 >/dev/null | tail -1)
    holds [ -n "$dry" ]
    holds [ "$dry" = "$train" ]
    holds [ ! -e refused ]
}
expect 0 'chain ' again.ini --no-report --run saved --save-debug-rollout-data 'saved-{rollout_id}'
mkdir -p full-1 && touch full-1/file
alike --load-debug-rollout-data 'saved-{rollout_id}' --rollout-batch-size 4
alike --load-debug-rollout-data 'absent-{rollout_id}'
alike --load-debug-rollout-data 'saved-{rollout_id}' --use-rollout-routing-replay true \
    --model-type qwen3_moe --num-experts 2
alike --save-hf 'full-{rollout_id}'
echo x >file && mkdir -p folder
for place in file file/x /proc/x; do
    alike --save $place
    alike --ledger $place
    alike --tensorboard-dir $place
    alike --debug-dump grad_norm --debug-dump-dir $place
    alike --trace $place/y
    alike --prometheus-file $place/y.prom
    alike --save-hf "$place/{rollout_id}"
    alike --save-debug-rollout-data "$place/{rollout_id}"
    expect 2 "run: $place: cannot be written: " again.ini --run $place --dry-run
    expect 2 "save: $place: cannot be written: " again.ini --save $place --dry-run
    said=$("$invar" plan again.ini --save $place 2>&1)
    holds grep -q "train refuses this on this machine: save: $place: cannot be written" <<<"$said"
    holds grep -q "^verdict: fits; on the disk of $place: unknown" <<<"$said"
done
alike --ledger again.ini
alike --ledger folder
alike --ledger absent/ledger.db
alike --custom-init-path absent.so
alike --custom-init-path 'absent program'
for url in ftp://judge judge http://; do
    alike --rm-type remote_rm --rm-url $url
    alike --use-opd --opd-teacher-url $url
done
alike --rollout-lag 1 --rollout-schedule recorded --debug-determinism point
alike --rollout-lag 1 --rollout-schedule recorded --rollout-record absent
# Errors that only a program, a server or a training step can find are left to the run.
for keys in '--rm-type math_verify' '--rm-type remote_rm --rm-url http://127.0.0.1:9/' \
    '--use-opd --opd-teacher-url http://127.0.0.1:9/v1' '--debug-dump layer.0.foo' \
    '--debug-dump grad.foo'; do
    # shellcheck disable=SC2086
    expect 0 'identity  ' again.ini --dry-run $keys
done
# A folder with a run of other keys is rejected.
expect 2 'saved/ledger.db holds another run: its lr was 3e-05 and is 0.5' again.ini --run saved \
    --lr 0.5 --dry-run

mkdir thesis && touch thesis/chapter
expect 129 'holds "chapter" and no ledger' again.ini --run thesis --dry-run
mkdir mine && touch mine/own.txt && echo mine >mine/report.html
expect 129 'mine/report.html: a file of another kind lies there' again.ini --run mine --dry-run

# Ranks, and models that they divide, have the identity of one rank.
own=$(identity "$divided")
holds [ ${#own} -eq 32 ]
for layout in '--ranks 2' '--ranks 2 --tensor-model-parallel-size 2' \
    '--ranks 4 --tensor-model-parallel-size 2 --pipeline-model-parallel-size 2' \
    '--ranks 2 --rollout-num-gpus 1'; do
    # shellcheck disable=SC2086
    holds [ "$own" = "$(identity "$divided" $layout)" ]
done
expect 0 'memory of the rank that needs most, of 2 that train' "$divided" --ranks 2 \
    --tensor-model-parallel-size 2 --dry-run
expect 129 'start with --ranks 2' "$divided" --tensor-model-parallel-size 2 --dry-run
expect 129 'a multiple of 2' "$divided" --tensor-model-parallel-size 2 --ranks 3 --dry-run
# The advised value is accepted.
expect 129 'set logical-tp = 2 to divide it' "$divided" --tensor-model-parallel-size 2 --ranks 2 \
    --logical-tp 1 --dry-run
expect 0 'identity  ' "$divided" --tensor-model-parallel-size 2 --ranks 2 --logical-tp 2 --dry-run
expect 129 'no logical-tp lets so many ranks divide this model: lower tensor-model-parallel-size' \
    again.ini --tensor-model-parallel-size 2 --ranks 2 --dry-run
holds [ ! -e runs ]

# A name of the Hugging Face hub instead of a folder, for every key that names a model.
for keys in '--hf-checkpoint' '--use-kl-loss --ref-load' '--advantage-estimator ppo --critic-load' \
    '--use-opd --opd-teacher-load' '--lora-rank 2 --lora-adapter-path' \
    '--speculative-algorithm draft --speculative-draft-model-path'; do
    model=$(sed '/^dtype/!{/^\[model\]/,/^\[rollout\]/{/^\[/!d}}' again.ini)
    cp again.ini hub.ini
    [[ $keys != --hf* ]] || echo "$model" >hub.ini
    for verb in train 'train --dry-run' plan; do
        # shellcheck disable=SC2086
        said=$("$invar" ${verb% --*} hub.ini $keys Qwen/Qwen3-0.6B ${verb#"${verb% --*}"} 2>&1)
        checks=$((checks + 1))
        [[ $said == *"'hf download Qwen/Qwen3-0.6B --local-dir models/Qwen3-0.6B'"* ]] ||
            complain "$verb $keys: $said"
    done
done
holds [ ! -e runs ]

echo "$checks checks"
exit $failed
