/*
 * checkpoint_state.c - fuzz target: state.json and hashes.xxh of a checkpoint.
 *
 * The input is read as a state.json and as a hashes.xxh. An accepted state is written and read
 * again to the same text; a list of hashes is accepted in one form only. A state is also put into a
 * checkpoint whose other files are valid and whose hashes fit: the checkpoint must be rejected or
 * can be loaded.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/files/checkpoint/format.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/scratch.h"

static char save[FUZZ_PATH_SIZE];

/* ---- texts ----------------------------------------------------------------------------------- */

static void check_failure(invar_status status)
{
    INVAR_CHECK(status == INVAR_E_CORRUPT || status == INVAR_E_UNSUPPORTED);
    fuzz_check_failure(status);
}

static void fuzz_state(const char *text, size_t size)
{
    invar_checkpoint_index index, reread;
    size_t first_bytes, second_bytes;
    char *first, *second;
    invar_status status = invar_checkpoint_index_parse(&index, "fuzz", text, size);

    if (status != INVAR_OK) {
        check_failure(status);
        return;
    }
    INVAR_CHECK(invar_checkpoint_index_text(&first, &first_bytes, &index) == INVAR_OK);
    INVAR_CHECK(invar_checkpoint_index_parse(&reread, "fuzz", first, first_bytes) == INVAR_OK);
    INVAR_CHECK(invar_checkpoint_index_text(&second, &second_bytes, &reread) == INVAR_OK);
    INVAR_CHECK(first_bytes == second_bytes && memcmp(first, second, first_bytes) == 0);
    INVAR_CHECK(memcmp(&index.state, &reread.state, sizeof index.state) == 0);
    INVAR_CHECK(index.n_entries == reread.n_entries && index.n_sets == reread.n_sets);
    invar_free(first);
    invar_free(second);
    invar_checkpoint_index_release(&index);
    invar_checkpoint_index_release(&reread);
}

static void fuzz_hashes(const char *text, size_t size)
{
    static char reread[INVAR_CHECKPOINT_HASHES_SIZE];
    static invar_checkpoint_files files;
    invar_status status = invar_checkpoint_files_parse(&files, "fuzz", text, size);

    if (status != INVAR_OK) {
        check_failure(status);
        return;
    }
    INVAR_CHECK(invar_checkpoint_files_text(reread, &files) == size);
    INVAR_CHECK(memcmp(reread, text, size) == 0);
}

/* ---- a checkpoint ---------------------------------------------------------------------------- */

static void remove_save(void)
{
    INVAR_CHECK(invar_held_folder_remove(save) == INVAR_OK);
}

/* Writes a checkpoint with files that many states of the corpus name. */
static void make_save(void)
{
    static float a[6] = {1, 2, 3, 4, 5, 6};
    static int64_t b[2] = {7, 8};
    const invar_checkpoint_tensor tensors[] = {
        {"model", "a", invar_tensor_2d(a, INVAR_DTYPE_F32, 2, 3), NULL},
        {"model", "b", invar_tensor_1d(a, INVAR_DTYPE_F32, 5), NULL},
        {"critic", "c", invar_tensor_1d(b, INVAR_DTYPE_I64, 2), NULL}};
    const invar_checkpoint_blob blobs[] = {{"config.json", "{}", 2}, {"buffer.bin", NULL, 0}};
    const invar_checkpoint_state state = {.step = 3, .name = "fuzz", .format = "fp32"};
    const invar_checkpoint_content content = {
        .state = &state, .tensors = tensors, .n_tensors = 3, .blobs = blobs, .n_blobs = 2};

    fuzz_path(save, "save");
    INVAR_CHECK(invar_checkpoint_write(NULL, save, &content, NULL) == INVAR_OK);
    atexit(remove_save);
}

static void put_file(const char *name, const void *data, size_t size)
{
    char path[FUZZ_PATH_SIZE + 64];

    snprintf(path, sizeof path, "%s/iter_0000003/%s", save, name);
    fuzz_write(path, data, size);
}

/* Writes the hashes of the files that the state names, if they exist. */
static void put_hashes(const invar_checkpoint_index *index)
{
    static char text[INVAR_CHECKPOINT_HASHES_SIZE];
    static invar_checkpoint_files files;
    char path[FUZZ_PATH_SIZE + 300];
    int64_t bytes;

    if (invar_checkpoint_files_list(&files, index) != INVAR_OK)
        return;
    for (int64_t i = 0; i < files.count; i++) {
        snprintf(path, sizeof path, "%s/iter_0000003/%s", save, files.files[i].name);
        if (invar_file_hash(&files.files[i].hash, &bytes, path) != INVAR_OK)
            invar_error_clear();
    }
    put_file(INVAR_CHECKPOINT_HASHES, text, invar_checkpoint_files_text(text, &files));
}

static void load_all(invar_checkpoint *c, const invar_checkpoint_index *index)
{
    for (int64_t i = 0; i < index->n_entries; i++) {
        const invar_checkpoint_entry *e = &index->entries[i];
        int64_t buffer[64]; // has space for every tensor of the files
        invar_tensor t = {.data = buffer, .rank = e->rank};
        t.dtype = e->type == INVAR_SAFETENSORS_I64 ? INVAR_DTYPE_I64 : INVAR_DTYPE_F32;
        memcpy(t.shape, e->shape, sizeof t.shape);
        t.row_stride = invar_tensor_row_elements(&t);
        if (invar_checkpoint_load(&t, c, e->set, e->name) != INVAR_OK)
            check_failure(invar_error_last()->status); // the state has another digest
    }
}

static void fuzz_checkpoint(const char *text, size_t size)
{
    invar_checkpoint_index index;
    invar_checkpoint *c;

    if (invar_checkpoint_index_parse(&index, "fuzz", text, size) != INVAR_OK)
        return;
    if (!save[0])
        make_save();
    put_file(INVAR_CHECKPOINT_STATE, text, size);
    put_hashes(&index);
    if (invar_checkpoint_open(&c, save, NULL) == INVAR_OK) {
        load_all(c, &index);
        invar_checkpoint_close(c);
    } else {
        check_failure(invar_error_last()->status);
    }
    invar_checkpoint_index_release(&index);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_state((const char *)data, size);
    fuzz_hashes((const char *)data, size);
    fuzz_checkpoint((const char *)data, size);
    return 0;
}
