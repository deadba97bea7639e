/*
 * train.c - tests of complete runs: PPO, teachers and critics, SFT, rollout-only runs, the
 * identity.
 *
 * Runs of a tiny model are compared by chain and content: free settings, interruptions and other
 * sources of samples must not change them, while another seed must.
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
#include "tests/unit/engine/config/config_of.h"

static int setup(void **state)
{
    (void)state;
    return run_setup(INVAR_TEST_WORK "/train");
}

/* ---- ledger queries -------------------------------------------------------------------------- */

static invar_status hash_blob(void *payload, const char *const *columns,
                              const invar_ledger_value *values, int count)
{
    (void)columns;
    if (!values)
        return INVAR_OK;
    assert_int_equal(count, 1);
    invar_hasher_update(payload, values[0].data, values[0].bytes);
    return INVAR_OK;
}

/* Returns the digest over all recorded digests, including diagnostic points. */
static invar_digest digests_of(const char *name)
{
    invar_hasher hasher;
    invar_digest all;

    invar_hasher_init(&hasher);
    run_select(name, "SELECT data FROM digest ORDER BY step, rank", hash_blob, &hasher);
    invar_hasher_final(&all, &hasher);
    return all;
}

/* ---- PPO ------------------------------------------------------------------------------------- */

static const run_pair ppo[] = {
    {"advantage-estimator", "ppo"}, {"dtype", "fp32"}, {"num-rollout", "4"},
    {"num-steps-per-rollout", "2"}, {"lr", "0.01"},    {NULL, NULL}};

/* Returns the largest magnitude in the critic's head of the newest checkpoint; 0 at the start. */
static float critic_head(const char *checkpoints)
{
    invar_checkpoint *c = NULL;
    float head[16], peak = 0.0f;
    invar_tensor t = invar_tensor_2d(head, INVAR_DTYPE_F32, 1, 16);

    assert_ok(invar_checkpoint_open(&c, run_path(checkpoints), NULL));
    assert_ok(invar_checkpoint_load(&t, c, "critic", "score.weight"));
    invar_checkpoint_close(c);
    for (int i = 0; i < 16; i++) {
        float size = head[i] < 0.0f ? -head[i] : head[i];
        peak = size > peak ? size : peak;
    }
    return peak;
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
    const run_pair half[] = {{"save", run_path("ppo.ckpt")},
                             {"load", run_path("ppo.ckpt")},
                             {"debug-exit-after-rollout", "2"},
                             {NULL, NULL}};
    const run_pair seed[] = {{"rollout-seed", "43"}, {NULL, NULL}};
    run_digests one, again;

    (void)state;
    one = run_train_ok("ppo", ppo, NULL);
    assert_int_equal(one.last, 7);
    again = run_train_ok("ppo.threads", ppo, other);
    assert_true(run_same(&one, &again));
    assert_ok(run_train_pairs("ppo.resumed", ppo, half));
    assert_int_equal(run_digests_of("ppo.resumed").last, 3);
    assert_true(critic_head("ppo.ckpt") > 0.0f);
    again = run_train_ok("ppo.resumed", ppo, half);
    assert_true(run_same(&one, &again));
    again = run_train_ok("ppo.seed", ppo, seed);
    assert_false(invar_digest_equal(&one.chain, &again.chain));
}

/* The value loss of a critic that is trained decreases. */
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
    assert_ok(run_train_pairs("ppo.critic", ppo, longer));
    (void)snprintf(sql, sizeof sql, loss, "ASC");
    first = run_query_number("ppo.critic", sql);
    (void)snprintf(sql, sizeof sql, loss, "DESC");
    last = run_query_number("ppo.critic", sql);
    assert_true(first > 0.0 && last > 0.0 && last < 0.7 * first);
    // only the critic was trained, so all samples have the same actor weights
    assert_true(run_query_number("ppo.critic", "SELECT count(DISTINCT weights_hash) FROM sample") ==
                1.0);
    assert_true(run_query_number("ppo", "SELECT count(DISTINCT weights_hash) FROM sample") == 4.0);
}

/* critic-load initializes the critic of another run from a checkpoint with or without a critic. */
static void test_train__critic_from_checkpoints(void **state)
{
    const run_pair save[] = {{"save", run_path("teach.ckpt")}, {NULL, NULL}};
    const run_pair load[] = {{"critic-load", run_path("teach.ckpt")}, {NULL, NULL}};
    const run_pair plain[] = {{"save", run_path("none.ckpt")}, {NULL, NULL}};
    const run_pair body[] = {{"critic-load", run_path("none.ckpt")}, {NULL, NULL}};
    static const char first[] =
        "SELECT value FROM metrics WHERE name = 'rollout/values' AND step = 0";
    run_digests one, other;

    (void)state;
    one = run_train_ok("teach", ppo, save);
    other = run_train_ok("taught", ppo, load);
    assert_true(run_query_number("teach", first) == 0.0); // a new head
    assert_true(run_query_number("taught", first) != 0.0);
    assert_false(invar_digest_equal(&one.identity, &other.identity));
    assert_ok(run_train_pairs("none", plain, NULL));
    other = run_train_ok("headless", ppo,
                         body); // critic-load of a language model: its layers, and a new head
    assert_true(run_query_number("headless", first) == 0.0);
    assert_false(invar_digest_equal(&one.identity, &other.identity));
}

/* Teacher and critic may have other shapes than the actor; their checkpoints determine them. */
static void test_train__teachers_and_critics_of_another_size(void **state)
{
    static const char teacher_logp[] =
        "SELECT value FROM metrics WHERE name = 'rollout/teacher_log_probs' AND step = 0";
    static const char actor_logp[] =
        "SELECT value FROM metrics WHERE name = 'rollout/log_probs' AND step = 0";
    static const char critics[] = "SELECT count(*) FROM identity WHERE key = 'critic model hash'";
    const run_pair small[] = {{"num-layers", "2"},
                              {"hidden-size", "32"},
                              {"seed", "7"},
                              {"save", run_path("small.ckpt")},
                              {NULL, NULL}};
    const run_pair distilled[] = {
        {"advantage-estimator", "on_policy_distillation"},
        {"rm-type", "none"},
        {"opd-teacher-load", run_path("small.ckpt")},
        {"save-debug-rollout-data", run_path("train_step_case/{rollout_id}")},
        {NULL, NULL}};
    const run_pair scoring[] = {
        {"num-layers", "2"},
        {"hidden-size", "32"},
        {"ref-load", run_path("small.ckpt")},
        {"load-debug-rollout-data", run_path("train_step_case/{rollout_id}")},
        {NULL, NULL}};
    const run_pair with_critic[] = {{"critic-load", run_path("teach.ckpt")},
                                    {"num-layers", "2"},
                                    {"hidden-size", "32"},
                                    {NULL, NULL}};
    const run_pair close[] = {{"max-position-embeddings", "8"},
                              {"hidden-size", "32"},
                              {"save", run_path("close.ckpt")},
                              {NULL, NULL}};
    const run_pair short_teacher[] = {
        {"use-opd", "true"}, {"opd-teacher-load", run_path("close.ckpt")}, {NULL, NULL}};

    (void)state;
    assert_ok(invar_held_folder_make(run_path("train_step_case")));
    assert_ok(run_train_pairs("small", small, NULL));
    assert_ok(run_train_pairs("pupil", distilled, NULL));
    assert_ok(run_train_pairs("scorer", scoring, NULL)); // an actor with the teacher's weights
    assert_true(run_query_number("pupil", teacher_logp) == run_query_number("scorer", actor_logp));
    assert_true(run_query_number("pupil", actor_logp) != run_query_number("scorer", actor_logp));
    assert_ok(run_train_pairs("valued", ppo, with_critic));
    assert_true(run_query_number("valued", critics) == 1.0);
    assert_true(run_query_number("taught", critics) == 0.0); // the critic has the actor's shape
    assert_ok(run_train_pairs("close", close, NULL));
    assert_fails(run_train_pairs("far", short_teacher, NULL), INVAR_E_INVALID,
                 "'opd-teacher-load' takes 8 tokens, and samples may have 16");
}

/* A teacher keeps no masters, but its weights have the digest that they have as an actor's. */
static void test_train__a_teacher_has_no_masters(void **state)
{
    const run_pair distilled[] = {{"use-opd", "true"},
                                  {"opd-teacher-load", run_path("small.ckpt")},
                                  {"dtype", "bf16"},
                                  {NULL, NULL}};
    const run_pair actor[] = {{"num-layers", "2"},
                              {"hidden-size", "32"},
                              {"ref-load", run_path("small.ckpt")},
                              {"dtype", "bf16"},
                              {NULL, NULL}};
    invar_recipe *recipes[] = {run_recipe(run_path("x"), distilled, NULL),
                               run_recipe(run_path("x"), actor, NULL)};
    invar_run_context contexts[2];

    (void)state;
    for (int i = 0; i < 2; i++)
        assert_ok(
            invar_run_context_open(&contexts[i], config_of(recipes[i]), INVAR_RUN_CONTEXT_LEARN));
    assert_true(contexts[0].models.teacher->no_masters);
    assert_false(contexts[1].models.actor->no_masters);
    assert_true(invar_digest_equal(&contexts[0].teacher.weights, &contexts[1].weights));
    for (int i = 0; i < 2; i++) {
        invar_run_context_close(&contexts[i]);
        invar_recipe_free(recipes[i]);
    }
}

static void test_train__without_the_optimizer_weights_stay(void **state)
{
    const run_pair still[] = {
        {"debug-disable-optimizer", "true"}, {"save", run_path("still.ckpt")}, {NULL, NULL}};
    static const char pairs[] = "SELECT count(*) FROM digests a JOIN digests b ON a.step = b.step "
                                "AND b.name = 'critic.' || a.name WHERE a.name LIKE "
                                "'weight.model.%%' %s";
    char sql[256];

    (void)state;
    assert_ok(run_train_pairs("still", ppo, still));
    assert_true(critic_head("still.ckpt") == 0.0f);
    assert_true(run_query_number("still", "SELECT count(DISTINCT weights_hash) FROM sample") ==
                1.0);
    assert_true(run_query_number("still", "SELECT max(value) FROM metrics WHERE name = "
                                          "'train/critic-grad_norm'") > 0.0);
    // without steps, the critic's layers keep the weights of the actor; control: with steps not
    (void)snprintf(sql, sizeof sql, pairs, "");
    assert_true(run_query_number("still", sql) > 0.0);
    assert_true(run_query_number("ppo", sql) > 0.0);
    (void)snprintf(sql, sizeof sql, pairs, "AND a.hash <> b.hash");
    assert_true(run_query_number("still", sql) == 0.0);
    assert_true(run_query_number("ppo", sql) > 0.0);
}

/* Points of level "full" do not depend on free settings and separate actor and critic. */
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
    assert_ok(run_train_pairs("fine", experts, NULL));
    assert_ok(run_train_pairs("fine.other", experts, other));
    assert_ok(run_train_pairs("fine.coarse", experts, coarse));
    one = digests_of("fine");
    again = digests_of("fine.other");
    assert_true(invar_digest_equal(&one, &again));
    again = digests_of("fine.coarse");
    assert_false(invar_digest_equal(&one, &again));
    (void)snprintf(sql, sizeof sql, points, "%layer.0.q");
    assert_true(run_query_number("fine", sql) ==
                3.0); // points of the rollout, the actor and the critic
    assert_true(run_query_number("fine.coarse", sql) == 0.0);
    (void)snprintf(sql, sizeof sql, points, "%layer.0.attn");
    assert_true(run_query_number("fine", sql) == 3.0);
    assert_true(run_query_number("fine.coarse", sql) == 3.0);
}

/* Tokens from files are computed by the rollout again if its points are recorded. */
static void test_train__given_rollouts_have_points(void **state)
{
    const run_pair sampled[] = {{"debug-determinism", "full"},
                                {"num-steps-per-rollout", "2"},
                                {"save-debug-rollout-data", run_path("given.{rollout_id}")},
                                {NULL, NULL}};
    const run_pair given[] = {{"debug-determinism", "full"},
                              {"num-steps-per-rollout", "2"},
                              {"load-debug-rollout-data", run_path("given.{rollout_id}")},
                              {NULL, NULL}};
    const run_pair alone[] = {{"debug-train-only", "true"}, {NULL, NULL}};
    static const char tokens[] = "SELECT count(*) FROM point WHERE name = 'rollout.token'";
    invar_digest one, again;

    (void)state;
    assert_ok(run_train_pairs("drawn", sampled, NULL));
    assert_ok(run_train_pairs("given", given, NULL));
    one = digests_of("drawn");
    again = digests_of("given");
    assert_true(invar_digest_equal(&one, &again));
    assert_true(run_query_number("given", tokens) == 1.0);
    assert_ok(run_train_pairs("alone", given, alone)); // debug-train-only: no rollout
    assert_true(run_query_number("alone", tokens) == 0.0);
}

/* ---- other kinds of runs --------------------------------------------------------------------- */

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
    assert_ok(run_train_pairs("sft", sft, NULL));
    assert_true(run_query_number("sft", "SELECT count(*) FROM evaluation") >= 3.0);
    (void)snprintf(sql, sizeof sql, loss, "ASC");
    first = run_query_number("sft", sql);
    (void)snprintf(sql, sizeof sql, loss, "DESC");
    last = run_query_number("sft", sql);
    assert_true(last > 0.0 && last < 0.8 * first);
    // nothing is sampled, so there is no reward and no log-prob to compare with
    assert_true(run_query_number("sft",
                                 "SELECT count(*) FROM metrics WHERE name GLOB 'train/logp_diff_*'"
                                 " OR name GLOB 'train/train_rollout_*'"
                                 " OR name GLOB 'rollout/zero_std/*' OR name IN"
                                 " ('rollout/raw_reward', 'rollout/advantages',"
                                 "  'rollout/rollout_log_probs')") == 0.0);
    assert_true(run_query_number("sft", "SELECT count(*) FROM samples WHERE diff IS NOT NULL"
                                        " OR diff_at <> -1") == 0.0);
}

static void test_train__exports_without_checkpoints(void **state)
{
    const run_pair export[] = {
        {"save-hf", run_path("hf/{rollout_id}")}, {"save-interval", "1"}, {NULL, NULL}};

    (void)state;
    assert_ok(run_train_pairs("export", export, NULL));
    assert_true(invar_path_exists(run_path("hf/0/config.json")));
    assert_true(invar_path_exists(run_path("hf/1/model.safetensors")));
}

/*
 * Greedy rollouts have the log-probs at temperature 1, which a run at that temperature computes for
 * the same tokens. Control: a run at another temperature computes others.
 */
static void test_train__greedy_rollouts(void **state)
{
    const run_pair greedy[] = {{"rollout-temperature", "0"},
                               {"debug-rollout-only", "true"},
                               {"save-debug-rollout-data", run_path("greedy.{rollout_id}")},
                               {NULL, NULL}};
    const run_pair scored[] = {{"load-debug-rollout-data", run_path("greedy.{rollout_id}")},
                               {"num-rollout", "1"},
                               {NULL, NULL}};
    const run_pair cold[] = {{"rollout-temperature", "0.5"}, {NULL, NULL}};
    static const char sampled[] =
        "SELECT value FROM metrics WHERE name = 'rollout/rollout_log_probs' AND step = 0";
    static const char computed[] =
        "SELECT value FROM metrics WHERE name = 'rollout/log_probs' AND step = 0";
    double logp;

    (void)state;
    assert_ok(run_train_pairs("greedy", greedy, NULL));
    assert_int_equal(run_digests_of("greedy").last, 1);
    assert_ok(run_train_pairs("greedy.scored", scored, NULL));
    assert_ok(run_train_pairs("greedy.cold", scored, cold));
    logp = run_query_number("greedy", sampled);
    assert_true(logp < 0.0);
    assert_true(run_query_number("greedy.scored", computed) == logp);
    assert_true(run_query_number("greedy.cold", computed) != logp);
}

static size_t live_bytes, peak;

static void *count_alloc(size_t bytes, void *payload)
{
    void *block = NULL;

    (void)payload;
    if (posix_memalign(&block, INVAR_ALIGN, bytes ? bytes : 1) != 0)
        return NULL;
    live_bytes += malloc_usable_size(block);
    peak = live_bytes > peak ? live_bytes : peak;
    return block;
}

static void count_free(void *block, void *payload)
{
    (void)payload;
    live_bytes -= block ? malloc_usable_size(block) : 0;
    free(block);
}

/* Returns the peak of the heap memory of a run. */
static size_t peak_memory(const char *name, const run_pair *model, const run_pair *more)
{
    const invar_allocator counting = {count_alloc, count_free, NULL};

    live_bytes = peak = 0;
    invar_allocator_set(&counting);
    assert_ok(run_train_pairs(name, model, more));
    invar_allocator_set(NULL);
    assert_int_equal(live_bytes, 0);
    return peak;
}

/* Rollout-only runs have no gradients and no moments; their checkpoints can be resumed. */
static void test_train__rollouts_alone_need_no_gradients(void **state)
{
    const size_t masters = (size_t)4 * 512 * 512 * sizeof(float);
    const run_pair wide[] = {{"hidden-size", "512"},    {"num-attention-heads", "4"},
                             {"ffn-hidden-size", "64"}, {"dtype", "fp32"},
                             {"threads", "1"},          {NULL, NULL}};
    const run_pair only[] = {{"debug-rollout-only", "true"}, {NULL, NULL}};
    const run_pair first[] = {{"debug-rollout-only", "true"},
                              {"debug-exit-after-rollout", "1"},
                              {"save", run_path("only.ckpt")},
                              {"load", run_path("only.ckpt")},
                              {NULL, NULL}};
    const run_pair from[] = {{"ref-load", run_path("only.ckpt")}, {NULL, NULL}};
    run_digests one, again;
    size_t with, without;

    (void)state;
    with = peak_memory("wide", wide, NULL);
    without = peak_memory("wide.only", wide, only);
    assert_true(with > without + 3 * masters);
    one = run_digests_of("wide.only");
    assert_ok(run_train_pairs("wide.part", wide, first));
    again = run_train_ok("wide.part", wide, first);
    assert_true(run_same(&one, &again));
    // checkpoints of these runs have no weights, because these never change
    assert_true(invar_path_exists(run_path("only.ckpt/iter_0000001/state.json")));
    assert_false(invar_path_exists(run_path("only.ckpt/iter_0000001/model.safetensors")));
    assert_fails(run_train_pairs("wide.other", wide, from), INVAR_E_INVALID,
                 "iter_0000001 has no weights: its run has debug-rollout-only");
}

static void test_train__refuses_a_missing_device(void **state)
{
    const run_pair cuda[] = {{"device", "cuda"}, {NULL, NULL}};

    (void)state;
    assert_int_equal(setenv("CUDA_VISIBLE_DEVICES", "", 1), 0); // a build with CUDA finds none
    assert_fails(run_train_pairs("cuda", cuda, NULL), INVAR_E_NODEVICE, "choose device = cpu");
}

static void test_train__refuses_less_than_a_rollout(void **state)
{
    const run_pair little[] = {
        {"num-rollout", "0"}, {"num-epoch", "1"}, {"rollout-batch-size", "16"}, {NULL, NULL}};

    (void)state;
    assert_fails(run_train_pairs("little", little, NULL), INVAR_E_INVALID, "give num-rollout");
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
    run_digests with, renamed, without, no_interval, logged;

    (void)state;
    with = run_train_ok("eval.a", a, NULL);
    renamed = run_train_ok("eval.b", b, NULL);
    without = run_train_ok("eval.none", none, NULL);
    no_interval = run_train_ok("eval.unused", unused, NULL);
    logged = run_train_ok("eval.rate", rate, NULL);
    // evaluation does not change training (chain), but what the run logs (content)
    assert_true(invar_digest_equal(&with.chain, &without.chain));
    assert_true(invar_digest_equal(&with.chain, &renamed.chain));
    assert_false(invar_digest_equal(&with.content, &without.content));
    assert_false(invar_digest_equal(&with.identity, &renamed.identity));
    assert_false(invar_digest_equal(&with.identity, &without.identity));
    assert_true(invar_digest_equal(&no_interval.identity, &without.identity));
    assert_true(run_same(&no_interval, &without));
    assert_false(invar_digest_equal(&logged.content, &without.content));
    assert_false(invar_digest_equal(&logged.identity, &without.identity));
    assert_fails(run_train_pairs("eval.a", b, NULL), INVAR_E_STATE, "eval data hash");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_train__ppo_has_one_chain),
        cmocka_unit_test(test_train__ppo_critic_learns),
        cmocka_unit_test(test_train__critic_from_checkpoints),
        cmocka_unit_test(test_train__teachers_and_critics_of_another_size),
        cmocka_unit_test(test_train__a_teacher_has_no_masters),
        cmocka_unit_test(test_train__without_the_optimizer_weights_stay),
        cmocka_unit_test(test_train__finer_points_have_one_value),
        cmocka_unit_test(test_train__given_rollouts_have_points),
        cmocka_unit_test(test_train__supervised_with_evaluation),
        cmocka_unit_test(test_train__exports_without_checkpoints),
        cmocka_unit_test(test_train__greedy_rollouts),
        cmocka_unit_test(test_train__rollouts_alone_need_no_gradients),
        cmocka_unit_test(test_train__refuses_a_missing_device),
        cmocka_unit_test(test_train__refuses_less_than_a_rollout),
        cmocka_unit_test(test_train__identity_has_the_evaluation_data),
    };

    return cmocka_run_group_tests(tests, setup, run_teardown);
}
