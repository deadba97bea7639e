/*
 * answer_text.c - fixed-size text buffer for normalizing answers before they are compared.
 *
 * invar_answer_text_splice is the only function that changes the length of a text upwards, so it
 * alone checks the capacity; the text is always NUL-terminated.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/rl/reward/answer_text.h"

#include <string.h>

#include "base/invar_banned.h"

bool invar_is_blank(char c)
{
    return c == ' ' || (c >= '\t' && c <= '\r');
}

bool invar_is_digit(char c)
{
    return c >= '0' && c <= '9';
}

char invar_lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c;
}

bool invar_is_letter(char c)
{
    return invar_lower(c) >= 'a' && invar_lower(c) <= 'z';
}

bool invar_is_word(char c)
{
    return invar_is_letter(c) || invar_is_digit(c) || c == '_' || (c & 0x80) != 0;
}

/* ---- views ----------------------------------------------------------------------------------- */

invar_str_view invar_str_view_of(const char *text)
{
    return (invar_str_view){text, strlen(text)};
}

size_t invar_str_view_find(invar_str_view view, size_t from, const char *what)
{
    size_t length = strlen(what);

    for (size_t at = from; length <= view.length && at <= view.length - length; at++) {
        if (memcmp(view.text + at, what, length) == 0)
            return at;
    }
    return view.length;
}

bool invar_str_view_matches(invar_str_view view, size_t at, invar_str_view what)
{
    if (at > view.length || what.length > view.length - at)
        return false;
    for (size_t i = 0; i < what.length; i++)
        if (invar_lower(view.text[at + i]) != invar_lower(what.text[i]))
            return false;
    return true;
}

size_t invar_str_view_character(invar_str_view view, size_t at)
{
    size_t end = at + 1;

    while (end < view.length && (view.text[end] & 0xC0) == 0x80)
        end++;
    return end - at;
}

invar_str_view invar_str_view_trim(invar_str_view view)
{
    while (view.length > 0 && invar_is_blank(view.text[view.length - 1]))
        view.length--;
    while (view.length > 0 && invar_is_blank(view.text[0])) {
        view.text++;
        view.length--;
    }
    return view;
}

bool invar_str_view_boxed(invar_str_view *out, invar_str_view view)
{
    static const char open[] = "\\boxed";
    size_t length = sizeof open - 1, at = view.length < length ? 0 : view.length - length + 1;
    size_t depth = 0;

    do {
        if (at == 0)
            return false;
        at--;
    } while (memcmp(view.text + at, open, length) != 0);
    at += length;
    if (at == view.length || view.text[at] != '{')
        return false;
    out->text = view.text + at + 1;
    for (; at < view.length; at++) {
        depth += view.text[at] == '{';
        depth -= view.text[at] == '}';
        if (depth == 0) {
            out->length = (size_t)(view.text + at - out->text);
            return true;
        }
    }
    return false;
}

/* ---- answers --------------------------------------------------------------------------------- */

static void mark_too_long(invar_answer_text *answer)
{
    answer->length = 0;
    answer->text[0] = '\0';
    answer->too_long = true;
}

void invar_answer_text_set(invar_answer_text *answer, invar_str_view view)
{
    answer->length = 0;
    answer->text[0] = '\0';
    answer->too_long = false;
    if (view.length > 0 && memchr(view.text, '\0', view.length))
        mark_too_long(answer);
    else
        invar_answer_text_splice(answer, 0, 0, view);
}

invar_str_view invar_answer_text_view(const invar_answer_text *answer)
{
    invar_str_view piece = {answer->text, answer->length};

    return piece;
}

bool invar_answer_text_equal(const invar_answer_text *a, const invar_answer_text *b)
{
    return !a->too_long && !b->too_long && a->length == b->length &&
           memcmp(a->text, b->text, a->length) == 0;
}

void invar_answer_text_splice(invar_answer_text *answer, size_t at, size_t length,
                              invar_str_view by)
{
    size_t rest = answer->length - at - length;

    if (answer->too_long)
        return;
    if (by.length >= INVAR_ANSWER_TEXT_CAPACITY - (answer->length - length)) {
        mark_too_long(answer);
        return;
    }
    memmove(answer->text + at + by.length, answer->text + at + length, rest);
    if (by.length > 0)
        memcpy(answer->text + at, by.text, by.length);
    answer->length = answer->length - length + by.length;
    answer->text[answer->length] = '\0';
}

void invar_answer_text_insert(invar_answer_text *answer, size_t at, const char *text)
{
    invar_answer_text_splice(answer, at, 0, invar_str_view_of(text));
}

void invar_answer_text_erase(invar_answer_text *answer, size_t at, size_t length)
{
    invar_answer_text_splice(answer, at, length, (invar_str_view){"", 0});
}

void invar_answer_text_replace(invar_answer_text *answer, const char *what, const char *by)
{
    invar_str_view with = invar_str_view_of(by);
    size_t at = 0;

    for (;;) {
        at = invar_str_view_find(invar_answer_text_view(answer), at, what);
        if (at >= answer->length)
            return;
        invar_answer_text_splice(answer, at, strlen(what), with);
        at += with.length;
    }
}

void invar_answer_text_trim(invar_answer_text *answer)
{
    invar_str_view inner = invar_str_view_trim(invar_answer_text_view(answer));

    memmove(answer->text, inner.text, inner.length);
    answer->length = inner.length;
    answer->text[answer->length] = '\0';
}

void invar_answer_text_to_lower(invar_answer_text *answer)
{
    for (size_t i = 0; i < answer->length; i++)
        answer->text[i] = invar_lower(answer->text[i]);
}
