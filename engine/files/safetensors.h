/*
 * safetensors.h - safetensors files: strict reader and byte-stable writer.
 *
 * File format: le64 length of the header; the header, JSON that names type, shape and offsets of
 * each tensor; the data, without holes. The reader keeps the header in memory and reads data with
 * pread, so a file that is damaged or shrinks causes an error and never a fault. Every error names
 * file and tensor; violations of the format are INVAR_E_CORRUPT.
 *
 * The writer streams: tensors are declared first, their data follow in that order. Equal calls give
 * equal files. The file gets its name only when it is complete and synced.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_FILES_SAFETENSORS_H
#define INVAR_ENGINE_FILES_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

typedef enum invar_safetensors_type {
    INVAR_SAFETENSORS_F32,
    INVAR_SAFETENSORS_BF16,
    INVAR_SAFETENSORS_F16,
    INVAR_SAFETENSORS_F64,
    INVAR_SAFETENSORS_I64,
    INVAR_SAFETENSORS_I32,
    INVAR_SAFETENSORS_I16,
    INVAR_SAFETENSORS_I8,
    INVAR_SAFETENSORS_U64,
    INVAR_SAFETENSORS_U32,
    INVAR_SAFETENSORS_U16,
    INVAR_SAFETENSORS_U8,
    INVAR_SAFETENSORS_BOOL,
    INVAR_SAFETENSORS_TYPE_COUNT
} invar_safetensors_type;

/* Name of a type ("BF16"), and bytes of one element. */
const char *invar_safetensors_type_name(invar_safetensors_type type);
size_t invar_safetensors_type_bytes(invar_safetensors_type type);

#define INVAR_SAFETENSORS_MAX_RANK 8

typedef struct invar_safetensor {
    const char *name; /* any length; borrowed from the reader */
    invar_safetensors_type type;
    int32_t rank; /* 0 for a scalar */
    int64_t shape[INVAR_SAFETENSORS_MAX_RANK];
    /* set by the reader, ignored by the writer */
    int64_t elements;
    uint64_t offset; /* offset of the data in the file */
} invar_safetensor;

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct invar_safetensors invar_safetensors;

/*
 * Opens a file and checks its header. Close with invar_safetensors_close, or declare the variable
 * with INVAR_AUTO(invar_safetensors_release).
 */
invar_status invar_safetensors_open(invar_safetensors **out, const char *path) INVAR_MUST_USE;
void invar_safetensors_close(invar_safetensors *file);
void invar_safetensors_release(invar_safetensors **file);

/* Tensors in the order of their data; borrowed until the file is closed. */
int64_t invar_safetensors_count(const invar_safetensors *file);
const invar_safetensor *invar_safetensors_at(const invar_safetensors *file, int64_t i);

/* Returns the tensor with this name; NULL if it does not exist. */
const invar_safetensor *invar_safetensors_find(const invar_safetensors *file, const char *name);

/* Returns INVAR_E_CORRUPT, with both in the message, unless the tensor has this type and shape. */
invar_status invar_safetensors_expect(const invar_safetensors *file, const invar_safetensor *tensor,
                                      invar_safetensors_type type, int32_t rank,
                                      const int64_t *shape) INVAR_MUST_USE;

/* Reads elements [first, first + count) as they are in the file (little-endian). */
invar_status invar_safetensors_read(void *out, const invar_safetensors *file,
                                    const invar_safetensor *tensor, int64_t first,
                                    int64_t count) INVAR_MUST_USE;

/*
 * Like invar_safetensors_read, converted exactly to f32. Returns INVAR_E_UNSUPPORTED for types
 * other than F32, BF16 and F16.
 */
invar_status invar_safetensors_read_f32(float *out, const invar_safetensors *file,
                                        const invar_safetensor *tensor, int64_t first,
                                        int64_t count) INVAR_MUST_USE;

/* ---- writing --------------------------------------------------------------------------------- */

typedef struct invar_safetensors_pair {
    const char *key;
    const char *value;
} invar_safetensors_pair;

typedef struct invar_safetensors_writer invar_safetensors_writer;

/*
 * Creates a file and writes its header, with tensors and metadata in the given order. Rejects names
 * that are not UTF-8 or not unique, and a tensor that would not be aligned to its element (list
 * wider types first). `tensors` and the names are borrowed until the writer is closed.
 */
invar_status invar_safetensors_create(invar_safetensors_writer **out, const char *path,
                                      const invar_safetensor *tensors, int64_t count,
                                      const invar_safetensors_pair *metadata,
                                      int64_t n_metadata) INVAR_MUST_USE;

/*
 * Computes the size of the file that invar_safetensors_create would begin with the same arguments;
 * fails like it.
 */
invar_status invar_safetensors_measure(int64_t *bytes_out, const invar_safetensor *tensors,
                                       int64_t count, const invar_safetensors_pair *metadata,
                                       int64_t n_metadata) INVAR_MUST_USE;

/*
 * Writes the next `count` elements of the current tensor; more than it has left are an error. After
 * its last element the next tensor becomes current.
 */
invar_status invar_safetensors_write(invar_safetensors_writer *writer, const void *data,
                                     int64_t count) INVAR_MUST_USE;

/*
 * Like invar_safetensors_write, from f32 to a tensor of F32, or of BF16 with rounding to nearest
 * even.
 */
invar_status invar_safetensors_write_f32(invar_safetensors_writer *writer, const float *data,
                                         int64_t count) INVAR_MUST_USE;

/* Syncs the file and gives it its name, after all data were written. Only close may follow. */
invar_status invar_safetensors_commit(invar_safetensors_writer *writer) INVAR_MUST_USE;

/*
 * Closes a writer; without a commit the file is removed. `writer` may be NULL. The second form is
 * for INVAR_AUTO.
 */
void invar_safetensors_writer_close(invar_safetensors_writer *writer);
void invar_safetensors_writer_release(invar_safetensors_writer **writer);

#endif
