/*
 * read.c - reads ledgers for libinvar: queries, verification, seals, diff, report.
 *
 * Results that are texts are written to a stream in memory and copied to the heap of Invar, so that
 * invar_api_free can free them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/internal.h"
#include "base/alloc.h"
#include "base/file.h"
#include "engine/config/config.h"
#include "ledger/view/diff/diff.h"
#include "ledger/view/page.h"
#include "ledger/view/report/report.h"

#include "base/invar_banned.h"

/* ---- runs and queries ------------------------------------------------------------------------ */

int32_t invar_api_ledger_find(int64_t *run_out, invar_api_ledger *ledger, const char *which)
{
    invar_ledger_summary summary;

    INVAR_TRY(invar_ledger_find(&summary, invar_api_own(ledger), which));
    *run_out = summary.run;
    return INVAR_OK;
}

int32_t invar_api_ledger_content(uint8_t *out, invar_api_ledger *ledger, int64_t run)
{
    invar_digest content;

    INVAR_TRY(invar_ledger_content_hash(&content, invar_api_own(ledger), run));
    memcpy(out, content.bytes, sizeof content.bytes);
    return INVAR_OK;
}

INVAR_API_SAME(invar_api_value, invar_ledger_value, bytes);
_Static_assert(INVAR_API_NULL == (int)INVAR_LEDGER_TYPE_NULL &&
                   INVAR_API_INT == (int)INVAR_LEDGER_TYPE_INT &&
                   INVAR_API_REAL == (int)INVAR_LEDGER_TYPE_REAL &&
                   INVAR_API_TEXT == (int)INVAR_LEDGER_TYPE_TEXT &&
                   INVAR_API_BLOB == (int)INVAR_LEDGER_TYPE_BLOB,
               "types of values");

/* The callback of a query and its payload. */
typedef struct asker {
    invar_api_row row;
    void *payload;
} asker;

static invar_status pass_row(void *payload, const char *const *columns,
                             const invar_ledger_value *values, int count)
{
    const asker *a = payload;

    if (a->row(a->payload, columns, (const invar_api_value *)values, count) != 0)
        return INVAR_FAIL(INVAR_E_STATE, 0, "the caller wants no more rows");
    return INVAR_OK;
}

int32_t invar_api_ledger_select(invar_api_ledger *ledger, const char *sql, int64_t limit_ms,
                                invar_api_row row, void *payload)
{
    asker a = {row, payload};
    const invar_ledger_select_request request = {
        .sql = sql, .limit_ms = limit_ms, .row = pass_row, .payload = &a};

    return invar_ledger_select(invar_api_own(ledger), &request);
}

/* ---- integrity ------------------------------------------------------------------------------- */

int32_t invar_api_ledger_verify(invar_api_verify_result *out, invar_api_ledger *ledger)
{
    invar_ledger_verify_result verdict;

    INVAR_TRY(invar_ledger_verify(&verdict, invar_api_own(ledger), NULL, NULL));
    *out = (invar_api_verify_result){.runs = verdict.runs,
                                     .entries = verdict.entries,
                                     .rows = verdict.rows,
                                     .steps = verdict.steps,
                                     .bad = verdict.problems};
    _Static_assert(sizeof out->first == sizeof verdict.first_problem, "findings have one size");
    memcpy(out->first, verdict.first_problem, sizeof out->first);
    return INVAR_OK;
}

int32_t invar_api_ledger_seal(char **out, invar_api_ledger *ledger, int64_t run)
{
    char *line;
    invar_status status;

    *out = NULL;
    INVAR_TRY(INVAR_ALLOC(line, INVAR_LEDGER_SEAL_SIZE, "a seal"));
    status = invar_ledger_seal(line, invar_api_own(ledger), run);
    if (status == INVAR_OK)
        *out = line;
    else
        invar_free(line);
    return status;
}

int32_t invar_api_ledger_seal_check(invar_api_ledger *ledger, const char *line)
{
    return invar_ledger_seal_check(invar_api_own(ledger), line);
}

/* ---- texts ----------------------------------------------------------------------------------- */

/* A stream to memory that the C library allocates. */
typedef struct sheet {
    FILE *stream;
    char *text;
    size_t bytes;
} sheet;

static invar_status sheet_open(sheet *s)
{
    *s = (sheet){.stream = NULL};
    s->stream = open_memstream(&s->text, &s->bytes);
    return s->stream ? INVAR_OK : INVAR_FAIL(INVAR_E_NOMEM, errno, "no memory for a text");
}

static invar_status sheet_close(sheet *s, invar_status status)
{
    if (fclose(s->stream) != 0 && status == INVAR_OK)
        status = INVAR_FAIL(INVAR_E_NOMEM, errno, "no memory for a text");
    return status;
}

int32_t invar_api_ledger_diff(char **json_out, invar_api_ledger *a, int64_t run_a,
                              invar_api_ledger *b, int64_t run_b)
{
    invar_diff *diff = NULL;
    invar_status status;
    sheet s;

    *json_out = NULL;
    INVAR_TRY(sheet_open(&s));
    status = invar_diff_runs(&diff, invar_api_own(a), run_a, invar_api_own(b), run_b);
    if (status == INVAR_OK)
        status = invar_diff_json(s.stream, diff);
    invar_diff_free(diff);
    status = sheet_close(&s, status);
    if (status == INVAR_OK)
        status = INVAR_ALLOC(*json_out, s.bytes + 1, "a diff");
    if (status == INVAR_OK)
        memcpy(*json_out, s.text, s.bytes + 1);
    free(s.text);
    return status;
}

/* Damaged samples: their number, and a message about the first. */
typedef struct damage {
    int64_t count;
    char first[INVAR_ERROR_MESSAGE_SIZE / 2];
} damage;

static void add_damage(void *payload, const char *line)
{
    damage *d = payload;

    if (d->count++ == 0)
        (void)snprintf(d->first, sizeof d->first, "%s", line);
}

int32_t invar_api_ledger_report(invar_api_ledger *ledger, int64_t run, const char *path)
{
    const invar_report_run runs = {invar_api_own(ledger), run, NULL};
    damage d = {0};
    invar_ledger_pair defaults[INVAR_KEY_COUNT];
    const invar_report_options options = {.defaults = defaults,
                                          .n_defaults = invar_config_defaults(defaults),
                                          .damaged = add_damage,
                                          .payload = &d};
    invar_status status;
    sheet s;

    INVAR_TRY(invar_path_check_output(path, INVAR_PAGE_MARK("report"), 0));
    INVAR_TRY(sheet_open(&s));
    status = sheet_close(&s, invar_report_write(s.stream, &runs, 1, &options));
    if (status == INVAR_OK)
        status = invar_file_write(path, s.text, s.bytes);
    free(s.text);
    INVAR_TRY(status);
    return d.count == 0 ? INVAR_OK
                        : INVAR_FAIL(INVAR_E_CORRUPT, 0,
                                     "%s; the page is written, without %lld kept sample%s", d.first,
                                     (long long)d.count, d.count == 1 ? "" : "s");
}
