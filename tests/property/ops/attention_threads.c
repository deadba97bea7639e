/*
 * attention_threads.c - the bits of attention do not depend on threads, CPU path or arena.
 *
 * Forward, backward and paged attention on 1 to 8 threads, with the SIMD and the portable path,
 * give the bits of the SIMD path on one thread. Control: another key span (kv_span) changes the
 * log-sum-exp, so a split of the keys that depended on the threads would be detected.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>

#include "tests/unit/kernels-deterministic/cpu/attention_case.h"

static const attention_form forms[] = {
    {INVAR_NUMERICS_SM90, INVAR_DTYPE_BF16, 4, 2, 24, {0.0f, 0, 0, 0}},
    {INVAR_NUMERICS_IEEE, INVAR_DTYPE_F32, 2, 1, 40, {0.0f, 70, 128, 128}},
    {INVAR_NUMERICS_IEEE, INVAR_DTYPE_BF16, 3, 3, 16, {0.0f, 0, 128, 128}},
};

#define FORMS ((int64_t)(sizeof forms / sizeof *forms))
#define SAMPLES 4

static const int64_t lengths[SAMPLES] = {150, 7, 64, 33};

static attention_pack new_pack(const attention_form *form)
{
    attention_pack p = attention_pack_new(form, SAMPLES, lengths);

    for (int64_t i = 0; i < SAMPLES; i++)
        attention_fill(&p, i, (uint64_t)i);
    return p;
}

/* Runs paged attention with the pack's keys in a cache of one page per sample, as one prefill. */
static void run_paged(const invar_device *dev, const attention_pack *p, const invar_tensor *o)
{
    const attention_form *f = &p->form;
    invar_kv_pages cache = {
        .k = invar_test_tensor(invar_tensor_4d(NULL, f->dtype, SAMPLES, 150, f->kv_heads, f->dim)),
        .v = invar_test_tensor(invar_tensor_4d(NULL, f->dtype, SAMPLES, 150, f->kv_heads, f->dim)),
        .pages = invar_test_tensor(invar_tensor_2d(NULL, INVAR_DTYPE_I32, SAMPLES, 1))};
    invar_kv_write_args write = {cache, p->k, p->v, {p->start, SAMPLES}, lengths};
    invar_attention_paged_args attend = {*o, p->q, cache, {p->start, SAMPLES}, lengths, f->shape};

    for (int32_t i = 0; i < SAMPLES; i++)
        ((int32_t *)cache.pages.data)[i] = SAMPLES - 1 - i;
    assert_ok(invar_kv_write(dev, &write));
    assert_ok(invar_attention_paged(dev, &attend));
    invar_test_free(&cache.k, &cache.v, &cache.pages);
}

static void check_device(const invar_device *dev, const attention_pack *expected, const char *what)
{
    attention_pack p = new_pack(&expected->form);
    invar_tensor o = invar_test_copy(&p.o);

    attention_run(dev, &p);
    for (int64_t i = 0; i < SAMPLES; i++) {
        assert_forward_bits(&p, i, expected, i, lengths[i], what);
        assert_backward_bits(&p, i, expected, i, what);
    }
    run_paged(dev, &p, &o);
    invar_assert_bits_tensor(&o, &expected->o, what);
    invar_test_free(&o);
    attention_pack_free(&p);
}

static void test_attention_threads__bits_invariant_to_threads_and_path(void **state)
{
    static const int threads[] = {1, 2, 3, 8};

    (void)state;
    for (int64_t f = 0; f < FORMS; f++) {
        attention_pack expected = new_pack(&forms[f]);
        invar_device dev;

        invar_test_device_init(&dev, forms[f].numerics, INVAR_CPU_PATH_SIMD, 1);
        attention_run(&dev, &expected);
        invar_test_device_release(&dev);
        for (int n = 0; n < 8; n++) {
            invar_cpu_path path = n % 2 ? INVAR_CPU_PATH_SIMD : INVAR_CPU_PATH_PORTABLE;
            char what[64];

            if (path == INVAR_CPU_PATH_PORTABLE && n >= invar_test_count(4, 8))
                continue; // the portable path is slow
            snprintf(what, sizeof what, "%d threads, %s", threads[n / 2],
                     n % 2 ? "SIMD" : "portable");
            invar_test_device_init(&dev, forms[f].numerics, path, threads[n / 2]);
            check_device(&dev, &expected, what);
            invar_test_device_release(&dev);
        }
        attention_pack_free(&expected);
    }
}

/* Scratch of a production arena holds what the last op left, not the NaN of the debug arena. */
static void test_attention_threads__bits_invariant_to_arena(void **state)
{
    (void)state;
    for (int64_t f = 0; f < FORMS; f++) {
        attention_pack expected = new_pack(&forms[f]);
        invar_device dev;
        size_t bytes, most = 0;
        invar_attention_fwd_args forward = attention_fwd_args(&expected);
        invar_attention_bwd_args backward = attention_bwd_args(&expected);

        invar_test_device_init(&dev, forms[f].numerics, INVAR_CPU_PATH_SIMD, 2);
        attention_run(&dev, &expected);
        assert_ok(invar_op_workspace(&bytes, &dev, INVAR_OP_ATTENTION_FWD, &forward));
        most = bytes;
        assert_ok(invar_op_workspace(&bytes, &dev, INVAR_OP_ATTENTION_BWD, &backward));
        most = bytes > most ? bytes : most;
        invar_arena_free(dev.scratch);
        assert_ok(invar_arena_new(&dev.scratch, "plain scratch"));
        assert_ok(invar_arena_plan_scratch(dev.scratch, most));
        assert_ok(invar_arena_reserve(dev.scratch));
        for (int n = 0; n < 2; n++)
            check_device(&dev, &expected, "plain arena");
        invar_test_device_release(&dev);
        attention_pack_free(&expected);
    }
}

/*
 * Control: another key span gives other bits, so a split that depended on threads would be
 * detected.
 */
static void test_attention_threads__other_spans_are_caught(void **state)
{
    (void)state;
    for (int64_t f = 0; f < FORMS; f++) {
        attention_form other = forms[f];
        attention_pack right = new_pack(&forms[f]), wrong;
        invar_device dev;

        other.shape.kv_span = other.shape.kv_span ? 0 : 128;
        wrong = new_pack(&other);
        invar_test_device_init(&dev, forms[f].numerics, INVAR_CPU_PATH_SIMD, 2);
        attention_run(&dev, &right);
        attention_run(&dev, &wrong);
        assert_true(invar_tensors_differ(&right.lse2, &wrong.lse2));
        invar_test_device_release(&dev);
        attention_pack_free(&right);
        attention_pack_free(&wrong);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_attention_threads__bits_invariant_to_threads_and_path),
        cmocka_unit_test(test_attention_threads__bits_invariant_to_arena),
        cmocka_unit_test(test_attention_threads__other_spans_are_caught),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
