/*
 * normalize.c - the normalizer of a tokenizer: a list of steps that each rewrite a text.
 *
 * Each step writes into a new buffer whose size is an upper bound, so no step checks for space.
 * Results must be the same bytes as those of Hugging Face's tokenizers library.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/text/normalize.h"

#include <string.h>

#include "base/alloc.h"
#include "base/text.h"

#include "base/invar_banned.h"

static bool is_space(uint32_t point)
{
    return invar_unicode_kind(point) == INVAR_CHAR_KIND_SPACE;
}

/*
 * A lower case letter may have one byte more than its capital, and U+0130 becomes two characters.
 */
#define LOWER_MAX_PER_BYTE 2

/* This function and the next write at most LOWER_MAX_PER_BYTE * bytes and return their number. */
static size_t write_lowercase(char *out, const char *text, size_t bytes)
{
    uint32_t point, lower[2];
    size_t used = 0, count;

    for (size_t at = 0; at < bytes;) {
        at += invar_text_utf8(&point, text + at, bytes - at);
        count = invar_unicode_lower(lower, point);
        for (size_t i = 0; i < count; i++)
            used += invar_unicode_write(out + used, lower[i]);
    }
    return used;
}

static size_t write_without_accents(char *out, const char *text, size_t bytes)
{
    size_t used = 0, length;
    uint32_t point;

    for (size_t at = 0; at < bytes; at += length) {
        length = invar_text_utf8(&point, text + at, bytes - at);
        if (invar_unicode_is_accent(point))
            continue;
        memcpy(out + used, text + at, length);
        used += length;
    }
    return used;
}

/* Returns the offset of the first character that is not white space. */
static size_t skip_left_space(const char *text, size_t bytes)
{
    size_t at = 0, length;
    uint32_t point;

    while (at < bytes && (length = invar_text_utf8(&point, text + at, bytes - at)) > 0 &&
           is_space(point))
        at += length;
    return at;
}

/* Returns the offset after the last character in [begin, bytes) that is not white space. */
static size_t right_end(const char *text, size_t begin, size_t bytes)
{
    uint32_t point;

    while (bytes > begin) {
        size_t at = bytes - 1;
        while (at > begin && ((unsigned char)text[at] & 0xC0) == 0x80)
            at--;
        (void)invar_text_utf8(&point, text + at, bytes - at);
        if (!is_space(point))
            break;
        bytes = at;
    }
    return bytes;
}

/* Runs a step that writes at most bytes * LOWER_MAX_PER_BYTE and a literal to `out`. */
static size_t write_step(char *out, const invar_normal_step *step, const char *text, size_t bytes)
{
    size_t begin, end;

    switch (step->kind) {
    case INVAR_NORMAL_LOWERCASE: return write_lowercase(out, text, bytes);
    case INVAR_NORMAL_STRIP_ACCENTS: return write_without_accents(out, text, bytes);
    case INVAR_NORMAL_STRIP:
        begin = step->left ? skip_left_space(text, bytes) : 0;
        end = step->right ? right_end(text, begin, bytes) : bytes;
        memcpy(out, text + begin, end - begin);
        return end - begin;
    case INVAR_NORMAL_PREPEND:
        memcpy(out, step->to.text, step->to.bytes);
        memcpy(out + step->to.bytes, text, bytes);
        return step->to.bytes + bytes;
    case INVAR_NORMAL_FORM:
    case INVAR_NORMAL_REPLACE: break;
    }
    INVAR_CHECK(false);
    return 0;
}

static invar_status apply_step(char **out, size_t *bytes_out, const invar_normal_step *step,
                               const char *text, size_t bytes)
{
    *out = NULL;
    if (bytes == 0)
        return INVAR_OK;
    if (step->kind == INVAR_NORMAL_FORM)
        return invar_unicode_normalize(out, bytes_out, step->form, text, bytes);
    if (step->kind == INVAR_NORMAL_REPLACE)
        return invar_replace(out, bytes_out, &step->from, &step->to, text, bytes);
    INVAR_TRY(INVAR_ALLOC_SIZED(*out, bytes + INVAR_LITERAL_MAX, LOWER_MAX_PER_BYTE, "text"));
    *bytes_out = write_step(*out, step, text, bytes);
    return INVAR_OK;
}

invar_status invar_normalize(char **out, size_t *bytes_out, const invar_normalizer *normalizer,
                             const char *text, size_t bytes)
{
    invar_status status = INVAR_OK;
    size_t length = 0;
    char *next;

    *out = NULL;
    *bytes_out = bytes;
    for (size_t i = 0; i < normalizer->n_steps && status == INVAR_OK; i++) {
        status = apply_step(&next, &length, &normalizer->steps[i], *out ? *out : text, *bytes_out);
        if (!next)
            continue;
        invar_free(*out);
        *out = next;
        *bytes_out = length;
    }
    if (status == INVAR_OK)
        return INVAR_OK;
    invar_free(*out);
    *out = NULL;
    return status;
}
