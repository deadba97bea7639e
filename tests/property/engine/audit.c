/*
 * audit.c - audits pass correct results and name the op of a wrong one.
 *
 * An audit recomputes random elements of a device's results. The fake GPU
 * (tests/device/fake_gpu.h) stands in for CUDA, and run_wrong makes one op flip the lowest bit of
 * every element of one result. Correct runs must pass with the same bits as without an audit; each
 * wrong op must end the run with its name, or with on-mismatch = record become an event. Without
 * an audit, a wrong attention op is found because rollout and training log-probs differ.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/alloc.h"
#include "engine/model/audit/audit.h"
#include "engine/model/model.h"
#include "tests/device/fake_gpu.h"
#include "tests/ops.h"
#include "tests/run.h"

/* ---- a device that is wrong in one op -------------------------------------------------------- */

static invar_op wrong_op = INVAR_OP_COUNT; /* op that is wrong; INVAR_OP_COUNT if none is */
static int wrong_result;                   /* index of the wrong result */
static invar_backend wrong_backend;

static void set_wrong_op(invar_op op, int result)
{
    wrong_op = op;
    wrong_result = result;
}

static invar_status run_wrong(const invar_device *dev, const void *args, void *workspace)
{
    const invar_tensor *t = (const invar_tensor *)args + wrong_result;
    size_t size = (size_t)invar_dtype_bits(t->dtype) / 8;
    size_t row = (size_t)invar_tensor_row_elements(t) * size;
    char *values = NULL;

    INVAR_TRY(invar_fake_gpu_backend()->ops[wrong_op].run(dev, args, workspace));
    INVAR_TRY(INVAR_ALLOC(values, row, "a wrong row"));
    for (int64_t i = 0; i < t->shape[0]; i++) {
        char *at = (char *)t->data + (size_t)(i * t->row_stride) * size;

        assert_ok(invar_device_download(dev, values, at, row));
        for (size_t j = 0; j < row; j += size)
            values[j] ^= 1;
        assert_ok(invar_device_upload(dev, at, values, row));
    }
    invar_free(values);
    return INVAR_OK;
}

const invar_backend *invar_backend_cuda(void)
{
    wrong_backend = *invar_fake_gpu_backend();
    if (wrong_op < INVAR_OP_COUNT)
        wrong_backend.ops[wrong_op].run = run_wrong;
    return &wrong_backend;
}

/* ---- runs ------------------------------------------------------------------------------------ */

static int setup(void **state)
{
    (void)state;
    return run_setup(INVAR_TEST_WORK "/audit");
}

static const run_pair dense[] = {{"hidden-size", "128"},
                                 {"num-attention-heads", "4"},
                                 {"num-query-groups", "2"},
                                 {"kv-channels", "64"},
                                 {"ffn-hidden-size", "128"},
                                 {"num-layers", "2"},
                                 {"num-rollout", "3"},
                                 {"device", "cuda"},
                                 {"recompute-granularity", "full"},
                                 {NULL, NULL}};

static const run_pair experts[] = {{"hidden-size", "128"},     {"num-attention-heads", "2"},
                                   {"num-query-groups", "2"},  {"kv-channels", "64"},
                                   {"ffn-hidden-size", "128"}, {"model-type", "qwen3_moe"},
                                   {"num-layers", "2"},        {"num-experts", "3"},
                                   {"moe-router-topk", "2"},   {"moe-ffn-hidden-size", "128"},
                                   {"num-rollout", "3"},       {"device", "cuda"},
                                   {"micro-batch-size", "2"},  {NULL, NULL}};

static invar_status train_run(const char *name, const run_pair *model, const run_pair *more)
{
    invar_recipe *recipe = run_recipe(run_path(name), model, more);
    invar_status status;

    invar_fake_gpu_begin(0);
    status = run_train(recipe);
    assert_int_equal(invar_fake_gpu_counted().live, 0);
    invar_recipe_free(recipe);
    return status;
}

/* Returns the sum of a gauge over all steps. */
static double sum_of_gauge(const char *name, const char *gauge)
{
    char sql[200];

    (void)snprintf(sql, sizeof sql,
                   "SELECT total(value) FROM gauge JOIN series USING (series) WHERE name = '%s'",
                   gauge);
    return run_query_number(name, sql);
}

/* ---- right ----------------------------------------------------------------------------------- */

/* A run with an audit has the bits of the one without, and the audit finds nothing. */
static void check_correct_run(const char *kind, const run_pair *model, const char *dtype,
                              const char *numerics)
{
    const run_pair plain[] = {{"dtype", dtype}, {"numerics", numerics}, {NULL, NULL}};
    const run_pair audited[] = {
        {"dtype", dtype}, {"numerics", numerics}, {"audit", "200"}, {NULL, NULL}};
    char names[2][100];
    run_digests unaudited, with_audit;

    set_wrong_op(INVAR_OP_COUNT, 0);
    (void)snprintf(names[0], sizeof names[0], "%s.%s.%s", kind, dtype, numerics);
    (void)snprintf(names[1], sizeof names[1], "%s.%s.%s.watched", kind, dtype, numerics);
    assert_ok(train_run(names[0], model, plain));
    if (train_run(names[1], model, audited) != INVAR_OK)
        fail_msg("%s: %s", names[1], invar_error_last()->message);
    unaudited = run_digests_of(names[0]);
    with_audit = run_digests_of(names[1]);
    assert_true(run_same(&unaudited, &with_audit));
    assert_true(invar_digest_equal(&unaudited.identity, &with_audit.identity));
    assert_true(sum_of_gauge(names[0], "audit/elements") == 0.0);
    // the first step only counts its calls
    assert_true(sum_of_gauge(names[1], "audit/elements") >= 2 * 150.0);
    assert_true(sum_of_gauge(names[1], "audit/elements") <= 3 * 200.0);
    assert_true(sum_of_gauge(names[1], "audit/differ") == 0.0);
    assert_true(run_query_number(names[1], "SELECT count(*) FROM event WHERE level = 'error'") ==
                0.0);
}

/* By default the dense model and the one with experts share the formats. */
static void test_audit__correct_results_pass(void **state)
{
    (void)state;
    for (int i = 0; i < INVAR_FORMAT_COUNT; i++) {
        const char *format = invar_format_name((invar_format)i);

        if (invar_test_full() || i / 2 % 2 == 0)
            check_correct_run("dense", dense, format, i % 2 ? "sm90" : "ieee");
        if (invar_test_full() || i / 2 % 2 == 1)
            check_correct_run("experts", experts, format, i % 2 ? "ieee" : "sm90");
    }
    if (invar_test_full())
        check_correct_run("dense", dense, "bf16", "ieee");
}

/* ---- wrong ----------------------------------------------------------------------------------- */

static void check_wrong_op_found(invar_op op, int result, const run_pair *model,
                                 const char *elements)
{
    const run_pair audited[] = {{"audit", elements}, {NULL, NULL}};
    char name[80], sql[300];

    set_wrong_op(op, result);
    (void)snprintf(name, sizeof name, "wrong.%s.%d.%s", invar_op_name(op), result, elements);
    assert_fails(train_run(name, model, audited), INVAR_E_MISMATCH, invar_op_name(op));
    assert_non_null(strstr(invar_error_last()->message, "invar doctor"));
    invar_error_clear();
    (void)snprintf(sql, sizeof sql,
                   "SELECT count(*) FROM event WHERE kind = 'audit-mismatch' AND level = 'error' "
                   "AND message LIKE 'audit: %s%%'",
                   invar_op_name(op));
    assert_true(run_query_number(name, sql) == 1.0);
    assert_true(run_query_number(name, "SELECT exit_code FROM finish") == 1.0);
    set_wrong_op(INVAR_OP_COUNT, 0);
}

static void test_audit__wrong_results_are_named(void **state)
{
    static const invar_op ops[] = {INVAR_OP_LINEAR_FWD, INVAR_OP_LINEAR_DX, INVAR_OP_LINEAR_DW,
                                   INVAR_OP_ATTENTION_FWD, INVAR_OP_ATTENTION_PAGED};
    static const invar_op grouped[] = {INVAR_OP_MOE_LINEAR_FWD, INVAR_OP_MOE_LINEAR_DX,
                                       INVAR_OP_MOE_LINEAR_DW};

    (void)state;
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        check_wrong_op_found(ops[i], 0, dense, "16");
    for (size_t i = 0; i < sizeof grouped / sizeof *grouped; i++)
        check_wrong_op_found(grouped[i], 0, experts, "40");
    check_wrong_op_found(INVAR_OP_ATTENTION_FWD, 1, dense, "16"); // lse2
    for (int i = 0; i < 3; i++)                                   // dq, dk, dv
        check_wrong_op_found(INVAR_OP_ATTENTION_BWD, i, dense, "64");
}

/* An audit with one element per step gets to one op after another. */
static void test_audit__one_element_per_step_finds_it(void **state)
{
    const run_pair audited[] = {{"audit", "1"}, {"num-rollout", "40"}, {NULL, NULL}};

    (void)state;
    set_wrong_op(INVAR_OP_LINEAR_DX, 0);
    assert_fails(train_run("few", dense, audited), INVAR_E_MISMATCH, "linear.dx");
    set_wrong_op(INVAR_OP_COUNT, 0);
}

/* If on-mismatch = record, every finding is an event, and the run continues. */
static void test_audit__records_and_continues_if_configured(void **state)
{
    const run_pair audited[] = {{"audit", "16"}, {"on-mismatch", "record"}, {NULL, NULL}};

    (void)state;
    set_wrong_op(INVAR_OP_LINEAR_DW, 0);
    assert_ok(train_run("record", dense, audited));
    set_wrong_op(INVAR_OP_COUNT, 0);
    assert_int_equal(run_digests_of("record").last, 2);
    assert_true(sum_of_gauge("record", "audit/differ") >= 3.0);
    assert_true(
        sum_of_gauge("record", "audit/differ") ==
        run_query_number("record", "SELECT count(*) FROM event WHERE kind = 'audit-mismatch'"));
}

/* ---- without an audit ------------------------------------------------------------------------ */

/* Rollouts and training use two attention ops: if one of them is wrong, their log-probs differ. */
static void check_logp_mismatch(invar_op op)
{
    static const char mismatches_sql[] =
        "SELECT count(*) FROM event WHERE level = 'error' AND kind = 'logp-mismatch'";
    // graphs contain ops only, but the wrong op also copies
    const run_pair stop_at_mismatch[] = {{"disable-cuda-graph", "true"}, {NULL, NULL}};
    const run_pair record_mismatch[] = {
        {"disable-cuda-graph", "true"}, {"on-mismatch", "record"}, {NULL, NULL}};
    char stopped[80], recorded[80];

    (void)snprintf(stopped, sizeof stopped, "parted.%s", invar_op_name(op));
    (void)snprintf(recorded, sizeof recorded, "parted.%s.record", invar_op_name(op));
    set_wrong_op(op, 0);
    assert_fails(train_run(stopped, dense, stop_at_mismatch), INVAR_E_MISMATCH,
                 "log-probabilities of rollout and scoring differ");
    invar_error_clear();
    assert_true(run_query_number(stopped, "SELECT exit_code FROM finish") == 1.0);
    assert_true(run_query_number(stopped, "SELECT count(*) FROM step") == 0.0);
    assert_ok(train_run(recorded, dense, record_mismatch));
    set_wrong_op(INVAR_OP_COUNT, 0);
    assert_true(run_query_number(stopped, mismatches_sql) == 1.0);
    assert_true(run_query_number(recorded, mismatches_sql) >= 3.0);
    assert_true(run_query_number(recorded, "SELECT count(*) FROM sample WHERE diff_bits <> 0 AND "
                                           "diff_at >= 0 AND rollout_logp <> train_logp") >= 3.0);
    assert_true(run_query_number(recorded,
                                 "SELECT count(*) FROM metric JOIN series USING (series) WHERE "
                                 "name = 'train/logp_diff_max' AND value > 0") == 3.0);
}

static void test_audit__differing_log_probs_are_found_without_audit(void **state)
{
    (void)state;
    check_logp_mismatch(INVAR_OP_ATTENTION_PAGED);
    check_logp_mismatch(INVAR_OP_ATTENTION_FWD);
}

/* ---- long samples ---------------------------------------------------------------------------- */

static invar_status count_finding(void *payload, const invar_audit_finding *finding)
{
    assert_int_equal(finding->layer, 7);
    ++*(int64_t *)payload;
    return INVAR_OK;
}

/*
 * Returns the number of findings for one call of an op. The call runs twice, since the audit checks
 * only few elements of a call that it sees for the first time.
 */
static int64_t count_findings(invar_op_runner *runner, invar_op op, const void *args)
{
    int64_t found = 0, checked, differ;
    invar_audit_options options = {.elements = 48, .found = count_finding, .payload = &found};

    runner->layer = 7;
    assert_ok(invar_audit_new(&runner->audit, &runner->dev, &options));
    for (int64_t step = 0; step < 2; step++) {
        invar_audit_begin(runner->audit, step, INVAR_AUDIT_TRAIN);
        assert_ok(invar_op_runner_run(runner, op, args));
        invar_audit_end(runner->audit);
    }
    invar_audit_counted(&checked, &differ, runner->audit);
    assert_int_equal(checked, 48);
    invar_audit_free(runner->audit);
    runner->audit = NULL;
    return found;
}

/*
 * Checks attention on rows with gaps: samples longer than a key block, and longer than the part of
 * a backward that an audit recomputes.
 */
static void check_long(const invar_device *dev, invar_dtype dtype, invar_attention_shape shape)
{
    enum { HEADS = 4, KV = 2, DIM = 24, ROWS = 1005 };
    int64_t start[] = {0, 5, 155, 300, ROWS};
    invar_tensor t[10];
    invar_attention_fwd_args fwd;
    invar_attention_bwd_args bwd;
    invar_op_runner runner;

    for (int i = 0; i < 9; i++) {
        int64_t heads = i < 4 ? HEADS : KV;
        t[i] = invar_test_strided(invar_tensor_3d(NULL, dtype, ROWS, heads, DIM), i * 8);
        invar_test_fill_normal(&t[i], (uint64_t)i, 1.0f);
    }
    t[9] = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, ROWS, HEADS));
    fwd = (invar_attention_fwd_args){.o = t[0],
                                     .lse2 = t[9],
                                     .q = t[1],
                                     .k = t[4],
                                     .v = t[5],
                                     .samples = {start, 4},
                                     .shape = shape};
    bwd = (invar_attention_bwd_args){.dq = t[2],
                                     .dk = t[6],
                                     .dv = t[7],
                                     .d_o = t[3],
                                     .o = t[0],
                                     .lse2 = t[9],
                                     .q = t[1],
                                     .k = t[4],
                                     .v = t[5],
                                     .samples = {start, 4},
                                     .shape = shape};
    invar_op_runner_init(&runner, dev);
    assert_int_equal(count_findings(&runner, INVAR_OP_ATTENTION_FWD, &fwd), 0);
    assert_int_equal(count_findings(&runner, INVAR_OP_ATTENTION_BWD, &bwd), 0);
    invar_op_runner_release(&runner);
    for (int i = 0; i < 10; i++)
        invar_test_free(&t[i]);
}

static void test_audit__long_samples(void **state)
{
    static const invar_attention_shape shapes[] = {
        {.window = 0}, {.window = 200}, {.kv_span = 256, .q_span = 384}};
    invar_device dev;

    (void)state;
    for (int i = 0; i < 4; i++) {
        invar_test_device_init(&dev, i % 2 ? INVAR_NUMERICS_SM90 : INVAR_NUMERICS_IEEE,
                               INVAR_CPU_PATH_SIMD, 2);
        for (size_t n = 0; n < sizeof shapes / sizeof *shapes; n++)
            if (invar_test_full() || n == (size_t)i % 3) // every device and every shape once
                check_long(&dev, invar_test_storage[i / 2], shapes[n]);
        invar_test_device_release(&dev);
    }
}

/*
 * Checks products with shards, parts, bias, residual, activation and further outputs, and with rows
 * so far apart that they are downloaded one by one.
 */
static void test_audit__products_with_all_arguments(void **state)
{
    enum { T = 50, N = 40, K = 64 };
    invar_tensor x = invar_test_strided(invar_tensor_2d(NULL, INVAR_DTYPE_BF16, T, K), 8);
    invar_tensor w = invar_test_strided(invar_tensor_2d(NULL, INVAR_DTYPE_BF16, N, K), 40000);
    invar_tensor bias = invar_test_tensor(invar_tensor_1d(NULL, INVAR_DTYPE_F32, N));
    invar_tensor y = invar_test_strided(invar_tensor_2d(NULL, INVAR_DTYPE_F32, T, N), 3);
    invar_tensor dx = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, T, K));
    invar_tensor dy = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_BF16, T, 32));
    invar_tensor part = invar_tensor_rows(&w, 0, 32);
    invar_tensor residual = invar_test_strided(invar_tensor_2d(NULL, INVAR_DTYPE_F32, T, N), 2);
    invar_tensor act = invar_test_strided(invar_tensor_2d(NULL, INVAR_DTYPE_F32, T, N), 1);
    invar_tensor up = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, T, N));
    invar_linear_fwd_args fwd = {.y = y, .x = x, .w = w, .bias = bias, .k_shards = 4, .k_atom = 48};
    invar_linear_dx_args dx_args = {.dx = dx,
                                    .parts = {{dy, part}, {dy, part}},
                                    .n_parts = 2,
                                    .k_shards = 2,
                                    .k_atom = {16, 32}};
    static const int64_t start[] = {0, 20, T};
    invar_tensor narrow = invar_tensor_columns(&y, 0, N / 2);
    invar_moe_linear_fwd_args grouped = {
        .y = narrow, .x = x, .w = w, .experts = {start, 2}, .k_shards = 4, .k_atom = 48};
    invar_moe_linear_dx_args grouped_dx = {.dx = dx,
                                           .parts = {{invar_tensor_columns(&dy, 0, N / 2), w}},
                                           .n_parts = 1,
                                           .experts = {start, 2},
                                           .k_shards = 2,
                                           .k_atom = {16}};
    invar_op_runner runner;
    invar_device dev;

    (void)state;
    invar_test_fill_normal(&x, 1, 1.0f);
    invar_test_fill_normal(&w, 2, 1.0f);
    invar_test_fill_normal(&bias, 3, 1.0f);
    invar_test_fill_normal(&dy, 4, 1.0f);
    invar_test_fill_normal(&residual, 5, 1.0f);
    invar_test_device_init(&dev, INVAR_NUMERICS_SM90, INVAR_CPU_PATH_SIMD, 1);
    invar_op_runner_init(&runner, &dev);
    assert_int_equal(count_findings(&runner, INVAR_OP_LINEAR_FWD, &fwd), 0);
    assert_int_equal(count_findings(&runner, INVAR_OP_LINEAR_DX, &dx_args), 0);
    assert_int_equal(count_findings(&runner, INVAR_OP_MOE_LINEAR_FWD, &grouped), 0);
    assert_int_equal(count_findings(&runner, INVAR_OP_MOE_LINEAR_DX, &grouped_dx), 0);
    fwd.residual = residual;
    assert_int_equal(count_findings(&runner, INVAR_OP_LINEAR_FWD, &fwd), 0);
    fwd.residual = (invar_tensor){0};
    fwd.act = act;
    fwd.more[0] = (invar_linear_output){.y = up, .w = w};
    fwd.n_more = 1;
    assert_int_equal(count_findings(&runner, INVAR_OP_LINEAR_FWD, &fwd), 0);
    fwd.y = fwd.more[0].y = (invar_tensor){0};
    assert_int_equal(count_findings(&runner, INVAR_OP_LINEAR_FWD, &fwd), 0);
    invar_op_runner_release(&runner);
    invar_test_device_release(&dev);
    invar_test_free(&x, &w, &bias, &y, &dx, &dy, &residual, &act, &up);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_audit__correct_results_pass),
        cmocka_unit_test(test_audit__wrong_results_are_named),
        cmocka_unit_test(test_audit__one_element_per_step_finds_it),
        cmocka_unit_test(test_audit__records_and_continues_if_configured),
        cmocka_unit_test(test_audit__differing_log_probs_are_found_without_audit),
        cmocka_unit_test(test_audit__long_samples),
        cmocka_unit_test(test_audit__products_with_all_arguments),
    };

    return cmocka_run_group_tests(tests, setup, run_teardown);
}
