/*
 * queries.c - tests that each named query finds its fault, and nothing in a healthy run.
 *
 * Each test compares the rows for a ledger with one fault, and, as the control, for a healthy
 * ledger. Queries that compare two runs are in compare.c. The last test fails if a query has no
 * test.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/unit/ledger/query/query_fixture.h"

/* ---- bits ------------------------------------------------------------------------------------ */

static void test_ledger_queries__turns(void **state)
{
    static const char columns[] = "step round samples ended";
    const char *path = ledger_with_two_runs(
        "turns.db",
        &(invar_test_ledger){.steps = STEPS, .faults = {{INVAR_TEST_TURNS, .step = 17}}});

    (void)state;
    expect_fault(path, "turns", "run=2", columns, "17|0|3|1\n");
    expect_control(healthy, "turns", "run=1", columns, "");
}

static void test_ledger_queries__nondet_twins(void **state)
{
    static const char columns[] = "a b last_common first_step";
    const char *path = diverged;

    (void)state;
    // A run with another seed has another identity, so its differences are expected.
    assert_ok(invar_test_ledger_add(path, &(invar_test_ledger){.steps = 5, .seed = 1}));
    expect_fault(path, "nondet-twins", "", columns, "1|2|59|37\n");
    expect_control(healthy, "nondet-twins", "", columns, "");
}

static void test_ledger_queries__resume_overlap(void **state)
{
    static const char columns[] = "seg_old seg_new from_step to_step steps differing "
                                  "first_step first_point first_content_step";
    const char *path = raw_path("overlap.db");

    (void)state;
    assert_ok(invar_test_ledger_write(
        path, &(invar_test_ledger){
                  .steps = STEPS,
                  .crash = 45,
                  .resume = 35,
                  .faults = {{INVAR_TEST_OVERLAP, .step = 37, .point = "layer.0.mlp.out"}}}));
    expect_fault(path, "resume-overlap", "run=1", columns,
                 "0|1|35|44|10|1|37|layer.0.mlp.out|37\n");
    expect_control(healthy, "resume-overlap", "run=3", columns, "0|1|35|44|10|0|-|-|-\n");
    expect_control(healthy, "resume-overlap", "run=1", columns, "");
    // A checkpoint of a step that the resume replaced with other bits cannot be restored, so step
    // 39 counts once.
    expect_fault(path, "restore-points", "run=1", "step path times_made",
                 "59|checkpoints/000059|1\n49|checkpoints/000049|1\n39|checkpoints/000039|1\n"
                 "29|checkpoints/000029|1\n19|checkpoints/000019|1\n9|checkpoints/000009|1\n");
    expect_control(healthy, "restore-points", "run=3", "step path times_made",
                   "59|checkpoints/000059|1\n49|checkpoints/000049|1\n39|checkpoints/000039|2\n"
                   "29|checkpoints/000029|1\n19|checkpoints/000019|1\n9|checkpoints/000009|1\n");
}

static void test_ledger_queries__numerics_blame(void **state)
{
    static const char columns[] =
        "commit commit_before run run_before differing first_point author subject";
    const char *path = raw_path("ci.db");

    (void)state;
    assert_ok(invar_test_ledger_ci(path, 2, true));
    expect_fault(path, "numerics-blame", "case=tiny", columns,
                 "c3|c2|5|6|9|layer.1.mlp.out|A. Author|change 3\n"
                 "c6|c5|2|3|3|layer.0.attn.grad|A. Author|change 6\n");
    expect_fault(path, "numerics-blame", "case=tiny point=%.mlp.weight", columns,
                 "c3|c2|5|6|1|layer.1.mlp.weight|A. Author|change 3\n");
    expect_rows(path, "numerics-blame", "case=other", columns, "");
    path = raw_path("ci_quiet.db");
    assert_ok(invar_test_ledger_ci(path, 2, false));
    expect_control(path, "numerics-blame", "case=tiny", columns, "");
}

static void test_ledger_queries__nan_birth(void **state)
{
    const char *path = ledger_with_fault(
        "nan.db", (invar_test_fault){INVAR_TEST_NAN, 23, "layer.0.mlp.out", 0, 0});

    (void)state;
    expect_fault(path, "nan-birth", "run=1 count=2", "step seg rank point phase layer nans infs",
                 "23|0|0|layer.0.mlp.out|forward|0|3|0\n23|0|0|layer.1.attn.out|forward|1|3|0\n");
    expect_control(healthy, "nan-birth", "run=1", "step", "");
    expect_fault(path, "metric-summary", "run=1", "metric steps nans",
                 "rollout/entropy|60|0\nrollout/log_probs|60|0\nrollout/raw_reward|60|0\n"
                 "rollout/response_len/max|60|0\nrollout/response_len/mean|60|0\n"
                 "rollout/truncated_ratio|60|0\ntrain/entropy_loss|60|0\ntrain/grad_norm|60|37\n"
                 "train/kl_loss|60|0\ntrain/logp_diff_max|60|0\ntrain/logp_diff_p50|60|0\n"
                 "train/logp_diff_p99|60|0\ntrain/logp_diff_worst_position|60|0\n"
                 "train/logp_diff_worst_sample|60|0\ntrain/loss|60|37\ntrain/lr-pg_0|60|0\n"
                 "train/pg_clipfrac|60|0\ntrain/pg_loss|60|0\ntrain/ppo_kl|60|0\n"
                 "train/train_rollout_logprob_abs_diff|60|0\n");
    expect_fault(path, "first-threshold", "run=1 metric=train/loss limit=10 window=0",
                 "step what detail", "23|threshold|train/loss = NaN\n");
    expect_fault(path, "metric-jump", "run=1 metric=train/loss", "step value", "23|-\n");
}

static void test_ledger_queries__rank_desync(void **state)
{
    static const char columns[] = "step seg rank point phase layer kind";
    const char *path = ledger_with_fault(
        "desync.db", (invar_test_fault){INVAR_TEST_DESYNC, 23, "layer.1.mlp.weight", 0, 0});

    (void)state;
    expect_fault(path, "rank-desync", "run=1 count=2", columns,
                 "23|0|2|layer.1.mlp.weight|optimizer|1|param\n"
                 "24|0|2|layer.1.mlp.weight|optimizer|1|param\n");
    expect_control(healthy, "rank-desync", "run=1", columns, "");
}

/*
 * Writes two steps of a fused call and its parts; if `wrong`, the second step differs between them.
 */
static const char *with_parts(const char *name, bool wrong)
{
    const int64_t shape[] = {-1, 8};
    invar_ledger_point points[2] = {{.name = "layer.3.attn",
                                     .phase = "forward",
                                     .layer = 3,
                                     .op = "linear.fwd",
                                     .kind = "act",
                                     .level = 1,
                                     .dtype = "bf16",
                                     .shape = shape,
                                     .dims = 2,
                                     .shards = 1}};
    const char *path = raw_path(name);
    invar_ledger *ledger;

    points[1] = points[0];
    points[1].name = "layer.3.attn.parts";
    points[1].op = "add";
    assert_ok(invar_ledger_open(&ledger, path, &(invar_ledger_options){.create = true}));
    assert_ok(invar_ledger_begin(
        ledger, &(invar_ledger_run){
                    .name = "a", .kind = "train", .circumstances = {.no_auto_facts = true}}));
    assert_ok(invar_ledger_define(ledger, points, 2));
    for (int64_t step = 0; step < 2; step++) {
        invar_digest digests[2] = {{{(uint8_t)step}}, {{(uint8_t)(step + (wrong && step == 1))}}};
        assert_ok(
            invar_ledger_append(ledger, &(invar_ledger_step){.step = step, .digests = digests}));
    }
    invar_ledger_close(ledger);
    return path;
}

static void test_ledger_queries__fused_differs(void **state)
{
    static const char columns[] = "step seg rank point phase layer fused last_part";

    (void)state;
    expect_fault(with_parts("fused.db", true), "fused-differs", "run=1", columns,
                 "1|0|0|layer.3.attn|forward|3|linear.fwd|add\n");
    expect_control(with_parts("parts.db", false), "fused-differs", "run=1", columns, "");
}

static void test_ledger_queries__frozen_weights(void **state)
{
    static const char columns[] = "first_step steps point layer";
    const char *path = ledger_with_fault(
        "frozen.db", (invar_test_fault){INVAR_TEST_FROZEN, 23, "layer.0.attn.weight", 0, 0});

    (void)state;
    expect_fault(path, "frozen-weights", "run=1", columns, "23|37|layer.0.attn.weight|0\n");
    expect_control(healthy, "frozen-weights", "run=3", columns, "");
}

static void test_ledger_queries__repeated_batch(void **state)
{
    const char *path = ledger_with_fault(
        "batch.db", (invar_test_fault){INVAR_TEST_BATCH_REPEATED, 31, NULL, 12, 0});

    (void)state;
    expect_fault(path, "repeated-batch", "run=1", "step same_as_step", "31|12\n");
    expect_control(healthy, "repeated-batch", "run=3", "step", "");
}

static void test_ledger_queries__rng_reuse(void **state)
{
    static const char columns[] = "what step sample same_as_step same_as_sample";
    const char *path =
        ledger_with_fault("rng.db", (invar_test_fault){INVAR_TEST_RNG_REUSED, 31, NULL, 12, 0});

    (void)state;
    expect_fault(path, "rng-reuse", "run=1", columns, "step|31|-|12|-\nsample|31|0|12|0\n");
    expect_control(healthy, "rng-reuse", "run=3", columns, "");
}

/* ---- samples --------------------------------------------------------------------------------- */

static void test_ledger_queries__log_probs(void **state)
{
    static const char gap[] =
        "samples differing first_step last_step worst worst_step worst_sample worst_position";
    const char *path = ledger_with_fault(
        "logp.db", (invar_test_fault){INVAR_TEST_LOGP_MISMATCH, 44, NULL, 5, 0.5});

    (void)state;
    expect_fault(path, "logprob-gap", "run=1", gap, "480|1|44|44|0.5|44|5|17\n");
    expect_control(healthy, "logprob-gap", "run=3", gap, "480|0|-|-|-|-|-|-\n");
    expect_fault(path, "worst-tokens", "run=1", "difference step sample position prompt",
                 "0.5|44|5|17|9\n");
    expect_control(healthy, "worst-tokens", "run=3", "step", "");
}

static void test_ledger_queries__staleness(void **state)
{
    static const char columns[] = "from_step least_lag most_lag mean_lag mixed_samples samples";
    static const char made[] = "step sample prompt rng weights_first weights_last checkpoint_step "
                               "checkpoint";
    const char *path =
        ledger_with_fault("stale.db", (invar_test_fault){INVAR_TEST_STALE, 20, NULL, 3, 0});

    (void)state;
    expect_fault(path, "staleness", "run=1 bucket=20", columns,
                 "0|0|0|0|0|160\n20|3|4|3.25|80|160\n40|3|4|3.25|80|160\n");
    expect_control(healthy, "staleness", "run=3 bucket=20", columns,
                   "0|0|0|0|0|160\n20|0|0|0|0|160\n40|0|0|0|0|160\n");
    // The checkpoint of step 29 holds weights version 30, too new for a sample of version 29.
    expect_fault(path, "policy-of-sample", "run=1 step=33 sample=2", made,
                 "33|2|2|0/33/2|29|30|19|checkpoints/000019\n");
    expect_control(healthy, "policy-of-sample", "run=1 step=33 sample=2", made,
                   "33|2|2|0/33/2|33|33|29|checkpoints/000029\n");
    expect_control(healthy, "policy-of-sample", "run=1 step=3 sample=2", made,
                   "3|2|6|0/3/2|3|3|-|-\n");
}

static void test_ledger_queries__rewards(void **state)
{
    static const char jump[] = "prompt samples_before samples_after reward_after";
    static const char history[] = "step samples lowest_reward mean_tokens";
    static const char signal[] = "from_step groups without_signal all_rewarded";
    const char *path =
        ledger_with_fault("rewards.db", (invar_test_fault){INVAR_TEST_REWARD_JUMP, 32, NULL, 0, 0});

    (void)state;
    expect_fault(path, "reward-jump", "run=1 step=32 window=24", jump, "3|12|12|1\n5|12|12|1\n");
    expect_control(healthy, "reward-jump", "run=1 step=32 window=24", jump, "");
    expect_fault(path, "prompt-history", "run=1 prompt=3", history,
                 "1|4|1|100.75\n9|4|0|114.25\n17|4|0|94.25\n25|4|0|98.75\n"
                 "33|4|1|286.25\n41|4|1|296.25\n49|4|1|291.5\n57|4|1|291.5\n");
    expect_control(healthy, "prompt-history", "run=1 prompt=3", history,
                   "1|4|1|100.75\n9|4|0|114.25\n17|4|0|94.25\n25|4|0|98.75\n"
                   "33|4|0|86.25\n41|4|0|96.25\n49|4|1|91.5\n57|4|0|91.5\n");
    expect_fault(path, "zero-signal", "run=1 bucket=30", signal, "0|60|9|1\n30|60|14|11\n");
    expect_control(healthy, "zero-signal", "run=1 bucket=30", signal, "0|60|9|1\n30|60|7|4\n");
}

static void test_ledger_queries__finish_reasons(void **state)
{
    static const char columns[] = "from_step finish samples";
    const char *path =
        ledger_with_fault("abort.db", (invar_test_fault){INVAR_TEST_ABORTED, 44, NULL, 5, 0});

    (void)state;
    expect_fault(path, "finish-reasons", "run=1 bucket=30", columns,
                 "0|length|13\n0|stop|227\n30|abort|1\n30|length|11\n30|stop|228\n");
    expect_control(healthy, "finish-reasons", "run=1 bucket=30", columns,
                   "0|length|13\n0|stop|227\n30|length|11\n30|stop|229\n");
}

/* ---- metrics --------------------------------------------------------------------------------- */

static void test_ledger_queries__spike(void **state)
{
    static const char when[] = "step what detail";
    const char *path = raw_path("spike.db"), *early = raw_path("early.db");

    (void)state;
    assert_ok(invar_test_ledger_write(
        early, &(invar_test_ledger){.steps = 12, .faults = {{INVAR_TEST_SPIKE, .step = 9}}}));
    assert_ok(invar_test_ledger_write(
        path, &(invar_test_ledger){.steps = STEPS,
                                   .crash = 43,
                                   .resume = 42,
                                   .faults = {{INVAR_TEST_SPIKE, .step = 44}}}));
    expect_fault(path, "first-threshold", "run=1 metric=train/grad_norm limit=10 window=4", when,
                 "41|event|warning config: reloaded: kl-loss-coef 0.1 -> 0.001\n"
                 "42|resume|segment 1 after step 41\n"
                 "44|threshold|train/grad_norm = 25.0\n");
    expect_control(healthy, "first-threshold", "run=3 metric=train/grad_norm limit=10", when, "");
    expect_fault(path, "moved-first", "run=1 step=44 window=30", "first_step metric value",
                 "42|train/kl_loss|0.25\n42|train/ppo_kl|0.5\n44|train/grad_norm|25\n");
    expect_control(healthy, "moved-first", "run=3 step=44 window=30", "first_step metric value",
                   "");
    expect_fault(path, "metric-jump", "run=1 metric=train/grad_norm", "step value", "44|25\n");
    expect_fault(early, "metric-jump", "run=1 metric=train/grad_norm", "step value", "9|25\n");
    expect_control(healthy, "metric-jump", "run=1 metric=train/grad_norm", "step value", "");
    expect_fault(
        path, "events", "run=1 text=RELOADED level=warning", "step seg level kind message data",
        "41|0|warning|config|reloaded: kl-loss-coef 0.1 -> 0.001|{\"key\": \"kl-loss-coef\"}\n");
    expect_control(healthy, "events", "run=1 level=warning", "step", "");
    expect_control(
        healthy, "events", "run=1", "step level kind message",
        "-|info|run|began\n9|info|checkpoint|checkpoint of step 9\n"
        "19|info|checkpoint|checkpoint of step 19\n29|info|checkpoint|checkpoint of step 29\n"
        "39|info|checkpoint|checkpoint of step 39\n49|info|checkpoint|checkpoint of step 49\n"
        "59|info|checkpoint|checkpoint of step 59\n");
}

static void test_ledger_queries__metric_summary(void **state)
{
    query_rows got = {.columns = "metric steps nans first last"};

    (void)state;
    control_tested[query_index("metric-summary")] = true;
    run_query(&got, healthy, "metric-summary", "run=3");
    assert_non_null(strstr(got.text, "\ntrain/loss|60|0|"));
    assert_non_null(strstr(got.text, "\ntrain/lr-pg_0|60|0|9.53674e-07|9.53674e-07\n"));
}

static void test_ledger_queries__eval_history(void **state)
{
    static const char columns[] = "dataset metric step value change";
    const char *path =
        ledger_with_fault("eval.db", (invar_test_fault){INVAR_TEST_EVAL_DROP, 40, NULL, 0, 0});

    (void)state;
    expect_fault(path, "eval-history", "run=1", columns,
                 "gsm8k|reward|9|0.326271|-\n"
                 "gsm8k|reward|19|0.387681|0.06141\n"
                 "gsm8k|reward|29|0.433544|0.0458631\n"
                 "gsm8k|reward|39|0.469101|0.0355568\n"
                 "gsm8k|reward|49|0.247475|-0.221626\n"
                 "gsm8k|reward|59|0.270642|0.0231675\n"
                 "gsm8k|truncated_ratio|9|0.03125|-\n"
                 "gsm8k|truncated_ratio|19|0.03125|0\n"
                 "gsm8k|truncated_ratio|29|0.03125|0\n"
                 "gsm8k|truncated_ratio|39|0.03125|0\n"
                 "gsm8k|truncated_ratio|49|0.03125|0\n"
                 "gsm8k|truncated_ratio|59|0.03125|0\n");
    expect_control(healthy, "eval-history", "run=3", columns,
                   "gsm8k|reward|9|0.326271|-\n"
                   "gsm8k|reward|19|0.387681|0.06141\n"
                   "gsm8k|reward|29|0.433544|0.0458631\n"
                   "gsm8k|reward|39|0.469101|0.0355568\n"
                   "gsm8k|reward|49|0.497475|0.0283736\n"
                   "gsm8k|reward|59|0.520642|0.0231675\n"
                   "gsm8k|truncated_ratio|9|0.03125|-\n"
                   "gsm8k|truncated_ratio|19|0.03125|0\n"
                   "gsm8k|truncated_ratio|29|0.03125|0\n"
                   "gsm8k|truncated_ratio|39|0.03125|0\n"
                   "gsm8k|truncated_ratio|49|0.03125|0\n"
                   "gsm8k|truncated_ratio|59|0.03125|0\n");
    expect_rows(healthy, "eval-history", "run=1 dataset=math%", columns, "");
}

static void test_ledger_queries__ab_effect(void **state)
{
    static const char columns[] = "pairs mean_difference variance b_higher b_lower equal";
    const char *path = raw_path("ab.db");

    (void)state;
    assert_ok(invar_test_ledger_ab(path, 3, true));
    expect_fault(path, "ab-effect", "experiment=lr metric=rollout/raw_reward step=2", columns,
                 "4|0.0625|0.015625|3|1|0\n");
    expect_rows(path, "ab-effect", "experiment=other metric=rollout/raw_reward step=2", columns,
                "");
    path = raw_path("aa.db");
    assert_ok(invar_test_ledger_ab(path, 3, false));
    expect_control(path, "ab-effect", "experiment=lr metric=rollout/raw_reward step=2", columns,
                   "4|0|0|0|0|4\n");
}

/* ---- time ------------------------------------------------------------------------------------ */

static void test_ledger_queries__time(void **state)
{
    const char *path =
        ledger_with_fault("slow.db", (invar_test_fault){INVAR_TEST_SLOW, 44, NULL, 0, 0});

    (void)state;
    expect_fault(path, "slow-steps", "run=1", "step seg phase ms", "44|0|rollout|10000\n");
    expect_control(healthy, "slow-steps", "run=3", "step", "");
    expect_fault(path, "time-share", "run=1", "phase steps longest_ms",
                 "rollout|60|10000\nbackward|60|637\nforward|60|318\noptimizer|60|106\n");
    expect_control(healthy, "time-share", "run=3", "phase steps longest_ms",
                   "rollout|70|1062\nbackward|70|637\nforward|70|318\noptimizer|70|106\n");
    expect_fault(path, "slow-ops", "run=1", "phase op steps ranks calls share mean_us longest_us",
                 "rollout|get|30|1|30|1|333817|1e+07\ntrain|linear.fwd|30|1|120|1|1000|2500\n");
    expect_rows(path, "slow-ops", "run=1 most=1", "op", "get\n");
    expect_control(healthy, "slow-ops", "run=3", "phase op calls mean_us",
                   "train|linear.fwd|120|1000\nrollout|get|30|500\n");
}

/* Rank 2 computes twice as long in the last ten of 60 steps. */
static void test_ledger_queries__ranks(void **state)
{
    static const char columns[] = "rank host steps computing_s waiting_s slowest_in verdict";
    const char *path =
        ledger_with_fault("straggler.db", (invar_test_fault){INVAR_TEST_STRAGGLER, 50, NULL, 2, 0});

    (void)state;
    expect_fault(path, "slow-ranks", "run=1", columns,
                 "2|node2|60|56|12|60|straggler\n0|node1|60|48|20|50|\n1|node1|60|48|20|50|\n");
    expect_rows(path, "slow-ranks", "run=1 margin=0.2", "rank verdict", "2|\n0|\n1|\n");
    expect_control(healthy, "slow-ranks", "run=3", columns,
                   "0|node1|60|48|12|60|\n1|node1|60|48|12|60|\n2|node2|60|48|12|60|\n");
    expect_fault(path, "rank-moves", "run=1",
                 "phase move ranks calls sent_mb received_mb waiting_s",
                 "rollout|samples|3|1440|180|180|26\ntrain|gradients|3|1440|180|180|26\n");
    expect_control(healthy, "rank-moves", "run=3", "phase move waiting_s longest_ms",
                   "rollout|samples|18|100\ntrain|gradients|18|100\n");
    // Control: ranks with more steps than another one are not slower.
    path = raw_path("other-ranks.db");
    assert_ok(invar_test_ledger_write(path, &(invar_test_ledger){.steps = STEPS}));
    raw_tamper(path, "DELETE FROM work WHERE rank = 2 AND step < 30");
    expect_control(path, "slow-ranks", "run=1", "rank steps verdict", "0|60|\n1|60|\n2|30|\n");
}

/* Weight syncs are events that a run with separate sampling ranks records. */
static void test_ledger_queries__weight_syncs(void **state)
{
    static const char columns[] = "step seg weights mb seconds mb_s hash";
    const char *path = raw_path("syncs.db");

    (void)state;
    assert_ok(invar_test_ledger_write(path, &(invar_test_ledger){.steps = STEPS}));
    raw_tamper(path, "INSERT INTO event SELECT 1, max(n), 99, 0, 59, 'debug', 'weight-sync', '', "
                     "'{\"weights\": 7, \"bytes\": 3000000, \"seconds\": 1.5, \"hash\": \"ab\"}', "
                     "0 FROM entry WHERE run = 1");
    expect_fault(path, "weight-syncs", "run=1", columns, "59|0|7|3|1.5|2|ab\n");
    expect_control(healthy, "weight-syncs", "run=3", columns, "");
}

/* Sampling ranks compute less than training ranks and are not compared with them. */
static void test_ledger_queries__sides(void **state)
{
    const char *path = raw_path("sides.db");

    (void)state;
    assert_ok(invar_test_ledger_write(path, &(invar_test_ledger){.steps = STEPS}));
    raw_tamper(path, "DELETE FROM work WHERE rank = 2 AND phase = 'train'");
    expect_control(path, "slow-ranks", "run=1", "rank steps verdict", "0|60|\n1|60|\n2|60|\n");
}

/* ---- runs and segments ----------------------------------------------------------------------- */

static void test_ledger_queries__lineage(void **state)
{
    static const char columns[] =
        "depth run name seg after_step commit dirty host exit_code reason fork_step";
    const char *path = raw_path("lineage.db");
    invar_ledger_summary parent;
    invar_ledger *ledger;

    (void)state;
    assert_ok(invar_test_ledger_write(
        path, &(invar_test_ledger){.steps = 20, .name = "old", .crash = 15, .resume = 10}));
    assert_ok(invar_ledger_open(&ledger, path, &(invar_ledger_options){0}));
    assert_ok(invar_ledger_find(&parent, ledger, NULL));
    invar_ledger_close(ledger);
    assert_ok(invar_test_ledger_add(
        path,
        &(invar_test_ledger){.steps = 5, .name = "new", .parent = parent.uuid, .fork_step = 19}));
    expect_fault(path, "lineage", "run=2", columns,
                 "0|2|new|0|-1|" COMMIT "|clean|node-1|0|done|19\n"
                 "1|1|old|0|-1|" COMMIT "|clean|node-1|-|-|-\n"
                 "1|1|old|1|9|" COMMIT "|clean|node-1|0|done|-\n");
    expect_control(healthy, "lineage", "run=1", columns,
                   "0|1|test|0|-1|" COMMIT "|clean|node-1|0|done|-\n");
}

static void test_ledger_queries__ends(void **state)
{
    static const char dead[] = "run name seg after_step last_step resumed";
    static const char words[] = "seg last_step reason exit_code step level kind message";
    const char *path = raw_path("ends.db");

    (void)state;
    assert_ok(invar_test_ledger_write(
        path, &(invar_test_ledger){.steps = STEPS,
                                   .crash = 45,
                                   .resume = 35,
                                   .killed = true,
                                   .faults = {{.kind = INVAR_TEST_DRIVER}}}));
    expect_fault(path, "dead-segments", "", dead, "1|test|0|-1|44|1\n1|test|1|34|59|0\n");
    expect_control(healthy, "dead-segments", "", dead, "3|test|0|-1|44|1\n");
    expect_fault(path, "last-words", "run=1 count=1", words,
                 "0|44|no orderly end|-|39|info|checkpoint|checkpoint of step 39\n"
                 "1|59|no orderly end|-|59|info|checkpoint|checkpoint of step 59\n");
    expect_control(healthy, "last-words", "run=1 count=1", words,
                   "0|59|done|0|59|info|checkpoint|checkpoint of step 59\n");
    expect_fault(path, "segment-drift", "run=1", "seg scope key value_before value",
                 "1|gpu|driver|580.65.06|580.95.05\n");
    expect_control(healthy, "segment-drift", "run=3", "seg", "");
}

static void test_ledger_queries__ledger_gaps(void **state)
{
    static const char columns[] = "what seg first count";
    const char *path = ledger_with_fault("gaps.db", (invar_test_fault){0});

    (void)state;
    raw_tamper(path, "DELETE FROM step WHERE step IN (7, 8, 9);"
                     "DELETE FROM digest WHERE step IN (20, 21);"
                     "DELETE FROM entry WHERE n = 3;");
    expect_fault(path, "ledger-gaps", "run=1", columns,
                 "digests|0|20|2\nentries|-|3|1\nsteps|0|7|3\n");
    expect_control(healthy, "ledger-gaps", "run=3", columns, "");
}

static void test_ledger_queries__pruned_is_no_gap(void **state)
{
    const char *path = raw_path("pruned.db");
    invar_ledger *ledger;

    (void)state;
    assert_ok(invar_ledger_open(&ledger, healthy, &(invar_ledger_options){0}));
    assert_ok(invar_ledger_backup(ledger, path, &(invar_ledger_retention){.last_steps = 5}));
    invar_ledger_close(ledger);
    expect_control(path, "ledger-gaps", "run=1", "what seg first count", "");
}

static void test_ledger_queries__checkpoints(void **state)
{
    const char *path = ledger_with_fault(
        "pending.db", (invar_test_fault){INVAR_TEST_CHECKPOINT_PENDING, 29, NULL, 0, 0});

    (void)state;
    expect_fault(path, "checkpoint-pending", "run=1", "step seg path bytes",
                 "29|0|checkpoints/000029|1048576\n");
    expect_control(healthy, "checkpoint-pending", "run=3", "step", "");
    raw_tamper(path, "UPDATE checkpoint SET chain = zeroblob(16) WHERE step = 19;"
                     "DELETE FROM step WHERE step = 49;");
    expect_fault(path, "checkpoint-verify", "run=1", "step seg state path wrong",
                 "19|0|intent|checkpoints/000019|another chain\n"
                 "19|0|complete|checkpoints/000019|another chain\n"
                 "49|0|intent|checkpoints/000049|no such step\n"
                 "49|0|complete|checkpoints/000049|no such step\n");
    expect_control(healthy, "checkpoint-verify", "run=3", "step", "");
}

static void test_ledger_queries__dirty_runs(void **state)
{
    static const char columns[] = "run name seg dirty commit diff diff_bytes";
    const char *path = ledger_with_fault("dirty.db", (invar_test_fault){.kind = INVAR_TEST_DIRTY});

    (void)state;
    expect_fault(path, "dirty-runs", "", columns, "1|test|0|modified|" COMMIT "|" DIFF "|60\n");
    expect_control(healthy, "dirty-runs", "", columns, "");
}

static void test_ledger_queries__unsealed(void **state)
{
    static const char columns[] = "run name sealed_entries unsealed_steps";
    const invar_test_ledger spec = {.steps = 20, .killed = true};
    const char *path = raw_path("unsealed.db");
    char seal[INVAR_LEDGER_SEAL_SIZE];
    invar_ledger *ledger;

    (void)state;
    assert_ok(invar_test_ledger_write(path, &spec));
    expect_fault(path, "unsealed", "", columns, "1|test|-|20\n");
    assert_ok(invar_ledger_open(&ledger, path, &(invar_ledger_options){.write = true}));
    assert_ok(invar_ledger_seal(seal, ledger, 1));
    expect_control(path, "unsealed", "", columns, "");
    assert_ok(invar_test_ledger_resume(ledger, &spec, 20));
    assert_ok(invar_test_ledger_step(ledger, &spec, 1, 20));
    expect_fault(path, "unsealed", "", columns, "1|test|28|1\n");
    invar_ledger_close(ledger);
}

/* ---- records of ci and bisect ---------------------------------------------------------------- */

/* Adds a run without steps, with an event for each text of the NULL-terminated `data`. */
static void add_run_with_events(const char *path, const char *kind, const char *event,
                                const char *const *data)
{
    invar_ledger *ledger;

    assert_ok(invar_ledger_open(&ledger, path, &(invar_ledger_options){.create = true}));
    assert_ok(invar_ledger_begin(
        ledger,
        &(invar_ledger_run){.name = kind, .kind = kind, .circumstances = {.no_auto_facts = true}}));
    for (; *data; data++)
        assert_ok(invar_ledger_log_event(
            ledger, &(invar_ledger_event){
                        .step = -1, .level = "info", .kind = event, .message = "", .data = *data}));
    assert_ok(invar_ledger_finish(ledger, 0, "done"));
    invar_ledger_close(ledger);
}

#define CASE(name, verdict, hash)                                                                  \
    "{\"case\": \"" name "\", \"verdict\": \"" verdict "\", \"compared\": 4, \"commit\": \"c" hash \
    "\", \"dirty\": \"clean\", \"golden_hash\": \"" hash "\", \"recipe\": \"in/" name ".ini\"}"

static void test_ledger_queries__ci(void **state)
{
    static const char *const first[] = {CASE("a", "same", "11"), CASE("b", "same", "22"), NULL};
    static const char *const second[] = {CASE("a", "changed", "11"), CASE("b", "same", "33"), NULL};
    const char *path = raw_path("ci.db");

    (void)state;
    add_run_with_events(path, "ci", "ci-case", first);
    expect_control(path, "golden-drift", "", "case", "");
    add_run_with_events(path, "ci", "ci-case", second);
    expect_fault(path, "golden-drift", "", "case was is verdict commit_before commit",
                 "b|22|33|same|c22|c33\n");
    expect_fault(path, "golden-drift", "case=a", "case", "");
    expect_fault(path, "ci-history", "", "case recipe verdict steps first",
                 "a|in/a.ini|same|4|-\nb|in/b.ini|same|4|-\na|in/a.ini|changed|4|-\n"
                 "b|in/b.ini|same|4|-\n");
    expect_fault(path, "ci-history", "case=a", "verdict", "same\nchanged\n");
    expect_control(healthy, "ci-history", "", "case", "");
}

static void test_ledger_queries__bisect_report(void **state)
{
    static const char *const trials[] = {
        "{\"commit\": \"00112233445566778899\", \"subject\": \"one\", \"role\": \"good end\", "
        "\"verdict\": \"good\", \"value\": \"aa\", \"via\": \"ran\", \"parted\": null}",
        "{\"commit\": \"11223344556677889900\", \"subject\": \"two\", \"role\": \"search\", "
        "\"verdict\": \"bad\", \"value\": \"bb\", \"via\": \"ran\", \"parted\": 7}",
        NULL};
    const char *path = raw_path("bisect.db");

    (void)state;
    add_run_with_events(path, "bisect", "bisect-trial", trials);
    expect_fault(path, "bisect-report", "run=1", "number role commit subject verdict value parted",
                 "1|good end|001122334455|one|good|aa|-\n2|search|112233445566|two|bad|bb|7\n");
    expect_control(healthy, "bisect-report", "run=1", "number", "");
}

/* ---- completeness ---------------------------------------------------------------------------- */

static void test_ledger_queries__each_has_a_test_and_a_control(void **state)
{
    (void)state;
    assert_all_tested(false);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ledger_queries__turns),
        cmocka_unit_test(test_ledger_queries__nondet_twins),
        cmocka_unit_test(test_ledger_queries__resume_overlap),
        cmocka_unit_test(test_ledger_queries__numerics_blame),
        cmocka_unit_test(test_ledger_queries__nan_birth),
        cmocka_unit_test(test_ledger_queries__rank_desync),
        cmocka_unit_test(test_ledger_queries__fused_differs),
        cmocka_unit_test(test_ledger_queries__frozen_weights),
        cmocka_unit_test(test_ledger_queries__repeated_batch),
        cmocka_unit_test(test_ledger_queries__rng_reuse),
        cmocka_unit_test(test_ledger_queries__log_probs),
        cmocka_unit_test(test_ledger_queries__staleness),
        cmocka_unit_test(test_ledger_queries__rewards),
        cmocka_unit_test(test_ledger_queries__finish_reasons),
        cmocka_unit_test(test_ledger_queries__spike),
        cmocka_unit_test(test_ledger_queries__metric_summary),
        cmocka_unit_test(test_ledger_queries__eval_history),
        cmocka_unit_test(test_ledger_queries__ab_effect),
        cmocka_unit_test(test_ledger_queries__time),
        cmocka_unit_test(test_ledger_queries__ranks),
        cmocka_unit_test(test_ledger_queries__weight_syncs),
        cmocka_unit_test(test_ledger_queries__sides),
        cmocka_unit_test(test_ledger_queries__lineage),
        cmocka_unit_test(test_ledger_queries__ends),
        cmocka_unit_test(test_ledger_queries__ledger_gaps),
        cmocka_unit_test(test_ledger_queries__pruned_is_no_gap),
        cmocka_unit_test(test_ledger_queries__checkpoints),
        cmocka_unit_test(test_ledger_queries__dirty_runs),
        cmocka_unit_test(test_ledger_queries__unsealed),
        cmocka_unit_test(test_ledger_queries__ci),
        cmocka_unit_test(test_ledger_queries__bisect_report),
        cmocka_unit_test(test_ledger_queries__each_has_a_test_and_a_control),
    };

    return cmocka_run_group_tests(tests, setup_ledgers, raw_teardown);
}
