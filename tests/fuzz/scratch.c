/*
 * scratch.c - files for fuzz targets, in a folder of the process, in /dev/shm if that exists.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "tests/fuzz/scratch.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"

static char folder[FUZZ_PATH_SIZE - 32];

/* Calls `callback` (may be NULL) for every file of the folder. Returns the number of files. */
static int for_each_file(int (*callback)(const char *path))
{
    DIR *stream = opendir(folder);
    char path[FUZZ_PATH_SIZE + 256];
    struct dirent *entry;
    int count = 0;

    INVAR_CHECK(stream);
    while ((entry = readdir(stream)) != NULL) {
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        count++;
        if (callback)
            callback(path);
    }
    closedir(stream);
    return count;
}

static void remove_folder(void)
{
    for_each_file(unlink);
    rmdir(folder);
}

int fuzz_count(void)
{
    return for_each_file(NULL);
}

void fuzz_path(char out[FUZZ_PATH_SIZE], const char *name)
{
    if (!folder[0]) {
        snprintf(folder, sizeof folder, "%s/invar-fuzz-XXXXXX",
                 access("/dev/shm", W_OK) == 0 ? "/dev/shm" : INVAR_TEST_WORK);
        INVAR_CHECK(mkdtemp(folder));
        atexit(remove_folder);
    }
    snprintf(out, FUZZ_PATH_SIZE, "%s/%s", folder, name);
}

void fuzz_write(const char *path, const void *data, size_t size)
{
    FILE *stream = fopen(path, "wb");

    INVAR_CHECK(stream);
    INVAR_CHECK(fwrite(data, 1, size, stream) == size);
    INVAR_CHECK(fclose(stream) == 0);
}

uint8_t *fuzz_read(size_t *size_out, const char *path)
{
    FILE *stream = fopen(path, "rb");
    uint8_t *data = NULL;
    long size = 0;

    if (stream) {
        INVAR_CHECK(fseek(stream, 0, SEEK_END) == 0);
        size = ftell(stream);
        rewind(stream);
    }
    data = malloc((size_t)size + 1);
    INVAR_CHECK(data && size >= 0);
    if (stream) {
        INVAR_CHECK(fread(data, 1, (size_t)size, stream) == (size_t)size);
        fclose(stream);
    }
    *size_out = (size_t)size;
    return data;
}

void fuzz_check_failure(invar_status status)
{
    const char *message = invar_error_last()->message;

    INVAR_CHECK(invar_error_last()->status == status);
    INVAR_CHECK(strlen(message) > 8);
    for (size_t step; *message; message += step) {
        step = invar_text_char(message, strlen(message));
        INVAR_CHECK(step > 0 || strlen(message) < 4); // the end may be cut inside a character
        step = step ? step : 1;
    }
}
