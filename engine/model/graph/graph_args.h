/*
 * graph_args.h - arguments of an execution of an op graph: addresses, and hooks that see values.
 *
 * The graph names memory symbolically: an execution supplies a block of device memory and the
 * addresses of the inputs. Hooks see values and gradients in the order of execution, with the
 * points from which they were computed, and must not change what runs.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_GRAPH_GRAPH_ARGS_H
#define INVAR_ENGINE_MODEL_GRAPH_GRAPH_ARGS_H

#include "engine/model/graph/graph_transfer.h"

#define INVAR_DATAFLOW_INPUTS 8
#define INVAR_DATAFLOW_NAME 48

/* Name of a value of a pass. */
typedef struct invar_value_name {
    int64_t layer; /* -1 if it belongs to no layer */
    char text[INVAR_DATAFLOW_NAME];
} invar_value_name;

/* Samples that share one row of a rollout; a row of a prompt belongs to several samples. */
typedef struct invar_row_samples {
    const uint32_t *draws; /* (count) draw numbers that identify the samples */
    int64_t count;         /* 0 if the row belongs to no sample */
} invar_row_samples;

/* Result of an op: an activation, or the gradient of one. */
typedef struct invar_observed_value {
    invar_value_name name;
    const char *op; /* name of the op, "rope.fwd" */
    bool backward;
    /* The value is the residual stream at the start, in the middle or at the end of a layer. */
    bool is_residual;
    /*
     * Points from which the value was computed; none if it depends on the inputs of the pass only.
     */
    invar_value_name inputs[INVAR_DATAFLOW_INPUTS];
    int n_inputs;
    invar_op_runner *op_runner; /* runner of the op */
    const invar_tensor *rows;   /* device memory */
    /* row offsets of the samples or, for values of the head, of the units; host memory */
    const invar_row_offsets *samples;
    const invar_row_offsets *device_samples; /* the offsets of `samples` in memory that ops read */
    /* Set if `rows` are not in token order: invar_dataflow_rows reorders them. NULL if they are. */
    const struct invar_unordered_rows *unordered_rows;
    const invar_row_samples *owners; /* (rows) set in a rollout instead of `samples`; else NULL */
} invar_observed_value;

/* Gradients of parameters that a node has added to. */
typedef struct invar_observed_grad {
    size_t offset, bytes; /* range in the block of gradients; may cover several adjacent
                             parameters */
    invar_value_name inputs[INVAR_DATAFLOW_INPUTS]; /* points that the node has read */
    int n_inputs;
} invar_observed_grad;

/*
 * Hooks that observe values. They are called in the order of execution, with rows of complete
 * samples.
 */
typedef struct invar_forward_hooks {
    invar_status (*on_value)(void *payload, const invar_observed_value *value);
    invar_status (*on_grad)(void *payload, const invar_observed_grad *sum); /* NULL if not needed */
    /*
     * Called on each of several ranks after all of them have shown one micro-batch; NULL if not
     * needed.
     */
    invar_status (*on_round)(void *payload);
    /*
     * Called on pipeline stages instead of `on_round`: `on_task` after this stage has shown its
     * layers of a forward or backward of a micro-batch of the round, `on_all_stages` after all
     * stages have shown everything.
     */
    invar_status (*on_task)(void *payload, int64_t round);
    invar_status (*on_all_stages)(void *payload);
    void *payload;
    bool parts; /* show the decomposition of fused calls too: NAME.parts after NAME */
    /*
     * `on_value` accesses device memory only by ops of an op runner with the CUDA graph cache, so
     * the cache may stay active.
     */
    bool graph_safe;
} invar_forward_hooks;

/*
 * Device buffers of hooks, kept between executions. Zero-initialize before use. Release with
 * invar_hook_buffers_release.
 */
typedef struct invar_hook_buffers {
    struct {
        void *data;
        size_t bytes;
    } parts, rows; /* results of decomposed calls; rows reordered by token */
    /* rows of all tensor-parallel ranks; rows of all context-parallel ranks */
    struct {
        void *data;
        size_t bytes;
    } gathered[2];
} invar_hook_buffers;

void invar_hook_buffers_release(invar_hook_buffers *memory, const invar_device *dev);

typedef struct invar_graph_exec_args {
    invar_op_runner *op_runner;
    void *block;                      /* graph->block bytes of device memory */
    const void *const *inputs;        /* (INVAR_OP_GRAPH_MAX_INPUTS) address of each input buffer */
    bool overwrite;                   /* sums that are marked for it start from zero */
    bool poison;                      /* tests only: planned memory becomes NaN after its last
                                         use */
    const invar_forward_hooks *hooks; /* NULL, or `on_value` is NULL, to observe nothing */
    invar_hook_buffers *memory;       /* required with hooks */
    const invar_row_offsets *samples; /* row offsets that points refer to by number; host memory */
    const invar_row_offsets *device_samples; /* the offsets of `samples` in memory that ops read */
    invar_transfer_runner *transfers;        /* required if ranks divide the layers */
} invar_graph_exec_args;

/* Returns the address, in this execution, of what the graph names; NULL for NULL. */
char *invar_op_graph_address(const invar_op_graph *graph, const void *name,
                             const invar_graph_exec_args *run);

/* Returns the tensor with the addresses of this execution. */
invar_tensor invar_op_graph_find(const invar_op_graph *graph, const invar_tensor *tensor,
                                 const invar_graph_exec_args *run);

#endif
