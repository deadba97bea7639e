/*
 * hash_tree.c - tests of the tree hash of tensors and of the leaf digests of rows.
 *
 * Expected digests come from invar_tree_hash on compact copies of the bytes (base/hash.c, which has
 * its own oracle). Control: any changed bit, and other shards, change the digest.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "tests/ops.h"

static invar_digest hash_one(const invar_device *dev, invar_tensor x, int32_t shards)
{
    invar_digest digest;

    assert_ok(invar_hash_tree(dev, &(invar_hash_tree_args){&digest, &x, 1, shards, NULL}));
    return digest;
}

static void assert_digest(const invar_digest *got, const invar_digest *expected, bool equal)
{
    assert_int_equal(invar_digest_equal(got, expected), equal);
}

/* Returns the rows [first, end) of a compact tensor as contiguous bytes. */
static invar_tree_shard shard_of_rows(const invar_tensor *t, int64_t first, int64_t end)
{
    int64_t row = invar_tensor_row_elements(t) * invar_dtype_bits(t->dtype) / 8;

    return (invar_tree_shard){(char *)t->data + first * row, 1, (size_t)((end - first) * row),
                              (size_t)((end - first) * row)};
}

static invar_tensor random_tensor(invar_tensor view, int64_t gap, uint64_t seed)
{
    invar_tensor t = invar_test_strided(view, view.rank > 1 ? gap : 0);
    uint8_t *bytes = t.data;
    int64_t stride = t.row_stride * invar_dtype_bits(t.dtype) / 8;
    int64_t row = invar_tensor_row_elements(&t) * invar_dtype_bits(t.dtype) / 8;

    for (int64_t i = 0; i < t.shape[0] * row; i++)
        bytes[i / row * stride + i % row] = (uint8_t)invar_test_random(seed, (uint64_t)i);
    return t;
}

static void test_hash_tree__equals_hash_of_compact_bytes(void **state)
{
    invar_tensor views[] = {
        invar_tensor_1d(NULL, INVAR_DTYPE_F32, 1),
        invar_tensor_1d(NULL, INVAR_DTYPE_F32, 10001),
        invar_tensor_2d(NULL, INVAR_DTYPE_BF16, 301, 77),
        invar_tensor_2d(NULL, INVAR_DTYPE_I64, 5, 1000),
        invar_tensor_3d(NULL, INVAR_DTYPE_F32, 129, 3, 40),
        invar_tensor_4d(NULL, INVAR_DTYPE_I32, 7, 2, 3, 500),
        invar_tensor_2d(NULL, INVAR_DTYPE_F32, 0, 8),
        invar_tensor_2d(NULL, INVAR_DTYPE_F32, 8, 0),
    };

    for (size_t i = 0; i < sizeof views / sizeof *views; i++)
        for (int32_t shards = 1; shards <= 8; shards *= 2) {
            invar_tensor x = random_tensor(views[i], 5, i), compact_copy = invar_test_copy(&x);
            invar_tree_shard row_shards[8];
            invar_digest got = hash_one(*state, x, shards), expected;
            int64_t n = x.shape[0], first = 0;

            // row i belongs to shard floor(i * shards / n)
            for (int32_t v = 0; v < shards; v++) {
                int64_t end = first;
                while (end < n && end * shards / n == v)
                    end++;
                row_shards[v] = shard_of_rows(&compact_copy, first, end);
                first = end;
            }
            assert_ok(invar_tree_hash(&expected, NULL, &(invar_tree_input){row_shards, shards}));
            assert_digest(&got, &expected, true);
            invar_test_free(&x, &compact_copy);
        }
}

static void test_hash_tree__padding_is_not_hashed(void **state)
{
    invar_tensor x = random_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, 50, 30), 4, 1);
    invar_digest before = hash_one(*state, x, 2), after;

    for (int64_t i = 0; i < 49; i++)
        ((float *)x.data)[i * x.row_stride + 30] = (float)i;
    after = hash_one(*state, x, 2);
    assert_digest(&after, &before, true);
    invar_test_free(&x);
}

/* The data of each logical shard is hashed before its scales. */
static void test_hash_tree__quantized_tensors_include_scales(void **state)
{
    static const struct {
        invar_dtype dtype;
        int32_t scale_rows;
        size_t scale_bytes; /* size of the scales of 256 rows of 384 columns */
    } formats[] = {{INVAR_DTYPE_FP8, 1, 256 * 3 * 4},
                   {INVAR_DTYPE_FP8, 128, 2 * 3 * 4},
                   {INVAR_DTYPE_MXFP8, 1, 256 * 12},
                   {INVAR_DTYPE_INT4, 1, 256 * 12 * 2}};

    for (size_t f = 0; f < sizeof formats / sizeof *formats; f++)
        for (int32_t shards = 1; shards <= 2; shards++) {
            invar_tensor x = random_tensor(invar_tensor_quantized(NULL, NULL, formats[f].dtype,
                                                                  formats[f].scale_rows, 256, 384),
                                           8, f);
            invar_tensor compact_copy = invar_test_copy(&x);
            size_t bytes = formats[f].scale_bytes / (size_t)shards;
            invar_tree_shard parts[4];
            invar_digest got, expected;

            for (size_t i = 0; i < formats[f].scale_bytes; i++)
                ((uint8_t *)x.scale)[i] = (uint8_t)invar_test_random(9, i);
            for (int32_t v = 0; v < shards; v++) {
                parts[2 * v] =
                    shard_of_rows(&compact_copy, v * 256 / shards, (v + 1) * 256 / shards);
                parts[2 * v + 1] =
                    (invar_tree_shard){(char *)x.scale + (size_t)v * bytes, 1, bytes, bytes};
            }
            got = hash_one(*state, x, shards);
            assert_ok(invar_tree_hash(&expected, NULL, &(invar_tree_input){parts, 2 * shards}));
            assert_digest(&got, &expected, true);
            ((uint8_t *)x.scale)[formats[f].scale_bytes - 1] ^= 1;
            got = hash_one(*state, x, shards);
            assert_digest(&got, &expected, false);
            invar_test_free(&x, &compact_copy);
        }
}

/* A flipped bit, two exchanged elements and another number of shards change the digest. */
static void test_hash_tree__every_change_is_detected(void **state)
{
    invar_tensor x = random_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_BF16, 40, 1000), 3, 1);
    invar_digest before = hash_one(*state, x, 4), after;
    uint16_t *data = x.data, kept;

    for (int64_t i = 0; i < 200; i++) {
        int64_t row = i % 40, col = i * 37 % 1000, bit = i % 16;
        data[row * x.row_stride + col] ^= (uint16_t)(1 << bit);
        after = hash_one(*state, x, 4);
        assert_digest(&after, &before, false);
        data[row * x.row_stride + col] ^= (uint16_t)(1 << bit);
    }
    kept = data[0];
    data[0] = data[x.row_stride];
    data[x.row_stride] = kept;
    after = hash_one(*state, x, 4);
    assert_digest(&after, &before, false);
    // the number of shards is part of the hash
    after = hash_one(*state, x, 2);
    assert_digest(&after, &before, false);
    invar_test_free(&x);
}

static void test_hash_tree__bits_invariant_to_threads(void **state)
{
    const invar_device *devices = *state;
    invar_tensor x = random_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, 3000, 101), 7, 1);
    invar_digest expected = hash_one(&devices[0], x, 4), got;

    for (int i = 0; i < INVAR_TEST_DEVICES; i++) {
        got = hash_one(&devices[i], x, 4);
        assert_digest(&got, &expected, true);
    }
    invar_test_free(&x);
}

/*
 * Leaves begin at shard boundaries, so each shard can be hashed where it is stored, and a changed
 * element changes one leaf of its shard.
 */
static void test_hash_tree__difference_is_in_one_leaf(void **state)
{
    enum { LEAVES = 2 * 7 }; // 2 shards of 25 rows of 1000 floats: 6.1 leaves each
    invar_tensor x = random_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, 50, 1000), 3, 1);
    invar_tree_shard halves[2];
    invar_digest before[LEAVES], after[LEAVES], root, expected;
    int different = 0;

    for (int v = 0; v < 2; v++)
        halves[v] = (invar_tree_shard){(float *)x.data + v * 25 * x.row_stride, 25, 4000,
                                       (size_t)x.row_stride * 4};
    root = hash_one(*state, x, 2);
    assert_ok(invar_tree_hash(&expected, NULL, &(invar_tree_input){halves, 2}));
    assert_digest(&root, &expected, true);
    assert_ok(invar_tree_leaves(before, LEAVES, NULL, &(invar_tree_input){halves, 2}));
    ((float *)x.data)[30 * x.row_stride + 500] += 1.0f; // byte 22000 of the second shard: leaf 1
    assert_ok(invar_tree_leaves(after, LEAVES, NULL, &(invar_tree_input){halves, 2}));
    for (int i = 0; i < LEAVES; i++)
        different += !invar_digest_equal(&before[i], &after[i]);
    assert_int_equal(different, 1);
    assert_digest(&before[7 + 1], &after[7 + 1], false);
    invar_test_free(&x);
}

/* The digest of a tensor does not depend on the other tensors of the list. */
static void test_hash_tree__lists_are_single_tensors(void **state)
{
    enum { COUNT = 40 };
    invar_tensor x[COUNT];
    invar_digest digests[COUNT], alone;

    for (int i = 0; i < COUNT; i++)
        x[i] = random_tensor(invar_tensor_2d(NULL, i % 3 ? INVAR_DTYPE_F32 : INVAR_DTYPE_BF16,
                                             i % 7, 1 + 997 * i % 5000),
                             i % 5, (uint64_t)i);
    for (int32_t shards = 1; shards <= 4; shards *= 2) {
        assert_ok(
            invar_hash_tree(*state, &(invar_hash_tree_args){digests, x, COUNT, shards, NULL}));
        for (int i = 0; i < COUNT; i++) {
            alone = hash_one(*state, x[i], shards);
            assert_digest(&digests[i], &alone, true);
        }
        assert_digest(&digests[COUNT - 1], &digests[COUNT - 2], false);
    }
    for (int i = 0; i < COUNT; i++)
        invar_test_free(&x[i]);
}

/* Returns a compact copy of some rows and columns of a tensor. */
static invar_tensor compact_copy(const invar_tensor *x, int64_t row, int64_t rows, int64_t col,
                                 int64_t cols)
{
    invar_tensor part = invar_tensor_rows(x, row, rows);

    if (x->rank == 2)
        part = invar_tensor_columns(&part, col, cols);
    return invar_test_copy(&part);
}

/* Compares the digest of a logical split with that of compact copies of its shards. */
static void check_split(const invar_device *dev, invar_tensor view, invar_logical_split split)
{
    invar_tensor x = random_tensor(view, 5, 3), shard_copies[64];
    invar_tree_shard shards[64];
    invar_tree_input in = {shards, 0};
    int64_t rows = view.shape[0] / split.experts, n = split.columns ? view.shape[1] : rows;
    int64_t atoms = (n + split.atom - 1) / split.atom, cols = view.rank == 2 ? view.shape[1] : 1;
    invar_digest got, expected, unsplit = hash_one(dev, x, 1);

    for (int64_t e = 0; e < split.experts; e++)
        for (int64_t v = 0, first = 0, end; v < split.shards; v++, first = end) {
            end = first;
            while (end < n && end / split.atom * split.shards / atoms == v)
                end++;
            shard_copies[in.n_shards] =
                split.columns ? compact_copy(&x, e * rows, rows, first, end - first)
                              : compact_copy(&x, e * rows + first, end - first, 0, cols);
            shards[in.n_shards] =
                shard_of_rows(&shard_copies[in.n_shards], 0, shard_copies[in.n_shards].shape[0]);
            in.n_shards++;
        }
    assert_ok(invar_hash_tree(dev, &(invar_hash_tree_args){&got, &x, 1, 1, &split}));
    assert_ok(invar_tree_hash(&expected, NULL, &in));
    assert_digest(&got, &expected, true);
    assert_digest(&got, &unsplit, false);
    for (int64_t i = 0; i < in.n_shards; i++)
        invar_test_free(&shard_copies[i]);
    invar_test_free(&x);
}

/* Splits by rows and by columns, with uneven and empty shards, and stacks of experts. */
static void test_hash_tree__splits_match_compact_shards(void **state)
{
    invar_tensor matrix = invar_tensor_2d(NULL, INVAR_DTYPE_F32, 352, 704);
    invar_tensor vector = invar_tensor_1d(NULL, INVAR_DTYPE_F32, 352);

    for (int32_t shards = 2; shards <= 8; shards *= 2) {
        check_split(*state, matrix, (invar_logical_split){shards, 0, 32, 1});
        check_split(*state, matrix, (invar_logical_split){shards, 0, 128, 1});
        check_split(*state, matrix, (invar_logical_split){shards, 1, 64, 1});
        check_split(*state, matrix, (invar_logical_split){shards, 1, 400, 1});
        check_split(*state, matrix, (invar_logical_split){shards, 0, 16, 4});
        check_split(*state, matrix, (invar_logical_split){shards, 1, 64, 4});
        check_split(*state, vector, (invar_logical_split){shards, 0, 32, 1});
    }
}

/* A split into one shard has the digest of the tensor, also for a stack of experts. */
static void test_hash_tree__one_shard_is_no_split(void **state)
{
    invar_logical_split split = {.shards = 1, .experts = 4};
    invar_tensor x = random_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, 64, 300), 3, 1);
    invar_digest got, expected = hash_one(*state, x, 1);

    assert_ok(invar_hash_tree(*state, &(invar_hash_tree_args){&got, &x, 1, 1, &split}));
    assert_digest(&got, &expected, true);
    invar_test_free(&x);
}

static void test_hash_tree__rejects_bad_splits(void **state)
{
    static uint8_t codes[384 * 128];
    float data[64] = {0};
    invar_digest d;
    invar_tensor x = invar_tensor_2d(data, INVAR_DTYPE_F32, 4, 8);
    invar_tensor v = invar_tensor_1d(data, INVAR_DTYPE_F32, 8);
    invar_tensor q = invar_tensor_quantized(codes, data, INVAR_DTYPE_FP8, 128, 384, 128);

#define CUT(x, shards, ...)                                                                        \
    invar_hash_tree(                                                                               \
        *state, &(invar_hash_tree_args){&d, x, 1, shards, &(invar_logical_split){__VA_ARGS__}})
    assert_invalid(CUT(&x, 2, 2, 0, 1, 1), "hash.tree: shards: 2 shards");
    assert_invalid(CUT(&x, 1, 3, 0, 1, 1), "hash.tree: cuts: 3 shards");
    assert_invalid(CUT(&x, 1, 2, 0, 0, 1), "hash.tree: cuts: 2 pieces of 0 rows");
    assert_invalid(CUT(&x, 1, 2, 1, 1, 3), "hash.tree: cuts: 2 pieces of 1 columns in each of 3");
    assert_invalid(CUT(&v, 1, 2, 1, 1, 1), "hash.tree: cuts: 2 pieces of 1 columns");
    assert_invalid(CUT(&q, 1, 2, 0, 128, 1), "hash.tree: cuts: 2 pieces of 128 rows");
    assert_ok(CUT(&q, 1, 1, 0, 0, 0));
}

static void test_hash_tree__rejects_bad_arguments(void **state)
{
    static uint8_t codes[384 * 128];
    float data[64] = {0};
    invar_digest d;
    invar_tensor x = invar_tensor_2d(data, INVAR_DTYPE_F32, 4, 8), none = {0}, wrong = x;
    invar_tensor q = invar_tensor_quantized(codes, data, INVAR_DTYPE_FP8, 128, 384, 128);

#define HASH(...) invar_hash_tree(*state, &(invar_hash_tree_args){__VA_ARGS__, NULL})
    assert_invalid(HASH(NULL, &x, 1, 1), "hash.tree: digest: missing");
    assert_invalid(HASH(&d, &none, 1, 1), "hash.tree: x: missing");
    assert_invalid(HASH(&d, &x, 1, 0), "hash.tree: shards: 0 shards");
    assert_invalid(HASH(&d, &x, 1, 3), "hash.tree: shards: 3 shards");
    assert_invalid(HASH(&d, &x, 1, 2048), "hash.tree: shards: 2048 shards");
    assert_invalid(HASH(&d, &q, 1, 2), "hash.tree: shards: 384 rows do not cut into 2 shards");
    wrong.rank = 0;
    assert_invalid(HASH(&d, &wrong, 1, 1), "hash.tree: x: rank 0");
    wrong = x;
    wrong.data = NULL;
    assert_invalid(HASH(&d, &wrong, 1, 1), "hash.tree: x: no data");
    assert_invalid(HASH(&d, &x, -1, 1), "hash.tree: x: -1 tensors");
    assert_invalid(HASH(&d, NULL, 1, 1), "hash.tree: x: 1 tensors");
    assert_ok(HASH(&d, &q, 1, 1));
    assert_ok(HASH(NULL, NULL, 0, 1));
}

/* ---- leaves ---------------------------------------------------------------------------------- */

enum { MAX_SAMPLES = 6, MAX_LEAVES = 64 };

/* Returns the bytes of the scales of a row. */
static size_t row_scale_bytes(const invar_tensor *x)
{
    invar_tensor row = *x;

    row.shape[0] = 1;
    return invar_tensor_scale_bytes(&row);
}

/* Computes the leaves of all samples, data before scales. Returns their number. */
static int64_t expected_leaves(invar_digest *out, const invar_tensor *compact_copy,
                               const invar_row_offsets *samples)
{
    invar_tree_shard shards[2 * MAX_SAMPLES];
    invar_tree_input in = {shards, 0};
    size_t scales = row_scale_bytes(compact_copy);
    int64_t count;

    for (int64_t i = 0; i < samples->count; i++) {
        int64_t first = samples->offsets[i], end = samples->offsets[i + 1];
        size_t bytes = scales * (size_t)(end - first);
        shards[in.n_shards++] = shard_of_rows(compact_copy, first, end);
        if (scales > 0)
            shards[in.n_shards++] = (invar_tree_shard){
                (char *)compact_copy->scale + scales * (size_t)first, 1, bytes, bytes};
    }
    assert_ok(invar_tree_leaf_count(&count, &in));
    assert_true(count <= MAX_LEAVES);
    assert_ok(invar_tree_leaves(out, count, NULL, &in));
    return count;
}

static void check_leaves(const invar_device *dev, const invar_tensor *x,
                         const invar_tensor *compact_copy, const invar_row_offsets *samples)
{
    invar_digest expected[MAX_LEAVES], got[MAX_LEAVES + 1], guard;
    int64_t count = expected_leaves(expected, compact_copy, samples);

    assert_int_equal(invar_hash_leaf_count(x, samples), count);
    memset(got, 0x5A, sizeof got);
    guard = got[count];
    assert_ok(invar_hash_leaves(dev, &(invar_hash_leaves_args){got, *x, *samples, count}));
    assert_memory_equal(got, expected, (size_t)count * sizeof *got);
    assert_memory_equal(&got[count], &guard, sizeof guard);
}

/* Samples with no rows, one row, several rows and all rows. */
static void test_hash_leaves__match_compact_bytes(void **state)
{
    static const int64_t starts[][MAX_SAMPLES + 1] = {
        {0, 150}, {0, 1, 150}, {0, 0, 70, 70, 71, 150, 150}, {0, 16, 32, 64, 128, 150}};
    static const int64_t counts[] = {1, 2, 6, 5};
    const invar_device *devices = *state;
    invar_tensor views[] = {
        invar_tensor_1d(NULL, INVAR_DTYPE_F32, 150),
        invar_tensor_2d(NULL, INVAR_DTYPE_BF16, 150, 77),
        invar_tensor_2d(NULL, INVAR_DTYPE_BF16, 150, 1024),
        invar_tensor_3d(NULL, INVAR_DTYPE_F32, 150, 3, 400),
        invar_tensor_2d(NULL, INVAR_DTYPE_I64, 150, 3),
        invar_tensor_2d(NULL, INVAR_DTYPE_F32, 150, 0),
        invar_tensor_quantized(NULL, NULL, INVAR_DTYPE_FP8, 1, 150, 384),
        invar_tensor_quantized(NULL, NULL, INVAR_DTYPE_MXFP8, 1, 150, 4096),
        invar_tensor_quantized(NULL, NULL, INVAR_DTYPE_INT4, 1, 150, 96),
    };

    for (size_t i = 0; i < sizeof views / sizeof *views; i++)
        for (int64_t gap = 0; gap <= 8; gap += 8) {
            invar_tensor x = random_tensor(views[i], gap, i), compact_copy;
            for (size_t n = 0; n < invar_tensor_scale_bytes(&x); n++)
                ((uint8_t *)x.scale)[n] = (uint8_t)invar_test_random(9, n);
            compact_copy = invar_test_copy(&x);
            for (size_t s = 0; s < sizeof counts / sizeof *counts; s++)
                for (int d = 0; d < INVAR_TEST_DEVICES; d++)
                    check_leaves(&devices[d], &x, &compact_copy,
                                 &(invar_row_offsets){starts[s], counts[s]});
            invar_test_free(&x, &compact_copy);
        }
}

static void test_hash_leaves__rejects_bad_arguments(void **state)
{
    static const int64_t good[] = {0, 1, 4}, back[] = {0, 5, 4}, some_rows[] = {0, 1, 3};
    static uint8_t codes[384 * 128];
    float data[64] = {0};
    invar_digest d[3];
    invar_tensor x = invar_tensor_2d(data, INVAR_DTYPE_F32, 4, 8), none = {0};
    invar_tensor q = invar_tensor_quantized(codes, data, INVAR_DTYPE_FP8, 128, 384, 128);
    invar_row_offsets samples = {good, 2};

#define LEAVES(...) invar_hash_leaves(*state, &(invar_hash_leaves_args){__VA_ARGS__})
    assert_invalid(LEAVES(NULL, x, samples, 2), "hash.leaves: digest: missing");
    assert_invalid(LEAVES(d, none, samples, 2), "hash.leaves: x: missing");
    assert_invalid(LEAVES(d, x, samples, 1), "hash.leaves: leaves: 1; expected 2");
    assert_invalid(LEAVES(d, x, samples, 3), "hash.leaves: leaves: 3; expected 2");
    assert_invalid(LEAVES(d, x, samples, -1), "hash.leaves: leaves: -1; expected 2");
    assert_invalid(LEAVES(d, x, (invar_row_offsets){back, 2}, 2),
                   "hash.leaves: samples: segment 1");
    assert_invalid(LEAVES(d, x, (invar_row_offsets){some_rows, 2}, 2), "hash.leaves: samples: seg");
    assert_invalid(LEAVES(d, x, (invar_row_offsets){NULL, 2}, 2),
                   "hash.leaves: samples: 2 segments");
    assert_invalid(LEAVES(d, q, samples, 2), "hash.leaves: x: 128 rows share a scale");
    assert_ok(LEAVES(d, x, samples, 2));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hash_tree__equals_hash_of_compact_bytes),
        cmocka_unit_test(test_hash_tree__padding_is_not_hashed),
        cmocka_unit_test(test_hash_tree__quantized_tensors_include_scales),
        cmocka_unit_test(test_hash_tree__every_change_is_detected),
        cmocka_unit_test(test_hash_tree__bits_invariant_to_threads),
        cmocka_unit_test(test_hash_tree__difference_is_in_one_leaf),
        cmocka_unit_test(test_hash_tree__lists_are_single_tensors),
        cmocka_unit_test(test_hash_tree__splits_match_compact_shards),
        cmocka_unit_test(test_hash_tree__one_shard_is_no_split),
        cmocka_unit_test(test_hash_tree__rejects_bad_splits),
        cmocka_unit_test(test_hash_tree__rejects_bad_arguments),
        cmocka_unit_test(test_hash_leaves__match_compact_bytes),
        cmocka_unit_test(test_hash_leaves__rejects_bad_arguments),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
