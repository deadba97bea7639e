/*
 * query.c - texts of kept samples in SQL: the function sample_text and the view sample_texts.
 *
 * A query that selects several texts of a row calls the function once per text, with the same data,
 * so the newest sample stays in memory.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "ledger/internal.h"
#include "ledger/view/texts/texts.h"

#include "base/invar_banned.h"

/* The newest sample that a connection has read. */
typedef struct newest {
    void *data; /* (bytes) kept_sample.data; owned, NULL if nothing was read */
    size_t bytes;
    invar_texts_sample sample;
    char *response; /* (response_bytes) texts of all tokens; owned, NULL if damaged */
    size_t response_bytes;
} newest;

static void clear_newest(newest *n)
{
    invar_free(n->data);
    invar_free(n->response);
    invar_texts_release(&n->sample);
    *n = (newest){0};
}

static void free_newest(void *payload)
{
    clear_newest(payload);
    invar_free(payload);
}

static invar_status join_response(newest *n)
{
    const json_t *pieces = json_object_get(n->sample.members, "response");
    json_t *piece;
    size_t i, total = 0, used = 0;

    json_array_foreach(pieces, i, piece)
    {
        total += json_string_length(piece);
    }
    INVAR_TRY(INVAR_ALLOC(n->response, total + 1, "a response"));
    json_array_foreach(pieces, i, piece)
    {
        memcpy(n->response + used, json_string_value(piece), json_string_length(piece));
        used += json_string_length(piece);
    }
    n->response_bytes = used;
    return INVAR_OK;
}

static invar_status read_newest(newest *n, const void *data, size_t bytes)
{
    if (n->data && n->bytes == bytes && memcmp(n->data, data, bytes) == 0)
        return INVAR_OK;
    clear_newest(n);
    invar_status status = invar_texts_read(&n->sample, data, bytes);
    if (status == INVAR_OK && n->sample.members)
        status = join_response(n);
    if (status == INVAR_OK)
        status = invar_alloc(&n->data, bytes + 1, 1, "a kept sample");
    if (status != INVAR_OK) {
        clear_newest(n);
        return status;
    }
    memcpy(n->data, data, bytes);
    n->bytes = bytes;
    return INVAR_OK;
}

static invar_ledger_value text_of(const char *text, size_t bytes)
{
    return (invar_ledger_value){.type = text ? INVAR_LEDGER_TYPE_TEXT : INVAR_LEDGER_TYPE_NULL,
                                .data = text,
                                .bytes = bytes};
}

static invar_status select_text(invar_ledger_value *out, const newest *n,
                                const invar_ledger_value *name)
{
    const char *word = name->type == INVAR_LEDGER_TYPE_TEXT ? name->data : "";
    const json_t *member = json_object_get(n->sample.members, word);
    char quote[INVAR_TEXT_QUOTE_SIZE];

    if (strcmp(word, "prompt") == 0 || strcmp(word, "label") == 0)
        *out = text_of(json_string_value(member), json_string_length(member));
    else if (strcmp(word, "response") == 0)
        *out = text_of(n->response, n->response_bytes);
    else if (strcmp(word, "json") == 0)
        *out = text_of(n->sample.text, n->sample.bytes);
    else if (strcmp(word, "damage") == 0)
        *out = text_of(n->sample.why, n->sample.why ? strlen(n->sample.why) : 0);
    else {
        invar_text_quote(quote, sizeof quote, word, strlen(word));
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "sample_text: its second argument is \"%s\"; expected 'prompt', "
                          "'response', 'label', 'json' or 'damage'",
                          quote);
    }
    return INVAR_OK;
}

/* The SQL function sample_text(data, name): the text `name` of a kept sample. */
static invar_status sample_text(invar_ledger_value *out, void *payload,
                                const invar_ledger_value *arguments)
{
    newest *n = payload;

    *out = (invar_ledger_value){.type = INVAR_LEDGER_TYPE_NULL};
    if (arguments[0].type == INVAR_LEDGER_TYPE_NULL)
        return INVAR_OK;
    if (arguments[0].type != INVAR_LEDGER_TYPE_BLOB)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "sample_text: its first argument is not a BLOB; give it the column data "
                          "of kept_samples");
    INVAR_TRY(read_newest(n, arguments[0].data, arguments[0].bytes));
    return select_text(out, n, &arguments[1]);
}

/* A kept sample without a row in `sample` has NULL in the columns of that table. */
static const char view[] =
    "CREATE TEMP VIEW sample_texts AS"
    " SELECT k.run, k.step, k.seg, k.idx, s.prompt AS line, s.reward, s.advantage, s.finish,"
    "  s.tokens - s.prompt_tokens AS tokens, sample_text(k.data, 'prompt') AS prompt,"
    "  sample_text(k.data, 'response') AS response, sample_text(k.data, 'label') AS label,"
    "  sample_text(k.data, 'damage') AS damage"
    " FROM kept_samples k LEFT JOIN sample s USING(run, step, seg, idx)";

invar_status invar_texts_add(invar_ledger *ledger)
{
    newest *n;

    INVAR_TRY(INVAR_ALLOC(n, 1, "a function of SQL"));
    *n = (newest){0};
    INVAR_TRY(invar_sql_define(ledger->sql, "sample_text", 2, sample_text, n, free_newest));
    return invar_sql_create_temp(ledger->sql, view);
}
