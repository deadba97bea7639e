/*
 * op_fields.h - the argument structs of all ops as data: type, offset and use of each field.
 *
 * Code that handles calls without knowing their op reads this table: memory checks, probes,
 * planning and backends that copy. The fields are listed in op_fields.def.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_KERNELS_OP_FIELDS_H
#define INVAR_KERNELS_OP_FIELDS_H

#include "kernels-deterministic/ops.h"

typedef enum invar_field_kind {
    INVAR_FIELD_TENSOR,   /* an invar_tensor: data and scales */
    INVAR_FIELD_SEGMENTS, /* an invar_row_offsets: the offsets */
    INVAR_FIELD_ARRAY,    /* a pointer to an array */
    INVAR_FIELD_TENSORS,  /* a pointer to a list of tensors in host memory */
    INVAR_FIELD_I32,      /* numbers: this kind and the ones below */
    INVAR_FIELD_I64,
    INVAR_FIELD_F32,
    INVAR_FIELD_F64
} invar_field_kind;

typedef enum invar_field_role {
    INVAR_FIELD_IN,     /* read */
    INVAR_FIELD_OUT,    /* written, never read */
    INVAR_FIELD_UPDATE, /* the content before the call matters: sums, moments, caches */
} invar_field_role;

#define INVAR_FIELD_MAX_ALIASES 3

/* One field of an argument struct. */
typedef struct invar_field {
    const char *name; /* C name, "parts[0].dy" */
    invar_field_kind kind;
    invar_field_role role;
    bool optional;
    bool fused;                   /* optional; a call that has it is fused (fused_parts.h) */
    const char *not_fused_reason; /* other optional fields: why the field does not make a call
                                     fused; else NULL */
    bool host;                    /* array or list in host memory, for every backend */
    uint16_t bytes;               /* size of the field */
    uint16_t offset;              /* offset of the field in the struct */
    /* If array_count_offset is not 0, the field exists if `index` is below the i32 there. */
    uint16_t array_count_offset, index;
    /* Outputs: 1 + offset of each field whose memory this one may share; 0 ends the list. */
    uint16_t may_alias[INVAR_FIELD_MAX_ALIASES + 1];
    uint16_t element;        /* bytes of one array element */
    uint16_t count_at;       /* offset of the i64 element count; 0 for a single element */
    uint16_t extra_elements; /* elements beyond that count */
} invar_field;

/* Returns the fields of an op's arguments, outputs first; writes their number to *count_out. */
const invar_field *invar_op_fields(int *count_out, invar_op op);

/* Returns whether the arguments have the field: an optional field may be absent. */
bool invar_field_present(const invar_field *field, const void *args);

/* Returns the number of elements of an array or a list. */
int64_t invar_field_count(const invar_field *field, const void *args);

/* Returns a pointer to the field in the arguments. */
static inline const void *invar_field_in(const invar_field *field, const void *args)
{
    return (const char *)args + field->offset;
}

/*
 * Returns the memory of a tensor, array or row offsets field, but not of an INVAR_FIELD_TENSORS
 * field or a number. Arrays and row offsets are vectors of i32.
 */
invar_tensor invar_field_memory(const invar_field *field, const void *args);

#endif
