/*
 * rollout_points.c - tests of the points of sampled sequences: hash chains, ranks, statistics.
 *
 * Expected digests are rebuilt with hashes of bytes from the definition in rollout_points.h.
 * Control: other sequences, another order and a new rollout must give other digests.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/probe/rollout_points.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "tests/ops.h"

enum { WIDE = 5000, MANY = 100000 };

/* An op runner, the probe that gets the points, and the points. */
typedef struct fixture {
    invar_op_runner runner;
    invar_probe *probe;
    invar_rollout_points *sequences;
} fixture;

static void open_fixture(fixture *s, const invar_device *dev, int64_t level, bool stats)
{
    const invar_probe_options options = {.level = level, .stats = stats, .dev = dev};

    invar_op_runner_init(&s->runner, dev);
    assert_ok(invar_probe_new(&s->probe, &options));
    assert_ok(invar_rollout_points_new(&s->sequences, &options));
}

static void close_fixture(fixture *s)
{
    invar_rollout_points_free(s->sequences);
    invar_probe_free(s->probe);
    invar_op_runner_release(&s->runner);
}

/* Shows rows of a value of layer 3; owners[i] are the sequences of row i. */
static void observe(fixture *s, const char *name, bool stream, const invar_tensor *rows,
                    const invar_row_samples *owners)
{
    invar_observed_value value = {.name = {.layer = 3},
                                  .op = "add",
                                  .is_residual = stream,
                                  .op_runner = &s->runner,
                                  .rows = rows,
                                  .owners = owners};

    snprintf(value.name.text, sizeof value.name.text, "%s", name);
    assert_ok(invar_rollout_points_on_value(s->sequences, &value));
}

/* Emits the points of these sequences in a new step. */
static invar_probe_result emit(fixture *s, const uint32_t *numbers, int64_t count)
{
    const invar_point_namer view = {.probe = s->probe, .prefix = "r.", .phase = "rollout"};
    invar_probe_result result;

    invar_probe_begin(s->probe, NULL);
    assert_ok(invar_rollout_points_emit(s->sequences, &view, numbers, count));
    assert_ok(invar_probe_finish(&result, s->probe));
    return result;
}

/* Extends a chain by a row of `bytes` bytes, in leaves of 16 KiB. */
static void extend_chain(invar_digest *digest, const void *row, size_t bytes)
{
    for (size_t offset = 0; offset < bytes; offset += INVAR_TREE_LEAF_BYTES) {
        size_t left = bytes - offset;
        invar_digest both[2] = {*digest};
        invar_hash_bytes(&both[1], (const char *)row + offset,
                         left < INVAR_TREE_LEAF_BYTES ? left : INVAR_TREE_LEAF_BYTES);
        invar_hash_bytes(digest, both, sizeof both);
    }
}

/* Rows of two leaves in two passes: shared by two sequences, of no sequence, of one sequence. */
static void test_rollout_points__a_point_is_the_hash_of_chains(void **state)
{
    static const uint32_t draws[] = {7, 2, 5};
    const invar_row_samples first[] = {{draws, 2}, {NULL, 0}, {draws + 2, 1}};
    const invar_row_samples second[] = {{draws + 1, 1}, {draws, 1}};
    const uint32_t wanted[] = {2, 7};
    invar_tensor x = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, 3, WIDE)), two;
    const float *row = x.data;
    invar_digest expected[2] = {0}, point;
    invar_probe_result result;
    fixture s;

    open_fixture(&s, *state, INVAR_PROBE_POINT, false);
    for (int64_t i = 0; i < 3 * WIDE; i++)
        ((float *)x.data)[i] = (float)i;
    two = invar_tensor_rows(&x, 1, 2);
    observe(&s, "x", true, &x, first);
    observe(&s, "fine", false, &x, first);
    assert_ok(invar_rollout_points_flush(s.sequences));
    observe(&s, "x", true, &two, second);
    assert_ok(invar_rollout_points_flush(s.sequences));
    assert_ok(invar_rollout_points_flush(s.sequences)); // nothing to download
    for (int i = 0; i < 2; i++) {
        extend_chain(&expected[i], row, WIDE * sizeof *row);
        extend_chain(&expected[i], row + (i + 1) * WIDE, WIDE * sizeof *row);
    }
    invar_hash_bytes(&point, expected, sizeof expected);
    result = emit(&s, wanted, 2);
    assert_int_equal(result.count, 1); // `fine` is above the level
    assert_string_equal(result.points[0].name, "r.layer.3.x");
    assert_string_equal(result.points[0].phase, "rollout");
    assert_true(invar_digest_equal(&result.digests[0], &point));
    // controls: another order, fewer sequences, a new rollout
    result = emit(&s, draws, 2);
    assert_false(invar_digest_equal(&result.digests[0], &point));
    result = emit(&s, wanted, 1);
    assert_false(invar_digest_equal(&result.digests[0], &point));
    invar_rollout_points_begin(s.sequences);
    result = emit(&s, wanted, 2);
    invar_hash_bytes(&point, &(invar_digest[2]){0}, 32);
    assert_true(invar_digest_equal(&result.digests[0], &point));
    close_fixture(&s);
    invar_test_free(&x);
}

/* A pass with more digests than the device memory for digests holds. */
static void test_rollout_points__a_pass_may_be_large(void **state)
{
    static const uint32_t draws[] = {0, 1};
    invar_tensor x = invar_test_tensor(invar_tensor_1d(NULL, INVAR_DTYPE_I32, MANY));
    invar_digest expected = {0}, point;
    invar_probe_result result;
    invar_row_samples *owners;
    fixture s;

    open_fixture(&s, *state, INVAR_PROBE_FULL, false);
    assert_ok(INVAR_ALLOC(owners, MANY, "owners"));
    for (int32_t i = 0; i < MANY; i++) {
        ((int32_t *)x.data)[i] = i;
        owners[i] = (invar_row_samples){draws + i % 2, 1};
    }
    for (int n = 0; n < 4; n++)
        observe(&s, "x", false, &x, owners);
    assert_ok(invar_rollout_points_flush(s.sequences));
    for (int n = 0; n < 4; n++)
        for (int32_t i = 1; i < MANY; i += 2)
            extend_chain(&expected, &i, sizeof i);
    invar_hash_bytes(&point, &expected, sizeof expected);
    result = emit(&s, &draws[1], 1);
    assert_true(invar_digest_equal(&result.digests[0], &point));
    invar_free(owners);
    close_fixture(&s);
    invar_test_free(&x);
}

/* Sequences of another rank are unpacked and emitted as if this rank had sampled them. */
static void test_rollout_points__sequences_of_ranks_are_merged(void **state)
{
    static const uint32_t draws[] = {0, 7};
    const invar_row_samples first[] = {{draws, 1}}, second[] = {{draws + 1, 1}};
    invar_tensor x = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, 1, 2));
    invar_rank_buffer buffer = {0};
    invar_rank_buffer_reader reader;
    invar_digest one;
    fixture single, local, remote;

    open_fixture(&single, *state, INVAR_PROBE_FULL, true);
    open_fixture(&local, *state, INVAR_PROBE_FULL, true);
    open_fixture(&remote, *state, INVAR_PROBE_FULL, true);
    memcpy(x.data, (float[]){3.0f, 4.0f}, 8);
    observe(&single, "x", false, &x, first);
    observe(&single, "x", false, &x, second);
    observe(&local, "x", false, &x, first);
    observe(&remote, "x", false, &x, second);
    assert_ok(invar_rollout_points_flush(single.sequences));
    assert_ok(invar_rollout_points_flush(local.sequences));
    assert_ok(invar_rollout_points_flush(remote.sequences));
    one = emit(&single, draws, 2).digests[0];
    assert_false(invar_digest_equal(&emit(&local, draws, 2).digests[0], &one));
    assert_ok(invar_rollout_points_pack(&buffer, remote.sequences));
    for (size_t bytes = 0; bytes < buffer.bytes; bytes += 8) {
        reader = (invar_rank_buffer_reader){buffer.data, bytes};
        assert_fails(invar_rollout_points_unpack(local.sequences, &reader), INVAR_E_CORRUPT,
                     "damaged");
    }
    reader = (invar_rank_buffer_reader){buffer.data, buffer.bytes};
    assert_ok(invar_rollout_points_unpack(local.sequences, &reader));
    assert_true(invar_digest_equal(&emit(&local, draws, 2).digests[0], &one));
    assert_true(emit(&local, draws, 2).stats[0].l2 == sqrt(50.0));
    invar_rank_buffer_release(&buffer);
    close_fixture(&single);
    close_fixture(&local);
    close_fixture(&remote);
    invar_test_free(&x);
}

/*
 * Statistics are of the requested sequences, each with its shared rows. Values that are not finite
 * are reported before the flush, for all rows with a sequence.
 */
static void test_rollout_points__statistics(void **state)
{
    static const uint32_t draws[] = {0, 1};
    const invar_row_samples owners[] = {{draws, 2}, {draws + 1, 1}, {NULL, 0}};
    invar_tensor x = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, 3, 2));
    const float values[] = {3.0f, -4.0f, INFINITY, 12.0f, NAN, NAN};
    invar_probe_result result;
    invar_ledger_stat stat;
    fixture s;

    open_fixture(&s, *state, INVAR_PROBE_FULL, true);
    memcpy(x.data, values, sizeof values);
    assert_null(invar_rollout_points_first_nonfinite(&stat, s.sequences));
    observe(&s, "x", false, &x, owners);
    assert_string_equal(invar_rollout_points_first_nonfinite(&stat, s.sequences)->name.text, "x");
    assert_true(stat.infs == 1 && stat.nans == 0 && stat.absmax == 12.0);
    assert_ok(invar_rollout_points_flush(s.sequences));
    result = emit(&s, draws, 1);
    assert_int_equal(result.n_stats, 1);
    assert_true(result.stats[0].infs == 0 && result.stats[0].absmax == 4.0 &&
                result.stats[0].l2 == 5.0);
    result = emit(&s, draws, 2);
    assert_true(result.stats[0].infs == 1 && result.stats[0].absmax == 12.0 &&
                result.stats[0].l2 == sqrt(25.0 + 25.0 + 144.0));
    close_fixture(&s);
    invar_test_free(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_rollout_points__a_point_is_the_hash_of_chains),
        cmocka_unit_test(test_rollout_points__a_pass_may_be_large),
        cmocka_unit_test(test_rollout_points__sequences_of_ranks_are_merged),
        cmocka_unit_test(test_rollout_points__statistics),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
