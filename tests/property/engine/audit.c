/*
 * audit.c - a device whose results are computed again: right ones pass, wrong ones are named.
 *
 * The far backend (tests/device/fake_gpu.h) stands in for a GPU, as in fake_gpu_runs.c; planted, it
 * returns every element of one op with another last bit.
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

static invar_op planted = INVAR_OP_COUNT;
static int planted_result; /* which of its outputs */
static invar_backend wrong;

static void plant(invar_op op, int result)
{
    planted = op;
    planted_result = result;
}

static invar_status run_wrong(const invar_device *dev, const void *args, void *workspace)
{
    const invar_tensor *t = (const invar_tensor *)args + planted_result;
    size_t size = (size_t)invar_dtype_bits(t->dtype) / 8;
    size_t row = (size_t)invar_tensor_row_elements(t) * size;
    char *values = NULL;

    INVAR_TRY(invar_far_backend()->ops[planted].run(dev, args, workspace));
    INVAR_TRY(invar_alloc((void **)&values, row, 1, "a wrong row"));
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
    wrong = *invar_far_backend();
    if (planted < INVAR_OP_COUNT)
        wrong.ops[planted].run = run_wrong;
    return &wrong;
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

static invar_status train(const char *name, const run_pair *model, const run_pair *more)
{
    invar_recipe *recipe = run_recipe(run_below(name), model, more);
    invar_status status;

    invar_far_begin(0);
    status = run_train(recipe);
    assert_int_equal(invar_far_counted().live, 0);
    invar_recipe_free(recipe);
    return status;
}

/* The sum over all steps. */
static double gauged(const char *name, const char *gauge)
{
    char sql[200];

    (void)snprintf(sql, sizeof sql,
                   "SELECT total(value) FROM gauge JOIN series USING (series) WHERE name = '%s'",
                   gauge);
    return run_asked(name, sql);
}

/* ---- right ----------------------------------------------------------------------------------- */

/* What is watched is the same run, and nothing is found. */
static void check_right(const char *kind, const run_pair *model, const char *dtype,
                        const char *numerics)
{
    const run_pair plain[] = {{"dtype", dtype}, {"numerics", numerics}, {NULL, NULL}};
    const run_pair watched[] = {
        {"dtype", dtype}, {"numerics", numerics}, {"audit", "200"}, {NULL, NULL}};
    char names[2][100];
    run_memory one, other;

    plant(INVAR_OP_COUNT, 0);
    (void)snprintf(names[0], sizeof names[0], "%s.%s.%s", kind, dtype, numerics);
    (void)snprintf(names[1], sizeof names[1], "%s.%s.%s.watched", kind, dtype, numerics);
    assert_ok(train(names[0], model, plain));
    if (train(names[1], model, watched) != INVAR_OK)
        fail_msg("%s: %s", names[1], invar_error_last()->message);
    one = run_memory_of(names[0]);
    other = run_memory_of(names[1]);
    assert_true(run_same(&one, &other));
    assert_true(invar_digest_equal(&one.identity, &other.identity));
    assert_true(gauged(names[0], "audit/elements") == 0.0);
    // the first step does not know its calls yet
    assert_true(gauged(names[1], "audit/elements") >= 2 * 150.0);
    assert_true(gauged(names[1], "audit/elements") <= 3 * 200.0);
    assert_true(gauged(names[1], "audit/differ") == 0.0);
    assert_true(run_asked(names[1], "SELECT count(*) FROM event WHERE level = 'error'") == 0.0);
}

static void test_audit__right_results_pass(void **state)
{
    (void)state;
    for (int i = 0; i < INVAR_FORMAT_COUNT; i++) {
        check_right("dense", dense, invar_format_name((invar_format)i), i % 2 ? "sm90" : "ieee");
        check_right("experts", experts, invar_format_name((invar_format)i),
                    i % 2 ? "ieee" : "sm90");
    }
    check_right("dense", dense, "bf16", "ieee");
}

/* ---- wrong ----------------------------------------------------------------------------------- */

static void check_found(invar_op op, int result, const run_pair *model, const char *elements)
{
    const run_pair watched[] = {{"audit", elements}, {NULL, NULL}};
    char name[80], sql[300];

    plant(op, result);
    (void)snprintf(name, sizeof name, "wrong.%s.%d.%s", invar_op_name(op), result, elements);
    assert_fails(train(name, model, watched), INVAR_E_MISMATCH, invar_op_name(op));
    assert_non_null(strstr(invar_error_last()->message, "invar doctor"));
    invar_error_clear();
    (void)snprintf(sql, sizeof sql,
                   "SELECT count(*) FROM event WHERE kind = 'audit-mismatch' AND level = 'error' "
                   "AND message LIKE 'audit: %s%%'",
                   invar_op_name(op));
    assert_true(run_asked(name, sql) == 1.0);
    assert_true(run_asked(name, "SELECT exit_code FROM finish") == 1.0);
    plant(INVAR_OP_COUNT, 0);
}

static void test_audit__wrong_results_are_named(void **state)
{
    static const invar_op ops[] = {INVAR_OP_LINEAR_FWD, INVAR_OP_LINEAR_DX, INVAR_OP_LINEAR_DW,
                                   INVAR_OP_ATTENTION_FWD, INVAR_OP_ATTENTION_PAGED};
    static const invar_op grouped[] = {INVAR_OP_MOE_LINEAR_FWD, INVAR_OP_MOE_LINEAR_DX,
                                       INVAR_OP_MOE_LINEAR_DW};

    (void)state;
    for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
        check_found(ops[i], 0, dense, "16");
    for (size_t i = 0; i < sizeof grouped / sizeof *grouped; i++)
        check_found(grouped[i], 0, experts, "40");
    check_found(INVAR_OP_ATTENTION_FWD, 1, dense, "16"); // lse2
    for (int i = 0; i < 3; i++)                          // dq, dk, dv
        check_found(INVAR_OP_ATTENTION_BWD, i, dense, "64");
}

/* One element a step goes to one op after another. */
static void test_audit__few_elements_find_it_too(void **state)
{
    const run_pair watched[] = {{"audit", "1"}, {"num-rollout", "40"}, {NULL, NULL}};

    (void)state;
    plant(INVAR_OP_LINEAR_DX, 0);
    assert_fails(train("few", dense, watched), INVAR_E_MISMATCH, "linear.dx");
    plant(INVAR_OP_COUNT, 0);
}

/* on-mismatch = record: every finding is an event, and the run goes on. */
static void test_audit__goes_on_where_told_to(void **state)
{
    const run_pair watched[] = {{"audit", "16"}, {"on-mismatch", "record"}, {NULL, NULL}};

    (void)state;
    plant(INVAR_OP_LINEAR_DW, 0);
    assert_ok(train("record", dense, watched));
    plant(INVAR_OP_COUNT, 0);
    assert_int_equal(run_memory_of("record").last, 2);
    assert_true(gauged("record", "audit/differ") >= 3.0);
    assert_true(gauged("record", "audit/differ") ==
                run_asked("record", "SELECT count(*) FROM event WHERE kind = 'audit-mismatch'"));
}

/* ---- without an audit ------------------------------------------------------------------------ */

/* Attention of rollouts and attention of training are two ops: where one is wrong, they part. */
static void check_parted(invar_op op)
{
    static const char noticed[] =
        "SELECT count(*) FROM event WHERE level = 'error' AND kind = 'logp-mismatch'";
    // a graph takes ops alone, and the wrong one copies
    const run_pair stop[] = {{"disable-cuda-graph", "true"}, {NULL, NULL}};
    const run_pair record[] = {
        {"disable-cuda-graph", "true"}, {"on-mismatch", "record"}, {NULL, NULL}};
    char stopped[80], recorded[80];

    (void)snprintf(stopped, sizeof stopped, "parted.%s", invar_op_name(op));
    (void)snprintf(recorded, sizeof recorded, "parted.%s.record", invar_op_name(op));
    plant(op, 0);
    assert_fails(train(stopped, dense, stop), INVAR_E_MISMATCH,
                 "log-probabilities of rollout and scoring differ");
    invar_error_clear();
    assert_true(run_asked(stopped, "SELECT exit_code FROM finish") == 1.0);
    assert_true(run_asked(stopped, "SELECT count(*) FROM step") == 0.0);
    assert_ok(train(recorded, dense, record));
    plant(INVAR_OP_COUNT, 0);
    assert_true(run_asked(stopped, noticed) == 1.0);
    assert_true(run_asked(recorded, noticed) >= 3.0);
    assert_true(run_asked(recorded, "SELECT count(*) FROM sample WHERE diff_bits <> 0 AND "
                                    "diff_at >= 0 AND rollout_logp <> train_logp") >= 3.0);
    assert_true(run_asked(recorded, "SELECT count(*) FROM metric JOIN series USING (series) WHERE "
                                    "name = 'train/logp_diff_max' AND value > 0") == 3.0);
}

static void test_audit__rollout_and_training_that_part_are_noticed(void **state)
{
    (void)state;
    check_parted(INVAR_OP_ATTENTION_PAGED);
    check_parted(INVAR_OP_ATTENTION_FWD);
}

/* ---- long samples ---------------------------------------------------------------------------- */

static invar_status count(void *payload, const invar_audit_finding *finding)
{
    assert_int_equal(finding->layer, 7);
    ++*(int64_t *)payload;
    return INVAR_OK;
}

/* Twice, as the first time only few elements of a call are looked at. */
static int64_t differences(invar_op_runner *caller, invar_op op, const void *args)
{
    int64_t found = 0, checked, differ;
    invar_audit_options options = {.elements = 48, .found = count, .payload = &found};

    caller->layer = 7;
    assert_ok(invar_audit_new(&caller->audit, &caller->dev, &options));
    for (int64_t step = 0; step < 2; step++) {
        invar_audit_begin(caller->audit, step, INVAR_AUDIT_TRAIN);
        assert_ok(invar_op_runner_run(caller, op, args));
        invar_audit_end(caller->audit);
    }
    invar_audit_counted(&checked, &differ, caller->audit);
    assert_int_equal(checked, 48);
    invar_audit_free(caller->audit);
    caller->audit = NULL;
    return found;
}

/* Samples beyond a block and beyond what a backward is computed again of, in rows with gaps. */
static void check_long(const invar_device *dev, invar_dtype dtype, invar_attention_shape shape)
{
    enum { HEADS = 4, KV = 2, DIM = 24, ROWS = 1005 };
    int64_t start[] = {0, 5, 155, 300, ROWS};
    invar_tensor t[10];
    invar_attention_fwd_args fwd;
    invar_attention_bwd_args bwd;
    invar_op_runner caller;

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
    invar_op_runner_init(&caller, dev);
    assert_int_equal(differences(&caller, INVAR_OP_ATTENTION_FWD, &fwd), 0);
    assert_int_equal(differences(&caller, INVAR_OP_ATTENTION_BWD, &bwd), 0);
    invar_op_runner_release(&caller);
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
            check_long(&dev, invar_test_storage[i / 2], shapes[n]);
        invar_test_device_release(&dev);
    }
}

/*
 * Shards, parts, a bias, what may follow a product, and rows so far apart that they are fetched one
 * by one.
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
    invar_linear_dx_args back = {.dx = dx,
                                 .parts = {{dy, part}, {dy, part}},
                                 .n_parts = 2,
                                 .k_shards = 2,
                                 .k_atom = {16, 32}};
    static const int64_t start[] = {0, 20, T};
    invar_tensor narrow = invar_tensor_columns(&y, 0, N / 2);
    invar_moe_linear_fwd_args grouped = {
        .y = narrow, .x = x, .w = w, .experts = {start, 2}, .k_shards = 4, .k_atom = 48};
    invar_moe_linear_dx_args grouped_back = {.dx = dx,
                                             .parts = {{invar_tensor_columns(&dy, 0, N / 2), w}},
                                             .n_parts = 1,
                                             .experts = {start, 2},
                                             .k_shards = 2,
                                             .k_atom = {16}};
    invar_op_runner caller;
    invar_device dev;

    (void)state;
    invar_test_fill_normal(&x, 1, 1.0f);
    invar_test_fill_normal(&w, 2, 1.0f);
    invar_test_fill_normal(&bias, 3, 1.0f);
    invar_test_fill_normal(&dy, 4, 1.0f);
    invar_test_fill_normal(&residual, 5, 1.0f);
    invar_test_device_init(&dev, INVAR_NUMERICS_SM90, INVAR_CPU_PATH_SIMD, 1);
    invar_op_runner_init(&caller, &dev);
    assert_int_equal(differences(&caller, INVAR_OP_LINEAR_FWD, &fwd), 0);
    assert_int_equal(differences(&caller, INVAR_OP_LINEAR_DX, &back), 0);
    assert_int_equal(differences(&caller, INVAR_OP_MOE_LINEAR_FWD, &grouped), 0);
    assert_int_equal(differences(&caller, INVAR_OP_MOE_LINEAR_DX, &grouped_back), 0);
    fwd.residual = residual;
    assert_int_equal(differences(&caller, INVAR_OP_LINEAR_FWD, &fwd), 0);
    fwd.residual = (invar_tensor){0};
    fwd.act = act;
    fwd.more[0] = (invar_linear_output){.y = up, .w = w};
    fwd.n_more = 1;
    assert_int_equal(differences(&caller, INVAR_OP_LINEAR_FWD, &fwd), 0);
    fwd.y = fwd.more[0].y = (invar_tensor){0};
    assert_int_equal(differences(&caller, INVAR_OP_LINEAR_FWD, &fwd), 0);
    invar_op_runner_release(&caller);
    invar_test_device_release(&dev);
    invar_test_free(&x, &w, &bias, &y, &dx, &dy, &residual, &act, &up);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_audit__right_results_pass),
        cmocka_unit_test(test_audit__wrong_results_are_named),
        cmocka_unit_test(test_audit__few_elements_find_it_too),
        cmocka_unit_test(test_audit__goes_on_where_told_to),
        cmocka_unit_test(test_audit__rollout_and_training_that_part_are_noticed),
        cmocka_unit_test(test_audit__long_samples),
        cmocka_unit_test(test_audit__products_with_all_arguments),
    };

    return cmocka_run_group_tests(tests, setup, run_teardown);
}
