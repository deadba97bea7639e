/*
 * partition.c - computes the shards that a rank holds, and rejects layouts that do not fit a model.
 *
 * A tensor-parallel size fits if every rank gets at least one non-empty logical shard of each
 * parameter and no group of query heads is separated from its kv head. A context-parallel size fits
 * if it divides the kv heads of every tensor-parallel rank, ranks divide the logical shards of the
 * query heads evenly or no shard ends within the query heads of one kv head, and every rank has at
 * least that many experts. An error lists the sizes that fit, found by trying them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/partition.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/model/graph/row_partition.h"
#include "engine/model/lora/adapters.h"
#include "kernels-deterministic/math/shards.h"

#include "base/invar_banned.h"

invar_model_partition invar_model_partition_of(const invar_layout *layout, int rank)
{
    invar_model_partition part = {
        .tensors = 1, .expert_tensors = 1, .experts = 1, .contexts = 1, .stages = 1, .chunks = 1};
    invar_rank_coords place;

    if (!layout)
        return part;
    place = invar_rank_coords_of(layout, rank);
    return (invar_model_partition){.tensor = place.tensor,
                                   .tensors = layout->tensor.size,
                                   .expert_tensors = layout->expert_tensor,
                                   .expert = place.expert,
                                   .experts = layout->expert.size,
                                   .context = place.context,
                                   .contexts = layout->context.size,
                                   .stage = place.pipeline,
                                   .stages = layout->pipeline.size,
                                   .chunks = layout->virtual_stages};
}

int32_t invar_model_partition_ranks(const invar_model_partition *part)
{
    return part->stages * part->experts * part->tensors;
}

int32_t invar_model_partition_number(const invar_model_partition *part)
{
    return (part->stage * part->experts + part->expert) * part->tensors + part->tensor;
}

invar_model_partition invar_model_partition_numbered(const invar_model_partition *part,
                                                     int32_t number)
{
    invar_model_partition out = *part;

    out.tensor = number % part->tensors;
    out.expert = number / part->tensors % part->experts;
    out.stage = number / part->tensors / part->experts;
    return out;
}

/* ---- layers ---------------------------------------------------------------------------------- */

invar_index_range invar_model_partition_chunk(const invar_model_partition *part, int64_t layers,
                                              int64_t chunk)
{
    return invar_layout_range_of(layers, part->stages * part->chunks, (int)chunk);
}

bool invar_model_partition_has(const invar_model_partition *part, int64_t layers, int64_t layer)
{
    for (int64_t c = part->stage; c < part->stages * part->chunks; c += part->stages) {
        invar_index_range share = invar_model_partition_chunk(part, layers, c);
        if (layer >= share.first && layer < share.first + share.count)
            return true;
    }
    return false;
}

static bool holds_param(const invar_model_partition *part, const invar_model_spec *spec,
                        const invar_param *p)
{
    bool first = part->stage == 0, last = part->stage == part->stages - 1;

    if (p->layer >= 0)
        return invar_model_partition_has(part, spec->layers, p->layer);
    if (p->kind == INVAR_PARAM_EMBEDDING)
        return first || (last && spec->tied && !spec->value_head);
    return last;
}

/* ---- logical shards -------------------------------------------------------------------------- */

/*
 * Returns true if other ranks hold other experts of the parameter; adapters follow the experts if
 * they are split like them.
 */
static bool is_split_by_experts(const invar_param *p)
{
    return p->kind == INVAR_PARAM_EXPERT ||
           (p->kind == INVAR_PARAM_ADAPTER && p->stack > 1 && !invar_adapter_is_uncut(p));
}

/* Returns the number of ranks that divide the parameter. */
static int32_t ranks_that_divide(const invar_model_partition *part, const invar_param *p)
{
    if (p->split.shards == 1)
        return 1;
    return is_split_by_experts(p) ? part->expert_tensors : part->tensors;
}

invar_param_shard invar_model_partition_shard(const invar_model_partition *part,
                                              const invar_model_spec *spec, const invar_param *p)
{
    invar_param_shard box = {
        .experts = p->stack, .rows = p->rows, .cols = p->cols, .n_shards = p->split.shards};
    int32_t ranks = ranks_that_divide(part, p);
    int64_t whole = p->split.columns ? p->cols : p->rows, first, end;

    if (!holds_param(part, spec, p))
        return (invar_param_shard){0};
    if (is_split_by_experts(p)) {
        invar_index_range share = invar_layout_range_of(p->stack, part->experts, part->expert);
        box.expert = share.first;
        box.experts = share.count;
    }
    if (ranks == 1)
        return box;
    box.n_shards = p->split.shards / ranks;
    box.first_shard = part->tensor * box.n_shards;
    first = invar_shard_start(whole, p->split.atom, p->split.shards, box.first_shard);
    end = invar_shard_start(whole, p->split.atom, p->split.shards, box.first_shard + box.n_shards);
    *(p->split.columns ? &box.col : &box.row) = first;
    *(p->split.columns ? &box.cols : &box.rows) = end - first;
    return box;
}

static int32_t rank_of_expert(const invar_model_partition *any, const invar_param *p,
                              int64_t expert)
{
    int32_t rank = any->experts - 1;

    while (invar_layout_range_of(p->stack, any->experts, rank).first > expert)
        rank--;
    return rank;
}

int32_t invar_model_partition_first(const invar_model_partition *any, const invar_model_spec *spec,
                                    const invar_param *p, int64_t expert, int32_t v)
{
    invar_model_partition part = *any;
    int32_t ranks = ranks_that_divide(any, p);

    part.tensor = ranks == 1 ? 0 : v / (p->split.shards / ranks);
    part.expert = is_split_by_experts(p) ? rank_of_expert(any, p, expert) : 0;
    part.stage = 0;
    while (!holds_param(&part, spec, p))
        part.stage++;
    return invar_model_partition_number(&part);
}

/* ---- memory ---------------------------------------------------------------------------------- */

invar_shard_runs invar_param_shard_runs_of(const invar_param *p, const invar_param_shard *shard)
{
    int64_t cols = p->cols ? p->cols : 1, own = p->cols ? shard->cols : 1;
    bool whole_rows = own == cols; // rows of an expert are then contiguous
    invar_shard_runs runs = {.in_expert = whole_rows ? 1 : shard->rows,
                             .length = whole_rows ? shard->rows * cols : own,
                             .first = (shard->expert * p->rows + shard->row) * cols + shard->col,
                             .step = cols,
                             .jump = p->rows * cols};

    runs.count = shard->experts * runs.in_expert;
    return runs;
}

void invar_param_shard_extract(float *out, const invar_param *p, const invar_param_shard *shard,
                               const float *full)
{
    invar_shard_runs runs = invar_param_shard_runs_of(p, shard);

    for (int64_t k = 0; k < runs.count; k++)
        memcpy(out + k * runs.length, full + invar_param_shard_run_at(&runs, k),
               (size_t)runs.length * sizeof *out);
}

void invar_param_shard_insert(float *full, const invar_param *p, const invar_param_shard *shard,
                              const float *values)
{
    invar_shard_runs runs = invar_param_shard_runs_of(p, shard);

    for (int64_t k = 0; k < runs.count; k++)
        memcpy(full + invar_param_shard_run_at(&runs, k), values + k * runs.length,
               (size_t)runs.length * sizeof *full);
}

/* ---- checks of tensor parallelism ------------------------------------------------------------ */

/* First value of a logical shard along the split. */
static int64_t shard_start(const invar_param *p, int32_t piece)
{
    return invar_shard_start(p->split.columns ? p->cols : p->rows, p->split.atom, p->split.shards,
                             piece);
}

static bool has_empty_shard(const invar_param *p, int32_t step)
{
    for (int32_t v = 0; v < p->split.shards; v += step)
        if (shard_start(p, v) == shard_start(p, v + step))
            return true;
    return false;
}

/*
 * Returns true if `tensors` ranks can divide the parameter. Every rank needs some of it. If the
 * shards do not divide evenly, each one is a product of its own: then none may be empty, and
 * experts and quantized tensors cannot be divided, because they have no views of some columns.
 */
static bool can_divide_param(const invar_param *p, int32_t tensors, bool quantized)
{
    int64_t whole = p->split.columns ? p->cols : p->rows;

    if (p->split.shards % tensors != 0 || has_empty_shard(p, p->split.shards / tensors))
        return false;
    if (invar_shards_divide_evenly(whole, p->split.atom, p->split.shards, tensors))
        return true;
    return p->kind != INVAR_PARAM_EXPERT && !(quantized && p->kind == INVAR_PARAM_LINEAR) &&
           !has_empty_shard(p, 1);
}

/*
 * Returns true if every rank has query heads together with their kv heads; with uneven shards, if
 * every logical shard has.
 */
static bool keeps_head_groups(const invar_model_spec *spec, const invar_param *q,
                              const invar_param *k, int32_t tensors)
{
    int64_t group = spec->attention.heads / spec->attention.kv_heads;
    bool even = invar_shards_divide_evenly(q->rows, q->split.atom, q->split.shards, tensors);
    int32_t step = even ? q->split.shards / tensors : 1;

    for (int32_t v = step; v < q->split.shards; v += step)
        if (shard_start(q, v) != group * shard_start(k, v))
            return false;
    return true;
}

static int64_t shards_of(int64_t logical)
{
    return logical > 1 ? logical : 1;
}

/* A model and a partition to check. */
typedef struct candidate {
    const invar_model_partition *part;
    const invar_model_spec *spec;
    const invar_param *params;
    int64_t count;
    bool quantized;
    char why[INVAR_PARAM_NAME_SIZE + 80]; /* why the last size that was tried does not fit */
} candidate;

static bool fits_logical(candidate *c, int32_t tensors)
{
    int64_t tp = shards_of(c->spec->logical_tp), etp = shards_of(c->spec->logical_etp);

    if (tp % tensors != 0) {
        (void)snprintf(c->why, sizeof c->why, "logical-tp is %" PRId64, tp);
        return false;
    }
    if (c->part->expert_tensors > 1 && c->spec->experts.count > 0 && etp % tensors != 0) {
        (void)snprintf(c->why, sizeof c->why,
                       "logical-etp is %" PRId64 ", and expert-tensor-parallel-size is not 1", etp);
        return false;
    }
    return true;
}

static bool fits_param(candidate *c, const invar_param *p, int32_t tensors)
{
    int64_t whole = p->split.columns ? p->cols : p->rows;
    bool divided = p->kind != INVAR_PARAM_EXPERT || c->part->expert_tensors > 1;

    if (p->split.shards == 1 || !divided || can_divide_param(p, tensors, c->quantized))
        return true;
    (void)snprintf(c->why, sizeof c->why, "%s has %" PRId64 " %s in atoms of %" PRId64, p->name,
                   whole, p->split.columns ? "columns" : "rows", p->split.atom);
    return false;
}

static bool fits_tensors(candidate *c, int32_t tensors)
{
    const invar_param *q = NULL;

    if (!fits_logical(c, tensors))
        return false;
    for (int64_t i = 0; i < c->count; i++) {
        const invar_param *p = &c->params[i];
        if (!fits_param(c, p, tensors))
            return false;
        if (strstr(p->name, "q_proj.weight"))
            q = p;
        if (q && strstr(p->name, "k_proj.weight") && !keeps_head_groups(c->spec, q, p, tensors)) {
            (void)snprintf(c->why, sizeof c->why, "%" PRId64 " groups of heads cannot stay whole",
                           c->spec->attention.kv_heads);
            return false;
        }
    }
    return true;
}

static invar_status check_tensors(candidate *c)
{
    int32_t tensors = c->part->tensors;
    char sizes[32] = "1";
    candidate other = *c;

    if (tensors == 1 || fits_tensors(c, tensors))
        return INVAR_OK;
    for (int32_t t = 2; t <= INVAR_LINEAR_MAX_SHARDS; t *= 2)
        if (fits_tensors(&other, t))
            (void)snprintf(sizes + strlen(sizes), sizeof sizes - strlen(sizes), ", %d", t);
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "tensor-model-parallel-size %d does not divide the pieces of this model: "
                      "%s; sizes that fit now: %s",
                      tensors, c->why, sizes);
}

/* ---- checks of context parallelism ----------------------------------------------------------- */

/* Returns true if `contexts` divides the kv heads of every tensor-parallel rank. */
static bool divides_heads(const candidate *c, const invar_param *k, int32_t contexts)
{
    invar_model_partition part = *c->part;

    for (part.tensor = 0; part.tensor < part.tensors; part.tensor++)
        if (invar_model_partition_shard(&part, c->spec, k).rows / c->spec->attention.head_dim %
                contexts !=
            0)
            return false;
    return true;
}

/*
 * Returns true if the sum over a group of heads covers complete logical shards on whichever rank
 * has the group.
 */
static bool divides_shards(const candidate *c, const invar_param *q, int32_t contexts)
{
    int64_t dim = c->spec->attention.head_dim,
            group = c->spec->attention.heads / c->spec->attention.kv_heads;
    invar_logical_split split = q->split;

    split.atom /= dim;
    return invar_heads_shards(c->spec->attention.heads, &split, c->part->tensors * contexts) > 1 ||
           invar_shard_whole_groups(c->spec->attention.heads, group, split.atom, split.shards);
}

/* Smallest number of experts that a rank holds, to be divided by context-parallel ranks. */
static int64_t fewest_experts(const candidate *c)
{
    return c->spec->experts.count / c->part->experts;
}

static bool divides_experts(const candidate *c, int32_t contexts)
{
    return c->spec->experts.count == 0 || contexts <= fewest_experts(c);
}

static bool fits_contexts(const candidate *c, int32_t contexts)
{
    if (!divides_experts(c, contexts))
        return false;
    for (int64_t i = 0; i < c->count; i++) {
        const invar_param *p = &c->params[i];

        if (strstr(p->name, "q_proj.weight") && !divides_shards(c, p, contexts))
            return false;
        if (strstr(p->name, "k_proj.weight") && !divides_heads(c, p, contexts))
            return false;
    }
    return true;
}

static invar_status check_contexts(const candidate *c)
{
    int32_t contexts = c->part->contexts;
    char sizes[64] = "1";

    if (contexts <= 1)
        return INVAR_OK;
    if (fits_contexts(c, contexts))
        return INVAR_OK;
    for (int32_t n = 2; n <= c->spec->attention.kv_heads && n <= INVAR_ROW_PARTITION_MAX_RANKS; n++)
        if (fits_contexts(c, n))
            (void)snprintf(sizes + strlen(sizes), sizeof sizes - strlen(sizes), ", %d", n);
    if (!divides_experts(c, contexts))
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "context-parallel-size %d does not divide the work of %" PRId64
                          " experts, which a rank has with expert-model-parallel-size %d; it "
                          "takes %s",
                          contexts, fewest_experts(c), c->part->experts, sizes);
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "context-parallel-size %d does not divide the %" PRId64 " groups of heads of "
                      "this model with tensor-model-parallel-size %d; it takes %s",
                      contexts, c->spec->attention.kv_heads, c->part->tensors, sizes);
}

invar_status invar_model_partition_check(const invar_model_partition *part,
                                         const invar_model_spec *spec, const invar_param *params,
                                         int64_t count, bool quantized)
{
    candidate asked = {part, spec, params, count, quantized, ""};

    if (part->stages * part->chunks > spec->layers)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%d runs of layers (pipeline-model-parallel-size %d): the model has only "
                          "%" PRId64 " layers",
                          part->stages * part->chunks, part->stages, spec->layers);
    if (part->experts > 1 && spec->experts.count > 0 && spec->logical_etp < 2)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "expert-model-parallel-size %d needs logical-etp 2, 4 or 8, so that "
                          "experts are pieces of their own in norms and hashes",
                          part->experts);
    if (part->experts > (spec->experts.count > 0 ? spec->experts.count : 1))
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "expert-model-parallel-size %d: the model has %" PRId64 " experts",
                          part->experts, spec->experts.count);
    INVAR_TRY(check_tensors(&asked));
    return check_contexts(&asked);
}
