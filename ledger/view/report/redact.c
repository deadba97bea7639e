/*
 * redact.c - what a page for others does not have: host, author, commands, folders, messages.
 *
 * Of a value with a blank in it, which may be a command, nothing is left; of a path its last name.
 * Values of one key that were different stay different, so that no page says that runs were equal
 * in a key in which they were not.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <string.h>

#include "ledger/view/report/internal.h"

#include "base/invar_banned.h"

#define LEFT_OUT "(left out)"

enum { SHORT_SIZE = INVAR_REPORT_TEXT_BYTES + 8 };

/* Without a folder, or nothing of it; false: there is nothing to leave out. */
static bool shorten(char out[SHORT_SIZE], const char *text)
{
    const char *name = strrchr(text, '/');
    bool command = strpbrk(text, " \t\n") != NULL;

    if (command)
        (void)snprintf(out, SHORT_SIZE, LEFT_OUT);
    else if (name)
        (void)snprintf(out, SHORT_SIZE, "\xE2\x80\xA6/%.*s", INVAR_REPORT_TEXT_BYTES, name + 1);
    return command || name;
}

/* The place of a text in a list that it is added to where it is new. */
static invar_status number_of(size_t *out, json_t *known, json_t *text)
{
    size_t count = json_array_size(known);

    for (*out = 0; *out < count; ++*out)
        if (json_equal(json_array_get(known, *out), text))
            return INVAR_OK;
    return invar_report_append(known, json_incref(text));
}

/* Other texts for the values of a key; `known` are those that it had in runs before. */
static invar_status shorten_values(json_t *values, json_t *known)
{
    char text[SHORT_SIZE], numbered[SHORT_SIZE + 24];
    json_t *value;
    size_t i, number;

    json_array_foreach(values, i, value)
    {
        if (!json_is_string(value) || !shorten(text, json_string_value(value)))
            continue;
        INVAR_TRY(number_of(&number, known, value));
        (void)snprintf(numbered, sizeof numbered, number ? "%s (%zu)" : "%s", text, number + 1);
        if (json_array_set_new(values, i, json_string(numbered)) != 0)
            return INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for the facts of the report");
    }
    return INVAR_OK;
}

static invar_status shorten_scope(json_t *scope)
{
    const char *key;
    json_t *runs, *values;
    size_t i;

    json_object_foreach(scope, key, runs)
    {
        json_t *known = json_array();
        invar_status status = INVAR_OK;
        json_array_foreach(runs, i, values)
        {
            if (status == INVAR_OK)
                status = shorten_values(values, known);
        }
        json_decref(known);
        INVAR_TRY(status);
    }
    return INVAR_OK;
}

/* Messages that are made of numbers and names of metrics alone. */
static bool is_harmless(const char *kind)
{
    return strcmp(kind, "triage") == 0 || strcmp(kind, "not-finite") == 0;
}

static invar_status share_events(json_t *events)
{
    json_t *event;
    size_t i;

    json_array_foreach(events, i, event)
    {
        INVAR_TRY(invar_report_set(event, "data", json_null()));
        if (!is_harmless(json_string_value(json_object_get(event, "kind"))))
            INVAR_TRY(invar_report_set(event, "message", json_null()));
    }
    return INVAR_OK;
}

/* This member of each object of a list becomes null. */
static invar_status clear(json_t *list, const char *member)
{
    json_t *one;
    size_t i;

    json_array_foreach(list, i, one)
    {
        INVAR_TRY(invar_report_set(one, member, json_null()));
    }
    return INVAR_OK;
}

static invar_status share_run(json_t *run)
{
    char label[SHORT_SIZE];

    INVAR_TRY(share_events(json_object_get(run, "events")));
    INVAR_TRY(clear(json_object_get(run, "ranks"), "host"));
    INVAR_TRY(clear(json_object_get(run, "segments"), "reason"));
    const char *text = json_string_value(json_object_get(run, "label"));
    if (!strchr(text, '/') || !shorten(label, text))
        return INVAR_OK;
    return invar_report_set(run, "label", json_string(label));
}

invar_status invar_report_redact(json_t *data)
{
    json_t *facts = json_object_get(data, "facts"), *run;
    size_t i;

    (void)json_object_del(json_object_get(facts, "host"), "name");
    (void)json_object_del(json_object_get(facts, "build"), "author");
    INVAR_TRY(shorten_scope(json_object_get(facts, "identity")));
    INVAR_TRY(shorten_scope(json_object_get(facts, "free")));
    json_array_foreach(json_object_get(data, "runs"), i, run)
    {
        INVAR_TRY(share_run(run));
    }
    return INVAR_OK;
}
