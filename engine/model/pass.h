/*
 * pass.h - internals of a pass: its two op graphs, their memory and their input arrays.
 *
 * Private to engine/model. The layers with their backward are one op graph; the head is another,
 * because the number of its rows is known later. Each has a block of device memory that grows when
 * it must. Arrays that the caller supplies stay on the host, where the pass plans by them; ops read
 * the copies that `inputs` points to.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_PASS_H
#define INVAR_ENGINE_MODEL_PASS_H

#include "engine/model/decoder.h"
#include "engine/model/forward.h"
#include "engine/model/graph/host_staging.h"
#include "engine/model/shard/vocab_parallel.h"

/* Row ranges of ranks at three levels; if rows are not divided, all belong to this rank. */
typedef struct invar_row_partitions {
    invar_row_partition residual; /* residual stream: over context- and sequence-parallel ranks */
    invar_row_partition context;  /* outside the residual stream: over context-parallel ranks */
    invar_row_partition stream;   /* residual stream within a context range: over tensor-parallel
                                     ranks */
} invar_row_partitions;

/* Everything that the op graph of the layers depends on; compared byte by byte. */
typedef struct invar_layers_key {
    invar_model_spec spec;
    int64_t format;
    invar_index_range layers;
    int64_t rows, samples, units;
    int64_t kv_span, q_span;
    invar_kv_pages cache;     /* cache of the first layer without addresses */
    int64_t replayed, routed; /* 1 if routing is replayed, and if it is written; else 0 */
    invar_model_partition part;
    invar_row_partitions division;
} invar_layers_key;

/* Activations of the head for the R selected of T rows. Tensors are symbolic. */
typedef struct invar_head_activations {
    invar_tensor x;      /* (R, hidden) */
    invar_tensor norm;   /* (R, hidden) */
    invar_tensor logits; /* (C, vocab) f32: logits of one head chunk, or of all rows if there is
                            one chunk */
    /*
     * (C, ids of this rank, padded to the vocabulary chunks of a part) f32: logits of this rank's
     * ids; absent if it has all ids
     */
    invar_tensor local_logits;
    invar_tensor sums;    /* (C, invar_logprob_sum_columns) f32 partial sums of the local
                             logits; present instead of `logits` */
    invar_tensor parts;   /* (ranks * C, ...) f32: local_logits or sums of all ranks */
    invar_tensor logp;    /* (R) f32 */
    invar_tensor entropy; /* (R) f32, adjacent to logp */
    invar_tensor max;     /* (R) f32 */
    invar_tensor logsum;  /* (R) f32 */
    /*
     * (C, vocab) in the storage type; shares the memory of logits if that is f32. If ranks divide
     * the vocabulary: (C, ids of this rank and some spare columns), in memory of its own.
     */
    invar_tensor d_logits;
    invar_tensor d_norm; /* (R, hidden) */
    invar_tensor d_x;    /* (R + 1, hidden): the last row is zero */
    int64_t pieces;      /* head chunks; 1 if the head stops at the logits */
} invar_head_activations;

/* Host arrays of the head. */
typedef struct invar_head_arrays {
    int32_t *row;             /* (R) selected rows, counted from this rank's first row */
    int64_t *parts;           /* unit offsets of all head chunks, each relative to the chunk's
                                 first row */
    float *fetched;           /* (2, R) log-probs and entropies */
    int32_t *row_to_selected; /* (T) index of a row among the R, or R if it is not selected; with
                                 a backward only */
    void *values;             /* (R) gradients of values in the storage type; with a backward
                                 only */
    /* row offsets of the points: all units, units of each head chunk, samples of tokens */
    invar_row_offsets *samples;
    invar_row_offsets *device_offsets; /* the offsets of `samples` in memory that ops read */
} invar_head_arrays;

typedef enum invar_pass_state {
    INVAR_PASS_EMPTY,
    INVAR_PASS_RUN,      /* the layers have run */
    INVAR_PASS_LOGPROBS, /* layers and head have run */
    INVAR_PASS_LOGITS,   /* layers have run, and the head up to the logits */
    INVAR_PASS_GRADIENT  /* the gradient of the residual stream after the layers is there */
} invar_pass_state;

/* An op graph with its builder and memory. */
typedef struct invar_pass_graph {
    invar_op_graph *graph;
    invar_builder builder;
    void *memory;
    size_t bytes;
} invar_pass_graph;

struct invar_pass {
    invar_op_runner op_runner;
    invar_pass_options options;
    invar_forward_hooks hooks;
    invar_hook_buffers hook_buffers;
    const invar_model *model;
    invar_packed_rows rows;    /* the caller's, on the host */
    invar_row_offsets samples; /* rows.samples in memory that ops read */
    invar_row_partitions division;
    /*
     * Unit offsets of this rank's residual rows, then those of its context-parallel rows; host
     * memory. Filled only if ranks divide rows.
     */
    int64_t *own_units;
    int64_t own_units_capacity;
    int32_t *in_order; /* (rows) 0, 1, ...; only if context-parallel ranks divide rows */
    int64_t in_order_capacity;
    struct {
        invar_pass_graph graph;
        invar_layers_key key; /* key of the current graph */
        invar_decoder io;
        invar_upload_buffer staging;
    } layers;
    invar_transfer_runner transfers;
    invar_vocab_parallel vocab;
    struct {
        invar_logit_rows rows;                             /* the caller's, on the host */
        int64_t chosen[INVAR_ROW_PARTITION_MAX_RANKS + 1]; /* index of the first selected row of
                                                              each context-parallel rank */
        invar_pass_graph graph;
        invar_head_activations acts;
        invar_head_arrays arrays;
        invar_graph_point stream; /* source point of the head's input */
        bool entropy_back;        /* the last backward had gradients of entropies */
        invar_upload_buffer staging, back_staging;
        void *array_memory; /* host memory of `arrays` */
        size_t array_bytes;
    } head;
    const void *inputs[INVAR_OP_GRAPH_MAX_INPUTS]; /* address of each input buffer, by
                                                      invar_graph_input */
    invar_pass_state state;
};

/* Point of the gradient of the residual stream as the head computes it. */
extern const invar_graph_point invar_head_stream;

/* Range of this rank's rows of the residual stream, relative to its context-parallel range. */
invar_index_range invar_pass_own_rows(const invar_pass *pass);

/* Arguments to execute the op graph `part` now. */
invar_graph_exec_args invar_pass_exec_args(invar_pass *pass, const invar_pass_graph *part);

/*
 * Plans the complete op graph and ensures that its memory is large enough; `what` names the memory
 * in an error.
 */
invar_status invar_pass_plan(invar_pass *pass, invar_pass_graph *part,
                             const char *what) INVAR_MUST_USE;

#endif
