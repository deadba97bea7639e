/*
 * chat_messages.c - validates and converts the messages and tools of a chat request.
 *
 * Messages are untrusted. They are copied, and the copy is converted in place, because the id of
 * the response is a hash of the request as it was sent.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/serve/chat_messages.h"

#include <string.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

static invar_status no_memory(void)
{
    return INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for messages");
}

static bool is_text(const json_t *value, const char *text)
{
    return json_is_string(value) && json_string_length(value) == strlen(text) &&
           strcmp(json_string_value(value), text) == 0;
}

/* ---- content --------------------------------------------------------------------------------- */

static invar_status join_parts(char **out, size_t *bytes, const json_t *parts, size_t index)
{
    size_t i, total = 0, at = 0;
    const json_t *part;

    json_array_foreach(parts, i, part)
    {
        const json_t *text = json_object_get(part, "text");

        if (!is_text(json_object_get(part, "type"), "text") || !json_is_string(text))
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "messages[%zu].content[%zu] is no part {\"type\":\"text\",\"text\":"
                              "...}: images and sound are not offered",
                              index, i);
        total += json_string_length(text) + 1;
    }
    INVAR_TRY(INVAR_ALLOC(*out, total + 1, "the parts of a message"));
    json_array_foreach(parts, i, part)
    {
        const json_t *text = json_object_get(part, "text");

        if (i > 0)
            (*out)[at++] = '\n';
        memcpy(*out + at, json_string_value(text), json_string_length(text));
        at += json_string_length(text);
    }
    *bytes = at;
    return INVAR_OK;
}

/*
 * Converts the content of a message: a string, text parts, or nothing if the message calls tools.
 */
static invar_status read_content(json_t *message, size_t index)
{
    const json_t *content = json_object_get(message, "content");
    bool calls = json_array_size(json_object_get(message, "tool_calls")) > 0;
    char *text = NULL;
    size_t bytes = 0;
    int failed;

    if (json_is_string(content))
        return INVAR_OK;
    if ((!content || json_is_null(content)) && calls)
        return json_object_set_new(message, "content", json_string("")) ? no_memory() : INVAR_OK;
    if (!json_is_array(content))
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "messages[%zu].content is neither a string nor a list of parts", index);
    INVAR_TRY(join_parts(&text, &bytes, content, index));
    failed = json_object_set_new(message, "content", json_stringn(text, bytes));
    invar_free(text);
    return failed ? no_memory() : INVAR_OK;
}

/* ---- tool calls ------------------------------------------------------------------------------ */

static invar_status parse_call_arguments(const json_t *call, size_t index,
                                         const invar_serve_memory *memory)
{
    json_t *function = json_object_get(call, "function"), *arguments, *parsed = NULL;
    const json_t *name = json_object_get(function, "name");
    const char *text;
    size_t bytes;
    int failed;

    arguments = json_object_get(function, "arguments");
    if (!json_is_string(name) || !(json_is_string(arguments) || json_is_object(arguments)))
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "messages[%zu].tool_calls: a call without a function's name and "
                          "arguments",
                          index);
    if (json_is_object(arguments))
        return INVAR_OK;
    text = json_string_value(arguments);
    bytes = json_string_length(arguments);
    INVAR_TRY(invar_serve_memory_reserve(memory, invar_serve_memory_of_json(text, bytes), true));
    INVAR_TRY(invar_json_parse(&parsed, "tool_calls: arguments", text, bytes));
    failed = json_object_set_new(function, "arguments", parsed);
    return failed ? no_memory() : INVAR_OK;
}

static invar_status parse_tool_calls(const json_t *message, size_t index,
                                     const invar_serve_memory *memory)
{
    const json_t *calls = json_object_get(message, "tool_calls"), *call;
    size_t i;

    if (!invar_json_has(message, "tool_calls"))
        return INVAR_OK;
    if (!json_is_array(calls))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "messages[%zu].tool_calls is no list", index);
    json_array_foreach(calls, i, call) INVAR_TRY(parse_call_arguments(call, index, memory));
    return INVAR_OK;
}

/* ---- messages -------------------------------------------------------------------------------- */

static invar_status read_role(json_t *message, size_t index)
{
    static const char *const known[] = {"system", "user", "assistant", "tool"};
    const json_t *role = json_object_get(message, "role");

    if (is_text(role, "developer"))
        return json_object_set_new(message, "role", json_string("system")) ? no_memory() : INVAR_OK;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (is_text(role, known[i]))
            return INVAR_OK;
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "messages[%zu].role is not one of system, developer, user, assistant, tool",
                      index);
}

static invar_status read_message(json_t *message, size_t index, const invar_serve_memory *memory)
{
    if (!json_is_object(message))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "messages[%zu] is no object", index);
    INVAR_TRY(read_role(message, index));
    INVAR_TRY(read_content(message, index));
    return parse_tool_calls(message, index, memory);
}

invar_status invar_chat_messages_read(json_t **out, const json_t *messages,
                                      const invar_serve_memory *memory)
{
    json_t *message;
    size_t i;

    if (!json_is_array(messages) || json_array_size(messages) == 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "messages is no list with at least one message");
    *out = json_deep_copy(messages); // the id of the response is a hash of the unchanged body
    if (!*out)
        return no_memory();
    json_array_foreach(*out, i, message) INVAR_TRY(read_message(message, i, memory));
    return INVAR_OK;
}

invar_status invar_chat_messages_check_tools(const json_t *tools)
{
    const json_t *tool;
    size_t i;

    if (tools && !json_is_array(tools))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "tools is no list");
    json_array_foreach(tools, i, tool)
    {
        const json_t *function = json_object_get(tool, "function");

        if (!is_text(json_object_get(tool, "type"), "function") ||
            !json_is_string(json_object_get(function, "name")))
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "tools[%zu] is no {\"type\":\"function\",\"function\":{\"name\":..."
                              "}}",
                              i);
    }
    return INVAR_OK;
}
