/*
 * probe.c - tests of points: digests, levels, inputs, statistics and rows for the ledger.
 *
 * Digests are compared with the tree hash of base/hash.h and must not depend on micro-batches,
 * strides or threads. Control: another sample boundary or a flipped bit must change them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/probe/point_names.h"

#include <math.h>
#include <string.h>
#include <unistd.h>

#include "tests/unit/engine/model/probe/folder.h"

/* ---- helpers --------------------------------------------------------------------------------- */

/*
 * Rows of the samples of a batch: none, one and many. Leaves of 16 KiB end inside samples and
 * between them.
 */
static const int64_t lengths[] = {3, 1, 0, 40, 7, 64, 2, 31};
enum { SAMPLES = sizeof lengths / sizeof lengths[0], ROWS = 148, COLUMNS = 257 };

/* Returns a tensor of random bytes with a gap between its rows. */
static invar_tensor random_tensor(invar_tensor namer, int64_t gap, uint64_t seed)
{
    invar_tensor t = invar_test_strided(namer, gap);
    int64_t size = invar_dtype_bits(t.dtype) / 8, row = invar_tensor_row_elements(&t) * size;
    uint8_t *bytes = t.data;

    for (int64_t i = 0; i < t.shape[0] * row; i++)
        bytes[i / row * t.row_stride * size + i % row] =
            (uint8_t)invar_test_random(seed, (uint64_t)i);
    return t;
}

/* Fills `out` with the row offsets of `count` samples. */
static void fill_offsets(int64_t out[SAMPLES + 1], int64_t first, int64_t count)
{
    out[0] = 0;
    for (int64_t i = 0; i < count; i++)
        out[i + 1] = out[i] + lengths[first + i];
}

/* Returns a probe of this level in its first step. */
static invar_probe *new_probe(int64_t level)
{
    invar_probe *probe;

    assert_ok(invar_probe_new(&probe, &(invar_probe_options){.level = level}));
    invar_probe_begin(probe, NULL);
    return probe;
}

/* Returns a point whose rows have the type and columns of `like`; valid until the next call. */
static invar_ledger_point make_point(const char *name, const invar_tensor *like)
{
    static int64_t shape[2];

    shape[0] = -1;
    shape[1] = like->shape[1];
    return (invar_ledger_point){.name = name,
                                .phase = "forward",
                                .layer = 3,
                                .op = "linear.fwd",
                                .kind = "act",
                                .level = 1,
                                .dtype = invar_dtype_name(like->dtype),
                                .shape = shape,
                                .dims = (size_t)like->rank,
                                .shards = 1};
}

static void assert_digest(const invar_digest *got, const invar_digest *expected, bool equal)
{
    assert_int_equal(invar_digest_equal(got, expected), equal);
}

/* Returns the digest of samples that come in micro-batches of `size` samples. */
static invar_digest hash_in_batches(const invar_tensor *x, int64_t size, invar_pool *pool)
{
    invar_ledger_point point = make_point("x", x);
    int64_t start[SAMPLES + 1], row = 0, number;
    invar_probe_result result;
    invar_digest digest;
    invar_probe *probe;

    assert_ok(invar_probe_new(&probe, &(invar_probe_options){.level = 1, .pool = pool}));
    invar_probe_begin(probe, NULL);
    for (int64_t i = 0; i < SAMPLES; i += size) {
        int64_t count = SAMPLES - i < size ? SAMPLES - i : size;
        invar_tensor rows;
        fill_offsets(start, i, count);
        rows = invar_tensor_rows(x, row, start[count]);
        row += start[count];
        assert_ok(invar_probe_define(&number, probe, &point));
        assert_int_equal(number, 0);
        assert_ok(invar_probe_rows(probe, number, &rows, &(invar_row_offsets){start, count}));
    }
    assert_ok(invar_probe_finish(&result, probe));
    assert_int_equal(result.count, 1);
    digest = result.digests[0];
    invar_probe_free(probe);
    return digest;
}

/* ---- digests --------------------------------------------------------------------------------- */

static void test_engine_probe__rows_do_not_depend_on_micro_batches(void **state)
{
    invar_device *devices = *state;
    invar_tree_shard shards[SAMPLES];
    int64_t start[SAMPLES + 1];

    fill_offsets(start, 0, SAMPLES);
    assert_int_equal(start[SAMPLES], ROWS);
    for (int i = 0; i < 2; i++) {
        invar_tensor x =
            random_tensor(invar_tensor_2d(NULL, invar_test_storage[i], ROWS, COLUMNS), 5, 1);
        size_t size = (size_t)invar_dtype_bits(x.dtype) / 8;
        invar_digest expected, got;
        // reference: the tree hash of base/hash.h over the samples as shards
        for (int64_t s = 0; s < SAMPLES; s++)
            shards[s] =
                (invar_tree_shard){(char *)x.data + (size_t)(start[s] * x.row_stride) * size,
                                   lengths[s], COLUMNS * size, (size_t)x.row_stride * size};
        assert_ok(invar_tree_hash(&expected, NULL, &(invar_tree_input){shards, SAMPLES}));
        for (int64_t batch = 1; batch <= SAMPLES; batch++) {
            got = hash_in_batches(&x, batch, devices[batch % INVAR_TEST_DEVICES].pool);
            assert_digest(&got, &expected, true);
        }
        ((char *)x.data)[(size_t)(ROWS - 1) * (size_t)x.row_stride * size] ^= 1;
        got = hash_in_batches(&x, 3, NULL);
        assert_digest(&got, &expected, false);
        invar_test_free(&x);
    }
}

static void test_engine_probe__where_a_sample_ends_is_hashed(void **state)
{
    invar_tensor x = random_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, 4, 8), 0, 2);
    static const int64_t cuts[3][3] = {{0, 1, 4}, {0, 2, 4}, {0, 4, 4}};
    invar_digest digests[3];
    int64_t number;

    (void)state;
    for (int i = 0; i < 3; i++) {
        invar_ledger_point point = make_point("x", &x);
        invar_probe *probe = new_probe(1);
        invar_probe_result result;
        assert_ok(invar_probe_define(&number, probe, &point));
        assert_ok(invar_probe_rows(probe, number, &x, &(invar_row_offsets){cuts[i], 2}));
        assert_ok(invar_probe_finish(&result, probe));
        digests[i] = result.digests[0];
        invar_probe_free(probe);
    }
    assert_digest(&digests[0], &digests[1], false);
    assert_digest(&digests[1], &digests[2], false);
    invar_test_free(&x);
}

static void test_engine_probe__whole_equals_the_op_hash_tree(void **state)
{
    const invar_device *dev = *state;
    invar_tensor views[] = {
        invar_tensor_2d(NULL, INVAR_DTYPE_F32, 301, 77),
        invar_tensor_2d(NULL, INVAR_DTYPE_BF16, 64, 640),
        invar_tensor_quantized(NULL, NULL, INVAR_DTYPE_FP8, 128, 512, 256),
        invar_tensor_quantized(NULL, NULL, INVAR_DTYPE_FP8, 1, 64, 256),
        invar_tensor_quantized(NULL, NULL, INVAR_DTYPE_MXFP8, 1, 64, 256),
        invar_tensor_quantized(NULL, NULL, INVAR_DTYPE_INT4, 1, 64, 256),
    };

    for (size_t i = 0; i < sizeof views / sizeof *views; i++)
        for (int32_t shards = 1; shards <= 4; shards *= 2) {
            invar_tensor x = invar_test_tensor(views[i]);
            invar_ledger_point point = make_point("w", &x);
            invar_probe *probe = new_probe(1);
            invar_probe_result result;
            invar_digest expected;
            int64_t number;
            ((uint8_t *)x.data)[100] = 7;
            if (x.scale)
                ((uint8_t *)x.scale)[5] = 9;
            point.shape = (const int64_t[]){x.shape[0], x.shape[1]};
            point.shards = shards;
            assert_ok(
                invar_hash_tree(dev, &(invar_hash_tree_args){&expected, &x, 1, shards, NULL}));
            assert_ok(invar_probe_define(&number, probe, &point));
            assert_ok(invar_probe_tensor(probe, number, &x));
            assert_ok(invar_probe_finish(&result, probe));
            assert_digest(&result.digests[0], &expected, true);
            assert_fails(invar_probe_tensor(probe, number, &x), INVAR_E_STATE, "already");
            invar_probe_free(probe);
            invar_test_free(&x);
        }
}

static void test_engine_probe__digests_and_leaves(void **state)
{
    static int32_t data[INVAR_TREE_LEAF_BYTES / 2 + 5]; // two leaves and a part of a third
    invar_tree_shard shard = {data, 1, sizeof data, sizeof data};
    invar_tensor like = invar_tensor_2d(data, INVAR_DTYPE_I32, 1, sizeof data / sizeof *data);
    invar_ledger_point a = make_point("a", &like), b = make_point("b", &like);
    invar_digest expected, leaves[3], given = {{1, 2, 3}};
    invar_probe *probe = new_probe(1);
    invar_probe_result result;
    const invar_digest *got;
    int64_t na, nb, count;

    (void)state;
    data[5000] = 4;
    assert_ok(invar_probe_define(&na, probe, &a));
    assert_ok(invar_probe_define(&nb, probe, &b));
    assert_ok(invar_probe_tensor(probe, na, &like));
    assert_ok(invar_probe_digest(probe, nb, &given));
    assert_fails(invar_probe_digest(probe, nb, &given), INVAR_E_STATE, "\"b\" has its value");
    assert_ok(invar_probe_finish(&result, probe));
    assert_ok(invar_tree_hash(&expected, NULL, &(invar_tree_input){&shard, 1}));
    assert_digest(&result.digests[na], &expected, true);
    assert_digest(&result.digests[nb], &given, true);
    assert_ok(invar_tree_leaves(leaves, 3, NULL, &(invar_tree_input){&shard, 1}));
    assert_ok(invar_probe_leaves(&got, &count, probe, na));
    assert_int_equal(count, 3);
    assert_memory_equal(got, leaves, sizeof leaves);
    assert_fails(invar_probe_leaves(&got, &count, probe, nb), INVAR_E_STATE, "no leaves");
    invar_probe_free(probe);
}

/* The given digest is recorded; the tensor must have the point's type and shape, and is dumped. */
static void test_engine_probe__tensors_that_are_hashed(void **state)
{
    invar_tensor x = random_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, 4, 8), 0, 3), other = x;
    invar_ledger_point point = make_point("grad.x", &x);
    invar_digest given = {{4, 5, 6}};
    invar_probe *probe = new_probe(1);
    invar_probe_result result;
    char path[sizeof folder + 64];
    invar_dump *dump;
    int64_t number, count;

    (void)state;
    snprintf(path, sizeof path, "%s/hashed", folder);
    assert_ok(invar_dump_new(&dump, path, "grad.*"));
    invar_probe_begin(probe, dump);
    assert_ok(invar_probe_tensor_with_digest(probe, -1, &x, &given));
    assert_fails(invar_probe_tensor_with_digest(probe, 5, &x, &given), INVAR_E_INVALID,
                 "no point 5");
    assert_ok(invar_probe_define(&number, probe, &point));
    other.shape[1] = 7;
    assert_fails(invar_probe_tensor_with_digest(probe, number, &other, &given), INVAR_E_INVALID,
                 "\"grad.x\" gets a tensor of another type or shape");
    assert_ok(invar_probe_tensor_with_digest(probe, number, &x, &given));
    assert_fails(invar_probe_tensor_with_digest(probe, number, &x, &given), INVAR_E_STATE,
                 "\"grad.x\" has its value");
    assert_ok(invar_probe_finish(&result, probe));
    assert_digest(&result.digests[number], &given, true);
    assert_ok(invar_dump_finish(&count, dump));
    assert_int_equal(count, 1);
    invar_dump_free(dump);
    invar_probe_free(probe);
    invar_test_free(&x);
}

/* ---- points ---------------------------------------------------------------------------------- */

static void test_engine_probe__levels_above_are_ignored(void **state)
{
    invar_tensor x = random_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, 4, 8), 0, 3);
    invar_ledger_point point = make_point("x", &x);
    const invar_row_offsets one = {(const int64_t[]){0, 4}, 1};
    invar_probe *probe = new_probe(INVAR_PROBE_STEP);
    invar_probe_result result;
    int64_t number;

    (void)state;
    assert_ok(invar_probe_define(&number, probe, &point));
    assert_int_equal(number, -1);
    assert_ok(invar_probe_rows(probe, number, &x, &one));
    assert_ok(invar_probe_tensor(probe, number, &x));
    assert_ok(invar_probe_digest(probe, number, &(invar_digest){{0}}));
    assert_ok(invar_probe_finish(&result, probe));
    assert_int_equal(result.count, 0);
    point.level = 0;
    assert_fails(invar_probe_define(&number, probe, &point), INVAR_E_INVALID,
                 "\"x\" was defined before as something else");
    point.name = "y";
    assert_ok(invar_probe_define(&number, probe, &point));
    assert_int_equal(number, 0);
    invar_probe_free(probe);
    invar_test_free(&x);
}

/* More names than the hash table holds at first, recorded or skipped: each keeps its number. */
static void test_engine_probe__many_names(void **state)
{
    enum { MANY = 3000 };
    invar_tensor x = random_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, 4, 8), 0, 3);
    invar_ledger_point point = make_point("x", &x);
    invar_probe *probe = new_probe(INVAR_PROBE_POINT);
    char name[16];

    (void)state;
    point.name = name;
    for (int round = 0; round < 2; round++)
        for (int i = 0; i < MANY; i++) {
            const char *from[] = {i ? "p0" : NULL, NULL};
            int64_t number;
            (void)snprintf(name, sizeof name, "p%d", i);
            point.level = i % 3 == 2 ? INVAR_PROBE_FULL : INVAR_PROBE_POINT;
            assert_ok(invar_probe_define_from(&number, probe, &point, from));
            assert_int_equal(number, i % 3 == 2 ? -1 : i - (i + 1) / 3);
        }
    invar_probe_free(probe);
    invar_test_free(&x);
}

static void test_engine_probe__a_point_without_value_is_named(void **state)
{
    invar_tensor x = random_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, 4, 8), 0, 3);
    invar_ledger_point a = make_point("a", &x), b = make_point("b", &x);
    const invar_row_offsets one = {(const int64_t[]){0, 4}, 1};
    invar_probe *probe = new_probe(1);
    invar_probe_result result;
    int64_t na, nb;

    (void)state;
    assert_ok(invar_probe_define(&na, probe, &a));
    assert_ok(invar_probe_define(&nb, probe, &b));
    assert_ok(invar_probe_rows(probe, na, &x, &one));
    assert_fails(invar_probe_finish(&result, probe), INVAR_E_STATE, "\"b\" got no value");
    assert_ok(invar_probe_rows(probe, nb, &x, &one));
    assert_ok(invar_probe_finish(&result, probe));
    assert_true(result.changed);
    assert_digest(&result.digests[0], &result.digests[1], true);
    invar_probe_begin(probe, NULL); // the next step has the same points, without values
    assert_fails(invar_probe_finish(&result, probe), INVAR_E_STATE, "\"a\" got no value");
    assert_ok(invar_probe_rows(probe, na, &x, &one));
    assert_ok(invar_probe_rows(probe, nb, &x, &one));
    assert_ok(invar_probe_finish(&result, probe));
    assert_false(result.changed);
    invar_probe_free(probe);
    invar_test_free(&x);
}

static void test_engine_probe__refuses_what_does_not_fit(void **state)
{
    invar_tensor x = random_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, 4, 8), 0, 3);
    invar_tensor narrow = invar_tensor_columns(&x, 0, 4);
    invar_tensor other = invar_tensor_2d(x.data, INVAR_DTYPE_I32, 4, 8);
    invar_ledger_point point = make_point("x", &x), changed = point;
    const invar_row_offsets fits = {(const int64_t[]){0, 1, 4}, 2};
    const invar_row_offsets not_from_0 = {(const int64_t[]){1, 4}, 1};
    const invar_row_offsets beyond = {(const int64_t[]){0, 5}, 1};
    const invar_row_offsets descending = {(const int64_t[]){0, 3, 2}, 2};
    static char long_name[INVAR_LEDGER_NAME_BYTES + 2];
    invar_probe *probe = new_probe(1);
    int64_t number;

    (void)state;
    assert_ok(invar_probe_define(&number, probe, &point));
    changed.op = "add";
    assert_fails(invar_probe_define(&number, probe, &changed), INVAR_E_INVALID, "something else");
    changed = point;
    changed.shape = (const int64_t[]){4, 8};
    assert_fails(invar_probe_define(&number, probe, &changed), INVAR_E_INVALID, "something else");
    memset(long_name, 'n', sizeof long_name - 1);
    changed.name = long_name;
    assert_fails(invar_probe_define(&number, probe, &changed), INVAR_E_INVALID, "256 bytes");
    assert_fails(invar_probe_rows(probe, 0, &narrow, &fits), INVAR_E_INVALID, "another type");
    assert_fails(invar_probe_rows(probe, 0, &other, &fits), INVAR_E_INVALID, "another type");
    assert_fails(invar_probe_rows(probe, 0, &x, &not_from_0), INVAR_E_INVALID, "not rows");
    assert_fails(invar_probe_rows(probe, 0, &x, &beyond), INVAR_E_INVALID, "not rows");
    assert_fails(invar_probe_rows(probe, 0, &x, &descending), INVAR_E_INVALID, "not rows");
    assert_fails(invar_probe_rows(probe, 1, &x, &fits), INVAR_E_INVALID, "no point 1");
    assert_fails(invar_probe_rows(probe, -2, &x, &fits), INVAR_E_INVALID, "no point -2");
    assert_ok(invar_probe_rows(probe, 0, &x, &fits));
    assert_fails(invar_probe_tensor(probe, 0, &x), INVAR_E_STATE, "already");
    invar_probe_free(probe);
    invar_test_free(&x);
}

/* ---- forward and backward passes, and the ledger --------------------------------------------- */

/* An observed value without its rows; `stream`: a value of the residual stream. */
typedef struct value_case {
    invar_value_name name;
    const char *op;
    bool backward, stream;
    invar_value_name inputs[3];
    int n_inputs;
} value_case;

/* Shows the values of a forward and backward pass of two layers; all have the same rows. */
static void observe_pass(invar_point_namer *namer, const invar_tensor *x,
                         const invar_row_offsets *samples)
{
    static const value_case values[] = {
        {{-1, "embed"}, "embedding.fwd", false, true, {{0, ""}}, 0},
        {{0, "norm"}, "rmsnorm.fwd", false, false, {{-1, "embed"}}, 1},
        {{0, "q"}, "linear.fwd", false, false, {{0, "norm"}}, 1},
        {{0, "k"}, "linear.fwd", false, false, {{0, "norm"}}, 1},
        {{0, "mlp"}, "add", false, true, {{-1, "embed"}, {0, "q"}, {0, "k"}}, 3},
        {{1, "mlp"}, "add", false, true, {{0, "mlp"}}, 1},
        {{-1, "head.norm"}, "rmsnorm.fwd", false, false, {{1, "mlp"}}, 1},
        {{-1, "head.dx"}, "rmsnorm.bwd", true, true, {{0, ""}}, 0},
        {{1, "dx"}, "add", true, true, {{-1, "head.dx"}, {0, "mlp"}}, 2},
        {{0, "dq"}, "linear.dx", true, false, {{1, "dx"}, {0, "q"}}, 2},
    };

    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        const value_case *s = &values[i];
        invar_observed_value value = {.name = s->name,
                                      .op = s->op,
                                      .backward = s->backward,
                                      .is_residual = s->stream,
                                      .n_inputs = s->n_inputs,
                                      .rows = x,
                                      .samples = samples};
        memcpy(value.inputs, s->inputs, sizeof s->inputs);
        assert_ok(invar_probe_on_value(namer, &value));
    }
}

/* Points that the forward and the backward start from; the second one does not exist. */
static const char *const tokens[] = {"tokens", NULL}, *const loss[] = {"nobody knows", NULL};

/* Records the point "tokens", the input of all other points. */
static void define_tokens(invar_probe *probe)
{
    invar_ledger_point point = {.name = "tokens",
                                .phase = "rollout",
                                .layer = -1,
                                .op = "sample",
                                .kind = "data",
                                .dtype = "i32",
                                .shape = (const int64_t[]){4},
                                .dims = 1,
                                .shards = 1};
    int32_t values[4] = {1, 2, 3, 4};
    invar_tensor four = invar_tensor_1d(values, INVAR_DTYPE_I32, 4);
    int64_t number;

    assert_ok(invar_probe_define(&number, probe, &point));
    assert_int_equal(number, 0);
    assert_ok(invar_probe_tensor(probe, number, &four));
}

/* Formats a point as "name phase kind op level input input". */
static void format_point(char out[200], const invar_probe_result *result, int64_t i)
{
    const invar_ledger_point *p = &result->points[i];
    int used =
        snprintf(out, 200, "%s %s %s %s %d", p->name, p->phase, p->kind, p->op, (int)p->level);

    for (size_t k = 0; k < p->n_inputs; k++)
        used += snprintf(out + used, 200 - (size_t)used, " %s", result->points[p->inputs[k]].name);
}

static void assert_points(const invar_probe_result *result, const char *const *expected,
                          int64_t count)
{
    char text[200];

    assert_int_equal(result->count, count);
    for (int64_t i = 0; i < count; i++) {
        format_point(text, result, i);
        assert_string_equal(text, expected[i]);
    }
}

/* Every point lists its inputs; an input above the level is replaced by its own inputs. */
static void test_engine_probe__points_list_their_inputs(void **state)
{
    static const char *const full[] = {"tokens rollout data sample 0",
                                       "embed forward act embedding.fwd 1 tokens",
                                       "layer.0.norm forward act rmsnorm.fwd 2 embed",
                                       "layer.0.q forward act linear.fwd 2 layer.0.norm",
                                       "layer.0.k forward act linear.fwd 2 layer.0.norm",
                                       "layer.0.mlp forward act add 1 embed layer.0.q layer.0.k",
                                       "layer.1.mlp forward act add 1 layer.0.mlp",
                                       "head.norm forward act rmsnorm.fwd 2 layer.1.mlp",
                                       "head.dx backward grad rmsnorm.bwd 1",
                                       "layer.1.dx backward grad add 1 head.dx layer.0.mlp",
                                       "layer.0.dq backward grad linear.dx 2 layer.1.dx layer.0.q"};
    static const char *const coarse[] = {"tokens rollout data sample 0",
                                         "embed forward act embedding.fwd 1 tokens",
                                         "layer.0.mlp forward act add 1 embed",
                                         "layer.1.mlp forward act add 1 layer.0.mlp",
                                         "head.dx backward grad rmsnorm.bwd 1",
                                         "layer.1.dx backward grad add 1 head.dx layer.0.mlp",
                                         "after optimizer opt adamw 0 layer.1.dx embed"};
    static const char *const inputs[] = {"layer.0.dq", "layer.0.k", NULL};
    invar_tensor x = random_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_BF16, 4, 8), 0, 3);
    const invar_row_offsets samples = {(const int64_t[]){0, 1, 4}, 2};
    invar_ledger_point after = {.name = "after",
                                .phase = "optimizer",
                                .layer = -1,
                                .op = "adamw",
                                .kind = "opt",
                                .dtype = "bf16",
                                .shape = (const int64_t[]){4, 8},
                                .dims = 2,
                                .shards = 1};

    (void)state;
    for (int64_t level = 1; level <= 2; level++) {
        invar_probe *probe = new_probe(level);
        invar_point_namer namer = {.probe = probe, .prefix = "", .given = {tokens, loss}};
        invar_probe_result result;
        int64_t number;
        invar_probe_begin(probe, NULL);
        define_tokens(probe);
        for (int pass = 0; pass < 2; pass++)
            observe_pass(&namer, &x, &samples);
        if (level == 1) {
            assert_ok(invar_probe_define_from(&number, probe, &after, inputs));
            assert_ok(invar_probe_tensor(probe, number, &x));
        }
        assert_ok(invar_probe_finish(&result, probe));
        if (level == 1)
            assert_points(&result, coarse, 7);
        else
            assert_points(&result, full, 11);
        invar_probe_free(probe);
    }
    invar_test_free(&x);
}

static void test_engine_probe__a_forward_makes_points_that_a_ledger_takes(void **state)
{
    invar_tensor x = random_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_BF16, 4, 8), 0, 3);
    const invar_row_offsets samples = {(const int64_t[]){0, 1, 4}, 2};
    invar_probe *probe = new_probe(1);
    invar_point_namer namer = {.probe = probe, .prefix = "critic.", .given = {tokens, loss}};
    char path[sizeof folder + 16];
    invar_probe_result result;
    invar_ledger *ledger;

    (void)state;
    snprintf(path, sizeof path, "%s/ledger.db", folder);
    assert_ok(invar_ledger_open(&ledger, path, &(invar_ledger_options){.create = true}));
    assert_ok(invar_ledger_begin(
        ledger, &(invar_ledger_run){
                    .name = "a", .kind = "train", .circumstances = {.no_auto_facts = true}}));
    for (int64_t step = 0; step < 2; step++) {
        invar_probe_begin(probe, NULL);
        define_tokens(probe);
        for (int pass = 0; pass < 3; pass++)
            observe_pass(&namer, &x, &samples);
        assert_ok(invar_probe_finish(&result, probe));
        assert_int_equal(result.changed, step == 0);
        if (result.changed)
            assert_ok(invar_ledger_define(ledger, result.points, (size_t)result.count));
        assert_ok(invar_ledger_append(
            ledger, &(invar_ledger_step){.step = step, .digests = result.digests}));
    }
    assert_int_equal(result.count, 6);
    assert_string_equal(result.points[2].name, "critic.layer.0.mlp");
    assert_int_equal(result.points[2].layer, 0);
    assert_string_equal(result.points[2].dtype, "bf16");
    assert_int_equal(result.points[2].shape[0], -1);
    assert_int_equal(result.points[2].shape[1], 8);
    invar_ledger_close(ledger);
    invar_probe_free(probe);
    invar_test_free(&x);
}

static void test_engine_probe__the_dump_sees_points_above_the_level(void **state)
{
    invar_tensor x = random_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, 4, 8), 0, 3);
    const invar_row_offsets samples = {(const int64_t[]){0, 1, 4}, 2};
    invar_probe *probe = new_probe(INVAR_PROBE_STEP);
    invar_point_namer namer = {.probe = probe, .prefix = "", .given = {tokens, loss}};
    char path[sizeof folder + 64];
    invar_probe_result result;
    invar_dump *dump;
    int64_t count;

    (void)state;
    snprintf(path, sizeof path, "%s/dump", folder);
    assert_ok(invar_dump_new(&dump, path, "layer.0.*"));
    invar_probe_begin(probe, dump);
    observe_pass(&namer, &x, &samples);
    observe_pass(&namer, &x, &samples);
    assert_ok(invar_probe_finish(&result, probe));
    assert_int_equal(result.count, 0);
    assert_ok(invar_dump_finish(&count, dump));
    assert_int_equal(count, 5);
    snprintf(path, sizeof path, "%s/dump/layer.0.mlp.npy", folder);
    assert_int_equal(access(path, R_OK), 0);
    snprintf(path, sizeof path, "%s/dump/layer.1.mlp.npy", folder);
    assert_int_not_equal(access(path, R_OK), 0);
    invar_dump_free(dump);
    invar_probe_free(probe);
    invar_test_free(&x);
}

/* ---- statistics ------------------------------------------------------------------------------ */

/*
 * Statistics of f32 and bf16 do not depend on micro-batches. The first point with a value that is
 * not finite is reported by name.
 */
static void test_engine_probe__counts_what_is_not_finite(void **state)
{
    const float f32[6] = {1.0f, -3.0f, INFINITY, 2.0f, NAN, -INFINITY};
    const uint16_t bf16[2] = {0x4040, 0xffc0}; // 3, NaN
    const int32_t i32[2] = {1, 2};
    const invar_tensor rows = invar_tensor_2d((void *)(uintptr_t)f32, INVAR_DTYPE_F32, 3, 2);
    const invar_tensor narrow = invar_tensor_1d((void *)(uintptr_t)bf16, INVAR_DTYPE_BF16, 2);
    const invar_tensor ids = invar_tensor_1d((void *)(uintptr_t)i32, INVAR_DTYPE_I32, 2);
    int64_t shape[2] = {-1, 2}, a, b, c;
    invar_ledger_point point = {.name = "tokens",
                                .phase = "forward",
                                .layer = -1,
                                .op = "op",
                                .kind = "act",
                                .dtype = "i32",
                                .shape = shape,
                                .dims = 1,
                                .shards = 1};
    invar_probe_result result;
    invar_ledger_stat first;
    invar_probe *probe = NULL;

    (void)state;
    assert_ok(invar_probe_new(&probe, &(invar_probe_options){.stats = true}));
    for (int cut = 0; cut < 3; cut++) {
        const invar_tensor head = invar_tensor_rows(&rows, 0, cut);
        const invar_tensor rest = invar_tensor_rows(&rows, cut, 3 - cut);
        int64_t end_head[2] = {0, cut}, end_rest[2] = {0, 3 - cut};

        invar_probe_begin(probe, NULL);
        point.name = "tokens", point.dtype = "i32", point.dims = 1;
        assert_ok(invar_probe_define(&a, probe, &point));
        assert_ok(invar_probe_tensor(probe, a, &ids));
        assert_null(invar_probe_first_nonfinite(&first, probe));
        point.name = "rows", point.dtype = "f32", point.dims = 2;
        assert_ok(invar_probe_define(&b, probe, &point));
        if (cut > 0)
            assert_ok(invar_probe_rows(probe, b, &head, &(invar_row_offsets){end_head, 1}));
        assert_ok(invar_probe_rows(probe, b, &rest, &(invar_row_offsets){end_rest, 1}));
        point.name = "narrow", point.dtype = "bf16", point.dims = 1;
        assert_ok(invar_probe_define(&c, probe, &point));
        assert_ok(invar_probe_tensor_with_digest(probe, c, &narrow, &(invar_digest){{1}}));
        assert_string_equal(invar_probe_first_nonfinite(&first, probe)->name, "rows");
        assert_true(first.point == b && first.nans == 1 && first.infs == 2);
        assert_ok(invar_probe_finish(&result, probe));
        assert_int_equal(result.n_stats, 2); // tokens have no statistics
        assert_true(result.stats[0].point == b && result.stats[0].nans == 1);
        assert_true(result.stats[0].absmax == 3.0 && result.stats[0].l2 == sqrt(14.0));
        assert_true(result.stats[1].point == c && result.stats[1].nans == 1);
        assert_true(result.stats[1].infs == 0 && result.stats[1].l2 == 3.0);
    }
    invar_probe_free(probe);
    assert_ok(invar_probe_new(&probe, &(invar_probe_options){.stats = false}));
    invar_probe_begin(probe, NULL);
    assert_ok(invar_probe_define(&c, probe, &point));
    assert_ok(invar_probe_tensor(probe, c, &narrow));
    assert_null(invar_probe_first_nonfinite(&first, probe));
    assert_ok(invar_probe_finish(&result, probe));
    assert_int_equal(result.n_stats, 0);
    invar_probe_free(probe);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_engine_probe__rows_do_not_depend_on_micro_batches),
        cmocka_unit_test(test_engine_probe__where_a_sample_ends_is_hashed),
        cmocka_unit_test(test_engine_probe__whole_equals_the_op_hash_tree),
        cmocka_unit_test(test_engine_probe__digests_and_leaves),
        cmocka_unit_test(test_engine_probe__tensors_that_are_hashed),
        cmocka_unit_test(test_engine_probe__levels_above_are_ignored),
        cmocka_unit_test(test_engine_probe__many_names),
        cmocka_unit_test(test_engine_probe__a_point_without_value_is_named),
        cmocka_unit_test(test_engine_probe__refuses_what_does_not_fit),
        cmocka_unit_test(test_engine_probe__points_list_their_inputs),
        cmocka_unit_test(test_engine_probe__a_forward_makes_points_that_a_ledger_takes),
        cmocka_unit_test(test_engine_probe__the_dump_sees_points_above_the_level),
        cmocka_unit_test(test_engine_probe__counts_what_is_not_finite),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
