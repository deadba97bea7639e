/*
 * safetensors.c - fuzz target: the reader of safetensors on any bytes.
 *
 * The input is read as a file. It is also split into a header (up to the first newline) and data,
 * and read with the right header length, so that mutations reach the code after the length check. A
 * file is rejected with a proper message, or its tensors cover its data exactly, can be read, and
 * are written and read again.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/files/safetensors.h"

#include <stdlib.h>
#include <string.h>

#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/scratch.h"

static void read_all(const invar_safetensors *file, size_t size)
{
    size_t used = 0;

    for (int64_t i = 0; i < invar_safetensors_count(file); i++) {
        const invar_safetensor *t = invar_safetensors_at(file, i);
        size_t bytes = (size_t)t->elements * invar_safetensors_type_bytes(t->type);
        float *data = malloc((size_t)t->elements * 8 + 1);

        INVAR_CHECK(data && bytes <= size);
        INVAR_CHECK(invar_safetensors_find(file, t->name) == t);
        INVAR_CHECK(invar_safetensors_read(data, file, t, 0, t->elements) == INVAR_OK);
        if (t->type <= INVAR_SAFETENSORS_F16)
            INVAR_CHECK(invar_safetensors_read_f32(data, file, t, 0, t->elements) == INVAR_OK);
        used += bytes;
        free(data);
    }
    if (invar_safetensors_count(file) > 0)
        INVAR_CHECK(invar_safetensors_at(file, 0)->offset + used == size);
}

/* Writes the same tensors and reads them again. The writer may reject their order. */
static void write_again(const invar_safetensors *file)
{
    int64_t count = invar_safetensors_count(file);
    invar_safetensor *list = malloc(((size_t)count + 1) * sizeof *list);
    invar_safetensors_writer *writer;
    invar_safetensors *reread;
    char path[FUZZ_PATH_SIZE];
    invar_status status;

    INVAR_CHECK(list);
    for (int64_t i = 0; i < count; i++)
        list[i] = *invar_safetensors_at(file, i);
    fuzz_path(path, "again");
    status = invar_safetensors_create(&writer, path, list, count, NULL, 0);
    if (status != INVAR_OK)
        fuzz_check_failure(status);
    for (int64_t i = 0; i < count && status == INVAR_OK; i++) {
        char *data = malloc((size_t)list[i].elements * 8 + 1);

        INVAR_CHECK(data);
        INVAR_CHECK(invar_safetensors_read(data, file, &list[i], 0, list[i].elements) == INVAR_OK);
        INVAR_CHECK(invar_safetensors_write(writer, data, list[i].elements) == INVAR_OK);
        free(data);
    }
    if (status == INVAR_OK) {
        INVAR_CHECK(invar_safetensors_commit(writer) == INVAR_OK);
        INVAR_CHECK(invar_safetensors_open(&reread, path) == INVAR_OK);
        INVAR_CHECK(invar_safetensors_count(reread) == count);
        for (int64_t i = 0; i < count; i++)
            INVAR_CHECK(strcmp(invar_safetensors_at(reread, i)->name, list[i].name) == 0);
        invar_safetensors_close(reread);
    }
    invar_safetensors_writer_close(writer);
    free(list);
}

static void read_file(const void *data, size_t size)
{
    invar_safetensors *file;
    char path[FUZZ_PATH_SIZE];
    invar_status status;

    fuzz_path(path, "input");
    fuzz_write(path, data, size);
    status = invar_safetensors_open(&file, path);
    if (status == INVAR_OK) {
        read_all(file, size);
        write_again(file);
    } else {
        fuzz_check_failure(status);
        INVAR_CHECK(strstr(invar_error_last()->message, "input: "));
    }
    invar_safetensors_close(file);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const uint8_t *newline = size ? memchr(data, '\n', size) : NULL;
    size_t header = newline ? (size_t)(newline - data) : size,
           data_start = newline ? header + 1 : size;
    uint8_t *file_bytes = malloc(8 + size);

    read_file(data, size);
    INVAR_CHECK(file_bytes);
    for (int i = 0; i < 8; i++)
        file_bytes[i] = (uint8_t)((uint64_t)header >> 8 * i & 255);
    memcpy(file_bytes + 8, data, header);
    memcpy(file_bytes + 8 + header, data + data_start, size - data_start);
    read_file(file_bytes, 8 + header + size - data_start);
    free(file_bytes);
    return 0;
}
