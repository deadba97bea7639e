/*
 * choose_settings.c - chooses the settings that the recipe leaves open, so that the run fits.
 *
 * Sampling, scoring and learning use one block in turn, so each is chosen by itself, as large as
 * the block can be. With overlap, sampling is chosen first, within half of the block. In learning,
 * the rows of logits per pass are halved first, down to FEW_ROWS, since several passes compute the
 * logits only once more, however many there are; then the tokens of a micro-batch are reduced, and
 * last the rows again. The memory of a phase grows with either: the largest number of tokens that
 * fits is found by bisection, and if the smallest values do not fit, none do.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>

#include "base/alloc.h"
#include "base/minmax.h"
#include "engine/run/memory_plan/dry_models.h"

#include "base/invar_banned.h"

#define RESERVE 64    // 1/64 of the memory is left to the driver, to CUDA graphs and to gaps
#define FEW_ROWS 1024 // rows of logits; fewer make matrix products inefficient
#define TOKENS 64     // a chosen max_tokens is a multiple of this
#define MOST_CACHE ((int64_t)1 << 39) // largest chosen KV cache, in bytes

static size_t max_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Returns the bytes that the block may have. */
static size_t block_limit(const invar_memory_plan *b)
{
    size_t rest = b->resident + b->outside_block_bytes;

    return b->usable > rest ? b->usable - rest : 0;
}

/* Returns the bytes of the block that scoring and learning use. */
static size_t training_bytes(const invar_memory_plan *b, const invar_memory_workload *workload)
{
    return max_size(workload->models.overlap ? 0 : b->verify_bytes,
                    max_size(b->scoring, b->learning));
}

/* Returns the bytes of the block that the sampler uses at the same time, with overlap. */
static size_t overlap_bytes(const invar_memory_plan *b, const invar_memory_workload *workload)
{
    return workload->models.overlap ? max_size(b->sampling, b->verify_bytes) : 0;
}

/* Returns the bytes that sampling may have. */
static size_t sampling_limit(const invar_memory_plan *b, const invar_memory_workload *workload)
{
    return workload->models.overlap ? block_limit(b) / 2 : block_limit(b);
}

/* ---- learning and scoring -------------------------------------------------------------------- */

static invar_status try_training(bool *fits, invar_memory_plan *b, invar_dry_models *models,
                                 int64_t max_tokens, int64_t head_rows)
{
    b->choice.max_tokens = max_tokens;
    b->choice.head_rows = head_rows;
    if (!models->workload->models.samples_alone)
        INVAR_TRY(invar_dry_models_train(b, models));
    INVAR_TRY(invar_dry_models_check(b, models));
    *fits =
        training_bytes(b, models->workload) + overlap_bytes(b, models->workload) <= block_limit(b);
    return INVAR_OK;
}

/* Reduces the rows of logits, not below `least`, until the phase fits. */
static invar_status choose_rows(bool *fits, invar_memory_plan *b, invar_dry_models *models,
                                int64_t least)
{
    int64_t rows = b->choice.head_rows;

    if (models->workload->head_rows > 0)
        return INVAR_OK;
    while (!*fits && rows > least) {
        rows = invar_max_i64(rows / 2, least);
        INVAR_TRY(try_training(fits, b, models, b->choice.max_tokens, rows));
    }
    return INVAR_OK;
}

/* Returns the smallest max_tokens: the longest unit is one micro-batch in any case. */
static int64_t min_tokens(const invar_memory_workload *workload)
{
    int64_t most = workload->plan.max_tokens;

    return workload->dynamic
               ? invar_min_i64(most,
                               invar_memory_plan_batch_of(workload, workload->learns).unit_rows)
               : most;
}

/* Finds the largest max_tokens that fits. */
static invar_status choose_tokens(bool *fits, invar_memory_plan *b, invar_dry_models *models)
{
    const invar_memory_workload *workload = models->workload;
    int64_t most = b->choice.max_tokens, rows = b->choice.head_rows;
    int64_t unit = min_tokens(workload), low = unit, high = most;

    if (*fits || low == most)
        return INVAR_OK;
    INVAR_TRY(try_training(fits, b, models, low, rows));
    while (*fits && high - low > TOKENS) {
        int64_t middle = low + (high - low) / 2;
        INVAR_TRY(try_training(fits, b, models, middle, rows));
        low = *fits ? middle : low;
        high = *fits ? high : middle;
        *fits = true;
    }
    if (!*fits)
        return INVAR_OK;
    if (low / TOKENS * TOKENS >= unit)
        low = low / TOKENS * TOKENS;
    return try_training(fits, b, models, low, rows);
}

static invar_status choose_training(invar_memory_plan *b, invar_dry_models *models)
{
    const invar_memory_workload *workload = models->workload;
    int64_t rows = workload->head_rows, tokens = workload->plan.max_tokens;
    int64_t most =
        invar_memory_plan_batch_of(workload, false).rows; // rows of the largest micro-batch
    bool fits;

    if (workload->learns)
        most = invar_max_i64(most, invar_memory_plan_batch_of(workload, true).rows);
    if (rows == 0)
        rows = invar_min_i64(invar_trainer_head_rows(workload->dev, workload->models.actor), most);

    INVAR_TRY(try_training(&fits, b, models, tokens, rows));
    if (fits)
        return INVAR_OK;
    INVAR_TRY(try_training(&fits, b, models, min_tokens(workload), workload->head_rows ? rows : 1));
    if (!fits)
        return INVAR_OK;
    fits = false;
    b->choice.max_tokens = tokens;
    b->choice.head_rows = rows;
    INVAR_TRY(choose_rows(&fits, b, models, FEW_ROWS));
    INVAR_TRY(choose_tokens(&fits, b, models));
    return choose_rows(&fits, b, models, 1);
}

/* ---- sampling -------------------------------------------------------------------------------- */

/*
 * Returns the limits by the recipe and `concurrency`; *least_out is the smallest possible number of
 * pages.
 */
static invar_rollout_exec_options resolve_limits(int64_t *least_out, const invar_memory_plan *b,
                                                 const invar_dry_models *models,
                                                 int64_t concurrency)
{
    const invar_memory_workload *workload = models->workload;
    size_t most = sampling_limit(b, workload);
    int64_t room = invar_min_i64((int64_t)(most < INT64_MAX ? most : INT64_MAX), MOST_CACHE);
    invar_rollout_exec_options limits = workload->limits, out = {0};

    *least_out = 0;
    limits.concurrency = concurrency;
    limits.speculation.model = models->run.draft;
    for (int i = 0; i < INVAR_MEMORY_PLAN_USES; i++) {
        const invar_rollout_shape *r = &workload->rollouts[i];
        int64_t rows = invar_memory_plan_rows(r), pages = out.pages;

        if (r->prompts == 0)
            continue;
        out = invar_rollout_resolve_options(&limits, invar_model_set_sampler(&models->run),
                                            workload->dev, r->prompts * r->per_prompt, rows, room);
        out.pages = invar_max_i64(out.pages, pages);
        *least_out = invar_max_i64(*least_out, (rows + out.page_size - 1) / out.page_size + 1);
    }
    return out;
}

/* Reduces the pages to the number that fits, if that is at least `least`. */
static invar_status choose_pages(bool *fits, invar_memory_plan *b, invar_dry_models *models,
                                 int64_t least, int64_t page_bytes)
{
    size_t room = sampling_limit(b, models->workload);
    size_t more = b->sampling > room ? b->sampling - room : 0;
    int64_t pages =
        b->choice.pages - (int64_t)((more + (size_t)page_bytes - 1) / (size_t)page_bytes);

    *fits = more == 0;
    if (*fits || models->workload->limits.pages > 0 || pages < least)
        return INVAR_OK;
    b->choice.pages = pages;
    INVAR_TRY(invar_dry_models_sample(b, models));
    *fits = b->sampling <= room;
    return INVAR_OK;
}

static invar_status choose_cache(invar_memory_plan *b, invar_dry_models *models)
{
    int64_t concurrency = models->workload->limits.concurrency, least, page_bytes;
    bool fits = !invar_memory_plan_samples(models->workload);

    while (!fits) {
        invar_rollout_exec_options limits = resolve_limits(&least, b, models, concurrency);
        page_bytes = invar_max_i64(
            invar_rollout_page_bytes(&limits, invar_model_set_sampler(&models->run)), 1);
        b->choice.concurrency = limits.concurrency;
        b->choice.pages = limits.pages;
        INVAR_TRY(invar_dry_models_sample(b, models));
        INVAR_TRY(choose_pages(&fits, b, models, least, page_bytes));
        b->cache = (size_t)b->choice.pages * (size_t)page_bytes;
        if (models->workload->limits.concurrency > 0 || limits.concurrency == 1)
            break;
        concurrency = limits.concurrency / 2;
    }
    return INVAR_OK;
}

/* Fails if the recipe's kv-pages cannot hold the longest sequence, if its length is known. */
static invar_status check_pages(const invar_memory_workload *workload)
{
    const char *const whose[] = {"", "of an evaluation "};
    int64_t pages = workload->limits.pages;
    int64_t size =
        workload->limits.page_size ? workload->limits.page_size : INVAR_ROLLOUT_PAGE_SIZE;

    for (int i = 0; i < INVAR_MEMORY_PLAN_USES; i++) {
        const invar_rollout_shape *r = &workload->rollouts[i];
        int64_t least = (invar_memory_plan_rows(r) + size - 1) / size;
        if (pages > 0 && r->prompts > 0 && r->measured && pages < least)
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "kv-pages = %" PRId64 " of page-size = %" PRId64
                              " are too few for the longest sample %sof %" PRId64
                              " tokens: set kv-pages to %" PRId64 " or more, or 0",
                              pages, size, whose[i], invar_memory_plan_rows(r) + 1, least);
    }
    return INVAR_OK;
}

/* ---- all ------------------------------------------------------------------------------------- */

/* True if planning can stop, because the known part does not fit already. */
static bool cannot_fit(const invar_memory_plan *b, const invar_memory_workload *workload)
{
    return workload->must_fit &&
           b->resident + b->outside_block_bytes + training_bytes(b, workload) > b->usable;
}

static invar_status choose_all(invar_memory_plan *b, invar_dry_models *models)
{
    if (cannot_fit(b, models->workload))
        return INVAR_OK;
    if (models->workload->models.overlap)
        INVAR_TRY(choose_cache(b, models));
    if (!models->workload->models.samples_alone)
        INVAR_TRY(invar_dry_models_measure_overhead(b, models));
    if (!models->workload->models.samples_alone || models->workload->verify_inflight)
        INVAR_TRY(choose_training(b, models));
    return cannot_fit(b, models->workload) || models->workload->models.overlap
               ? INVAR_OK
               : choose_cache(b, models);
}

invar_status invar_memory_plan_make(invar_memory_plan *out, const invar_memory_workload *workload,
                                    size_t available)
{
    invar_dry_models *models;
    invar_status status;

    INVAR_TRY(check_pages(workload));
    INVAR_TRY(INVAR_ALLOC(models, 1, "the plan of memory"));
    *models = (invar_dry_models){0};
    status = invar_dry_models_make(models, out, workload);
    out->available = available;
    out->usable = available - available / RESERVE;
    if (status == INVAR_OK)
        status = choose_all(out, models);
    out->sampler_bytes = overlap_bytes(out, workload);
    out->block = out->sampler_bytes ? out->sampler_bytes + training_bytes(out, workload)
                                    : max_size(out->sampling, training_bytes(out, workload));
    out->need =
        max_size(out->resident + out->block + out->outside_block_bytes, out->load_peak_bytes);
    out->fits = out->need <= out->usable;
    invar_dry_models_release(models);
    invar_free(models);
    return status;
}
