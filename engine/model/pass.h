/*
 * pass.h - the inside of a pass: its two programs, their memory, and what they are given.
 *
 * Only engine/model includes this. The rows through the layers and back are one program, those of
 * the head another, since their number is known later. Each has a block of the device's memory that
 * grows when it has to. The arrays that a pass is given stay with the host, which plans by them;
 * ops read them where `given` says.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_PASS_H
#define INVAR_ENGINE_MODEL_PASS_H

#include "engine/model/decoder.h"
#include "engine/model/forward.h"
#include "engine/model/graph/host_staging.h"
#include "engine/model/vocab_parallel.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Which rows of a pass are whose; undivided: all are this rank's. */
typedef struct invar_row_partitions {
    invar_row_partition residual; /* of the residual stream */
    invar_row_partition context;  /* between its sums: of context-parallel ranks */
    invar_row_partition stream;   /* of these, of the stream: of tensor-parallel ranks */
} invar_row_partitions;

/* What the program of the layers depends on; compared byte by byte. */
typedef struct invar_body_key {
    invar_model_spec spec;
    int64_t format;
    invar_index_range layers;
    int64_t rows, samples, units;
    int64_t kv_span, q_span;
    invar_kv_pages cache; /* of the first layer, without addresses */
    int64_t replayed, routed;
    invar_model_partition part;
    invar_row_partitions division;
} invar_body_key;

/* The head's rows: R of them, chosen from the T. Tensors as its program names them. */
typedef struct invar_head_activations {
    invar_tensor x;      /* (R, hidden) */
    invar_tensor norm;   /* (R, hidden) */
    invar_tensor logits; /* (C, vocab) f32: of one piece, or of all where that is one */
    invar_tensor
        local_logits;     /* (C, ids of this rank) f32: the same logits; absent: all are its own */
    invar_tensor sums;    /* (C, invar_logprob_sum_columns) f32, of own; there are no logits then */
    invar_tensor parts;   /* (ranks * C, ...) f32: own of all ranks, or sums */
    invar_tensor logp;    /* (R) f32 */
    invar_tensor entropy; /* (R) f32, right behind logp */
    invar_tensor max;     /* (R) f32 */
    invar_tensor logsum;  /* (R) f32 */
    invar_tensor d_logits; /* (C, vocab) storage; the memory of logits where storage is f32 */
    invar_tensor d_norm;   /* (R, hidden) */
    invar_tensor d_x;      /* (R + 1, hidden): a row of zeros at the end */
    int64_t pieces;
} invar_head_activations;

/* Arrays of the head on the host. */
typedef struct invar_head_arrays {
    int32_t *row;             /* (R) */
    int64_t *parts;           /* the units of each piece, counted from its first row, in a row */
    float *fetched;           /* (2, R) log-probabilities and entropies */
    int32_t *row_to_selected; /* (T) where a row is among the R, or R; with a backward only */
    void *values;             /* (R) room for gradients of values; with a backward only */
    /* of its points: all units, those of each piece, samples of tokens */
    invar_row_offsets *samples;
    invar_row_offsets *device_offsets; /* the same, where ops read them */
} invar_head_arrays;

typedef enum invar_pass_state {
    INVAR_PASS_EMPTY,
    INVAR_PASS_RUN,      /* through the layers */
    INVAR_PASS_LOGPROBS, /* and the head */
    INVAR_PASS_LOGITS    /* and the head, up to the logits */
} invar_pass_state;

/* A program with its memory. */
typedef struct invar_pass_graph {
    invar_op_graph *program;
    invar_builder builder;
    void *memory;
    size_t bytes;
} invar_pass_graph;

struct invar_pass {
    invar_op_runner caller;
    invar_pass_options options;
    invar_forward_hooks probe;
    invar_hook_buffers watched;
    const invar_model *model;
    invar_packed_rows rows;    /* the host's */
    invar_row_offsets samples; /* of the rows, where ops read them */
    invar_row_partitions division;
    int64_t *own_units; /* of these, the host's */
    int64_t own_units_room;
    int32_t *in_order; /* (rows) 0, 1, ..., where context-parallel ranks divide rows */
    int64_t in_order_room;
    invar_pass_graph layers_graph;
    invar_body_key key; /* of the body's program */
    invar_decoder layers_io;
    invar_upload_buffer staging;
    invar_transfer_runner mover;
    invar_vocab_parallel vocab;
    invar_logit_rows head; /* the host's */
    int64_t
        chosen[INVAR_ROW_PARTITION_MAX_RANKS + 1]; /* of its rows, where those of each rank begin */
    invar_pass_graph head_graph;
    invar_head_activations acts;
    invar_head_arrays arrays;
    invar_graph_point stream; /* what the head begins with */
    bool entropy_back;        /* the last backward had gradients of entropies */
    invar_upload_buffer head_staging, back_staging;
    void *array_memory; /* on the host */
    size_t array_bytes;
    const void *inputs[INVAR_OP_GRAPH_MAX_GIVEN]; /* by invar_graph_input */
    invar_pass_state state;
};

/* The gradient of the stream as the head leaves it. */
extern const invar_graph_point invar_head_stream;

/* Rows of the residual stream that this rank has. */
invar_index_range invar_pass_own_rows(const invar_pass *pass);

/* How the program of that part is run now. */
invar_graph_exec_args invar_pass_how(invar_pass *pass, const invar_pass_graph *part);

/* Plans the part's program, which is whole, and makes its memory large enough. */
invar_status invar_pass_place(invar_pass *pass, invar_pass_graph *part,
                              const char *what) INVAR_MUST_USE;

/* The first part of a backward, down to the gradient of the stream. */
invar_status invar_head_backward(invar_pass *pass, const float *dlogp, const float *dentropy,
                                 invar_grads *grads) INVAR_MUST_USE;
invar_status invar_head_backward_values(invar_pass *pass, const float *dvalue,
                                        const invar_row_offsets *units,
                                        invar_grads *grads) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
