/*
 * call.c - ops by name: kernels-deterministic behind the stable interface.
 *
 * The arguments of an op are a struct that grows with the op. Here they are names and values, put
 * into the struct by the table of its fields (kernels-deterministic/fields.h), so that every op is
 * reached by one function and no struct of ours is part of the interface. What an op's own checks
 * cannot see is checked here: the size of plain arrays, and that nothing is left out.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

#include "api/device.h"
#include "kernels-deterministic/fields.h"

#include "base/invar_banned.h"

/* ---- arguments ------------------------------------------------------------------------------- */

typedef struct call {
    const char *op;                      /* for messages */
    const invar_api_argument *arguments; /* (count) */
    int64_t count;
    bool far;     /* the device has memory of its own */
    bool indexed; /* it reads indices or boundaries: there a kernel may find a fault */
    invar_op_args args;
} call;

static invar_status refuse(const call *c, const char *field, const char *why)
{
    return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: %.60s: %s", c->op, field, why);
}

static invar_dtype dtype_of(const invar_api_tensor *t)
{
    enum { INTEGER = 0, FLOAT = 2, BFLOAT = 4 };

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

/* A view of its memory: index 0 may be strided, the others lie without gaps. */
static invar_status read_tensor(invar_tensor *out, const call *c, const invar_api_argument *a)
{
    const invar_api_tensor *t = &a->tensor;
    int64_t dense = 1;

    *out = (invar_tensor){.data = t->data, .dtype = dtype_of(t), .rank = t->dims};
    if (out->dtype == INVAR_DTYPE_NONE)
        return refuse(c, a->name, "the type is none of f32, bf16, i32, i64");
    if (t->dims < 1 || t->dims > INVAR_MAX_RANK || !t->shape)
        return refuse(c, a->name, "the tensor has not 1 to 4 dimensions");
    for (int32_t i = t->dims - 1; i >= 0; i--) {
        if (t->shape[i] < 0 || t->shape[i] > INT64_MAX / 16)
            return refuse(c, a->name, "an extent is negative, or larger than memory");
        if (i > 0 && t->strides && t->shape[i] > 1 && t->strides[i] != dense)
            return refuse(c, a->name, "only the first index may be strided");
        out->shape[i] = t->shape[i];
        if (i > 0 && __builtin_mul_overflow(dense, t->shape[i], &dense))
            return refuse(c, a->name, "a row is larger than memory");
    }
    out->row_stride = t->strides && t->shape[0] > 1 ? t->strides[0] : dense;
    return INVAR_OK;
}

/* Elements of a tensor that is one dense vector of memory. */
static invar_status read_vector(invar_tensor *out, const call *c, const invar_api_argument *a)
{
    INVAR_TRY(read_tensor(out, c, a));
    if (out->row_stride != invar_tensor_row_elements(out) && out->shape[0] > 1)
        return refuse(c, a->name, "the array has gaps");
    return INVAR_OK;
}

static invar_status set_segments(void *to, const call *c, const invar_api_argument *a)
{
    invar_segments *segments = to;
    invar_tensor bounds;

    INVAR_TRY(read_vector(&bounds, c, a));
    if (bounds.dtype != INVAR_DTYPE_I64 || bounds.rank != 1 || bounds.shape[0] < 1)
        return refuse(c, a->name, "segments are a vector of i64, one more than there are");
    *segments = (invar_segments){bounds.data, bounds.shape[0] - 1};
    return INVAR_OK;
}

static invar_status set_number(void *to, const call *c, const invar_field *field,
                               const invar_api_argument *a)
{
    bool whole = field->kind == INVAR_FIELD_I32 || field->kind == INVAR_FIELD_I64;
    int32_t narrow = (int32_t)a->integer;
    float rounded = (float)a->real;

    if (a->kind != (whole ? INVAR_API_INTEGER : INVAR_API_FLOAT))
        return refuse(c, a->name, whole ? "is an integer" : "is a floating-point number");
    if (field->kind == INVAR_FIELD_I32 && narrow != a->integer)
        return refuse(c, a->name, "does not fit into 32 bits");
    switch (field->kind) {
    case INVAR_FIELD_I32: memcpy(to, &narrow, sizeof narrow); break;
    case INVAR_FIELD_I64: memcpy(to, &a->integer, sizeof a->integer); break;
    case INVAR_FIELD_F32: memcpy(to, &rounded, sizeof rounded); break;
    default: memcpy(to, &a->real, sizeof a->real); break;
    }
    return INVAR_OK;
}

/* Its memory is where the op looks for it. */
static invar_status check_place(const call *c, const invar_field *field,
                                const invar_api_argument *a)
{
    bool wanted = c->far && !field->host, have = a->tensor.place == INVAR_API_DEVICE;

    if (a->tensor.place != INVAR_API_HOST && !have)
        return refuse(c, a->name, "the place of its memory is neither the host nor the device");
    if (have == wanted)
        return INVAR_OK;
    return refuse(c, a->name,
                  wanted ? "lies in the host's memory; the device needs it in its own"
                         : "lies in a GPU's memory; it is needed in the host's");
}

static invar_status set_field(call *c, const invar_field *field, const invar_api_argument *a)
{
    void *to = (char *)&c->args + field->offset;
    invar_tensor memory;

    if (field->kind >= INVAR_FIELD_I32)
        return set_number(to, c, field, a);
    if (a->kind != INVAR_API_TENSOR)
        return refuse(c, a->name, "is a tensor");
    INVAR_TRY(check_place(c, field, a));
    switch (field->kind) {
    case INVAR_FIELD_TENSOR: return read_tensor(to, c, a);
    case INVAR_FIELD_SEGMENTS: return set_segments(to, c, a);
    case INVAR_FIELD_ARRAY:
        INVAR_TRY(read_vector(&memory, c, a));
        memcpy(to, &memory.data, sizeof memory.data);
        return INVAR_OK;
    default: return refuse(c, a->name, "lists of tensors cannot be passed");
    }
}

static const invar_api_argument *find_argument(const call *c, const char *name)
{
    for (int64_t i = 0; i < c->count; i++)
        if (strcmp(c->arguments[i].name, name) == 0)
            return &c->arguments[i];
    return NULL;
}

/* An array is as long as the numbers beside it say; only a caller knows how long it is. */
static invar_status check_array(const call *c, const invar_field *field,
                                const invar_api_argument *a)
{
    int64_t count = invar_field_count(field, &c->args), have;
    invar_tensor memory;

    INVAR_TRY(read_vector(&memory, c, a));
    if (__builtin_mul_overflow(memory.shape[0], invar_tensor_row_elements(&memory), &have) ||
        count < 0 || count > INT64_MAX / 1024 ||
        have != count * field->element / (invar_dtype_bits(memory.dtype) / 8))
        return refuse(c, a->name, "the array has another size than the call says");
    return INVAR_OK;
}

/* Whether the call, as far as it is known, can have the field. */
static bool applies(const call *c, const invar_field *field)
{
    int32_t among;

    if (!field->among)
        return true;
    memcpy(&among, (const char *)&c->args + field->among, sizeof among);
    return field->index < among;
}

/* Boundaries, ids and lengths: what kernels look up, and the host cannot. */
static bool is_index(const invar_field *field, const invar_api_argument *a)
{
    enum { INTEGER = 0 };

    return field->role == INVAR_FIELD_IN && field->kind < INVAR_FIELD_I32 &&
           a->tensor.code == INTEGER;
}

static invar_status fill(call *c, invar_op op)
{
    int n_fields;
    const invar_field *fields = invar_op_fields(&n_fields, op);
    int64_t known = 0;

    for (int i = 0; i < n_fields; i++) {
        const invar_api_argument *a = find_argument(c, fields[i].name);
        if (a) {
            known++;
            INVAR_TRY(set_field(c, &fields[i], a));
            c->indexed = c->indexed || is_index(&fields[i], a);
        }
    }
    for (int64_t i = 0; i < c->count && known != c->count; i++) {
        bool found = false;
        for (int k = 0; k < n_fields; k++)
            found = found || strcmp(fields[k].name, c->arguments[i].name) == 0;
        if (!found || find_argument(c, c->arguments[i].name) != &c->arguments[i])
            return refuse(c, c->arguments[i].name, found ? "is there twice" : "is no argument");
    }
    for (int i = 0; i < n_fields; i++) {
        const invar_api_argument *a = find_argument(c, fields[i].name);
        if (!a && !fields[i].optional && applies(c, &fields[i]))
            return refuse(c, fields[i].name, "is missing");
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

/* For who holds `busy`. */
static invar_status run(invar_api_device *device, invar_op op, const call *c)
{
    size_t bytes = 0;

    INVAR_TRY(invar_op_workspace(&bytes, &device->dev, op, &c->args));
    INVAR_TRY(invar_api_device_scratch(device, bytes));
    INVAR_TRY(invar_op_run(&device->dev, op, &c->args));
    if (c->indexed && device->dev.backend->look)
        return device->dev.backend->look(&device->dev);
    return INVAR_OK;
}

int32_t invar_api_call_in(invar_api_device *device, void *stream, const char *op,
                          const invar_api_argument *arguments, int64_t count)
{
    call c = {
        .op = op, .arguments = arguments, .count = count, .far = invar_device_far(&device->dev)};
    invar_status status = INVAR_OK;
    invar_op found;

    INVAR_TRY(find_op(&found, op));
    memset(&c.args, 0, sizeof c.args);
    INVAR_TRY(fill(&c, found));
    pthread_mutex_lock(&device->busy);
    if (device->dev.backend->follow)
        status = device->dev.backend->follow(&device->dev, stream);
    if (status == INVAR_OK)
        status = run(device, found, &c);
    pthread_mutex_unlock(&device->busy);
    return status;
}

int32_t invar_api_call(invar_api_device *device, const char *op,
                       const invar_api_argument *arguments, int64_t count)
{
    INVAR_TRY(invar_api_call_in(device, NULL, op, arguments, count));
    return invar_api_device_wait(device);
}
