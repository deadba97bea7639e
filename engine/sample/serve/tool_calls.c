/*
 * tool_calls.c - parses the tool calls at the end of a response.
 *
 * All blocks must be valid, or none is a call: a client that runs tools must never see a part of
 * what the model wrote. Invalid JSON is not an error, because a model may write anything.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/serve/tool_calls.h"

#include <string.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

static bool is_space(char c)
{
    return c == ' ' || c == '\n' || c == '\r' || c == '\t';
}

static const char *skip_space(const char *at, const char *end)
{
    while (at < end && is_space(*at))
        at++;
    return at;
}

/* Returns the first occurrence of `word` in [at, end), or NULL. */
static const char *find_word(const char *at, const char *end, const char *word)
{
    size_t bytes = strlen(word);

    for (; (size_t)(end - at) >= bytes; at++)
        if (memcmp(at, word, bytes) == 0)
            return at;
    return NULL;
}

static bool starts_with(const char *at, const char *end, const char *word)
{
    return (size_t)(end - at) >= strlen(word) && memcmp(at, word, strlen(word)) == 0;
}

/*
 * Returns the arguments as a JSON string: a string is returned unchanged, any other value as its
 * JSON text. Returns NULL if there is no memory.
 */
static json_t *arguments_text(const json_t *arguments)
{
    char *text = NULL;
    json_t *out;
    size_t bytes;

    if (json_is_string(arguments))
        return json_incref((json_t *)(uintptr_t)arguments);
    if (invar_json_dump(&text, &bytes, arguments, JSON_ENCODE_ANY, "arguments") != INVAR_OK)
        return NULL;
    out = json_stringn(text, bytes);
    invar_free(text);
    return out;
}

/* Appends the tool call that a block contains. *is_out reports whether the block is one. */
static invar_status add_call(bool *is_out, json_t *list, const char *json, size_t bytes)
{
    json_t *block, *call = NULL;
    const json_t *name, *arguments;

    *is_out = false;
    if (invar_json_parse(&block, "a tool call", json, bytes) != INVAR_OK) {
        invar_error_clear();
        return INVAR_OK;
    }
    name = json_object_get(block, "name");
    arguments = json_object_get(block, "arguments");
    *is_out = json_is_string(name) && arguments;
    if (*is_out)
        call = json_pack("{sOso}", "name", name, "arguments", arguments_text(arguments));
    json_decref(block);
    if (*is_out && (!call || json_array_append_new(list, call) != 0))
        return INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for tool calls");
    return INVAR_OK;
}

/*
 * Reads blocks up to `end`. *all_out reports whether every block is a tool call and only white
 * space stands between them.
 */
static invar_status read_blocks(bool *all_out, json_t *list, const char *at, const char *end)
{
    *all_out = true;
    while (*all_out && (at = skip_space(at, end)) < end) {
        const char *begin, *close;

        *all_out = starts_with(at, end, INVAR_TOOL_CALLS_BEGIN);
        begin = *all_out ? at + strlen(INVAR_TOOL_CALLS_BEGIN) : end;
        close = find_word(begin, end, INVAR_TOOL_CALLS_END);
        *all_out = *all_out && close;
        if (*all_out)
            INVAR_TRY(add_call(all_out, list, begin, (size_t)(close - begin)));
        at = close ? close + strlen(INVAR_TOOL_CALLS_END) : end;
    }
    return INVAR_OK;
}

invar_status invar_tool_calls_read(invar_tool_calls *out, const char *text, size_t bytes)
{
    const char *end = text + bytes, *first = find_word(text, end, INVAR_TOOL_CALLS_BEGIN);
    bool all;

    *out = (invar_tool_calls){.text_bytes = bytes};
    if (!first)
        return INVAR_OK;
    out->list = json_array();
    if (!out->list)
        return INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for tool calls");
    INVAR_TRY(read_blocks(&all, out->list, first, end));
    if (!all) {
        invar_tool_calls_release(out);
        out->text_bytes = bytes;
        return INVAR_OK;
    }
    while (first > text && is_space(first[-1]))
        first--;
    out->text_bytes = (size_t)(first - text);
    return INVAR_OK;
}

void invar_tool_calls_release(invar_tool_calls *calls)
{
    json_decref(calls->list);
    memset(calls, 0, sizeof *calls);
}
