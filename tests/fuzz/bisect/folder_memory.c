/*
 * folder_memory.c - fuzz target: the record of the files that bisect wrote to a folder, on any
 * bytes.
 *
 * The input is read twice: as it is, and as records after a head with the right digest. In the
 * second case newlines become the NULs that end a record, so that the corpus can be text. An
 * accepted list can be written to a folder: it is sorted, and no path leads out of the folder.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <string.h>

#include "base/hash.h"
#include "bisect/git/files.h"
#include "tests/fuzz/fuzz.h"

#define MAX_BYTES 65536

static void check_parse(const char *text, size_t bytes)
{
    invar_files files = {NULL, 0, 0, NULL};
    bool found;

    INVAR_CHECK(invar_files_parse(&files, &found, text, bytes) == INVAR_OK);
    INVAR_CHECK(found || files.count == 0);
    for (size_t i = 0; i < files.count; i++) {
        const char *path = files.entries[i].path;
        INVAR_CHECK(i == 0 || strcmp(files.entries[i - 1].path, path) < 0);
        INVAR_CHECK(path[0] && path[0] != '/' && !strstr(path, "//"));
        INVAR_CHECK(strcmp(path, "..") != 0 && strncmp(path, "../", 3) != 0);
        INVAR_CHECK(!strstr(path, "/../") && strlen(path) < INVAR_PATH_SIZE);
        INVAR_CHECK(strlen(files.entries[i].id) < INVAR_OID_SIZE);
    }
    invar_files_release(&files);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static char text[MAX_BYTES + 64], body[MAX_BYTES + 1];
    char hex[INVAR_DIGEST_HEX_SIZE];
    invar_digest digest;
    int head;

    size = size < MAX_BYTES ? size : MAX_BYTES;
    memcpy(body, data, size);
    body[size] = '\0'; // ends in a NUL, like the result of invar_file_read
    check_parse(body, size);
    for (size_t i = 0; i < size; i++)
        body[i] = body[i] == '\n' ? '\0' : body[i];
    invar_hash_bytes(&digest, body, size);
    invar_digest_format(hex, &digest);
    head = snprintf(text, sizeof text, "invar-files 1 %s\n", hex);
    memcpy(text + head, body, size + 1);
    check_parse(text, (size_t)head + size);
    return 0;
}
