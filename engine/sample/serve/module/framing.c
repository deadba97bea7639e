/*
 * framing.c - strict reading of the lines of an HTTP request's head.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/serve/module/framing.h"

#include <string.h>
#include <strings.h>

#include "base/invar_banned.h"

#define LENGTH_DIGITS 18 // of a Content-Length, so that it fits into 64 bits

/* A line without its CR LF, or a part of one; not terminated. */
typedef struct text {
    const char *at;
    size_t bytes;
} text;

/* Headers that decide about the framing or the place, counted. */
typedef struct counts {
    int lengths, encodings, hosts;
    bool old; /* HTTP/1.0 */
} counts;

static bool is(text t, const char *word)
{
    return t.bytes == strlen(word) && strncasecmp(t.at, word, t.bytes) == 0;
}

static bool ends_with(text t, const char *word)
{
    size_t bytes = strlen(word);

    return t.bytes > bytes && memcmp(t.at + t.bytes - bytes, word, bytes) == 0;
}

static text trimmed(text t)
{
    for (; t.bytes > 0 && (*t.at == ' ' || *t.at == '\t'); t.bytes--)
        t.at++;
    while (t.bytes > 0 && (t.at[t.bytes - 1] == ' ' || t.at[t.bytes - 1] == '\t'))
        t.bytes--;
    return t;
}

/* Letters of a header's name, as RFC 9110 has them. */
static bool is_name(text t)
{
    for (size_t i = 0; i < t.bytes; i++) {
        char c = t.at[i];
        bool plain = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');

        if (!plain && (c == '\0' || !strchr("!#$%&'*+-.^_`|~", c)))
            return false;
    }
    return t.bytes > 0;
}

static bool has_control(text t)
{
    for (size_t i = 0; i < t.bytes; i++)
        if (((unsigned char)t.at[i] < 0x20 && t.at[i] != '\t') || t.at[i] == 0x7F)
            return true;
    return false;
}

static const char *read_length(invar_framing *out, text value)
{
    if (value.bytes == 0 || value.bytes > LENGTH_DIGITS)
        return "its Content-Length is no number";
    for (size_t i = 0; i < value.bytes; i++) {
        if (value.at[i] < '0' || value.at[i] > '9')
            return "its Content-Length is no number";
        out->body = 10 * out->body + (uint64_t)(value.at[i] - '0');
    }
    return NULL;
}

static const char *read_header(invar_framing *out, counts *seen, text line)
{
    const char *colon = memchr(line.at, ':', line.bytes);
    text name = {line.at, colon ? (size_t)(colon - line.at) : 0}, value;

    if (!is_name(name))
        return "a header has no name, a blank in its name, or goes over two lines";
    value = trimmed((text){colon + 1, line.bytes - name.bytes - 1});
    if (is(name, "Authorization") && !out->authorization) {
        out->authorization = value.at;
        out->authorization_bytes = value.bytes;
    }
    if (is(name, "Host") && ++seen->hosts > 1)
        return "it has two headers Host";
    if (is(name, "Content-Length"))
        return ++seen->lengths > 1 ? "it has two headers Content-Length" : read_length(out, value);
    if (is(name, "Transfer-Encoding")) {
        out->chunked = true;
        if (++seen->encodings > 1 || seen->old || !is(value, "chunked"))
            return "its Transfer-Encoding is not chunked alone";
    }
    return NULL;
}

static const char *read_line(invar_framing *out, counts *seen, text line, bool first)
{
    if (line.bytes == 0 || line.at[line.bytes - 1] != '\r')
        return "a line of its head does not end with CR LF";
    line.bytes--;
    if (has_control(line))
        return "its head has a NUL or another control character";
    if (first) {
        seen->old = ends_with(line, " HTTP/1.0");
        return seen->old || ends_with(line, " HTTP/1.1") ? NULL : "its first line is not HTTP/1.1";
    }
    return line.bytes > 0 ? read_header(out, seen, line) : NULL;
}

void invar_framing_read(invar_framing *out, const char *data, size_t bytes)
{
    counts seen = {0};
    size_t at = 0;

    *out = (invar_framing){0};
    while (!out->wrong && out->head == 0) {
        const char *newline = at < bytes ? memchr(data + at, '\n', bytes - at) : NULL;
        text line = {data + at, newline ? (size_t)(newline - data) - at : 0};

        if (!newline)
            return;
        out->wrong = read_line(out, &seen, line, at == 0);
        at += line.bytes + 1;
        if (line.bytes == 1 && !out->wrong)
            out->head = at;
    }
    if (!out->wrong && seen.encodings > 0 && seen.lengths > 0)
        out->wrong = "it has Transfer-Encoding and Content-Length";
}
