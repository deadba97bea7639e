/*
 * head.h - the inside of the head: its pieces of rows, its lists, its program.
 *
 * Only engine/model includes this. A head is run in this order: its rows are listed, its program is
 * built and placed, its lists are sent, and then it runs (head.c).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_HEAD_HEAD_H
#define INVAR_ENGINE_MODEL_HEAD_HEAD_H

#include "engine/model/pass.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * ---- chunks.c ----------------------------------------------------------------------------------
 */

/* Rows [first, first + rows) of the head: whole units [unit, unit + units). */
typedef struct invar_head_chunk {
    int64_t number; /* pieces before it */
    int64_t first, rows, unit, units;
    bool shared;                  /* context-parallel ranks have a share of its rows each */
    invar_index_range local_rows; /* this rank's, counted from the first */
} invar_head_chunk;

/*
 * Goes on to the next piece, from a zeroed one to the first: as many whole units as the limit
 * allows, at least one. False after the last.
 */
bool invar_head_next_piece(invar_head_chunk *p, const invar_pass *pass);

int64_t invar_head_count_pieces(const invar_pass *pass);

/* The most rows of logits that a rank has at a time. */
int64_t invar_head_largest_piece(const invar_pass *pass);

/* Where the units of a piece begin in the list of all pieces. */
int64_t invar_head_part_at(const invar_head_chunk *p);

/* Whether context-parallel ranks divide the rows. */
bool invar_head_divides_rows(const invar_pass *pass);

/* Of the chosen rows, this rank's. */
invar_index_range invar_head_chosen_rows(const invar_pass *pass);

/* Makes the lists of pass->head; `parts_out` is how many numbers say where units begin. */
invar_status invar_head_list_rows(int64_t *parts_out, invar_pass *pass) INVAR_MUST_USE;

/* Where ops read the lists of samples, once these have been sent. */
void invar_head_note_there(invar_pass *pass);

/* Where each of this rank's rows is among the chosen; the row of zeros for the others. */
void invar_head_note_way_back(invar_pass *pass);

/* ---- graph.c ------------------------------------------------------------------------------- */

/* The gradients that a loss hands in, as points. */
extern const invar_graph_point invar_head_dlogp, invar_head_dentropy;

/*
 * Segment 0: forward, to log-probabilities or to `values`, the logits. Segment 1, with a backward:
 * the row of zeros is there already, and of values d_logits.
 */
invar_status invar_head_build(invar_pass *pass, bool values, bool entropy) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
