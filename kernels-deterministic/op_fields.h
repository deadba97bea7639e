/*
 * op_fields.h - the arguments of every op as data: which field is where, and what the op does with
 * it.
 *
 * Whoever handles calls without knowing their op reads this: checks of memory, watching, planning,
 * backends that copy. The table is op_fields.def; a field that is not in it fails a test.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_OP_FIELDS_H
#define INVAR_KERNELS_OP_FIELDS_H

#include "kernels-deterministic/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum invar_field_kind {
    INVAR_FIELD_TENSOR,   /* an invar_tensor: its data and its scale */
    INVAR_FIELD_SEGMENTS, /* an invar_row_offsets: its boundaries */
    INVAR_FIELD_ARRAY,    /* a pointer to elements */
    INVAR_FIELD_TENSORS,  /* a pointer to a list of tensors; the list is in the host's memory */
    INVAR_FIELD_I32,      /* numbers, from here on */
    INVAR_FIELD_I64,
    INVAR_FIELD_F32,
    INVAR_FIELD_F64
} invar_field_kind;

typedef enum invar_field_role {
    INVAR_FIELD_IN,     /* read */
    INVAR_FIELD_OUT,    /* written, and not read before */
    INVAR_FIELD_UPDATE, /* what is there before matters: sums, moments, caches */
} invar_field_role;

#define INVAR_FIELD_MAX_ALIASES 3

typedef struct invar_field {
    const char *name; /* as in C: "parts[0].dy" */
    invar_field_kind kind;
    invar_field_role role;
    bool optional;
    bool fused; /* optional, and makes the call one that has parts (fused_parts.h) */
    const char *not_fused_reason; /* of any other optional field: why not */
    bool host;                    /* an array in the host's memory, whatever the backend */
    uint16_t bytes;               /* of the field, in the struct */
    uint16_t offset;
    /* Present where `index` is less than the i32 at `among`; 0: always, or as the field says. */
    uint16_t array_count_offset, index;
    /* An output may be the field at other[i] - 1: the same memory. 0: no more of them. */
    uint16_t may_alias[INVAR_FIELD_MAX_ALIASES + 1];
    uint16_t element;        /* bytes of one, of an array */
    uint16_t count_at;       /* where the i64 is that counts them; 0: there is one */
    uint16_t extra_elements; /* so many more than that */
} invar_field;

/* The fields of an op's arguments, outputs first; *count_out of them. */
const invar_field *invar_op_fields(int *count_out, invar_op op);

/* Whether the arguments have the field: an optional one may be absent. */
bool invar_field_present(const invar_field *field, const void *args);

/* Elements of an array or a list. */
int64_t invar_field_count(const invar_field *field, const void *args);

/* The field itself, in the arguments. */
static inline const void *invar_field_in(const invar_field *field, const void *args)
{
    return (const char *)args + field->offset;
}

/*
 * The memory that a field leads to, of a tensor, an array or segments: an array and the boundaries
 * of segments are a vector of i32.
 */
invar_tensor invar_field_memory(const invar_field *field, const void *args);

#ifdef __cplusplus
}
#endif
#endif
