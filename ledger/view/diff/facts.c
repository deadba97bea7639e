/*
 * facts.c - compares the facts of two runs: identity, build, host, free keys.
 *
 * A fact belongs to a segment. A fact that had several values over the segments of a run is shown
 * with all of them, and is equal to another one only if that had the same values in the same
 * segments.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ledger/view/diff/internal.h"

#include "base/invar_banned.h"

/* A fact of one side. */
typedef struct fact {
    int64_t rank; /* order of the scopes */
    const char *scope, *key, *value;
    bool several; /* `value` lists several values, each with its first segment */
} fact;

/* A value and the first segment that had it. */
typedef struct era {
    const char *value;
    int64_t seg;
} era;

typedef INVAR_DIFF_LIST(fact) fact_list;
typedef INVAR_DIFF_LIST(era) era_list;

static int compare_facts(const fact *a, const fact *b)
{
    int order;

    if (a->rank != b->rank)
        return a->rank < b->rank ? -1 : 1;
    order = strcmp(a->scope, b->scope);
    return order ? order : strcmp(a->key, b->key);
}

/* Appends a complete fact with the values that it had. */
static invar_status finish_fact(invar_diff *diff, fact_list *facts, fact *now, era_list *eras)
{
    const era *list = eras->items;
    size_t bytes = 1, used = 0;
    char *text;

    if (eras->count == 0)
        return INVAR_OK;
    now->value = list[0].value;
    now->several = eras->count > 1;
    for (size_t i = 0; now->several && i < eras->count; i++)
        bytes += strlen(list[i].value) + 64;
    INVAR_TRY(INVAR_DIFF_ALLOC(text, diff, bytes));
    for (size_t i = 0; now->several && i < eras->count; i++)
        used += (size_t)snprintf(text + used, bytes - used, "%s%s (from segment %" PRId64 ")",
                                 i ? ", " : "", list[i].value, list[i].seg);
    if (now->several)
        now->value = text;
    eras->count = 0;
    return INVAR_DIFF_ADD(*facts, diff, *now);
}

/* Handles a row: another fact, or another value of the current fact in a later segment. */
static invar_status add_fact_row(invar_diff *diff, fact_list *facts, fact *now, era_list *eras,
                                 invar_sql_stmt *row)
{
    fact next = {.rank = invar_sql_int(row, 0)};
    const char *value;

    INVAR_TRY(invar_diff_column(&next.scope, diff, row, 1));
    INVAR_TRY(invar_diff_column(&next.key, diff, row, 2));
    INVAR_TRY(invar_diff_column(&value, diff, row, 4));
    if (eras->count && compare_facts(now, &next) != 0)
        INVAR_TRY(finish_fact(diff, facts, now, eras));
    *now = next;
    if (eras->count && strcmp(eras->items[eras->count - 1].value, value) == 0)
        return INVAR_OK;
    return INVAR_DIFF_ADD(*eras, diff, (era){value, invar_sql_int(row, 3)});
}

/* Reads the facts of the segments: first those that may change bits, then the others. */
static invar_status read_facts(invar_diff *diff, fact_list *facts,
                               const invar_diff_source *segments)
{
    static const char text[] =
        "SELECT 0, 'identity', key, 0, value FROM identity WHERE run = ?1 "
        "UNION ALL SELECT 1, 'run', 'kind', 0, kind FROM run WHERE run = ?1 "
        "UNION ALL SELECT 1, 'run', 'parent', 0, parent || ' step ' || coalesce(fork_step, -1) "
        "FROM run WHERE run = ?1 AND parent IS NOT NULL "
        "UNION ALL SELECT CASE scope WHEN 'build' THEN 2 WHEN 'host' THEN 3 WHEN 'gpu' THEN 4 "
        "WHEN 'free' THEN 5 ELSE 6 END, scope, key, seg, value FROM fact "
        "WHERE run = ?1 AND seg BETWEEN ?2 AND ?3 ORDER BY 1, 2, 3, 4";
    era_list eras = {0};
    fact now = {0};
    invar_sql_stmt *rows;
    invar_status status = invar_diff_prepare(&rows, segments, text);

    while (invar_sql_next(&status, rows))
        status = add_fact_row(diff, facts, &now, &eras, rows);
    INVAR_TRY(invar_sql_end(rows, status));
    return finish_fact(diff, facts, &now, &eras);
}

static invar_status add_fact(invar_diff *diff, const fact *a, const fact *b)
{
    const fact *any = a ? a : b;

    // runs with the same bits have the same identity, parent, program, ops and plug-ins
    if (any->rank == 0 || (any->rank == 1 && strcmp(any->key, "parent") == 0) ||
        (any->rank == 2 && strcmp(any->key, "binary") == 0) || strcmp(any->scope, "op") == 0 ||
        strcmp(any->scope, "plugin") == 0)
        diff->same_inputs = false;
    return INVAR_DIFF_ADD(
        diff->facts, diff,
        (invar_diff_fact){any->scope, any->key, a ? a->value : NULL, b ? b->value : NULL});
}

const invar_diff_fact *invar_diff_program_change(const invar_diff *diff)
{
    for (size_t i = 0; i < diff->facts.count; i++) {
        const invar_diff_fact *f = &diff->facts.items[i];
        bool program = strcmp(f->scope, "build") == 0 && strcmp(f->key, "binary") == 0;
        if ((program || strcmp(f->scope, "plugin") == 0) && f->a && f->b)
            return f;
    }
    return NULL;
}

/* Collects the facts that differ. Both lists are sorted alike. */
static invar_status merge_facts(invar_diff *diff, const fact_list *a, const fact_list *b)
{
    const fact *x = a->items, *y = b->items;
    size_t i = 0, k = 0;
    bool program = false;

    diff->same_inputs = true;
    while (i < a->count || k < b->count) {
        int order = i == a->count ? 1 : k == b->count ? -1 : compare_facts(&x[i], &y[k]);
        if (order == 0 && strcmp(x[i].value, y[k].value) == 0) {
            diff->facts.equal++;
            program |= x[i].rank == 2 && strcmp(x[i].key, "binary") == 0 && !x[i].several;
        } else {
            INVAR_TRY(add_fact(diff, order <= 0 ? &x[i] : NULL, order >= 0 ? &y[k] : NULL));
        }
        i += order <= 0;
        k += order >= 0;
    }
    diff->same_inputs = diff->same_inputs && program;
    return INVAR_OK;
}

invar_status invar_diff_compare_facts(invar_diff *diff, const invar_diff_source *a,
                                      const invar_diff_source *b)
{
    fact_list x = {0}, y = {0};

    INVAR_TRY(read_facts(diff, &x, a));
    INVAR_TRY(read_facts(diff, &y, b));
    return merge_facts(diff, &x, &y);
}
