/*
 * dump.h - writes selected tensors of a step as .npy files.
 *
 * FOLDER/POINT.npy has format version 1.0, C order, little-endian: f32 as <f4, bf16 widened to <f4
 * (the same values), i32 and i64 as <i4 and <i8. Rows of samples are concatenated;
 * FOLDER/POINT.starts.npy (<i8) has the first row of each sample, then the number of rows.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_PROBE_DUMP_H
#define INVAR_ENGINE_MODEL_PROBE_DUMP_H

#include "engine/model/probe/rank_buffer.h"
#include "kernels-deterministic/ops.h"

typedef struct invar_dump invar_dump;

/*
 * Creates a dump. `points` is a comma-separated list of names in which * stands for any characters:
 * "logits,layer.0.*". The folder is created; files of other dumps stay. If `folder` is NULL,
 * another rank writes the files, and rows of samples are kept for invar_dump_pack.
 */
invar_status invar_dump_new(invar_dump **out, const char *folder,
                            const char *points) INVAR_MUST_USE;
void invar_dump_free(invar_dump *dump); /* `dump` may be NULL; incomplete files keep their
                                           temporary names */

/*
 * Returns true if `text` matches the pattern of `length` bytes, in which * stands for any
 * characters.
 */
bool invar_dump_matches(const char *pattern, size_t length, const char *text);

bool invar_dump_wants(const invar_dump *dump, const char *point);

/* Adds rows to a point. `samples` is NULL for a complete tensor, which has no starts. */
invar_status invar_dump_rows(invar_dump *dump, const char *point, const invar_tensor *tensor,
                             const invar_row_offsets *samples) INVAR_MUST_USE;

/*
 * Pack appends the rows kept since the last pack; unpack adds those of another rank after the
 * dump's own.
 */
invar_status invar_dump_pack(invar_rank_buffer *to, invar_dump *dump) INVAR_MUST_USE;
invar_status invar_dump_unpack(invar_dump *dump, invar_rank_buffer_reader *from) INVAR_MUST_USE;

/* Completes the files; *count_out = number of points written. The dump is empty afterwards. */
invar_status invar_dump_finish(int64_t *count_out, invar_dump *dump) INVAR_MUST_USE;

#endif
