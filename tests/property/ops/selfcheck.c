/*
 * selfcheck.c - the digests of the self-check do not depend on threads, CPU path or arena.
 *
 * The self-check runs every op in one layer and reports a digest per result. On the fake GPU
 * (tests/device/fake_gpu.h), whose memory only ops and copies can access, the digests must be the
 * recorded ones (invar_selfcheck_golden), all of them. Control: a digest with one other bit is not
 * recorded. By default every number of threads and every CPU path runs for some storage types and
 * numerics, under `full` all of them for each.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <string.h>

#include "kernels-deterministic/selfcheck.h"
#include "tests/device/fake_gpu.h"
#include "tests/ops.h"

enum { MOST = 256 };

typedef struct digests {
    int count;
    invar_op ops[MOST];
    char what[MOST][64];
    invar_digest values[MOST];
} digests;

static invar_status collect(void *payload, invar_op op, const char *what,
                            const invar_digest *digest)
{
    digests *d = payload;

    assert_true(d->count < MOST);
    d->ops[d->count] = op;
    snprintf(d->what[d->count], sizeof d->what[0], "%s", what);
    d->values[d->count++] = *digest;
    return INVAR_OK;
}

static void run_selfcheck(digests *out, invar_dtype storage, invar_numerics numerics,
                          invar_cpu_path path, int threads, bool debug)
{
    invar_device dev = {.backend = invar_backend_cpu(), .numerics = numerics, .cpu_path = path};

    memset(out, 0, sizeof *out);
    if (threads > 1)
        assert_ok(invar_pool_new(&dev.pool, threads));
    if (debug)
        assert_ok(invar_arena_new_debug(&dev.scratch, "selfcheck"));
    else
        assert_ok(invar_arena_new(&dev.scratch, "selfcheck"));
    assert_ok(invar_arena_plan_scratch(dev.scratch, invar_selfcheck_scratch(threads)));
    assert_ok(invar_arena_reserve(dev.scratch));
    assert_ok(invar_selfcheck_run(&dev, storage, collect, out));
    invar_arena_free(dev.scratch);
    invar_pool_free(dev.pool);
}

/* Runs the self-check on the fake GPU and checks that all device memory is freed. */
static void run_on_fake_gpu(digests *out, invar_dtype storage, invar_numerics numerics)
{
    invar_device dev = {.backend = invar_fake_gpu_backend(), .numerics = numerics};

    memset(out, 0, sizeof *out);
    invar_fake_gpu_begin(0);
    assert_ok(invar_device_open(&dev));
    assert_ok(invar_device_arena(&dev.scratch, &dev, "selfcheck"));
    assert_ok(invar_arena_plan_scratch(dev.scratch, invar_selfcheck_scratch(1)));
    assert_ok(invar_arena_reserve(dev.scratch));
    assert_ok(invar_selfcheck_run(&dev, storage, collect, out));
    invar_arena_free(dev.scratch);
    invar_device_close(&dev);
    assert_int_equal(invar_fake_gpu_counted().live, 0);
    assert_true(invar_fake_gpu_counted().ops > out->count);
}

static void assert_same(const digests *got, const digests *expected)
{
    assert_int_equal(got->count, expected->count);
    for (int i = 0; i < got->count; i++)
        if (!invar_digest_equal(&got->values[i], &expected->values[i]))
            fail_msg("%s %s differs", invar_op_name(got->ops[i]), got->what[i]);
}

static const struct {
    invar_dtype storage;
    invar_numerics numerics;
} variants[] = {{INVAR_DTYPE_F32, INVAR_NUMERICS_IEEE},
                {INVAR_DTYPE_BF16, INVAR_NUMERICS_IEEE},
                {INVAR_DTYPE_BF16, INVAR_NUMERICS_SM90}};
enum { VARIANTS = sizeof variants / sizeof *variants };

static void test_selfcheck__bits_invariant_to_every_free_choice(void **state)
{
    static const int threads[] = {1, 2, 3, 8};
    static digests expected, got;

    (void)state;
    for (int k = 0; k < VARIANTS; k++) {
        run_selfcheck(&expected, variants[k].storage, variants[k].numerics, INVAR_CPU_PATH_SIMD, 1,
                      false);
        for (int t = 0; t < 4; t++)
            for (int path = 0; path < 2; path++) {
                // the portable path is slow, so that one type and numerics do without it
                bool reduced = path == INVAR_CPU_PATH_PORTABLE ? k != 1 && t == k : t == k + 1;

                if (!invar_test_full() && !reduced)
                    continue;
                run_selfcheck(&got, variants[k].storage, variants[k].numerics, (invar_cpu_path)path,
                              threads[t], t % 2 == 1);
                assert_same(&got, &expected);
            }
    }
}

/* Returns whether the recorded lines contain the digest with the index `at`. */
static bool is_recorded(const digests *d, int at, int variant)
{
    char line[192], hex[INVAR_DIGEST_HEX_SIZE];

    invar_digest_format(hex, &d->values[at]);
    snprintf(line, sizeof line, "%s %s %s %d %s %s", invar_dtype_name(variants[variant].storage),
             invar_numerics_name(variants[variant].numerics), invar_op_name(d->ops[at]),
             invar_op_revision(d->ops[at]), hex, d->what[at]);
    for (const char *const *golden = invar_selfcheck_golden; *golden; golden++)
        if (strcmp(*golden, line) == 0)
            return true;
    return false;
}

static void test_selfcheck__far_memory_yields_the_recorded_values(void **state)
{
    static digests got;
    int recorded = 0;

    (void)state;
    for (int k = 0; k < VARIANTS; k++) {
        run_on_fake_gpu(&got, variants[k].storage, variants[k].numerics);
        for (int i = 0; i < got.count; i++) {
            if (!is_recorded(&got, i, k))
                fail_msg("%s %s is not the recorded value", invar_op_name(got.ops[i]), got.what[i]);
            recorded++;
        }
    }
    for (const char *const *golden = invar_selfcheck_golden; *golden; golden++)
        recorded--;
    assert_int_equal(recorded, 0);
    // control: one other bit in a digest is not recorded
    got.values[0].bytes[0] ^= 1;
    assert_false(is_recorded(&got, 0, VARIANTS - 1));
}

/* Numerics change fp8 products only: f32 operands use fmaf under every numerics. */
static void test_selfcheck__numerics_touch_only_the_step(void **state)
{
    static digests ieee, sm90;
    int different = 0;

    (void)state;
    run_selfcheck(&ieee, INVAR_DTYPE_F32, INVAR_NUMERICS_IEEE, INVAR_CPU_PATH_SIMD, 1, false);
    run_selfcheck(&sm90, INVAR_DTYPE_F32, INVAR_NUMERICS_SM90, INVAR_CPU_PATH_SIMD, 1, false);
    for (int i = 0; i < ieee.count; i++)
        if (!invar_digest_equal(&ieee.values[i], &sm90.values[i])) {
            assert_true(invar_op_depends_on_numerics(ieee.ops[i]));
            assert_non_null(strstr(ieee.what[i], "fp8"));
            different++;
        }
    assert_true(different > 0);
}

static void test_selfcheck__covers_every_op(void **state)
{
    static digests d;

    (void)state;
    run_selfcheck(&d, INVAR_DTYPE_BF16, INVAR_NUMERICS_SM90, INVAR_CPU_PATH_SIMD, 1, false);
    for (int op = 0; op < INVAR_OP_COUNT; op++) {
        bool is_checked = op == INVAR_OP_HASH_TREE; // hash.tree makes the digests of all others
        for (int i = 0; i < d.count; i++)
            is_checked = is_checked || d.ops[i] == (invar_op)op;
        if (!is_checked)
            fail_msg("%s is not in the self-check", invar_op_name((invar_op)op));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_selfcheck__bits_invariant_to_every_free_choice),
        cmocka_unit_test(test_selfcheck__far_memory_yields_the_recorded_values),
        cmocka_unit_test(test_selfcheck__numerics_touch_only_the_step),
        cmocka_unit_test(test_selfcheck__covers_every_op),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
