/*
 * ab_runs.c - executes the runs of an A/B experiment in parallel through the workspace cache.
 *
 * Each run gets the flags of the user, the seeds of its pair and, for A/A checks, varied free keys.
 * Experiment, seed and side are recorded as facts of the run, and they are part of its cache key.
 * Every job acquires a worktree of its own.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/pool.h"
#include "bisect/ab/ab_internal.h"

#include "base/invar_banned.h"

#define SETTINGS 4 /* number of keys that the experiment sets */

/* ---- one run --------------------------------------------------------------------------------- */

/* Run request together with the storage of the words that it points to. */
typedef struct ab_request {
    invar_run_request request;
    const char **flags;
    char settings[SETTINGS][64];
    char facts[256], name[128];
    const char *environment[2];
} ab_request;

/* Joins the user's flags, without the keys that the experiment sets, and these keys. */
static invar_status build_flags(ab_request *out, const invar_ab_context *context,
                                const invar_ab_run_job *j)
{
    const invar_ab_varied_key keys[SETTINGS] = {
        {"seed", j->pair->seed}, {"rollout-seed", j->pair->rollout_seed}, j->free[0], j->free[1]};
    const char *settings[SETTINGS + 1] = {NULL};

    for (size_t i = 0; i < SETTINGS && keys[i].key; i++) {
        (void)snprintf(out->settings[i], sizeof out->settings[i], "--%s=%" PRId64, keys[i].key,
                       keys[i].value);
        settings[i] = out->settings[i];
    }
    return invar_workspace_flags_replace(&out->flags, context->what->flags, settings);
}

/*
 * Builds the request of a job. The caller frees order->flags with invar_free, also after a failure.
 */
static invar_status build_request(ab_request *out, const invar_ab_context *context,
                                  const invar_ab_run_job *j)
{
    const invar_ab_side *side = &context->result->sides[j->side];

    memset(out, 0, sizeof *out);
    INVAR_TRY(build_flags(out, context, j));
    (void)snprintf(out->facts, sizeof out->facts,
                   "INVAR_FACTS=ab.experiment=%s\nab.seed=%" PRId64 "\nab.side=%s%s",
                   context->result->id, j->pair->seed, invar_ab_letters[j->side], j->again);
    (void)snprintf(out->name, sizeof out->name, "ab-%s-%s%s-%" PRId64, context->result->id,
                   invar_ab_letters[j->side], j->again, j->pair->seed);
    out->environment[0] = out->facts;
    out->request = (invar_run_request){.program = side->built.path,
                                       .binary = side->built.binary,
                                       .recipe = side->recipe,
                                       .flags = out->flags,
                                       .environment = out->environment,
                                       .name = out->name,
                                       .until = context->what->steps - 1,
                                       .record_mismatch = true,
                                       .timeout = context->what->timeout,
                                       .stop = context->options->stop};
    return INVAR_OK;
}

static void report_run(invar_ab_context *context, const invar_ab_run_job *j)
{
    const invar_run_result *ran = j->ran;

    if (ran->state == INVAR_RUN_DONE)
        invar_ab_say(context,
                     ran->cached ? "%s%s, seed %" PRId64 ": ran before"
                                 : "%s%s, seed %" PRId64 ": ran, %.1f s",
                     invar_ab_capitals[j->side], j->again[0] ? " again" : "", j->pair->seed,
                     ran->seconds);
}

typedef struct ab_batch {
    invar_ab_context *context;
    const invar_ab_run_job *jobs;
} ab_batch;

static invar_status run_job(void *payload, int64_t task, int worker)
{
    const ab_batch *b = payload;
    invar_ab_context *context = b->context;
    const invar_ab_run_job *j = &b->jobs[task];
    invar_worktree slot;
    invar_status status;
    ab_request o;

    (void)worker;
    if (context->options->stop && *context->options->stop) {
        j->ran->state = INVAR_RUN_STOPPED;
        return INVAR_OK;
    }
    INVAR_TRY(invar_worktree_acquire(&slot, context->workspace));
    status = build_request(&o, context, j);
    if (status == INVAR_OK)
        status = invar_workspace_run(j->ran, context->workspace, slot.lock, &o.request);
    if (status == INVAR_OK)
        report_run(context, j);
    invar_free(o.flags);
    invar_worktree_release(&slot);
    return status;
}

invar_status invar_ab_jobs_run(invar_ab_context *context, const invar_ab_run_job *jobs,
                               int64_t count)
{
    ab_batch b = {context, jobs};
    int64_t threads = context->options->jobs < count ? context->options->jobs : count;
    invar_pool *pool;
    invar_status status;

    INVAR_TRY(invar_pool_new(&pool, threads < 1 ? 1 : (int)threads));
    status = invar_pool_run(pool, count, run_job, &b);
    invar_pool_free(pool);
    return status;
}

/* ---- refinement ------------------------------------------------------------------------------ */

invar_status invar_ab_refine(invar_ab_context *context, const invar_ab_pair *pair)
{
    ab_request orders[INVAR_AB_SIDES] = {{.flags = NULL}, {.flags = NULL}};
    invar_status status = INVAR_OK;
    invar_worktree slot;

    INVAR_TRY(invar_worktree_acquire(&slot, context->workspace));
    for (int side = 0; side < INVAR_AB_SIDES && status == INVAR_OK; side++)
        status = build_request(&orders[side], context,
                               &(invar_ab_run_job){.side = side, .pair = pair, .again = "-fine"});
    invar_ab_say(context, "both again up to step %" PRId64 ", every point recorded",
                 context->result->divergence.step);
    if (status == INVAR_OK)
        status =
            invar_divergence_refine(&context->result->divergence, context->workspace, slot.lock,
                                    &orders[INVAR_AB_A].request, &orders[INVAR_AB_B].request);
    invar_free(orders[INVAR_AB_A].flags);
    invar_free(orders[INVAR_AB_B].flags);
    invar_worktree_release(&slot);
    return status;
}
