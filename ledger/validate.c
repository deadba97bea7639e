/*
 * validate.c - checks the values that callers pass to ledger calls, before a transaction begins.
 *
 * Names and texts must be UTF-8 without control characters, because they are shown on terminals and
 * in pages. A rejected value appears in the message escaped and cut.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "ledger/validate.h"

#include <string.h>

#include "base/sort.h"
#include "base/text.h"

#include "base/invar_banned.h"

static invar_status fail_invalid(const char *what, const char *why, const char *text)
{
    char quote[INVAR_TEXT_QUOTE_SIZE];

    invar_text_quote(quote, sizeof quote, text, strlen(text));
    return INVAR_FAIL(INVAR_E_INVALID, 0, "ledger: %s \"%s\" %s", what, quote, why);
}

invar_status invar_ledger_validate_name(const char *what, const char *name)
{
    size_t length = name ? strlen(name) : 0;

    if (length == 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "ledger: %s is empty", what);
    if (length > INVAR_LEDGER_NAME_BYTES)
        return fail_invalid(what, "is longer than 255 bytes", name);
    for (size_t i = 0, bytes; i < length; i += bytes) {
        bytes = invar_text_char(name + i, length - i);
        if (bytes == 0)
            return fail_invalid(what, "has a control character or is not UTF-8", name);
    }
    return INVAR_OK;
}

invar_status invar_ledger_validate_word(const char *what, const char *word,
                                        const invar_choices *words)
{
    static const char none[] = "is none of ";
    char why[sizeof none + INVAR_CHOICES_TEXT_SIZE];

    INVAR_TRY(invar_ledger_validate_name(what, word));
    if (invar_choices_find(words, word, strlen(word)) >= 0)
        return INVAR_OK;
    memcpy(why, none, sizeof none);
    invar_choices_text(why + sizeof none - 1, INVAR_CHOICES_TEXT_SIZE, words, ", ", ", ");
    return fail_invalid(what, why, word);
}

invar_status invar_ledger_validate_text(const char *what, const char *text)
{
    size_t length;

    if (!text)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "ledger: %s is missing", what);
    length = strlen(text);
    for (size_t i = 0, bytes; i < length; i += bytes) {
        bytes = strchr("\t\r\n", text[i]) ? 1 : invar_text_char(text + i, length - i);
        if (bytes == 0)
            return fail_invalid(what, "has a control character or is not UTF-8", text);
    }
    return INVAR_OK;
}

invar_status invar_ledger_validate_event(const invar_ledger_event *event)
{
    static const char *const words[] = {"debug", "info", "warning", "error"};
    static const invar_choices levels = {words, sizeof words / sizeof *words};

    INVAR_TRY(invar_ledger_validate_word("an event's level", event->level, &levels));
    INVAR_TRY(invar_ledger_validate_name("an event's kind", event->kind));
    INVAR_TRY(invar_ledger_validate_text("an event's message", event->message));
    return event->data ? invar_ledger_validate_text("an event's data", event->data) : INVAR_OK;
}

static int by_name(const void *a, const void *b)
{
    const invar_ledger_metric *x = a, *y = b;

    return strcmp(x->name, y->name);
}

invar_status invar_ledger_validate_metrics(const invar_ledger_metric **order, const char *what,
                                           const invar_ledger_metric *metrics, size_t count)
{
    if (count > INVAR_LEDGER_VALIDATE_METRICS)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "ledger: %zu values of the kind %s, %d are allowed",
                          count, what, INVAR_LEDGER_VALIDATE_METRICS);
    for (size_t i = 0; i < count; i++) {
        INVAR_TRY(invar_ledger_validate_name(what, metrics[i].name));
        order[i] = &metrics[i];
    }
    INVAR_TRY(invar_sort((const void **)order, count, by_name));
    for (size_t i = 1; i < count; i++)
        if (strcmp(order[i - 1]->name, order[i]->name) == 0)
            return fail_invalid(what, "is there twice", order[i]->name);
    return INVAR_OK;
}
