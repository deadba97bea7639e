/*
 * call.c - calls ops of kernels-deterministic by name, for libinvar.
 *
 * The arguments of an op are a struct that grows with the op. In the interface they are names and
 * values, which the table of the op's fields (kernels-deterministic/op_fields.h) puts into the
 * struct. So one function calls every op, and no such struct is part of the interface. This file
 * checks what the ops cannot: the sizes of plain arrays, the place of memory, and that no argument
 * is missing or unknown.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "api/device.h"
#include "kernels-deterministic/op_fields.h"

#include "base/invar_banned.h"

/* ---- arguments ------------------------------------------------------------------------------- */

typedef struct call {
    const char *op;                      /* name of the op; used in messages only */
    const invar_api_argument *arguments; /* (count) */
    int64_t count;
    bool far;     /* the device has memory of its own */
    bool indexed; /* the op reads indices or boundaries, in which a kernel may find an error */
    invar_op_args args;
} call;

static invar_status call_fail(const call *c, const char *field, const char *why)
{
    return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: %.60s: %s", c->op, field, why);
}

/* DLPack's codes of types. */
enum { INTEGER = 0, UNSIGNED = 1, FLOAT = 2, BFLOAT = 4, E4M3 = 10, E8M0 = 14 };

static invar_dtype dtype_of(const invar_api_tensor *t)
{
    if (t->code == FLOAT && t->bits == 32)
        return INVAR_DTYPE_F32;
    if (t->code == BFLOAT && t->bits == 16)
        return INVAR_DTYPE_BF16;
    if (t->code == INTEGER && t->bits == 32)
        return INVAR_DTYPE_I32;
    if (t->code == INTEGER && t->bits == 64)
        return INVAR_DTYPE_I64;
    return INVAR_DTYPE_NONE;
}

/* Makes a view of a tensor. Only the first dimension may be strided; the others have no gaps. */
static invar_status read_view(invar_tensor *out, const call *c, const invar_api_argument *a,
                              invar_dtype dtype)
{
    const invar_api_tensor *t = &a->tensor;
    int64_t dense = 1;

    *out = (invar_tensor){.data = t->data, .dtype = dtype, .rank = t->dims};
    if (dtype == INVAR_DTYPE_NONE)
        return call_fail(c, a->name, "the type is none of f32, bf16, i32, i64");
    if (t->dims < 1 || t->dims > INVAR_MAX_RANK || !t->shape)
        return call_fail(c, a->name, "the tensor has not 1 to 4 dimensions");
    for (int32_t i = t->dims - 1; i >= 0; i--) {
        if (t->shape[i] < 0 || t->shape[i] > INT64_MAX / 16)
            return call_fail(c, a->name, "an extent is negative, or larger than memory");
        if (i > 0 && t->strides && t->shape[i] > 1 && t->strides[i] != dense)
            return call_fail(c, a->name, "only the first index may be strided");
        out->shape[i] = t->shape[i];
        if (i > 0 && __builtin_mul_overflow(dense, t->shape[i], &dense))
            return call_fail(c, a->name, "a row is larger than memory");
    }
    out->row_stride = t->strides && t->shape[0] > 1 ? t->strides[0] : dense;
    return INVAR_OK;
}

/* Makes a view of a tensor that must be dense. */
static invar_status read_vector(invar_tensor *out, const call *c, const invar_api_argument *a)
{
    INVAR_TRY(read_view(out, c, a, dtype_of(&a->tensor)));
    if (out->row_stride != invar_tensor_row_elements(out) && out->shape[0] > 1)
        return call_fail(c, a->name, "the array has gaps");
    return INVAR_OK;
}

/* ---- quantized tensors ----------------------------------------------------------------------- */

static const char *const endings[] = {".scale", ".scale_rows", ".scale_period"};

enum { SCALE, SCALE_ROWS, SCALE_PERIOD, ENDINGS };

/* True if the argument is named `name` with this ending, and so belongs to that tensor. */
static bool has_ending(const invar_api_argument *a, const char *name, int ending)
{
    size_t bytes = strlen(name);

    return strncmp(a->name, name, bytes) == 0 && strcmp(a->name + bytes, endings[ending]) == 0;
}

static const invar_api_argument *find_ending(const call *c, const char *name, int ending)
{
    for (int64_t i = 0; i < c->count; i++)
        if (has_ending(&c->arguments[i], name, ending))
            return &c->arguments[i];
    return NULL;
}

/* Returns the format of a quantized tensor, which depends on the types of codes and scales. */
static invar_dtype format_of(const invar_api_tensor *codes, const invar_api_tensor *scale)
{
    bool e4m3 = codes->code == E4M3 && codes->bits == 8;

    if (e4m3 && scale->code == FLOAT && scale->bits == 32)
        return INVAR_DTYPE_FP8;
    if (e4m3 && (scale->code == E8M0 || scale->code == UNSIGNED) && scale->bits == 8)
        return INVAR_DTYPE_MXFP8;
    if (codes->code == INTEGER && codes->bits == 4 && scale->code == BFLOAT && scale->bits == 16)
        return INVAR_DTYPE_INT4;
    return INVAR_DTYPE_NONE;
}

/* *out = the value of an integer argument of 31 bits; `absent` if `a` is NULL. */
static invar_status read_count(int32_t *out, const call *c, const invar_api_argument *a,
                               int32_t absent)
{
    *out = a ? (int32_t)a->integer : absent;
    if (a && (a->kind != INVAR_API_INTEGER || a->integer < 0 || a->integer > INT32_MAX))
        return call_fail(c, a->name, "is an integer of at most 31 bits");
    return INVAR_OK;
}

/* Checks that the scales have no gaps and the number that the codes need. */
static invar_status check_scale(const call *c, const invar_tensor *t, const invar_api_argument *a)
{
    const invar_api_tensor *scale = &a->tensor;
    int64_t have = 1, needed;

    if (scale->dims < 0 || scale->dims > INVAR_MAX_RANK || (scale->dims > 0 && !scale->shape))
        return call_fail(c, a->name, "the scales have not 0 to 4 dimensions");
    for (int32_t i = scale->dims - 1; i >= 0; i--) {
        if (scale->strides && scale->shape[i] > 1 && scale->strides[i] != have)
            return call_fail(c, a->name, "the scales have gaps");
        if (scale->shape[i] < 0 || __builtin_mul_overflow(have, scale->shape[i], &have))
            return call_fail(c, a->name, "the scales are larger than memory");
    }
    if (__builtin_mul_overflow(invar_tensor_bands(t), invar_tensor_scale_blocks(t), &needed) ||
        have != needed)
        return call_fail(c, a->name, "the scales are not as many as the codes have blocks");
    return INVAR_OK;
}

/* Checks that the memory of an argument is where the op reads or writes it: host or device. */
static invar_status check_place(const call *c, const invar_field *field,
                                const invar_api_argument *a)
{
    bool wanted = c->far && !field->host, have = a->tensor.place == INVAR_API_DEVICE;

    if (a->tensor.place != INVAR_API_HOST && !have)
        return call_fail(c, a->name, "the place of its memory is neither the host nor the device");
    if (have == wanted)
        return INVAR_OK;
    return call_fail(c, a->name,
                     wanted ? "lies in the host's memory; the device needs it in its own"
                            : "lies in a GPU's memory; it is needed in the host's");
}

static invar_status read_tensor(invar_tensor *out, const call *c, const invar_field *field,
                                const invar_api_argument *a)
{
    const invar_api_argument *scale = find_ending(c, a->name, SCALE);

    if (!scale)
        return read_view(out, c, a, dtype_of(&a->tensor));
    if (scale->kind != INVAR_API_TENSOR)
        return call_fail(c, scale->name, "is a tensor");
    if (format_of(&a->tensor, &scale->tensor) == INVAR_DTYPE_NONE)
        return call_fail(c, a->name, "codes and scales are none of fp8, mxfp8, int4");
    INVAR_TRY(check_place(c, field, scale));
    INVAR_TRY(read_view(out, c, a, format_of(&a->tensor, &scale->tensor)));
    INVAR_TRY(read_count(&out->scale_rows, c, find_ending(c, a->name, SCALE_ROWS), 1));
    INVAR_TRY(read_count(&out->scale_period, c, find_ending(c, a->name, SCALE_PERIOD), 0));
    if (out->rank != 2 || (out->scale_rows != 1 && out->scale_rows != INVAR_FP8_BLOCK))
        return call_fail(c, a->name,
                         "quantised tensors have 2 dimensions, and scales of 1 or 128 "
                         "rows");
    out->scale = scale->tensor.data;
    return check_scale(c, out, scale);
}

/* ---- fields ---------------------------------------------------------------------------------- */

static invar_status set_segments(void *to, const call *c, const invar_api_argument *a)
{
    invar_row_offsets *segments = to;
    invar_tensor bounds;

    INVAR_TRY(read_vector(&bounds, c, a));
    if (bounds.dtype != INVAR_DTYPE_I64 || bounds.rank != 1 || bounds.shape[0] < 1)
        return call_fail(c, a->name, "segments are a vector of i64, one more than there are");
    *segments = (invar_row_offsets){bounds.data, bounds.shape[0] - 1};
    return INVAR_OK;
}

static invar_status set_number(void *to, const call *c, const invar_field *field,
                               const invar_api_argument *a)
{
    bool whole = field->kind == INVAR_FIELD_I32 || field->kind == INVAR_FIELD_I64;
    int32_t narrow = (int32_t)a->integer;
    float rounded = (float)a->real;

    if (a->kind != (whole ? INVAR_API_INTEGER : INVAR_API_FLOAT))
        return call_fail(c, a->name, whole ? "is an integer" : "is a floating-point number");
    if (field->kind == INVAR_FIELD_I32 && narrow != a->integer)
        return call_fail(c, a->name, "does not fit into 32 bits");
    switch (field->kind) {
    case INVAR_FIELD_I32: memcpy(to, &narrow, sizeof narrow); break;
    case INVAR_FIELD_I64: memcpy(to, &a->integer, sizeof a->integer); break;
    case INVAR_FIELD_F32: memcpy(to, &rounded, sizeof rounded); break;
    default: memcpy(to, &a->real, sizeof a->real); break;
    }
    return INVAR_OK;
}

static invar_status set_field(call *c, const invar_field *field, const invar_api_argument *a)
{
    void *to = (char *)&c->args + field->offset;
    invar_tensor memory;

    if (field->kind >= INVAR_FIELD_I32)
        return set_number(to, c, field, a);
    if (a->kind != INVAR_API_TENSOR)
        return call_fail(c, a->name, "is a tensor");
    INVAR_TRY(check_place(c, field, a));
    switch (field->kind) {
    case INVAR_FIELD_TENSOR: return read_tensor(to, c, field, a);
    case INVAR_FIELD_SEGMENTS: return set_segments(to, c, a);
    case INVAR_FIELD_ARRAY:
        INVAR_TRY(read_vector(&memory, c, a));
        memcpy(to, &memory.data, sizeof memory.data);
        return INVAR_OK;
    default: return call_fail(c, a->name, "lists of tensors cannot be passed");
    }
}

static const invar_api_argument *find_argument(const call *c, const char *name)
{
    for (int64_t i = 0; i < c->count; i++)
        if (strcmp(c->arguments[i].name, name) == 0)
            return &c->arguments[i];
    return NULL;
}

/* Checks that an array has the size that the numbers of the call imply; the op cannot check it. */
static invar_status check_array(const call *c, const invar_field *field,
                                const invar_api_argument *a)
{
    int64_t count = invar_field_count(field, &c->args), have;
    invar_tensor memory;

    INVAR_TRY(read_vector(&memory, c, a));
    if (__builtin_mul_overflow(memory.shape[0], invar_tensor_row_elements(&memory), &have) ||
        count < 0 || count > INT64_MAX / 1024 ||
        have != count * field->element / (invar_dtype_bits(memory.dtype) / 8))
        return call_fail(c, a->name, "the array has another size than the call says");
    return INVAR_OK;
}

/* True if the call needs the field: an element of an array field only if its index is in range. */
static bool field_applies(const call *c, const invar_field *field)
{
    int32_t among;

    if (!field->array_count_offset)
        return true;
    memcpy(&among, (const char *)&c->args + field->array_count_offset, sizeof among);
    return field->index < among;
}

/*
 * True for boundaries, ids and lengths, which kernels read from memory that the host cannot check.
 */
static bool is_index(const invar_field *field, const invar_api_argument *a)
{
    return field->role == INVAR_FIELD_IN && field->kind < INVAR_FIELD_I32 &&
           a->tensor.code == INTEGER && a->tensor.bits >= 32;
}

/* Returns the number of arguments that belong to the field: its own, and those of its scales. */
static int64_t count_of(const call *c, const invar_field *field)
{
    int64_t count = 1;

    for (int ending = 0; ending < ENDINGS; ending++)
        if (field->kind == INVAR_FIELD_TENSOR && find_ending(c, field->name, SCALE) &&
            find_ending(c, field->name, ending))
            count++;
    return count;
}

static bool belongs_to(const invar_field *field, const invar_api_argument *a)
{
    bool found = strcmp(field->name, a->name) == 0;

    for (int ending = 0; ending < ENDINGS; ending++)
        found = found || (field->kind == INVAR_FIELD_TENSOR && has_ending(a, field->name, ending));
    return found;
}

static invar_status fill_op_args(call *c, invar_op op)
{
    int n_fields;
    const invar_field *fields = invar_op_fields(&n_fields, op);
    int64_t known = 0;

    for (int i = 0; i < n_fields; i++) {
        const invar_api_argument *a = find_argument(c, fields[i].name);
        if (a) {
            known += count_of(c, &fields[i]);
            INVAR_TRY(set_field(c, &fields[i], a));
            c->indexed = c->indexed || is_index(&fields[i], a);
        }
    }
    for (int64_t i = 0; i < c->count && known != c->count; i++) {
        bool found = false;
        for (int k = 0; k < n_fields; k++)
            found = found || belongs_to(&fields[k], &c->arguments[i]);
        if (!found || find_argument(c, c->arguments[i].name) != &c->arguments[i])
            return call_fail(c, c->arguments[i].name, found ? "is there twice" : "is no argument");
    }
    if (known != c->count)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: scales without the tensor that they belong to",
                          c->op);
    for (int i = 0; i < n_fields; i++) {
        const invar_api_argument *a = find_argument(c, fields[i].name);
        if (!a && !fields[i].optional && field_applies(c, &fields[i]))
            return call_fail(c, fields[i].name, "is missing");
        if (a && fields[i].kind == INVAR_FIELD_ARRAY)
            INVAR_TRY(check_array(c, &fields[i], a));
    }
    return INVAR_OK;
}

/* ---- calls ----------------------------------------------------------------------------------- */

static invar_status find_op(invar_op *out, const char *name)
{
    for (int op = 0; op < INVAR_OP_COUNT; op++)
        if (strcmp(invar_op_name((invar_op)op), name) == 0) {
            *out = (invar_op)op;
            return INVAR_OK;
        }
    return INVAR_FAIL(INVAR_E_NOTFOUND, 0, "there is no op \"%.40s\"", name);
}

int32_t invar_api_op_revision(const char *op)
{
    invar_op found;

    INVAR_TRY(find_op(&found, op));
    return invar_op_revision(found);
}

int32_t invar_api_op_writes(const char *op, const char *argument)
{
    invar_api_argument asked = {.name = argument};
    const invar_field *fields;
    invar_op found;
    int n_fields;

    INVAR_TRY(find_op(&found, op));
    fields = invar_op_fields(&n_fields, found);
    for (int i = 0; i < n_fields; i++)
        if (belongs_to(&fields[i], &asked))
            return fields[i].role != INVAR_FIELD_IN;
    return 0;
}

/* Runs an op. Caller holds `device->busy`. */
static invar_status run_op(invar_api_device *device, invar_op op, const call *c)
{
    size_t bytes = 0;

    INVAR_TRY(invar_op_workspace(&bytes, &device->dev, op, &c->args));
    INVAR_TRY(invar_api_device_scratch(device, bytes));
    INVAR_TRY(invar_op_run(&device->dev, op, &c->args));
    if (c->indexed && device->dev.backend->poll_error)
        return device->dev.backend->poll_error(&device->dev);
    return INVAR_OK;
}

int32_t invar_api_call_in(invar_api_device *device, void *stream, const char *op,
                          const invar_api_argument *arguments, int64_t count)
{
    call c = {.op = op,
              .arguments = arguments,
              .count = count,
              .far = invar_device_is_local(&device->dev)};
    invar_status status = INVAR_OK;
    invar_op found;

    INVAR_TRY(find_op(&found, op));
    memset(&c.args, 0, sizeof c.args);
    INVAR_TRY(fill_op_args(&c, found));
    pthread_mutex_lock(&device->busy);
    if (device->dev.backend->set_stream)
        status = device->dev.backend->set_stream(&device->dev, stream);
    if (status == INVAR_OK)
        status = run_op(device, found, &c);
    pthread_mutex_unlock(&device->busy);
    return status;
}

int32_t invar_api_call(invar_api_device *device, const char *op,
                       const invar_api_argument *arguments, int64_t count)
{
    INVAR_TRY(invar_api_call_in(device, NULL, op, arguments, count));
    return invar_api_device_wait(device);
}
