/*
 * head.h - internals of the head: chunks of rows, host lists, op graph. Private to engine/model.
 *
 * Order of use: list the rows (chunks.c), build and plan the graph (graph.c), upload the lists and
 * run (head.c).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_HEAD_HEAD_H
#define INVAR_ENGINE_MODEL_HEAD_HEAD_H

#include "engine/model/pass.h"

/* ---- chunks.c -------------------------------------------------------------------------------- */

/* A head chunk: rows [first, first + rows) of the head, the complete units [unit, unit + units). */
typedef struct invar_head_chunk {
    int64_t number; /* index of the chunk */
    int64_t first, rows, unit, units;
    bool shared;                  /* context-parallel ranks divide the rows of the chunk */
    invar_index_range local_rows; /* this rank's rows, relative to `first` */
} invar_head_chunk;

/*
 * Advances to the next chunk; from a zeroed struct to the first. A chunk has as many complete units
 * as options.head_rows allows, at least one. Returns false after the last.
 */
bool invar_head_next_chunk(invar_head_chunk *p, const invar_pass *pass);

int64_t invar_head_count_chunks(const invar_pass *pass);

/* Largest number of rows of logits that a rank has at a time. */
int64_t invar_head_max_chunk_rows(const invar_pass *pass);

/* Index of the first unit offset of the chunk in invar_head_arrays.parts. */
int64_t invar_head_part_at(const invar_head_chunk *p);

/* Returns true if context-parallel ranks divide the rows. */
bool invar_head_divides_rows(const invar_pass *pass);

/* Range of this rank's rows among the selected ones. */
invar_index_range invar_head_chosen_rows(const invar_pass *pass);

/* Computes the host lists of pass->head; *parts_out = number of unit offsets in arrays.parts. */
invar_status invar_head_list_rows(int64_t *parts_out, invar_pass *pass) INVAR_MUST_USE;

/* Sets arrays.device_offsets. Call after the lists have been uploaded. */
void invar_head_set_device_offsets(invar_pass *pass);

/*
 * Sets arrays.row_to_selected: the index of each of this rank's rows among the selected ones; the
 * zero row if it is not selected.
 */
void invar_head_set_row_to_selected(invar_pass *pass);

/* ---- graph.c --------------------------------------------------------------------------------- */

/* Points of the gradients that the loss supplies. */
extern const invar_graph_point invar_head_dlogp, invar_head_dentropy;

/*
 * Builds and plans the op graph of the head. Section 0 is the forward to log-probs or, with
 * `values`, to logits. Section 1 exists with options.train and is the backward; before it the host
 * must write the zero row and, with `values`, d_logits.
 */
invar_status invar_head_build(invar_pass *pass, bool values, bool entropy) INVAR_MUST_USE;

#endif
