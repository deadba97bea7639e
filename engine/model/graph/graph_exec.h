/*
 * graph_exec.h - running the calls of a program, and looking at what they compute.
 *
 * A program names memory; a run brings it along, so one program serves any weights and any block
 * of memory. Watching changes nothing of what runs: after a call its points are shown.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_GRAPH_GRAPH_EXEC_H
#define INVAR_ENGINE_MODEL_GRAPH_GRAPH_EXEC_H

#include "engine/model/graph/graph_transfer.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_DATAFLOW_INPUTS 8
#define INVAR_DATAFLOW_NAME 48

/* The name of a value among those of a pass. */
typedef struct invar_value_name {
    int64_t layer; /* -1: of none */
    char text[INVAR_DATAFLOW_NAME];
} invar_value_name;

/* Whose a row of a rollout is: several samples share those of their prompt. */
typedef struct invar_row_samples {
    const uint32_t *draws; /* (count) by which samples are known */
    int64_t count;         /* 0: nobody's */
} invar_row_samples;

/* What an op has computed: activations, or gradients of them. */
typedef struct invar_observed_value {
    invar_value_name name;
    const char *op; /* "rope.fwd" */
    bool backward;
    /* The residual stream at the beginning, in the middle or at the end of a layer. */
    bool is_residual;
    /* What it was computed from. None: from what the pass was given. */
    invar_value_name inputs[INVAR_DATAFLOW_INPUTS];
    int n_inputs;
    invar_op_runner *caller;  /* of the op */
    const invar_tensor *rows; /* in its device's memory */
    /* rows of each sample; in the head of each unit; the host's */
    const invar_row_offsets *samples;
    const invar_row_offsets *device_samples; /* the same, where ops read them */
    /* The rows lie elsewhere, in another order: invar_dataflow_rows brings them. NULL: they do
     * not. */
    const struct invar_watch_elsewhere *elsewhere;
    const invar_row_samples *owners; /* (rows) in a rollout, instead of samples; else NULL */
} invar_observed_value;

/* A call has added to gradients of parameters. */
typedef struct invar_observed_grad {
    size_t offset, bytes; /* in the memory of all of them; several may lie there side by side */
    invar_value_name inputs[INVAR_DATAFLOW_INPUTS]; /* what the call has read */
    int n_inputs;
} invar_observed_grad;

/* Where values are shown to: called in the order of execution, for rows of whole samples. */
typedef struct invar_forward_hooks {
    invar_status (*take)(void *payload, const invar_observed_value *value);
    invar_status (*sum)(void *payload, const invar_observed_grad *sum); /* NULL: nobody asks */
    /* Of several ranks, by each of them, when all have shown a micro-batch; NULL: nobody asks. */
    invar_status (*round)(void *payload);
    /* Of stages of a pipeline, instead: when this one has shown its layers of a micro-batch of this
       round, forward or back, and when all have shown everything. */
    invar_status (*task)(void *payload, int64_t round);
    invar_status (*stages)(void *payload);
    void *payload;
    bool parts; /* fused calls are computed by their parts, too: as NAME.parts, behind NAME */
    bool taped; /* `take` only calls ops, by a caller with the tape of the pass, if that has one */
} invar_forward_hooks;

/* The device's memory of those who look, kept from one run to the next. Zeroed; release. */
typedef struct invar_hook_buffers {
    struct {
        void *data;
        size_t bytes;
    } parts, rows; /* results of parts; rows that lie elsewhere, in the order of tokens */
    /* rows that ranks divide: of all tensor-parallel ones, then of all context-parallel ones */
    struct {
        void *data;
        size_t bytes;
    } whole[2];
} invar_hook_buffers;

void invar_dataflow_memory_release(invar_hook_buffers *memory, const invar_device *dev);

typedef struct invar_graph_exec_args {
    invar_op_runner *caller;
    void *block;                      /* of the plan's bytes */
    const void *const *given;         /* (INVAR_OP_GRAPH_MAX_GIVEN) by number */
    bool fresh;                       /* sums that can begin anew do */
    bool poison;                      /* planned memory is NaN from its last use on: for tests */
    const invar_forward_hooks *probe; /* `take` NULL: nobody looks */
    invar_hook_buffers *memory;       /* where somebody does */
    const invar_row_offsets *samples; /* the lists that points are rows of; the host's */
    const invar_row_offsets *there;   /* the same lists, where ops read them */
    invar_transfer_runner *mover;     /* where ranks share the work */
} invar_graph_exec_args;

/* The calls of one segment, in order. */
invar_status invar_op_graph_run(const invar_op_graph *program, int32_t segment,
                                const invar_graph_exec_args *run) INVAR_MUST_USE;

/* The tensor where it is in a run. */
invar_tensor invar_op_graph_find(const invar_op_graph *program, const invar_tensor *tensor,
                                 const invar_graph_exec_args *run);

#ifdef __cplusplus
}
#endif
#endif
