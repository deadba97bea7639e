/*
 * html.c - writes a diff as one HTML page, which draws itself from the JSON of the diff.
 *
 * `texts` is added to the object of json.c for templates/diff.js: the decimal numbers of metrics,
 * and what only functions of this folder can say in words.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/embedded.h"
#include "base/json/result.h"
#include "ledger/view/diff/internal.h"
#include "ledger/view/page.h"

#include "base/invar_banned.h"

/* The embedded files: first the page, then the files that it names. */
extern const invar_embedded invar_diff_files[];

static json_t *metric_texts(const void *item)
{
    const invar_diff_metric *m = item;
    char a[INVAR_NUMBER_SIZE], b[INVAR_NUMBER_SIZE], distance[INVAR_NUMBER_SIZE];

    invar_diff_number(a, m->a);
    invar_diff_number(b, m->b);
    invar_diff_distance(distance, m);
    return json_pack("[s?, s?, s]", m->in_a ? a : NULL, m->in_b ? b : NULL, distance);
}

static json_t *texts_of(const invar_diff *diff)
{
    char lines[INVAR_DIFF_NEXT_LINES][INVAR_DIFF_NEXT_SIZE], fused[INVAR_DIFF_FUSED_SIZE] = "";
    json_t *next = json_array();
    int count = invar_diff_next(lines, diff);

    for (int i = 0; i < count; i++)
        (void)json_array_append_new(next, json_string(lines[i]));
    if (diff->culprit)
        invar_diff_fused(fused, diff->culprit, "in A", "in B");
    return json_pack("{s:o, s:s, s:b, s:o, s:b}", "metrics",
                     invar_result_list(diff->metrics.items, diff->metrics.count,
                                       sizeof *diff->metrics.items, metric_texts),
                     "fused", fused, "points", invar_diff_compared_step(diff) >= 0, "next", next,
                     "replay", invar_diff_replay_would_help(diff));
}

invar_status invar_diff_html(FILE *stream, const invar_diff *diff)
{
    json_t *data = invar_diff_object(diff);
    invar_status status;

    if (json_object_set_new(data, "texts", texts_of(diff)) != 0)
        status = INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for the page");
    else
        status = invar_page_write(stream, invar_diff_files, data, false);
    json_decref(data);
    return status;
}
