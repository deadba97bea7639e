/*
 * formats.c - tests of runs that sample in another format than they train in (rollout-dtype).
 *
 * The first rollout is compared with that of a run that trains in the sampling format, and log-prob
 * differences must be measured, bounded and corrected by importance sampling. Controls: runs
 * without rollout-dtype.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/memory_workload.h"
#include "engine/run/replay/regenerate.h"
#include "tests/run.h"
#include "tests/unit/engine/config/config_of.h"

/* A model that every format supports, with weights that each format rounds differently. */
#define WIDE                                                                                       \
    {"hidden-size", "64"}, {"ffn-hidden-size", "64"}, {"init-method-std", "0.2"},                  \
    {                                                                                              \
        "lr", "0.02"                                                                               \
    }

static const run_pair bf16_fp8[] = {
    WIDE, {"dtype", "bf16"}, {"rollout-dtype", "fp8"}, {"num-rollout", "3"}, {NULL, NULL}};

static int setup(void **state)
{
    (void)state;
    return run_setup(INVAR_TEST_WORK "/formats");
}

#define GAUGES "FROM gauge g JOIN series n ON n.series = g.series WHERE n.name = "
#define MEASURED "SELECT count(*) " GAUGES "'train/logp_diff_max' AND g.value > 0"
#define COMPARED "SELECT count(*) FROM metrics WHERE name = 'train/logp_diff_max'"
#define SAMPLES "SELECT count(*) FROM samples WHERE diff > 0"

/* ---- differences ----------------------------------------------------------------------------- */

static void check_pair(int train, int sample)
{
    const run_pair formats[] = {WIDE,
                                {"num-rollout", "1"},
                                {"dtype", invar_format_name((invar_format)train)},
                                {"rollout-dtype", invar_format_name((invar_format)sample)},
                                {NULL, NULL}};
    char name[16];

    (void)snprintf(name, sizeof name, "pair.%d%d", train, sample);
    assert_ok(run_train_pairs(name, formats, NULL));
    assert_true(run_query_number(name, MEASURED) == 1.0);
    assert_true(run_query_number(name, COMPARED) == 0.0);
    assert_true(run_query_number(name, SAMPLES) > 0.0);
}

static void test_formats__every_pair_measures_a_difference(void **state)
{
    const run_pair same[] = {{"rollout-dtype", ""}, {NULL, NULL}};

    (void)state;
    for (int train = 0; train < INVAR_FORMAT_COUNT; train++)
        for (int sample = 0; sample < INVAR_FORMAT_COUNT; sample++)
            if (train != sample)
                check_pair(train, sample);
    assert_ok(run_train_pairs("same", bf16_fp8, same));
    assert_true(run_query_number("same", MEASURED) == 0.0);
    assert_true(run_query_number("same", COMPARED) == 3.0);
    assert_true(run_query_number("same", SAMPLES) == 0.0);
}

static invar_status update_hasher(void *payload, const char *const *columns,
                                  const invar_ledger_value *values, int count)
{
    (void)columns;
    for (int i = 0; values && i < count; i++)
        invar_hasher_update(payload, values[i].data, values[i].bytes);
    return INVAR_OK;
}

/* Returns the digest of the tokens and log-probs of the first rollout. */
static invar_digest first_rollout(const char *name)
{
    invar_hasher hasher;
    invar_digest out;

    invar_hasher_init(&hasher);
    run_select(name, "SELECT token_hash, rollout_logp FROM samples WHERE step = 0 ORDER BY idx",
               update_hasher, &hasher);
    invar_hasher_final(&out, &hasher);
    return out;
}

static void test_formats__samples_equal_a_run_in_that_format(void **state)
{
    const run_pair fp8[] = {{"dtype", "fp8"}, {"rollout-dtype", ""}, {NULL, NULL}};
    const run_pair bf16[] = {{"rollout-dtype", ""}, {NULL, NULL}};
    invar_digest both, alone, other;

    (void)state;
    assert_ok(run_train_pairs("both", bf16_fp8, NULL));
    assert_ok(run_train_pairs("fp8", bf16_fp8, fp8));
    assert_ok(run_train_pairs("bf16", bf16_fp8, bf16));
    both = first_rollout("both");
    alone = first_rollout("fp8");
    other = first_rollout("bf16");
    assert_true(invar_digest_equal(&both, &alone));
    assert_false(invar_digest_equal(&both, &other));
}

/* ---- one chain ------------------------------------------------------------------------------- */

static void test_formats__nothing_free_changes_the_chain(void **state)
{
    const run_pair other[] = {{"threads", "3"},
                              {"micro-batch-size", "1"},
                              {"page-size", "3"},
                              {"rollout-concurrency", "1"},
                              {"log-probs-chunk-size", "1"},
                              {"debug-determinism", "full"},
                              {"max-logp-diff", "10"},
                              {NULL, NULL}};
    const run_pair half[] = {{"save", run_path("half.ckpt")},
                             {"load", run_path("half.ckpt")},
                             {"debug-exit-after-rollout", "2"},
                             {NULL, NULL}};
    const run_pair write[] = {{"save-debug-rollout-data", run_path("files/{rollout_id}")},
                              {NULL, NULL}};
    const run_pair read[] = {{"load-debug-rollout-data", run_path("files/{rollout_id}")},
                             {NULL, NULL}};
    run_digests one, again;

    (void)state;
    one = run_train_ok("one", bf16_fp8, NULL);
    again = run_train_ok("free", bf16_fp8, other);
    assert_true(run_same(&one, &again));
    assert_ok(run_train_pairs("half", bf16_fp8, half));
    assert_int_equal(run_digests_of("half").last, 1);
    again = run_train_ok("half", bf16_fp8, half);
    assert_true(run_same(&one, &again));
    assert_ok(run_train_pairs("written", bf16_fp8, write));
    again = run_train_ok("read", bf16_fp8, read);
    assert_true(run_same(&one, &again));
}

static invar_status parse_coords(void *payload, const char *const *columns,
                                 const invar_ledger_value *values, int count)
{
    (void)columns;
    assert_int_equal(values ? count : 2, 2);
    if (!values)
        return INVAR_OK;
    assert_ok(invar_rng_coords_parse(payload, values[0].data));
    return INVAR_OK;
}

/* A sample of the last rollout, regenerated from a checkpoint, has the recorded log-probs. */
static void test_formats__rollouts_use_the_current_weights(void **state)
{
    const run_pair kept[] = {{"save", run_path("kept.ckpt")}, {"save-interval", "1"}, {NULL, NULL}};
    invar_recipe *recipe = run_recipe(run_path("kept"), bf16_fp8, kept);
    invar_rl_samples samples = {0};
    invar_run_context context;
    invar_rng_coords coords;
    invar_digest logp;
    char sql[160], hex[INVAR_DIGEST_HEX_SIZE];

    (void)state;
    assert_ok(run_train(recipe));
    run_select("kept", "SELECT rng, idx FROM samples WHERE step = 2 AND idx = 1", parse_coords,
               &coords);
    assert_ok(invar_run_context_open(&context, config_of(recipe), INVAR_RUN_CONTEXT_DATA));
    assert_ok(invar_regenerate(&samples, &context, &coords));
    invar_hash_bytes(&logp, samples.items[0].logp,
                     (size_t)invar_rl_sample_response(samples.items) * sizeof(float));
    invar_digest_format(hex, &logp);
    (void)snprintf(sql, sizeof sql,
                   "SELECT count(*) FROM samples WHERE step = 2 AND idx = 1 AND "
                   "lower(hex(rollout_logp)) = '%s'",
                   hex);
    assert_true(run_query_number("kept", sql) == 1.0);
    invar_rl_samples_reset(&samples);
    invar_run_context_close(&context);
    invar_recipe_free(recipe);
}

/* ---- max-logp-diff --------------------------------------------------------------------------- */

static void test_formats__a_bound_stops_the_run_or_is_recorded(void **state)
{
    static const char events[] = "SELECT count(*) FROM event WHERE kind = 'logp-bound'";
    const run_pair low[] = {{"max-logp-diff", "1e-6"}, {NULL, NULL}};
    const run_pair recorded[] = {
        {"max-logp-diff", "1e-6"}, {"on-mismatch", "record"}, {NULL, NULL}};
    run_digests one, again;

    (void)state;
    assert_fails(run_train_pairs("stops", bf16_fp8, low), INVAR_E_MISMATCH,
                 "more than max-logp-diff = 1e-06");
    assert_true(run_query_number("stops", events) == 1.0);
    one = run_digests_of("one");
    again = run_train_ok("told", bf16_fp8, recorded);
    assert_true(run_same(&one, &again));
    assert_true(run_query_number("told", events) == 3.0);
}

/* ---- importance sampling --------------------------------------------------------------------- */

static void test_formats__importance_sampling_changes_the_run(void **state)
{
    static const char clipped[] =
        "SELECT count(*) FROM metrics WHERE name = 'train/tis_clipfrac' AND value > 0";
    const run_pair tis[] = {{"use-tis", "true"}, {"tis-clip", "1"}, {NULL, NULL}};
    const run_pair icepop[] = {
        {"use-tis", "true"}, {"tis-clip", "1"}, {"tis-mode", "icepop"}, {NULL, NULL}};
    const run_pair mis[] = {{"use-mis", "true"}, {"mis-level", "sequence"}, {NULL, NULL}};
    const run_pair rollout_logprobs[] = {{"use-rollout-logprobs", "true"}, {NULL, NULL}};
    const run_pair many[] = {
        WIDE, {"rollout-dtype", "int4"}, {"n-samples-per-prompt", "8"}, {NULL, NULL}};
    run_digests all[5];

    (void)state;
    all[0] = run_train_ok("plain", many, NULL);
    all[1] = run_train_ok("tis", many, tis);
    all[2] = run_train_ok("icepop", many, icepop);
    all[3] = run_train_ok("mis", many, mis);
    all[4] = run_train_ok("theirs", many, rollout_logprobs);
    assert_true(run_query_number("tis", clipped) > 0.0);
    assert_true(run_query_number("theirs", MEASURED) ==
                0.0); // the training log-probs are a copy of the rollout's
    for (int i = 0; i < 5; i++)
        for (int j = 0; j < i; j++)
            assert_false(invar_digest_equal(&all[i].chain, &all[j].chain));
}

/* ---- memory ---------------------------------------------------------------------------------- */

static void test_formats__memory_has_the_second_weights(void **state)
{
    invar_recipe *recipe = run_recipe(run_path("plan"), bf16_fp8, NULL);
    invar_memory_planning planning;
    size_t bytes = 0;

    (void)state;
    assert_ok(invar_memory_planning_open(&planning, config_of(recipe), 0));
    assert_ok(invar_memory_plan_make(&planning.plan, &planning.workload, planning.available));
    for (int i = 0; i < planning.plan.n_items; i++)
        if (strcmp(planning.plan.items[i].name, "rollout: weights") == 0)
            bytes = planning.plan.items[i].bytes;
    assert_true(bytes > 0 && bytes < planning.plan.items[0].bytes / 2); // fp8 without masters
    invar_memory_planning_release(&planning);
    invar_recipe_free(recipe);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_formats__every_pair_measures_a_difference),
        cmocka_unit_test(test_formats__samples_equal_a_run_in_that_format),
        cmocka_unit_test(test_formats__nothing_free_changes_the_chain),
        cmocka_unit_test(test_formats__rollouts_use_the_current_weights),
        cmocka_unit_test(test_formats__a_bound_stops_the_run_or_is_recorded),
        cmocka_unit_test(test_formats__importance_sampling_changes_the_run),
        cmocka_unit_test(test_formats__memory_has_the_second_weights),
    };

    return cmocka_run_group_tests(tests, setup, run_teardown);
}
