/*
 * train.c - whole runs: PPO, supervised learning, what the identity has.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <malloc.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/files/checkpoint/checkpoint.h"
#include "engine/run/context/run_context.h"
#include "tests/run.h"

static int setup(void **state)
{
    (void)state;
    return run_setup(INVAR_TEST_WORK "/train");
}

/* ---- asking the ledger ----------------------------------------------------------------------- */

static invar_status take_blob(void *payload, const char *const *columns,
                              const invar_ledger_value *values, int count)
{
    (void)columns;
    if (!values)
        return INVAR_OK;
    assert_int_equal(count, 1);
    invar_hasher_update(payload, values[0].data, values[0].bytes);
    return INVAR_OK;
}

/* The hash of every digest that the run has, those of diagnosis among them. */
static invar_digest digests_of(const char *name)
{
    invar_hasher hasher;
    invar_digest all;

    invar_hasher_init(&hasher);
    run_select(name, "SELECT data FROM digest ORDER BY step, rank", take_blob, &hasher);
    invar_hasher_final(&all, &hasher);
    return all;
}

/* ---- PPO ------------------------------------------------------------------------------------- */

static const run_pair ppo[] = {
    {"advantage-estimator", "ppo"}, {"dtype", "fp32"}, {"num-rollout", "4"},
    {"num-steps-per-rollout", "2"}, {"lr", "0.01"},    {NULL, NULL}};

/* The largest of the critic's head in the newest checkpoint: it starts at zero. */
static float critic_head(const char *checkpoints)
{
    invar_checkpoint *c = NULL;
    float head[16], most = 0.0f;
    invar_tensor t = invar_tensor_2d(head, INVAR_DTYPE_F32, 1, 16);

    assert_ok(invar_checkpoint_open(&c, run_below(checkpoints), NULL));
    assert_ok(invar_checkpoint_load(&t, c, "critic", "score.weight"));
    invar_checkpoint_close(c);
    for (int i = 0; i < 16; i++) {
        float size = head[i] < 0.0f ? -head[i] : head[i];
        most = size > most ? size : most;
    }
    return most;
}

static void test_train__ppo_has_one_chain(void **state)
{
    const run_pair other[] = {{"threads", "3"},
                              {"micro-batch-size", "2"},
                              {"recompute-granularity", "full"},
                              {"rollout-concurrency", "1"},
                              {"log-probs-chunk-size", "1"},
                              {"debug-determinism", "full"},
                              {"debug-stats", "true"},
                              {NULL, NULL}};
    const run_pair half[] = {{"save", run_below("ppo.ckpt")},
                             {"load", run_below("ppo.ckpt")},
                             {"debug-exit-after-rollout", "2"},
                             {NULL, NULL}};
    const run_pair seed[] = {{"rollout-seed", "43"}, {NULL, NULL}};
    run_memory one, again;

    (void)state;
    one = run_trained("ppo", ppo, NULL);
    assert_int_equal(one.last, 7);
    again = run_trained("ppo.threads", ppo, other);
    assert_true(run_same(&one, &again));
    assert_ok(run_with("ppo.resumed", ppo, half));
    assert_int_equal(run_memory_of("ppo.resumed").last, 3);
    assert_true(critic_head("ppo.ckpt") > 0.0f);
    again = run_trained("ppo.resumed", ppo, half);
    assert_true(run_same(&one, &again));
    again = run_trained("ppo.seed", ppo, seed);
    assert_false(invar_digest_equal(&one.chain, &again.chain));
}

/* A critic that learns: what it is wrong by falls. */
static void test_train__ppo_critic_learns(void **state)
{
    const run_pair longer[] = {{"num-rollout", "12"},
                               {"value-clip", "0"},
                               {"num-critic-only-steps", "12"},
                               {"critic-lr", "0.02"},
                               {"num-steps-per-rollout", "1"},
                               {"rollout-batch-size", "8"},
                               {NULL, NULL}};
    static const char loss[] =
        "SELECT value FROM metrics WHERE name = 'train/critic-value_loss' ORDER BY step %s LIMIT 1";
    char sql[200];
    double first, last;

    (void)state;
    assert_ok(run_with("ppo.critic", ppo, longer));
    (void)snprintf(sql, sizeof sql, loss, "ASC");
    first = run_asked("ppo.critic", sql);
    (void)snprintf(sql, sizeof sql, loss, "DESC");
    last = run_asked("ppo.critic", sql);
    assert_true(first > 0.0 && last > 0.0 && last < 0.7 * first);
    // only the critic learned: one set of weights sampled everything
    assert_true(run_asked("ppo.critic", "SELECT count(DISTINCT weights_hash) FROM sample") == 1.0);
    assert_true(run_asked("ppo", "SELECT count(DISTINCT weights_hash) FROM sample") == 4.0);
}

/* A critic goes on in another run: from checkpoints that have one. */
static void test_train__critic_from_checkpoints(void **state)
{
    const run_pair save[] = {{"save", run_below("teach.ckpt")}, {NULL, NULL}};
    const run_pair load[] = {{"critic-load", run_below("teach.ckpt")}, {NULL, NULL}};
    const run_pair plain[] = {{"save", run_below("none.ckpt")}, {NULL, NULL}};
    const run_pair body[] = {{"critic-load", run_below("none.ckpt")}, {NULL, NULL}};
    static const char first[] =
        "SELECT value FROM metrics WHERE name = 'rollout/values' AND step = 0";
    run_memory one, other;

    (void)state;
    one = run_trained("teach", ppo, save);
    other = run_trained("taught", ppo, load);
    assert_true(run_asked("teach", first) == 0.0); // a new head
    assert_true(run_asked("taught", first) != 0.0);
    assert_false(invar_digest_equal(&one.identity, &other.identity));
    assert_ok(run_with("none", plain, NULL));
    other = run_trained("headless", ppo, body); // a language model: its body, and a new head
    assert_true(run_asked("headless", first) == 0.0);
    assert_false(invar_digest_equal(&one.identity, &other.identity));
}

/* Teacher and critic have the shape of their own folders, whatever the actor's is. */
static void test_train__teachers_and_critics_of_another_size(void **state)
{
    static const char theirs[] =
        "SELECT value FROM metrics WHERE name = 'rollout/teacher_log_probs' AND step = 0";
    static const char scored[] =
        "SELECT value FROM metrics WHERE name = 'rollout/log_probs' AND step = 0";
    static const char critics[] = "SELECT count(*) FROM identity WHERE key = 'critic model hash'";
    const run_pair small[] = {{"num-layers", "2"},
                              {"hidden-size", "32"},
                              {"seed", "7"},
                              {"save", run_below("small.ckpt")},
                              {NULL, NULL}};
    const run_pair taught[] = {{"advantage-estimator", "on_policy_distillation"},
                               {"rm-type", "none"},
                               {"opd-teacher-load", run_below("small.ckpt")},
                               {"save-debug-rollout-data", run_below("lesson/{rollout_id}")},
                               {NULL, NULL}};
    const run_pair score[] = {{"num-layers", "2"},
                              {"hidden-size", "32"},
                              {"ref-load", run_below("small.ckpt")},
                              {"load-debug-rollout-data", run_below("lesson/{rollout_id}")},
                              {NULL, NULL}};
    const run_pair valued[] = {{"critic-load", run_below("teach.ckpt")},
                               {"num-layers", "2"},
                               {"hidden-size", "32"},
                               {NULL, NULL}};
    const run_pair close[] = {{"max-position-embeddings", "8"},
                              {"hidden-size", "32"},
                              {"save", run_below("close.ckpt")},
                              {NULL, NULL}};
    const run_pair far[] = {
        {"use-opd", "true"}, {"opd-teacher-load", run_below("close.ckpt")}, {NULL, NULL}};

    (void)state;
    assert_ok(invar_held_folder_make(run_below("lesson")));
    assert_ok(run_with("small", small, NULL));
    assert_ok(run_with("pupil", taught, NULL));
    assert_ok(run_with("scorer", score, NULL)); // the teacher's weights, as an actor's
    assert_true(run_asked("pupil", theirs) == run_asked("scorer", scored));
    assert_true(run_asked("pupil", scored) != run_asked("scorer", scored));
    assert_ok(run_with("valued", ppo, valued));
    assert_true(run_asked("valued", critics) == 1.0);
    assert_true(run_asked("taught", critics) == 0.0); // of the actor's shape
    assert_ok(run_with("close", close, NULL));
    assert_fails(run_with("far", far, NULL), INVAR_E_INVALID,
                 "'opd-teacher-load' takes 8 tokens, and samples may have 16");
}

/* Nobody needs a teacher's masters, but for its hash: that of the same weights as an actor's. */
static void test_train__a_teacher_has_weights_alone(void **state)
{
    const run_pair taught[] = {{"use-opd", "true"},
                               {"opd-teacher-load", run_below("small.ckpt")},
                               {"dtype", "bf16"},
                               {NULL, NULL}};
    const run_pair actor[] = {{"num-layers", "2"},
                              {"hidden-size", "32"},
                              {"ref-load", run_below("small.ckpt")},
                              {"dtype", "bf16"},
                              {NULL, NULL}};
    invar_recipe *recipes[] = {run_recipe(run_below("x"), taught, NULL),
                               run_recipe(run_below("x"), actor, NULL)};
    invar_run_context sessions[2];

    (void)state;
    for (int i = 0; i < 2; i++)
        assert_ok(invar_run_context_open(&sessions[i], recipes[i], INVAR_RUN_CONTEXT_LEARN));
    assert_true(sessions[0].teacher->no_masters);
    assert_false(sessions[1].actor->no_masters);
    assert_true(invar_digest_equal(&sessions[0].teacher_weights, &sessions[1].weights));
    for (int i = 0; i < 2; i++) {
        invar_run_context_close(&sessions[i]);
        invar_recipe_free(recipes[i]);
    }
}

static void test_train__without_the_optimizer_nothing_moves(void **state)
{
    const run_pair still[] = {
        {"debug-disable-optimizer", "true"}, {"save", run_below("still.ckpt")}, {NULL, NULL}};
    static const char pairs[] = "SELECT count(*) FROM digests a JOIN digests b ON a.step = b.step "
                                "AND b.name = 'critic.' || a.name WHERE a.name LIKE "
                                "'weight.model.%%' %s";
    char sql[256];

    (void)state;
    assert_ok(run_with("still", ppo, still));
    assert_true(critic_head("still.ckpt") == 0.0f);
    assert_true(run_asked("still", "SELECT count(DISTINCT weights_hash) FROM sample") == 1.0);
    assert_true(run_asked("still", "SELECT max(value) FROM metrics WHERE name = "
                                   "'train/critic-grad_norm'") > 0.0);
    // digests are of what is there: a critic that never moved is the actor with another head
    (void)snprintf(sql, sizeof sql, pairs, "");
    assert_true(run_asked("still", sql) > 0.0);
    assert_true(run_asked("ppo", sql) > 0.0);
    (void)snprintf(sql, sizeof sql, pairs, "AND a.hash <> b.hash");
    assert_true(run_asked("still", sql) == 0.0);
    assert_true(run_asked("ppo", sql) > 0.0);
}

/* Activations by name: the critic's apart from the actor's, experts' rows in no order of theirs. */
static void test_train__finer_points_have_one_value(void **state)
{
    const run_pair experts[] = {{"model-type", "qwen3_moe"},    {"num-experts", "3"},
                                {"moe-router-topk", "1"},       {"unit-rows", "1"},
                                {"advantage-estimator", "ppo"}, {"lr", "0.01"},
                                {"debug-determinism", "full"},  {NULL, NULL}};
    const run_pair other[] = {
        {"micro-batch-size", "4"},     {"recompute-granularity", "full"}, {"threads", "2"},
        {"chunked-prefill-size", "1"}, {"rollout-concurrency", "3"},      {NULL, NULL}};
    const run_pair coarse[] = {{"debug-determinism", "point"}, {NULL, NULL}};
    static const char points[] = "SELECT count(*) FROM point WHERE level > 0 AND name LIKE '%s'";
    char sql[200];
    invar_digest one, again;

    (void)state;
    assert_ok(run_with("fine", experts, NULL));
    assert_ok(run_with("fine.other", experts, other));
    assert_ok(run_with("fine.coarse", experts, coarse));
    one = digests_of("fine");
    again = digests_of("fine.other");
    assert_true(invar_digest_equal(&one, &again));
    again = digests_of("fine.coarse");
    assert_false(invar_digest_equal(&one, &again));
    (void)snprintf(sql, sizeof sql, points, "%layer.0.q");
    assert_true(run_asked("fine", sql) == 3.0); // the rollout's, the actor's and the critic's
    assert_true(run_asked("fine.coarse", sql) == 0.0);
    (void)snprintf(sql, sizeof sql, points, "%layer.0.attn");
    assert_true(run_asked("fine", sql) == 3.0);
    assert_true(run_asked("fine.coarse", sql) == 3.0);
}

/* Tokens from files go through the rollout again, where its points are wanted. */
static void test_train__given_rollouts_have_points(void **state)
{
    const run_pair drawn[] = {{"debug-determinism", "full"},
                              {"num-steps-per-rollout", "2"},
                              {"save-debug-rollout-data", run_below("given.{rollout_id}")},
                              {NULL, NULL}};
    const run_pair given[] = {{"debug-determinism", "full"},
                              {"num-steps-per-rollout", "2"},
                              {"load-debug-rollout-data", run_below("given.{rollout_id}")},
                              {NULL, NULL}};
    const run_pair alone[] = {{"debug-train-only", "true"}, {NULL, NULL}};
    static const char tokens[] = "SELECT count(*) FROM point WHERE name = 'rollout.token'";
    invar_digest one, again;

    (void)state;
    assert_ok(run_with("drawn", drawn, NULL));
    assert_ok(run_with("given", given, NULL));
    one = digests_of("drawn");
    again = digests_of("given");
    assert_true(invar_digest_equal(&one, &again));
    assert_true(run_asked("given", tokens) == 1.0);
    assert_ok(run_with("alone", given, alone)); // without a rollout
    assert_true(run_asked("alone", tokens) == 0.0);
}

/* ---- other ways to train --------------------------------------------------------------------- */

static void test_train__supervised_with_evaluation(void **state)
{
    const run_pair sft[] = {{"loss-type", "sft_loss"},
                            {"n-samples-per-prompt", "1"},
                            {"lr", "0.01"},
                            {"num-rollout", "20"},
                            {"rollout-batch-size", "8"},
                            {"eval-interval", "10"},
                            {"eval-prompt-data", "m task:max"},
                            {NULL, NULL}};
    static const char loss[] =
        "SELECT value FROM metrics WHERE name = 'train/loss' ORDER BY step %s LIMIT 1";
    char sql[200];
    double first, last;

    (void)state;
    assert_ok(run_with("sft", sft, NULL));
    assert_true(run_asked("sft", "SELECT count(*) FROM evaluation") >= 3.0);
    (void)snprintf(sql, sizeof sql, loss, "ASC");
    first = run_asked("sft", sql);
    (void)snprintf(sql, sizeof sql, loss, "DESC");
    last = run_asked("sft", sql);
    assert_true(last > 0.0 && last < 0.8 * first);
    // nothing was sampled: there is no reward, and no log-prob to compare with
    assert_true(run_asked("sft", "SELECT count(*) FROM metrics WHERE name GLOB 'train/logp_diff_*'"
                                 " OR name GLOB 'train/train_rollout_*'"
                                 " OR name GLOB 'rollout/zero_std/*' OR name IN"
                                 " ('rollout/raw_reward', 'rollout/advantages',"
                                 "  'rollout/rollout_log_probs')") == 0.0);
    assert_true(run_asked("sft", "SELECT count(*) FROM samples WHERE diff IS NOT NULL"
                                 " OR diff_at <> -1") == 0.0);
}

static void test_train__exports_without_checkpoints(void **state)
{
    const run_pair export[] = {
        {"save-hf", run_below("hf/{rollout_id}")}, {"save-interval", "1"}, {NULL, NULL}};

    (void)state;
    assert_ok(run_with("export", export, NULL));
    assert_true(invar_path_exists(run_below("hf/0/config.json")));
    assert_true(invar_path_exists(run_below("hf/1/model.safetensors")));
}

/* Greedy rollouts have log-probabilities, too: those at temperature 1. */
static void test_train__greedy_rollouts(void **state)
{
    const run_pair greedy[] = {
        {"rollout-temperature", "0"}, {"debug-rollout-only", "true"}, {NULL, NULL}};

    (void)state;
    assert_ok(run_with("greedy", greedy, NULL));
    assert_int_equal(run_memory_of("greedy").last, 1);
}

static size_t live, most;

static void *count_alloc(size_t bytes, void *payload)
{
    void *block = NULL;

    (void)payload;
    if (posix_memalign(&block, INVAR_ALIGN, bytes ? bytes : 1) != 0)
        return NULL;
    live += malloc_usable_size(block);
    most = live > most ? live : most;
    return block;
}

static void count_free(void *block, void *payload)
{
    (void)payload;
    live -= block ? malloc_usable_size(block) : 0;
    free(block);
}

/* The most memory that a run of this model has at a time. */
static size_t memory_of(const char *name, const run_pair *model, const run_pair *more)
{
    const invar_allocator counting = {count_alloc, count_free, NULL};

    live = most = 0;
    invar_allocator_set(&counting);
    assert_ok(run_with(name, model, more));
    invar_allocator_set(NULL);
    assert_int_equal(live, 0);
    return most;
}

/* Masters, and nothing else of their size: no gradients, no moments; checkpoints go on. */
static void test_train__rollouts_alone_need_no_gradients(void **state)
{
    const size_t masters = (size_t)4 * 512 * 512 * sizeof(float);
    const run_pair wide[] = {{"hidden-size", "512"},    {"num-attention-heads", "4"},
                             {"ffn-hidden-size", "64"}, {"dtype", "fp32"},
                             {"threads", "1"},          {NULL, NULL}};
    const run_pair only[] = {{"debug-rollout-only", "true"}, {NULL, NULL}};
    const run_pair first[] = {{"debug-rollout-only", "true"},
                              {"debug-exit-after-rollout", "1"},
                              {"save", run_below("only.ckpt")},
                              {"load", run_below("only.ckpt")},
                              {NULL, NULL}};
    const run_pair from[] = {{"ref-load", run_below("only.ckpt")}, {NULL, NULL}};
    run_memory one, again;
    size_t with, without;

    (void)state;
    with = memory_of("wide", wide, NULL);
    without = memory_of("wide.only", wide, only);
    assert_true(with > without + 3 * masters);
    one = run_memory_of("wide.only");
    assert_ok(run_with("wide.part", wide, first));
    again = run_trained("wide.part", wide, first);
    assert_true(run_same(&one, &again));
    // weights that never change are in no checkpoint
    assert_true(invar_path_exists(run_below("only.ckpt/iter_0000001/state.json")));
    assert_false(invar_path_exists(run_below("only.ckpt/iter_0000001/model.safetensors")));
    assert_fails(run_with("wide.other", wide, from), INVAR_E_INVALID,
                 "iter_0000001 has no weights: its run has debug-rollout-only");
}

static void test_train__a_device_that_is_not_there_is_refused(void **state)
{
    const run_pair cuda[] = {{"device", "cuda"}, {NULL, NULL}};

    (void)state;
    assert_int_equal(setenv("CUDA_VISIBLE_DEVICES", "", 1), 0); // a build with CUDA finds none
    assert_fails(run_with("cuda", cuda, NULL), INVAR_E_NODEVICE, "choose device = cpu");
}

static void test_train__less_than_a_rollout_is_refused(void **state)
{
    const run_pair little[] = {
        {"num-rollout", "0"}, {"num-epoch", "1"}, {"rollout-batch-size", "16"}, {NULL, NULL}};

    (void)state;
    assert_fails(run_with("little", little, NULL), INVAR_E_INVALID, "give num-rollout");
}

/* ---- the identity ---------------------------------------------------------------------------- */

static void test_train__identity_has_the_evaluation_data(void **state)
{
    const run_pair a[] = {{"eval-interval", "1"}, {"eval-prompt-data", "m task:max"}, {NULL, NULL}};
    const run_pair b[] = {
        {"eval-interval", "1"}, {"eval-prompt-data", "other task:max"}, {NULL, NULL}};
    const run_pair unused[] = {{"eval-prompt-data", "m task:max"}, {NULL, NULL}};
    const run_pair rate[] = {{"log-passrate", "true"}, {NULL, NULL}};
    const run_pair none[] = {{NULL, NULL}};
    run_memory with, renamed, without, no_interval, logged;

    (void)state;
    with = run_trained("eval.a", a, NULL);
    renamed = run_trained("eval.b", b, NULL);
    without = run_trained("eval.none", none, NULL);
    no_interval = run_trained("eval.unused", unused, NULL);
    logged = run_trained("eval.rate", rate, NULL);
    // evaluation never moves training, but what is logged is another run's
    assert_true(invar_digest_equal(&with.chain, &without.chain));
    assert_true(invar_digest_equal(&with.chain, &renamed.chain));
    assert_false(invar_digest_equal(&with.content, &without.content));
    assert_false(invar_digest_equal(&with.identity, &renamed.identity));
    assert_false(invar_digest_equal(&with.identity, &without.identity));
    assert_true(invar_digest_equal(&no_interval.identity, &without.identity));
    assert_true(run_same(&no_interval, &without));
    assert_false(invar_digest_equal(&logged.content, &without.content));
    assert_false(invar_digest_equal(&logged.identity, &without.identity));
    assert_fails(run_with("eval.a", b, NULL), INVAR_E_STATE, "eval data hash");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_train__ppo_has_one_chain),
        cmocka_unit_test(test_train__ppo_critic_learns),
        cmocka_unit_test(test_train__critic_from_checkpoints),
        cmocka_unit_test(test_train__teachers_and_critics_of_another_size),
        cmocka_unit_test(test_train__a_teacher_has_weights_alone),
        cmocka_unit_test(test_train__without_the_optimizer_nothing_moves),
        cmocka_unit_test(test_train__finer_points_have_one_value),
        cmocka_unit_test(test_train__given_rollouts_have_points),
        cmocka_unit_test(test_train__supervised_with_evaluation),
        cmocka_unit_test(test_train__exports_without_checkpoints),
        cmocka_unit_test(test_train__greedy_rollouts),
        cmocka_unit_test(test_train__rollouts_alone_need_no_gradients),
        cmocka_unit_test(test_train__a_device_that_is_not_there_is_refused),
        cmocka_unit_test(test_train__less_than_a_rollout_is_refused),
        cmocka_unit_test(test_train__identity_has_the_evaluation_data),
    };

    return cmocka_run_group_tests(tests, setup, run_teardown);
}
