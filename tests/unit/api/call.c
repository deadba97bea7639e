/*
 * call.c - tests of ops by name: random calls of every op give the bytes of the typed calls.
 *
 * A random case (tests/gpu/cases) is run once through the op's C function and once through
 * invar_api_call, with its arguments spelled by name. A call without a required argument must fail.
 * Control: the number of calls that changed memory, so that equal bytes do not come from calls that
 * did nothing.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <string.h>

#include "api/invar.h"
#include "kernels-deterministic/op_fields.h"
#include "tests/gpu/cases/cases.h"
#include "tests/ops.h"

enum { MAX_FIELDS = 80 };

/* Arguments of invar_api_call, and the storage of the names, shapes and strides they point to. */
typedef struct spelled_call {
    invar_api_argument arguments[MAX_FIELDS];
    int64_t shapes[MAX_FIELDS][INVAR_MAX_RANK], strides[MAX_FIELDS][INVAR_MAX_RANK];
    char names[MAX_FIELDS][48];
    int64_t count;
    int64_t n_quantized; /* number of quantized tensors */
    bool expressible;    /* false if an argument is a list of tensors, which has no spelling */
} spelled_call;

/* DLPack type code of each data type; type code and bits of the scales of the quantized ones. */
static const int32_t dlpack_codes[INVAR_DTYPE_COUNT] = {
    [INVAR_DTYPE_F32] = 2,    [INVAR_DTYPE_BF16] = 4, [INVAR_DTYPE_FP8] = 10,
    [INVAR_DTYPE_MXFP8] = 10, [INVAR_DTYPE_INT4] = 0,
};
static const int32_t dlpack_scale_codes[INVAR_DTYPE_COUNT][2] = {
    [INVAR_DTYPE_FP8] = {2, 32}, [INVAR_DTYPE_MXFP8] = {14, 8}, [INVAR_DTYPE_INT4] = {4, 16}};

/* Appends the integer argument `name` + `ending`, for instance "w.scale_rows". */
static invar_api_argument *append_suffixed(spelled_call *s, const char *name, const char *ending)
{
    invar_api_argument *a = &s->arguments[s->count];

    (void)snprintf(s->names[s->count], sizeof s->names[0], "%s%s", name, ending);
    *a = (invar_api_argument){.name = s->names[s->count++], .kind = INVAR_API_INTEGER};
    return a;
}

static void spell_scales(spelled_call *s, const char *name, const invar_tensor *t)
{
    int64_t *shape = s->shapes[s->count];
    invar_api_argument *a = append_suffixed(s, name, ".scale");

    shape[0] = invar_tensor_bands(t);
    shape[1] = invar_tensor_scale_blocks(t);
    a->kind = INVAR_API_TENSOR;
    a->tensor = (invar_api_tensor){
        t->scale, shape, NULL, 2, dlpack_scale_codes[t->dtype][0], dlpack_scale_codes[t->dtype][1],
        0};
    if (t->scale_rows != 1 || s->count % 2)
        append_suffixed(s, name, ".scale_rows")->integer = t->scale_rows;
    if (t->scale_period != 0)
        append_suffixed(s, name, ".scale_period")->integer = t->scale_period;
    s->n_quantized++;
}

static void spell_tensor(spelled_call *s, invar_api_argument *a, const invar_tensor *t)
{
    int64_t *shape = s->shapes[s->count], *strides = s->strides[s->count], dense = 1;

    for (int i = t->rank - 1; i >= 0; i--) {
        shape[i] = t->shape[i];
        strides[i] = i > 0 ? dense : t->row_stride;
        dense *= t->shape[i];
    }
    a->tensor = (invar_api_tensor){
        t->data, shape, strides, t->rank, dlpack_codes[t->dtype], invar_dtype_bits(t->dtype), 0};
}

static void spell_field(spelled_call *s, const invar_field *f, const invar_op_args *args)
{
    invar_api_argument *a = &s->arguments[s->count];
    const void *in = invar_field_in(f, args);
    const invar_row_offsets *segments = in;
    invar_tensor vector;
    int32_t integer32;
    float real;

    *a = (invar_api_argument){.name = f->name, .kind = INVAR_API_TENSOR};
    switch (f->kind) {
    case INVAR_FIELD_TENSOR: spell_tensor(s, a, in); break;
    case INVAR_FIELD_SEGMENTS:
        vector = invar_tensor_1d((void *)(uintptr_t)segments->offsets, INVAR_DTYPE_I64,
                                 segments->count + 1);
        spell_tensor(s, a, &vector);
        break;
    case INVAR_FIELD_ARRAY:
        vector = invar_field_memory(f, args);
        spell_tensor(s, a, &vector);
        break;
    case INVAR_FIELD_TENSORS: s->expressible = false; break;
    case INVAR_FIELD_I32:
        memcpy(&integer32, in, sizeof integer32);
        a->integer = integer32;
        a->kind = INVAR_API_INTEGER;
        break;
    case INVAR_FIELD_I64:
        memcpy(&a->integer, in, sizeof a->integer);
        a->kind = INVAR_API_INTEGER;
        break;
    case INVAR_FIELD_F32:
        memcpy(&real, in, sizeof real);
        a->real = real;
        a->kind = INVAR_API_FLOAT;
        break;
    case INVAR_FIELD_F64:
        memcpy(&a->real, in, sizeof a->real);
        a->kind = INVAR_API_FLOAT;
        break;
    }
    s->count++;
    if (f->kind == INVAR_FIELD_TENSOR && invar_dtype_scale_block(((const invar_tensor *)in)->dtype))
        spell_scales(s, f->name, in);
}

static void spell_case(spelled_call *s, const invar_case *c)
{
    int n;
    const invar_field *fields = invar_op_fields(&n, c->op);

    *s = (spelled_call){.expressible = true};
    assert_true(n <= MAX_FIELDS);
    for (int i = 0; i < n; i++)
        if (invar_field_present(&fields[i], &c->args))
            spell_field(s, &fields[i], &c->args);
}

static bool memory_equal(const invar_case *a, const invar_case *b)
{
    invar_digest x = invar_case_digest(a), y = invar_case_digest(b);

    return invar_digest_equal(&x, &y);
}

static const invar_api_argument *find_spelled(const spelled_call *s, const char *name,
                                              const char *ending)
{
    size_t bytes = strlen(name);

    for (int64_t i = 0; i < s->count; i++)
        if (strncmp(s->arguments[i].name, name, bytes) == 0 &&
            strcmp(s->arguments[i].name + bytes, ending) == 0)
            return &s->arguments[i];
    return NULL;
}

/*
 * Returns whether a call without the argument must fail: it is a field that is not optional, the
 * scales of a quantized tensor, or the tensor of scales.
 */
static bool is_required(const spelled_call *s, const invar_api_argument *a, invar_op op)
{
    const char *dot = strrchr(a->name, '.');
    int n;
    const invar_field *fields = invar_op_fields(&n, op);

    for (int i = 0; i < n; i++)
        if (strcmp(fields[i].name, a->name) == 0)
            return !fields[i].optional || find_spelled(s, a->name, ".scale");
    return dot && strcmp(dot, ".scale") == 0;
}

/*
 * Leaves out each argument. A call without a required one fails with a message that names the op,
 * and changes no memory. Returns the number of required arguments.
 */
static int64_t leave_out_each(invar_api_device *device, invar_op op, const invar_case *named,
                              spelled_call *s)
{
    const char *name = invar_op_name(op);
    int64_t n_required = 0;

    for (int64_t i = 0; i < s->count; i++) {
        invar_api_argument last = s->arguments[s->count - 1], out = s->arguments[i];
        invar_digest before = invar_case_digest(named), after;
        bool required = is_required(s, &out, op);
        int32_t status;

        s->arguments[i] = last;
        status = invar_api_call(device, name, s->arguments, s->count - 1);
        s->arguments[i] = out;
        if (status != INVAR_OK)
            assert_string_not_equal(invar_api_error(), "");
        if (!required)
            continue;
        n_required++;
        if (status != INVAR_E_INVALID || !strstr(invar_api_error(), name))
            fail_msg("%s without %s: status %d: %s", name, out.name, (int)status,
                     invar_api_error());
        after = invar_case_digest(named);
        assert_true(invar_digest_equal(&before, &after));
    }
    return n_required;
}

/* Random calls of every op whose arguments can be spelled by name. */
static void test_api_call__has_the_bits_of_the_typed_call(void **state)
{
    invar_device dev = *(const invar_device *)*state;
    invar_api_device *device[INVAR_NUMERICS_COUNT];
    int64_t calls = 0, ops = 0, n_quantized = 0, seeds = invar_test_full() ? 400 : 10;
    int64_t n_required = 0;
    static spelled_call s;

    for (int n = 0; n < INVAR_NUMERICS_COUNT; n++)
        assert_ok(
            invar_api_device_open(&device[n], "cpu", invar_numerics_name((invar_numerics)n), 2));
    for (int op = 0; op < INVAR_OP_COUNT; op++) {
        int64_t before = calls;
        for (int64_t seed = 0; seed < seeds; seed++) {
            invar_numerics numerics = (invar_numerics)(seed % INVAR_NUMERICS_COUNT);
            invar_case named, typed, untouched;

            invar_case_make(&named, (invar_op)op, numerics, (uint64_t)seed);
            invar_case_make(&typed, (invar_op)op, numerics, (uint64_t)seed);
            invar_case_make(&untouched, (invar_op)op, numerics, (uint64_t)seed);
            spell_case(&s, &named);
            if (s.expressible) {
                dev.numerics = numerics;
                assert_ok(invar_case_run(&dev, &typed));
                assert_ok(invar_api_call(device[numerics], invar_op_name((invar_op)op), s.arguments,
                                         s.count));
                if (!memory_equal(&named, &typed))
                    fail_msg("%s, seed %d: %s: other bytes than the typed call",
                             invar_op_name((invar_op)op), (int)seed, named.text);
                calls += !memory_equal(&named, &untouched);
                n_quantized += s.n_quantized;
                if (seed == 0 || s.n_quantized > 0)
                    n_required += leave_out_each(device[numerics], (invar_op)op, &named, &s);
            }
            invar_case_free(&named);
            invar_case_free(&typed);
            invar_case_free(&untouched);
        }
        ops += calls > before;
    }
    assert_true(ops == INVAR_OP_COUNT - 2); // two ops have lists of tensors
    assert_true(n_quantized > 50);
    assert_true(n_required > 150);
    for (int n = 0; n < INVAR_NUMERICS_COUNT; n++)
        invar_api_device_close(device[n]);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_api_call__has_the_bits_of_the_typed_call),
    };

    return cmocka_run_group_tests(tests, invar_test_devices_setup, invar_test_devices_teardown);
}
