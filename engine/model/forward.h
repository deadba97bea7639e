/*
 * forward.h - forward and backward of a model, shared by rollout, scoring and training.
 *
 * A pass owns the memory of activations, which grows on demand and is reused. invar_pass_run takes
 * packed rows through the embedding and all layers, or through the layers of one pipeline model
 * chunk. Attention reads either the rows themselves (complete samples: scoring and training) or a
 * paged KV cache (rollout); a row has the same bits in both. invar_pass_head takes selected rows
 * through the last norm and the head to log-probs; invar_pass_logits stops at the logits.
 * invar_head_backward and then invar_pass_backward add to gradients what follows from both.
 *
 * The bits of a row depend on its own sequence only, never on other rows, packing or chunking.
 * Gradients depend on the order of units, which is the order of samples: a micro-batch consists of
 * consecutive complete units, and micro-batches come in order.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_FORWARD_H
#define INVAR_ENGINE_MODEL_FORWARD_H

#include "engine/model/graph/graph_exec.h"
#include "engine/model/model.h"

/*
 * Packed rows of a micro-batch or decode pass, ordered by (sample, position). Arrays are in host
 * memory.
 */
typedef struct invar_packed_rows {
    int64_t count;             /* T: rows of all context-parallel ranks */
    const int32_t *ids;        /* (T) token ids */
    const int32_t *positions;  /* (T) position in the sequence */
    invar_row_offsets samples; /* rows of each sample, or of each sequence of the KV cache */
    invar_row_offsets units;   /* units of complete samples: sums of the backward follow them, and
                                  rows are divided over ranks by their token blocks */
    /* Paged attention: KV cache of each layer, and lengths including the new rows; else NULL. */
    const invar_kv_pages *cache; /* (layers of the pass) k and v in device memory; all share one
                                    page table */
    const int64_t *lengths;      /* (samples) */
    /*
     * Slot of each row in the KV cache, page * page_size + position in the page, for hooks that
     * observe the cache; may be NULL.
     */
    const int32_t *kv_slots; /* (T) */
    /*
     * Expert routing to replay, and an array that receives the routing of this run; both may be
     * NULL.
     */
    const int32_t *routing_replay; /* (T, sparse layers, slots) */
    int32_t *routing; /* (T, sparse layers, slots) written by this run; see invar_pass_routing */
    /*
     * Residual stream in the storage type from the previous pipeline stage; NULL if the pass starts
     * with the embedding.
     */
    const void *residual_in; /* (T, hidden), or this rank's rows under sequence parallelism */
} invar_packed_rows;

/* Rows whose next token's log-prob is computed, in ascending order. Arrays are in host memory. */
typedef struct invar_logit_rows {
    int64_t count;           /* R */
    const int64_t *row;      /* (R) indices of rows of the last run */
    const int32_t *targets;  /* (R) token that follows each row */
    invar_row_offsets units; /* over R; for the backward */
    float temperature;
} invar_logit_rows;

/*
 * Gradients: one f32 tensor per parameter, accumulated; a tied head has a separate one. Most belong
 * to linear layers, whose first backward overwrites them, so invar_grads_zero skips these.
 */
typedef struct invar_grads {
    invar_tensor *tensors; /* (n_params) extents of the local shards */
    /*
     * (n_pieces) logical shards that this rank contributes (logical_shards.h), in order; with ZeRO
     * (shard/zero_partition.h) the parts of them that it owns
     */
    invar_tensor *pieces;
    int64_t n_pieces;
    invar_digest *digests;  /* (n_params) host memory: digests of the gradients at the time of
                               their norm */
    invar_tensor tied_head; /* present if the head is tied to the embedding */
    bool overwrite_next;    /* zeroed without a backward since: the first backward overwrites the
                               gradients of linear layers */
    invar_device dev;       /* device of the model */
    void *memory;           /* gradients of the embedding (unless it is frozen), then of the other
                               matrices, vectors, tied head */
    size_t bytes, embedding_bytes;
    void *vectors; /* norms and biases; inside `memory` */
    size_t vector_bytes;
} invar_grads;

invar_status invar_grads_new(invar_grads **out, const invar_model *model) INVAR_MUST_USE;
void invar_grads_free(invar_grads *grads);

/* Resets the gradients for the next step. They are defined again after invar_grads_finalize. */
invar_status invar_grads_zero(invar_grads *grads) INVAR_MUST_USE;

/*
 * Sets all gradients to +0. Required instead of invar_grads_zero if several model chunks add to
 * them in turn, because then no backward may overwrite.
 */
invar_status invar_grads_clear(invar_grads *grads) INVAR_MUST_USE;

/*
 * Returns the pipeline model chunk, counted over all stages, that computes the parameter's
 * gradient.
 */
int invar_grads_chunk(const invar_model *model, const invar_param *param);

/*
 * Byte ranges of the gradients of one model chunk in the block: matrices, then vectors with the
 * tied head.
 */
#define INVAR_GRADS_RANGES 2
void invar_grads_ranges(invar_byte_range out[INVAR_GRADS_RANGES], const invar_model *model,
                        int chunk);

/*
 * Call once per step, after the last backward. Gathers the gradients that context-parallel and
 * expert-parallel ranks have computed in ranges; with a tied head, adds its gradient to the
 * embedding's (head + embedding). Covers the rows that this rank owns. Collective over
 * context-parallel ranks, expert-parallel ranks and pipeline stages.
 */
invar_status invar_grads_finalize(invar_grads *grads, const invar_model *model,
                                  const invar_device *dev) INVAR_MUST_USE;

typedef struct invar_pass invar_pass;

typedef struct invar_pass_options {
    bool train;        /* keep the activations that the backward needs */
    bool recompute;    /* keep only the inputs of layers, and recompute each layer in the
                          backward */
    int64_t head_rows; /* max rows of logits at a time; 0 for no limit. A unit is never split. */
    bool poison;       /* tests only: fill memory with NaN after its last use */
    int chunk;         /* pipeline model chunk, counted over all stages
                          (engine/ranks/layout/pipeline.h); 0 on a single rank */
} invar_pass_options;

/* Creates a pass on a device. Its ops use scratch of the pass, not that of `dev`. */
invar_status invar_pass_new(invar_pass **out, const invar_device *dev,
                            const invar_pass_options *options) INVAR_MUST_USE;
void invar_pass_free(invar_pass *pass);

/*
 * Dry run: allocates the scratch that the ops of the pass asked for
 * (invar_op_runner_alloc_scratch).
 */
invar_status invar_pass_alloc_scratch(invar_pass *pass) INVAR_MUST_USE;

/* Installs hooks for the values of the pass; NULL removes them. */
void invar_pass_probe(invar_pass *pass, const invar_forward_hooks *probe);

/* Installs an audit of the pass's ops; borrowed, NULL removes it. */
void invar_pass_audit(invar_pass *pass, invar_audit *audit);

/*
 * Uses a CUDA graph cache for the pass's ops; borrowed, NULL removes it. Returns false and uses
 * none while an audit or hooks that are not `graph_safe` are installed.
 */
bool invar_pass_tape(invar_pass *pass, invar_cuda_graph_cache *graph_cache);

/*
 * Runs rows through the layers. The arrays of `rows` are borrowed until the backward or the next
 * run. Collective over the ranks that hold the model together, per stage.
 */
invar_status invar_pass_run(invar_pass *pass, const invar_model *model,
                            const invar_packed_rows *rows) INVAR_MUST_USE;

/*
 * Writes the experts that the routers of the last run chose to rows.routing; does nothing if that
 * is NULL. Collective over context-parallel ranks.
 */
invar_status invar_pass_routing(invar_pass *pass) INVAR_MUST_USE;

/*
 * Log-probs of the targets and, unless entropy_out is NULL, entropies: (R) each. Call after a run.
 */
invar_status invar_pass_head(invar_pass *pass, const invar_logit_rows *head, float *logp_out,
                             float *entropy_out) INVAR_MUST_USE;

/*
 * Logits of rows of the last run: (R, vocab) f32 in device memory, borrowed until the next call on
 * the pass. For a critic (R, 1), the values.
 */
invar_status invar_pass_logits(invar_tensor *out, invar_pass *pass, const int64_t *row,
                               int64_t count) INVAR_MUST_USE;

/*
 * Backward of the head, down to the residual stream: adds the gradients of sum(dlogp * logp) +
 * sum(dentropy * entropy) over the rows of the last head to `grads`. dentropy may be NULL. Needs
 * options.train; once per run. invar_pass_backward then continues with the layers.
 */
invar_status invar_head_backward(invar_pass *pass, const float *dlogp, const float *dentropy,
                                 const invar_grads *grads) INVAR_MUST_USE;

/*
 * Like invar_head_backward, for a critic: adds the gradients of sum(dvalue * value) over the rows
 * of the last invar_pass_logits.
 */
invar_status invar_head_backward_values(invar_pass *pass, const float *dvalue,
                                        const invar_row_offsets *units,
                                        const invar_grads *grads) INVAR_MUST_USE;

/*
 * Backward of the layers, after that of the head or invar_pass_set_residual_grad: adds the
 * gradients of their weights to `grads`.
 */
invar_status invar_pass_backward(invar_pass *pass, invar_grads *grads) INVAR_MUST_USE;

/* ---- between pipeline stages ----------------------------------------------------------------- */

/* Bytes of the residual stream that a stage sends to the next one for these rows. */
size_t invar_pass_stream_bytes(const invar_model *model, const invar_packed_rows *rows);

/* Copies the residual stream after the layers of the last run to a host array. */
invar_status invar_pass_get_residual(invar_pass *pass, void *out) INVAR_MUST_USE;

/*
 * On a stage without head: the backward will start from this gradient of its last residual stream,
 * a host array.
 */
invar_status invar_pass_set_residual_grad(invar_pass *pass, const void *d_stream) INVAR_MUST_USE;

/* Call after a backward: copies the gradient of rows.residual_in to a host array. */
invar_status invar_pass_get_residual_grad(invar_pass *pass, void *out) INVAR_MUST_USE;

#endif
