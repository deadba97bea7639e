/*
 * layout.c - builds the communicators of a parallel layout and computes ranges and coordinates.
 *
 * invar_layout_divide splits the world communicator once per axis. The color of a group is the rank
 * of its member with coordinate 0 on that axis, so that all ranks agree without communication. A
 * simulated layout has the same sizes and coordinates, with communicators that move nothing.
 * Communicators that alias the world are not freed on release.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ranks/layout/layout.h"

#include "base/hash.h"

#include "base/invar_banned.h"

static invar_layout_axis axis_of(invar_comm *comm)
{
    return (invar_layout_axis){
        .comm = comm, .rank = invar_comm_rank(comm), .size = invar_comm_size(comm)};
}

void invar_layout_init(invar_layout *out, invar_comm *world, double seconds)
{
    *out = (invar_layout){.world = world,
                          .timeout_s = seconds,
                          .bucket_bytes = INVAR_LAYOUT_BUCKET,
                          .tensor = {.size = 1},
                          .context = {.size = 1},
                          .expert = {.size = 1},
                          .data = axis_of(world),
                          .rollout_group = axis_of(world),
                          .pipeline = {.size = 1},
                          .expert_tensor = 1,
                          .virtual_stages = 1};
}

/* Splits the world: ranks of one color, in world order, form the axis. */
static invar_status make_axis(invar_layout_axis *out, const invar_layout *layout, int64_t color,
                              const char *phase)
{
    invar_comm *comm = NULL;

    INVAR_TRY(invar_comm_split(&comm, layout->world, color, 0, phase, layout->timeout_s));
    *out = axis_of(comm);
    return INVAR_OK;
}

/* Makes the communicators of all axes. The color of a group is its first rank on the axis. */
static invar_status make_axes(invar_layout *layout)
{
    const invar_rank_coords own = invar_rank_coords_of(layout, invar_comm_rank(layout->world));
    invar_rank_coords tensor = own, context = own, expert = own, data = own, pipeline = own;

    tensor.tensor = context.context = expert.expert = data.data = pipeline.pipeline = 0;
    INVAR_TRY(make_axis(&layout->tensor, layout, invar_layout_rank_of(layout, &tensor),
                        "tensor-parallel ranks"));
    INVAR_TRY(make_axis(&layout->context, layout, invar_layout_rank_of(layout, &context),
                        "context-parallel ranks"));
    INVAR_TRY(make_axis(&layout->expert, layout, invar_layout_rank_of(layout, &expert),
                        "expert-parallel ranks"));
    INVAR_TRY(make_axis(&layout->data, layout, invar_layout_rank_of(layout, &data),
                        "data-parallel ranks"));
    return make_axis(&layout->pipeline, layout, invar_layout_rank_of(layout, &pipeline),
                     "pipeline-parallel ranks");
}

/* Makes the rollout group; without context-parallel ranks it is the data axis. */
static invar_status make_rollout_group(invar_layout *layout)
{
    invar_rank_coords first = invar_rank_coords_of(layout, invar_comm_rank(layout->world));

    first.data = first.context = 0;
    layout->rollout_group = layout->data;
    return layout->context.size == 1
               ? INVAR_OK
               : make_axis(&layout->rollout_group, layout, invar_layout_rank_of(layout, &first),
                           "ranks that sample");
}

static int at_least_1(int size)
{
    return size > 0 ? size : 1;
}

int invar_layout_model_ranks(const invar_layout_sizes *sizes)
{
    return sizes->tensor * at_least_1(sizes->context) * at_least_1(sizes->expert) * sizes->pipeline;
}

/* Sets the sizes of all axes. */
static invar_status set_axis_sizes(invar_layout *layout, const invar_layout_sizes *sizes)
{
    int world = layout->data.size, parts = invar_layout_model_ranks(sizes);

    layout->tensor.size = sizes->tensor;
    layout->context.size = at_least_1(sizes->context);
    layout->expert.size = at_least_1(sizes->expert);
    if (world % parts != 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%d ranks: a model cut into %d parts (tensor-model-parallel-size %d x "
                          "context-parallel-size %d x expert-model-parallel-size %d x "
                          "pipeline-model-parallel-size %d) needs a multiple of %d",
                          world, parts, sizes->tensor, layout->context.size, layout->expert.size,
                          sizes->pipeline, parts);
    layout->pipeline.size = sizes->pipeline;
    layout->expert_tensor = sizes->expert_tensor;
    layout->virtual_stages = sizes->virtual_stages;
    layout->sequence_parallel = sizes->sequence;
    layout->data = (invar_layout_axis){.size = world / parts};
    layout->rollout_group = (invar_layout_axis){.size = layout->data.size * layout->context.size};
    return INVAR_OK;
}

invar_status invar_layout_divide(invar_layout *layout, const invar_layout_sizes *sizes)
{
    if (invar_layout_model_ranks(sizes) == 1)
        return INVAR_OK;
    INVAR_TRY(set_axis_sizes(layout, sizes));
    INVAR_TRY(make_axes(layout));
    INVAR_TRY(make_rollout_group(layout));
    return invar_comm_split(&layout->backward_comm, layout->pipeline.comm, 0, 0,
                            "pipeline-parallel ranks", layout->timeout_s);
}

invar_status invar_layout_init_sizes(invar_layout *out, const invar_layout_sizes *sizes, int ranks)
{
    *out = (invar_layout){.data = {.size = ranks}};
    return set_axis_sizes(out, sizes);
}

static invar_status simulate_axis(invar_layout_axis *axis, int rank)
{
    axis->rank = rank;
    return invar_comm_simulated(&axis->comm, rank, axis->size);
}

invar_status invar_layout_simulate(invar_layout *out, const invar_layout_sizes *sizes, int ranks,
                                   int rank)
{
    invar_comm *world;
    invar_rank_coords place;

    *out = (invar_layout){.world = NULL};
    INVAR_TRY(invar_comm_simulated(&world, rank, ranks));
    invar_layout_init(out, world, 0);
    out->simulated_peers = true;
    out->data.comm = out->rollout_group.comm = NULL;
    INVAR_TRY(set_axis_sizes(out, sizes));
    place = invar_rank_coords_of(out, rank);
    INVAR_TRY(simulate_axis(&out->tensor, place.tensor));
    INVAR_TRY(simulate_axis(&out->context, place.context));
    INVAR_TRY(simulate_axis(&out->expert, place.expert));
    INVAR_TRY(simulate_axis(&out->data, place.data));
    INVAR_TRY(simulate_axis(&out->rollout_group, place.data * out->context.size + place.context));
    INVAR_TRY(simulate_axis(&out->pipeline, place.pipeline));
    return invar_comm_simulated(&out->backward_comm, place.pipeline, out->pipeline.size);
}

void invar_layout_release(invar_layout *layout)
{
    invar_layout_axis *const axes[] = {&layout->tensor, &layout->context, &layout->expert,
                                       &layout->data, &layout->pipeline};

    if (layout->rollout_group.comm != layout->data.comm &&
        layout->rollout_group.comm != layout->world)
        invar_comm_free(layout->rollout_group.comm);
    layout->rollout_group.comm = NULL;
    for (size_t i = 0; i < sizeof axes / sizeof *axes; i++) {
        if (axes[i]->comm != layout->world)
            invar_comm_free(axes[i]->comm);
        axes[i]->comm = NULL;
    }
    invar_comm_free(layout->backward_comm);
    layout->backward_comm = NULL;
    if (layout->simulated_peers)
        invar_comm_free(layout->world);
    layout->simulated_peers = false;
}

invar_rank_coords invar_rank_coords_of(const invar_layout *layout, int rank)
{
    const int sizes[] = {layout->tensor.size, layout->context.size, layout->expert.size,
                         layout->data.size};
    invar_rank_coords place;
    int *const of[] = {&place.tensor, &place.context, &place.expert, &place.data};

    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++) {
        *of[i] = rank % sizes[i];
        rank /= sizes[i];
    }
    place.pipeline = rank;
    return place;
}

size_t invar_layout_bucket_bytes(const invar_layout *layout, const invar_layout_axis *axis)
{
    size_t leaves = (size_t)axis->size * INVAR_TREE_LEAF_BYTES;

    return layout->bucket_bytes > leaves ? layout->bucket_bytes : leaves;
}

int invar_layout_rank_of(const invar_layout *layout, const invar_rank_coords *coords)
{
    int rank = coords->pipeline * layout->data.size + coords->data;

    rank = rank * layout->expert.size + coords->expert;
    return (rank * layout->context.size + coords->context) * layout->tensor.size + coords->tensor;
}

/*
 * The first count % size ranks get one more; this form cannot overflow, unlike count * rank / size.
 */
invar_index_range invar_layout_range_of(int64_t count, int size, int rank)
{
    int64_t each = count / size, rest = count % size;

    return (invar_index_range){rank * each + (rank < rest ? rank : rest),
                               each + (rank < rest ? 1 : 0)};
}

int invar_layout_engine_count(const invar_layout *layout)
{
    const invar_layout_engines *engines = &layout->engines;

    if (engines->ranks_per_engine == 0)
        return layout->rollout_group.size;
    return (layout->rollout_group.size - engines->first) / engines->ranks_per_engine;
}

int invar_layout_engine_of(const invar_layout *layout, int rank)
{
    const invar_layout_engines *engines = &layout->engines;

    if (engines->ranks_per_engine == 0)
        return rank;
    return rank < engines->first ? -1 : (rank - engines->first) / engines->ranks_per_engine;
}

bool invar_layout_engine_sends(const invar_layout *layout, int rank)
{
    const invar_layout_engines *engines = &layout->engines;

    if (engines->ranks_per_engine == 0)
        return true;
    return rank >= engines->first && (rank - engines->first) % engines->ranks_per_engine == 0;
}

void invar_layout_heartbeat(const invar_layout *layout)
{
    if (layout && layout->timeout_s > 0)
        invar_comm_heartbeat(layout->world, layout->timeout_s);
}

invar_status invar_layout_gather(const invar_layout *layout, const invar_layout_axis *axis,
                                 const char *phase, void *array, const size_t *bytes)
{
    invar_comm_transfer transfer = {.op = INVAR_COMM_ALLGATHERV,
                                    .phase = phase,
                                    .timeout_s = layout->timeout_s,
                                    .in = array,
                                    .out = array,
                                    .out_bytes = bytes};

    for (int r = 0; r < axis->rank; r++)
        transfer.in = (const char *)transfer.in + bytes[r];
    return invar_comm_run(axis->comm, &transfer);
}
