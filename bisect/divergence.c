/*
 * divergence.c - where two programs part when they run the same recipe: step, point, layer, op,
 * tensor.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "bisect/divergence.h"

#include <stdio.h>
#include <string.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

/* ---- what a diff says ------------------------------------------------------------------------ */

/* What fits of a text, in whole characters. */
static void copy(char *out, size_t size, const char *text)
{
    size_t bytes = strlen(text);

    if (bytes >= size)
        for (bytes = size - 1; bytes > 0 && ((unsigned char)text[bytes] & 0xc0) == 0x80;)
            bytes--;
    memcpy(out, text, bytes);
    out[bytes] = '\0';
}

#define COPY(field, text) copy((field), sizeof(field), (text))

static void take_point(invar_divergence *out, const invar_diff_point *p)
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

static void take_sample(invar_divergence *out, const invar_diff_sample *s)
{
    int bit = 0;

    while (bit < INVAR_DIFF_SAMPLE_FIELDS && !(s->fields & 1U << bit))
        bit++;
    snprintf(out->point, sizeof out->point, "sample %lld", (long long)s->idx);
    COPY(out->op, bit < INVAR_DIFF_SAMPLE_FIELDS ? invar_diff_sample_field(bit) : "");
    COPY(out->kind, "sample");
}

/* No tensor that both have differs: what does is structure, or stands beside the tensors. */
static void take_other(invar_divergence *out, const invar_diff *diff)
{
    if (diff->roots_differ && diff->n_changes) {
        COPY(out->point, diff->changes->point);
        COPY(out->op, diff->changes->what);
        COPY(out->kind, "structure");
    } else if (diff->n_metrics) {
        COPY(out->point, diff->metrics->name);
        COPY(out->kind, diff->evaluations ? "evaluation" : "metric");
    } else if (diff->n_samples) {
        take_sample(out, diff->samples);
    } else if (diff->replies_different) {
        COPY(out->kind, "plug-in reply");
    }
}

static void diff_take(invar_divergence *out, const invar_diff *diff)
{
    const invar_diff_point *p = diff->culprit ? diff->culprit : diff->points;

    invar_diff_headline(out->headline, diff);
    out->known = diff->diverged;
    out->layer = -1;
    out->step = diff->step;
    out->points_equal = diff->points_equal;
    if (!diff->diverged)
        return;
    out->points_different = (int64_t)diff->n_points;
    if (diff->n_points)
        take_point(out, p);
    else
        take_other(out, diff);
}

static invar_status open_only(invar_ledger **out, int64_t *run_out, const char *path)
{
    invar_ledger_summary run;

    INVAR_TRY(invar_ledger_open(out, path, &(invar_ledger_options){.write = false}));
    INVAR_TRY(invar_ledger_find(&run, *out, NULL));
    *run_out = run.run;
    return INVAR_OK;
}

/* All steps, or one alone where they need not part before or there; -1: all. */
static invar_status compare(invar_divergence *out, const char *before, const char *after,
                            int64_t step)
{
    invar_ledger *a = NULL, *b = NULL;
    invar_diff *diff = NULL;
    int64_t run_a, run_b;
    invar_status status = open_only(&a, &run_a, before);

    memset(out, 0, sizeof *out);
    COPY(out->ledger_before, before);
    COPY(out->ledger_after, after);
    if (status == INVAR_OK)
        status = open_only(&b, &run_b, after);
    if (status == INVAR_OK)
        status = step < 0 ? invar_diff_runs(&diff, a, run_a, b, run_b)
                          : invar_diff_step(&diff, a, run_a, b, run_b, step);
    if (status == INVAR_OK)
        diff_take(out, diff);
    invar_diff_free(diff);
    invar_ledger_close(b);
    invar_ledger_close(a);
    return status;
}

invar_status invar_divergence_compare(invar_divergence *out, const char *before, const char *after)
{
    return compare(out, before, after, -1);
}

/* ---- finer ----------------------------------------------------------------------------------- */

enum { EXTRA = 6 }; // words that a fine run has beyond those of its request, at most

static size_t count_words(const char *const *words)
{
    size_t count = 0;

    while (words && words[count])
        count++;
    return count;
}

/* How many words of `flags` set a key that `extra` sets: 0, 1 (--key=value) or 2 (--key value). */
static size_t words_overruled(const char *const *flags, const char *const *extra)
{
    size_t key = strcspn(flags[0], "=");

    for (; *extra; extra += 2)
        if (strlen(*extra) == key && strncmp(*extra, flags[0], key) == 0)
            return flags[0][key] || !flags[1] ? 1 : 2;
    return 0;
}

/* The request again, up to a step and with further keys. */
static invar_status run_again(invar_run_result *out, invar_workspace *workshop, int lock,
                              const invar_run_request *request, int64_t step,
                              const char *const *extra)
{
    size_t count = count_words(request->flags), used = 0;
    invar_run_request fine = *request;
    const char **flags;
    invar_status status;

    INVAR_TRY(invar_alloc((void **)&flags, count + EXTRA + 1, sizeof *flags, "the flags of a run"));
    for (size_t i = 0; i < count;) {
        size_t overruled = words_overruled(request->flags + i, extra);
        if (overruled == 0)
            flags[used++] = request->flags[i];
        i += overruled ? overruled : 1;
    }
    memcpy(flags + used, extra, (count_words(extra) + 1) * sizeof *flags);
    fine.flags = flags;
    fine.name = "fine";
    fine.until = step;
    fine.should_stop = NULL;
    fine.payload = NULL;
    status = invar_workspace_run(out, workshop, lock, &fine);
    invar_free(flags);
    return status;
}

/* Where the samples of the run before lie, for the run after: a folder for each such run. */
static invar_status name_samples(char out[INVAR_PATH_SIZE], const invar_workspace *workshop,
                                 const char *ledger)
{
    char hex[INVAR_DIGEST_HEX_SIZE], name[INVAR_DIGEST_HEX_SIZE + 64];
    invar_digest digest;

    invar_hash_bytes(&digest, ledger, strlen(ledger));
    invar_digest_format(hex, &digest);
    snprintf(name, sizeof name, "samples/%s/{rollout_id}.rollout", hex);
    return invar_path_join(out, INVAR_PATH_SIZE, invar_workspace_folder(workshop), name);
}

/*
 * What was sampled hides the op: one number that differs, and other tokens follow, which no point
 * explains. So the run after is made once more with the samples of the run before. What only the
 * rollout computes is not in its chain then, but its points are there.
 */
static invar_status look_behind_samples(invar_divergence *fine, invar_workspace *workshop, int lock,
                                        const invar_run_request *after,
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

    INVAR_TRY(run_again(&ran, workshop, lock, after, fine->step, extra));
    if (ran.state != INVAR_RUN_DONE)
        return INVAR_OK;
    INVAR_TRY(compare(&behind, before->ledger, ran.ledger, fine->step));
    if (behind.known && *behind.before)
        *fine = behind;
    return INVAR_OK;
}

invar_status invar_divergence_refine(invar_divergence *place, invar_workspace *workshop, int lock,
                                     const invar_run_request *before,
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

    if (!place->known || place->step < 0)
        return INVAR_OK;
    INVAR_TRY(name_samples(samples, workshop, place->ledger_before));
    INVAR_TRY(run_again(&a, workshop, lock, before, place->step, saving));
    if (a.state == INVAR_RUN_FAILED) // a recipe that loads samples has none to save
        INVAR_TRY(run_again(&a, workshop, lock, before, place->step, plain));
    if (a.state != INVAR_RUN_DONE)
        return INVAR_OK;
    INVAR_TRY(run_again(&b, workshop, lock, after, place->step, plain));
    if (b.state != INVAR_RUN_DONE)
        return INVAR_OK;
    INVAR_TRY(invar_divergence_compare(&fine, a.ledger, b.ledger));
    if (!fine.known) // they do not part again: the caller's confirmation has more to say of that
        return INVAR_OK;
    if (strcmp(fine.phase, "rollout") == 0)
        INVAR_TRY(look_behind_samples(&fine, workshop, lock, after, &a, samples));
    *place = fine;
    place->op_level = true;
    return INVAR_OK;
}
