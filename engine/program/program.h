/*
 * program.h - a list of calls of ops, written down before any of them runs.
 *
 * A tensor of a program has no memory yet: its address is a name. Rooms are memory that the plan
 * (plan.h) will place; given memory is what whoever runs the program brings along: parameters,
 * gradients, arrays. Views of a tensor (columns, rows) are made of names as they are of addresses,
 * so ops' arguments are written as if everything were there.
 *
 *     invar_program_new(&program);
 *     y = invar_program_room(program, INVAR_DTYPE_F32, rows, cols);
 *     INVAR_APPEND(program, ADD, add, .out = y, .a = x, .b = z);
 *     invar_program_point(program, &(invar_point){.name = "sum", .rows = y});
 *     invar_program_plan(program);                      places, bytes: a pure function of the list
 *     invar_program_run(program, 0, &run);              run.h
 *
 * Where ranks share the work, some calls make only this rank's part of a tensor; moves
 * behind them bring the others', so that later calls find all of it.
 *
 * Appending does not fail; what went wrong is told by the plan.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_PROGRAM_PROGRAM_H
#define INVAR_ENGINE_PROGRAM_PROGRAM_H

#include "kernels-deterministic/ops.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_PROGRAM_MOST_GIVEN 32
#define INVAR_PROGRAM_MOST_SEGMENTS 8

/* A result that somebody may look at: an output of the call that it was appended after. */
typedef struct invar_point {
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
    invar_segments experts;
    /* Where each tensor-parallel rank's rows begin, which are here for this one; NULL: all are */
    const int64_t *shares; /* borrowed */
    /* The same of context-parallel ranks, each of which has what the shares are of. */
    const int64_t *contexts;
} invar_point;

/* How bytes go between ranks, so that later calls find what they read. */
typedef enum invar_move_kind {
    INVAR_MOVE_PARTS,    /* `whole` is an equal part of each rank, `own` this one's */
    INVAR_MOVE_SHARES,   /* rows of `whole`: each rank has a share, in its place or as `own` */
    INVAR_MOVE_EXCHANGE, /* `own` has all rows; `whole` gets, of each rank's, this rank's share */
    INVAR_MOVE_EXPERTS,  /* rows of `whole`: each rank has those of its experts */
    /* `own` is this rank's rows, cut into shares of columns, each in one piece; `whole` gets all
       rows of this rank's share of columns. And back. */
    INVAR_MOVE_SPREAD,
    INVAR_MOVE_RETURN
} invar_move_kind;

/* Which ranks. */
typedef enum invar_move_axis {
    INVAR_MOVE_TENSOR,
    INVAR_MOVE_EXPERT,
    INVAR_MOVE_CONTEXT
} invar_move_axis;

typedef struct invar_move {
    invar_move_kind kind;
    invar_move_axis axis;
    invar_tensor whole, own; /* contiguous */
    const int64_t *start;    /* (ranks + 1) of shares: where they begin, the host's, borrowed; NULL:
                                as invar_layout_share_of has it */
    invar_segments experts;  /* rows of all experts; with INVAR_MOVE_EXPERTS only */
    int64_t first, count;    /* of these, the experts that the ranks divide; count 0: all */
    bool dropped;            /* nobody wants what it brings: it does not run */
} invar_move;

typedef struct invar_call {
    invar_op op;
    int64_t layer;  /* -1: of none */
    size_t args;    /* where they are in the program's bytes */
    int32_t places; /* where in the arguments addresses are: the first of a list */
    int32_t n_places;
    int32_t points, n_points;
    int32_t moves, n_moves; /* behind the call */
    int32_t fresh;          /* where an i64 is that says that sums begin anew; -1: nowhere */
    bool dropped;           /* nobody wants its results: it does not run */
} invar_call;

/* Memory of a program. */
typedef struct invar_room {
    size_t bytes;
    int32_t given;             /* number of what is given; -1: planned */
    int32_t first, last;       /* calls between which it is used; first -1: by none */
    bool wanted;               /* the host touches it, or a call reads it that is not dropped */
    size_t offset;             /* in the block, once planned */
    const invar_point *source; /* borrowed: the value that comes from elsewhere; NULL: none */
    int32_t entry;             /* the point that it holds before the first call; -1: none */
} invar_room;

typedef struct invar_program {
    invar_status status; /* the first that went wrong */
    invar_room *rooms;
    invar_call *calls;
    char *bytes; /* of arguments */
    uint16_t *places;
    invar_point *points;
    invar_move *moves;
    int32_t n_rooms, n_calls, n_places, n_points, n_moves;
    size_t n_bytes;
    size_t room_for[6];                               /* what the lists have room for, in bytes */
    int32_t given[INVAR_PROGRAM_MOST_GIVEN];          /* the room of each, or -1 */
    int32_t segment[INVAR_PROGRAM_MOST_SEGMENTS + 1]; /* where each begins; the end */
    int32_t leads[INVAR_PROGRAM_MOST_SEGMENTS];       /* moves before its first call: the first, */
    int32_t n_leads[INVAR_PROGRAM_MOST_SEGMENTS];     /* and how many */
    int32_t n_segments;
    int64_t rows, most; /* invar_program_stretch; 0: none */
    size_t block;       /* bytes of planned memory */
    void *scratch;      /* of planning */
    size_t scratch_bytes;
} invar_program;

invar_status invar_program_new(invar_program **out) INVAR_MUST_USE;
void invar_program_free(invar_program *program);

/* Empty again; its memory stays. */
void invar_program_clear(invar_program *program);

/* Room for a new tensor: (rows, cols), or (rows) with cols 0; quantised types with their scales. */
invar_tensor invar_program_room(invar_program *program, invar_dtype dtype, int64_t rows,
                                int64_t cols);

/*
 * From now on, memory for so many rows, or for several times as many, is what `most` rows would
 * take: the number of rows is one of those that a division of the same rows can have, and what it
 * takes is to be the same for all of these.
 */
void invar_program_stretch(invar_program *program, int64_t rows, int64_t most);

/* Rows that memory for so many has room for. */
int64_t invar_program_rows(const invar_program *program, int64_t rows);

/* The address by which the program names given memory of that number. */
void *invar_program_given(invar_program *program, int32_t number);

/* What memory holds that no call writes, for those who ask what a point was computed from. */
void invar_program_source(invar_program *program, const void *name, const invar_point *source);

/* `args` is the struct of ops.h; its addresses are names of the program, or NULL. */
void invar_program_call(invar_program *program, invar_op op, const void *args, int64_t layer);

#define INVAR_APPEND(program, layer, ID, fn, ...)                                                  \
    invar_program_call((program), INVAR_OP_##ID, &(invar_##fn##_args){__VA_ARGS__}, (layer))

/* The last call's sums begin anew where the run says so; `offset` is that of its `fresh`. */
void invar_program_fresh(invar_program *program, size_t offset);

/*
 * The room of point->rows holds this point of another program before the first call: for those who
 * ask, too, and until a call writes there. Between calls whose points are all appended.
 */
void invar_program_enter(invar_program *program, const invar_point *point);

/* A point of the last call. */
void invar_program_point(invar_program *program, const invar_point *point);

/* Behind the last call; where a segment has none yet, before its first one. */
void invar_program_move(invar_program *program, const invar_move *move);

/* The host reads or writes the tensor between the calls before and those after. */
void invar_program_touch(invar_program *program, const invar_tensor *tensor);

/* Ends a segment: calls that run together. */
void invar_program_end_segment(invar_program *program);

/*
 * Drops calls from number `first` to the end whose results nobody wants: no later call or move
 * reads them, the host does not touch them, no point of them is shown, and they go into no given
 * memory. So with moves, of which some may stay where the call before them does not.
 */
void invar_program_drop(invar_program *program, int32_t first);

/* A list with room for `need` bytes, of which `used` are kept; false, and noted, without memory. */
bool invar_program_grow(invar_program *program, void *list, size_t *room, size_t used, size_t need);

/* Number of the room that an address names; -1: NULL. */
int32_t invar_program_room_of(const void *name);

/* Bytes behind the beginning of its room. */
size_t invar_program_offset_of(const void *name);

/* Places every room; program->block is what they need. What went wrong in between comes out. */
invar_status invar_program_plan(invar_program *program) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
