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

static invar_status reserve_item(invar_recorded_replies *stored)
{
    size_t capacity = stored->capacity ? 2 * stored->capacity : 16;
    void *grown = NULL;

    if (stored->count < stored->capacity)
        return INVAR_OK;
    INVAR_TRY(invar_alloc(&grown, capacity, sizeof *stored->items, "stored replies"));
    if (stored->count)
        memcpy(grown, stored->items, stored->count * sizeof *stored->items);
    invar_free(stored->items);
    stored->items = grown;
    stored->capacity = capacity;
    return INVAR_OK;
}

/* Appends a copy in one block: the data, then the name. */
static invar_status append_reply(void *payload, const invar_ledger_plugin_reply *reply)
{
    invar_recorded_replies *stored = payload;
    size_t name = strlen(reply->plugin) + 1;
    invar_ledger_plugin_reply *copy;
    char *block;

    INVAR_TRY(reserve_item(stored));
    INVAR_TRY(INVAR_ALLOC(block, reply->bytes + name, "a stored reply"));
    if (reply->bytes)
        memcpy(block, reply->data, reply->bytes);
    memcpy(block + reply->bytes, reply->plugin, name);
    copy = &stored->items[stored->count++];
    *copy = *reply;
    copy->plugin = block + reply->bytes;
    copy->data = block;
    return INVAR_OK;
}

static void discard_replies(invar_recorded_replies *stored)
{
    for (size_t i = 0; i < stored->count; i++)
        invar_free((void *)(uintptr_t)stored->items[i].data);
    stored->count = 0;
    stored->found = false;
    stored->replies = (invar_plugin_replies){NULL, 0};
}

invar_status invar_recorded_replies_read(invar_recorded_replies *out, invar_ledger *ledger,
                                         int64_t run, int64_t step)
{
    invar_status status;

    discard_replies(out);
    status = invar_ledger_replies(&out->found, ledger, run, step, append_reply, out);
    if (status != INVAR_OK)
        discard_replies(out);
    else
        out->replies = (invar_plugin_replies){out->items, out->count};
    return status;
}

void invar_recorded_replies_release(invar_recorded_replies *stored)
{
    discard_replies(stored);
    invar_free(stored->items);
    memset(stored, 0, sizeof *stored);
}

const invar_plugin_replies *invar_recorded_replies_get(const invar_recorded_replies *stored)
{
    return stored->found ? &stored->replies : NULL;
}

/* ---- files of the plug-in -------------------------------------------------------------------- */

static invar_status read_maker(void *payload, const char *const *columns,
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

invar_status invar_recorded_replies_plugin_hash(char out[INVAR_DIGEST_HEX_SIZE],
                                                const invar_plugin *plugin, invar_ledger *ledger,
                                                int64_t run, int64_t step)
{
    static const char text[] =
        "SELECT f.value FROM timeline t JOIN fact f ON f.run = t.run AND f.seg = t.seg"
        " WHERE t.run = :run AND t.step = :step AND f.scope = '" INVAR_PLUGIN_SCOPE
        "' AND f.key = :plugin";
    const invar_ledger_argument arguments[3] = {
        {"run", {.type = INVAR_LEDGER_TYPE_INT, .integer = run}},
        {"step", {.type = INVAR_LEDGER_TYPE_INT, .integer = step}},
        {"plugin",
         {.type = INVAR_LEDGER_TYPE_TEXT,
          .data = invar_plugin_name(plugin),
          .bytes = strlen(invar_plugin_name(plugin))}},
    };

    out[0] = '\0';
    return invar_ledger_select(ledger, &(invar_ledger_select_request){.sql = text,
                                                                      .arguments = arguments,
                                                                      .n_arguments = 3,
                                                                      .row = read_maker,
                                                                      .payload = out});
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

/* ---- loss factor ----------------------------------------------------------------------------- */

static invar_status set_if_row(void *payload, const char *const *columns,
                               const invar_ledger_value *values, int count)
{
    (void)columns;
    (void)count;
    *(bool *)payload |= values != NULL;
    return INVAR_OK;
}

invar_status invar_recorded_replies_check_factor(const invar_plugin *plugin, invar_ledger *ledger,
                                                 int64_t run, int64_t step)
{
    const invar_ledger_argument arguments[2] = {
        {"run", {.type = INVAR_LEDGER_TYPE_INT, .integer = run}},
        {"step", {.type = INVAR_LEDGER_TYPE_INT, .integer = step}},
    };
    bool given = false;

    INVAR_TRY(invar_ledger_select(
        ledger, &(invar_ledger_select_request){.sql = "SELECT 1 FROM metrics WHERE run = :run AND "
                                                      "step = :step AND name = 'train/loss_factor'",
                                               .arguments = arguments,
                                               .n_arguments = 2,
                                               .row = set_if_row,
                                               .payload = &given}));
    if (!given)
        return INVAR_OK;
    return INVAR_FAIL(
        INVAR_E_NOTFOUND, 0,
        "plug-in %s: its loss factor of step %" PRId64
        " was left out of this ledger, a shortened copy; take the complete one, or continue "
        "in a new run with --fork",
        invar_plugin_name(plugin), step);
}
