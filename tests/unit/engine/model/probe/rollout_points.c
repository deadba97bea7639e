/*
 * rollout_points.c - points of sequences: their definition, rebuilt with hashes of bytes;
 * statistics.
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

typedef struct scene {
    invar_op_runner caller;
    invar_probe *probe;
    invar_rollout_points *sequences;
} scene;

static void open_scene(scene *s, const invar_device *dev, int64_t level, bool stats)
{
    const invar_probe_options options = {.level = level, .stats = stats, .dev = dev};

    invar_op_runner_init(&s->caller, dev);
    assert_ok(invar_probe_new(&s->probe, &options));
    assert_ok(invar_rollout_points_new(&s->sequences, &options));
}

static void close_scene(scene *s)
{
    invar_rollout_points_free(s->sequences);
    invar_probe_free(s->probe);
    invar_op_runner_release(&s->caller);
}

static void take(scene *s, const char *name, bool stream, const invar_tensor *rows,
                 const invar_row_samples *owners)
{
    invar_observed_value value = {.name = {.layer = 3},
                                  .op = "add",
                                  .is_residual = stream,
                                  .op_runner = &s->caller,
                                  .rows = rows,
                                  .owners = owners};

    snprintf(value.name.text, sizeof value.name.text, "%s", name);
    assert_ok(invar_rollout_points_on_value(s->sequences, &value));
}

static invar_probe_result give(scene *s, const uint32_t *numbers, int64_t count)
{
    const invar_point_namer view = {.probe = s->probe, .prefix = "r.", .phase = "rollout"};
    invar_probe_result result;

    invar_probe_begin(s->probe, NULL);
    assert_ok(invar_rollout_points_emit(s->sequences, &view, numbers, count));
    assert_ok(invar_probe_finish(&result, s->probe));
    return result;
}

/* One more row of so many bytes: its leaves are of 16 KiB. */
static void chain(invar_digest *of, const void *row, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += INVAR_TREE_LEAF_BYTES) {
        size_t left = bytes - at;
        invar_digest both[2] = {*of};
        invar_hash_bytes(&both[1], (const char *)row + at,
                         left < INVAR_TREE_LEAF_BYTES ? left : INVAR_TREE_LEAF_BYTES);
        invar_hash_bytes(of, both, sizeof both);
    }
}

/* Rows of two leaves, in two passes: shared, nobody's, one's own. */
static void test_sequences__a_point_is_the_hash_of_chains(void **state)
{
    static const uint32_t draws[] = {7, 2, 5};
    const invar_row_samples first[] = {{draws, 2}, {NULL, 0}, {draws + 2, 1}};
    const invar_row_samples second[] = {{draws + 1, 1}, {draws, 1}};
    const uint32_t wanted[] = {2, 7};
    invar_tensor x = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, 3, WIDE)), two;
    const float *row = x.data;
    invar_digest expected[2] = {0}, point;
    invar_probe_result result;
    scene s;

    open_scene(&s, *state, INVAR_PROBE_POINT, false);
    for (int64_t i = 0; i < 3 * WIDE; i++)
        ((float *)x.data)[i] = (float)i;
    two = invar_tensor_rows(&x, 1, 2);
    take(&s, "x", true, &x, first);
    take(&s, "fine", false, &x, first);
    assert_ok(invar_rollout_points_flush(s.sequences));
    take(&s, "x", true, &two, second);
    assert_ok(invar_rollout_points_flush(s.sequences));
    assert_ok(invar_rollout_points_flush(s.sequences)); // nothing new
    for (int i = 0; i < 2; i++) {
        chain(&expected[i], row, WIDE * sizeof *row);
        chain(&expected[i], row + (i + 1) * WIDE, WIDE * sizeof *row);
    }
    invar_hash_bytes(&point, expected, sizeof expected);
    result = give(&s, wanted, 2);
    assert_int_equal(result.count, 1); // `fine` is above the level
    assert_string_equal(result.points[0].name, "r.layer.3.x");
    assert_string_equal(result.points[0].phase, "rollout");
    assert_true(invar_digest_equal(&result.digests[0], &point));
    // another order, fewer, and a new rollout: other values
    result = give(&s, draws, 2);
    assert_false(invar_digest_equal(&result.digests[0], &point));
    result = give(&s, wanted, 1);
    assert_false(invar_digest_equal(&result.digests[0], &point));
    invar_rollout_points_begin(s.sequences);
    result = give(&s, wanted, 2);
    invar_hash_bytes(&point, &(invar_digest[2]){0}, 32);
    assert_true(invar_digest_equal(&result.digests[0], &point));
    close_scene(&s);
    invar_test_free(&x);
}

/* More digests than the device has room for in a pass. */
static void test_sequences__a_pass_may_be_large(void **state)
{
    static const uint32_t draws[] = {0, 1};
    invar_tensor x = invar_test_tensor(invar_tensor_1d(NULL, INVAR_DTYPE_I32, MANY));
    invar_digest expected = {0}, point;
    invar_probe_result result;
    invar_row_samples *owners;
    scene s;

    open_scene(&s, *state, INVAR_PROBE_FULL, false);
    assert_ok(invar_alloc((void **)&owners, MANY, sizeof *owners, "owners"));
    for (int32_t i = 0; i < MANY; i++) {
        ((int32_t *)x.data)[i] = i;
        owners[i] = (invar_row_samples){draws + i % 2, 1};
    }
    for (int n = 0; n < 4; n++)
        take(&s, "x", false, &x, owners);
    assert_ok(invar_rollout_points_flush(s.sequences));
    for (int n = 0; n < 4; n++)
        for (int32_t i = 1; i < MANY; i += 2)
            chain(&expected, &i, sizeof i);
    invar_hash_bytes(&point, &expected, sizeof expected);
    result = give(&s, &draws[1], 1);
    assert_true(invar_digest_equal(&result.digests[0], &point));
    invar_free(owners);
    close_scene(&s);
    invar_test_free(&x);
}

/* Sequences that another rank has followed, which knows the point, too. */
static void test_sequences__those_of_ranks_are_united(void **state)
{
    static const uint32_t draws[] = {0, 7};
    const invar_row_samples first[] = {{draws, 1}}, second[] = {{draws + 1, 1}};
    invar_tensor x = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, 1, 2));
    invar_rank_buffer parcel = {0};
    invar_rank_buffer_reader rest;
    invar_digest one;
    scene alone, here, there;

    open_scene(&alone, *state, INVAR_PROBE_FULL, true);
    open_scene(&here, *state, INVAR_PROBE_FULL, true);
    open_scene(&there, *state, INVAR_PROBE_FULL, true);
    memcpy(x.data, (float[]){3.0f, 4.0f}, 8);
    take(&alone, "x", false, &x, first);
    take(&alone, "x", false, &x, second);
    take(&here, "x", false, &x, first);
    take(&there, "x", false, &x, second);
    assert_ok(invar_rollout_points_flush(alone.sequences));
    assert_ok(invar_rollout_points_flush(here.sequences));
    assert_ok(invar_rollout_points_flush(there.sequences));
    one = give(&alone, draws, 2).digests[0];
    assert_false(invar_digest_equal(&give(&here, draws, 2).digests[0], &one));
    assert_ok(invar_rollout_points_pack(&parcel, there.sequences));
    for (size_t bytes = 0; bytes < parcel.bytes; bytes += 8) {
        rest = (invar_rank_buffer_reader){parcel.data, bytes};
        assert_fails(invar_rollout_points_unpack(here.sequences, &rest), INVAR_E_CORRUPT,
                     "damaged");
    }
    rest = (invar_rank_buffer_reader){parcel.data, parcel.bytes};
    assert_ok(invar_rollout_points_unpack(here.sequences, &rest));
    assert_true(invar_digest_equal(&give(&here, draws, 2).digests[0], &one));
    assert_true(give(&here, draws, 2).stats[0].l2 == sqrt(50.0));
    invar_rank_buffer_release(&parcel);
    close_scene(&alone);
    close_scene(&here);
    close_scene(&there);
    invar_test_free(&x);
}

/* Of the samples asked for, each with the rows that it shares; what is not finite at once. */
static void test_sequences__statistics(void **state)
{
    static const uint32_t draws[] = {0, 1};
    const invar_row_samples owners[] = {{draws, 2}, {draws + 1, 1}, {NULL, 0}};
    invar_tensor x = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_F32, 3, 2));
    const float values[] = {3.0f, -4.0f, INFINITY, 12.0f, NAN, NAN};
    invar_probe_result result;
    invar_ledger_stat stat;
    scene s;

    open_scene(&s, *state, INVAR_PROBE_FULL, true);
    memcpy(x.data, values, sizeof values);
    assert_null(invar_rollout_points_first_nonfinite(&stat, s.sequences));
    take(&s, "x", false, &x, owners);
    assert_string_equal(invar_rollout_points_first_nonfinite(&stat, s.sequences)->name.text, "x");
    assert_true(stat.infs == 1 && stat.nans == 0 && stat.absmax == 12.0);
    assert_ok(invar_rollout_points_flush(s.sequences));
    result = give(&s, draws, 1);
    assert_int_equal(result.n_stats, 1);
    assert_true(result.stats[0].infs == 0 && result.stats[0].absmax == 4.0 &&
                result.stats[0].l2 == 5.0);
    result = give(&s, draws, 2);
    assert_true(result.stats[0].infs == 1 && result.stats[0].absmax == 12.0 &&
                result.stats[0].l2 == sqrt(25.0 + 25.0 + 144.0));
    close_scene(&s);
    invar_test_free(&x);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_sequences__a_point_is_the_hash_of_chains),
        cmocka_unit_test(test_sequences__a_pass_may_be_large),
        cmocka_unit_test(test_sequences__those_of_ranks_are_united),
        cmocka_unit_test(test_sequences__statistics),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
