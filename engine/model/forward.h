/*
 * forward.h - the one forward of rollout, scoring and training, and its backward.
 *
 * A pass is memory for activations, grown on demand and reused. `run` takes packed rows through the
 * embedding and all layers; of a model that stages of a pipeline hold, through one chunk of layers,
 * and the stages hand rows on. Attention reads either the rows themselves (whole samples: scoring
 * and training) or a paged cache (rollout); the bits of a row are the same. `head` takes chosen
 * rows through the last norm and the head to log-probabilities, `logits` stops before them.
 * `backward` walks back over what the last run and head left, and adds to gradients.
 *
 * Bits of a row depend on its own sequence only: never on other rows, the packing, the chunking.
 * Gradients depend on the order of units, which is the order of samples: a micro-batch is a run of
 * whole units, and micro-batches come in order.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_FORWARD_H
#define INVAR_ENGINE_MODEL_FORWARD_H

#include "engine/model/graph/graph_exec.h"
#include "engine/model/model.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Rows of a micro-batch, in order of (sample, position). Arrays are the host's. */
typedef struct invar_packed_rows {
    int64_t count;             /* T */
    const int32_t *ids;        /* (T) */
    const int32_t *positions;  /* (T) */
    invar_row_offsets samples; /* rows of each sample, or of each sequence of the cache */
    invar_row_offsets units;   /* for backward; runs of whole samples */
    /* Paged attention: the cache of each layer and the lengths with the new rows; else NULL. */
    const invar_kv_pages *cache; /* (layers of the pass): k and v the device's, one table for all */
    const int64_t *lengths;      /* (samples) */
    /* The place of each row in the cache, page * page_size + position in the page, for those who
       look at what was written there; may be NULL. */
    const int32_t *kv_slots; /* (T) */
    /* Experts: what an earlier run chose, and where to note what this run chose; may be NULL. */
    const int32_t *routing_replay; /* (T, sparse layers, slots) */
    int32_t *routing; /* (T, sparse layers, slots): by this run, see invar_pass_routing */
    /* What the layers before those of the pass have left, in storage; NULL: these are the first. */
    const void *residual_in; /* (T, hidden), or this rank's rows (invar_layout.sequence) */
} invar_packed_rows;

/* Rows whose next token's log-probability is wanted; ascending. Arrays are the host's. */
typedef struct invar_logit_rows {
    int64_t count;           /* R */
    const int64_t *row;      /* (R) rows of the last run */
    const int32_t *targets;  /* (R) the token after each */
    invar_row_offsets units; /* over R; for backward */
    float temperature;
} invar_logit_rows;

/*
 * Gradients: one f32 tensor per parameter, accumulating; a tied head has one of its own. Most of
 * them are what linear layers make, whose first backward writes them: zeroing leaves these alone.
 */
typedef struct invar_grads {
    invar_tensor *tensors; /* (n_params), shaped as the weights, as far as these are here */
    /* (n_pieces) of them that this rank gives (logical_shards.h), in order; where ranks own rows
     * (shard/zero_partition.h), parts of those that are its own */
    invar_tensor *pieces;
    int64_t n_pieces;
    invar_digest *digests;  /* (n_params), the host's: of the gradients as their norm was taken */
    invar_tensor tied_head; /* present where the head is the embedding */
    bool overwrite_next;    /* zeroed, with no backward since: linear layers' hold nothing yet */
    invar_device dev;       /* the model's, whose memory they are in */
    void *memory;           /* the embedding's, those of linear layers, vectors', the tied head's */
    size_t bytes, embedding_bytes;
    void *vectors; /* norms and biases, in memory */
    size_t vector_bytes;
} invar_grads;

invar_status invar_grads_new(invar_grads **out, const invar_model *model) INVAR_MUST_USE;
void invar_grads_free(invar_grads *grads);

/* For the next step: the gradients are defined again after its join. */
invar_status invar_grads_zero(invar_grads *grads) INVAR_MUST_USE;

/* All of them +0, where several chunks of layers add to them in turn: nobody's is the first. */
invar_status invar_grads_clear(invar_grads *grads) INVAR_MUST_USE;

/* The chunk of the pipeline that a parameter's gradient is computed by. */
int invar_grads_chunk(const invar_model *model, const invar_param *param);

/* Where in the block the gradients of a chunk of the pipeline are: matrices, vectors. */
#define INVAR_GRADS_RANGES 2
void invar_grads_ranges(invar_byte_range out[INVAR_GRADS_RANGES], const invar_model *model,
                        int chunk);

/*
 * Once a step, after the last backward: what context-parallel ranks have made a share of becomes
 * whole; embedding += head, where tied (head + embedding). Of the rows that this rank owns. A call
 * of all context-parallel ranks and of all stages of a pipeline.
 */
invar_status invar_grads_finalize(invar_grads *grads, const invar_model *model,
                                  const invar_device *dev) INVAR_MUST_USE;

typedef struct invar_pass invar_pass;

typedef struct invar_pass_options {
    bool train;        /* keep what backward needs */
    bool recompute;    /* keep a layer's input only, and run the layer again in backward */
    int64_t head_rows; /* most rows of logits at a time; 0: no limit. Never cuts a unit. */
    bool poison;       /* memory is NaN between its uses, which tests want */
    int chunk;         /* of the pipeline's (engine/ranks/layout/pipeline.h); one rank has 0 */
} invar_pass_options;

/* The device is used by every call; its scratch is replaced by one that the pass grows. */
invar_status invar_pass_new(invar_pass **out, const invar_device *dev,
                            const invar_pass_options *options) INVAR_MUST_USE;
void invar_pass_free(invar_pass *pass);

/* invar_op_runner_settle of the pass's ops. */
invar_status invar_pass_alloc_scratch(invar_pass *pass) INVAR_MUST_USE;

/* NULL ends it. */
void invar_pass_probe(invar_pass *pass, const invar_forward_hooks *probe);

/* Of the pass's ops; borrowed, NULL ends it. */
void invar_pass_audit(invar_pass *pass, invar_audit *audit);

/*
 * Hears the pass's ops; borrowed, NULL ends it. False, and none: an audit watches, or a probe that
 * is not taped.
 */
bool invar_pass_tape(invar_pass *pass, invar_cuda_graph_cache *tape);

/* Through the layers. The arrays of `rows` are borrowed until the backward or the next run. */
invar_status invar_pass_run(invar_pass *pass, const invar_model *model,
                            const invar_packed_rows *rows) INVAR_MUST_USE;

/*
 * What the routers of the last run chose, to where its rows say; nothing where they do not. A call
 * of all context-parallel ranks.
 */
invar_status invar_pass_routing(invar_pass *pass) INVAR_MUST_USE;

/* Log-probabilities of targets and, if wanted, entropies: (R) each. After run. */
invar_status invar_pass_head(invar_pass *pass, const invar_logit_rows *head, float *logp_out,
                             float *entropy_out) INVAR_MUST_USE;

/*
 * Logits of rows of the last run: (R, vocab) f32 in the device's memory, borrowed until the next
 * call on the pass. For a critic (R, 1): the values.
 */
invar_status invar_pass_logits(invar_tensor *out, invar_pass *pass, const int64_t *row,
                               int64_t count) INVAR_MUST_USE;

/*
 * Gradients of sum(dlogp * logp) + sum(dentropy * entropy) over the rows of the last head, added to
 * `grads`. dentropy may be NULL. With `train` only, once per run.
 */
invar_status invar_pass_backward(invar_pass *pass, const float *dlogp, const float *dentropy,
                                 invar_grads *grads) INVAR_MUST_USE;

/* The same for a critic: gradients of sum(dvalue * value) over the rows of the last logits. */
invar_status invar_pass_backward_values(invar_pass *pass, const float *dvalue,
                                        const invar_row_offsets *units,
                                        invar_grads *grads) INVAR_MUST_USE;

/* ---- between stages -------------------------------------------------------------------------- */

/* Of what a stage hands on for these rows. */
size_t invar_pass_stream_bytes(const invar_model *model, const invar_packed_rows *rows);

/* What the layers of the last run have left, to an array of the host. */
invar_status invar_pass_get_residual(invar_pass *pass, void *out) INVAR_MUST_USE;

/* A backward that begins with the gradient of that, an array of the host, instead of the head's. */
invar_status invar_pass_backward_stream(invar_pass *pass, const void *d_stream,
                                        invar_grads *grads) INVAR_MUST_USE;

/* After a backward: the gradient of the `stream` that the run began with, to the host. */
invar_status invar_pass_get_residual_grad(invar_pass *pass, void *out) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
