/*
 * page.c - writes one self-contained HTML file from embedded templates and JSON data.
 *
 * The Content-Security-Policy of a page allows only the embedded scripts, by their SHA-256. Data
 * cannot become markup, because every `<` in the JSON is written as \u003c.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "ledger/view/page.h"

#include <errno.h>
#include <stdint.h>
#include <string.h>

#include "ledger/sha256.h"

#include "base/invar_banned.h"

static invar_status write_bytes(FILE *out, const char *text, size_t bytes)
{
    if (fwrite(text, 1, bytes, out) != bytes)
        return INVAR_FAIL(INVAR_E_IO, errno, "cannot write the page: %s", strerror(errno));
    return INVAR_OK;
}

/*
 * Writes JSON with every `<` as \u003c. In JSON `<` occurs inside strings only, where both mean the
 * same. Without it the text contains neither "</script" nor "<!--", so no text of a ledger becomes
 * markup. Callback of json_dump_callback.
 */
static int write_json_part(const char *text, size_t bytes, void *payload)
{
    FILE *out = payload;
    while (bytes != 0) {
        const char *angle = memchr(text, '<', bytes);
        size_t plain = angle ? (size_t)(angle - text) : bytes;
        if (fwrite(text, 1, plain, out) != plain || (angle && fputs("\\u003c", out) < 0))
            return -1;
        plain += angle != NULL;
        text += plain;
        bytes -= plain;
    }
    return 0;
}

invar_status invar_page_write_data(FILE *out, const json_t *data)
{
    errno = 0;
    if (json_dump_callback(data, write_json_part, out, JSON_COMPACT | JSON_ENSURE_ASCII) == 0)
        return INVAR_OK;
    if (!ferror(out))
        return INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory to write the data of the page");
    return INVAR_FAIL(INVAR_E_IO, errno, "cannot write the page: %s", strerror(errno));
}

/* Writes the hash of a file in the form of a Content-Security-Policy: sha256-BASE64. */
static invar_status write_hash(FILE *out, const invar_embedded *file)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    uint8_t hash[INVAR_SHA256_BYTES + 1] = {0}; // padded to 11 groups of three bytes
    invar_sha256 sha;
    invar_sha256_init(&sha);
    invar_sha256_update(&sha, file->text, file->bytes);
    invar_sha256_final(hash, &sha);
    char text[] = "sha256-...........................................=";
    char *at = text + strlen("sha256-");
    for (int i = 0; i < INVAR_SHA256_BYTES; i += 3) {
        unsigned group =
            (unsigned)hash[i] << 16 | (unsigned)hash[i + 1] << 8 | (unsigned)hash[i + 2];
        for (int shift = 18; shift >= 0 && *at != '='; shift -= 6)
            *at++ = digits[group >> shift & 63];
    }
    return write_bytes(out, text, strlen(text));
}

/* The page that is being written. */
typedef struct page {
    FILE *out;
    const invar_embedded *files;
    const json_t *data;
    bool live;
} page;

/* Removes a prefix from the name; false if the name does not begin with it. */
static bool remove_prefix(const char *prefix, const char **name, size_t *bytes)
{
    size_t length = strlen(prefix);

    if (*bytes <= length || memcmp(*name, prefix, length) != 0)
        return false;
    *name += length;
    *bytes -= length;
    return true;
}

/* Writes what a name in braces stands for. */
static invar_status write_named(const page *p, const char *name, size_t bytes)
{
    FILE *out = p->out;

    if (bytes == 4 && memcmp(name, "data", 4) == 0)
        return invar_page_write_data(out, p->data);
    if (remove_prefix("live:", &name, &bytes))
        return p->live ? write_bytes(out, name, bytes) : INVAR_OK;
    bool hashed = remove_prefix("sha256:", &name, &bytes);
    const invar_embedded *file = p->files;
    while (file->name && (strlen(file->name) != bytes || memcmp(file->name, name, bytes) != 0))
        file++;
    INVAR_CHECK(file->name); // an embedded template names only embedded files
    return hashed ? write_hash(out, file) : write_bytes(out, file->text, file->bytes);
}

invar_status invar_page_write(FILE *out, const invar_embedded *files, const json_t *data, bool live)
{
    const page p = {out, files, data, live};
    const char *at = files->text;
    for (const char *open; (open = strstr(at, "{{")) != NULL;) {
        const char *name = open + 2;
        const char *close = strstr(name, "}}");
        INVAR_CHECK(close);
        INVAR_TRY(write_bytes(out, at, (size_t)(open - at)));
        INVAR_TRY(write_named(&p, name, (size_t)(close - name)));
        at = close + 2;
    }
    INVAR_TRY(write_bytes(out, at, strlen(at)));
    if (fflush(out) != 0)
        return INVAR_FAIL(INVAR_E_IO, errno, "cannot write the page: %s", strerror(errno));
    return INVAR_OK;
}
