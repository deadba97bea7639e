/*
 * probe.h - records named points of a step: tensors whose digests enter the ledger.
 *
 * The value of a point is the root of a tree hash (base/hash.h). Rows of activations come one
 * micro-batch at a time, with complete samples in order; every sample is a shard of the tree, so
 * the root does not depend on how samples are grouped into micro-batches. A complete tensor has the
 * number of shards that the point declares, as in the op hash.tree.
 *
 *     invar_probe_new(&probe, &(invar_probe_options){.level = INVAR_PROBE_POINT});
 *     invar_probe_begin(probe, NULL);                  per step
 *     invar_probe_define(&p, probe, &point);           the same point gets the same number again
 *     invar_probe_rows(probe, p, &tensor, &samples);   per micro-batch
 *     invar_probe_finish(&result, probe);              then ledger define (if changed) and append
 *
 * A point above the probe's level gets a negative number, which every function accepts and ignores
 * (except for a dump that wants the point), so callers need not check. Level 0 is part of the run's
 * chain; higher levels are for diagnosis.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_PROBE_PROBE_H
#define INVAR_ENGINE_MODEL_PROBE_PROBE_H

#include "engine/config/choices.h"
#include "engine/model/probe/dump.h"
#include "engine/model/probe/rank_buffer.h"
#include "kernels-deterministic/ops.h"
#include "ledger/ledger.h"

typedef struct invar_probe_options {
    invar_probe_level level;
    bool stats;       /* compute statistics (NaN, Inf, magnitude); device-local tensors are read
                         back for them */
    invar_pool *pool; /* threads for hashing; NULL for the calling thread */
    const invar_device *dev; /* device of tensors in device memory; NULL if all are in host
                                memory */
    /*
     * Another rank has the probe with all samples: definitions are not compared, and a point may
     * have no value.
     */
    bool is_partial;
} invar_probe_options;

typedef struct invar_probe invar_probe;

invar_status invar_probe_new(invar_probe **out, const invar_probe_options *options) INVAR_MUST_USE;
void invar_probe_free(invar_probe *probe);

/*
 * Starts a step: no point has a value; definitions stay. `dump` receives the tensors of the points
 * that it wants, of any level, until the next begin; it may be NULL. All points of the step must be
 * defined again, because their numbers depend on the dump.
 */
void invar_probe_begin(invar_probe *probe, invar_dump *dump);

/*
 * Returns the number of the point with this name; a new point is added after all others. Texts and
 * arrays are copied. A known point must be defined identically. A number of rows that varies
 * between steps is declared as -1.
 */
invar_status invar_probe_define(int64_t *point_out, invar_probe *probe,
                                const invar_ledger_point *point) INVAR_MUST_USE;

/* Adds samples to a point. `samples` has the row offsets of each sample in `tensor`. */
invar_status invar_probe_rows(invar_probe *probe, int64_t point, const invar_tensor *tensor,
                              const invar_row_offsets *samples) INVAR_MUST_USE;

/*
 * Sets the complete value of a point from a tensor. A second value in the same step is an error.
 */
invar_status invar_probe_tensor(invar_probe *probe, int64_t point,
                                const invar_tensor *tensor) INVAR_MUST_USE;

/*
 * Like invar_probe_rows and invar_probe_tensor, for tensors in device memory. A device-local tensor
 * is hashed on the device, by hash.tree, and has no leaves; this happens in finish, and the tensor
 * must not change until then. Rows are hashed at once, by hash.leaves, which reads the offsets
 * `device_samples`. Values that the dump or statistics need are read back.
 */
invar_status invar_probe_device_rows(invar_probe *probe, int64_t point, const invar_tensor *tensor,
                                     const invar_row_offsets *samples,
                                     const invar_row_offsets *device_samples) INVAR_MUST_USE;
invar_status invar_probe_device_tensor(invar_probe *probe, int64_t point,
                                       const invar_tensor *tensor) INVAR_MUST_USE;

/*
 * Like invar_probe_device_tensor, for a tensor whose digest an op has computed that read or wrote
 * it; it has no leaves.
 */
invar_status invar_probe_tensor_with_digest(invar_probe *probe, int64_t point,
                                            const invar_tensor *tensor,
                                            const invar_digest *digest) INVAR_MUST_USE;

/*
 * Supplies the host values of a complete tensor whose digest is recorded already, for statistics
 * and dump. invar_probe_wants returns true if they are needed.
 */
invar_status invar_probe_values(invar_probe *probe, int64_t point,
                                const invar_tensor *tensor) INVAR_MUST_USE;
bool invar_probe_wants(const invar_probe *probe, int64_t point);

/*
 * Returns true if the probe may read the values of complete tensors, so that owners of rows must
 * gather them: it has statistics, a dump or level INVAR_PROBE_FULL. Otherwise digests suffice.
 */
bool invar_probe_needs_values(const invar_probe *probe);

/* Sets a digest that was computed elsewhere, for example by invar_model_hash. */
invar_status invar_probe_digest(invar_probe *probe, int64_t point,
                                const invar_digest *digest) INVAR_MUST_USE;

/* Sets statistics of a point, with the sum of squares in l2; ignored if statistics are off. */
invar_status invar_probe_stat(invar_probe *probe, int64_t point,
                              const invar_ledger_stat *stat) INVAR_MUST_USE;

/*
 * Pack appends the samples that the points of a partial probe have received since the last pack;
 * unpack adds those of another rank after the probe's own. The final values are those of one probe
 * with all samples.
 */
invar_status invar_probe_pack(invar_rank_buffer *to, invar_probe *probe) INVAR_MUST_USE;
invar_status invar_probe_unpack(invar_probe *probe, invar_rank_buffer_reader *from) INVAR_MUST_USE;

typedef struct invar_probe_result {
    const invar_ledger_point *points; /* (count) for invar_ledger_define */
    const invar_digest *digests;      /* (count) for invar_ledger_step */
    int64_t count;
    bool changed;                   /* the last result did not have all of these points */
    const invar_ledger_stat *stats; /* (n_stats) of all f32 and bf16 points if statistics are on;
                                       l2 is the norm, no longer the sum of squares */
    size_t n_stats;
} invar_probe_result;

/*
 * Computes the digests of the step. Returns INVAR_E_STATE, naming the point, if a point has no
 * value. The arrays are borrowed until the next call.
 */
invar_status invar_probe_finish(invar_probe_result *out, invar_probe *probe) INVAR_MUST_USE;

/*
 * Returns the first point, in order, with a value that is not finite so far, and its statistics
 * with the sum of squares in l2; NULL if all are finite or statistics are off. Borrowed until the
 * next define.
 */
const invar_ledger_point *invar_probe_first_nonfinite(invar_ledger_stat *out,
                                                      const invar_probe *probe);

/*
 * *out = leaf digests of a point in the order of its shards. Call after finish; borrowed until
 * begin.
 */
invar_status invar_probe_leaves(const invar_digest **out, int64_t *count_out,
                                const invar_probe *probe, int64_t point) INVAR_MUST_USE;

/*
 * Like invar_probe_define, with the inputs by name (NULL after the last). An input above the level
 * is replaced by the points that it was computed from; an unknown one is ignored. At
 * INVAR_PROBE_STEP points have no inputs, because the points between them are missing.
 */
invar_status invar_probe_define_from(int64_t *point_out, invar_probe *probe,
                                     const invar_ledger_point *point,
                                     const char *const *inputs) INVAR_MUST_USE;

#endif
