/*
 * tar.c - fuzz target: archives with valid header checksums, whatever else is in them.
 *
 * This file fills in the checksums; otherwise nearly every input would be rejected for one. An
 * archive is rejected with a proper message, or writing the unpacked files again gives the same
 * bytes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/files/tar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/scratch.h"

#define BLOCK 512

static void put_checksum(uint8_t *header)
{
    unsigned sum = 0;

    memset(header + 148, ' ', 8);
    for (int i = 0; i < BLOCK; i++)
        sum += header[i];
    snprintf((char *)header + 148, 7, "%06o", sum % 262144);
}

/* Fills in the checksum of each header, following the sizes from header to header. */
static void put_checksums(uint8_t *data, size_t size)
{
    for (size_t at = 0; at + BLOCK <= size && data[at];) {
        char digits[12] = "";
        memcpy(digits, data + at + 124, 11);
        put_checksum(data + at);
        at += BLOCK + (strtoull(digits, NULL, 8) % (1 << 20) + BLOCK - 1) / BLOCK * BLOCK;
    }
}

static void write_again(const invar_tar_list *list, const char *folder, const uint8_t *data,
                        size_t size)
{
    char path[FUZZ_PATH_SIZE], member[INVAR_PATH_SIZE];
    invar_tar_writer *writer;
    uint8_t *bytes;
    size_t count;

    fuzz_path(path, "again");
    remove(path); // the writer replaces only an archive with members
    INVAR_CHECK(invar_tar_writer_open(&writer, path) == INVAR_OK);
    for (int64_t i = 0; i < list->count; i++) {
        INVAR_CHECK(invar_path_join(member, sizeof member, folder, list->items[i].name) ==
                    INVAR_OK);
        INVAR_CHECK(invar_tar_add_file(writer, list->items[i].name, member) == INVAR_OK);
        INVAR_CHECK(
            invar_digest_equal(&invar_tar_members(writer)->items[i].hash, &list->items[i].hash));
    }
    INVAR_CHECK(invar_tar_commit(writer) == INVAR_OK);
    invar_tar_writer_close(writer);
    bytes = fuzz_read(&count, path);
    INVAR_CHECK(count == size && memcmp(bytes, data, size) == 0);
    free(bytes);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[FUZZ_PATH_SIZE], folder[FUZZ_PATH_SIZE];
    uint8_t *copy = malloc(size + 1);
    invar_tar_list list;
    invar_status status;

    INVAR_CHECK(copy);
    if (size > 0)
        memcpy(copy, data, size);
    put_checksums(copy, size);
    fuzz_path(path, "archive");
    fuzz_path(folder, "unpacked");
    fuzz_write(path, copy, size);
    INVAR_CHECK(invar_held_folder_make(folder) == INVAR_OK);
    status = invar_tar_unpack(&list, path, folder);
    if (status == INVAR_OK)
        write_again(&list, folder, copy, size);
    else
        fuzz_check_failure(status);
    invar_tar_list_release(&list);
    INVAR_CHECK(invar_held_folder_remove(folder) == INVAR_OK);
    free(copy);
    return 0;
}
