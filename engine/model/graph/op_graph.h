/*
 * op_graph.h - op graph: a list of op calls that is built and planned before any of them runs.
 *
 * A tensor of a graph has no memory yet: its address is a symbolic name, a buffer number and an
 * offset. Planned buffers are placed in one block by graph_plan.c; input buffers (parameters,
 * gradients, arrays) are supplied with each execution. Views of a tensor (columns, rows) are
 * computed on names as on addresses, so the arguments of ops are written as if all memory existed.
 *
 *     invar_op_graph_new(&program);
 *     y = invar_op_graph_tensor(program, INVAR_DTYPE_F32, rows, cols);
 *     INVAR_APPEND(program, layer, ADD, add, .out = y, .a = x, .b = z);
 *     invar_op_graph_point(program, &(invar_graph_point){.name = "sum", .rows = y});
 *     invar_op_graph_end_section(program);
 *     invar_op_graph_plan(program);            offsets and bytes: a pure function of the list
 *     invar_op_graph_run(program, 0, &run);    graph_exec.h
 *
 * A node may compute only this rank's part of a tensor. Transfers after the node bring the parts of
 * the other ranks, so that later nodes read the full tensor.
 *
 * Appending never fails: the first error is kept in `status`, and invar_op_graph_plan returns it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_GRAPH_OP_GRAPH_H
#define INVAR_ENGINE_MODEL_GRAPH_OP_GRAPH_H

#include "kernels-deterministic/ops.h"

#define INVAR_OP_GRAPH_MAX_INPUTS 32
#define INVAR_OP_GRAPH_MAX_SECTIONS 8

/* A named result that hooks can observe: an output of the node that it was appended after. */
typedef struct invar_graph_point {
    const char *name;     /* borrowed: "q" */
    const char *suffix;   /* borrowed: "q" in "norm_in.q"; may be NULL */
    bool gradient;        /* the point is the gradient of the value with this name: "dq" */
    bool backward;        /* computed by the backward */
    bool stream;          /* the residual stream, or its gradient */
    bool recomputed;      /* recomputed: an input of later points, but not shown to hooks */
    int64_t layer;        /* -1 if it belongs to no layer */
    int32_t samples;      /* index in the sample lists of the execution
                             (invar_graph_exec_args.samples) */
    invar_tensor rows;    /* symbolic tensor */
    invar_tensor by_slot; /* (T, slots) i32: rows of `rows` that belong to each token; absent if
                             rows are in token order */
    /*
     * Row offsets of the experts if each rank of the expert axis has only the rows of its experts;
     * absent if all rows are local.
     */
    invar_row_offsets experts;
    /*
     * Start rows of the tensor-parallel ranks if this rank has only its own range of rows; NULL if
     * it has all.
     */
    const int64_t *tp_starts; /* borrowed */
    /*
     * Start rows of the context-parallel ranks, each of which has the range that `tp_starts`
     * divides; NULL if rows are not divided. Borrowed.
     */
    const int64_t *cp_starts;
} invar_graph_point;

/* How bytes move between ranks, so that later nodes find what they read. */
typedef enum invar_graph_transfer_kind {
    INVAR_GRAPH_TRANSFER_PARTS,      /* all-gather: `full` consists of an equal part of each rank,
                                        `local` is this rank's */
    INVAR_GRAPH_TRANSFER_ROW_RANGES, /* all-gather: each rank has a range of the rows of `full`,
                                        as `local` or, if `local` is absent, already in `full` */
    INVAR_GRAPH_TRANSFER_EXCHANGE,   /* all-to-all: `local` has all rows; `full` receives this
                                        rank's range of rows from each rank, one after another */
    INVAR_GRAPH_TRANSFER_EXPERTS,    /* all-gather: each rank has the rows of its experts, in
                                        `full` */
    /*
     * All-to-all: `local` has this rank's rows, split into one contiguous block of columns per
     * rank; `full` receives all rows of this rank's range of columns. COLUMNS_TO_ROWS is the
     * inverse.
     */
    INVAR_GRAPH_TRANSFER_ROWS_TO_COLUMNS,
    INVAR_GRAPH_TRANSFER_COLUMNS_TO_ROWS
} invar_graph_transfer_kind;

/* Parallel axis whose ranks take part. */
typedef enum invar_graph_transfer_axis {
    INVAR_GRAPH_TRANSFER_TENSOR,
    INVAR_GRAPH_TRANSFER_EXPERT,
    INVAR_GRAPH_TRANSFER_CONTEXT
} invar_graph_transfer_axis;

typedef struct invar_graph_transfer {
    invar_graph_transfer_kind kind;
    invar_graph_transfer_axis axis;
    invar_tensor full, local; /* destination and source, contiguous; `local` may be absent */
    const int64_t *start; /* (ranks + 1) start rows of the ranges, in host memory, borrowed; NULL
                             for the equal ranges of invar_layout_range_of */
    invar_row_offsets experts; /* row offsets of all experts; INVAR_GRAPH_TRANSFER_EXPERTS only */
    int64_t first, count;      /* experts that the ranks of the axis divide; count 0 for all */
    bool dropped;              /* the result is not used, so the transfer does not run */
} invar_graph_transfer;

typedef struct invar_graph_node {
    invar_op op;
    int64_t layer; /* -1 if it belongs to no layer */
    size_t args;   /* offset of the arguments in `bytes` of the graph */
    /* first index in `address_offsets` of the graph: offsets of the addresses in the arguments */
    int32_t address_offsets;
    int32_t n_address_offsets;
    int32_t points, n_points;
    int32_t transfers, n_transfers; /* transfers that run after the node */
    int32_t overwrite_offset;       /* offset in the arguments of the i64 that makes sums start from
                                       zero, or -1 */
    bool dropped;                   /* no result is used, so the node does not run */
} invar_graph_node;

/* Memory of one tensor, or of one tensor's scales. */
typedef struct invar_graph_buffer {
    size_t bytes;
    int32_t input;       /* number of the input buffer; -1 if the buffer is planned */
    int32_t first, last; /* first and last node that uses it; first is -1 if it is not used */
    bool live;           /* the host accesses it, or a node that is not dropped reads it */
    size_t offset;       /* offset in the block, set by the plan */
    /* borrowed: point of another graph or of the loss that the buffer holds; may be NULL */
    const invar_graph_point *source;
    int32_t entry; /* index of the point that the buffer holds before the first node of the graph,
                      or -1 */
} invar_graph_buffer;

typedef struct invar_op_graph {
    invar_status status; /* first error */
    invar_graph_buffer *buffers;
    invar_graph_node *nodes;
    char *bytes; /* arguments of the nodes */
    uint16_t *address_offsets;
    invar_graph_point *points;
    invar_graph_transfer *transfers;
    int32_t n_buffers, n_nodes, n_address_offsets, n_points, n_transfers;
    size_t n_bytes;
    size_t capacity_bytes[6]; /* allocated bytes of each list */
    /* buffer index of each input; -1 if it is not used */
    int32_t inputs[INVAR_OP_GRAPH_MAX_INPUTS];
    /* first node of each section, and the end of the last */
    int32_t section_start[INVAR_OP_GRAPH_MAX_SECTIONS + 1];
    /* transfers before the first node of each section: index of the first, and their number */
    int32_t lead_transfers[INVAR_OP_GRAPH_MAX_SECTIONS];
    int32_t n_lead_transfers[INVAR_OP_GRAPH_MAX_SECTIONS];
    int32_t n_sections;
    int64_t rows, max_rows; /* invar_op_graph_reserve_rows; 0 if it was not called */
    size_t block;           /* bytes of planned memory */
    void *scratch;          /* work memory of the planner */
    size_t scratch_bytes;
} invar_op_graph;

invar_status invar_op_graph_new(invar_op_graph **out) INVAR_MUST_USE;
void invar_op_graph_free(invar_op_graph *graph);

/* Empties the graph for reuse; its memory stays allocated. */
void invar_op_graph_clear(invar_op_graph *graph);

/*
 * Declares a tensor (rows, cols), or (rows) if `cols` is 0, in a new planned buffer. Quantized
 * types get a second buffer for their scales.
 */
invar_tensor invar_op_graph_tensor(invar_op_graph *graph, invar_dtype dtype, int64_t rows,
                                   int64_t cols);

/*
 * Lets each later tensor of `rows` rows, or of a multiple, reserve the memory of `max_rows` rows,
 * or of that multiple of them. All splits of the same rows over ranks then need the same memory.
 * `max_rows` is the largest number of rows that any rank can get.
 */
void invar_op_graph_reserve_rows(invar_op_graph *graph, int64_t rows, int64_t max_rows);

/* Number of rows that a tensor of `rows` rows reserves memory for. */
int64_t invar_op_graph_rows(const invar_op_graph *graph, int64_t rows);

/*
 * Returns the symbolic address of input buffer `number`, which must be below
 * INVAR_OP_GRAPH_MAX_INPUTS.
 */
void *invar_op_graph_input(invar_op_graph *graph, int32_t number);

/*
 * Declares which point of another graph the buffer at `name` holds, for data-flow tracking.
 * `source` is borrowed.
 */
void invar_op_graph_source(invar_op_graph *graph, const void *name,
                           const invar_graph_point *source);

/*
 * Appends a node. `args` is the op's struct of ops.h; its addresses are symbolic or NULL. `layer`
 * is -1 if the node belongs to no layer.
 */
void invar_op_graph_append(invar_op_graph *graph, invar_op op, const void *args, int64_t layer);

#define INVAR_APPEND(program, layer, ID, fn, ...)                                                  \
    invar_op_graph_append((program), INVAR_OP_##ID, &(invar_##fn##_args){__VA_ARGS__}, (layer))

/*
 * Lets the sums of the last node start from zero: at each execution the i64 at `offset` of its
 * arguments, the op's field `fresh`, is set to `overwrite` of invar_graph_exec_args.
 */
void invar_op_graph_mark_overwrite(invar_op_graph *graph, size_t offset);

/*
 * Declares that the buffer of point->rows holds this point of another graph before the first node,
 * until a node overwrites it. Call it between nodes, after all points of the last node are
 * appended.
 */
void invar_op_graph_initial_point(invar_op_graph *graph, const invar_graph_point *point);

/* Appends a point of the last node. */
void invar_op_graph_point(invar_op_graph *graph, const invar_graph_point *point);

/*
 * Appends a transfer after the last node; if the current section has no node yet, before its first
 * one.
 */
void invar_op_graph_transfer(invar_op_graph *graph, const invar_graph_transfer *transfer);

/*
 * Declares that the host reads or writes the tensor between the last node and the next. The buffer
 * counts as live and is not reused before that.
 */
void invar_op_graph_host_access(invar_op_graph *graph, const invar_tensor *tensor);

/* Ends a section: a run of nodes that invar_op_graph_run executes. */
void invar_op_graph_end_section(invar_op_graph *graph);

/*
 * Drops unused nodes from number `first` to the end: no later node or transfer that runs reads
 * their results, the host does not access them, no point of them is shown, and they do not write to
 * an input buffer. Transfers are dropped by the same rule; one may stay although its node is
 * dropped.
 */
void invar_op_graph_eliminate_dead(invar_op_graph *graph, int32_t first);

/*
 * Grows *list, which has *capacity bytes allocated and `used` in use, to at least `need` bytes.
 * Returns false if memory is short, and records the error in the graph.
 */
bool invar_op_graph_grow(invar_op_graph *graph, void *list, size_t *capacity, size_t used,
                         size_t need);

/* Returns the buffer index of a symbolic address; -1 for NULL. */
int32_t invar_op_graph_buffer_of(const void *name);

/* Returns the offset of a symbolic address in its buffer. */
size_t invar_op_graph_offset_of(const void *name);

/*
 * Assigns an offset to every planned buffer and sets graph->block to the bytes that they need.
 * Returns the first error of the calls before it, if there is one.
 */
invar_status invar_op_graph_plan(invar_op_graph *graph) INVAR_MUST_USE;

#endif
