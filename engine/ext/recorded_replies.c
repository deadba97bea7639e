/*
 * recorded_replies.c - reads the recorded replies of plug-ins, and checks which plug-in gave them.
 *
 * The view `timeline` of the ledger has the newest segment of each step, so replies, facts and
 * metrics come from the same segment.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ext/recorded_replies.h"

#include <inttypes.h>
#include <string.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

/* ---- replies --------------------------------------------------------------------------------- */

invar_status invar_recorded_replies_read(invar_recorded_replies *out, invar_ledger *ledger,
                                         int64_t run, int64_t step)
{
    invar_status status;

    invar_plugin_reply_list_clear(&out->list);
    status = invar_ledger_replies(&out->found, ledger, run, step, invar_plugin_reply_list_add,
                                  &out->list);
    if (status != INVAR_OK) {
        invar_plugin_reply_list_clear(&out->list);
        out->found = false;
    }
    out->replies = (invar_plugin_replies){out->list.items, (size_t)out->list.count};
    return status;
}

void invar_recorded_replies_release(invar_recorded_replies *stored)
{
    invar_plugin_reply_list_clear(&stored->list);
    invar_free(stored->list.items);
    memset(stored, 0, sizeof *stored);
}

/* ---- files and factors ----------------------------------------------------------------------- */

static invar_status read_text(void *payload, const char *const *columns,
                              const invar_ledger_value *values, int count)
{
    char *out = payload;

    (void)columns;
    if (!values)
        return INVAR_OK;
    INVAR_CHECK(count == 1);
    if (values[0].type != INVAR_LEDGER_TYPE_TEXT || values[0].bytes >= INVAR_DIGEST_HEX_SIZE)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "the ledger has an invalid fact: verify it");
    memcpy(out, values[0].data, values[0].bytes);
    out[values[0].bytes] = '\0';
    return INVAR_OK;
}

/* Selects a text of a step by a key; empty if there is no row. */
static invar_status select_text(char out[INVAR_DIGEST_HEX_SIZE], invar_ledger *ledger,
                                const char *sql, int64_t run, int64_t step, const char *key)
{
    const invar_ledger_argument arguments[3] = {
        {"run", {.type = INVAR_LEDGER_TYPE_INT, .integer = run}},
        {"step", {.type = INVAR_LEDGER_TYPE_INT, .integer = step}},
        {"key", {.type = INVAR_LEDGER_TYPE_TEXT, .data = key, .bytes = strlen(key)}},
    };

    out[0] = '\0';
    return invar_ledger_select(ledger, &(invar_ledger_select_request){.sql = sql,
                                                                      .arguments = arguments,
                                                                      .n_arguments = 3,
                                                                      .row = read_text,
                                                                      .payload = out});
}

invar_status invar_recorded_replies_plugin_hash(char out[INVAR_DIGEST_HEX_SIZE],
                                                const invar_plugin *plugin, invar_ledger *ledger,
                                                int64_t run, int64_t step)
{
    return select_text(
        out, ledger,
        "SELECT f.value FROM timeline t JOIN fact f ON f.run = t.run AND f.seg = t.seg"
        " WHERE t.run = :run AND t.step = :step AND f.scope = '" INVAR_PLUGIN_SCOPE
        "' AND f.key = :key",
        run, step, invar_plugin_name(plugin));
}

invar_status invar_recorded_replies_check(const invar_plugin *plugin, invar_ledger *ledger,
                                          int64_t run, int64_t step)
{
    char was[INVAR_DIGEST_HEX_SIZE], now[INVAR_DIGEST_HEX_SIZE];

    if (!invar_plugin_hash(plugin))
        return INVAR_OK;
    INVAR_TRY(invar_recorded_replies_plugin_hash(was, plugin, ledger, run, step));
    invar_digest_format(now, invar_plugin_hash(plugin));
    if (!was[0] || strcmp(was, now) == 0)
        return INVAR_OK;
    return INVAR_FAIL(
        INVAR_E_STATE, 0,
        "plug-in %s: it has changed (hash %.8s, was %.8s) and the recorded replies of "
        "step %" PRId64 " are the old one's; put that back, or start a new run with "
        "--run",
        invar_plugin_name(plugin), now, was, step);
}

invar_status invar_recorded_replies_check_factor(const invar_plugin *plugin, invar_ledger *ledger,
                                                 int64_t run, int64_t step)
{
    char given[INVAR_DIGEST_HEX_SIZE];

    INVAR_TRY(
        select_text(given, ledger,
                    "SELECT 'given' FROM metrics WHERE run = :run AND step = :step AND name = :key",
                    run, step, "train/loss_factor"));
    if (!given[0])
        return INVAR_OK;
    return INVAR_FAIL(
        INVAR_E_NOTFOUND, 0,
        "plug-in %s: its loss factor of step %" PRId64
        " was left out of this ledger, a shortened copy; take the complete one, or continue "
        "in a new run with --fork",
        invar_plugin_name(plugin), step);
}
