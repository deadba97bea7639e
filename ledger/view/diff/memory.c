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

#include "base/alloc.h"
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

invar_status invar_diff_alloc(void **out, invar_diff *diff, size_t count, size_t size)
{
    block *top = diff->memory;
    size_t bytes;
    void *fresh;

    if (size && count > (SIZE_MAX - 2 * BLOCK_BYTES) / size)
        return INVAR_FAIL(INVAR_E_NOMEM, 0, "diff: a list of %zu elements is too long", count);
    bytes = (count * size + 15) & ~(size_t)15;
    if (!top || top->size - top->used < bytes) {
        size_t room = bytes > BLOCK_BYTES ? bytes : BLOCK_BYTES;
        INVAR_TRY(invar_alloc(&fresh, 1, sizeof *top + room, "a diff"));
        top = fresh;
        *top = (block){.next = diff->memory, .size = room};
        diff->memory = top;
    }
    *out = memset(top->data + top->used, 0, bytes);
    top->used += bytes;
    return INVAR_OK;
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

invar_status invar_diff_add(void **out, invar_diff *diff, invar_diff_list *list, size_t size)
{
    if (list->count == list->room) {
        size_t room = list->room ? 2 * list->room : 16;
        void *data;
        INVAR_TRY(invar_diff_alloc(&data, diff, room, size));
        if (list->count)
            memcpy(data, list->data, list->count * size);
        list->data = data;
        list->room = room;
    }
    *out = (unsigned char *)list->data + list->count++ * size;
    return INVAR_OK;
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
    void *copy;

    INVAR_TRY(invar_diff_alloc(&copy, diff, 1, escape_text(NULL, text, bytes) + 1));
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
    void *copy;
    invar_status status;

    va_start(args, format);
    va_copy(again, args);
    length = vsnprintf(NULL, 0, format, args);
    status = invar_diff_alloc(&copy, diff, 1, (size_t)length + 1);
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

invar_status invar_diff_join_next(bool *row_out, invar_diff_join *join)
{
    int order = 0;

    if (!join->started || join->in_a)
        INVAR_TRY(invar_sql_step(&join->more_a, join->a));
    if (!join->started || join->in_b)
        INVAR_TRY(invar_sql_step(&join->more_b, join->b));
    join->started = true;
    if (join->more_a && join->more_b)
        for (int i = 0; i < join->keys && order == 0; i++)
            order = compare_column(join->a, join->b, i);
    join->in_a = join->more_a && order <= 0;
    join->in_b = join->more_b && order >= 0;
    *row_out = join->in_a || join->in_b;
    return INVAR_OK;
}

void invar_diff_join_release(invar_diff_join *join)
{
    invar_sql_free(join->a);
    invar_sql_free(join->b);
}
