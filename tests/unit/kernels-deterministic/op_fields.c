/*
 * op_fields.c - tests of the table of op fields against the behavior of the ops.
 *
 * Random calls of every op (tests/gpu/cases) run with outputs that hold zeros, then NaN bytes.
 * Equal results show that outputs are fully written and not read; memory of other fields must not
 * change. Control: other values in fields of the role "update" must change the results.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/op_fields.h"

#include <stdlib.h>
#include <string.h>

#include "tests/gpu/cases/cases.h"
#include "tests/ops.h"

/* ---- every byte of an argument struct belongs to a field ------------------------------------- */

/* Marks the bytes of the argument struct that fields cover; fails if two fields overlap. */
static void mark_covered_bytes(char *covered, invar_op op)
{
    int count;
    const invar_field *fields = invar_op_fields(&count, op);

    for (int i = 0; i < count; i++)
        for (int byte = 0; byte < fields[i].bytes; byte++) {
            char *covered_byte = &covered[fields[i].offset + byte];
            if (*covered_byte)
                fail_msg("%s: %s: a byte has two names", invar_op_name(op), fields[i].name);
            *covered_byte = 1;
        }
}

static void test_fields__cover_every_struct(void **state)
{
    (void)state;
    for (invar_op op = 0; op < INVAR_OP_COUNT; op++) {
        char covered[INVAR_OP_ARGS_MAX] = {0}, all[INVAR_OP_ARGS_MAX], named[INVAR_OP_ARGS_MAX];
        size_t bytes, gap = 0;
        memset(all, 0xFF, sizeof all);
        bytes = invar_op_args_copy(named, op, all); // clears padding
        mark_covered_bytes(covered, op);
        for (size_t i = 0; i < bytes; i++) {
            gap = covered[i] ? 0 : gap + 1;
            if (covered[i] && !named[i])
                fail_msg("%s: byte %zu is padding, but a field covers it", invar_op_name(op), i);
            // padding is shorter than the alignment of 8 bytes
            if (gap > 4 + (named[i] ? 0 : 3))
                fail_msg("%s: no field covers byte %zu", invar_op_name(op), i);
        }
    }
}

static void test_fields__scalars_have_their_size(void **state)
{
    (void)state;
    for (invar_op op = 0; op < INVAR_OP_COUNT; op++) {
        int count;
        const invar_field *fields = invar_op_fields(&count, op);
        bool inputs = false;
        for (int i = 0; i < count; i++) {
            const invar_field *f = &fields[i];
            bool wide = f->kind == INVAR_FIELD_I64 || f->kind == INVAR_FIELD_F64;
            if (f->kind >= INVAR_FIELD_I32)
                assert_int_equal(f->bytes, wide ? 8 : 4);
            assert_false(inputs && f->role != INVAR_FIELD_IN); // outputs precede inputs
            inputs = f->role == INVAR_FIELD_IN;
        }
    }
}

/* ---- behavior of the ops --------------------------------------------------------------------- */

/* Called for each contiguous run of bytes of a field: a tensor row, its scales, or an array. */
typedef void run_fn(void *payload, const invar_field *field, invar_dtype dtype, char *at,
                    size_t bytes);

static void for_each_tensor_run(const invar_field *f, const invar_tensor *t, run_fn *each,
                                void *payload)
{
    size_t row = (size_t)(invar_tensor_row_elements(t) * invar_dtype_bits(t->dtype)) / 8;
    size_t stride = (size_t)(t->row_stride * invar_dtype_bits(t->dtype)) / 8;

    for (int64_t i = 0; i < t->shape[0] && row > 0; i++)
        each(payload, f, t->dtype, (char *)t->data + (size_t)i * stride, row);
    if (t->scale)
        each(payload, f, INVAR_DTYPE_NONE, t->scale, invar_tensor_scale_bytes(t));
}

/* Calls `each` for the runs of all present fields with one of the two roles. */
static void for_each_run(invar_case *c, invar_field_role role, invar_field_role or_role,
                         run_fn *each, void *payload)
{
    int count;
    const invar_field *fields = invar_op_fields(&count, c->op);

    for (int i = 0; i < count; i++) {
        const invar_field *f = &fields[i];
        const void *in = invar_field_in(f, &c->args);
        if ((f->role != role && f->role != or_role) || !invar_field_present(f, &c->args))
            continue;
        if (f->kind == INVAR_FIELD_TENSOR)
            for_each_tensor_run(f, in, each, payload);
        else if (f->kind == INVAR_FIELD_ARRAY)
            each(payload, f, INVAR_DTYPE_NONE, *(char *const *)in,
                 (size_t)invar_field_count(f, &c->args) * f->element);
    }
}

static void fill_byte(void *byte, const invar_field *field, invar_dtype dtype, char *at,
                      size_t bytes)
{
    (void)field, (void)dtype;
    memset(at, *(const int *)byte, bytes);
}

/* Fills f32 and bf16 memory with the value 1. */
static void fill_ones(void *unused, const invar_field *field, invar_dtype dtype, char *at,
                      size_t bytes)
{
    (void)unused, (void)field;
    for (size_t i = 0; i + 1 < bytes; i += 2) {
        bool low = dtype == INVAR_DTYPE_F32 && i % 4 == 0;
        memcpy(at + i, low ? "\0\0" : "\x80\x3f", 2);
    }
}

/* Returns whether an output shares the memory of an input, so that it must not be filled. */
static bool is_in_place(const invar_case *c)
{
    int count;
    const invar_field *fields = invar_op_fields(&count, c->op);

    for (int i = 0; i < count && fields[i].role != INVAR_FIELD_IN; i++)
        for (int n = 0; fields[i].may_alias[n]; n++) {
            const invar_tensor *a = invar_field_in(&fields[i], &c->args);
            const invar_tensor *b =
                (const void *)((const char *)&c->args + fields[i].may_alias[n] - 1);
            if (invar_tensor_present(a) && a->data == b->data)
                return true;
        }
    return false;
}

/* Concatenates the memory blocks of a case, except lists of tensors. The caller frees it. */
static char *memory_image(const invar_case *c, size_t *bytes_out)
{
    size_t bytes = 0;
    char *image;

    for (const invar_case_block *b = c->blocks; b; b = b->next)
        bytes += invar_case_is_list(c, b) ? 0 : b->bytes;
    image = malloc(bytes + 1);
    assert_non_null(image);
    bytes = 0;
    for (const invar_case_block *b = c->blocks; b; b = b->next)
        if (!invar_case_is_list(c, b)) {
            memcpy(image + bytes, b->data, b->bytes);
            bytes += b->bytes;
        }
    *bytes_out = bytes;
    return image;
}

/*
 * Runs the case with outputs filled with `byte`, and updated fields with 1 if `ones` is set.
 * Returns the memory after the call, or NULL if an output shares the memory of an input. Fails if
 * memory changed that is neither output nor updated.
 */
static char *image_after_call(const invar_device *dev, invar_op op, invar_numerics numerics,
                              uint64_t seed, int byte, bool ones, size_t *bytes_out)
{
    char *image = NULL, *before, *after;
    int fixed = 0x55;
    invar_case c;

    invar_case_make(&c, op, numerics, seed);
    if (!is_in_place(&c)) {
        for_each_run(&c, INVAR_FIELD_OUT, INVAR_FIELD_OUT, fill_byte, &byte);
        if (ones)
            for_each_run(&c, INVAR_FIELD_UPDATE, INVAR_FIELD_UPDATE, fill_ones, NULL);
        assert_ok(invar_case_run(dev, &c));
        image = memory_image(&c, bytes_out);
        // the memory except outputs must equal that of a new case: outputs are overwritten in both
        for_each_run(&c, INVAR_FIELD_OUT, INVAR_FIELD_UPDATE, fill_byte, &fixed);
        after = memory_image(&c, bytes_out);
        invar_case_free(&c);
        invar_case_make(&c, op, numerics, seed);
        for_each_run(&c, INVAR_FIELD_OUT, INVAR_FIELD_UPDATE, fill_byte, &fixed);
        before = memory_image(&c, bytes_out);
        if (memcmp(before, after, *bytes_out) != 0)
            fail_msg("%s: %s: something changed that is no output", invar_op_name(op), c.text);
        free(before);
        free(after);
    }
    invar_case_free(&c);
    return image;
}

/* Returns whether the op has fields that it updates, such as running sums. */
static bool has_updates(invar_op op)
{
    int count;
    const invar_field *fields = invar_op_fields(&count, op);

    for (int i = 0; i < count; i++)
        if (fields[i].role == INVAR_FIELD_UPDATE)
            return true;
    return false;
}

static void check_op(const invar_device *dev, invar_op op, invar_numerics numerics)
{
    uint64_t seeds = invar_test_full() ? 40 : 3;
    bool updates = has_updates(op);
    int compared = 0, changed = 0;

    for (uint64_t i = 0; i < 2 * seeds; i++) {
        uint64_t seed = i < seeds ? i : INVAR_CASE_FUSED + i - seeds;
        size_t bytes;
        char *zeros = image_after_call(dev, op, numerics, seed, 0, false, &bytes);
        char *nans = image_after_call(dev, op, numerics, seed, 0xFF, false, &bytes);
        if (zeros && memcmp(zeros, nans, bytes) != 0)
            fail_msg("%s: seed %d: what an output held before shows in the results",
                     invar_op_name(op), (int)i);
        compared += zeros != NULL;
        free(nans);
        if (updates || invar_test_full()) { // results depend on updated fields only
            char *ones = image_after_call(dev, op, numerics, seed, 0, true, &bytes);
            changed += zeros && memcmp(zeros, ones, bytes) != 0;
            free(ones);
        }
        free(zeros);
    }
    assert_true(compared > 0);
    assert_int_equal(changed > 0, updates);
}

static void test_fields__describe_what_ops_do(void **state)
{
    const invar_device *dev = *state;

    for (invar_op op = 0; op < INVAR_OP_COUNT; op++)
        for (int n = 0; n < (invar_op_depends_on_numerics(op) ? INVAR_NUMERICS_COUNT : 1); n++)
            check_op(dev, op, (invar_numerics)n);
}

/* A count that overflows saturates at INT64_MAX, because a negative one would pass as small. */
static void test_fields__counts_do_not_overflow(void **state)
{
    int seen = 0;

    (void)state;
    for (invar_op op = 0; op < INVAR_OP_COUNT; op++) {
        int count;
        const invar_field *fields = invar_op_fields(&count, op);

        for (int i = 0; i < count; i++) {
            char args[INVAR_OP_ARGS_MAX] = {0};
            const int64_t most = INT64_MAX;

            if (!fields[i].count_at || !fields[i].extra_elements)
                continue;
            memcpy(args + fields[i].count_at, &most, sizeof most);
            assert_true(invar_field_count(&fields[i], args) == INT64_MAX);
            if (fields[i].kind == INVAR_FIELD_ARRAY)
                assert_true(invar_field_memory(&fields[i], args).shape[0] > INT64_MAX / 16);
            seen++;
        }
    }
    assert_true(seen > 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fields__cover_every_struct),
        cmocka_unit_test(test_fields__scalars_have_their_size),
        cmocka_unit_test(test_fields__counts_do_not_overflow),
        cmocka_unit_test(test_fields__describe_what_ops_do),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
