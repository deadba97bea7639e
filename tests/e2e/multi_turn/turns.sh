#!/usr/bin/env bash
# turns.sh INVAR FOLDER - multi-turn samples with an environment plug-in.
#
# Inserted tokens are in the samples, but not in the loss (checked by inserted.py). Free keys, ranks
# and kills do not change the chain; control: another hint does. Replays start no plug-in. A failing
# plug-in ends the run. With INVAR_TEST_FULL=1 recipes/guess.ini must learn its game with three
# seeds, and there are more layouts, lagged runs and moods.
# SPDX-License-Identifier: Apache-2.0
set -uo pipefail
invar=$(readlink -f "$1") folder=$2 root=$PWD
rm -rf "$folder"
here=$PWD/tests/e2e/multi_turn
mkdir -p "$folder" && cd "$folder" || exit 2
# shellcheck source=tests/e2e/expect.sh
source "$root/tests/e2e/expect.sh"
# shellcheck source=tests/e2e/ranks/launch.sh
source "$root/tests/e2e/ranks/launch.sh"

# ---- three seeds learn the game -----------------------------------------------------------------
if [[ ${INVAR_TEST_FULL:-} = 1 ]]; then
    mean="SELECT avg(value) FROM metrics WHERE name = 'rollout/raw_reward' AND step"
    for seed in 1 2 3; do
        (cd "$root" && "$invar" train recipes/guess.ini --no-report --save none --seed "$seed" \
            --rollout-seed "$seed" --run "$folder/seed-$seed") >out 2>err || complain "$(<err)"
        # The first rollout is sampled with untrained weights.
        read -r first last < <(echo "$(column "seed-$seed" "$mean = 0")" \
            "$(column "seed-$seed" "$mean >= 190")")
        holds python3 -c "assert $first < 0.3 and $last > 0.8, ($first, $last)"
        (cd "$root" && "$invar" replay "$folder/seed-$seed" --from 0 --step 2) >out 2>err ||
            complain "$(<out)" "$(<err)"
    done
fi

# ---- inserted tokens ----------------------------------------------------------------------------
cp "$here/environment.py" environment.py
environment='custom-generate-function-path = python3 environment.py play'
tiny_recipe 4 | sed "s/task:max/task:guess/; s/response-len = 2/response-len = 12/
    s/^rm-type.*/$environment\nrollout-max-turns = 4\nrollout-max-turn-len = 1/" >guess.ini
ends 0 1 guess.ini --run one --record-golden one.golden \
    --save-debug-rollout-data '{rollout_id}.jsonl'
holds grep -q 'largest difference between rollout and training: 0$' out
for step in 0 3; do
    column one "SELECT data FROM reply WHERE step = $step ORDER BY call" >replies
    holds python3 "$here/inserted.py" "$step.jsonl" replies
done
holds [ "$(column one "SELECT count(*) FROM reward_parts WHERE name = 'found'")" = 16 ]
holds [ "$(column one "SELECT max(diff) FROM samples")" = 0.0 ]
turns="SELECT min(value) > 1, max(value) FROM metrics WHERE name IN ('rollout/turns/mean',
    'rollout/turns/max')"
holds [ "$(column one "$turns")" = '1|4.0' ]
expect 0 'ended' ledger query turns --run one
# The ledger has the number of turns of each sample, as the rollout file does.
holds [ "$(column one "SELECT count(*), min(turns) > 0, sum(inserted) > 0 FROM led_samples")" = \
    '16|1|1' ]
holds [ "$(column one "SELECT group_concat(turns, ' ') FROM (SELECT turns FROM led_samples
    WHERE step = 3 ORDER BY idx)")" = "$(sed -n 's/.*"turns":\([0-9]*\)}$/\1/p' 3.jsonl | xargs)" ]

# ---- one chain ----------------------------------------------------------------------------------
# same NAME RANKS FLAG ...: checks that the flags change neither the bits nor the replies.
same() {
    local name=$1 ranks=$2
    shift 2
    ends 0 "$ranks" guess.ini --run "$name" --golden one.golden "$@"
    holds grep -q '^golden    identical, 4 of 4' out
    expect 0 'identical' diff one "$name"
}
same free 1 --threads 3 --micro-batch-size 3 --rollout-concurrency 3 --page-size 3 \
    --chunked-prefill-size 2 --disable-prefix-sharing --recompute-granularity full \
    --log-probs-chunk-size 5 --speculative-algorithm ngram
more same ranks 2
same ranks-3 3 --speculative-algorithm ngram
more same apart 2 --rollout-num-gpus 1
# Ranks that divide the model; its vocabulary has ids without text.
sed "s/task:max/task:guess/; s/response-len = 3/response-len = 12/
    s/^rm-type.*/$environment\nrollout-max-turns = 3\nrollout-max-turn-len = 2/" \
    "$here/../ranks/sharded_model.ini" >sharded_model.ini
sharded=(sharded_model.ini)
# By default the model has a quarter of the parts.
[[ ${INVAR_TEST_FULL:-} ]] || sharded+=(--num-layers 2 --logical-tp 2 --ffn-hidden-size 256
    --num-attention-heads 4 --num-query-groups 2 --vocab-size 520 --num-rollout 1)
ends 0 1 "${sharded[@]}" --run whole --record-golden whole.golden
ends 0 2 "${sharded[@]}" --run tensor --tensor-model-parallel-size 2 --golden whole.golden
more ends 0 2 "${sharded[@]}" --run pipeline --pipeline-model-parallel-size 2 --golden whole.golden
# Control: another hint for one sample.
ends 4 1 guess.ini --run other --golden one.golden \
    --custom-generate-function-path 'python3 environment.py other'

# Experts, whose routing is recorded for all rows; several steps per rollout; evaluations.
moe=(--model-type qwen3_moe --num-experts 3 --moe-router-topk 2 --use-rollout-routing-replay
    --dtype bf16 --eval-prompt-data 'g task:guess' --eval-interval 2
    --dynamic-sampling-filter nonzero_std --over-sampling-batch-size 3)
for ranks in 1 2; do
    ends 0 "$ranks" guess.ini --run "moe-$ranks" "${moe[@]}"
done
equal moe-1 moe-2
differ="SELECT sum(value) FROM metrics WHERE name = 'train/routing_differ'"
holds [ "$(column moe-1 "$differ")" = 0.0 ]
expect 0 'eval/g/reward/found' eval guess.ini --run moe-1 "${moe[@]}"

# Evaluations with a single response per prompt.
expect 129 'nobody judges evaluations' train guess.ini --run x --eval-turns false \
    --eval-prompt-data 'g task:guess'
printf '[led]\npath = task:guess\n[plain]\npath = task:guess\nturns = false\nrm-type = overlap\n' \
    >sets.ini
ends 0 1 guess.ini --run sets --eval-config sets.ini --eval-interval 2
parts="SELECT DISTINCT name FROM evaluation JOIN series USING (series)"
holds [ "$(column sets "$parts WHERE name LIKE '%reward/found'")" = eval/led/reward/found ]
expect 129 'eval-turns' train guess.ini --run x --eval-turns false

# ---- asynchronous rollouts ----------------------------------------------------------------------
late=(--rollout-lag 2 --num-rollout 6 --lr 0.02)
ends 0 1 guess.ini --run late "${late[@]}" --record-golden late.golden --save none
versions="SELECT count(*) FROM samples WHERE weights_first <> max(0, step - 2) OR
    weights_last <> weights_first"
holds [ "$(column late "$versions")" = 0 ]
holds [ "$(column late "SELECT count(*) FROM samples WHERE weights_first < step")" = 20 ]
# compare_async NAME RANKS FLAG ...: compares an asynchronous run with the first one.
compare_async() {
    local name=$1 ranks=$2
    shift 2
    ends 0 "$ranks" guess.ini --run "$name" "${late[@]}" --golden late.golden "$@"
    expect 0 'identical' diff late "$name"
}
more compare_async late-saved 1
more compare_async late-point 1 --debug-determinism point --threads 2 --save none
more compare_async late-ranks 2
compare_async late-apart 2 --rollout-num-gpus 1 --check-logprobs false --save none
pieces=(3)
[[ ! ${INVAR_TEST_FULL:-} ]] || pieces=(2 3)
for rollouts in "${pieces[@]}"; do
    ends 0 "$rollouts" guess.ini --run late-pieces --rollout-lag 2 --lr 0.02 \
        --num-rollout "$rollouts" --save-interval 1
done
compare_async late-pieces 1
mv environment.py away.py
expect 0 identical replay late-pieces --step 4
mv away.py environment.py
ends 0 1 guess.ini --run late-fork --fork late-pieces --fork-step 2 "${late[@]}" --seed 7
sed '/^rollout-max-turn/d; s/^custom-generate.*/rm-type = overlap/' guess.ini >unled.ini
ends 129 1 unled.ini --run unled --fork late-pieces --fork-step 2 "${late[@]}"
holds grep -q 'is led by a plug-in: a fork keeps custom-generate-function-path' err
expect 129 'must be 0 with custom-generate-function-path' train guess.ini --run x \
    --rollout-lag 1 --rollout-segment-tokens 2
expect 129 'all ranks ask it together' train guess.ini --run x --rollout-lag 1 --rollout-overlap

# Surplus groups of a filter.
extra=(--rollout-lag 2 --lr 0.02 --dynamic-sampling-filter nonzero_std
    --over-sampling-batch-size 6 --over-sampling-keep-surplus)
ends 0 1 guess.ini --run extra "${extra[@]}" --num-rollout 6 --record-golden extra.golden \
    --save none
reused="SELECT sum(value) > 0 FROM metrics WHERE name = 'rollout/over_sampling/reused'"
holds [ "$(column extra "$reused")" = 1 ]
ends 0 2 guess.ini --run extra-pieces "${extra[@]}" --num-rollout 4
ends 0 1 guess.ini --run extra-pieces "${extra[@]}" --num-rollout 6 --golden extra.golden
holds grep -q '^golden    identical, 6 of 6' out

# ---- group rewards ------------------------------------------------------------------------------
cp "$here/judge.py" judge.py
half=(--group-rm --custom-rm-path 'python3 judge.py' --custom-generate-function-path
    'python3 environment.py half')
for ranks in 1 2; do
    ends 0 "$ranks" guess.ini --run "half-$ranks" "${half[@]}"
done
equal half-1 half-2
rewards="SELECT group_concat(reward, ' ') FROM (SELECT reward FROM samples WHERE step < 2
    ORDER BY step, idx)"
holds [ "$(column half-1 "$rewards")" = '0.25 0.25 0.25 0.25 0.25 15.0 0.25 17.0' ]
holds [ "$(column half-1 "SELECT count(*) FROM reply WHERE plugin = 'custom-rm-path'")" = 6 ]
expect 0 identical replay half-1 --step 2

# Equal turns in generate, without training.
expect 0 'prompt 7, draw 7: ' generate --run one guess.ini --prompts task:guess
expect 2 'a plug-in led the sample' generate guess.ini --run one \
    --sample "$(column one 'SELECT rng FROM samples LIMIT 1')"

# ---- repeated -----------------------------------------------------------------------------------
mv environment.py away.py
more expect 0 identical replay one --step 3
expect 0 identical replay one --from 0 --step 3 --level full --threads 2
expect 0 identical replay moe-2 --step 1
mv away.py environment.py
# Killed in its third step, and started again without a checkpoint: the replies of two steps are
# recorded.
touch stuck
"$invar" train guess.ini --run killed --no-report --golden one.golden >out 2>err &
victim=$!
for ((i = 0; i < 600; i++)); do
    [ "$(column killed 'SELECT count(*) FROM step' 2>/dev/null)" = 2 ] && break
    sleep 0.1
done
kill -9 "$victim"
wait "$victim" 2>/dev/null
rm -f stuck asked
ends 0 1 guess.ini --run killed --golden one.golden
holds grep -q '^golden    identical, 4 of 4' out
holds [ "$(sort -u asked | tr '\n' ' ')" = '2 3 ' ]
expect 0 'identical' diff one killed

# ---- failing plug-ins ---------------------------------------------------------------------------
# wrong MOOD TEXT FLAG ...: checks that the run ends with exit code 2 and TEXT.
wrong() {
    local mood=$1 text=$2
    shift 2
    expect 2 "plug-in custom-generate-function-path: $text" train guess.ini --run "bad-$mood" \
        --no-report --custom-generate-function-path "python3 environment.py $mood" "$@"
}
wrong mute 'sample 0 ends without a "reward", and nothing else gives one (rm-type = none)'
wrong deaf 'sample 0 continues after its last turn'
more wrong alien 'token 99 for sample 0; the tokenizer has 14'
wrong foreign 'the text for sample 0: '
more wrong short '"turns" has 3 values, expected 4'
more wrong rubbish ''
wrong dies ''
wrong hangs '' --plugin-timeout 1
# Surplus groups keep the replies of the plug-in.
surplus=(--dynamic-sampling-filter nonzero_std --over-sampling-batch-size 8
    --over-sampling-keep-surplus true)
more expect 0 'log-probs largest difference between rollout and training: 0' train guess.ini \
    --run surplus --no-report "${surplus[@]}"
more holds [ "$(more column surplus "SELECT max(value) > 0 FROM metrics
    WHERE name = 'rollout/over_sampling/reused'")" = 1 ]
expect 0 'reward' train guess.ini --run judged --no-report --rm-type overlap \
    --custom-generate-function-path 'python3 environment.py mute'
expect 0 'reward    0.500 at first' train guess.ini --run endless --no-report \
    --rollout-max-turns 99 --custom-generate-function-path 'python3 environment.py endless'
holds [ "$(column endless "SELECT DISTINCT finish FROM samples")" = length ]
holds [ "$(column endless "SELECT max(tokens) <= 13 FROM samples")" = 1 ]

((failed)) || echo "$checks checks"
exit "$failed"
