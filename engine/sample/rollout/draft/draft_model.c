/*
 * draft_model.c - proposes draft tokens with passes of a smaller model.
 *
 * Rows of accepted draft tokens are in the cache of the draft model already, except that of the
 * last draft, after which nothing was drafted. So the first pass of a draft has two rows per
 * sequence: that row, or one that is computed again, and the row of the newest token. Later passes
 * have one row. Page tables and free pages are those of the target model; this file never allocates
 * pages.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/rollout/draft/draft_model.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/sample/rollout/sampler.h"

#include "base/invar_banned.h"

struct invar_draft_model {
    invar_rollout *own; /* passes, CUDA graphs and cache of the draft model */
    /* The members below are valid between invar_draft_model_begin and _end. */
    const invar_model_runner *first; /* model runner of the target model; borrowed */
    invar_model_runner feed;         /* model runner of the draft model */
    invar_kv_cache view; /* keys and values of the draft model, free pages of the target */
    invar_sampler sampler;
    invar_seq_slice *turns; /* (concurrency) slices of the current pass */
    invar_draw *draws;      /* (concurrency) draws of the current pass */
};

invar_status invar_draft_model_new(invar_draft_model **out, const invar_model *model,
                                   const invar_device *dev,
                                   const invar_rollout_exec_options *limits)
{
    const invar_rollout_exec_options plain = {.no_graphs = limits->no_graphs};
    invar_draft_model *d = NULL;
    invar_status status;

    INVAR_CHECK(model->part.stages == 1);
    INVAR_TRY(INVAR_ALLOC_ZEROED(d, 1, "a draft model"));
    status = invar_rollout_new(&d->own, model, NULL, dev, &plain);
    if (status != INVAR_OK) {
        invar_free(d);
        return status;
    }
    *out = d;
    return INVAR_OK;
}

void invar_draft_model_free(invar_draft_model *d)
{
    if (!d)
        return;
    invar_rollout_free(d->own);
    invar_free(d);
}

int64_t invar_draft_model_cache_bytes(const invar_draft_model *d)
{
    const invar_kv_cache *cache = d->own->cache;

    return cache ? invar_kv_cache_page_bytes(&cache->shape) * cache->shape.pages : 0;
}

/* ---- runs ------------------------------------------------------------------------------------ */

/* Takes over the options of the target; one draft token makes passes of two rows per sequence. */
static void copy_target_options(invar_draft_model *d, const invar_rollout_exec_options *settled)
{
    d->own->limits = *settled;
    d->own->limits.speculation =
        (invar_speculation){INVAR_SPECULATIVE_ALGORITHM_NGRAM, 1, {1, 1}, NULL};
}

static invar_status create_cache(invar_draft_model *d, invar_kv_cache *large)
{
    invar_rollout_exec_options limits = d->own->limits;

    limits.page_size = large->shape.page_size;
    limits.pages = large->shape.pages;
    copy_target_options(d, &limits);
    INVAR_TRY(invar_model_runner_resolve_options(&limits, d->own, 1, 1));
    large->draft_cache = d->own->cache;
    return INVAR_OK;
}

invar_status invar_draft_model_begin(invar_draft_model *d, const invar_sampling_params *sampling,
                                     const invar_model_runner *first)
{
    size_t sequences = (size_t)first->scheduler.concurrency;

    d->first = first;
    INVAR_TRY(create_cache(d, first->scheduler.cache));
    d->view.shape = d->own->cache->shape;
    INVAR_TRY(invar_sampler_init(&d->sampler, &d->own->op_runner, sampling));
    INVAR_TRY(INVAR_ALLOC(d->turns, sequences, "turns of a draft"));
    INVAR_TRY(INVAR_ALLOC(d->draws, sequences, "draws of a draft"));
    return invar_model_runner_init_draft(&d->feed, d->own, first, &d->view);
}

void invar_draft_model_end(invar_draft_model *d)
{
    invar_model_runner_release(&d->feed);
    invar_sampler_release(&d->sampler);
    invar_free(d->turns);
    invar_free(d->draws);
    d->turns = NULL;
    d->draws = NULL;
}

/* Runs a pass over the first `count` slices and, if `draws`, samples from the last row of each. */
static invar_status run_draft_pass(invar_draft_model *d, int64_t count, bool draws)
{
    invar_model_runner *runner = &d->feed;
    invar_status status;

    d->view = *d->own->cache;
    d->view.free_pages = d->first->scheduler.cache->free_pages;
    d->view.n_free = d->first->scheduler.cache->n_free;
    runner->scheduler.seqs = d->first->scheduler.seqs; // the array moves when samples join
    runner->scheduler.n_seqs = d->first->scheduler.n_seqs;
    runner->slices = d->turns;
    runner->n_slices = count;
    status = invar_model_runner_pass(runner);
    for (int64_t i = 0; i < runner->sequences; i++) {
        if (i >= count)
            d->draws[i] = (invar_draw){.sampling = d->draws[0].sampling, .filler = true};
        d->draws[i].row = runner->start[i + 1] - 1;
    }
    if (status == INVAR_OK && draws)
        status = invar_sampler_draw(&d->sampler, d->own->pass, d->draws, runner->sequences);
    if (status == INVAR_OK && d->own->graph_cache)
        status = invar_cuda_graph_cache_flush(d->own->graph_cache);
    invar_model_runner_end_capture(runner);
    return status;
}

/*
 * Returns the slice of the last two of `behind` rows; the last one only, if the other one is in a
 * page shared with other sequences.
 */
static invar_seq_slice newest_rows(const invar_draft_model *d, int64_t job, int64_t behind)
{
    int64_t shared = d->first->scheduler.seqs[job].n_shared * d->view.shape.page_size;
    int64_t rows = behind - 2 < shared ? 1 : 2;

    return (invar_seq_slice){job, behind - rows, rows};
}

/* Sets slice i and draw i for the next draft token of a request. */
static void plan_draft(invar_draft_model *d, int64_t i, const invar_draft_request *g, int64_t owner)
{
    const invar_rl_sample *s = g->sample;
    int64_t behind = s->n_tokens + g->count;

    d->turns[i] =
        g->count == 0 ? newest_rows(d, g->seq, behind) : (invar_seq_slice){g->seq, behind - 1, 1};
    d->draws[i] =
        (invar_draw){.coords = {(uint32_t)behind, s->draw_index, s->rollout},
                     .sampling = d->sampler.sampling ? NULL : g->sampling,
                     .ban_stop_ids = behind - s->prompt_tokens < g->sampling->min_response,
                     .owner = owner};
}

invar_status invar_draft_model_propose(void *self, invar_draft_request *requests, int64_t count)
{
    invar_draft_model *d = self;
    int64_t n = 1;

    // pass k drafts token k for every request that has tokens 0 to k - 1
    for (int64_t k = 0; n > 0; k++) {
        n = 0;
        for (int64_t i = 0; i < count; i++)
            if (requests[i].count == k && k < requests[i].max_tokens)
                plan_draft(d, n++, &requests[i], i);
        if (n > 0)
            INVAR_TRY(run_draft_pass(d, n, true));
        for (int64_t i = 0; i < n; i++) {
            invar_draft_request *g = &requests[d->draws[i].owner];
            if (isfinite(d->draws[i].logp))
                g->tokens[g->count++] = d->draws[i].token;
        }
    }
    return INVAR_OK;
}

invar_status invar_draft_model_catch_up(invar_draft_model *d)
{
    int64_t n = 0;

    for (int64_t i = 0; i < d->first->n_slices; i++) {
        invar_seq_slice turn = d->first->slices[i];
        bool known = turn.first < d->first->scheduler.seqs[turn.seq].prefill;

        if (!known && turn.count > 1)
            continue;
        d->turns[n++] = known ? turn : newest_rows(d, turn.seq, turn.first + 1);
    }
    return n > 0 ? run_draft_pass(d, n, false) : INVAR_OK;
}

invar_status invar_draft_model_dry_run(invar_draft_model *d,
                                       const invar_rollout_exec_options *resolved,
                                       const invar_sampling_params *sampling,
                                       const invar_rollout_max_shape *max_shape)
{
    copy_target_options(d, resolved);
    return invar_rollout_dry_run(d->own, sampling, max_shape);
}
