/*
 * rollout_points.h - points of sequences that grow row by row, in any company.
 *
 * The rows of a rollout come pass by pass: a row here, a chunk there, those of a shared prompt once
 * for several samples. But the rows of one sequence come in the order of their positions. So every
 * sequence has a chain of its own for a point (docs/arithmetic.md, section 10):
 *     a row     its leaf digests, as the op hash.leaves has them with one row a segment
 *     a chain   16 zero bytes at first; XXH3-128(chain || leaf) for every leaf
 *     a point   XXH3-128(the chains of the sequences that are asked for, in order)
 * A sequence's chain depends on its own rows alone. Rows are hashed where they are, by ops that a
 * tape may hold back; only digests are read, once a pass.
 *
 *     invar_rollout_points_begin(s);                            per rollout
 *  invar_rollout_points_on_value(s, &value);             what ops compute, with the rows' owners
 *     invar_rollout_points_flush(s);                           per pass: digests are read
 *  invar_rollout_points_emit(s, &view, numbers, count);  the points of some sequences, to a probe
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_PROBE_ROLLOUT_POINTS_H
#define INVAR_ENGINE_MODEL_PROBE_ROLLOUT_POINTS_H

#include "engine/model/probe/point_names.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_rollout_points invar_rollout_points;

/* `options` as of the probe that the points are given to. */
invar_status invar_rollout_points_new(invar_rollout_points **out,
                                      const invar_probe_options *options) INVAR_MUST_USE;
void invar_rollout_points_free(invar_rollout_points *sequences);

/* Nothing was taken yet. */
void invar_rollout_points_begin(invar_rollout_points *sequences);

/*
 * For invar_forward_hooks: `payload` is the object. The draws of a value's owners number the
 * sequences; owners stay where they are until the next settle. What is above the level is left out,
 * unless statistics are wanted.
 */
invar_status invar_rollout_points_on_value(void *sequences,
                                           const invar_observed_value *value) INVAR_MUST_USE;

/* The rows taken since the last time count for their owners. */
invar_status invar_rollout_points_flush(void *sequences) INVAR_MUST_USE;

/* True when there are points to give. */
bool invar_rollout_points_any(const invar_rollout_points *sequences);

/*
 * Defines the points, named as the view says, and gives them their values: those of sequences
 * numbers[0 .. count), in this order.
 */
invar_status invar_rollout_points_emit(invar_rollout_points *sequences,
                                       const invar_point_namer *view, const uint32_t *numbers,
                                       int64_t count) INVAR_MUST_USE;

/*
 * The sequences that this rank has followed, and those of another rank beside the own ones. Points
 * of another stage of a pipeline get their place in the order of layers.
 */
invar_status invar_rollout_points_pack(invar_rank_buffer *to,
                                       const invar_rollout_points *sequences) INVAR_MUST_USE;
invar_status invar_rollout_points_unpack(invar_rollout_points *sequences,
                                         invar_rank_buffer_reader *from) INVAR_MUST_USE;

/*
 * Where statistics are wanted: the first value, in order, with a number that is not finite, and its
 * statistics; NULL: none has one. Borrowed until the next call.
 */
const invar_point_def *invar_rollout_points_first_nonfinite(invar_ledger_stat *out,
                                                            const invar_rollout_points *sequences);

#ifdef __cplusplus
}
#endif
#endif
