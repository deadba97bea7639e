/*
 * memory.c - memory and texts of a diff, and the join of two sorted results.
 *
 * A diff has many small texts and a few lists that are freed together, so it allocates from blocks
 * and frees nothing before the end. A list that grows leaves its old memory in the block.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdalign.h>
#include <stdarg.h>
#include <string.h>

#include "base/text.h"
#include "ledger/view/diff/internal.h"

#include "base/invar_banned.h"

/* ---- memory ---------------------------------------------------------------------------------- */

typedef struct block {
    struct block *next;
    size_t used, size;
    alignas(16) unsigned char data[];
} block;

enum { BLOCK_BYTES = 1 << 16 };

void *invar_diff_alloc(invar_diff *diff, size_t count, size_t size)
{
    block *top = diff->memory;
    size_t bytes;

    if (size && count > (SIZE_MAX - 2 * BLOCK_BYTES) / size) {
        (void)INVAR_FAIL(INVAR_E_NOMEM, 0, "diff: a list of %zu elements is too long", count);
        return NULL;
    }
    bytes = (count * size + 15) & ~(size_t)15;
    if (!top || top->size - top->used < bytes) {
        size_t room = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
        if (INVAR_ALLOC_SIZED(top, 1, sizeof *top + room, "a diff") != INVAR_OK)
            return NULL;
        *top = (block){.next = diff->memory, .size = room};
        diff->memory = top;
    }
    top->used += bytes;
    return memset(top->data + top->used - bytes, 0, bytes);
}

void invar_diff_free(invar_diff *diff)
{
    if (!diff)
        return;
    for (block *top = diff->memory, *next; top; top = next) {
        next = top->next;
        invar_free(top);
    }
    invar_free(diff);
}

/* The capacity follows from the count: it is 16 or the next power of two, and no less. */
void *invar_diff_append(invar_diff *diff, void *items, size_t *count, size_t size)
{
    size_t used = (*count)++;
    void *larger;

    if (used != 0 && (used < 16 || (used & (used - 1)) != 0))
        return items;
    larger = invar_diff_alloc(diff, used ? 2 * used : 16, size);
    if (larger && used)
        memcpy(larger, items, used * size);
    return larger;
}

/* ---- texts ----------------------------------------------------------------------------------- */

/* Returns the length of the character at `text` if it is printable, 0 if its byte is escaped. */
static size_t printable_length(const char *text, size_t left)
{
    size_t length = invar_text_char(text, left);

    if (*text == '\\' && left > 1 && text[1] == 'x')
        return 0;
    // line separators and marks that change the direction of text: U+2028 to 202E, 2066 to 2069
    if (length == 3 &&
        ((memcmp(text, "\xe2\x80\xa8", 3) >= 0 && memcmp(text, "\xe2\x80\xae", 3) <= 0) ||
         (memcmp(text, "\xe2\x81\xa6", 3) >= 0 && memcmp(text, "\xe2\x81\xa9", 3) <= 0)))
        return 0;
    return length;
}

/* Returns the length of the printable form, and writes it unless `out` is NULL. */
static size_t escape_text(char *out, const char *text, size_t bytes)
{
    static const char hex[] = "0123456789abcdef";
    size_t used = 0;

    for (size_t i = 0; i < bytes;) {
        size_t length = printable_length(text + i, bytes - i);
        unsigned char byte = (unsigned char)text[i];
        if (length && out)
            memcpy(out + used, text + i, length);
        if (!length && out)
            memcpy(out + used, (char[]){'\\', 'x', hex[byte >> 4], hex[byte & 15]}, 4);
        used += length ? length : 4;
        i += length ? length : 1;
    }
    return used;
}

invar_status invar_diff_text(const char **out, invar_diff *diff, const char *text, size_t bytes)
{
    char *copy;

    INVAR_TRY(INVAR_DIFF_ALLOC(copy, diff, escape_text(NULL, text, bytes) + 1));
    escape_text(copy, text, bytes);
    *out = copy;
    return INVAR_OK;
}

invar_status invar_diff_column(const char **out, invar_diff *diff, invar_sql_stmt *stmt, int column)
{
    size_t bytes;
    const char *text = invar_sql_text(stmt, column, &bytes);

    return invar_diff_text(out, diff, text, bytes);
}

invar_status invar_diff_format(const char **out, invar_diff *diff, const char *format, ...)
{
    va_list args, again;
    int length;
    char *copy;
    invar_status status;

    va_start(args, format);
    va_copy(again, args);
    length = vsnprintf(NULL, 0, format, args);
    status = INVAR_DIFF_ALLOC(copy, diff, (size_t)length + 1);
    if (status == INVAR_OK) {
        vsnprintf(copy, (size_t)length + 1, format, again);
        *out = copy;
    }
    va_end(again);
    va_end(args);
    return status;
}

/* ---- joins ----------------------------------------------------------------------------------- */

/* Compares values of one type in SQLite's order: numbers by size, texts and blobs by bytes. */
static int compare_column(invar_sql_stmt *a, invar_sql_stmt *b, int column)
{
    size_t bytes_a, bytes_b;
    const void *data_a, *data_b;
    int order;

    if (invar_sql_type(a, column) == INVAR_LEDGER_TYPE_INT) {
        int64_t x = invar_sql_int(a, column), y = invar_sql_int(b, column);
        return (x > y) - (x < y);
    }
    data_a = invar_sql_blob(a, column, &bytes_a);
    data_b = invar_sql_blob(b, column, &bytes_b);
    order = bytes_a && bytes_b ? memcmp(data_a, data_b, bytes_a < bytes_b ? bytes_a : bytes_b) : 0;
    return order ? order : (bytes_a > bytes_b) - (bytes_a < bytes_b);
}

bool invar_diff_join_same(const invar_diff_join *join, int column)
{
    return compare_column(join->a, join->b, column) == 0;
}

invar_status invar_diff_join_open(invar_diff_join *join, const invar_diff_source *a,
                                  const invar_diff_source *b, const char *text, int keys)
{
    // as if the row before the first was on both sides
    *join = (invar_diff_join){.keys = keys, .in_a = true, .in_b = true};
    INVAR_TRY(invar_diff_prepare(&join->a, a, text));
    return invar_diff_prepare(&join->b, b, text);
}

bool invar_diff_join_next(invar_status *status, invar_diff_join *join)
{
    int order = 0;

    if (join->in_a)
        join->more_a = invar_sql_next(status, join->a);
    if (join->in_b)
        join->more_b = invar_sql_next(status, join->b);
    if (*status != INVAR_OK)
        return false;
    if (join->more_a && join->more_b)
        for (int i = 0; i < join->keys && order == 0; i++)
            order = compare_column(join->a, join->b, i);
    join->in_a = join->more_a && order <= 0;
    join->in_b = join->more_b && order >= 0;
    return join->in_a || join->in_b;
}

invar_status invar_diff_join_end(invar_diff_join *join, invar_status status)
{
    invar_sql_free(join->a);
    return invar_sql_end(join->b, status);
}
