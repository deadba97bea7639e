/*
 * mask.c - secrets in the text of a report: found by what stands before them, replaced by "***".
 *
 *     WANDB_API_KEY=... HF_TOKEN=...     names in capitals that end with KEY, TOKEN, SECRET ...
 *     api-key=... --password ...         some names in any letters, also before a blank
 *     Bearer ...
 *     https://user:password@host         all that stands before the @
 *
 * It cannot know every secret: who shares a page looks at it, or leaves commands out (share.c).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/alloc.h"
#include "ledger/view/report/internal.h"

#include "base/invar_banned.h"

#define MASK "***"

typedef struct piece {
    const char *text;
    size_t bytes;
} piece;

static bool is_name(char c)
{
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
}

static char lower(char c)
{
    return c >= 'A' && c <= 'Z' ? (char)(c - 'A' + 'a') : c == '-' ? '_' : c;
}

/* Whether it ends with this word (small letters and _), which begins there or after a _. */
static bool ends_with(piece name, const char *word)
{
    size_t bytes = strlen(word);

    if (bytes > name.bytes)
        return false;
    const char *at = name.text + name.bytes - bytes;
    for (size_t i = 0; i < bytes; i++)
        if (lower(at[i]) != word[i])
            return false;
    return bytes == name.bytes || lower(at[-1]) == '_';
}

static bool ends_with_one(piece name, const char *const *words)
{
    for (; *words; words++)
        if (ends_with(name, *words))
            return true;
    return false;
}

static bool has_small_letters(piece name)
{
    for (size_t i = 0; i < name.bytes; i++)
        if (name.text[i] >= 'a' && name.text[i] <= 'z')
            return true;
    return false;
}

/* Names of variables are in capitals; `input-key` and `stop-token` are keys of recipes. */
static bool is_secret(piece name)
{
    static const char *const any[] = {"api_key",      "apikey",     "password",    "passwd",
                                      "secret",       "secret_key", "private_key", "access_key",
                                      "access_token", "auth_token", "hf_token",    NULL};
    static const char *const capitals[] = {"key",  "token",       "secret", "password",
                                           "pass", "credentials", NULL};

    return ends_with_one(name, any) || (name.bytes == 5 && ends_with(name, "token")) ||
           (!has_small_letters(name) && ends_with_one(name, capitals));
}

static piece rest_of(piece text, size_t from)
{
    return (piece){text.text + from, text.bytes - from};
}

/* How many bytes do not have any of these. */
static size_t until(piece text, const char *stops)
{
    size_t i = 0;

    while (i < text.bytes && text.text[i] != '\0' && !strchr(stops, text.text[i]))
        i++;
    return i;
}

/* A value, up to its quote or the end of the word. */
static piece value_at(piece text)
{
    char quote = text.bytes > 0 ? text.text[0] : '\0';

    if (quote == '\'' || quote == '"') {
        text = rest_of(text, 1);
        return (piece){text.text, until(text, (const char[]){quote, '\0'})};
    }
    return (piece){text.text, until(text, " \t\r\n\"'&;,")};
}

/* The secret that what stands behind a name begins with, if it is one; else of no bytes. */
static piece secret_after(piece name, piece text)
{
    const piece none = {text.text, 0};
    bool option = name.bytes > 2 && memcmp(name.text, "--", 2) == 0;
    bool bearer = name.bytes == 6 && memcmp(name.text, "Bearer", 6) == 0;
    char next = text.bytes > 0 ? text.text[0] : '\0';

    if (text.bytes > 3 && memcmp(text.text, "://", 3) == 0) {
        piece place = rest_of(text, 3);
        place.bytes = until(place, "/?# \t\r\n\"'");
        while (place.bytes > 0 && place.text[place.bytes - 1] != '@')
            place.bytes--;
        return place.bytes > 1 ? (piece){place.text, place.bytes - 1} : none;
    }
    while (name.bytes > 0 && name.text[0] == '-')
        name = rest_of(name, 1);
    if ((next == '=' && is_secret(name)) ||
        (next == ' ' && (bearer || (option && is_secret(name)))))
        return value_at(rest_of(text, 1));
    return none;
}

static size_t name_at(piece text)
{
    size_t i = 0;

    while (i < text.bytes && is_name(text.text[i]))
        i++;
    return i;
}

/* The first secret of a text; of no bytes: it has none. */
static piece find(piece text)
{
    while (text.bytes > 0) {
        piece name = {text.text, name_at(text)};
        if (name.bytes == 0) {
            text = rest_of(text, 1);
            continue;
        }
        text = rest_of(text, name.bytes);
        piece secret = secret_after(name, text);
        if (secret.bytes > 0)
            return secret;
    }
    return (piece){text.text, 0};
}

invar_status invar_report_mask(char **out, size_t *bytes_out, const char *text, size_t bytes)
{
    piece rest = {text, bytes}, secret = find(rest);
    size_t used = 0;
    char *copy;

    *out = NULL;
    if (secret.bytes == 0)
        return INVAR_OK;
    // a secret has at least a byte, and what shows that it is one two
    INVAR_TRY(invar_alloc((void **)&copy, bytes + 1, strlen(MASK), "a text"));
    for (; secret.bytes > 0; secret = find(rest)) {
        size_t before = (size_t)(secret.text - rest.text);
        memcpy(copy + used, rest.text, before);
        memcpy(copy + used + before, MASK, strlen(MASK));
        used += before + strlen(MASK);
        rest = rest_of(rest, before + secret.bytes);
    }
    memcpy(copy + used, rest.text, rest.bytes);
    *out = copy;
    *bytes_out = used + rest.bytes;
    return INVAR_OK;
}
