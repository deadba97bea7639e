/*
 * safetensors_write.c - writer of safetensors files.
 *
 * The header is written first, so all tensors are declared before their data. The order of tensors
 * and metadata is the caller's, and the header is padded to 8 bytes with blanks: equal calls give
 * equal bytes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json/json.h"
#include "base/text.h"
#include "engine/files/safetensors.h"
#include "kernels-deterministic/math/bf16.h"

#include "base/invar_banned.h"

#define MAX_HEADER 100000000
#define CHUNK 4096 /* elements that are rounded at a time */

struct invar_safetensors_writer {
    invar_file_writer *file;
    const invar_safetensor *tensors; /* (count) borrowed */
    int64_t count;
    int64_t current; /* tensor that gets the next data; `count` if all are complete */
    int64_t done;    /* elements of the current tensor that were written */
    char shown[INVAR_PATH_SHOWN_SIZE];
};

static invar_status fail_tensor(const invar_safetensors_writer *writer, const char *name,
                                const char *why)
{
    return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: tensor '%s': %s", writer->shown,
                      INVAR_QUOTED_LONG(name), why);
}

static int64_t elements_of(const invar_safetensor *t)
{
    int64_t elements = 1;

    for (int32_t i = 0; i < t->rank; i++)
        elements *= t->shape[i];
    return elements;
}

/* ---- header ---------------------------------------------------------------------------------- */

static bool is_utf8(const char *text)
{
    size_t length = strlen(text);
    uint32_t point;

    while (length > 0) {
        size_t step = invar_text_utf8(&point, text, length);
        if (step == 0)
            return false;
        text += step;
        length -= step;
    }
    return true;
}

static invar_status fail_no_memory(const invar_safetensors_writer *writer)
{
    return INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for the header of %s", writer->shown);
}

/* Makes a list of integers; returns NULL if out of memory. */
static json_t *make_int_list(const int64_t *numbers, int32_t count)
{
    json_t *list = json_array();

    for (int32_t i = 0; i < count && list; i++) {
        if (json_array_append_new(list, json_integer(numbers[i])) != 0) {
            json_decref(list);
            list = NULL;
        }
    }
    return list;
}

static invar_status add_tensor(json_t *header, int64_t *end, const invar_safetensors_writer *writer,
                               const invar_safetensor *t)
{
    int64_t bytes = (int64_t)invar_safetensors_type_bytes(t->type), offsets[2];
    json_t *entry = json_object();

    INVAR_CHECK(t->rank >= 0 && t->rank <= INVAR_SAFETENSORS_MAX_RANK);
    if (json_object_set_new(header, t->name, entry) != 0)
        return fail_no_memory(writer);
    if (*end % bytes != 0)
        return fail_tensor(writer, t->name, "not aligned; wider types have to come first");
    offsets[0] = *end;
    offsets[1] = *end += elements_of(t) * bytes;
    if (json_object_set_new(entry, "dtype", json_string(invar_safetensors_type_name(t->type))) ||
        json_object_set_new(entry, "shape", make_int_list(t->shape, t->rank)) ||
        json_object_set_new(entry, "data_offsets", make_int_list(offsets, 2)))
        return fail_no_memory(writer);
    return INVAR_OK;
}

static invar_status build_header(json_t *header, const invar_safetensors_writer *writer,
                                 const invar_safetensors_pair *metadata, int64_t n_metadata)
{
    json_t *strings = n_metadata > 0 ? json_object() : NULL;
    int64_t end = 0;

    if (n_metadata > 0 && json_object_set_new(header, "__metadata__", strings) != 0)
        return fail_no_memory(writer);
    for (int64_t i = 0; i < n_metadata; i++) {
        if (!is_utf8(metadata[i].key) || !is_utf8(metadata[i].value))
            return fail_tensor(writer, "__metadata__", "a text is not UTF-8");
        if (json_object_set_new(strings, metadata[i].key, json_string(metadata[i].value)) != 0)
            return fail_no_memory(writer);
    }
    for (int64_t i = 0; i < writer->count; i++) {
        const invar_safetensor *t = &writer->tensors[i];
        if (!is_utf8(t->name))
            return fail_tensor(writer, t->name, "the name is not UTF-8");
        if (strcmp(t->name, "__metadata__") == 0 || json_object_get(header, t->name))
            return fail_tensor(writer, t->name, "the name is taken");
        INVAR_TRY(add_tensor(header, &end, writer, t));
    }
    return INVAR_OK;
}

/* Formats the header; *padded is its size with the blanks that align the data to 8 bytes. */
static invar_status dump_header(char **text, size_t *bytes, size_t *padded,
                                const invar_safetensors_writer *writer, const json_t *header)
{
    INVAR_TRY(invar_json_dump(text, bytes, header, JSON_COMPACT, writer->shown));
    *padded = (*bytes + 7) / 8 * 8;
    if (*padded <= MAX_HEADER)
        return INVAR_OK;
    invar_free(*text);
    *text = NULL;
    return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: the header has %zu bytes, at most %d are allowed",
                      writer->shown, *padded, MAX_HEADER);
}

/* Writes the le64 length and the header. */
static invar_status write_header(invar_safetensors_writer *writer, const json_t *header)
{
    INVAR_AUTO_FREE char *text = NULL;
    char length[8];
    size_t bytes, padded;

    INVAR_TRY(dump_header(&text, &bytes, &padded, writer, header));
    for (int i = 0; i < 8; i++)
        length[i] = (char)(padded >> 8 * i & 255);
    INVAR_TRY(invar_file_writer_put(writer->file, length, sizeof length));
    INVAR_TRY(invar_file_writer_put(writer->file, text, bytes));
    return invar_file_writer_put(writer->file, "       ", padded - bytes);
}

/* ---- writer ---------------------------------------------------------------------------------- */

/* Advances to the tensor that gets the next element. */
static void skip_complete(invar_safetensors_writer *writer)
{
    while (writer->current < writer->count &&
           writer->done == elements_of(&writer->tensors[writer->current])) {
        writer->current++;
        writer->done = 0;
    }
}

invar_status invar_safetensors_create(invar_safetensors_writer **out, const char *path,
                                      const invar_safetensor *tensors, int64_t count,
                                      const invar_safetensors_pair *metadata, int64_t n_metadata)
{
    INVAR_AUTO(invar_safetensors_writer_release) invar_safetensors_writer *writer = NULL;
    INVAR_AUTO_JSON json_t *header = json_object();

    *out = NULL;
    INVAR_TRY(INVAR_ALLOC(writer, 1, "safetensors"));
    *writer = (invar_safetensors_writer){.tensors = tensors, .count = count};
    invar_path_show(writer->shown, path);
    INVAR_TRY(build_header(header, writer, metadata, n_metadata));
    INVAR_TRY(invar_file_writer_open(&writer->file, path));
    INVAR_TRY(write_header(writer, header));
    skip_complete(writer);
    *out = writer;
    writer = NULL;
    return INVAR_OK;
}

invar_status invar_safetensors_measure(int64_t *bytes_out, const invar_safetensor *tensors,
                                       int64_t count, const invar_safetensors_pair *metadata,
                                       int64_t n_metadata)
{
    const invar_safetensors_writer writer = {
        .tensors = tensors, .count = count, .shown = "safetensors"};
    INVAR_AUTO_JSON json_t *header = json_object();
    INVAR_AUTO_FREE char *text = NULL;
    size_t bytes, padded;

    INVAR_TRY(build_header(header, &writer, metadata, n_metadata));
    INVAR_TRY(dump_header(&text, &bytes, &padded, &writer, header));
    *bytes_out = 8 + (int64_t)padded;
    for (int64_t i = 0; i < count; i++)
        *bytes_out +=
            elements_of(&tensors[i]) * (int64_t)invar_safetensors_type_bytes(tensors[i].type);
    return INVAR_OK;
}

/* Returns the current tensor if it has room for `count` elements. */
static invar_status get_current_tensor(const invar_safetensor **out,
                                       const invar_safetensors_writer *writer, int64_t count)
{
    const invar_safetensor *t = &writer->tensors[writer->current];

    if (writer->current == writer->count)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: data after the last tensor", writer->shown);
    if (count > elements_of(t) - writer->done)
        return fail_tensor(writer, t->name, "more data than elements");
    *out = t;
    return INVAR_OK;
}

invar_status invar_safetensors_write(invar_safetensors_writer *writer, const void *data,
                                     int64_t count)
{
    const invar_safetensor *t;

    if (count == 0)
        return INVAR_OK;
    INVAR_TRY(get_current_tensor(&t, writer, count));
    INVAR_TRY(invar_file_writer_put(writer->file, data,
                                    (size_t)count * invar_safetensors_type_bytes(t->type)));
    writer->done += count;
    skip_complete(writer);
    return INVAR_OK;
}

invar_status invar_safetensors_write_f32(invar_safetensors_writer *writer, const float *data,
                                         int64_t count)
{
    uint16_t rounded[CHUNK];
    const invar_safetensor *t;

    if (count == 0)
        return INVAR_OK;
    INVAR_TRY(get_current_tensor(&t, writer, count));
    if (t->type == INVAR_SAFETENSORS_F32)
        return invar_safetensors_write(writer, data, count);
    if (t->type != INVAR_SAFETENSORS_BF16)
        return fail_tensor(writer, t->name, "f32 goes into F32 and BF16 only");
    while (count > 0) {
        int64_t part = count < CHUNK ? count : CHUNK;
        for (int64_t i = 0; i < part; i++)
            rounded[i] = invar_bf16_from_f32(data[i]);
        INVAR_TRY(invar_safetensors_write(writer, rounded, part));
        data += part;
        count -= part;
    }
    return INVAR_OK;
}

invar_status invar_safetensors_commit(invar_safetensors_writer *writer)
{
    if (writer->current < writer->count)
        return fail_tensor(writer, writer->tensors[writer->current].name, "its data are missing");
    return invar_file_writer_commit(writer->file);
}

void invar_safetensors_writer_close(invar_safetensors_writer *writer)
{
    if (!writer)
        return;
    invar_file_writer_close(writer->file);
    invar_free(writer);
}

void invar_safetensors_writer_release(invar_safetensors_writer **writer)
{
    invar_safetensors_writer_close(*writer);
}
