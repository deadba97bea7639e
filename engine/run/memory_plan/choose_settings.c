/*
 * choose_settings.c - what the recipe leaves open, so that everything fits.
 *
 * Sampling, scoring and learning have one block in turn, so each is chosen for itself: as large as
 * the block can be. Those who sample beside learning are chosen first, within half of it. Of
 * learning, the rows of logits at a time give way first: in several pieces they are computed a
 * second time, however many pieces there are. Then the tokens of a micro-batch do. What a phase
 * needs only grows with either, so the largest that fits is found by halving, and where the
 * smallest does not fit, nothing does.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>

#include "base/alloc.h"
#include "base/minmax.h"
#include "engine/run/memory_plan/dry_models.h"

#include "base/invar_banned.h"

#define RESERVE 64    // one part of so many is left to the driver, to graphs and to gaps
#define FEW_ROWS 1024 // of logits: fewer make products small
#define TOKENS 64     // chosen micro-batches have a multiple of them
#define MOST_CACHE ((int64_t)1 << 39) // bytes of a chosen cache

static size_t larger_size(size_t a, size_t b)
{
    return a > b ? a : b;
}

/* Bytes that the block may have. */
static size_t room_of(const invar_memory_plan *b)
{
    size_t rest = b->resident + b->outside_block_bytes;

    return b->usable > rest ? b->usable - rest : 0;
}

/* What scoring and learning have of it. */
static size_t memory_plan_training(const invar_memory_plan *b, const invar_memory_workload *ask)
{
    return larger_size(ask->overlap ? 0 : b->verify_bytes, larger_size(b->scoring, b->learning));
}

/* What those who sample have at the same time. */
static size_t overlap_bytes(const invar_memory_plan *b, const invar_memory_workload *ask)
{
    return ask->overlap ? larger_size(b->sampling, b->verify_bytes) : 0;
}

/* Bytes that these may have. */
static size_t sampling_room(const invar_memory_plan *b, const invar_memory_workload *ask)
{
    return ask->overlap ? room_of(b) / 2 : room_of(b);
}

/* ---- learning and scoring -------------------------------------------------------------------- */

static invar_status try_training(bool *fits, invar_memory_plan *b, invar_dry_models *cast,
                                 int64_t max_tokens, int64_t head_rows)
{
    b->choice.max_tokens = max_tokens;
    b->choice.head_rows = head_rows;
    if (!cast->ask->samples_alone)
        INVAR_TRY(invar_dry_models_train(b, cast));
    INVAR_TRY(invar_dry_models_check(b, cast));
    *fits = memory_plan_training(b, cast->ask) + overlap_bytes(b, cast->ask) <= room_of(b);
    return INVAR_OK;
}

/* Fewer rows of logits, not below `least`, until it fits. */
static invar_status choose_rows(bool *fits, invar_memory_plan *b, invar_dry_models *cast,
                                int64_t least)
{
    int64_t rows = b->choice.head_rows;

    if (cast->ask->head_rows > 0)
        return INVAR_OK;
    while (!*fits && rows > least) {
        rows = invar_max_i64(rows / 2, least);
        INVAR_TRY(try_training(fits, b, cast, b->choice.max_tokens, rows));
    }
    return INVAR_OK;
}

/* The longest unit is a micro-batch in any case. */
static int64_t least_tokens(const invar_memory_workload *ask)
{
    int64_t most = ask->plan.max_tokens;

    return ask->dynamic
               ? invar_min_i64(most, invar_memory_plan_batch_of(ask, ask->learns).unit_rows)
               : most;
}

/* The most tokens of a micro-batch that fit. */
static invar_status choose_tokens(bool *fits, invar_memory_plan *b, invar_dry_models *cast)
{
    const invar_memory_workload *ask = cast->ask;
    int64_t most = b->choice.max_tokens, rows = b->choice.head_rows;
    int64_t unit = least_tokens(ask), low = unit, high = most;

    if (*fits || low == most)
        return INVAR_OK;
    INVAR_TRY(try_training(fits, b, cast, low, rows));
    while (*fits && high - low > TOKENS) {
        int64_t middle = low + (high - low) / 2;
        INVAR_TRY(try_training(fits, b, cast, middle, rows));
        low = *fits ? middle : low;
        high = *fits ? high : middle;
        *fits = true;
    }
    if (!*fits)
        return INVAR_OK;
    if (low / TOKENS * TOKENS >= unit)
        low = low / TOKENS * TOKENS;
    return try_training(fits, b, cast, low, rows);
}

/* Rows of the largest micro-batch. */
static int64_t most_rows(const invar_memory_workload *ask)
{
    int64_t scored = invar_memory_plan_batch_of(ask, false).rows;

    return ask->learns ? invar_max_i64(scored, invar_memory_plan_batch_of(ask, true).rows) : scored;
}

static invar_status choose_training(invar_memory_plan *b, invar_dry_models *cast)
{
    const invar_memory_workload *ask = cast->ask;
    int64_t rows = ask->head_rows, tokens = ask->plan.max_tokens;
    bool fits;

    if (rows == 0)
        rows = invar_min_i64(invar_trainer_head_rows(ask->dev, ask->spec), most_rows(ask));

    INVAR_TRY(try_training(&fits, b, cast, tokens, rows));
    if (fits)
        return INVAR_OK;
    INVAR_TRY(try_training(&fits, b, cast, least_tokens(ask), ask->head_rows ? rows : 1));
    if (!fits)
        return INVAR_OK;
    fits = false;
    b->choice.max_tokens = tokens;
    b->choice.head_rows = rows;
    INVAR_TRY(choose_rows(&fits, b, cast, FEW_ROWS));
    INVAR_TRY(choose_tokens(&fits, b, cast));
    return choose_rows(&fits, b, cast, 1);
}

/* ---- sampling -------------------------------------------------------------------------------- */

/* Limits as the recipe and `concurrency` have them, and the fewest pages that will do. */
static invar_rollout_exec_options memory_plan_wanted(int64_t *least_out, const invar_memory_plan *b,
                                                     const invar_dry_models *cast,
                                                     int64_t concurrency)
{
    const invar_memory_workload *ask = cast->ask;
    size_t most = sampling_room(b, ask);
    int64_t room = invar_min_i64((int64_t)(most < INT64_MAX ? most : INT64_MAX), MOST_CACHE);
    invar_rollout_exec_options limits = ask->limits, out = {0};

    *least_out = 0;
    limits.concurrency = concurrency;
    limits.speculation.model = cast->draft;
    for (int i = 0; i < INVAR_MEMORY_PLAN_USES; i++) {
        const invar_rollout_shape *r = &ask->rollouts[i];
        int64_t rows = invar_memory_plan_rows(r), pages = out.pages;

        if (r->prompts == 0)
            continue;
        out = invar_rollout_resolve_options(&limits, invar_dry_models_sampler(cast), ask->dev,
                                            r->prompts * r->per_prompt, rows, room);
        out.pages = invar_max_i64(out.pages, pages);
        *least_out = invar_max_i64(*least_out, (rows + out.page_size - 1) / out.page_size + 1);
    }
    return out;
}

static bool memory_workload_samples(const invar_memory_workload *ask)
{
    return ask->rollouts[INVAR_MEMORY_PLAN_TRAINING].prompts > 0 ||
           ask->rollouts[INVAR_MEMORY_PLAN_EVALUATION].prompts > 0;
}

/* Pages for fewer sequences, as many as fit. */
static invar_status choose_pages(bool *fits, invar_memory_plan *b, invar_dry_models *cast,
                                 int64_t least, int64_t page_bytes)
{
    size_t room = sampling_room(b, cast->ask);
    size_t more = b->sampling > room ? b->sampling - room : 0;
    int64_t pages =
        b->choice.pages - (int64_t)((more + (size_t)page_bytes - 1) / (size_t)page_bytes);

    *fits = more == 0;
    if (*fits || cast->ask->limits.pages > 0 || pages < least)
        return INVAR_OK;
    b->choice.pages = pages;
    INVAR_TRY(invar_dry_models_sample(b, cast));
    *fits = b->sampling <= room;
    return INVAR_OK;
}

static invar_status choose_cache(invar_memory_plan *b, invar_dry_models *cast)
{
    int64_t concurrency = cast->ask->limits.concurrency, least, page_bytes;
    bool fits = !memory_workload_samples(cast->ask);

    while (!fits) {
        invar_rollout_exec_options limits = memory_plan_wanted(&least, b, cast, concurrency);
        page_bytes =
            invar_max_i64(invar_rollout_page_bytes(&limits, invar_dry_models_sampler(cast)), 1);
        b->choice.concurrency = limits.concurrency;
        b->choice.pages = limits.pages;
        INVAR_TRY(invar_dry_models_sample(b, cast));
        INVAR_TRY(choose_pages(&fits, b, cast, least, page_bytes));
        b->cache = (size_t)b->choice.pages * (size_t)page_bytes;
        if (cast->ask->limits.concurrency > 0 || limits.concurrency == 1)
            break;
        concurrency = limits.concurrency / 2;
    }
    return INVAR_OK;
}

/* A cache that the recipe sizes has room for the longest sequence, where lengths are known. */
static invar_status check_pages(const invar_memory_workload *ask)
{
    const char *const whose[] = {"", "of an evaluation "};
    int64_t pages = ask->limits.pages;
    int64_t size = ask->limits.page_size ? ask->limits.page_size : INVAR_ROLLOUT_PAGE_SIZE;

    for (int i = 0; i < INVAR_MEMORY_PLAN_USES; i++) {
        const invar_rollout_shape *r = &ask->rollouts[i];
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

/* What is known so far does not fit, and no more is asked. */
static bool memory_plan_hopeless(const invar_memory_plan *b, const invar_memory_workload *ask)
{
    return ask->must_fit &&
           b->resident + b->outside_block_bytes + memory_plan_training(b, ask) > b->usable;
}

static invar_status choose_all(invar_memory_plan *b, invar_dry_models *cast)
{
    if (memory_plan_hopeless(b, cast->ask))
        return INVAR_OK;
    if (cast->ask->overlap)
        INVAR_TRY(choose_cache(b, cast));
    if (!cast->ask->samples_alone)
        INVAR_TRY(invar_dry_models_around(b, cast));
    if (!cast->ask->samples_alone || cast->ask->verify_inflight)
        INVAR_TRY(choose_training(b, cast));
    return memory_plan_hopeless(b, cast->ask) || cast->ask->overlap ? INVAR_OK
                                                                    : choose_cache(b, cast);
}

static invar_status memory_plan_choose(invar_memory_plan *b, invar_dry_models *cast)
{
    INVAR_TRY(choose_all(b, cast));
    b->beside = overlap_bytes(b, cast->ask);
    b->block = b->beside ? b->beside + memory_plan_training(b, cast->ask)
                         : larger_size(b->sampling, memory_plan_training(b, cast->ask));
    b->need = larger_size(b->resident + b->block + b->outside_block_bytes, b->load_peak_bytes);
    b->fits = b->need <= b->usable;
    return INVAR_OK;
}

invar_status invar_memory_plan_make(invar_memory_plan *out, const invar_memory_workload *ask,
                                    size_t available)
{
    invar_dry_models *cast;
    invar_status status;

    INVAR_TRY(check_pages(ask));
    INVAR_TRY(invar_alloc((void **)&cast, 1, sizeof *cast, "the plan of memory"));
    *cast = (invar_dry_models){0};
    status = invar_dry_models_make(cast, out, ask);
    out->available = available;
    out->usable = available - available / RESERVE;
    if (status == INVAR_OK)
        status = memory_plan_choose(out, cast);
    invar_dry_models_release(cast);
    invar_free(cast);
    return status;
}
