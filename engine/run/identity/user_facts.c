/*
 * user_facts.c - parses the facts that the user passes in INVAR_FACTS.
 *
 * The text is copied and cut in place: the items point into the copy. All or nothing: one wrong
 * line rejects the complete text, and a scope and key may occur once.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/identity/user_facts.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"

#include "base/invar_banned.h"

static invar_status fail_line(size_t line, const char *text, size_t bytes, const char *why)
{
    char quoted[INVAR_TEXT_QUOTE_SIZE];

    invar_text_quote(quoted, sizeof quoted, text, bytes);
    return INVAR_FAIL(INVAR_E_INVALID, 0, "INVAR_FACTS, line %zu, \"%s\": %s", line + 1, quoted,
                      why);
}

static bool is_scope(const char *text)
{
    static const char *const scopes[] = {"ab", "ci", "bisect", "user"};

    for (size_t i = 0; i < sizeof scopes / sizeof *scopes; i++)
        if (strcmp(text, scopes[i]) == 0)
            return true;
    return false;
}

static bool is_key(const char *text)
{
    size_t length = strspn(text, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                 "-_");

    return length > 0 && length <= INVAR_USER_FACTS_KEY && text[length] == '\0';
}

static bool is_value(const char *text)
{
    size_t left = strlen(text), bytes = 1;

    for (; left > 0 && (bytes = invar_text_char(text, left)) > 0; left -= bytes)
        text += bytes;
    return bytes > 0;
}

static bool is_known(const invar_user_facts *facts, const invar_ledger_fact *fact)
{
    for (size_t i = 0; i < facts->count; i++)
        if (strcmp(facts->items[i].scope, fact->scope) == 0 &&
            strcmp(facts->items[i].key, fact->key) == 0)
            return true;
    return false;
}

/*
 * Parses one NUL-terminated line, which is cut in place. `original` is used in error messages only.
 */
static invar_status parse_line(invar_user_facts *out, char *line, const char *original,
                               size_t bytes)
{
    char *sign = strchr(line, '='), *dot = strchr(line, '.');
    invar_ledger_fact fact;

    if (strlen(line) != bytes)
        return fail_line(out->count, original, bytes, "a NUL is in it");
    if (!sign || !dot || dot > sign)
        return fail_line(out->count, original, bytes, "expected SCOPE.KEY=VALUE");
    *dot = *sign = '\0';
    fact = (invar_ledger_fact){line, dot + 1, sign + 1};
    if (!is_scope(fact.scope))
        return fail_line(out->count, original, bytes, "the scope is one of ab, ci, bisect, user");
    if (!is_key(fact.key))
        return fail_line(out->count, original, bytes,
                         "a key has 1 to 63 letters, digits, '-' and '_'");
    if (!is_value(fact.value))
        return fail_line(out->count, original, bytes, "the value is not printable UTF-8");
    if (is_known(out, &fact))
        return fail_line(out->count, original, bytes, "this fact was there before");
    if (out->count == INVAR_USER_FACTS_MAX)
        return fail_line(out->count, original, bytes, "more than 64 facts");
    out->items[out->count++] = fact;
    return INVAR_OK;
}

invar_status invar_user_facts_parse(invar_user_facts *out, const char *text, size_t bytes)
{
    invar_status status = INVAR_OK;

    *out = (invar_user_facts){.count = 0};
    if (bytes > INVAR_USER_FACTS_BYTES)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "INVAR_FACTS has %zu bytes, at most %d are allowed",
                          bytes, INVAR_USER_FACTS_BYTES);
    if (bytes == 0)
        return INVAR_OK;
    INVAR_TRY(INVAR_ALLOC(out->memory, bytes + 1, "facts"));
    memcpy(out->memory, text, bytes);
    for (size_t at = 0, end; at < bytes && status == INVAR_OK; at = end + 1) {
        const char *newline = memchr(text + at, '\n', bytes - at);
        end = newline ? (size_t)(newline - text) : bytes;
        out->memory[end] = '\0';
        status = parse_line(out, out->memory + at, text + at, end - at);
    }
    if (status != INVAR_OK)
        invar_user_facts_release(out);
    return status;
}

invar_status invar_user_facts_read(invar_user_facts *out)
{
    const char *text = getenv("INVAR_FACTS");

    return invar_user_facts_parse(out, text ? text : "", text ? strlen(text) : 0);
}

void invar_user_facts_release(invar_user_facts *facts)
{
    invar_free(facts->memory);
    *facts = (invar_user_facts){.count = 0};
}
