/*
 * dump.h - chosen tensors of one step as files that numpy reads.
 *
 * FOLDER/POINT.npy, format version 1.0, C order, little-endian: f32 as <f4, bf16 widened to <f4
 * (the same values), i32 and i64 as <i4 and <i8, bytes as |u1. Rows of samples are one after
 * another; FOLDER/POINT.starts.npy (<i8) says at which row each sample begins, and the number of
 * rows at its end.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_PROBE_DUMP_H
#define INVAR_ENGINE_MODEL_PROBE_DUMP_H

#include "engine/model/probe/rank_buffer.h"
#include "kernels-deterministic/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_dump invar_dump;

/*
 * `points` is a list of names with commas between, in which * stands for any characters:
 * "logits,layer.0.*". The folder is made; what it holds of other dumps stays. NULL: another rank
 * has it, and rows of samples are kept for that one.
 */
invar_status invar_dump_new(invar_dump **out, const char *folder,
                            const char *points) INVAR_MUST_USE;
void invar_dump_free(invar_dump *dump); /* NULL is allowed; unfinished files stay unfinished */

/* True if `text` matches the pattern of `length` bytes, in which * stands for any characters. */
bool invar_dump_matches(const char *pattern, size_t length, const char *text);

bool invar_dump_wants(const invar_dump *dump, const char *point);

/* More rows of a point; `samples` NULL: a whole tensor, without starts. */
invar_status invar_dump_rows(invar_dump *dump, const char *point, const invar_tensor *tensor,
                             const invar_row_offsets *samples) INVAR_MUST_USE;
invar_status invar_dump_bytes(invar_dump *dump, const char *point, const void *data,
                              size_t bytes) INVAR_MUST_USE;

/* The rows that were kept since the last time; and those of another rank, behind the own ones. */
invar_status invar_dump_pack(invar_rank_buffer *to, invar_dump *dump) INVAR_MUST_USE;
invar_status invar_dump_unpack(invar_dump *dump, invar_rank_buffer_reader *from) INVAR_MUST_USE;

/*
 * Completes the files; *count_out is how many points were written. Another dump may follow in
 * another folder.
 */
invar_status invar_dump_finish(int64_t *count_out, invar_dump *dump) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
