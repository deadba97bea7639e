/*
 * micro_batch.c - checks samples and packs their tokens, positions, targets and routing.
 *
 * One pass checks and counts, then one allocation holds all arrays, and a second pass fills them.
 * Packing must not depend on the micro-batch that a sample is in: a row gets the position within
 * its own branch, and nothing of another sample.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/train/micro_batch.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

typedef struct packed_counts {
    int64_t rows, targets, sequences;
} packed_counts;

/*
 * Only a model that replays routing reads the routing of a sample. A reference, a teacher or a
 * critic routes by itself, and the sample may come from a file of a model of another shape.
 */
static invar_status check_routing(const invar_rl_sample *s, const invar_micro_batch_plan *plan)
{
    if (!plan->replay)
        return INVAR_OK;
    if (!s->routing)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "sample %" PRId64 " has no recorded routing to replay", s->index);
    if (s->route_size != plan->route)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "sample %" PRId64 " was routed to %" PRId64
                          " experts a token, this model chooses %" PRId64
                          ": another model sampled it; set use-rollout-routing-replay = false",
                          s->index, s->route_size, plan->route);
    return INVAR_OK;
}

static invar_status check_branches(const invar_rl_sample *s)
{
    int64_t before = s->prompt_tokens;

    for (int64_t i = 0; i < s->n_branch_starts; before = s->branch_starts[i++])
        if (s->branch_starts[i] <= before || s->branch_starts[i] >= s->n_tokens - 1)
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "sample %" PRId64 " of %" PRId64
                              " tokens has a branch at token %" PRId64 ", behind one at %" PRId64,
                              s->index, s->n_tokens, s->branch_starts[i], before);
    return INVAR_OK;
}

static invar_status count_samples(packed_counts *out, const invar_rl_sample *samples,
                                  const invar_micro_batch_plan *plan)
{
    *out = (packed_counts){0};
    for (int64_t i = plan->first; i < plan->first + plan->count; i++) {
        const invar_rl_sample *s = &samples[i];
        if (s->prompt_tokens < 1 || s->n_tokens <= s->prompt_tokens)
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "sample %" PRId64 " has %" PRId64 " tokens of prompt and %" PRId64
                              " in all; it needs a prompt and a response",
                              s->index, s->prompt_tokens, s->n_tokens);
        INVAR_TRY(check_branches(s));
        INVAR_TRY(check_routing(s, plan));
        out->rows += invar_micro_batch_rows(s);
        out->targets += invar_rl_sample_response(s);
        out->sequences += 1 + s->n_branch_starts;
    }
    return INVAR_OK;
}

/* The arrays that the const pointers of rows and head refer to. */
typedef struct packed_arrays {
    int32_t *ids, *positions, *targets, *replay;
    int64_t *row, *samples, *units, *head_units;
} packed_arrays;

static void *carve_array(char **next, size_t count, size_t size)
{
    void *p = *next;

    *next += invar_aligned(count * size);
    return p;
}

static invar_status alloc_arrays(packed_arrays *a, invar_micro_batch *batch, const packed_counts *n,
                                 const invar_micro_batch_plan *plan)
{
    size_t rows = (size_t)n->rows, targets = (size_t)n->targets, route = rows * (size_t)plan->route;
    size_t need = (2 * rows + targets + 2 * route) * sizeof(int32_t) +
                  (targets + (size_t)n->sequences + 2 * (size_t)plan->units + 3) * sizeof(int64_t) +
                  10 * INVAR_ALIGN;
    char *next;

    if (need > batch->bytes) {
        invar_micro_batch_release(batch);
        INVAR_TRY(invar_alloc(&batch->memory, need, 1, "a micro-batch"));
        batch->bytes = need;
    }
    next = batch->memory;
    a->ids = carve_array(&next, rows, sizeof *a->ids);
    a->positions = carve_array(&next, rows, sizeof *a->positions);
    a->targets = carve_array(&next, targets, sizeof *a->targets);
    a->row = carve_array(&next, targets, sizeof *a->row);
    a->samples = carve_array(&next, (size_t)n->sequences + 1, sizeof *a->samples);
    a->units = carve_array(&next, (size_t)plan->units + 1, sizeof *a->units);
    a->head_units = carve_array(&next, (size_t)plan->units + 1, sizeof *a->head_units);
    a->replay = route && plan->replay ? carve_array(&next, route, sizeof *a->replay) : NULL;
    batch->routing = route ? carve_array(&next, route, sizeof *batch->routing) : NULL;
    return INVAR_OK;
}

/* Appends the rows and targets of one sample at the counts in `at`. */
static void pack_sample(const packed_arrays *a, packed_counts *at, const invar_rl_sample *s)
{
    int64_t rows = invar_micro_batch_rows(s), response = invar_rl_sample_response(s);

    for (int64_t j = 0, cut = 0, first = 0; j < rows; j++) {
        if (cut < s->n_branch_starts && j == s->branch_starts[cut]) {
            a->samples[at->sequences++] = at->rows + j;
            first = s->branch_starts[cut++];
        }
        a->ids[at->rows + j] = s->tokens[j];
        a->positions[at->rows + j] = (int32_t)(j - first);
    }
    for (int64_t j = 0; j < response; j++) {
        a->row[at->targets + j] = at->rows + s->prompt_tokens - 1 + j;
        a->targets[at->targets + j] = s->tokens[s->prompt_tokens + j];
    }
    if (a->replay)
        memcpy(a->replay + at->rows * s->route_size, s->routing,
               (size_t)(rows * s->route_size) * sizeof *a->replay);
    at->rows += rows;
    at->targets += response;
}

invar_status invar_micro_batch_fill(invar_micro_batch *batch, const invar_rl_sample *samples,
                                    const invar_micro_batch_plan *plan)
{
    packed_counts n, at = {0};
    packed_arrays a = {0};
    int64_t unit = 0;

    INVAR_TRY(count_samples(&n, samples, plan));
    INVAR_TRY(alloc_arrays(&a, batch, &n, plan));
    for (int64_t i = 0; i < plan->count; i++) {
        a.samples[at.sequences++] = at.rows;
        while (unit < plan->units && plan->unit_start[unit] == plan->first + i) {
            a.units[unit] = at.rows;
            a.head_units[unit++] = at.targets;
        }
        pack_sample(&a, &at, &samples[plan->first + i]);
    }
    INVAR_CHECK(unit == plan->units);
    a.samples[n.sequences] = a.units[plan->units] = at.rows;
    a.head_units[plan->units] = at.targets;
    batch->rows = (invar_packed_rows){.count = at.rows,
                                      .ids = a.ids,
                                      .positions = a.positions,
                                      .samples = {a.samples, n.sequences},
                                      .units = {a.units, plan->units},
                                      .routing_replay = a.replay,
                                      .routing = batch->routing};
    batch->head = (invar_logit_rows){.count = at.targets,
                                     .row = a.row,
                                     .targets = a.targets,
                                     .units = {a.head_units, plan->units},
                                     .temperature = plan->temperature};
    return INVAR_OK;
}

void invar_micro_batch_release(invar_micro_batch *batch)
{
    invar_free(batch->memory);
    *batch = (invar_micro_batch){0};
}
