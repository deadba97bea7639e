/*
 * layout.h - parallel layout: how the ranks of a run divide its work and its memory.
 *
 * A layout is plain data, and it is equal on all ranks except for each rank's own coordinates. The
 * functions here compute every division from numbers alone, so each rank knows what every other
 * rank holds without sending lists. How a run is divided changes no bit of its results.
 *
 * An axis is one way to divide; its group consists of the ranks that differ in that axis only.
 * Data-parallel ranks hold the same parameters and compute different samples. Tensor-parallel ranks
 * hold different shards of every layer and expert-parallel ranks different experts; both compute
 * the same samples. Context-parallel ranks hold the same parameters and compute different rows of
 * the same samples. Pipeline-parallel ranks hold different layers. Ranks are numbered as in
 * Megatron: tensor changes fastest, then context, expert, data, pipeline.
 *
 * A NULL layout stands for a single rank. Collectives over a group must be called by all of its
 * ranks.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_RANKS_LAYOUT_LAYOUT_H
#define INVAR_ENGINE_RANKS_LAYOUT_LAYOUT_H

#include "engine/ranks/comm/comm.h"

typedef struct invar_layout_axis {
    invar_comm *comm; /* communicator of the ranks along this axis */
    int rank, size;   /* index of this rank on the axis, and number of ranks */
    /* like `comm`, for transfers of device memory; NULL if absent */
    invar_comm *device_comm;
    /* (2, invar_layout_bucket_bytes) buffers in device memory; NULL if there is no device_comm */
    char *buckets;
} invar_layout_axis;

/*
 * Ranks that only sample: the last ones of the rollout group, in engines that hold one model each.
 */
typedef struct invar_layout_engines {
    int first; /* first rank of the first engine */
    /* Ranks per engine; 0 if no rank only samples: each rank of the rollout group is an engine. */
    int ranks_per_engine;
} invar_layout_engines;

typedef struct invar_layout {
    invar_comm *world;    /* all ranks; borrowed unless simulated_peers is set */
    bool simulated_peers; /* the peers do not exist (dry run): transfers are counted only */
    double timeout_s;     /* timeout of a wait without progress of any rank; 0 to wait forever */
    size_t bucket_bytes;  /* approximate number of bytes of a block that are sent at a time */
    invar_layout_axis tensor, context, expert, data, pipeline;
    /* Ranks of the data and context axes: each of them samples different prompts in a rollout. */
    invar_layout_axis rollout_group;
    /*
     * Second communicator of the pipeline axis, because gradients and activations overtake each
     * other.
     */
    invar_comm *backward_comm;
    int expert_tensor;  /* ranks of the tensor axis that divide one expert: 1 or all */
    int virtual_stages; /* model chunks (runs of layers) per pipeline rank */
    /* ranks of the tensor axis also divide the rows between the sums of a layer */
    bool sequence_parallel;
    invar_layout_engines engines;
} invar_layout;

/* Number of ranks per axis. The data axis gets the rest of the world. */
typedef struct invar_layout_sizes {
    int tensor;         /* ranks that divide each layer */
    int expert_tensor;  /* ranks that divide each expert: 1 or equal to `tensor` */
    int pipeline;       /* pipeline stages */
    int virtual_stages; /* model chunks per pipeline stage, interleaved with those of the other
                           stages */
    int expert;         /* ranks that divide the experts of a layer; 0 means 1 */
    int context;        /* ranks that divide rows and hold the same parameters; 0 means 1 */
    bool sequence;      /* tensor-parallel ranks divide the rows between the sums of a layer */
} invar_layout_sizes;

/* Coordinates of a rank on all axes. */
typedef struct invar_rank_coords {
    int tensor, context, expert, data, pipeline;
} invar_rank_coords;

#define INVAR_LAYOUT_MAX_CHUNKS 64
#define INVAR_LAYOUT_BUCKET ((size_t)64 << 20)

/*
 * Initializes a layout in which all ranks of the world are data-parallel, with buckets of
 * INVAR_LAYOUT_BUCKET bytes. `world` is borrowed and must outlive the layout. `seconds` is the
 * timeout of transfers, 0 for none.
 */
void invar_layout_init(invar_layout *out, invar_comm *world, double seconds);

/*
 * Divides the model, too. Collective: all ranks call it once, after invar_layout_init. Returns
 * INVAR_E_INVALID if the number of ranks is not a multiple of invar_layout_model_ranks. Release
 * with invar_layout_release, also after a failure.
 */
invar_status invar_layout_divide(invar_layout *layout,
                                 const invar_layout_sizes *sizes) INVAR_MUST_USE;
void invar_layout_release(invar_layout *layout);

/*
 * Builds the layout that rank `rank` of `ranks` ranks would have, with peers that do not exist
 * (invar_comm_simulated). Returns INVAR_E_INVALID if `ranks` is not a multiple of
 * invar_layout_model_ranks. Release with invar_layout_release, also after a failure.
 */
invar_status invar_layout_simulate(invar_layout *out, const invar_layout_sizes *sizes, int ranks,
                                   int rank) INVAR_MUST_USE;

/*
 * Sets only the sizes of a layout of `ranks` ranks, without communicators, to compute what ranks
 * hold. `ranks` may differ from the number of ranks of this run. Returns INVAR_E_INVALID if it is
 * not a multiple of invar_layout_model_ranks.
 */
invar_status invar_layout_init_sizes(invar_layout *out, const invar_layout_sizes *sizes,
                                     int ranks) INVAR_MUST_USE;

/* Coordinates of a rank of the world, and the inverse: the rank with the given coordinates. */
invar_rank_coords invar_rank_coords_of(const invar_layout *layout, int rank);
int invar_layout_rank_of(const invar_layout *layout, const invar_rank_coords *coords);

/*
 * Returns the number of ranks that compute the same samples together, which is the number of parts
 * that the model and its rows are divided into.
 */
int invar_layout_model_ranks(const invar_layout_sizes *sizes);

/*
 * Returns the largest number of bytes that a rank sends or receives at a time along an axis
 * (engine/ranks/layout/bucket_plan.h).
 */
size_t invar_layout_bucket_bytes(const invar_layout *layout, const invar_layout_axis *axis);

/*
 * Returns true if transfers must be skipped: on a dry-run device the peers do not take part, unless
 * they are simulated.
 */
static inline bool invar_layout_skips_transfers(const invar_layout *layout, bool dry)
{
    return dry && !layout->simulated_peers;
}

/* Returns true if there are data-parallel ranks, which compute other samples. */
static inline bool invar_layout_has_data_parallel(const invar_layout *layout)
{
    return layout && layout->data.size > 1;
}

/* Returns true if there are pipeline-parallel ranks, which hold other layers. */
static inline bool invar_layout_is_pipelined(const invar_layout *layout)
{
    return layout && layout->pipeline.size > 1;
}

/* ---- who holds what -------------------------------------------------------------------------- */

typedef struct invar_index_range {
    int64_t first, count;
} invar_index_range;

/*
 * Range of the `count` samples that a rank generates or scores. Ranges are contiguous, in rank
 * order, and their sizes differ by at most 1.
 */
invar_index_range invar_layout_range_of(int64_t count, int size, int rank);

/*
 * Sampling engines: their number; the engine of a rank of the rollout group, or -1 if the rank does
 * not sample; and whether the rank is the one that sends the samples of its engine to others.
 */
int invar_layout_engine_count(const invar_layout *layout);
int invar_layout_engine_of(const invar_layout *layout, int rank);
bool invar_layout_engine_sends(const invar_layout *layout, int rank);

/* Bytes [first, first + bytes) of a block. */
typedef struct invar_byte_range {
    size_t first, bytes;
} invar_byte_range;

/*
 * Reports progress of this rank, so that the ranks that wait for it do not time out
 * (invar_comm_heartbeat). Does nothing without a timeout.
 */
void invar_layout_heartbeat(const invar_layout *layout);

/* ---- transfers ------------------------------------------------------------------------------- */

/*
 * All-gather in place: `array`, in host memory, consists of one part per rank of the axis, in rank
 * order, and bytes[r] is the size of the part of rank r. Each rank has its own part filled in on
 * entry and all parts on return. Collective over the axis.
 */
invar_status invar_layout_gather(const invar_layout *layout, const invar_layout_axis *axis,
                                 const char *phase, void *array,
                                 const size_t *bytes) INVAR_MUST_USE;

#endif
