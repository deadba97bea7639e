/*
 * check.c - checks that the ops share: tensors, row offsets, indices, memory overlap, numbers.
 *
 * Errors name the op and the argument. The overlap check treats each field as a region of rows with
 * a stride, because column slices of one buffer interleave without sharing a byte.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/check/check.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>

#include "kernels-deterministic/op_fields.h"

#include "base/invar_banned.h"

/* Keeps byte counts far from overflow; no machine holds a larger tensor. */
#define MAX_ELEMENTS (INT64_C(1) << 48)

static invar_status check_quantized(invar_op op, const char *arg, const invar_tensor *t)
{
    int64_t block = invar_dtype_scale_block(t->dtype);

    if (t->rank != 2)
        return INVAR_REJECT(op, "%s: rank %d; a quantised tensor has 2 indices", arg, t->rank);
    if (!t->scale && t->shape[0] > 0 && t->shape[1] > 0)
        return INVAR_REJECT(op, "%s: an %s tensor without scales", arg, invar_dtype_name(t->dtype));
    if (t->dtype == INVAR_DTYPE_INT4 && t->shape[1] % block != 0)
        return INVAR_REJECT(op, "%s: %" PRId64 " columns; %s needs a multiple of %" PRId64, arg,
                            t->shape[1], invar_dtype_name(t->dtype), block);
    if (t->scale_rows != 1 && !(t->dtype == INVAR_DTYPE_FP8 && t->scale_rows == INVAR_FP8_BLOCK))
        return INVAR_REJECT(op, "%s: scales of %d rows; expected 1%s", arg, t->scale_rows,
                            t->dtype == INVAR_DTYPE_FP8 ? " or 128" : "");
    if (t->scale_period < 0 || (t->scale_period > 0 && t->scale_rows == 1))
        return INVAR_REJECT(op, "%s: scales begin anew after %d rows; expected 0%s", arg,
                            t->scale_period, t->scale_rows == 1 ? "" : " or more");
    return INVAR_OK;
}

static invar_status check_stride(invar_op op, const char *arg, const invar_tensor *t)
{
    int64_t row = 1;

    for (int i = 0; i < t->rank; i++) {
        int64_t n = t->shape[i];
        if (n < 0 || n > MAX_ELEMENTS)
            return INVAR_REJECT(op, "%s: extent %" PRId64 " of index %d", arg, n, i);
        if (i > 0 && n > 0 && row > MAX_ELEMENTS / n)
            return INVAR_REJECT(op, "%s: too many elements", arg);
        if (i > 0)
            row *= n;
    }
    if (t->row_stride < row)
        return INVAR_REJECT(
            op, "%s: row stride %" PRId64 " is less than the %" PRId64 " elements of a row", arg,
            t->row_stride, row);
    if (t->rank == 1 && t->row_stride != 1)
        return INVAR_REJECT(op, "%s: a vector must be contiguous", arg);
    if (t->shape[0] > 0 && t->row_stride > MAX_ELEMENTS / t->shape[0])
        return INVAR_REJECT(op, "%s: too many elements", arg);
    if (t->dtype == INVAR_DTYPE_INT4 && t->row_stride % 2 != 0)
        return INVAR_REJECT(op, "%s: int4 rows must start on a byte", arg);
    if (!t->data && t->shape[0] > 0 && row > 0)
        return INVAR_REJECT(op, "%s: no data", arg);
    return INVAR_OK;
}

invar_status invar_check_tensor(invar_op op, const char *arg, const invar_tensor *t, unsigned types,
                                int rank, const int64_t *shape)
{
    if (t->dtype <= INVAR_DTYPE_NONE || t->dtype >= INVAR_DTYPE_COUNT)
        return INVAR_REJECT(op, "%s: missing", arg);
    if (!(types >> t->dtype & 1))
        return INVAR_REJECT(op, "%s: type %s is not accepted here", arg,
                            invar_dtype_name(t->dtype));
    if (t->rank < 1 || t->rank > INVAR_MAX_RANK)
        return INVAR_REJECT(op, "%s: rank %d; expected 1 to %d", arg, t->rank, INVAR_MAX_RANK);
    if (rank != INVAR_ANY && t->rank != rank)
        return INVAR_REJECT(op, "%s: rank %d; expected %d", arg, t->rank, rank);
    INVAR_TRY(check_stride(op, arg, t));
    for (int i = 0; i < rank; i++)
        if (shape[i] != INVAR_ANY && shape[i] != t->shape[i])
            return INVAR_REJECT(op, "%s: extent %" PRId64 " of index %d; expected %" PRId64, arg,
                                t->shape[i], i, shape[i]);
    return invar_dtype_scale_block(t->dtype) ? check_quantized(op, arg, t) : INVAR_OK;
}

invar_status invar_check_optional(invar_op op, const char *arg, const invar_tensor *t,
                                  unsigned types, int rank, const int64_t *shape)
{
    return invar_tensor_present(t) ? invar_check_tensor(op, arg, t, types, rank, shape) : INVAR_OK;
}

invar_status invar_check_same_type(invar_op op, const char *arg_a, const invar_tensor *a,
                                   const char *arg_b, const invar_tensor *b)
{
    if (a->dtype != b->dtype)
        return INVAR_REJECT(op, "%s is %s but %s is %s", arg_a, invar_dtype_name(a->dtype), arg_b,
                            invar_dtype_name(b->dtype));
    return INVAR_OK;
}

invar_status invar_check_like(invar_op op, const char *arg, const invar_tensor *t,
                              const char *arg_like, const invar_tensor *like)
{
    INVAR_TRY(invar_check_same_type(op, arg, t, arg_like, like));
    return invar_check_tensor(op, arg, t, 1u << like->dtype, like->rank, like->shape);
}

/* Checks row offsets. If `some` is set, they may cover a part of the rows. */
static invar_status check_segments(const invar_device *dev, invar_op op, const char *arg,
                                   const invar_row_offsets *s, int64_t rows, bool some)
{
    int64_t first, end;

    if (s->count < 0 || (s->count > 0 && !s->offsets) || (s->count == 0 && rows != 0))
        return INVAR_REJECT(op, "%s: %" PRId64 " segments for %" PRId64 " rows", arg, s->count,
                            rows);
    if (s->count == 0 || invar_device_unreadable(dev))
        return INVAR_OK;
    for (int64_t i = 0; i < s->count; i++)
        if (s->offsets[i] < 0 || s->offsets[i + 1] < s->offsets[i])
            return INVAR_REJECT(op, "%s: segment %" PRId64 " runs backwards", arg, i);
    first = s->offsets[0];
    end = s->offsets[s->count];
    if (some ? end <= rows : first == 0 && end == rows)
        return INVAR_OK;
    return INVAR_REJECT(op, "%s: segments cover rows %" PRId64 " to %" PRId64 "; %s%" PRId64, arg,
                        first, end, some ? "there are " : "expected 0 to ", rows);
}

invar_status invar_check_segments_within(const invar_device *dev, invar_op op, const char *arg,
                                         const invar_row_offsets *s, int64_t rows)
{
    return check_segments(dev, op, arg, s, rows, true);
}

invar_status invar_check_segments(const invar_device *dev, invar_op op, const char *arg,
                                  const invar_row_offsets *s, int64_t rows)
{
    return check_segments(dev, op, arg, s, rows, false);
}

invar_status invar_check_indices(const invar_device *dev, invar_op op, const char *arg,
                                 const invar_tensor *t, int64_t bound)
{
    int64_t per_row = invar_tensor_row_elements(t);

    if (invar_device_unreadable(dev))
        return INVAR_OK;
    for (int64_t i = 0; i < t->shape[0] && per_row > 0; i++) {
        const int32_t *row = (const int32_t *)t->data + i * t->row_stride;
        for (int64_t j = 0; j < per_row; j++)
            if (row[j] < 0 || row[j] >= bound)
                return INVAR_REJECT(
                    op, "%s: value %" PRId32 " in row %" PRId64 "; expected 0 to %" PRId64, arg,
                    row[j], i, bound - 1);
    }
    return INVAR_OK;
}

invar_status invar_check_permutation(const invar_device *dev, invar_op op, const char *arg,
                                     const invar_tensor *t, uint8_t *seen)
{
    int64_t per_row = invar_tensor_row_elements(t), n = t->shape[0] * per_row;

    INVAR_TRY(invar_check_indices(dev, op, arg, t, n));
    for (int64_t i = 0; i < n; i++)
        seen[i] = 0;
    // n values in range, none of them twice: each occurs once
    for (int64_t i = 0; i < n; i++) {
        int32_t value = ((const int32_t *)t->data)[i / per_row * t->row_stride + i % per_row];
        if (seen[value])
            return INVAR_REJECT(op,
                                "%s: value %" PRId32 " again in row %" PRId64
                                "; expected each of 0 to %" PRId64 " once",
                                arg, value, i / per_row, n - 1);
        seen[value] = 1;
    }
    return INVAR_OK;
}

/* ---- overlap --------------------------------------------------------------------------------- */

/* A memory region: `row` bytes every `stride` bytes, from begin to end. */
typedef struct region {
    uintptr_t begin;
    uintptr_t end;
    uintptr_t row;
    uintptr_t stride;
} region;

static region make_region(const void *data, int64_t rows, size_t row, size_t stride)
{
    region r = {(uintptr_t)data, (uintptr_t)data, row, stride};

    if (rows > 0 && row > 0)
        r.end += (uintptr_t)(rows - 1) * stride + row;
    return r;
}

static region data_region(const invar_tensor *t)
{
    int64_t bits = invar_dtype_bits(t->dtype);

    return make_region(t->data, t->shape[0], (size_t)(invar_tensor_row_elements(t) * bits / 8),
                       (size_t)(t->row_stride * bits / 8));
}

static region scale_region(const invar_tensor *t)
{
    size_t bytes = invar_tensor_scale_bytes(t);

    return make_region(t->scale, 1, bytes, bytes);
}

static bool regions_overlap(region a, region b)
{
    uintptr_t shift;

    if (a.begin == a.end || b.begin == b.end || a.end <= b.begin || b.end <= a.begin)
        return false;
    if (a.stride != b.stride)
        return true;
    // where b's rows begin, relative to the row of a before them
    shift = b.begin >= a.begin ? (b.begin - a.begin) % a.stride
                               : a.stride - 1 - (a.begin - b.begin - 1) % a.stride;
    return shift < a.row || shift + b.row > a.stride;
}

/* The memory of one field of the arguments. */
typedef struct field_memory {
    const char *name;
    const invar_field *field;
    const invar_tensor *tensor; /* NULL for an array */
    region data, scale;
} field_memory;

static void set_tensor_memory(field_memory *out, const char *name, const invar_field *field,
                              const invar_tensor *tensor)
{
    out->name = name;
    out->field = field;
    out->tensor = tensor;
    out->data = data_region(tensor);
    out->scale = tensor->scale ? scale_region(tensor) : (region){0};
}

static bool fields_overlap(const field_memory *a, const field_memory *b)
{
    return regions_overlap(a->data, b->data) || regions_overlap(a->data, b->scale) ||
           regions_overlap(a->scale, b->data) || regions_overlap(a->scale, b->scale);
}

static invar_status check_no_overlap(invar_op op, const field_memory *a, const field_memory *b)
{
    if (fields_overlap(a, b))
        return INVAR_REJECT(op, "%s and %s overlap in memory", a->name, b->name);
    return INVAR_OK;
}

/* A vector has no stride that could differ. */
static bool is_in_place(const invar_tensor *a, const invar_tensor *b)
{
    return a && b && a->dtype == b->dtype && a->data == b->data &&
           (a->rank == 1 || a->row_stride == b->row_stride);
}

static bool may_share_memory(const invar_field *output, const invar_field *other)
{
    for (int i = 0; output->may_alias[i]; i++)
        if (output->may_alias[i] - 1 == other->offset)
            return true;
    return false;
}

/* Checks each tensor of a list against an output. */
static invar_status check_list(invar_op op, const field_memory *output, const invar_field *f,
                               const void *args)
{
    const invar_tensor *list = *(const invar_tensor *const *)invar_field_in(f, args);

    for (int64_t i = 0; i < invar_field_count(f, args); i++) {
        field_memory other;
        char name[48];
        set_tensor_memory(&other, name, f, &list[i]);
        if (fields_overlap(output, &other)) {
            (void)snprintf(name, sizeof name, "%s[%" PRId64 "]", f->name, i);
            return check_no_overlap(op, output, &other);
        }
    }
    return INVAR_OK;
}

#define MAX_FIELDS 32

/*
 * Finds the memory of all fields; for lists of tensors only the field. Returns the number of
 * fields.
 */
static int list_field_memory(field_memory *out, invar_op op, const void *args)
{
    int count, n = 0;
    const invar_field *fields = invar_op_fields(&count, op);

    INVAR_CHECK(count <= MAX_FIELDS);
    for (int i = 0; i < count; i++) {
        const invar_field *f = &fields[i];
        invar_tensor array;
        if (f->kind > INVAR_FIELD_TENSORS || !invar_field_present(f, args))
            continue;
        if (f->kind == INVAR_FIELD_TENSOR) {
            set_tensor_memory(&out[n++], f->name, f, invar_field_in(f, args));
            continue;
        }
        out[n] = (field_memory){.name = f->name, .field = f};
        if (f->kind != INVAR_FIELD_TENSORS) {
            array = invar_field_memory(f, args);
            out[n].data = data_region(&array);
        }
        n++;
    }
    return n;
}

invar_status invar_check_memory(invar_op op, const void *args)
{
    field_memory places[MAX_FIELDS];
    int count = list_field_memory(places, op, args);

    for (int i = 0; i < count && places[i].field->role != INVAR_FIELD_IN; i++)
        for (int j = i + 1; j < count; j++) {
            const field_memory *output = &places[i], *other = &places[j];
            if (other->field->kind == INVAR_FIELD_TENSORS)
                INVAR_TRY(check_list(op, output, other->field, args));
            else if (!may_share_memory(output->field, other->field) ||
                     !is_in_place(output->tensor, other->tensor))
                INVAR_TRY(check_no_overlap(op, output, other));
        }
    return INVAR_OK;
}

/* ---- numbers --------------------------------------------------------------------------------- */

invar_status invar_check_range(invar_op op, const char *arg, double value, double low, double high)
{
    if (!(value >= low && value <= high))
        return INVAR_REJECT(op, "%s: %g; expected %g to %g", arg, value, low, high);
    return INVAR_OK;
}

invar_status invar_check_shards(invar_op op, const char *arg, int64_t shards, int64_t most)
{
    if (shards < 1 || shards > most || (shards & (shards - 1)) != 0)
        return INVAR_REJECT(op, "%s: %" PRId64 " shards; expected a power of two up to %" PRId64,
                            arg, shards, most);
    return INVAR_OK;
}

invar_status invar_check_head_shards(invar_op op, int32_t shards, int64_t atom)
{
    if (shards == 0)
        return INVAR_OK;
    INVAR_TRY(invar_check_shards(op, "head_shards", shards, INVAR_LINEAR_MAX_SHARDS));
    if (shards > 1 && atom < 1)
        return INVAR_REJECT(op, "head_atom: %" PRId64 " heads; expected some", atom);
    return INVAR_OK;
}
