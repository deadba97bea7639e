/*
 * bisect_report_html.c - writes the result of a bisect as one HTML page, which draws itself.
 *
 * `texts` is added to the object of bisect_report_json.c for templates/bisect.js: what only
 * bisect_report_text.c can say in words.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>

#include "base/embedded.h"
#include "base/json/result.h"
#include "bisect/view/bisect_report.h"
#include "ledger/view/page.h"

#include "base/invar_banned.h"

/* The page, then the files that it names. */
extern const invar_embedded invar_bisect_report_files[];

/* Returns where a change begins, and the remarks about it. */
static json_t *change_texts(const void *item)
{
    const invar_bisect_change *c = item;
    char where[INVAR_BISECT_REPORT_LINE], remark[INVAR_BISECT_REPORT_LINE];

    invar_bisect_report_divergence(where, &c->divergence);
    invar_bisect_report_remark(remark, c);
    return json_pack("[s, s]", where, remark);
}

static json_t *texts_of(const invar_bisect_result *a)
{
    char points[INVAR_BISECT_REPORT_LINE] = "", command[INVAR_BISECT_REPORT_COMMAND];
    json_t *next = json_array();

    if (a->divergence.known)
        invar_bisect_report_points(points, &a->divergence);
    for (int i = 0; invar_bisect_report_next(command, a, i); i++)
        (void)json_array_append_new(next, json_string(command));
    return json_pack("{s:s, s:s, s:s, s:o, s:o}", "third", invar_bisect_report_third(a),
                     "confirmed", invar_bisect_report_confirmed(a), "points", points, "changes",
                     invar_result_list(a->changes, a->n_changes, sizeof *a->changes, change_texts),
                     "next", next);
}

invar_status invar_bisect_report_html(FILE *out, const invar_bisect_result *result)
{
    json_t *data = invar_bisect_report_object(result);
    invar_status status;

    if (json_object_set_new(data, "texts", texts_of(result)) != 0)
        status = INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for the page");
    else
        status = invar_page_write(out, invar_bisect_report_files, data, false);
    json_decref(data);
    return status;
}
