/*
 * repeats.c - the same call 1000 times, while another stream keeps the GPU busy.
 *
 * A sum over tokens whose order depends on the schedule of the GPU would give other bits in some
 * calls. Results are hashed on the device, so that nothing waits between two calls. Control: one
 * changed bit of an input changes every result.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "tests/gpu/invariance/sweep.h"

#define F32 INVAR_DTYPE_F32
#define BF16 INVAR_DTYPE_BF16
#define I32 INVAR_DTYPE_I32

enum { MAX_RESULTS = 3, MAX_REPEATS = 1000 };

/* A call that is repeated, and its results. */
typedef struct repeated {
    const char *name;
    invar_op op;
    const void *args;
    invar_tensor results[MAX_RESULTS];
    int n_results;
} repeated;

/* ---- noise ----------------------------------------------------------------------------------- */

/* A second device handle, which runs products of changing sizes at the same time. */
typedef struct noise {
    invar_sweep s;
    invar_tensor x, w, y;
} noise;

static noise *noise_begin(const invar_sweep *background)
{
    static noise n;

    if (!n.s.dev.backend) {
        n.s.large = background->large;
        n.s.dev = background->dev;
        n.s.dev.context = NULL;
        assert_ok(invar_device_open(&n.s.dev));
        n.x = invar_sweep_normal(&n.s, BF16, invar_sweep_size(&n.s, 700, 3), 1024, 1);
        n.w = invar_sweep_normal(&n.s, BF16, invar_sweep_size(&n.s, 1024, 16), 1024, 2);
        n.y = invar_sweep_2d(&n.s, BF16, n.x.shape[0], n.w.shape[0]);
        assert_ok(invar_device_synchronize(&n.s.dev));
    }
    return &n;
}

static void noise_run(noise *n, uint64_t number)
{
    int64_t rows = 1 + invar_test_random(3, number) % (uint32_t)n->x.shape[0];
    invar_linear_fwd_args args = {.y = invar_tensor_rows(&n->y, 0, rows),
                                  .x = invar_tensor_rows(&n->x, 0, rows),
                                  .w = n->w,
                                  .k_shards = 1};

    if (number % 3 == 0)
        invar_sweep_run(&n->s, INVAR_OP_LINEAR_FWD, &args);
}

/* ---- repeats --------------------------------------------------------------------------------- */

/* Runs the call once and writes the digests of its results to slot `number`. */
static void run_once(invar_sweep *s, const repeated *r, invar_digest *digests, int64_t number)
{
    invar_hash_tree_args hash = {digests + number * MAX_RESULTS, r->results, r->n_results, 1, NULL};

    for (int i = 0; i < r->n_results; i++)
        invar_sweep_zero(s, &r->results[i]);
    invar_sweep_run(s, r->op, r->args);
    invar_sweep_run(s, INVAR_OP_HASH_TREE, &hash);
}

/* Runs the repetitions. `change` alters a bit of an input; the results must differ afterwards. */
static void check_repeats(invar_sweep *s, const repeated *r, const invar_tensor *change)
{
    static invar_digest got[(MAX_REPEATS + 1) * MAX_RESULTS];
    int64_t count = invar_sweep_size(s, MAX_REPEATS, 5);
    size_t bytes = (size_t)((count + 1) * MAX_RESULTS) * sizeof *got;
    int mark = invar_sweep_mark(s);
    invar_digest *digests =
        invar_sweep_2d(s, I32, count + 1, (int64_t)(MAX_RESULTS * sizeof *got / 4)).data;
    noise *background = noise_begin(s);
    unsigned char byte;

    for (int64_t i = 0; i < count; i++) {
        noise_run(background, (uint64_t)i);
        run_once(s, r, digests, i);
    }
    assert_ok(invar_device_download(&s->dev, &byte, change->data, 1));
    byte ^= 0x40;
    assert_ok(invar_device_upload(&s->dev, change->data, &byte, 1));
    run_once(s, r, digests, count);
    byte ^= 0x40;
    assert_ok(invar_device_upload(&s->dev, change->data, &byte, 1));
    assert_ok(invar_device_download(&s->dev, got, digests, bytes));
    for (int n = 0; n < r->n_results; n++) {
        const invar_digest *first = &got[n];

        for (int64_t i = 1; i < count; i++)
            if (!invar_digest_equal(&got[i * MAX_RESULTS + n], first))
                fail_msg("%s: result %d of call %d is another", r->name, n, (int)i);
        assert_false(invar_digest_equal(&got[count * MAX_RESULTS + n], first)); // control
    }
    invar_sweep_release(s, mark);
}

/* ---- attention ------------------------------------------------------------------------------- */

typedef struct form {
    const char *name;
    int64_t heads, kv_heads, dim, window, samples;
} form;

/* Makes a pack of `samples` samples of about equal length. */
static void check_attention(invar_sweep *s, const form *f)
{
    int mark = invar_sweep_mark(s);
    bool fast = f->dim == 64 || f->dim == 128;
    int64_t rows = invar_sweep_size(s, fast ? 1500 : 500, 150), start[8] = {0};
    invar_tensor q = invar_tensor_3d(NULL, BF16, rows, f->heads, f->dim);
    invar_tensor kv = invar_tensor_3d(NULL, BF16, rows, f->kv_heads, f->dim);
    invar_attention_bwd_args bwd = {.shape = {0.0f, f->window, 0}};
    invar_attention_fwd_args fwd = {.shape = bwd.shape};
    repeated r = {.name = f->name, .op = INVAR_OP_ATTENTION_BWD, .args = &bwd, .n_results = 3};

    for (int64_t i = 1; i <= f->samples; i++)
        start[i] = i == f->samples ? rows : rows * i / f->samples + i;
    fwd.samples = bwd.samples =
        (invar_row_offsets){invar_sweep_numbers(s, start, f->samples + 1), f->samples};
    fwd.q = bwd.q = invar_sweep_tensor(s, q);
    fwd.k = bwd.k = invar_sweep_tensor(s, kv);
    fwd.v = bwd.v = invar_sweep_tensor(s, kv);
    fwd.o = bwd.o = invar_sweep_tensor(s, q);
    fwd.lse2 = bwd.lse2 = invar_sweep_2d(s, F32, rows, f->heads);
    bwd.d_o = invar_sweep_tensor(s, q);
    r.results[0] = bwd.dq = invar_sweep_tensor(s, q);
    r.results[1] = bwd.dk = invar_sweep_tensor(s, kv);
    r.results[2] = bwd.dv = invar_sweep_tensor(s, kv);
    invar_sweep_fill_normal(s, &bwd.q, 1, 1.0f);
    invar_sweep_fill_normal(s, &bwd.k, 2, 1.0f);
    invar_sweep_fill_normal(s, &bwd.v, 3, 1.0f);
    invar_sweep_fill_normal(s, &bwd.d_o, 4, 1.0f);
    invar_sweep_run(s, INVAR_OP_ATTENTION_FWD, &fwd);
    check_repeats(s, &r, &bwd.k); // every query depends on this key
    invar_sweep_release(s, mark);
}

static void test_attention_bwd__repeats(void **state)
{
    static const form forms[] = {
        {"causal, 8 heads of 128", 8, 8, 128, 0, 1},
        {"causal, one head of keys", 8, 1, 128, 0, 1},
        {"causal, groups, 5 samples", 8, 2, 64, 0, 5},
        {"window, groups", 8, 2, 128, 200, 1},
        {"window, 3 samples", 4, 4, 64, 100, 3},
        {"causal, heads of 96", 4, 2, 96, 0, 2},
    };
    invar_sweep *s = invar_sweep_begin(INVAR_NUMERICS_SM90);

    (void)state;
    for (size_t i = s->large ? 0 : 4; i < sizeof forms / sizeof *forms; i++)
        check_attention(s, &forms[i]);
}

/* ---- sums over tokens ------------------------------------------------------------------------ */

static void test_linear_dw__repeats(void **state)
{
    invar_sweep *s = invar_sweep_begin(INVAR_NUMERICS_SM90);
    int mark = invar_sweep_mark(s);
    int64_t rows = invar_sweep_size(s, 1500, 70), n = invar_sweep_size(s, 512, 24);
    const int64_t units[] = {0, rows / 3, rows / 2, rows}, experts[] = {0, 7, 7, rows / 2, rows};
    int32_t tokens[1500];
    invar_linear_dw_args dense = {.units = {invar_sweep_numbers(s, units, 4), 3}};
    invar_moe_linear_dw_args grouped = {.units = dense.units,
                                        .experts = {invar_sweep_numbers(s, experts, 5), 4}};
    repeated r = {.name = "linear.dw", .op = INVAR_OP_LINEAR_DW, .args = &dense, .n_results = 1};

    (void)state;
    dense.dy = grouped.dy = invar_sweep_normal(s, BF16, rows, n, 1);
    dense.x = grouped.x = invar_sweep_normal(s, BF16, rows, 2 * n, 2);
    dense.dw = r.results[0] = invar_sweep_2d(s, F32, n, 2 * n);
    check_repeats(s, &r, &dense.x);
    // the first half of the tokens have two rows each, at two of three experts
    for (int64_t i = 0; i < rows; i++)
        tokens[i] = (int32_t)(i < rows / 2 ? i : i - rows / 2);
    grouped.row_token = invar_sweep_tensor(s, invar_tensor_1d(NULL, I32, rows));
    invar_sweep_upload(s, &grouped.row_token, tokens);
    grouped.dw = invar_sweep_2d(s, F32, 4 * n, 2 * n);
    r = (repeated){.name = "moe.linear.dw",
                   .op = INVAR_OP_MOE_LINEAR_DW,
                   .args = &grouped,
                   .results = {grouped.dw},
                   .n_results = 1};
    check_repeats(s, &r, &dense.x);
    invar_sweep_release(s, mark);
}

static void test_token_sums__repeats(void **state)
{
    invar_sweep *s = invar_sweep_begin(INVAR_NUMERICS_SM90);
    int mark = invar_sweep_mark(s);
    int64_t rows = invar_sweep_size(s, 4000, 300), d = invar_sweep_size(s, 1024, 64);
    const int64_t start[] = {0, rows / 3, rows / 2, rows};
    invar_row_offsets units = {invar_sweep_numbers(s, start, 4), 3};
    invar_tensor x = invar_sweep_normal(s, BF16, rows, d, 1);
    invar_tensor dy = invar_sweep_normal(s, BF16, rows, d, 2);
    invar_tensor ids = invar_sweep_tensor(s, invar_tensor_1d(NULL, I32, rows));
    invar_tensor sum = invar_sweep_tensor(s, invar_tensor_1d(NULL, F32, d));
    invar_tensor table = invar_sweep_2d(s, F32, 20, d);
    invar_tensor wide = invar_tensor_3d(NULL, BF16, rows, 1, d), dx = invar_sweep_tensor(s, wide);
    invar_tensor weight = invar_sweep_tensor(s, invar_tensor_1d(NULL, BF16, d));
    invar_token_sum_args add = {sum, x, units};
    invar_embedding_bwd_args scatter = {table, x, ids, units};
    invar_rmsnorm_bwd_args norm = {
        .dx = dx, .dweight = sum, .weight = weight, .units = units, .eps = 1e-6f};
    repeated calls[] = {
        {"token.sum", INVAR_OP_TOKEN_SUM, &add, {sum}, 1},
        {"embedding.bwd", INVAR_OP_EMBEDDING_BWD, &scatter, {table}, 1}, // many rows per id
        {"rmsnorm.bwd", INVAR_OP_RMSNORM_BWD, &norm, {dx, sum}, 2}};

    (void)state;
    wide.data = x.data;
    norm.x = wide;
    wide.data = dy.data;
    norm.dy = wide;
    invar_sweep_fill_normal(s, &weight, 3, 1.0f);
    invar_sweep_fill_index(s, &ids, 4, 20);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++)
        check_repeats(s, &calls[i], &x);
    invar_sweep_release(s, mark);
}

/* ---- low precision --------------------------------------------------------------------------- */

static void test_low_precision__repeats(void **state)
{
    invar_sweep *s = invar_sweep_begin(INVAR_NUMERICS_SM90);
    int64_t n = invar_sweep_size(s, 512, 128);

    (void)state;
    for (int i = 2; i < INVAR_TEST_FORMATS; i++)
        for (int few_rows = 0; few_rows < 2; few_rows++) {
            const invar_test_format *f = &invar_test_formats[i];
            int mark = invar_sweep_mark(s);
            int64_t rows = few_rows ? 3 : invar_sweep_size(s, 400, 20);
            invar_tensor dy = invar_sweep_normal(s, BF16, rows, n, 1);
            invar_tensor w = invar_sweep_normal(s, BF16, n, 2 * n, 2);
            invar_linear_dx_args args = {
                .dx = invar_sweep_2d(s, F32, rows, 2 * n), .n_parts = 1, .k_shards = 1};
            repeated r = {f->name, INVAR_OP_LINEAR_DX, &args, {args.dx}, 1};

            args.parts[0] = (invar_linear_part){invar_sweep_quantized(s, &dy, f->x, false),
                                                invar_sweep_quantized(s, &w, f->w, true)};
            check_repeats(s, &r, &args.parts[0].dy);
            invar_sweep_release(s, mark);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention_bwd__repeats),
        cmocka_unit_test(test_linear_dw__repeats),
        cmocka_unit_test(test_token_sums__repeats),
        cmocka_unit_test(test_low_precision__repeats),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
