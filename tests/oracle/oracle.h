/*
 * oracle.h - reads the fixtures that tests/oracle/generate.py writes.
 *
 * A fixture file is little-endian and not trusted: whatever its bytes are, the reader returns a
 * status and never reads outside the file. Every part begins at a multiple of 8 bytes, after zeros.
 *
 *   magic "INVORA01" | u32 count | u32 length | origin, a text of that length and a zero
 *   `count` tensors in ascending order of their names:
 *   type, 4 characters | u32 rank, 0 to 4 | u32 length of the name | u32 zero | i64 extents |
 *   name and a zero | data, row-major
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_ORACLE_ORACLE_H
#define INVAR_TESTS_ORACLE_ORACLE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/status.h"
#include "kernels-deterministic/tensor.h"

typedef enum invar_oracle_type {
    INVAR_ORACLE_F32,
    INVAR_ORACLE_F64,
    INVAR_ORACLE_BF16,
    INVAR_ORACLE_I32,
    INVAR_ORACLE_I64,
    INVAR_ORACLE_U8,
    INVAR_ORACLE_TYPES
} invar_oracle_type;

typedef struct invar_oracle_tensor {
    const char *name;
    invar_oracle_type type;
    int32_t rank;
    int64_t shape[INVAR_MAX_RANK]; /* extents beyond the rank are 1 */
    int64_t count;                 /* number of elements */
    const void *data;              /* aligned to 8 bytes */
    bool used;                     /* invar_oracle_find has returned it */
} invar_oracle_tensor;

typedef struct invar_oracle {
    const char *origin; /* names the program and the seed that made the file */
    invar_oracle_tensor *tensors;
    uint32_t count;
    void *image; /* bytes of the file, owned; NULL after invar_oracle_parse */
} invar_oracle;

/* Reads a fixture file. The caller frees *out with invar_oracle_close. */
invar_status invar_oracle_open(invar_oracle **out, const char *path) INVAR_MUST_USE;

/* Like invar_oracle_open, for bytes in memory, aligned to 8. They must outlive the result. */
invar_status invar_oracle_parse(invar_oracle **out, const void *image, size_t size) INVAR_MUST_USE;

void invar_oracle_close(invar_oracle *oracle);

/* Returns the tensor and marks it as used; NULL if it does not exist. */
const invar_oracle_tensor *invar_oracle_find(const invar_oracle *oracle, const char *name);

/* Returns the bytes of one element. */
size_t invar_oracle_type_size(invar_oracle_type type);

#endif
