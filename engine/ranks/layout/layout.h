/*
 * layout.h - who owns what: how the ranks of a run divide its work and its memory.
 *
 * A layout is plain data, and every rank of a run has the same but for its own places. Whatever is
 * divided asks the functions here, which are functions of numbers alone: so every rank knows what
 * every other one has, and nobody sends lists around. What is divided changes no bit.
 *
 * An axis is a way to divide; its group are the ranks that differ in that axis alone. Ranks of the
 * data axis hold the same parameters and compute other samples; those of the tensor axis hold other
 * pieces of every layer, those of the expert axis other experts, and both compute the same samples;
 * those of the context axis hold the same parameters and compute other rows of the same samples;
 * those of the pipeline axis hold other layers. Ranks are numbered as in Megatron: tensor changes
 * fastest, then context, expert, data, pipeline.
 *
 * NULL stands for one rank. The calls of a layout's groups are made by all of their ranks.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RANKS_LAYOUT_LAYOUT_H
#define INVAR_ENGINE_RANKS_LAYOUT_LAYOUT_H

#include "engine/ranks/comm/comm.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_layout_axis {
    invar_comm *comm;        /* the ranks that divide along it */
    int rank, size;          /* this one among them */
    invar_comm *device_comm; /* the same ranks, for moves of their devices' memory; NULL: none */
    char *buckets;           /* (2, invar_layout_bucket_bytes) in that memory */
} invar_layout_axis;

/* Ranks of the data axis that only sample, in engines that hold a model each; the last ones. */
typedef struct invar_layout_engines {
    int first; /* of them */
    /* Ranks of one engine; 0 if no rank only samples: each data-parallel rank is an engine then. */
    int ranks_per_engine;
} invar_layout_engines;

typedef struct invar_layout {
    invar_comm *world;    /* all ranks; borrowed, unless imagined */
    bool simulated_peers; /* one rank plans: moves on a dry device are made, and counted */
    double seconds;       /* so long ranks wait where no rank gets on; 0: for ever */
    size_t bucket;        /* bytes of a block that travel at a time, more or less */
    invar_layout_axis tensor, context, expert, data, pipeline;
    /* the ranks of data and context: in a rollout all have other samples */
    invar_layout_axis rollout_group;
    /* the pipeline's ranks again: gradients and streams overtake each other */
    invar_comm *backward_comm;
    int expert_tensor;      /* ranks of the tensor axis that divide an expert: 1 or all */
    int virtual_stages;     /* runs of layers that a rank of the pipeline has */
    bool sequence_parallel; /* ranks of the tensor axis divide rows between their sums, too */
    invar_layout_engines engines;
} invar_layout;

/* Into how many parts a model and its rows are cut; what is left of the world is data-parallel. */
typedef struct invar_layout_sizes {
    int tensor;        /* of each layer */
    int expert_tensor; /* of each expert: 1 or as `tensor` */
    int pipeline;      /* ranks with layers of their own */
    int chunks;        /* runs of layers of each of them, which it has in turn with the others */
    int expert;        /* of the experts of a layer; 0: 1 */
    int context;       /* ranks that divide rows, and hold the same; 0: 1 */
    bool sequence;     /* rows between the sums of a layer are divided as `tensor` */
} invar_layout_sizes;

/* A rank's numbers on all axes. */
typedef struct invar_rank_coords {
    int tensor, context, expert, data, pipeline;
} invar_rank_coords;

#define INVAR_LAYOUT_MAX_CHUNKS 64
#define INVAR_LAYOUT_BUCKET ((size_t)64 << 20)

/*
 * All ranks of the world are data-parallel; buckets are of INVAR_LAYOUT_BUCKET. The world is
 * borrowed as long as the layout is used.
 */
void invar_layout_init(invar_layout *out, invar_comm *world, double seconds);

/*
 * Cuts the model, too: a call of all ranks, once, after init. INVAR_E_INVALID where the world is no
 * multiple of so many ranks. Release, after a failure as well.
 */
invar_status invar_layout_divide(invar_layout *layout,
                                 const invar_layout_sizes *sizes) INVAR_MUST_USE;
void invar_layout_release(invar_layout *layout);

/*
 * As one of `ranks` ranks would have it that are not there (invar_comm_simulated). INVAR_E_INVALID
 * as above; release.
 */
invar_status invar_layout_simulate(invar_layout *out, const invar_layout_sizes *sizes, int ranks,
                                   int rank) INVAR_MUST_USE;

/*
 * The sizes alone of a layout of `ranks` ranks, which may be others than those of this one: for
 * those who ask what ranks have. INVAR_E_INVALID as above.
 */
invar_status invar_layout_init_sizes(invar_layout *out, const invar_layout_sizes *sizes,
                                     int ranks) INVAR_MUST_USE;

/* Of any rank of the world, and the rank with such numbers. */
invar_rank_coords invar_rank_coords_of(const invar_layout *layout, int rank);
int invar_layout_rank_of(const invar_layout *layout, const invar_rank_coords *place);

/* How many ranks compute the same samples together. */
int invar_layout_parts(const invar_layout_sizes *sizes);

/*
 * Bytes that a rank gives at a time along an axis, or gets, at most
 * (engine/ranks/layout/bucket_plan.h).
 */
size_t invar_layout_bucket_bytes(const invar_layout *layout, const invar_layout_axis *axis);

/* A rank that plans on a dry device makes no moves: the others do not, unless they are imagined. */
static inline bool invar_layout_skips_transfers(const invar_layout *layout, bool dry)
{
    return dry && !layout->simulated_peers;
}

/* Do other ranks compute other samples? */
static inline bool invar_layout_divides(const invar_layout *layout)
{
    return layout && layout->data.size > 1;
}

/* Do others have other layers? */
static inline bool invar_layout_pipes(const invar_layout *layout)
{
    return layout && layout->pipeline.size > 1;
}

/* ---- who owns what --------------------------------------------------------------------------- */

/*
 * Units of an optimizer step go round: unit u is computed by rank u mod size. So ranks compute
 * neighbours at the same time, and the sum over units can follow them in order.
 */
int invar_layout_unit_rank(int64_t unit, int size);

typedef struct invar_index_range {
    int64_t first, count;
} invar_index_range;

/* Which of `count` samples a rank generates or scores: neighbours, their numbers differ by 1. */
invar_index_range invar_layout_range_of(int64_t count, int size, int rank);

/*
 * Who samples: how many engines there are, that of one of the samplers (-1: it has none), and
 * whether the rank is the one that gives the engine's samples to others.
 */
int invar_layout_engine_count(const invar_layout *layout);
int invar_layout_engine_of(const invar_layout *layout, int rank);
bool invar_layout_engine_gives(const invar_layout *layout, int rank);

/* Bytes of a block. */
typedef struct invar_byte_range {
    size_t first, bytes;
} invar_byte_range;

/* This rank gets on, and whoever waits for it goes on waiting (invar_comm_heartbeat). */
void invar_layout_heartbeat(const invar_layout *layout);

/* ---- moves ----------------------------------------------------------------------------------- */

/*
 * An array of the host that every rank of an axis has a piece of becomes whole on each of them. The
 * pieces lie in it in the order of ranks, bytes[r] is the size of that of rank r.
 */
invar_status invar_layout_gather(const invar_layout *layout, const invar_layout_axis *axis,
                                 const char *phase, void *array,
                                 const size_t *bytes) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
