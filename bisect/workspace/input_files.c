/*
 * input_files.c - hashes the files that a recipe names, as part of the cache key of a run.
 *
 * Only the program under test knows which of its keys are paths. Every word of a value that is the
 * name of an existing file or folder is therefore hashed, by size and inode change time and not by
 * its contents: prompts, model folders, plug-ins. A false match only causes a needless new run when
 * that file changes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _XOPEN_SOURCE 700 // st_ctim

#include <dirent.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>

#include "base/file.h"
#include "bisect/workspace/workspace_internal.h"

#include "base/invar_banned.h"

/* Adds the size and the inode change time, which no program can set. */
static void hash_file_info(invar_hasher *hasher, const struct stat *info)
{
    const int64_t state[] = {info->st_size, info->st_ctim.tv_sec, info->st_ctim.tv_nsec};

    invar_hasher_update(hasher, state, sizeof state);
}

/*
 * Adds the entries of a folder as a sum, because the order of entries depends on the file system.
 */
static void hash_folder(invar_hasher *hasher, const char *path)
{
    uint64_t sum[2] = {0, 0}, part[2];
    DIR *entries = opendir(path);
    struct dirent *entry;

    while (entries && (entry = readdir(entries))) {
        struct stat info;
        invar_hasher one;
        invar_digest digest;

        if (fstatat(dirfd(entries), entry->d_name, &info, 0) != 0 || !S_ISREG(info.st_mode))
            continue;
        invar_hasher_init(&one);
        invar_workspace_key_add(&one, entry->d_name);
        hash_file_info(&one, &info);
        invar_hasher_final(&digest, &one);
        memcpy(part, digest.bytes, sizeof part);
        sum[0] += part[0];
        sum[1] += part[1];
    }
    if (entries)
        closedir(entries);
    invar_hasher_update(hasher, sum, sizeof sum);
}

/* Adds the file or folder that a word names, if it exists. */
static void hash_path(invar_hasher *hasher, const char *word, size_t length)
{
    char path[INVAR_PATH_SIZE], *part;
    struct stat info;

    if (length == 0 || length >= sizeof path)
        return;
    memcpy(path, word, length);
    path[length] = '\0';
    part = strstr(path, "@["); // range of lines in a file: data.jsonl@[0:100]
    if (part)
        *part = '\0';
    if (stat(path, &info) != 0)
        return;
    invar_workspace_key_add(hasher, path);
    if (S_ISDIR(info.st_mode))
        hash_folder(hasher, path);
    else
        hash_file_info(hasher, &info);
}

/* Words end at blanks and commas, unless they are quoted. */
void invar_workspace_key_add_inputs(invar_hasher *hasher, const char *value, size_t bytes)
{
    static const char between[] = " \t\r,";
    const char *end = value + bytes;

    while (value < end && memchr(between, *value, sizeof between - 1))
        value++;
    while (end > value && memchr(between, end[-1], sizeof between - 1))
        end--;
    if (memchr(value, ' ', (size_t)(end - value))) // a path that contains blanks
        hash_path(hasher, value, (size_t)(end - value));
    while (value < end) {
        const char *quote = *value == '"' || *value == '\'' ? value : NULL, *stop = value;

        if (quote)
            quote = memchr(value + 1, *value, (size_t)(end - value - 1));
        while (stop < end && !memchr(between, *stop, sizeof between - 1))
            stop++;
        stop = quote ? quote : stop;
        value += quote ? 1 : 0;
        hash_path(hasher, value, (size_t)(stop - value));
        value = stop + 1;
    }
}
