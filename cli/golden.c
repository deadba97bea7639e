/*
 * golden.c - goldens.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/golden.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "cli/output.h"

#include "base/invar_banned.h"

#define MAGIC "# invar golden 1"
#define MAX_BYTES (16 << 20)

static invar_status find_run(invar_ledger_summary *out, invar_ledger *ledger, int64_t run)
{
    char number[32];

    (void)snprintf(number, sizeof number, "%" PRId64, run);
    return invar_ledger_find(out, ledger, number);
}

static invar_status damaged(const char *path, int64_t line)
{
    return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                      "%.150s:%" PRId64 ": not a line of a golden: record it again", path, line);
}

/* One line "STEP CHAIN" against the ledger; steps after the run's last are left. */
static invar_status compare_line(invar_golden_verdict *v, const char *line, const char *path,
                                 int64_t number, invar_ledger *ledger,
                                 const invar_ledger_summary *run)
{
    invar_digest expected, got;
    char *end;
    long long step = strtoll(line, &end, 10);

    if (end == line || *end != ' ' || step != v->steps ||
        invar_digest_parse(&expected, end + 1) != INVAR_OK) {
        invar_error_clear();
        return damaged(path, number);
    }
    v->steps++;
    if (step > run->last_step)
        return INVAR_OK;
    INVAR_TRY(invar_ledger_chain_at(&got, ledger, run->run, step));
    v->compared++;
    if (v->first < 0 && !invar_digest_equal(&got, &expected))
        v->first = step;
    return INVAR_OK;
}

static invar_status compare_identity(invar_golden_verdict *v, const char *hex, const char *path,
                                     int64_t number, const invar_ledger_summary *run)
{
    invar_digest identity;

    if (invar_digest_parse(&identity, hex) != INVAR_OK) {
        invar_error_clear();
        return damaged(path, number);
    }
    v->identity = invar_digest_equal(&identity, &run->identity);
    return INVAR_OK;
}

static invar_status compare_text(invar_golden_verdict *v, char *text, const char *path,
                                 invar_ledger *ledger, const invar_ledger_summary *run)
{
    int64_t number = 0;

    if (strncmp(text, MAGIC "\n", sizeof MAGIC) != 0)
        return damaged(path, 1);
    for (char *line = text, *next; *line; line = next) {
        char *newline = strchr(line, '\n');
        number++;
        next = newline ? newline + 1 : line + strlen(line);
        if (newline)
            *newline = '\0';
        if (line[0] == '#')
            continue;
        if (strncmp(line, "identity ", 9) == 0)
            INVAR_TRY(compare_identity(v, line + 9, path, number, run));
        else
            INVAR_TRY(compare_line(v, line, path, number, ledger, run));
    }
    return INVAR_OK;
}

invar_status invar_golden_compare(invar_golden_verdict *out, const char *path, invar_ledger *ledger,
                                  int64_t run)
{
    invar_ledger_summary summary;
    invar_status status;
    char *text = NULL;
    size_t bytes;

    *out = (invar_golden_verdict){.first = -1};
    INVAR_TRY(find_run(&summary, ledger, run));
    INVAR_TRY(invar_file_read(&text, &bytes, path, MAX_BYTES));
    // a line that a NUL hides would not be compared
    status =
        strlen(text) == bytes ? compare_text(out, text, path, ledger, &summary) : damaged(path, 1);
    invar_free(text);
    return status;
}

static invar_status print_chain(FILE *out, invar_ledger *ledger, const invar_ledger_summary *run)
{
    char hex[INVAR_DIGEST_HEX_SIZE];
    invar_digest chain;

    invar_digest_format(hex, &run->identity);
    fprintf(out, MAGIC "\n# %s\nidentity %s\n", run->name, hex);
    for (int64_t step = 0; step <= run->last_step; step++) {
        INVAR_TRY(invar_ledger_chain_at(&chain, ledger, run->run, step));
        invar_digest_format(hex, &chain);
        fprintf(out, "%" PRId64 " %s\n", step, hex);
    }
    return INVAR_OK;
}

invar_status invar_golden_record(const char *path, invar_ledger *ledger, int64_t run)
{
    invar_ledger_summary summary;
    invar_output page;

    INVAR_TRY(find_run(&summary, ledger, run));
    INVAR_TRY(invar_output_open(&page, path));
    return invar_output_close(&page, print_chain(page.stream, ledger, &summary));
}
