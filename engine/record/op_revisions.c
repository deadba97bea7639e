/*
 * op_revisions.c - compares the op revisions of recorded steps with those of this program.
 *
 * One query joins the segments of the steps with their facts. Only ops that a segment lists are
 * compared; ops that are new in this program cannot have computed its steps.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/record/op_revisions.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"
#include "kernels-deterministic/device.h"

#include "base/invar_banned.h"

#define SHOWN 6 /* largest number of ops in a message; the others are counted */

/* Selects the segments of the steps with their ops; one row with NULL for a segment without any. */
static const char sql[] =
    "SELECT t.seg, f.key, f.value, c.value, d.value FROM "
    "(SELECT DISTINCT seg FROM timeline WHERE run = :run AND step BETWEEN :first AND :last) t "
    "LEFT JOIN fact f ON f.run = :run AND f.seg = t.seg AND f.scope = '" INVAR_OP_REVISIONS_SCOPE
    "' "
    "LEFT JOIN fact c ON c.run = :run AND c.seg = t.seg AND c.scope = 'build' AND c.key = 'commit' "
    "LEFT JOIN fact d ON d.run = :run AND d.seg = t.seg AND d.scope = 'build' AND d.key = 'dirty' "
    "ORDER BY t.seg, f.key";

enum { SEG, OP, REVISION, COMMIT, DIRTY, COLUMNS };

/* Result of the comparison. */
typedef struct revision_check {
    /* all segments have revisions */
    bool known;
    /* first segment with other revisions, and the number of its ops that differ */
    int64_t seg, n_differing;
    /* these ops, for the message */
    char list[SHOWN * (2 * INVAR_TEXT_QUOTE_SIZE + 32)];
    /* commit that recorded the segment; empty if unknown */
    char commit[INVAR_TEXT_QUOTE_SIZE];
    /* it was built without local changes */
    bool clean;
} revision_check;

/* Returns this program's revision of an op by name; 0 if it has no such op. */
static int own_revision(const char *name)
{
    for (int op = 0; op < INVAR_OP_COUNT; op++)
        if (strcmp(invar_op_name((invar_op)op), name) == 0)
            return invar_op_revision((invar_op)op);
    return 0;
}

static void add_differing_op(revision_check *out, const invar_ledger_value *values, int here)
{
    char name[INVAR_TEXT_QUOTE_SIZE], there[INVAR_TEXT_QUOTE_SIZE], ours[16] = "none";
    size_t used = strlen(out->list);

    if (out->n_differing == 0) {
        out->seg = values[SEG].integer;
        if (values[COMMIT].type == INVAR_LEDGER_TYPE_TEXT)
            invar_text_quote(out->commit, sizeof out->commit, values[COMMIT].data,
                             values[COMMIT].bytes);
        out->clean = values[DIRTY].type == INVAR_LEDGER_TYPE_TEXT &&
                     strcmp(values[DIRTY].data, "clean") == 0;
    }
    if (values[SEG].integer != out->seg || ++out->n_differing > SHOWN)
        return;
    invar_text_quote(name, sizeof name, values[OP].data, values[OP].bytes);
    invar_text_quote(there, sizeof there, values[REVISION].data, values[REVISION].bytes);
    if (here)
        (void)snprintf(ours, sizeof ours, "%d", here);
    (void)snprintf(out->list + used, sizeof out->list - used, "%s%s %s (here %s)", used ? ", " : "",
                   name, there, ours);
}

static invar_status on_op_fact(void *payload, const char *const *columns,
                               const invar_ledger_value *values, int count)
{
    revision_check *out = payload;
    char ours[16];
    int here;

    (void)columns;
    if (!values)
        return INVAR_OK;
    INVAR_CHECK(count == COLUMNS);
    if (values[OP].type != INVAR_LEDGER_TYPE_TEXT ||
        values[REVISION].type != INVAR_LEDGER_TYPE_TEXT) {
        out->known = false;
        return INVAR_OK;
    }
    here = own_revision(values[OP].data);
    (void)snprintf(ours, sizeof ours, "%d", here);
    if (strcmp(ours, values[REVISION].data) != 0)
        add_differing_op(out, values, here);
    return INVAR_OK;
}

invar_status invar_op_revisions_check(bool *known_out, invar_ledger *ledger,
                                      const invar_ledger_summary *run, int64_t first, int64_t last,
                                      const char *otherwise)
{
    const invar_ledger_argument arguments[3] = {
        {"run", {.type = INVAR_LEDGER_TYPE_INT, .integer = run->run}},
        {"first", {.type = INVAR_LEDGER_TYPE_INT, .integer = first}},
        {"last", {.type = INVAR_LEDGER_TYPE_INT, .integer = last}},
    };
    revision_check out = {.known = true};
    char more[32] = "", build[INVAR_TEXT_QUOTE_SIZE + 96] = "the program that recorded it";

    INVAR_TRY(invar_ledger_select(ledger, &(invar_ledger_select_request){.sql = sql,
                                                                         .arguments = arguments,
                                                                         .n_arguments = 3,
                                                                         .row = on_op_fact,
                                                                         .payload = &out}));
    *known_out = out.known;
    if (out.n_differing == 0)
        return INVAR_OK;
    if (out.n_differing > SHOWN)
        (void)snprintf(more, sizeof more, " and %lld more", (long long)(out.n_differing - SHOWN));
    if (out.commit[0])
        (void)snprintf(build, sizeof build, "a program built from commit %s%s", out.commit,
                       out.clean ? "" : " with the changes that the ledger has of it");
    return INVAR_FAIL(INVAR_E_STATE, 0,
                      "run %.60s was computed under other revisions of ops, so with other bits: "
                      "%s%s; use %s%s",
                      run->name, out.list, more, build, otherwise);
}
