/*
 * probe.h - named points of a step and their digests, whatever the micro-batches were.
 *
 * A point's value is the root of a tree hash (base/hash.h). Rows of activations come micro-batch by
 * micro-batch, each sample whole and in the order of samples: every sample is a shard of the tree,
 * so the root depends on the samples alone. A tensor that is there as a whole has the shards that
 * the point says, as the op hash.tree has it; bytes are one shard.
 *
 *     invar_probe_new(&probe, &(invar_probe_options){.level = INVAR_PROBE_POINT});
 *     invar_probe_begin(probe, NULL);                  per step
 *     invar_probe_define(&p, probe, &point);           the same point again: the same number
 *     invar_probe_rows(probe, p, &tensor, &samples);   per micro-batch
 *     invar_probe_finish(&result, probe);              then ledger define (if changed) and append
 *
 * A point above the probe's level gets a negative number, which is taken everywhere and ignored
 * (but by the dump, if that wants the point), so callers need not ask. Level 0 is part of the run's
 * chain, higher ones are diagnosis.
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

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_probe_options {
    invar_probe_level level;
    bool stats;       /* count what is not finite, too; whatever is far is read back for it */
    invar_pool *pool; /* NULL: the calling thread */
    const invar_device *dev; /* for tensors in its memory; NULL: all are in the host's */
    /* Another rank has all samples: definitions are not compared, and a point may have no value. */
    bool is_partial;
} invar_probe_options;

typedef struct invar_probe invar_probe;

invar_status invar_probe_new(invar_probe **out, const invar_probe_options *options) INVAR_MUST_USE;
void invar_probe_free(invar_probe *probe);

/*
 * A new step: no point has a value; the points stay. `dump` gets the tensors of the points that it
 * wants, of any level, until the next begin; NULL: none. The points of the step are then defined
 * again, since their numbers depend on it.
 */
void invar_probe_begin(invar_probe *probe, invar_dump *dump);

/*
 * The number of the point with this name, which is made when it is new; its place is after all
 * others. Texts and arrays are copied. A known point must be the same in everything. Rows that
 * vary from step to step have the extent -1.
 */
invar_status invar_probe_define(int64_t *point_out, invar_probe *probe,
                                const invar_ledger_point *point) INVAR_MUST_USE;

/* More samples of a point: rows of index 0, one segment a sample. */
invar_status invar_probe_rows(invar_probe *probe, int64_t point, const invar_tensor *tensor,
                              const invar_row_offsets *samples) INVAR_MUST_USE;

/* The value at once. A second one in the same step is refused. */
invar_status invar_probe_tensor(invar_probe *probe, int64_t point,
                                const invar_tensor *tensor) INVAR_MUST_USE;
invar_status invar_probe_bytes(invar_probe *probe, int64_t point, const void *data,
                               size_t bytes) INVAR_MUST_USE;

/*
 * The same of tensors in the device's memory. Where that is far, a whole tensor is hashed where it
 * is, by hash.tree, and has no leaves; that happens in finish, and until then the tensor must not
 * change. Rows are hashed at once, by hash.leaves, which reads the samples `there`. What the dump
 * or statistics want is read back.
 */
invar_status invar_probe_device_rows(invar_probe *probe, int64_t point, const invar_tensor *tensor,
                                     const invar_row_offsets *samples,
                                     const invar_row_offsets *there) INVAR_MUST_USE;
invar_status invar_probe_device_whole(invar_probe *probe, int64_t point,
                                      const invar_tensor *tensor) INVAR_MUST_USE;

/* A whole tensor again, whose digest an op made that read or wrote it; it has no leaves. */
invar_status invar_probe_tensor_with_digest(invar_probe *probe, int64_t point,
                                            const invar_tensor *tensor,
                                            const invar_digest *digest) INVAR_MUST_USE;

/* The values of a whole tensor in the host's memory whose digest is there, where somebody wants. */
invar_status invar_probe_values(invar_probe *probe, int64_t point,
                                const invar_tensor *tensor) INVAR_MUST_USE;
bool invar_probe_wants(const invar_probe *probe, int64_t point);

/* Whether it may read the values of tensors whose digests it is given, or of others of a step. */
bool invar_probe_needs_values(const invar_probe *probe);

/* A digest that was made elsewhere, as by invar_model_hash. */
invar_status invar_probe_digest(invar_probe *probe, int64_t point,
                                const invar_digest *digest) INVAR_MUST_USE;

/* Statistics of it, with the sum of squares in l2; ignored where none are wanted. */
invar_status invar_probe_stat(invar_probe *probe, int64_t point,
                              const invar_ledger_stat *stat) INVAR_MUST_USE;

/*
 * The samples that a part's points have got since the last time, and those of another rank's part
 * behind the own ones: in the end the values are as if this probe had got them all.
 */
invar_status invar_probe_pack(invar_rank_buffer *to, invar_probe *probe) INVAR_MUST_USE;
invar_status invar_probe_unpack(invar_probe *probe, invar_rank_buffer_reader *from) INVAR_MUST_USE;

typedef struct invar_probe_result {
    const invar_ledger_point *points; /* (count) for invar_ledger_define */
    const invar_digest *digests;      /* (count) for invar_ledger_step */
    int64_t count;
    bool changed;                   /* there are points that the last result did not have */
    const invar_ledger_stat *stats; /* (n_stats) of all points of f32 and bf16, where wanted */
    size_t n_stats;
} invar_probe_result;

/* INVAR_E_STATE names a point that got no value. The arrays are borrowed until the next call. */
invar_status invar_probe_finish(invar_probe_result *out, invar_probe *probe) INVAR_MUST_USE;

/*
 * At any time in a step, where statistics are wanted: the first point, in order, that has got a
 * number that is not finite; NULL: none has. Borrowed until the next define.
 */
const invar_ledger_point *invar_probe_first_nonfinite(invar_ledger_stat *out,
                                                      const invar_probe *probe);

/* After finish: the leaf digests of a point, in the order of its shards; borrowed until begin. */
invar_status invar_probe_leaves(const invar_digest **out, int64_t *count_out,
                                const invar_probe *probe, int64_t point) INVAR_MUST_USE;

/*
 * The same as define, with the inputs by name (NULL after the last). An input that is above the
 * level stands for what it is computed from itself; one that nobody has heard of for nothing. At
 * INVAR_PROBE_STEP, where those between are missing, a point has no inputs.
 */
invar_status invar_probe_define_from(int64_t *point_out, invar_probe *probe,
                                     const invar_ledger_point *point,
                                     const char *const *inputs) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
