/*
 * rollout_points.h - digests of a rollout's activations, as one hash chain per sequence and point.
 *
 * The rows of a rollout come pass by pass: single rows, prefill chunks, rows of a prompt that
 * several samples share. The rows of one sequence, however, come in the order of their positions.
 * Each sequence therefore has its own chain for a point (docs/arithmetic.md, section 10):
 *
 *     row      its leaf digests, as op hash.leaves computes them with one row per range
 *     chain    16 zero bytes at first; XXH3-128(chain || leaf) for every leaf
 *     point    XXH3-128(the chains of the requested sequences, in order)
 *
 * The chain of a sequence depends on its own rows only, not on scheduling. Rows are hashed on the
 * device by ops that a CUDA graph cache may hold back; only digests are downloaded, once per pass.
 *
 *     invar_rollout_points_begin(s);                        per rollout
 *     invar_rollout_points_on_value(s, &value);             hook, with the samples of each row
 *     invar_rollout_points_flush(s);                        per pass: downloads the digests
 *     invar_rollout_points_emit(s, &namer, draws, count);   points of some sequences, to a probe
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_PROBE_ROLLOUT_POINTS_H
#define INVAR_ENGINE_MODEL_PROBE_ROLLOUT_POINTS_H

#include "engine/model/probe/point_names.h"

typedef struct invar_rollout_points invar_rollout_points;

/* `options` must be those of the probe that receives the points. */
invar_status invar_rollout_points_new(invar_rollout_points **out,
                                      const invar_probe_options *options) INVAR_MUST_USE;
void invar_rollout_points_free(invar_rollout_points *points);

/* Starts a rollout: discards all chains and statistics. */
void invar_rollout_points_begin(invar_rollout_points *points);

/*
 * Hook for invar_forward_hooks; `sequences`, the payload, is an invar_rollout_points, also in
 * invar_rollout_points_flush. The draw numbers of a value's owners identify the sequences; the
 * owners must stay in place until the next flush. Points above the level are skipped unless
 * statistics are on.
 */
invar_status invar_rollout_points_on_value(void *sequences,
                                           const invar_observed_value *value) INVAR_MUST_USE;

/* Downloads the digests of the rows since the last flush and adds them to their chains. */
invar_status invar_rollout_points_flush(void *sequences) INVAR_MUST_USE;

/* Returns true if there are points to emit. */
bool invar_rollout_points_any(const invar_rollout_points *points);

/*
 * Defines the points with names of `namer` and sets their values to those of the sequences with the
 * draw numbers draw_indexes[0 .. count), in this order.
 */
invar_status invar_rollout_points_emit(invar_rollout_points *points, const invar_point_namer *namer,
                                       const uint32_t *draw_indexes, int64_t count) INVAR_MUST_USE;

/*
 * Pack appends all points of this rank, with the chains of its sequences up to the level; unpack
 * adds those of another rank. Points of another pipeline stage are inserted in the order of layers.
 */
invar_status invar_rollout_points_pack(invar_rank_buffer *to,
                                       const invar_rollout_points *points) INVAR_MUST_USE;
invar_status invar_rollout_points_unpack(invar_rollout_points *points,
                                         invar_rank_buffer_reader *from) INVAR_MUST_USE;

/*
 * Returns the first value, in order, that was not finite in some row of this rank, and its
 * statistics; NULL if all are finite or statistics are off. Borrowed until the next call.
 */
const invar_point_def *invar_rollout_points_first_nonfinite(invar_ledger_stat *out,
                                                            const invar_rollout_points *points);

#endif
