/*
 * config.c - tests of the recipe keys: schema, accepted and rejected settings, derived values.
 *
 * Each case is the valid recipe of valid_recipe.h with some settings added. A rejected case names
 * the expected message. Control: the valid recipe itself and recipes with similar settings pass.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/config/config.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/model/model.h"
#include "engine/rl/loss.h"
#include "engine/train/lr_schedule.h"
#include "tests/support.h"
#include "tests/unit/engine/config/config_of.h"
#include "tests/unit/engine/config/valid_recipe.h"

static const char valid_recipe[] = INVAR_TEST_GOOD_RECIPE;

/* Settings that make the valid recipe read the model and the prompts from files. */
#define FROM_FILE                                                                                  \
    "hf-checkpoint=/m num-layers=0 hidden-size=0 ffn-hidden-size=0 num-attention-heads=0 "         \
    "prompt-data=a.jsonl "

/*
 * Returns the valid recipe with settings added: "key=value key=value"; '~' stands for a space in a
 * value. The caller frees it.
 */
static invar_recipe *recipe_with(const char *flags)
{
    char text[2048], *word, *rest = NULL;
    invar_recipe *recipe;

    assert_ok(invar_recipe_new(&recipe, invar_config_schema()));
    assert_ok(invar_recipe_parse(recipe, "good.ini", valid_recipe, sizeof valid_recipe - 1));
    snprintf(text, sizeof text, "%s", flags);
    for (word = strtok_r(text, " ", &rest); word; word = strtok_r(NULL, " ", &rest)) {
        char *equals = strchr(word, '='), origin[64];

        assert_non_null(equals);
        *equals = '\0';
        for (char *c = equals + 1; *c; c++)
            *c = *c == '~' ? ' ' : *c;
        snprintf(origin, sizeof origin, "--%s", word);
        assert_ok(invar_recipe_set(recipe, word, equals + 1, origin));
    }
    return recipe;
}

static void assert_accepted(const char *flags)
{
    invar_recipe *recipe = recipe_with(flags);

    assert_ok(invar_config_check(config_of(recipe)));
    invar_recipe_free(recipe);
}

static void assert_rejected(const char *flags, const char *message)
{
    invar_recipe *recipe = recipe_with(flags);
    invar_status status = invar_config_check(config_of(recipe));

    if (status != INVAR_E_INVALID)
        print_error("not refused: %s\n", flags);
    assert_fails(status, INVAR_E_INVALID, message);
    invar_recipe_free(recipe);
}

/* ---- schema ---------------------------------------------------------------------------------- */

static void test_config__ids_are_names(void **state)
{
    static const char *const ids[] = {
#define INVAR_KEY(ID, ...) #ID,
#include "engine/config/keys.def"
#undef INVAR_KEY
    };
    const invar_recipe_schema *schema = invar_config_schema();
    (void)state;

    assert_int_equal(schema->count, INVAR_KEY_COUNT);
    for (int i = 0; i < schema->count; i++) {
        char id[INVAR_RECIPE_MAX_NAME + 1] = "";
        for (size_t j = 0; schema->keys[i].name[j]; j++) {
            char c = schema->keys[i].name[j];
            id[j] = c == '-' ? '_' : (char)toupper((unsigned char)c);
        }
        assert_string_equal(ids[i], id);
    }
}

/* A recipe reports a key as set if its text differs from the text of its default. */
static void test_config__defaults_are_canonical(void **state)
{
    invar_recipe *recipe;
    (void)state;

    assert_ok(invar_recipe_new(&recipe, invar_config_schema()));
    for (int i = 0; i < INVAR_KEY_COUNT; i++) {
        invar_recipe_entry entry;
        invar_recipe_entry_get(&entry, recipe, i);
        if (entry.key->default_text)
            assert_string_equal(entry.text, entry.key->default_text);
        else
            assert_null(entry.text);
    }
    invar_recipe_free(recipe);
}

static void test_config__eight_groups(void **state)
{
    static const char *const groups[] = {"model", "ckpt", "rollout",   "eval",
                                         "perf",  "grpo", "optimizer", "engine"};
    const invar_recipe_schema *schema = invar_config_schema();
    size_t group = 0;
    (void)state;

    for (int i = 0; i < schema->count; i++) {
        if (strcmp(schema->keys[i].section, groups[group]) != 0)
            group++;
        assert_true(group < 8);
        assert_string_equal(schema->keys[i].section, groups[group]);
        if (group == 4)
            assert_int_equal(schema->keys[i].effect, INVAR_RECIPE_EFFECT_FREE);
    }
    assert_int_equal(group, 7);
}

/* Every choice of each of the 20 enum keys parses to its own value. */
static void test_config__words(void **state)
{
    const invar_recipe_schema *schema = invar_config_schema();
    int n_enum_keys = 0;
    (void)state;

    for (int i = 0; i < schema->count; i++) {
        const invar_recipe_key *key = &schema->keys[i];
        if (key->type != INVAR_RECIPE_TYPE_ENUM)
            continue;
        n_enum_keys++;
        for (int value = 0; value < key->choices->count; value++) {
            const char *word = key->choices->words[value];
            invar_recipe *recipe;
            if (!word) // a value that no recipe can select: the loss of the critic
                continue;
            assert_ok(invar_recipe_new(&recipe, schema));
            assert_ok(invar_recipe_set(recipe, key->name, word, "--flag"));
            assert_int_equal(invar_recipe_enum(recipe, i, key->choices), value);
            invar_recipe_free(recipe);
        }
    }
    assert_int_equal(n_enum_keys, 20);
    assert_null(invar_loss_type_choices.words[INVAR_LOSS_VALUE]);
}

/* ---- accepted and rejected settings ---------------------------------------------------------- */

static void test_config__accepts(void **state)
{
    static const char *const cases[] = {
        "",
        // Miles' reproducibility recipe
        "hf-checkpoint=/m num-layers=0 hidden-size=0 ffn-hidden-size=0 num-attention-heads=0 "
        "prompt-data=gsm8k.jsonl input-key=messages label-key=label apply-chat-template=true "
        "rollout-shuffle=true rm-type=math rollout-batch-size=32 rollout-max-response-len=1024 "
        "global-batch-size=256 eval-interval=20 eval-prompt-data=gsm8k~test.jsonl eval-top-k=1 "
        "n-samples-per-eval-prompt=1 eval-max-response-len=1024 use-kl-loss=true kl-loss-coef=0.00 "
        "kl-loss-type=low_var_kl kl-coef=0.00 entropy-coef=0.00 eps-clip=0.2 eps-clip-high=0.28 "
        "lr=1e-6 lr-decay-style=constant weight-decay=0.1 adam-beta1=0.9 adam-beta2=0.98 "
        "calculate-per-token-loss=true use-dynamic-batch-size=true max-tokens-per-gpu=9216",
        // a key with the value of its default does not count as set
        "kl-coef=0 critic-lr=0.0 tis-clip=2.0 eval-interval=0 lr-decay-iters=0",
        "advantage-estimator=reinforce_plus_plus normalize-advantages=true kl-coef=0.1 gamma=0.9",
        "advantage-estimator=reinforce_plus_plus normalize-advantages=true n-samples-per-prompt=1",
        "advantage-estimator=ppo critic-lr=1e-5 critic-load=/c lambd=0.95 num-critic-only-steps=2",
        "advantage-estimator=on_policy_distillation opd-teacher-load=/t rm-type=none",
        "use-opd=true opd-teacher-load=/t opd-kl-coef=0.5",
        "use-opd=true opd-teacher-url=http://a/v1 opd-teacher-name=b plugin-timeout=9",
        "n-samples-per-prompt=1 disable-rewards-normalization=true",
        "loss-type=sft_loss n-samples-per-prompt=1 rm-type=none rollout-max-response-len=0",
        "loss-type=sft_loss n-samples-per-prompt=1 eval-prompt-data=a~task:max",
        "loss-type=custom_loss custom-loss-function-path=./loss.so plugin-timeout=5",
        ("loss-type=custom_loss custom-loss-function-path=./l entropy-coef=0.1 use-kl-loss=true "
         "kl-loss-coef=0.1 calculate-per-token-loss=true"),
        "loss-type=custom_loss custom-loss-function-path=./l loss-divisor=1000",
        "custom-rm-path=./rm.py rm-type=none group-rm=true",
        "custom-rm-path=./rm.py rm-type=none reward-key=right max-restarts=2",
        "custom-agent-path=./a custom-rm-path=./rm.py rm-type=none max-restarts=2",
        "custom-generate-function-path=./t rm-type=none rollout-max-turns=3 reward-key=right",
        "custom-generate-function-path=./t rollout-max-turn-len=8 plugin-timeout=5",
        "custom-generate-function-path=./t rm-type=none custom-rm-path=./rm",
        "custom-generate-function-path=./t rollout-lag=2",
        "rollout-lag=2 rollout-schedule=recorded rollout-max-delay=1 rollout-record=/run",
        "rollout-lag=1 rollout-schedule=recorded rollout-overlap=true",
        ("custom-agent-path=./a rm-type=none agent-max-calls=3 agent-max-branches=2 "
         "agent-failure=zero agent-concurrency=2 reward-key=right plugin-timeout=5"),
        "custom-agent-path=./a agent-record=/run custom-rm-path=./rm rm-type=none",
        "custom-agent-path=./a rm-type=none speculative-algorithm=ngram",
        "custom-agent-path=./a rm-type=none eval-prompt-data=a~task:max eval-interval=1",
        "custom-agent-path=./a rm-type=none advantage-estimator=ppo critic-lr=1e-5",
        "dynamic-sampling-filter-path=./f over-sampling-batch-size=32 plugin-timeout=5",
        "rm-type=dapo reward-key=acc",
        "rm-type=ifeval reward-key=strict",
        "rm-type=remote_rm rm-url=http://a reward-key=right plugin-timeout=9",
        "rm-type=remote_rm rm-url=http://a/b@c?d=e@f",
        FROM_FILE "rm-type=gpqa eval-config=sets.ini task-size=9",
        FROM_FILE "rm-type=math_verify label-key=a plugin-timeout=9",
        "rm-type=f1 eval-prompt-data=a~task:max eval-rm-type=dapo eval-reward-key=acc",
        "num-steps-per-rollout=4",
        "num-steps-per-rollout=4 use-opsm=true opsm-delta=0.1",
        "num-steps-per-rollout=4 global-batch-size=32",
        "load-debug-rollout-data=/d/{rollout_id} use-mis=true mis-mode=mask "
        "mis-lower-bound=0.1 use-rs=true rs-level=sequence",
        "load-debug-rollout-data=/d/{rollout_id} use-tis=true tis-clip=3 tis-mode=icepop",
        "load-debug-rollout-data=/d/{rollout_id} use-rollout-logprobs=true",
        "rollout-dtype=fp8 max-logp-diff=0.5",
        "rollout-dtype=fp32 use-mis=true use-rs=true",
        "rollout-dtype=int4 use-tis=true tis-mode=icepop",
        "rollout-dtype=mxfp8 use-rollout-logprobs=true",
        "model-type=qwen3_moe num-experts=8 moe-ffn-hidden-size=32 ffn-hidden-size=0",
        "dynamic-sampling-filter=nonzero_std over-sampling-batch-size=32",
        "rollout-temperature=0 debug-rollout-only=true",
        "save=/c save-interval=2 save-hf=/h/{rollout_id} keep-checkpoints=2",
        "save-interval=2 ckpt-step=4 skip-damaged=true keep-checkpoints=2",
        "save=none save-hf=/h/{rollout_id} save-interval=2",
        "save=none save-interval-minutes=0",
        "load-debug-rollout-data=/d/{rollout_id} debug-train-only=true prompt-data= rm-type=none",
        "num-rollout=0 num-epoch=2",
        "eval-prompt-data=a~task:max~b~task:add eval-interval=5 skip-eval-before-train=true",
        "rollout-stop=[\"\\n\",\"###\"] rollout-stop-token-ids=3,4",
        // the label is missing but not needed, or it is set
        FROM_FILE "rm-type=deterministic_random",
        FROM_FILE "rm-type=gpqa",
        FROM_FILE "rm-type=none custom-rm-path=./rm.py",
        FROM_FILE "rm-type=f1 load-debug-rollout-data=/d/{rollout_id}",
        FROM_FILE "rm-type=f1 label-key=answer eval-prompt-data=a~b.jsonl",
        FROM_FILE "rm-type=none custom-rm-path=./rm.py eval-prompt-data=a~b.jsonl",
        FROM_FILE "rm-type=gpqa eval-rm-type=f1 eval-prompt-data=a~b.jsonl eval-label-key=answer",
        FROM_FILE "rm-type=gpqa eval-rm-type=f1 eval-prompt-data=a~task:max",
    };
    (void)state;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_accepted(cases[i]);
}

static void test_config__refuses_impossible(void **state)
{
    static const char *const cases[][2] = {
        {"prompt-data=", "'prompt-data' is missing"},
        {"num-epoch=2", "--num-epoch: 'num-epoch' and num-rollout"},
        {"num-rollout=0", "'num-rollout' = 0 is too few: give at least 1"},
        {"num-rollout=0 num-epoch=0", "'num-rollout' = 0 is too few: give at least 1"},
        {"custom-generate-function-path=./t rollout-lag=1 rollout-segment-tokens=2",
         "'rollout-segment-tokens' must be 0 with"},
        {"custom-agent-path=./a.so", "'custom-agent-path' is a shared object"},
        {"rollout-lag=1 rollout-schedule=recorded rollout-segment-tokens=3",
         "'rollout-segment-tokens' does not go with rollout-schedule = recorded"},
        {"rollout-lag=1 rollout-schedule=recorded dynamic-sampling-filter=nonzero_std",
         "'dynamic-sampling-filter' does not go with rollout-schedule = recorded"},
        {"rollout-lag=1 rollout-schedule=recorded dynamic-sampling-filter-path=./f",
         "'dynamic-sampling-filter-path' does not go with rollout-schedule = recorded"},
        {"rollout-lag=1 rollout-schedule=recorded rollout-sample-filter-path=./f",
         "'rollout-sample-filter-path' does not go with rollout-schedule = recorded"},
        {"rollout-lag=1 rollout-schedule=recorded custom-generate-function-path=./t",
         "'custom-generate-function-path' does not go with rollout-schedule = recorded"},
        {"rollout-lag=60 rollout-schedule=recorded rollout-max-delay=5", "more than 64 together"},
        {"custom-agent-path=./a rollout-lag=1", "'rollout-lag' does not go with custom-agent-path"},
        {"custom-agent-path=./a debug-determinism=point", "'debug-determinism' does not go"},
        {"custom-agent-path=./a save-debug-rollout-data=/d/{rollout_id}", "'save-debug-rollout"},
        {"custom-agent-path=./a use-opd=true opd-teacher-url=http://a/v1 opd-teacher-name=b",
         "'opd-teacher-url' does not go with"},
        {"input-key=", "'input-key' is empty"},
        {FROM_FILE "rm-type=f1", "--rm-type: 'rm-type' compares with a label"},
        {FROM_FILE "rm-type=boxed_math label-key=", "with label-key"},
        {FROM_FILE "rm-type=dapo", "with label-key"},
        {FROM_FILE "rm-type=exact eval-prompt-data=a~b.jsonl eval-label-key=l", "of prompt-data"},
        {FROM_FILE "rm-type=overlap", "with label-key"},
        {FROM_FILE "rm-type=gpqa eval-rm-type=f1 eval-prompt-data=a~task:max~b~b.jsonl",
         "--eval-rm-type: 'eval-rm-type' compares with a label: name the member of eval-prompt-"},
        {"eval-prompt-data=a~b.jsonl", "good.ini:12: 'rm-type' compares with a label"},
        {"num-layers=0", "'num-layers' is missing"},
        {"hidden-size=0", "'hidden-size' is missing"},
        {"num-attention-heads=0", "'num-attention-heads' is missing"},
        {"ffn-hidden-size=0", "'ffn-hidden-size' is missing"},
        {"model-type=qwen3_moe", "'model-type' = qwen3_moe needs num-experts"},
        {"num-experts=8", "'num-experts' needs model-type"},
        {"model-type=qwen3_moe num-experts=4 moe-router-topk=5", "'moe-router-topk' is larger"},
        {"prompt-data=a.jsonl", "'prompt-data' needs a tokenizer"},
        {"apply-chat-template=true eval-prompt-data=a~task:max",
         "'apply-chat-template' needs a template"},
        {"global-batch-size=100", "--global-batch-size: 'global-batch-size' = 100"},
        {"global-batch-size=64 num-steps-per-rollout=3", "16 * 8 must be global-batch-size"},
        {"num-steps-per-rollout=3", "'num-steps-per-rollout' = 3 does not divide"},
        {"dynamic-sampling-filter=nonzero_std over-sampling-batch-size=8",
         "'over-sampling-batch-size' is less"},
        {"use-dynamic-batch-size=true", "needs max-tokens-per-gpu"},
        {"rollout-max-response-len=0", "'rollout-max-response-len' is missing"},
        {"rollout-max-context-len=4", "leaves no room for a prompt"},
        {"rollout-max-context-len=9 rollout-max-prompt-len=9", "leaves no room for a response"},
        {"rollout-max-context-len=9 eval-prompt-data=a~task:max eval-max-response-len=9",
         "'eval-max-response-len' leaves no room for a prompt"},
        {"rollout-max-context-len=5000", "above max-position-embeddings"},
        {"kv-span=8000", "no multiple of 128"},
        {"q-span=64", "no multiple of 128"},
        {"logical-tp=3", "is not 1, 2, 4 or 8"},
        {"logical-etp=6", "is not 1, 2, 4 or 8"},
        {"rollout-temperature=0", "--rollout-temperature: 'rollout-temperature' = 0"},
        {"rollout-top-k=0", "= 0 leaves no token"},
        {"eval-temperature=-0.5 eval-prompt-data=a~task:max", "'eval-temperature' is negative"},
        {"rollout-stop=###", "--rollout-stop"},
        {"rollout-stop={}", "expected a JSON list"},
        {"rollout-stop=[1]", "item 1 is no string"},
        {"rollout-stop=[\"a\",\"\"]", "item 2 is no string"},
        {"rollout-stop-token-ids=1,x", "found 'x'"},
        {"rollout-stop-token-ids=-1", "found '-1'"},
        {"rollout-stop-token-ids=2147483648", "found '2147483648'"},
        {"rm-type=none", "'rm-type' is missing"},
        {"rm-type=", "'rm-type' is missing"},
        {"rm-type=maths", "--rm-type: 'rm-type'"},
        {"eval-rm-type=boxed eval-prompt-data=a~task:max", "--eval-rm-type: 'eval-rm-type'"},
        {"rm-type=boxed_math_verify", "'rm-type' would be judged elsewhere, where boxed_"},
        {"rm-type=math_verify eval-rm-type=boxed_math_verify eval-prompt-data=a~task:max",
         "'eval-rm-type' would be judged elsewhere, where boxed_"},
        {"rm-type=remote_rm rm-url=http://me:secret@judge/x", "'rm-url' names a user"},
        {"rm-type=remote_rm rm-url=ftp://judge/x", "--rm-url: 'rm-url' is no address of a server"},
        {"rm-type=remote_rm rm-url=http://", "'rm-url' is no address of a server"},
        {"n-samples-per-prompt=1", "= 1: a reward minus the mean"},
        {"n-samples-per-prompt=1 advantage-estimator=gspo", "= 1: a reward minus the mean"},
        {"loss-type=sft_loss", "must be 1 with sft_loss"},
        {"n-samples-per-prompt=1 disable-rewards-normalization=true "
         "dynamic-sampling-filter=nonzero_std",
         "would drop every group"},
        {"advantage-estimator=reinforce_plus_plus normalize-advantages=true kl-coef=0.1 "
         "use-kl-loss=true kl-loss-coef=0.1",
         "'kl-coef' and kl-loss-coef exclude"},
        {"advantage-estimator=ppo kl-coef=0.1", "must be 0 with ppo"},
        {"use-kl-loss=true kl-loss-coef=0.1 kl-loss-type=k1", "no useful gradient"},
        {"loss-type=custom_loss", "needs custom-loss-function-path"},
        {"advantage-estimator=reinforce_plus_plus", "needs normalize-advantages"},
        {"advantage-estimator=reinforce_plus_plus_baseline", "needs normalize-advantages"},
        {"advantage-estimator=on_policy_distillation", "needs opd-teacher-load"},
        {"use-opd=true", "--use-opd: 'use-opd' needs opd-teacher-load, or opd-teacher-url"},
        {"use-opd=true opd-teacher-load=/t opd-teacher-url=http://a", "exclude each other"},
        {"use-opd=true opd-teacher-url=http://me:x@a/v1", "'opd-teacher-url' names a user"},
        {"use-opd=true opd-teacher-url=here:80/v1", "'opd-teacher-url' is no address of a server"},
        {"eps-clip-high=-0.5", "'eps-clip-high' is negative"},
        {"eps-clip-c=0.9", "'eps-clip-c' must be above 1"},
        {"use-tis=true use-mis=true", "exclude each other"},
        {"rollout-dtype=fp9", "= fp9 is none of fp32, bf16, fp8, mxfp8 or int4"},
        {"rollout-dtype=bf16", "'rollout-dtype' = bf16 is dtype already"},
        {"rollout-dtype=fp8 dtype=fp8", "'rollout-dtype' = fp8 is dtype already"},
        {"use-rslora=true", "'use-rslora' would be ignored: it needs lora-rank above 0"},
        {"lora-rank=4 rank-pattern={\"q.*\":2}", "rank-pattern: 'q.*' is a regular expression"},
        {"lora-rank=4 alpha-pattern=q_proj", "alpha-pattern"},
        {"context-parallel-size=32 lora-rank=16", "'context-parallel-size' is above lora-rank"},
        {"use-rollout-logprobs=true use-tis=true", "nothing to weigh"},
        {"use-rollout-logprobs=true use-mis=true", "nothing to weigh"},
        {"loss-divisor=1000 calculate-per-token-loss=true", "exclude each other"},
        {"use-tis=true tis-clip-low=3", "'tis-clip-low' is above tis-clip"},
        {"speculative-algorithm=draft",
         "'speculative-algorithm' = draft needs speculative-draft-model-path"},
        {"hf-checkpoint=/m num-layers=0 ffn-hidden-size=0 num-attention-heads=0 hidden-size=0 "
         "moe-router-topk=4",
         "'moe-router-topk' would be ignored: it needs a model without files"},
        {"speculative-algorithm=ngram speculative-ngram-min-match-window-size=13",
         "'speculative-ngram-min-match-window-size' is above speculative-ngram-max"},
        {"use-tis=true tis-clip=0.5 tis-clip-low=0.6", "'tis-clip-low' is above tis-clip"},
        {"use-mis=true mis-mode=clip mis-upper-bound=0.4", "'mis-upper-bound' is below"},
        {"use-mis=true use-rs=true rs-upper-bound=0.4", "'rs-upper-bound' is below"},
        {"min-lr=1 lr-decay-style=linear lr-decay-iters=9", "'min-lr' is above lr"},
        {"lr-warmup-init=1 lr-warmup-iters=9", "'lr-warmup-init' is above lr"},
        {"lr-decay-style=cosine", "needs lr-decay-iters"},
        {"lr-decay-style=cosine lr-decay-iters=5 lr-warmup-iters=5", "above lr-warmup-iters"},
        {"debug-rollout-only=true load-debug-rollout-data=/d/{rollout_id}", "does not train"},
        {"debug-rollout-only=true debug-train-only=true", "exclude each other"},
        {"debug-rollout-only=true loss-type=sft_loss n-samples-per-prompt=1", "nothing to do"},
        {"debug-train-only=true", "needs load-debug-rollout-data"},
        {"debug-dump=train.logp,layer.0.attn.parts", "debug-determinism = full alone"},
        {"load-debug-rollout-data=/d/{rollout_id} save-debug-rollout-data=/e/{rollout_id}",
         "would only copy"},
        {"save-debug-rollout-data=/d/x", "must contain {rollout_id}"},
        {"save-hf=/h", "must contain {rollout_id}"},
        {"eval-prompt-data=a/b~task:max", "a name has letters"},
        {"eval-prompt-data=a", "a name without a path"},
        {"eval-prompt-data=a~x~b~y~a~z", "has a name twice"},
        {"eval-prompt-data=a~'b~c", "has a quote without its end"},
        {"eval-prompt-data=a~''", "a name without a path"},
    };
    (void)state;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_rejected(cases[i][0], cases[i][1]);
}

static void test_config__refuses_what_would_be_ignored(void **state)
{
    // the last setting of each case has no effect
    static const char *const cases[] = {
        "hf-checkpoint=/m num-layers=0 ffn-hidden-size=0 num-attention-heads=0 hidden-size=64",
        "moe-router-topk=4",
        "moe-ffn-hidden-size=64",
        "use-rollout-routing-replay=true",
        "save=none save-interval=5",
        "save=none save-interval-minutes=5",
        "save=none no-save-optim=true",
        "save=none keep-checkpoints=2",
        "save=none ckpt-step=4",
        "save=none skip-damaged=true",
        "critic-load=/c",
        "opd-teacher-load=/t",
        "opd-teacher-url=http://a/v1",
        "use-opd=true opd-teacher-load=/t opd-teacher-name=b",
        "input-key=question",
        "label-key=answer",
        "metadata-key=m",
        "apply-chat-template=true",
        "tool-key=t",
        "apply-chat-template-kwargs={}",
        "chat-template-path=/t",
        "loss-type=sft_loss n-samples-per-prompt=1 rm-type=none rollout-max-response-len=0 "
        "rollout-temperature=0.5",
        "loss-type=sft_loss n-samples-per-prompt=1 rollout-max-response-len=0 rm-type=f1",
        "loss-type=sft_loss n-samples-per-prompt=1 rm-type=none rollout-max-response-len=5",
        "custom-rm-path=./rm rm-type=f1",
        "rollout-max-turns=3",
        "rollout-max-turn-len=3",
        "agent-max-calls=3",
        "agent-max-branches=3",
        "agent-failure=zero",
        "agent-concurrency=3",
        "agent-record=/run",
        "rollout-schedule=recorded",
        "rollout-lag=1 rollout-max-delay=3",
        "rollout-lag=1 rollout-record=/run",
        "load-debug-rollout-data=/d/{rollout_id} custom-agent-path=./a",
        "load-debug-rollout-data=/d/{rollout_id} custom-generate-function-path=./t",
        "loss-type=sft_loss n-samples-per-prompt=1 rm-type=none rollout-max-response-len=0 "
        "custom-generate-function-path=./t",
        "group-rm=true",
        "reward-key=acc",
        "rm-type=math reward-key=acc",
        "rm-type=math rm-url=http://a",
        "over-sampling-batch-size=32",
        "speculative-num-draft-tokens=2",
        "speculative-draft-model-path=/m",
        "speculative-ngram-min-match-window-size=3",
        "speculative-ngram-max-match-window-size=3",
        "loss-type=sft_loss n-samples-per-prompt=1 rm-type=none rollout-max-response-len=0 "
        "dynamic-sampling-filter-path=./f",
        "plugin-timeout=5",
        "eval-interval=5",
        "load-debug-rollout-data=/d/{rollout_id} debug-train-only=true "
        "eval-prompt-data=a~task:max eval-interval=5",
        "n-samples-per-eval-prompt=4",
        "eval-temperature=0",
        "eval-top-p=0.5",
        "eval-top-k=1",
        "eval-max-response-len=9",
        "eval-input-key=q",
        "eval-label-key=a",
        "eval-rm-type=f1",
        "eval-reward-key=acc",
        "eval-prompt-data=a~task:max eval-config=e.ini",
        "rm-type=dapo eval-prompt-data=a~task:max eval-rm-type=f1 eval-reward-key=acc",
        "eval-prompt-data=a~task:max skip-eval-before-train=true",
        "opd-kl-coef=0.5",
        "gamma=0.9",
        "lambd=0.9",
        "value-clip=0.3",
        "num-critic-only-steps=1",
        "critic-lr=1e-5",
        "critic-lr-warmup-iters=3",
        "kl-coef=0.1",
        "advantage-estimator=gspo kl-coef=0.1",
        "advantage-estimator=ppo disable-rewards-normalization=true",
        "advantage-estimator=ppo disable-grpo-std-normalization=true",
        "disable-rewards-normalization=true disable-grpo-std-normalization=true",
        "custom-loss-function-path=./loss.so",
        "custom-agent-path=./a max-restarts=2",
        "custom-rm-path=./rm.so rm-type=none max-restarts=2",
        "rm-type=remote_rm rm-url=http://judge/x max-restarts=2",
        "loss-type=custom_loss custom-loss-function-path=./l eps-clip=0.3",
        "loss-type=custom_loss custom-loss-function-path=./l eps-clip-high=0.3",
        "loss-type=custom_loss custom-loss-function-path=./l eps-clip-c=3",
        "loss-type=custom_loss custom-loss-function-path=./l use-opsm=true",
        "loss-type=custom_loss custom-loss-function-path=./l use-tis=true",
        "loss-type=custom_loss custom-loss-function-path=./l use-mis=true",
        "loss-type=sft_loss n-samples-per-prompt=1 rm-type=none rollout-max-response-len=0 "
        "normalize-advantages=true",
        "loss-type=sft_loss n-samples-per-prompt=1 rm-type=none rollout-max-response-len=0 "
        "advantage-estimator=gspo",
        "loss-type=sft_loss n-samples-per-prompt=1 rm-type=none rollout-max-response-len=0 "
        "use-opd=true",
        "loss-type=sft_loss n-samples-per-prompt=1 rm-type=none rollout-max-response-len=0 "
        "use-kl-loss=true",
        "loss-type=sft_loss n-samples-per-prompt=1 rm-type=none rollout-max-response-len=0 "
        "loss-divisor=1000",
        "loss-type=sft_loss n-samples-per-prompt=1 rm-type=none rollout-max-response-len=0 "
        "entropy-coef=0.1",
        "loss-type=sft_loss n-samples-per-prompt=1 rm-type=none rollout-max-response-len=0 "
        "rollout-sample-filter-path=./f",
        "loss-type=sft_loss n-samples-per-prompt=1 rm-type=none rollout-max-response-len=0 "
        "custom-before-log-prob-hook-path=./f",
        "loss-type=sft_loss n-samples-per-prompt=1 rm-type=none rollout-max-response-len=0 "
        "log-passrate=true",
        "loss-type=sft_loss n-samples-per-prompt=1 rm-type=none rollout-max-response-len=0 "
        "model-type=qwen3_moe num-experts=4 use-rollout-routing-replay=true",
        "kl-loss-coef=0.1",
        "use-unbiased-kl=true",
        "kl-loss-type=k3",
        "ref-update-interval=3",
        "use-opsm=true",
        "opsm-delta=0.1",
        "use-tis=true",
        "tis-mode=icepop use-tis=true",
        "use-mis=true",
        "use-rollout-logprobs=true",
        "max-logp-diff=0.1",
        "rollout-dtype=fp8 use-rollout-logprobs=true max-logp-diff=0.1",
        "rollout-dtype=fp8 check-logprobs=false",
        "loss-type=sft_loss n-samples-per-prompt=1 rm-type=none rollout-max-response-len=0 "
        "rollout-dtype=fp8",
        "tis-clip=3",
        "tis-clip-low=0.5",
        "tis-mode=icepop",
        "mis-level=sequence",
        "mis-mode=mask",
        "load-debug-rollout-data=/d/{rollout_id} use-mis=true mis-lower-bound=0.4",
        "mis-upper-bound=3",
        "mis-batch-normalize=true",
        "load-debug-rollout-data=/d/{rollout_id} use-mis=true rs-veto-threshold=0.01",
        "use-rs=true",
        "load-debug-rollout-data=/d/{rollout_id} use-mis=true rs-level=sequence",
        "load-debug-rollout-data=/d/{rollout_id} use-mis=true rs-lower-bound=0.4",
        "load-debug-rollout-data=/d/{rollout_id} use-mis=true rs-upper-bound=3",
        "rs-veto-threshold=0.1",
        "min-lr=1e-9",
        "lr-decay-iters=9",
        "lr-warmup-init=1e-9",
        "use-dynamic-batch-size=true max-tokens-per-gpu=9 micro-batch-size=2",
        "max-tokens-per-gpu=9",
        "debug-dump-dir=/d",
        "eval-prompt-data=a~task:max prompt-data=a.jsonl label-key=l hf-checkpoint=/m num-layers=0 "
        "ffn-hidden-size=0 num-attention-heads=0 hidden-size=0 vocab-size=9",
    };
    (void)state;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const char *last = strrchr(cases[i], ' ');
        char name[64], message[200];

        snprintf(name, sizeof name, "%s", last ? last + 1 : cases[i]);
        *strchr(name, '=') = '\0';
        snprintf(message, sizeof message, "--%s: '%s' would be ignored: it needs ", name, name);
        assert_rejected(cases[i], message);
    }
}

static void test_config__names_file_and_line(void **state)
{
    static const char text[] = "[rollout]\nrollout-batch-size = 4\nprompt-data = task:max\n"
                               "num-rollout = 1\nrm-type = exact\nn-samples-per-prompt = 2\n"
                               "rollout-max-response-len = 4\nrollout-temperature = 0\n"
                               "[model]\nnum-layers = 1\nhidden-size = 8\nffn-hidden-size = 8\n"
                               "num-attention-heads = 1\n[engine]\nnumerics = ieee\n";
    invar_recipe *recipe;
    (void)state;

    assert_ok(invar_recipe_new(&recipe, invar_config_schema()));
    assert_ok(invar_recipe_parse(recipe, "a/b.ini", text, sizeof text - 1));
    assert_fails(invar_config_check(config_of(recipe)), INVAR_E_INVALID,
                 "a/b.ini:8: 'rollout-temperature'");
    invar_recipe_free(recipe);

    assert_ok(invar_recipe_new(&recipe, invar_config_schema()));
    assert_ok(invar_recipe_parse(recipe, "b.ini", "[engine]\n", 9));
    assert_fails(invar_config_check(config_of(recipe)), INVAR_E_INVALID, "'rollout-batch-size'");
    invar_recipe_free(recipe);
}

/* ---- values ---------------------------------------------------------------------------------- */

static void test_config__derives_steps(void **state)
{
    static const struct {
        const char *flags;
        int64_t steps, batch;
    } cases[] = {
        {"", 1, 128},
        {"global-batch-size=32", 4, 32},
        {"num-steps-per-rollout=2", 2, 64},
        {"num-steps-per-rollout=2 global-batch-size=64", 2, 64},
    };
    (void)state;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        invar_recipe *recipe = recipe_with(cases[i].flags);
        assert_ok(invar_config_check(config_of(recipe)));
        assert_int_equal(invar_config_steps_per_rollout(config_of(recipe)), cases[i].steps);
        assert_int_equal(invar_config_global_batch_size(config_of(recipe)), cases[i].batch);
        invar_recipe_free(recipe);
    }
}

static void test_config__lists(void **state)
{
    invar_recipe *recipe =
        recipe_with("rollout-stop-token-ids=7,19,0 rollout-stop=[\"\\n\",\"ab\"]");
    const char *list = "a, bc ,,d", *words = "  x  y/z \t'a b\"' \"c\"d \"e", *item;
    size_t bytes;
    int64_t count;
    int32_t *ids;
    char **strings;
    (void)state;

    assert_true(invar_config_list(&item, &bytes, &list) && bytes == 1 && *item == 'a');
    assert_true(invar_config_list(&item, &bytes, &list) && bytes == 2 && *item == 'b');
    assert_true(invar_config_list(&item, &bytes, &list) && bytes == 1 && *item == 'd');
    assert_false(invar_config_list(&item, &bytes, &list));
    assert_true(invar_config_words(&item, &bytes, &words) && bytes == 1 && *item == 'x');
    assert_true(invar_config_words(&item, &bytes, &words) && bytes == 3 && *item == 'y');
    assert_true(invar_config_words(&item, &bytes, &words) && bytes == 4);
    assert_memory_equal(item, "a b\"", 4);
    assert_true(invar_config_words(&item, &bytes, &words) && bytes == 1 && *item == 'c');
    assert_true(invar_config_words(&item, &bytes, &words) && bytes == 1 && *item == 'd');
    assert_true(invar_config_words(&item, &bytes, &words) && bytes == 2 && *item == '"');
    assert_false(invar_config_words(&item, &bytes, &words));

    assert_ok(invar_config_ids(&ids, &count, config_of(recipe), INVAR_KEY_ROLLOUT_STOP_TOKEN_IDS));
    assert_int_equal(count, 3);
    assert_true(ids[0] == 7 && ids[1] == 19 && ids[2] == 0);
    invar_free(ids);
    assert_ok(invar_config_strings(&strings, &count, config_of(recipe), INVAR_KEY_ROLLOUT_STOP));
    assert_int_equal(count, 2);
    assert_string_equal(strings[0], "\n");
    assert_string_equal(strings[1], "ab");
    invar_free(strings);
    invar_recipe_free(recipe);

    recipe = recipe_with("");
    assert_ok(invar_config_ids(&ids, &count, config_of(recipe), INVAR_KEY_ROLLOUT_STOP_TOKEN_IDS));
    assert_true(count == 0 && !ids);
    assert_ok(invar_config_strings(&strings, &count, config_of(recipe), INVAR_KEY_ROLLOUT_STOP));
    assert_true(count == 0 && !strings);
    invar_recipe_free(recipe);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_config__ids_are_names),
        cmocka_unit_test(test_config__defaults_are_canonical),
        cmocka_unit_test(test_config__eight_groups),
        cmocka_unit_test(test_config__words),
        cmocka_unit_test(test_config__accepts),
        cmocka_unit_test(test_config__refuses_impossible),
        cmocka_unit_test(test_config__refuses_what_would_be_ignored),
        cmocka_unit_test(test_config__names_file_and_line),
        cmocka_unit_test(test_config__derives_steps),
        cmocka_unit_test(test_config__lists),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
