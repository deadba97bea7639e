/*
 * op_graph.h - a list of calls of ops, written down before any of them runs.
 *
 * A tensor of a program has no memory yet: its address is a name. Rooms are memory that the plan
 * (graph_plan.c) will place; given memory is what whoever runs the program brings along:
 * parameters, gradients, arrays. Views of a tensor (columns, rows) are made of names as they are of
 * addresses, so ops' arguments are written as if everything were there.
 *
 *     invar_op_graph_new(&program);
 *     y = invar_op_graph_tensor(program, INVAR_DTYPE_F32, rows, cols);
 *     INVAR_APPEND(program, ADD, add, .out = y, .a = x, .b = z);
 *     invar_op_graph_point(program, &(invar_graph_point){.name = "sum", .rows = y});
 *     invar_op_graph_plan(program);                      places, bytes: a pure function of the list
 *     invar_op_graph_run(program, 0, &run);              graph_exec.h
 *
 * Where ranks share the work, some calls make only this rank's part of a tensor; moves
 * behind them bring the others', so that later calls find all of it.
 *
 * Appending does not fail; what went wrong is told by the plan.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_MODEL_GRAPH_OP_GRAPH_H
#define INVAR_ENGINE_MODEL_GRAPH_OP_GRAPH_H

#include "kernels-deterministic/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_OP_GRAPH_MAX_GIVEN 32
#define INVAR_OP_GRAPH_MAX_SEGMENTS 8

/* A result that somebody may look at: an output of the call that it was appended after. */
typedef struct invar_graph_point {
    const char *name;     /* borrowed: "q" */
    const char *suffix;   /* borrowed: "q" in "norm_in.q"; NULL: none */
    bool gradient;        /* of the value with this name: "dq" */
    bool backward;        /* made by the backward */
    bool stream;          /* the residual stream, or its gradient */
    bool again;           /* computed a second time: read by what follows, not shown */
    int64_t layer;        /* -1: of none */
    int32_t samples;      /* which of the run's lists of samples these are rows of */
    invar_tensor rows;    /* as the program names it */
    invar_tensor by_slot; /* (T, slots) i32: which of `rows` are a token's; absent: in order */
    /* Where experts' rows begin, of which each rank of that axis has its own; none: all are here */
    invar_row_offsets experts;
    /* Where each tensor-parallel rank's rows begin, which are here for this one; NULL: all are */
    const int64_t *shares; /* borrowed */
    /* The same of context-parallel ranks, each of which has what the shares are of. */
    const int64_t *contexts;
} invar_graph_point;

/* How bytes go between ranks, so that later calls find what they read. */
typedef enum invar_graph_transfer_kind {
    INVAR_GRAPH_TRANSFER_PARTS,    /* `whole` is an equal part of each rank, `own` this one's */
    INVAR_GRAPH_TRANSFER_SHARES,   /* rows of `whole`: each rank has a share, in its place or as
                                  * `own` */
    INVAR_GRAPH_TRANSFER_EXCHANGE, /* `own` has all rows; `whole` gets, of each rank's, this rank's
                                    * share */
    INVAR_GRAPH_TRANSFER_EXPERTS,  /* rows of `whole`: each rank has those of its experts */
    /* `own` is this rank's rows, cut into shares of columns, each in one piece; `whole` gets all
       rows of this rank's share of columns. And back. */
    INVAR_GRAPH_TRANSFER_SPREAD,
    INVAR_GRAPH_TRANSFER_RETURN
} invar_graph_transfer_kind;

/* Which ranks. */
typedef enum invar_graph_transfer_axis {
    INVAR_GRAPH_TRANSFER_TENSOR,
    INVAR_GRAPH_TRANSFER_EXPERT,
    INVAR_GRAPH_TRANSFER_CONTEXT
} invar_graph_transfer_axis;

typedef struct invar_graph_transfer {
    invar_graph_transfer_kind kind;
    invar_graph_transfer_axis axis;
    invar_tensor whole, local; /* contiguous */
    const int64_t *start; /* (ranks + 1) of shares: where they begin, the host's, borrowed; NULL:
                                as invar_layout_range_of has it */
    invar_row_offsets experts; /* rows of all experts; with INVAR_GRAPH_TRANSFER_EXPERTS only */
    int64_t first, count;      /* of these, the experts that the ranks divide; count 0: all */
    bool dropped;              /* nobody wants what it brings: it does not run */
} invar_graph_transfer;

typedef struct invar_graph_node {
    invar_op op;
    int64_t layer;  /* -1: of none */
    size_t args;    /* where they are in the program's bytes */
    int32_t places; /* where in the arguments addresses are: the first of a list */
    int32_t n_places;
    int32_t points, n_points;
    int32_t moves, n_moves; /* behind the call */
    int32_t fresh;          /* where an i64 is that says that sums begin anew; -1: nowhere */
    bool dropped;           /* nobody wants its results: it does not run */
} invar_graph_node;

/* Memory of a program. */
typedef struct invar_graph_buffer {
    size_t bytes;
    int32_t given;       /* number of what is given; -1: planned */
    int32_t first, last; /* calls between which it is used; first -1: by none */
    bool live;           /* the host touches it, or a call reads it that is not dropped */
    size_t offset;       /* in the block, once planned */
    const invar_graph_point *source; /* borrowed: the value that comes from elsewhere; NULL: none */
    int32_t entry;                   /* the point that it holds before the first call; -1: none */
} invar_graph_buffer;

typedef struct invar_op_graph {
    invar_status status; /* the first that went wrong */
    invar_graph_buffer *rooms;
    invar_graph_node *calls;
    char *bytes; /* of arguments */
    uint16_t *places;
    invar_graph_point *points;
    invar_graph_transfer *moves;
    int32_t n_rooms, n_calls, n_places, n_points, n_moves;
    size_t n_bytes;
    size_t room_for[6];                      /* what the lists have room for, in bytes */
    int32_t given[INVAR_OP_GRAPH_MAX_GIVEN]; /* the room of each, or -1 */
    int32_t section_start[INVAR_OP_GRAPH_MAX_SEGMENTS + 1]; /* where each begins; the end */
    int32_t leads[INVAR_OP_GRAPH_MAX_SEGMENTS];   /* moves before its first call: the first, */
    int32_t n_leads[INVAR_OP_GRAPH_MAX_SEGMENTS]; /* and how many */
    int32_t n_segments;
    int64_t rows, max_rows; /* invar_op_graph_reserve_rows; 0: none */
    size_t block;           /* bytes of planned memory */
    void *scratch;          /* of planning */
    size_t scratch_bytes;
} invar_op_graph;

invar_status invar_op_graph_new(invar_op_graph **out) INVAR_MUST_USE;
void invar_op_graph_free(invar_op_graph *program);

/* Empty again; its memory stays. */
void invar_op_graph_clear(invar_op_graph *program);

/* Room for a new tensor: (rows, cols), or (rows) with cols 0; quantized types with their scales. */
invar_tensor invar_op_graph_tensor(invar_op_graph *program, invar_dtype dtype, int64_t rows,
                                   int64_t cols);

/*
 * From now on, memory for so many rows, or for several times as many, is what `most` rows would
 * take: the number of rows is one of those that a division of the same rows can have, and what it
 * takes is to be the same for all of these.
 */
void invar_op_graph_reserve_rows(invar_op_graph *program, int64_t rows, int64_t most);

/* Rows that memory for so many has room for. */
int64_t invar_op_graph_rows(const invar_op_graph *program, int64_t rows);

/* The address by which the program names given memory of that number. */
void *invar_op_graph_input(invar_op_graph *program, int32_t number);

/* What memory holds that no call writes, for those who ask what a point was computed from. */
void invar_op_graph_source(invar_op_graph *program, const void *name,
                           const invar_graph_point *source);

/* `args` is the struct of ops.h; its addresses are names of the program, or NULL. */
void invar_op_graph_append(invar_op_graph *program, invar_op op, const void *args, int64_t layer);

#define INVAR_APPEND(program, layer, ID, fn, ...)                                                  \
    invar_op_graph_append((program), INVAR_OP_##ID, &(invar_##fn##_args){__VA_ARGS__}, (layer))

/* The last call's sums begin anew where the run says so; `offset` is that of its `fresh`. */
void invar_op_graph_mark_overwrite(invar_op_graph *program, size_t offset);

/*
 * The room of point->rows holds this point of another program before the first call: for those who
 * ask, too, and until a call writes there. Between calls whose points are all appended.
 */
void invar_op_graph_initial_point(invar_op_graph *program, const invar_graph_point *point);

/* A point of the last call. */
void invar_op_graph_point(invar_op_graph *program, const invar_graph_point *point);

/* Behind the last call; where a segment has none yet, before its first one. */
void invar_op_graph_move(invar_op_graph *program, const invar_graph_transfer *move);

/* The host reads or writes the tensor between the calls before and those after. */
void invar_op_graph_host_access(invar_op_graph *program, const invar_tensor *tensor);

/* Ends a segment: calls that run together. */
void invar_op_graph_end_section(invar_op_graph *program);

/*
 * Drops calls from number `first` to the end whose results nobody wants: no later call or move
 * reads them, the host does not touch them, no point of them is shown, and they go into no given
 * memory. So with moves, of which some may stay where the call before them does not.
 */
void invar_op_graph_eliminate_dead(invar_op_graph *program, int32_t first);

/* A list with room for `need` bytes, of which `used` are kept; false, and noted, without memory. */
bool invar_op_graph_grow(invar_op_graph *program, void *list, size_t *room, size_t used,
                         size_t need);

/* Number of the room that an address names; -1: NULL. */
int32_t invar_op_graph_room_of(const void *name);

/* Bytes behind the beginning of its room. */
size_t invar_op_graph_offset_of(const void *name);

/* Places every room; program->block is what they need. What went wrong in between comes out. */
invar_status invar_op_graph_plan(invar_op_graph *program) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
