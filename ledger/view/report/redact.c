/*
 * redact.c - removes from the data of a page what must not leave the machine: host, author,
 * commands, folders, messages.
 *
 * A value with a blank, which may be a command, is removed completely; of a path the last name
 * stays. Different values of one key stay different, so that the page does not show runs as equal
 * in a key in which they differ.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <string.h>

#include "ledger/view/report/internal.h"

#include "base/invar_banned.h"

#define LEFT_OUT "(left out)"

enum { SHORT_SIZE = INVAR_REPORT_TEXT_BYTES + 8 };

/* Shortens a path to its last name, and removes a command; false if the text can stay. */
static bool shorten_text(char out[SHORT_SIZE], const char *text)
{
    const char *name = strrchr(text, '/');
    bool command = strpbrk(text, " \t\n") != NULL;

    if (command)
        (void)snprintf(out, SHORT_SIZE, LEFT_OUT);
    else if (name)
        (void)snprintf(out, SHORT_SIZE, "\xE2\x80\xA6/%.*s", INVAR_REPORT_TEXT_BYTES, name + 1);
    return command || name;
}

/* *out = the index of a text in a list; the text is appended if the list does not have it. */
static invar_status index_of_text(size_t *out, json_t *known, json_t *text)
{
    size_t count = json_array_size(known);

    for (*out = 0; *out < count; ++*out)
        if (json_equal(json_array_get(known, *out), text))
            return INVAR_OK;
    return invar_report_append(known, json_incref(text));
}

/* Replaces the values of a key. `known` has the values of the key in earlier runs. */
static invar_status shorten_values(json_t *values, json_t *known)
{
    char text[SHORT_SIZE], numbered[SHORT_SIZE + 24];
    json_t *value;
    size_t i, number;

    json_array_foreach(values, i, value)
    {
        if (!json_is_string(value) || !shorten_text(text, json_string_value(value)))
            continue;
        INVAR_TRY(index_of_text(&number, known, value));
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

static invar_status redact_events(json_t *events)
{
    json_t *event;
    size_t i;

    json_array_foreach(events, i, event)
    {
        const char *kind = json_string_value(json_object_get(event, "kind"));
        INVAR_TRY(invar_report_set(event, "data", json_null()));
        // messages of these kinds contain only numbers and names of metrics
        if (strcmp(kind, "triage") != 0 && strcmp(kind, "not-finite") != 0)
            INVAR_TRY(invar_report_set(event, "message", json_null()));
    }
    return INVAR_OK;
}

/* Sets this member to null in each object of a list. */
static invar_status clear_member(json_t *list, const char *member)
{
    json_t *one;
    size_t i;

    json_array_foreach(list, i, one)
    {
        INVAR_TRY(invar_report_set(one, member, json_null()));
    }
    return INVAR_OK;
}

static invar_status redact_run(json_t *run)
{
    char label[SHORT_SIZE];

    INVAR_TRY(redact_events(json_object_get(run, "events")));
    INVAR_TRY(clear_member(json_object_get(run, "ranks"), "host"));
    INVAR_TRY(clear_member(json_object_get(run, "segments"), "reason"));
    const char *text = json_string_value(json_object_get(run, "label"));
    if (!strchr(text, '/') || !shorten_text(label, text))
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
        INVAR_TRY(redact_run(run));
    }
    return INVAR_OK;
}
