/*
 * divergence.c - finds the step, point, layer and op at which two programs diverge.
 *
 * invar_divergence_compare reduces a diff of two ledgers to its first difference. The refinement
 * runs both programs again with every point recorded and, if the samples differ, once more with the
 * samples of the first program. See divergence.h for the algorithm.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "bisect/divergence.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

/* ---- from a diff ----------------------------------------------------------------------------- */

/* Copies as much of a UTF-8 text as fits, without cutting a character. */
static void copy_truncated(char *out, size_t size, const char *text)
{
    size_t bytes = strlen(text);

    if (bytes >= size)
        for (bytes = size - 1; bytes > 0 && ((unsigned char)text[bytes] & 0xc0) == 0x80;)
            bytes--;
    memcpy(out, text, bytes);
    out[bytes] = '\0';
}

#define COPY(field, text) copy_truncated((field), sizeof(field), (text))

static void set_point(invar_divergence *out, const invar_diff_point *p)
{
    COPY(out->point, p->name);
    COPY(out->phase, p->phase);
    COPY(out->op, p->op);
    COPY(out->kind, p->kind);
    COPY(out->dtype, p->dtype);
    COPY(out->shape, p->shape);
    out->layer = p->layer;
    invar_diff_fused(out->fused, p, "before the change", "after the change");
    invar_digest_format(out->before, &p->a);
    invar_digest_format(out->after, &p->b);
}

static void set_sample(invar_divergence *out, const invar_diff_sample *s)
{
    int bit = 0;

    while (bit < INVAR_DIFF_SAMPLE_FIELDS && !(s->fields & 1U << bit))
        bit++;
    snprintf(out->point, sizeof out->point, "sample %lld", (long long)s->idx);
    COPY(out->op, bit < INVAR_DIFF_SAMPLE_FIELDS ? invar_diff_sample_field(bit) : "");
    COPY(out->kind, "sample");
}

/*
 * Describes a difference that is not in a common tensor: structure, metrics, samples or plug-ins.
 */
static void set_other(invar_divergence *out, const invar_diff *diff)
{
    if (diff->roots_differ && diff->changes.count) {
        COPY(out->point, diff->changes.items->point);
        COPY(out->op, diff->changes.items->what);
        COPY(out->kind, "structure");
    } else if (diff->metrics.count) {
        COPY(out->point, diff->metrics.items->name);
        COPY(out->kind, diff->evaluations ? "evaluation" : "metric");
    } else if (diff->samples.count) {
        set_sample(out, diff->samples.items);
    } else if (diff->replies.different) {
        COPY(out->kind, "plug-in reply");
    }
}

static void set_from_diff(invar_divergence *out, const invar_diff *diff)
{
    const invar_diff_point *p = diff->culprit ? diff->culprit : diff->points.items;

    invar_diff_headline(out->headline, diff);
    out->known = diff->diverged;
    out->layer = -1;
    out->step = diff->step;
    out->points_equal = diff->points.equal;
    if (!diff->diverged)
        return;
    out->points_different = (int64_t)diff->points.count;
    if (diff->points.count)
        set_point(out, p);
    else
        set_other(out, diff);
}

invar_status invar_divergence_diff(invar_diff **out, const char *before, const char *after,
                                   int64_t step)
{
    invar_ledger *a = NULL, *b = NULL;
    invar_ledger_summary run_a, run_b;
    invar_status status = invar_workspace_ledger_open(&a, &run_a, before);

    *out = NULL;
    if (status == INVAR_OK)
        status = invar_workspace_ledger_open(&b, &run_b, after);
    if (status == INVAR_OK)
        status = step < 0 ? invar_diff_runs(out, a, run_a.run, b, run_b.run)
                          : invar_diff_step(out, a, run_a.run, b, run_b.run, step);
    invar_ledger_close(b);
    invar_ledger_close(a);
    return status;
}

invar_status invar_divergence_compare(invar_divergence *out, const char *before, const char *after,
                                      int64_t step)
{
    invar_diff *diff;

    memset(out, 0, sizeof *out);
    COPY(out->ledger_before, before);
    COPY(out->ledger_after, after);
    INVAR_TRY(invar_divergence_diff(&diff, before, after, step));
    set_from_diff(out, diff);
    invar_diff_free(diff);
    return INVAR_OK;
}

/* ---- refinement ------------------------------------------------------------------------------ */

/* Runs the request again up to `step`, with the keys of `extra` added or replaced. */
static invar_status run_with_extra_keys(invar_run_result *out, invar_workspace *workspace, int lock,
                                        const invar_run_request *request, int64_t step,
                                        const char *const *extra)
{
    invar_run_request fine = *request;
    const char **flags;
    invar_status status;

    INVAR_TRY(invar_workspace_flags_replace(&flags, request->flags, extra));
    fine.flags = flags;
    fine.name = "fine";
    fine.until = step;
    fine.should_stop = NULL;
    fine.payload = NULL;
    status = invar_workspace_run(out, workspace, lock, &fine);
    invar_free(flags);
    return status;
}

/*
 * Writes the path pattern of the samples that the run at `ledger` saves; unique for each such run.
 */
static invar_status format_samples_path(char out[INVAR_PATH_SIZE], const invar_workspace *workspace,
                                        const char *ledger)
{
    char hex[INVAR_DIGEST_HEX_SIZE], name[INVAR_DIGEST_HEX_SIZE + 64];
    invar_digest digest;

    invar_hash_bytes(&digest, ledger, strlen(ledger));
    invar_digest_format(hex, &digest);
    snprintf(name, sizeof name, "samples/%s/{rollout_id}.rollout", hex);
    return invar_path_join(out, INVAR_PATH_SIZE, invar_workspace_folder(workspace), name);
}

/*
 * Runs the changed program once more with the samples of the first one. Different tokens hide the
 * op that caused them: one differing number changes all later tokens, and no point explains it. The
 * chain of this run omits what only the rollout computes, but its points are recorded.
 */
static invar_status refine_with_same_samples(invar_divergence *fine, invar_workspace *workspace,
                                             int lock, const invar_run_request *after,
                                             const invar_run_result *before, const char *samples)
{
    const char *const extra[] = {"--debug-determinism",
                                 "full",
                                 "--on-mismatch",
                                 "record",
                                 "--load-debug-rollout-data",
                                 samples,
                                 NULL};
    invar_divergence behind;
    invar_run_result ran;

    INVAR_TRY(run_with_extra_keys(&ran, workspace, lock, after, fine->step, extra));
    if (ran.state != INVAR_RUN_DONE)
        return INVAR_OK;
    INVAR_TRY(invar_divergence_compare(&behind, before->ledger, ran.ledger, fine->step));
    if (behind.known && *behind.before)
        *fine = behind;
    return INVAR_OK;
}

invar_status invar_divergence_refine(invar_divergence *divergence, invar_workspace *workspace,
                                     int lock, const invar_run_request *before,
                                     const invar_run_request *after)
{
    char samples[INVAR_PATH_SIZE];
    const char *const saving[] = {"--debug-determinism",
                                  "full",
                                  "--on-mismatch",
                                  "record",
                                  "--save-debug-rollout-data",
                                  samples,
                                  NULL};
    const char *const plain[] = {"--debug-determinism", "full", "--on-mismatch", "record", NULL};
    invar_divergence fine;
    invar_run_result a, b;

    if (!divergence->known || divergence->step < 0)
        return INVAR_OK;
    INVAR_TRY(format_samples_path(samples, workspace, divergence->ledger_before));
    INVAR_TRY(run_with_extra_keys(&a, workspace, lock, before, divergence->step, saving));
    if (a.state == INVAR_RUN_FAILED) // a recipe that loads samples cannot save them
        INVAR_TRY(run_with_extra_keys(&a, workspace, lock, before, divergence->step, plain));
    if (a.state != INVAR_RUN_DONE)
        return INVAR_OK;
    INVAR_TRY(run_with_extra_keys(&b, workspace, lock, after, divergence->step, plain));
    if (b.state != INVAR_RUN_DONE)
        return INVAR_OK;
    INVAR_TRY(invar_divergence_compare(&fine, a.ledger, b.ledger, -1));
    // the runs do not diverge again; the caller's confirmation reports nondeterminism
    if (!fine.known)
        return INVAR_OK;
    if (strcmp(fine.phase, "rollout") == 0)
        INVAR_TRY(refine_with_same_samples(&fine, workspace, lock, after, &a, samples));
    *divergence = fine;
    divergence->op_level = true;
    return INVAR_OK;
}
