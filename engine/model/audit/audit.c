/*
 * audit.c - decides which calls and elements are audited, and counts the results.
 *
 * Each op of a part has a plan: the number of calls that it had last time, and a quota of elements
 * that is spread evenly over them. Random words come from Philox with the coordinates (element,
 * call, op, part, step), so the picks do not depend on timing. The budget of the step is shared by
 * its parts and never exceeded.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/model/audit/audit.h"

#include <string.h>

#include "base/alloc.h"
#include "engine/model/audit/audit_element.h"
#include "kernels-deterministic/math/philox.h"

#include "base/invar_banned.h"

#define PURPOSE_AUDIT 5
#define MOST_PER_CALL 64

/* Plan of one op in one part of a step. */
typedef struct op_plan {
    int64_t expected; /* calls in the previous run of the part; 0 if unknown */
    int64_t quota;    /* elements to check */
    int64_t offset;   /* random, below `expected`: shifts which calls get the elements */
    int64_t calls;    /* calls so far */
    int64_t done;     /* elements so far */
} op_plan;

struct invar_audit {
    invar_audit_options options;
    invar_device dev;
    invar_audit_scratch scratch;
    int64_t step;
    bool active; /* between invar_audit_begin and invar_audit_end */
    invar_audit_part part;
    op_plan plans[INVAR_AUDIT_PARTS][INVAR_OP_COUNT];
    int64_t share; /* elements left for the part */
    int64_t checked, differ;
    /* current call */
    invar_audit_pick choices[MOST_PER_CALL];
    int64_t n_choices;
};

/* ---- create and free ------------------------------------------------------------------------- */

invar_status invar_audit_new(invar_audit **out, const invar_device *dev,
                             const invar_audit_options *options)
{
    invar_device cpu = {
        .backend = invar_backend_cpu(), .numerics = dev->numerics, .pool = dev->pool};
    invar_audit *audit = NULL;

    *out = NULL;
    INVAR_TRY(INVAR_ALLOC_ZEROED(audit, 1, "an audit"));
    audit->options = *options;
    audit->dev = *dev;
    audit->step = -1;
    audit->scratch.dev = &audit->dev;
    invar_op_runner_init(&audit->scratch.cpu, &cpu);
    *out = audit;
    return INVAR_OK;
}

void invar_audit_free(invar_audit *audit)
{
    if (!audit)
        return;
    invar_op_runner_release(&audit->scratch.cpu);
    invar_free(audit->scratch.row_buffer);
    invar_free(audit);
}

void invar_audit_counted(int64_t *checked_out, int64_t *differ_out, const invar_audit *audit)
{
    *checked_out = audit ? audit->checked : 0;
    *differ_out = audit ? audit->differ : 0;
}

/* ---- the plan of a part ---------------------------------------------------------------------- */

static void draw_words(uint32_t out[4], const invar_audit *audit, uint32_t op, uint32_t call,
                       uint32_t element)
{
    const uint32_t counter[4] = {element, call, op, (uint32_t)audit->part};
    const uint32_t key[2] = {(uint32_t)audit->step, invar_philox_purpose(PURPOSE_AUDIT, 0)};

    invar_philox4x32(out, counter, key);
}

/*
 * Budget of the current part. Quarters are rounded by `lot`, so that small budgets reach every part
 * now and then; the sum never exceeds the budget of the step.
 */
static int64_t budget_of_part(const invar_audit *audit, uint32_t lot)
{
    int64_t n = audit->options.elements;

    switch (audit->part) {
    case INVAR_AUDIT_ROLLOUT: return (n + lot % 4) / 4;
    case INVAR_AUDIT_SCORE: return (n + (lot + 2) % 4) / 4;
    default: return n > audit->checked ? n - audit->checked : 0;
    }
}

static void make_plans(invar_audit *audit, const uint32_t lot[4])
{
    op_plan *plans = audit->plans[audit->part];
    int64_t kinds = 0, rank = lot[1] % INVAR_OP_COUNT;

    for (int op = 0; op < INVAR_OP_COUNT; op++)
        kinds += plans[op].expected > 0;
    for (int op = 0; op < INVAR_OP_COUNT; op++) {
        op_plan *p = &plans[op];
        p->calls = p->done = 0;
        p->quota = kinds ? 0 : (audit->share + 3) / 4;
        if (p->expected == 0)
            continue;
        p->quota = audit->share / kinds + (rank++ % kinds < audit->share % kinds);
        p->offset = lot[2] % p->expected;
    }
}

void invar_audit_begin(invar_audit *audit, int64_t step, invar_audit_part part)
{
    uint32_t common[4], own[4];

    if (!audit)
        return;
    if (step != audit->step)
        audit->checked = audit->differ = 0;
    audit->step = step;
    audit->part = INVAR_AUDIT_PARTS; // drawn without a part: all parts of a step must round alike
    draw_words(common, audit, INVAR_OP_COUNT, 0, 0);
    audit->part = part;
    draw_words(own, audit, INVAR_OP_COUNT, 0, 0);
    audit->share = budget_of_part(audit, common[0]);
    make_plans(audit, own);
    audit->active = true;
}

void invar_audit_end(invar_audit *audit)
{
    bool any = false;

    if (!audit || !audit->active)
        return;
    audit->active = false;
    for (int op = 0; op < INVAR_OP_COUNT; op++)
        any = any || audit->plans[audit->part][op].calls > 0;
    for (int op = 0; op < INVAR_OP_COUNT && any; op++)
        audit->plans[audit->part][op].expected = audit->plans[audit->part][op].calls;
}

/* Number of elements of the current call. */
static int64_t elements_of(const invar_audit *audit, const op_plan *p)
{
    int64_t i = p->calls, n;

    if (p->expected == 0)
        n = p->done < p->quota && (i & (i + 1)) == 0;
    else if (i < p->expected)
        n = ((i + 1) * p->quota + p->offset) / p->expected -
            (i * p->quota + p->offset) / p->expected;
    else
        n = 0;
    n = n < audit->share ? n : audit->share;
    return n < MOST_PER_CALL ? n : MOST_PER_CALL;
}

/* Numbers the calls of all ranks alternately, so that ranks pick different elements. */
static uint32_t global_call_number(const invar_audit *audit, int64_t call)
{
    int64_t ranks = audit->options.ranks > 1 ? audit->options.ranks : 1;

    return (uint32_t)(call * ranks + audit->options.rank);
}

/* ---- around an op ---------------------------------------------------------------------------- */

invar_status invar_audit_before(invar_audit *audit, invar_op op, const void *args)
{
    op_plan *p;

    if (!audit || !audit->active || !invar_audit_knows(op))
        return INVAR_OK;
    p = &audit->plans[audit->part][op];
    audit->n_choices = elements_of(audit, p);
    for (int64_t i = 0; i < audit->n_choices; i++) {
        invar_audit_pick *c = &audit->choices[i];
        draw_words(c->word, audit, (uint32_t)op, global_call_number(audit, p->calls), (uint32_t)i);
        INVAR_TRY(invar_audit_read_before(c, &audit->scratch, op, args));
    }
    p->done += audit->n_choices;
    audit->share -= audit->n_choices;
    p->calls++;
    return INVAR_OK;
}

invar_status invar_audit_after(invar_audit *audit, invar_op op, const void *args, int64_t layer)
{
    if (!audit || !audit->active || !invar_audit_knows(op))
        return INVAR_OK;
    for (int64_t i = 0; i < audit->n_choices; i++) {
        invar_audit_finding finding = {.op = op, .layer = layer};
        bool differs;

        INVAR_TRY(
            invar_audit_compare(&differs, &finding, &audit->scratch, op, args, &audit->choices[i]));
        audit->checked += audit->scratch.compared;
        if (!differs)
            continue;
        audit->differ++;
        INVAR_TRY(audit->options.found(audit->options.payload, &finding));
    }
    return INVAR_OK;
}
