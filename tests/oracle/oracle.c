/*
 * oracle.c - reads the fixtures that tests/oracle/generate.py writes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/oracle/oracle.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MAGIC "INVORA01"
#define HEAD_BYTES 16 // size of the fixed part of the head of the file, and of a tensor

static const struct {
    char tag[4];
    size_t size;
} types[INVAR_ORACLE_TYPES] = {
    [INVAR_ORACLE_F32] = {{'f', '3', '2', ' '}, 4},  [INVAR_ORACLE_F64] = {{'f', '6', '4', ' '}, 8},
    [INVAR_ORACLE_BF16] = {{'b', 'f', '1', '6'}, 2}, [INVAR_ORACLE_I32] = {{'i', '3', '2', ' '}, 4},
    [INVAR_ORACLE_I64] = {{'i', '6', '4', ' '}, 8},  [INVAR_ORACLE_U8] = {{'u', '8', ' ', ' '}, 1},
};

size_t invar_oracle_type_size(invar_oracle_type type)
{
    return types[type].size;
}

/* ---- parsing --------------------------------------------------------------------------------- */

/* The unread rest of the file. */
typedef struct cursor {
    const uint8_t *position;
    size_t bytes_left;
} cursor;

/* Returns the next `bytes` bytes; the cursor moves on to the next multiple of 8. */
static invar_status read_bytes(const void **out, cursor *c, size_t bytes)
{
    size_t padded = bytes + (8 - bytes % 8) % 8;

    if (bytes > c->bytes_left || padded > c->bytes_left)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "oracle: the file ends too early");
    *out = c->position;
    c->position += padded;
    c->bytes_left -= padded;
    return INVAR_OK;
}

static invar_status read_text(const char **out, cursor *c, uint32_t length)
{
    const void *text;

    INVAR_TRY(read_bytes(&text, c, (size_t)length + 1));
    if (memchr(text, 0, (size_t)length + 1) != (const char *)text + length)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "oracle: a text does not end where it should");
    *out = text;
    return INVAR_OK;
}

static invar_status find_type(invar_oracle_type *out, const char tag[4])
{
    for (int i = 0; i < INVAR_ORACLE_TYPES; i++) {
        if (memcmp(types[i].tag, tag, sizeof types[i].tag) == 0) {
            *out = (invar_oracle_type)i;
            return INVAR_OK;
        }
    }
    return INVAR_FAIL(INVAR_E_CORRUPT, 0, "oracle: an unknown type");
}

/* Reads the extents. No product of extents exceeds the bytes that are left, so none overflows. */
static invar_status read_shape(invar_oracle_tensor *t, cursor *c)
{
    const void *extents;

    INVAR_TRY(read_bytes(&extents, c, (size_t)t->rank * sizeof(int64_t)));
    t->count = 1;
    for (int i = 0; i < INVAR_MAX_RANK; i++) {
        int64_t extent = 1;
        if (i < t->rank)
            memcpy(&extent, (const char *)extents + (size_t)i * sizeof extent, sizeof extent);
        if (extent < 1 || (uint64_t)extent > c->bytes_left / (uint64_t)t->count)
            return INVAR_FAIL(INVAR_E_CORRUPT, 0, "oracle: an extent out of range");
        t->shape[i] = extent;
        t->count *= extent;
    }
    return INVAR_OK;
}

static invar_status read_tensor(invar_oracle_tensor *t, cursor *c)
{
    const void *head;
    uint32_t word[3]; /* rank, length of the name, zero */

    INVAR_TRY(read_bytes(&head, c, HEAD_BYTES));
    memcpy(word, (const char *)head + 4, sizeof word);
    INVAR_TRY(find_type(&t->type, head));
    if (word[0] > INVAR_MAX_RANK || word[2] != 0)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "oracle: a tensor's head is damaged");
    t->rank = (int32_t)word[0];
    INVAR_TRY(read_shape(t, c));
    INVAR_TRY(read_text(&t->name, c, word[1]));
    if ((uint64_t)t->count > c->bytes_left / types[t->type].size)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "oracle: the file ends too early");
    return read_bytes(&t->data, c, (size_t)t->count * types[t->type].size);
}

static invar_status read_tensors(invar_oracle *o, cursor *c)
{
    for (uint32_t i = 0; i < o->count; i++) {
        INVAR_TRY(read_tensor(&o->tensors[i], c));
        if (i > 0 && strcmp(o->tensors[i - 1].name, o->tensors[i].name) >= 0)
            return INVAR_FAIL(INVAR_E_CORRUPT, 0, "oracle: the names do not ascend");
    }
    if (c->bytes_left != 0)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "oracle: the file goes on behind its last tensor");
    return INVAR_OK;
}

static invar_status parse(invar_oracle *o, const void *image, size_t size)
{
    cursor c = {image, size};
    const void *head;
    uint32_t word[2]; /* count, length of the origin */

    INVAR_TRY(read_bytes(&head, &c, HEAD_BYTES));
    if (memcmp(head, MAGIC, 8) != 0)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "oracle: this is no fixture file");
    memcpy(word, (const char *)head + 8, sizeof word);
    INVAR_TRY(read_text(&o->origin, &c, word[1]));
    if (word[0] > c.bytes_left / HEAD_BYTES)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "oracle: more tensors than the file can hold");
    o->count = word[0];
    o->tensors = calloc((size_t)o->count + 1, sizeof *o->tensors);
    if (!o->tensors)
        return INVAR_FAIL(INVAR_E_NOMEM, 0, "oracle: no memory");
    return read_tensors(o, &c);
}

invar_status invar_oracle_parse(invar_oracle **out, const void *image, size_t size)
{
    invar_oracle *o = calloc(1, sizeof *o);
    invar_status status;

    if (!o)
        return INVAR_FAIL(INVAR_E_NOMEM, 0, "oracle: no memory");
    status = parse(o, image, size);
    if (status != INVAR_OK) {
        invar_oracle_close(o);
        o = NULL;
    }
    *out = o;
    return status;
}

/* ---- files ----------------------------------------------------------------------------------- */

static invar_status read_all(void **out, size_t *size_out, FILE *file, const char *path)
{
    long size;

    if (fseek(file, 0, SEEK_END) != 0 || (size = ftell(file)) < 0 || fseek(file, 0, SEEK_SET) != 0)
        return INVAR_FAIL(INVAR_E_IO, errno, "oracle: %s: %s", path, strerror(errno));
    *size_out = (size_t)size;
    *out = malloc(*size_out + 1);
    if (!*out)
        return INVAR_FAIL(INVAR_E_NOMEM, 0, "oracle: no memory for %s", path);
    if (fread(*out, 1, *size_out, file) != *size_out)
        return INVAR_FAIL(INVAR_E_IO, errno, "oracle: %s: cannot be read", path);
    return INVAR_OK;
}

invar_status invar_oracle_open(invar_oracle **out, const char *path)
{
    FILE *file = fopen(path, "rb");
    void *image = NULL;
    size_t size;
    invar_status status;

    if (!file)
        return INVAR_FAIL(INVAR_E_IO, errno, "oracle: %s: %s", path, strerror(errno));
    status = read_all(&image, &size, file, path);
    fclose(file);
    if (status == INVAR_OK)
        status = invar_oracle_parse(out, image, size);
    if (status == INVAR_OK)
        (*out)->image = image;
    else
        free(image);
    return status;
}

void invar_oracle_close(invar_oracle *o)
{
    if (!o)
        return;
    free(o->tensors);
    free(o->image);
    free(o);
}

/* ---- look-up --------------------------------------------------------------------------------- */

static int compare_name(const void *key, const void *tensor)
{
    return strcmp(key, ((const invar_oracle_tensor *)tensor)->name);
}

const invar_oracle_tensor *invar_oracle_find(const invar_oracle *o, const char *name)
{
    invar_oracle_tensor *t = bsearch(name, o->tensors, o->count, sizeof *t, compare_name);

    if (t)
        t->used = true;
    return t;
}
