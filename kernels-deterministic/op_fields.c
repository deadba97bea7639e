/*
 * op_fields.c - builds the tables of op_fields.def and reads fields of a call.
 *
 * The macros of this file turn the list into one constant array per op. A call may be read before
 * the check of the op has accepted it, so counts may be any number: sums and products saturate
 * instead of overflowing.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "kernels-deterministic/op_fields.h"

#include <string.h>

#include "base/invar_banned.h"

#define AT(name) (uint16_t) offsetof(args_of, name)
#define SIZE(name) (uint16_t)sizeof(((const args_of *)0)->name)

#define ALWAYS .optional = false
#define FUSED .optional = true, .fused = true
#define MAYBE(why) .optional = true, .not_fused_reason = (why)
#define AMONG(count, i, presence) .array_count_offset = AT(count), .index = (i), presence
#define OR(name) AT(name) + 1,
#define DEVICE false
#define HOST true
#define ONE .count_at = 0
#define COUNT(name, n) .count_at = AT(name), .extra_elements = (n)

/* The kind of a number; enums are 32-bit integers. */
#define NUMBER_KIND(label)                                                                         \
    _Generic(((const args_of *)0)->label, int64_t                                                  \
             : INVAR_FIELD_I64, float                                                              \
             : INVAR_FIELD_F32, double                                                             \
             : INVAR_FIELD_F64, default                                                            \
             : INVAR_FIELD_I32)

#define FIELD(label, KIND, ROLE, ...)                                                              \
    {.name = #label,                                                                               \
     .kind = (KIND),                                                                               \
     .role = INVAR_FIELD_##ROLE,                                                                   \
     .bytes = SIZE(label),                                                                         \
     .offset = AT(label),                                                                          \
     __VA_ARGS__},

/* One function per op, so that `args_of` can name its struct. */
#define BEGIN(fn)                                                                                  \
    static const invar_field *fields_of_##fn(int *count_out)                                       \
    {                                                                                              \
        typedef invar_##fn##_args args_of;                                                         \
        static const invar_field fields[] = {
#define END                                                                                        \
    }                                                                                              \
    ;                                                                                              \
    *count_out = (int)(sizeof fields / sizeof *fields);                                            \
    return fields;                                                                                 \
    }
#define TENSOR(label, ROLE, presence, others)                                                      \
    FIELD(label, INVAR_FIELD_TENSOR, ROLE, .may_alias = {others 0}, presence)
#define SEGMENTS(label) FIELD(label, INVAR_FIELD_SEGMENTS, IN, )
#define ARRAY(label, type, ROLE, presence, place, count)                                           \
    FIELD(label, INVAR_FIELD_ARRAY, ROLE, .host = (place), .element = SIZE(label[0]), presence,    \
          count)
#define TENSORS(label, ROLE, count)                                                                \
    FIELD(label, INVAR_FIELD_TENSORS, ROLE, .host = true, .element = SIZE(label[0]), count)
#define NUMBER(label, type) FIELD(label, NUMBER_KIND(label), IN, )
#define NUMBER_AMONG(label, type, count, i)                                                        \
    FIELD(label, NUMBER_KIND(label), IN, AMONG(count, i, ALWAYS))
#define GROUP(member, ...) __VA_ARGS__
#define REST(...) __VA_ARGS__
#define LIKE(fn, other, fields) BEGIN(fn) fields END
#include "kernels-deterministic/op_fields.def"

static const invar_field *(*const field_lists[INVAR_OP_COUNT])(int *count_out) = {
#define INVAR_OP(ID, fn, name, revision, numerics) [INVAR_OP_##ID] = fields_of_##fn,
#include "kernels-deterministic/ops.def"
#undef INVAR_OP
};

const invar_field *invar_op_fields(int *count_out, invar_op op)
{
    return field_lists[op](count_out);
}

/* a + b, or INT64_MAX if that overflows. */
static int64_t saturating_sum(int64_t a, int64_t b)
{
    int64_t out;

    return __builtin_add_overflow(a, b, &out) ? INT64_MAX : out;
}

/* a * b, limited so that the product times the size of an i64 does not overflow. */
static int64_t saturating_product(int64_t a, int64_t b)
{
    const int64_t most = INT64_MAX / (int64_t)sizeof(int64_t);
    int64_t out;

    return __builtin_mul_overflow(a, b, &out) || out > most ? most : out;
}

static int64_t i64_at(const void *args, uint16_t offset)
{
    int64_t value;

    memcpy(&value, (const char *)args + offset, sizeof value);
    return value;
}

int64_t invar_field_count(const invar_field *field, const void *args)
{
    return field->count_at ? saturating_sum(i64_at(args, field->count_at), field->extra_elements)
                           : 1;
}

bool invar_field_present(const invar_field *field, const void *args)
{
    const void *in = invar_field_in(field, args);
    int32_t among;

    if (field->array_count_offset) {
        memcpy(&among, (const char *)args + field->array_count_offset, sizeof among);
        if (field->index >= among)
            return false;
    }
    switch (field->kind) {
    case INVAR_FIELD_TENSOR: return invar_tensor_present(in);
    case INVAR_FIELD_SEGMENTS: return ((const invar_row_offsets *)in)->offsets != NULL;
    case INVAR_FIELD_ARRAY:
    case INVAR_FIELD_TENSORS: return *(const void *const *)in != NULL;
    default: return true;
    }
}

/* Returns an array as a vector of i32; the size of every element is a multiple of 4. */
static invar_tensor vector_of_words(const void *data, int64_t count, size_t element)
{
    return invar_tensor_1d((void *)(uintptr_t)data, INVAR_DTYPE_I32,
                           saturating_product(count, (int64_t)(element / sizeof(int32_t))));
}

invar_tensor invar_field_memory(const invar_field *field, const void *args)
{
    const void *in = invar_field_in(field, args);
    const invar_row_offsets *segments = in;

    switch (field->kind) {
    case INVAR_FIELD_TENSOR: return *(const invar_tensor *)in;
    case INVAR_FIELD_SEGMENTS:
        return vector_of_words(segments->offsets, saturating_sum(segments->count, 1),
                               sizeof *segments->offsets);
    default: break;
    }
    INVAR_CHECK(field->kind == INVAR_FIELD_ARRAY);
    return vector_of_words(*(const void *const *)in, invar_field_count(field, args),
                           field->element);
}
