/*
 * ab_html.c - writes the result of an A/B experiment as one HTML page.
 *
 * The page embeds the object of ab_json.c for templates/ab.js, extended by `runs`: [{side, seed,
 * series}], with series as in ledger/view/report/report.c. Only metrics and evaluations have
 * curves.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/embedded.h"
#include "bisect/view/ab.h"
#include "ledger/view/page.h"
#include "ledger/view/report/internal.h"

#include "base/invar_banned.h"

extern const invar_embedded invar_ab_files[];

enum { LEAST_POINTS = 60 }; // smallest number of points of a curve, however many curves there are

/* Keeps only metrics and evaluations. */
static void drop_others(json_t *series)
{
    for (size_t i = json_array_size(series); i-- > 0;) {
        const char *kind = json_string_value(json_object_get(json_array_get(series, i), "kind"));
        if (strcmp(kind, "metric") != 0 && strcmp(kind, "evaluation") != 0)
            (void)json_array_remove(series, i);
    }
}

/* Computes how many points each series may have if `runs` runs share the size of the page. */
static invar_status choose_limit(int64_t *out, const invar_report_run *run, size_t runs)
{
    int64_t series;

    INVAR_TRY(invar_report_series_count(&series, run));
    *out = INVAR_REPORT_BUDGET / ((series + 1) * (int64_t)runs);
    *out = *out < LEAST_POINTS ? LEAST_POINTS : *out;
    *out = *out > INVAR_REPORT_POINTS ? INVAR_REPORT_POINTS : *out;
    return INVAR_OK;
}

static invar_status add_run(json_t *runs, const invar_ab_result *a, int side, size_t i,
                            size_t shown)
{
    const invar_ab_pair *pair = &a->pairs[i];
    invar_ledger *ledger = NULL;
    invar_ledger_summary summary;
    invar_report_run run = {0};
    json_t *series = json_array();
    int64_t limit;
    invar_status status;

    status = invar_workspace_ledger_open(&ledger, &summary, pair->ran[side].ledger);
    if (status == INVAR_OK) {
        run = (invar_report_run){.ledger = ledger, .run = summary.run};
        status = choose_limit(&limit, &run, 2 * shown);
    }
    if (status == INVAR_OK)
        status = invar_report_add_series(series, &run, a->effects.first, a->effects.last, limit);
    if (status == INVAR_OK) {
        drop_others(series);
        status = invar_report_append(runs, json_pack("{s:s, s:I, s:O}", "side",
                                                     side == INVAR_AB_A ? "a" : "b", "seed",
                                                     (json_int_t)pair->seed, "series", series));
    }
    json_decref(series);
    invar_ledger_close(ledger);
    return status;
}

static invar_status add_runs(json_t *data, const invar_ab_result *a)
{
    size_t shown = a->n_pairs < INVAR_AB_CURVES ? a->n_pairs : INVAR_AB_CURVES;
    json_t *runs;

    INVAR_TRY(invar_report_member(&runs, data, "runs", json_array()));
    if (a->effects.count == 0)
        return INVAR_OK;
    for (size_t i = 0; i < shown; i++)
        for (int side = 0; side < INVAR_AB_SIDES; side++)
            INVAR_TRY(add_run(runs, a, side, i, shown));
    return INVAR_OK;
}

invar_status invar_ab_html(FILE *out, const invar_ab_result *result)
{
    json_t *data = invar_ab_object(result);
    invar_status status;

    if (!data)
        return INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for the page");
    status = add_runs(data, result);
    if (status == INVAR_OK)
        status = invar_page_write(out, invar_ab_files, data, false);
    json_decref(data);
    return status;
}
