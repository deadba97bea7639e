/*
 * op_fields.c - the table of fields says what the ops do: random calls of every op write all of
 * what they are said to write, and nothing else, and read nothing of it before.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/op_fields.h"

#include <stdlib.h>
#include <string.h>

#include "tests/gpu/cases/cases.h"
#include "tests/ops.h"

/* ---- every byte has a name ------------------------------------------------------------------- */

/* The bytes of a struct that a field covers. */
static void mark(char *covered, invar_op op)
{
    int count;
    const invar_field *fields = invar_op_fields(&count, op);

    for (int i = 0; i < count; i++)
        for (int byte = 0; byte < fields[i].bytes; byte++) {
            char *at = &covered[fields[i].offset + byte];
            if (*at)
                fail_msg("%s: %s: a byte has two names", invar_op_name(op), fields[i].name);
            *at = 1;
        }
}

static void test_fields__cover_every_struct(void **state)
{
    (void)state;
    for (invar_op op = 0; op < INVAR_OP_COUNT; op++) {
        char covered[INVAR_OP_ARGS_MAX] = {0}, all[INVAR_OP_ARGS_MAX], named[INVAR_OP_ARGS_MAX];
        size_t bytes, gap = 0;
        memset(all, 0xFF, sizeof all);
        bytes = invar_op_args_copy(named, op, all); // padding is 0 now, where the compiler can say
        mark(covered, op);
        for (size_t i = 0; i < bytes; i++) {
            gap = covered[i] ? 0 : gap + 1;
            if (covered[i] && !named[i])
                fail_msg("%s: byte %zu is padding, but a field covers it", invar_op_name(op), i);
            // padding ends before the next 8 bytes
            if (gap > 4 + (named[i] ? 0 : 3))
                fail_msg("%s: no field covers byte %zu", invar_op_name(op), i);
        }
    }
}

static void test_fields__numbers_have_their_size(void **state)
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
            assert_false(inputs && f->role != INVAR_FIELD_IN); // outputs stand first
            inputs = f->role == INVAR_FIELD_IN;
        }
    }
}

/* ---- what the ops do ------------------------------------------------------------------------- */

/* Told of every run of bytes that a field leads to: rows of a tensor, elements of others. */
typedef void each_run(void *payload, const invar_field *field, invar_dtype dtype, char *at,
                      size_t bytes);

static void runs_of_tensor(const invar_field *f, const invar_tensor *t, each_run *each,
                           void *payload)
{
    size_t row = (size_t)(invar_tensor_row_elements(t) * invar_dtype_bits(t->dtype)) / 8;
    size_t stride = (size_t)(t->row_stride * invar_dtype_bits(t->dtype)) / 8;

    for (int64_t i = 0; i < t->shape[0] && row > 0; i++)
        each(payload, f, t->dtype, (char *)t->data + (size_t)i * stride, row);
    if (t->scale)
        each(payload, f, INVAR_DTYPE_NONE, t->scale, invar_tensor_scale_bytes(t));
}

/* Of the fields with one of two roles. */
static void runs(invar_case *c, invar_field_role role, invar_field_role or_role, each_run *each,
                 void *payload)
{
    int count;
    const invar_field *fields = invar_op_fields(&count, c->op);

    for (int i = 0; i < count; i++) {
        const invar_field *f = &fields[i];
        const void *in = invar_field_in(f, &c->args);
        if ((f->role != role && f->role != or_role) || !invar_field_present(f, &c->args))
            continue;
        if (f->kind == INVAR_FIELD_TENSOR)
            runs_of_tensor(f, in, each, payload);
        else if (f->kind == INVAR_FIELD_ARRAY)
            each(payload, f, INVAR_DTYPE_NONE, *(char *const *)in,
                 (size_t)invar_field_count(f, &c->args) * f->element);
    }
}

static void fill(void *byte, const invar_field *field, invar_dtype dtype, char *at, size_t bytes)
{
    (void)field, (void)dtype;
    memset(at, *(const int *)byte, bytes);
}

/* 1 everywhere, in f32 and bf16: other sums. */
static void fill_ones(void *unused, const invar_field *field, invar_dtype dtype, char *at,
                      size_t bytes)
{
    (void)unused, (void)field;
    for (size_t i = 0; i + 1 < bytes; i += 2) {
        bool low = dtype == INVAR_DTYPE_F32 && i % 4 == 0;
        memcpy(at + i, low ? "\0\0" : "\x80\x3f", 2);
    }
}

/* An output that lies in an input's memory cannot be filled before. */
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

/* All of a case's memory, one block after the other, but for a list of tensors. */
static char *image_of(const invar_case *c, size_t *bytes_out)
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

/* A call whose outputs hold `byte` before; `ones`: and whose sums hold 1. */
static char *image_after(const invar_device *dev, invar_op op, invar_numerics numerics,
                         uint64_t seed, int byte, bool ones, size_t *bytes_out)
{
    char *image = NULL, *before, *after;
    int fixed = 0x55;
    invar_case c;

    invar_case_make(&c, op, numerics, seed);
    if (!is_in_place(&c)) {
        runs(&c, INVAR_FIELD_OUT, INVAR_FIELD_OUT, fill, &byte);
        if (ones)
            runs(&c, INVAR_FIELD_UPDATE, INVAR_FIELD_UPDATE, fill_ones, NULL);
        assert_ok(invar_case_run(dev, &c));
        image = image_of(&c, bytes_out);
        // what is left when all that may change is painted over did not change
        runs(&c, INVAR_FIELD_OUT, INVAR_FIELD_UPDATE, fill, &fixed);
        after = image_of(&c, bytes_out);
        invar_case_free(&c);
        invar_case_make(&c, op, numerics, seed);
        runs(&c, INVAR_FIELD_OUT, INVAR_FIELD_UPDATE, fill, &fixed);
        before = image_of(&c, bytes_out);
        if (memcmp(before, after, *bytes_out) != 0)
            fail_msg("%s: %s: something changed that is no output", invar_op_name(op), c.text);
        free(before);
        free(after);
    }
    invar_case_free(&c);
    return image;
}

/* Whether anything but the op's sums can differ: whether it has sums at all. */
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
    uint64_t seeds = invar_test_full() ? 40 : 6;
    int compared = 0, moved = 0;

    for (uint64_t i = 0; i < 2 * seeds; i++) {
        uint64_t seed = i < seeds ? i : INVAR_CASE_MORE + i - seeds;
        size_t bytes;
        char *zeros = image_after(dev, op, numerics, seed, 0, false, &bytes);
        char *nans = image_after(dev, op, numerics, seed, 0xFF, false, &bytes);
        if (zeros && memcmp(zeros, nans, bytes) != 0)
            fail_msg("%s: seed %d: what an output held before shows in the results",
                     invar_op_name(op), (int)i);
        compared += zeros != NULL;
        free(nans);
        nans = image_after(dev, op, numerics, seed, 0, true, &bytes);
        moved += zeros && memcmp(zeros, nans, bytes) != 0;
        free(zeros);
        free(nans);
    }
    assert_true(compared > 0);
    assert_int_equal(moved > 0, has_updates(op)); // what sums held before shows
}

static void test_fields__say_what_ops_do(void **state)
{
    const invar_device *dev = *state;

    for (invar_op op = 0; op < INVAR_OP_COUNT; op++)
        for (int n = 0; n < (invar_op_depends_on_numerics(op) ? INVAR_NUMERICS_COUNT : 1); n++)
            check_op(dev, op, (invar_numerics)n);
}

/* A count that does not fit stays a large number: a negative one would pass as a small array. */
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
        cmocka_unit_test(test_fields__numbers_have_their_size),
        cmocka_unit_test(test_fields__counts_do_not_overflow),
        cmocka_unit_test(test_fields__say_what_ops_do),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
