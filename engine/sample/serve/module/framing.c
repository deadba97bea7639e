/*
 * framing.c - strict parser of the head of an HTTP request.
 *
 * A line must end with CR LF and have no control characters. A request may have one Content-Length
 * or the Transfer-Encoding "chunked", not both, and at most one Host.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/serve/module/framing.h"

#include <string.h>
#include <strings.h>

#include "base/invar_banned.h"

#define LENGTH_DIGITS 18 // largest number of digits of a Content-Length; fits into 64 bits

/* Bytes that are not terminated: a line without its CR LF, or a part of one. */
typedef struct text_view {
    const char *at;
    size_t bytes;
} text_view;

/* Numbers of the headers that determine the framing and the host. */
typedef struct header_counts {
    int lengths, encodings, hosts;
    bool is_http10; /* the request is HTTP/1.0 */
} header_counts;

static bool equals_ignoring_case(text_view t, const char *word)
{
    return t.bytes == strlen(word) && strncasecmp(t.at, word, t.bytes) == 0;
}

static bool ends_with(text_view t, const char *word)
{
    size_t bytes = strlen(word);

    return t.bytes > bytes && memcmp(t.at + t.bytes - bytes, word, bytes) == 0;
}

static text_view trim_blanks(text_view t)
{
    for (; t.bytes > 0 && (*t.at == ' ' || *t.at == '\t'); t.bytes--)
        t.at++;
    while (t.bytes > 0 && (t.at[t.bytes - 1] == ' ' || t.at[t.bytes - 1] == '\t'))
        t.bytes--;
    return t;
}

/* Returns whether the bytes are a token of RFC 9110, the form of a header name. */
static bool is_name(text_view t)
{
    for (size_t i = 0; i < t.bytes; i++) {
        char c = t.at[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');

        if (!plain && (c == '\0' || !strchr("!#$%&'*+-.^_`|~", c)))
            return false;
    }
    return t.bytes > 0;
}

static bool has_control(text_view t)
{
    for (size_t i = 0; i < t.bytes; i++)
        if (((unsigned char)t.at[i] < 0x20 && t.at[i] != '\t') || t.at[i] == 0x7F)
            return true;
    return false;
}

static const char *read_length(invar_framing *out, text_view value)
{
    if (value.bytes == 0 || value.bytes > LENGTH_DIGITS)
        return "its Content-Length is no number";
    for (size_t i = 0; i < value.bytes; i++) {
        if (value.at[i] < '0' || value.at[i] > '9')
            return "its Content-Length is no number";
        out->body_bytes = 10 * out->body_bytes + (uint64_t)(value.at[i] - '0');
    }
    return NULL;
}

static const char *read_header(invar_framing *out, header_counts *seen, text_view line)
{
    const char *colon = memchr(line.at, ':', line.bytes);
    text_view name = {line.at, colon ? (size_t)(colon - line.at) : 0}, value;

    if (!is_name(name))
        return "a header has no name, a blank in its name, or goes over two lines";
    value = trim_blanks((text_view){colon + 1, line.bytes - name.bytes - 1});
    if (equals_ignoring_case(name, "Authorization") && !out->authorization) {
        out->authorization = value.at;
        out->authorization_bytes = value.bytes;
    }
    if (equals_ignoring_case(name, "Host") && ++seen->hosts > 1)
        return "it has two headers Host";
    if (equals_ignoring_case(name, "Content-Length"))
        return ++seen->lengths > 1 ? "it has two headers Content-Length" : read_length(out, value);
    if (equals_ignoring_case(name, "Transfer-Encoding")) {
        out->chunked = true;
        if (++seen->encodings > 1 || seen->is_http10 || !equals_ignoring_case(value, "chunked"))
            return "its Transfer-Encoding is not chunked alone";
    }
    return NULL;
}

static const char *read_line(invar_framing *out, header_counts *seen, text_view line, bool first)
{
    if (line.bytes == 0 || line.at[line.bytes - 1] != '\r')
        return "a line of its head does not end with CR LF";
    line.bytes--;
    if (has_control(line))
        return "its head has a NUL or another control character";
    if (first) {
        seen->is_http10 = ends_with(line, " HTTP/1.0");
        return seen->is_http10 || ends_with(line, " HTTP/1.1") ? NULL
                                                               : "its first line is not HTTP/1.1";
    }
    return line.bytes > 0 ? read_header(out, seen, line) : NULL;
}

void invar_framing_read(invar_framing *out, const char *data, size_t bytes)
{
    header_counts seen = {0};
    size_t at = 0;

    *out = (invar_framing){0};
    while (!out->error && out->head_bytes == 0) {
        const char *newline = at < bytes ? memchr(data + at, '\n', bytes - at) : NULL;
        text_view line = {data + at, newline ? (size_t)(newline - data) - at : 0};

        if (!newline)
            return;
        out->error = read_line(out, &seen, line, at == 0);
        at += line.bytes + 1;
        if (line.bytes == 1 && !out->error)
            out->head_bytes = at;
    }
    if (!out->error && seen.encodings > 0 && seen.lengths > 0)
        out->error = "it has Transfer-Encoding and Content-Length";
}
