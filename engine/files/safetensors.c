/*
 * safetensors.c - types and reader of safetensors files.
 *
 * Nothing in the header is used before it was checked against the size of the file, and allocations
 * are bounded by the size of the header itself.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/files/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json/json.h"
#include "base/sort.h"
#include "base/text.h"
#include "kernels-deterministic/math/bf16.h"

#include "base/invar_banned.h"

#define MAX_HEADER 100000000 /* limit of the format */
#define METADATA "__metadata__"

/* ---- types ----------------------------------------------------------------------------------- */

static const struct {
    const char *name;
    size_t bytes;
} types[INVAR_SAFETENSORS_TYPE_COUNT] = {
    [INVAR_SAFETENSORS_F32] = {"F32", 4},   [INVAR_SAFETENSORS_BF16] = {"BF16", 2},
    [INVAR_SAFETENSORS_F16] = {"F16", 2},   [INVAR_SAFETENSORS_F64] = {"F64", 8},
    [INVAR_SAFETENSORS_I64] = {"I64", 8},   [INVAR_SAFETENSORS_I32] = {"I32", 4},
    [INVAR_SAFETENSORS_I16] = {"I16", 2},   [INVAR_SAFETENSORS_I8] = {"I8", 1},
    [INVAR_SAFETENSORS_U64] = {"U64", 8},   [INVAR_SAFETENSORS_U32] = {"U32", 4},
    [INVAR_SAFETENSORS_U16] = {"U16", 2},   [INVAR_SAFETENSORS_U8] = {"U8", 1},
    [INVAR_SAFETENSORS_BOOL] = {"BOOL", 1},
};

const char *invar_safetensors_type_name(invar_safetensors_type type)
{
    INVAR_CHECK(type >= 0 && type < INVAR_SAFETENSORS_TYPE_COUNT);
    return types[type].name;
}

size_t invar_safetensors_type_bytes(invar_safetensors_type type)
{
    INVAR_CHECK(type >= 0 && type < INVAR_SAFETENSORS_TYPE_COUNT);
    return types[type].bytes;
}

/* ---- header ---------------------------------------------------------------------------------- */

struct invar_safetensors {
    int fd;
    uint64_t data;  /* offset of the data */
    uint64_t bytes; /* size of the file */
    json_t *header; /* owns the names */
    int64_t count;
    invar_safetensor *tensors;        /* (count) in header order */
    const invar_safetensor **by_data; /* (count) sorted by offset */
    const invar_safetensor **by_name; /* (count) sorted by name */
    char shown[INVAR_PATH_SHOWN_SIZE];
};

static invar_status fail_tensor(const invar_safetensors *file, const char *name, const char *why)
{
    return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: tensor '%s': %s", file->shown,
                      INVAR_QUOTED_LONG(name), why);
}

static invar_status read_type(invar_safetensor *t, const invar_safetensors *file,
                              const json_t *value)
{
    char type[INVAR_TEXT_QUOTE_SIZE];
    const char *text = json_string_value(value);

    if (!text)
        return fail_tensor(file, t->name, "no string \"dtype\"");
    for (int i = 0; i < INVAR_SAFETENSORS_TYPE_COUNT; i++) {
        if (strcmp(text, types[i].name) == 0) {
            t->type = (invar_safetensors_type)i;
            return INVAR_OK;
        }
    }
    invar_text_quote(type, sizeof type, text, strlen(text));
    return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0, "%s: tensor '%s': unknown dtype '%s'", file->shown,
                      INVAR_QUOTED_LONG(t->name), type);
}

/* Reads the shape and computes the number of elements, without overflow. */
static invar_status read_shape(invar_safetensor *t, const invar_safetensors *file,
                               const json_t *value)
{
    size_t rank = json_array_size(value);
    bool empty = false;

    if (!json_is_array(value))
        return fail_tensor(file, t->name, "no list \"shape\"");
    if (rank > INVAR_SAFETENSORS_MAX_RANK)
        return fail_tensor(file, t->name, "the shape has more than 8 extents");
    t->rank = (int32_t)rank;
    t->elements = 1;
    for (size_t i = 0; i < rank; i++) {
        const json_t *extent = json_array_get(value, i);
        int64_t n = json_integer_value(extent);

        if (!json_is_integer(extent) || n < 0)
            return fail_tensor(file, t->name, "an extent of the shape is not a natural number");
        empty = empty || n == 0;
        t->shape[i] = n;
    }
    for (size_t i = 0; i < rank && !empty; i++) {
        if (t->elements > INT64_MAX / 8 / t->shape[i])
            return fail_tensor(file, t->name, "the shape has too many elements");
        t->elements *= t->shape[i];
    }
    if (empty)
        t->elements = 0;
    return INVAR_OK;
}

static invar_status read_offsets(invar_safetensor *t, const invar_safetensors *file,
                                 const json_t *value)
{
    const json_t *first = json_array_get(value, 0), *last = json_array_get(value, 1);
    int64_t begin = json_integer_value(first), end = json_integer_value(last);

    if (json_array_size(value) != 2 || !json_is_integer(first) || !json_is_integer(last))
        return fail_tensor(file, t->name, "\"data_offsets\" are not two integers");
    if (begin < 0 || end < begin)
        return fail_tensor(file, t->name, "the data end before they begin");
    if (end - begin != t->elements * (int64_t)types[t->type].bytes)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                          "%s: tensor '%s': %lld bytes of data, dtype and shape need %lld",
                          file->shown, INVAR_QUOTED_LONG(t->name), (long long)(end - begin),
                          (long long)(t->elements * (int64_t)types[t->type].bytes));
    t->offset = file->data + (uint64_t)begin;
    return INVAR_OK;
}

static invar_status read_tensor(invar_safetensor *t, const invar_safetensors *file,
                                const char *name, const json_t *value)
{
    *t = (invar_safetensor){.name = name};
    if (!json_is_object(value) || json_object_size(value) != 3)
        return fail_tensor(file, name, "not described by dtype, shape and data_offsets alone");
    INVAR_TRY(read_type(t, file, json_object_get(value, "dtype")));
    INVAR_TRY(read_shape(t, file, json_object_get(value, "shape")));
    return read_offsets(t, file, json_object_get(value, "data_offsets"));
}

static invar_status check_metadata(const invar_safetensors *file, json_t *value)
{
    const char *key;
    json_t *text;

    if (!json_is_object(value))
        return fail_tensor(file, METADATA, "not an object");
    json_object_foreach(value, key, text)
    {
        if (!json_is_string(text))
            return fail_tensor(file, METADATA, "not only strings");
    }
    return INVAR_OK;
}

static invar_status read_tensors(invar_safetensors *file)
{
    const char *name;
    json_t *value;

    json_object_foreach(file->header, name, value)
    {
        INVAR_TRY(strcmp(name, METADATA) == 0
                      ? check_metadata(file, value)
                      : read_tensor(&file->tensors[file->count++], file, name, value));
    }
    return INVAR_OK;
}

/* ---- order ----------------------------------------------------------------------------------- */

static uint64_t end_of(const invar_safetensor *t)
{
    return t->offset + (uint64_t)t->elements * types[t->type].bytes;
}

static int compare_data(const void *a, const void *b)
{
    const invar_safetensor *x = a, *y = b;

    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return (end_of(x) > end_of(y)) - (end_of(x) < end_of(y));
}

static int compare_names(const void *a, const void *b)
{
    const invar_safetensor *x = a, *y = b;

    return strcmp(x->name, y->name);
}

/* Checks that every byte of the data belongs to exactly one tensor. */
static invar_status check_holes(const invar_safetensors *file)
{
    uint64_t at = file->data;

    for (int64_t i = 0; i < file->count; i++) {
        const invar_safetensor *t = file->by_data[i];
        if (t->offset != at)
            return fail_tensor(file, t->name,
                               t->offset < at ? "the data overlap those of another tensor"
                                              : "there is a hole before the data");
        at = end_of(t);
    }
    if (at > file->bytes)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                          "%s: the file is incomplete: by its header it has %llu bytes, and there "
                          "are %llu",
                          file->shown, (unsigned long long)at, (unsigned long long)file->bytes);
    if (at != file->bytes)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: %llu bytes after the last tensor", file->shown,
                          (unsigned long long)(file->bytes - at));
    return INVAR_OK;
}

static invar_status sort_tensors(invar_safetensors *file)
{
    size_t count = (size_t)file->count;

    INVAR_TRY(INVAR_ALLOC(file->by_data, count, file->shown));
    INVAR_TRY(INVAR_ALLOC(file->by_name, count, file->shown));
    for (size_t i = 0; i < count; i++)
        file->by_data[i] = file->by_name[i] = &file->tensors[i];
    INVAR_TRY(invar_sort((const void **)file->by_data, count, compare_data));
    INVAR_TRY(invar_sort((const void **)file->by_name, count, compare_names));
    return check_holes(file);
}

/* ---- file ------------------------------------------------------------------------------------ */

static invar_status read_at(const invar_safetensors *file, void *out, size_t bytes, uint64_t at)
{
    char *to = out;

    while (bytes > 0) {
        ssize_t got = pread(file->fd, to, bytes, (off_t)at);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return INVAR_FAIL(INVAR_E_IO, errno, "%s: cannot be read: %s", file->shown,
                              strerror(errno));
        if (got == 0)
            return INVAR_FAIL(INVAR_E_IO, 0, "%s: the file became shorter while it was read",
                              file->shown);
        to += got;
        at += (uint64_t)got;
        bytes -= (size_t)got;
    }
    return INVAR_OK;
}

static invar_status parse_header(invar_safetensors *file, const char *text, size_t bytes)
{
    if (bytes == 0 || text[0] != '{')
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: the header does not begin with {", file->shown);
    INVAR_TRY(invar_json_as_corrupt(invar_json_parse(&file->header, file->shown, text, bytes)));
    INVAR_TRY(INVAR_ALLOC(file->tensors, json_object_size(file->header), file->shown));
    INVAR_TRY(read_tensors(file));
    return sort_tensors(file);
}

/* Detects a Git LFS pointer: not damage, the user only has to fetch the file. */
static invar_status check_pointer(const invar_safetensors *file)
{
    char text[INVAR_TEXT_POINTER_SIZE];

    if (file->bytes >= sizeof text)
        return INVAR_OK;
    INVAR_TRY(read_at(file, text, (size_t)file->bytes, 0));
    return invar_text_is_pointer(text, (size_t)file->bytes)
               ? INVAR_FAIL(INVAR_E_UNSUPPORTED, 0, "%s: " INVAR_TEXT_POINTER, file->shown)
               : INVAR_OK;
}

static invar_status read_header(invar_safetensors *file)
{
    INVAR_AUTO_FREE char *text = NULL;
    unsigned char length[8];
    uint64_t bytes = 0;

    INVAR_TRY(check_pointer(file));
    if (file->bytes < sizeof length)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: %llu bytes are too few for a safetensors file",
                          file->shown, (unsigned long long)file->bytes);
    INVAR_TRY(read_at(file, length, sizeof length, 0));
    for (int i = 7; i >= 0; i--)
        bytes = bytes << 8 | length[i];
    if (bytes > MAX_HEADER)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                          "%s: the header claims %llu bytes; the file has %llu, the limit is %d",
                          file->shown, (unsigned long long)bytes, (unsigned long long)file->bytes,
                          MAX_HEADER);
    if (bytes > file->bytes - sizeof length)
        return INVAR_FAIL(
            INVAR_E_CORRUPT, 0,
            "%s: the file is incomplete: its header alone ends at byte %llu, and there "
            "are %llu",
            file->shown, (unsigned long long)(sizeof length + bytes),
            (unsigned long long)file->bytes);
    file->data = sizeof length + bytes;
    INVAR_TRY(INVAR_ALLOC(text, (size_t)bytes + 1, file->shown));
    INVAR_TRY(read_at(file, text, (size_t)bytes, sizeof length));
    return parse_header(file, text, (size_t)bytes);
}

static invar_status open_file(invar_safetensors *file, const char *path)
{
    struct stat info;

    file->fd = invar_fd_open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    if (file->fd < 0)
        return INVAR_FAIL(errno == ENOENT ? INVAR_E_NOTFOUND : INVAR_E_IO, errno,
                          "%s: cannot be opened: %s", file->shown, strerror(errno));
    if (fstat(file->fd, &info) != 0 || !S_ISREG(info.st_mode))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: not a regular file", file->shown);
    file->bytes = (uint64_t)info.st_size;
    return read_header(file);
}

invar_status invar_safetensors_open(invar_safetensors **out, const char *path)
{
    invar_safetensors *file;
    invar_status status;

    *out = NULL;
    INVAR_TRY(INVAR_ALLOC_ZEROED(file, 1, "safetensors"));
    invar_path_show(file->shown, path);
    status = open_file(file, path);
    if (status == INVAR_OK)
        *out = file;
    else
        invar_safetensors_close(file);
    return status;
}

void invar_safetensors_close(invar_safetensors *file)
{
    if (!file)
        return;
    if (file->fd >= 0)
        close(file->fd);
    json_decref(file->header);
    invar_free(file->tensors);
    invar_free(file->by_data);
    invar_free(file->by_name);
    invar_free(file);
}

void invar_safetensors_release(invar_safetensors **file)
{
    invar_safetensors_close(*file);
}

/* ---- tensors --------------------------------------------------------------------------------- */

int64_t invar_safetensors_count(const invar_safetensors *file)
{
    return file->count;
}

const invar_safetensor *invar_safetensors_at(const invar_safetensors *file, int64_t i)
{
    INVAR_CHECK(i >= 0 && i < file->count);
    return file->by_data[i];
}

const invar_safetensor *invar_safetensors_find(const invar_safetensors *file, const char *name)
{
    int64_t low = 0, high = file->count;

    while (low < high) {
        int64_t middle = low + (high - low) / 2;
        int way = strcmp(file->by_name[middle]->name, name);
        if (way == 0)
            return file->by_name[middle];
        if (way < 0)
            low = middle + 1;
        else
            high = middle;
    }
    return NULL;
}

#define FORM_SIZE 64

/* Formats type and shape, "BF16 (2, 3)". */
static void format_type_shape(char out[FORM_SIZE], invar_safetensors_type type, int32_t rank,
                              const int64_t *shape)
{
    size_t used = (size_t)snprintf(out, FORM_SIZE, "%s (", types[type].name);

    for (int32_t i = 0; i < rank && used < FORM_SIZE; i++)
        used += (size_t)snprintf(out + used, FORM_SIZE - used, i ? ", %lld" : "%lld",
                                 (long long)shape[i]);
    if (used < FORM_SIZE)
        snprintf(out + used, FORM_SIZE - used, ")");
}

invar_status invar_safetensors_expect(const invar_safetensors *file, const invar_safetensor *tensor,
                                      invar_safetensors_type type, int32_t rank,
                                      const int64_t *shape)
{
    char is[FORM_SIZE], should[FORM_SIZE];

    if (tensor->type == type && tensor->rank == rank &&
        memcmp(tensor->shape, shape, (size_t)rank * sizeof *shape) == 0)
        return INVAR_OK;
    format_type_shape(is, tensor->type, tensor->rank, tensor->shape);
    format_type_shape(should, type, rank, shape);
    return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: tensor '%s' is %s, expected %s", file->shown,
                      INVAR_QUOTED_LONG(tensor->name), is, should);
}

invar_status invar_safetensors_read(void *out, const invar_safetensors *file,
                                    const invar_safetensor *tensor, int64_t first, int64_t count)
{
    size_t bytes = types[tensor->type].bytes;

    INVAR_CHECK(first >= 0 && count >= 0 && first <= tensor->elements - count);
    return read_at(file, out, (size_t)count * bytes, tensor->offset + (uint64_t)first * bytes);
}

/* ---- as f32 ---------------------------------------------------------------------------------- */

static float f32_from_f16(uint16_t x)
{
    uint32_t sign = (uint32_t)(x & 0x8000) << 16, exponent = x >> 10 & 31, fraction = x & 1023;

    if (exponent == 0) // zero and subnormals: a multiple of 2^-24
        return invar_bits_f32(invar_f32_bits((float)fraction * 0x1p-24f) | sign);
    if (exponent == 31)
        return invar_bits_f32(sign | UINT32_C(0x7F800000) | fraction << 13);
    return invar_bits_f32(sign | (exponent + 112) << 23 | fraction << 13);
}

invar_status invar_safetensors_read_f32(float *out, const invar_safetensors *file,
                                        const invar_safetensor *tensor, int64_t first,
                                        int64_t count)
{
    const char *from = (const char *)out + (size_t)count * sizeof(uint16_t);

    if (tensor->type == INVAR_SAFETENSORS_F32)
        return invar_safetensors_read(out, file, tensor, first, count);
    if (tensor->type != INVAR_SAFETENSORS_BF16 && tensor->type != INVAR_SAFETENSORS_F16)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                          "%s: tensor '%s' is %s; weights are F32, BF16 or F16", file->shown,
                          INVAR_QUOTED_LONG(tensor->name), types[tensor->type].name);
    // read to the upper half of `out` and convert upwards: each half is read before it is
    // overwritten
    INVAR_TRY(invar_safetensors_read((char *)out + (size_t)count * sizeof(uint16_t), file, tensor,
                                     first, count));
    for (int64_t i = 0; i < count; i++) {
        uint16_t half;
        memcpy(&half, from + (size_t)i * sizeof half, sizeof half);
        out[i] =
            tensor->type == INVAR_SAFETENSORS_BF16 ? invar_f32_from_bf16(half) : f32_from_f16(half);
    }
    return INVAR_OK;
}
