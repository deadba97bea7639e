/*
 * text.c - checks, quotes and splits text from outside: UTF-8, URLs, shell words, lists.
 *
 * Text from outside may be hostile: control characters, and marks that change the direction of
 * text, never reach a terminal or a page.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/text.h"

#include <stdint.h>
#include <string.h>

#include "base/invar_banned.h"

size_t invar_text_utf8(uint32_t *out, const char *text, size_t left)
{
    // smallest code point by length: below it the encoding is overlong
    static const uint32_t smallest[5] = {0, 0, 0x80, 0x800, 0x10000};
    const unsigned char *c = (const unsigned char *)text;
    uint32_t point;
    size_t length;

    if (c[0] < 0x80) {
        *out = c[0];
        return 1;
    }
    length = c[0] >= 0xF0 ? 4 : c[0] >= 0xE0 ? 3 : 2;
    if (c[0] < 0xC0 || c[0] >= 0xF8 || length > left)
        return 0;
    point = c[0] & (0x7Fu >> length);
    for (size_t i = 1; i < length; i++) {
        if ((c[i] & 0xC0) != 0x80)
            return 0;
        point = point << 6 | (c[i] & 0x3F);
    }
    if (point < smallest[length] || point > 0x10FFFF || (point >= 0xD800 && point <= 0xDFFF))
        return 0;
    *out = point;
    return length;
}

size_t invar_text_char(const char *text, size_t left)
{
    uint32_t point;
    size_t length = invar_text_utf8(&point, text, left);

    if (length == 0 || point < 0x20 || (point >= 0x7F && point < 0xA0)) // controls
        return 0;
    // line separators, and marks that change the direction of text
    if ((point >= 0x2028 && point <= 0x202E) || (point >= 0x2066 && point <= 0x2069) ||
        point == 0x200E || point == 0x200F)
        return 0;
    return length;
}

const char *invar_text_plural(int64_t count)
{
    return count == 1 ? "" : "s";
}

bool invar_text_join(char *out, size_t size, const char *const *texts, int count)
{
    size_t used = 0;

    for (int i = 0; i < count; i++) {
        size_t bytes = strlen(texts[i]), room = size - 1 - used;
        memcpy(out + used, texts[i], bytes < room ? bytes : room);
        used += bytes < room ? bytes : room;
        out[used] = '\0';
        if (bytes > room)
            return false;
    }
    return true;
}

bool invar_text_is_pointer(const char *text, size_t bytes)
{
    static const char begin[] = "version https://git-lfs";

    return bytes >= sizeof begin - 1 && bytes < INVAR_TEXT_POINTER_SIZE &&
           memcmp(text, begin, sizeof begin - 1) == 0;
}

bool invar_text_has_suffix(const char *text, const char *end)
{
    size_t length = strlen(text), tail = strlen(end);

    return length >= tail && strcmp(text + length - tail, end) == 0;
}

const char *invar_text_quote(char *out, size_t size, const char *text, size_t length)
{
    size_t room = size - sizeof "...", used = 0, i = 0;

    while (i < length) {
        size_t step = invar_text_char(text + i, length - i);
        size_t bytes = step ? step : 1;
        if (used + bytes > room) {
            memcpy(out + used, "...", 3);
            used += 3;
            break;
        }
        memcpy(out + used, step ? text + i : "?", bytes);
        used += bytes;
        i += bytes;
    }
    out[used] = '\0';
    return out;
}

size_t invar_text_escape_char(char out[INVAR_TEXT_ESCAPED_SIZE], const char *text, size_t left)
{
    size_t length = invar_text_char(text, left);

    if (length > 0) {
        memcpy(out, text, length);
        out[length] = '\0';
        return length;
    }
    snprintf(out, INVAR_TEXT_ESCAPED_SIZE, "\\x%02x", (unsigned char)*text);
    return 1;
}

size_t invar_text_escape(char *out, size_t size, const char *text, size_t bytes)
{
    char shown[INVAR_TEXT_ESCAPED_SIZE];
    size_t used = 0;

    for (size_t i = 0; i < bytes;) {
        size_t length;
        i += invar_text_escape_char(shown, text + i, bytes - i);
        length = strlen(shown);
        if (used + length >= size)
            break;
        memcpy(out + used, shown, length);
        used += length;
    }
    out[used] = '\0';
    return used;
}

void invar_text_redact_url(char *out, size_t size, const char *url)
{
    size_t open = strcspn(url, "?#"), at = open < size ? open : size - 1;

    memcpy(out, url, at);
    out[at] = '\0';
    for (url += open; *url && at < size; url += 1 + strcspn(url + 1, "&#")) {
        size_t name = 1 + strcspn(url + 1, "=&#");
        int shown = url[name] == '=' ? (int)name + 1 : 1;

        at += (size_t)snprintf(out + at, size - at, "%.*s...", shown, url);
    }
}

void invar_text_print_shell_word(FILE *out, const char *word)
{
    static const char usual[] =
        "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789/._-+@:=,";
    char shown[INVAR_TEXT_ESCAPED_SIZE];

    if (word[0] != '\0' && word[strspn(word, usual)] == '\0') {
        fputs(word, out);
        return;
    }
    fputc('\'', out);
    for (size_t left = strlen(word), length; left > 0; word += length, left -= length) {
        length = invar_text_escape_char(shown, word, left);
        fputs(*word == '\'' ? "'\\''" : shown, out);
    }
    fputc('\'', out);
}

bool invar_text_item(const char **out, size_t *bytes_out, const char **cursor, char separator)
{
    const char *at = *cursor, *end;

    while (*at == ' ' || *at == separator)
        at++;
    if (*at == '\0')
        return false;
    end = strchr(at, separator);
    if (!end)
        end = at + strlen(at);
    *cursor = end;
    while (end > at && end[-1] == ' ')
        end--;
    *out = at;
    *bytes_out = (size_t)(end - at);
    return true;
}

bool invar_text_word(const char **out, size_t *bytes_out, const char **cursor)
{
    const char *at = *cursor + strspn(*cursor, " \t"), *end = NULL;

    if (*at == '"' || *at == '\'')
        end = strchr(at + 1, *at);
    *out = end ? at + 1 : at;
    *bytes_out = end ? (size_t)(end - at - 1) : strcspn(at, " \t");
    *cursor = *out + *bytes_out + (end ? 1 : 0);
    return *at != '\0';
}
