/*
 * safetensors.h - tensors in files: strict reading, byte-stable writing.
 *
 * The format: le64 length of the header; the header, JSON that names each tensor's type, shape and
 * place; the data, without holes. Reading keeps the header in memory and takes data from the file
 * when asked, so a file that is damaged or shrinks is an error and never a fault. Every error names
 * file and tensor; INVAR_E_CORRUPT is what the format forbids.
 *
 * Writing streams: the tensors are announced first, their data follow in that order. Equal calls
 * give equal files. The file has its name only when it is whole and synced.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_FILES_SAFETENSORS_H
#define INVAR_ENGINE_FILES_SAFETENSORS_H

#include <stddef.h>
#include <stdint.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

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

/* "BF16"; the bytes of one element. */
const char *invar_safetensors_type_name(invar_safetensors_type type);
size_t invar_safetensors_type_bytes(invar_safetensors_type type);

#define INVAR_SAFETENSORS_MAX_RANK 8

typedef struct invar_safetensor {
    const char *name; /* of any length; of a reader: borrowed from it */
    invar_safetensors_type type;
    int32_t rank; /* 0: one element */
    int64_t shape[INVAR_SAFETENSORS_MAX_RANK];
    /* Set by the reader; a writer computes them. */
    int64_t elements;
    uint64_t offset; /* in the file */
} invar_safetensor;

/* ---- reading --------------------------------------------------------------------------------- */

typedef struct invar_safetensors invar_safetensors;

invar_status invar_safetensors_open(invar_safetensors **out, const char *path) INVAR_MUST_USE;
void invar_safetensors_close(invar_safetensors *file);

/* In the order of their data. Borrowed until _close. */
int64_t invar_safetensors_count(const invar_safetensors *file);
const invar_safetensor *invar_safetensors_at(const invar_safetensors *file, int64_t i);

/* NULL when there is none of that name. */
const invar_safetensor *invar_safetensors_find(const invar_safetensors *file, const char *name);

/* A string of __metadata__; NULL when there is none. Borrowed until _close. */
const char *invar_safetensors_metadata(const invar_safetensors *file, const char *key);

/* INVAR_E_CORRUPT, with both in the message, unless type and shape are these. */
invar_status invar_safetensors_expect(const invar_safetensors *file, const invar_safetensor *tensor,
                                      invar_safetensors_type type, int32_t rank,
                                      const int64_t *shape) INVAR_MUST_USE;

/* Elements [first, first + count), as they are in the file (little-endian). */
invar_status invar_safetensors_read(void *out, const invar_safetensors *file,
                                    const invar_safetensor *tensor, int64_t first,
                                    int64_t count) INVAR_MUST_USE;

/* The same as f32, exactly: of F32, BF16 and F16 only, else INVAR_E_UNSUPPORTED. */
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
 * Writes the header. The order of tensors and of metadata is the given one. Refuses names that are
 * not UTF-8 or come twice, and a tensor that would not be aligned to its element (put wider types
 * first). `tensors` and what it points to stay until _close.
 */
invar_status invar_safetensors_create(invar_safetensors_writer **out, const char *path,
                                      const invar_safetensor *tensors, int64_t count,
                                      const invar_safetensors_pair *metadata,
                                      int64_t n_metadata) INVAR_MUST_USE;

/* Bytes of the file that _create, with the same arguments, begins; it fails as that does. */
invar_status invar_safetensors_measure(int64_t *bytes_out, const invar_safetensor *tensors,
                                       int64_t count, const invar_safetensors_pair *metadata,
                                       int64_t n_metadata) INVAR_MUST_USE;

/* The next `count` elements of the current tensor, never beyond its end; then comes the next. */
invar_status invar_safetensors_write(invar_safetensors_writer *writer, const void *data,
                                     int64_t count) INVAR_MUST_USE;

/* The same from f32 into a tensor of F32, or of BF16, rounded to nearest even. */
invar_status invar_safetensors_put_f32(invar_safetensors_writer *writer, const float *data,
                                       int64_t count) INVAR_MUST_USE;

/* When all data are there: sync, and the file's name. Afterwards there is only _close. */
invar_status invar_safetensors_commit(invar_safetensors_writer *writer) INVAR_MUST_USE;

/* Without a commit nothing is left behind. NULL is allowed. */
void invar_safetensors_writer_close(invar_safetensors_writer *writer);

#ifdef __cplusplus
}
#endif
#endif
