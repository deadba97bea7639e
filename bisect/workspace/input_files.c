/*
 * input_files.c - the files that a recipe names, as part of a run's key.
 *
 * Which keys of a recipe are paths only its program knows, so every word of a value that is the
 * name of something there counts: prompts, a model's folder, a plug-in. A name that means something
 * else makes a run anew when that changes, no more.
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

/* Size and the time of the last change, which nobody can set. */
static void mix_state(invar_hasher *hasher, const struct stat *info)
{
    const int64_t state[] = {info->st_size, info->st_ctim.tv_sec, info->st_ctim.tv_nsec};

    invar_hasher_update(hasher, state, sizeof state);
}

/* The entries of a folder: a sum, since their order is the file system's. */
static void mix_folder(invar_hasher *hasher, const char *path)
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
        mix_state(&one, &info);
        invar_hasher_final(&digest, &one);
        memcpy(part, digest.bytes, sizeof part);
        sum[0] += part[0];
        sum[1] += part[1];
    }
    if (entries)
        closedir(entries);
    invar_hasher_update(hasher, sum, sizeof sum);
}

/* What a word of a value names, where that is there. */
static void mix_path(invar_hasher *hasher, const char *word, size_t length)
{
    char path[INVAR_PATH_SIZE], *part;
    struct stat info;

    if (length == 0 || length >= sizeof path)
        return;
    memcpy(path, word, length);
    path[length] = '\0';
    part = strstr(path, "@["); // lines of a file: data.jsonl@[0:100]
    if (part)
        *part = '\0';
    if (stat(path, &info) != 0)
        return;
    invar_workspace_key_add(hasher, path);
    if (S_ISDIR(info.st_mode))
        mix_folder(hasher, path);
    else
        mix_state(hasher, &info);
}

/* Words end at blanks and commas; one within quotes may have them. */
void invar_workspace_mix_inputs(invar_hasher *hasher, const char *value, size_t bytes)
{
    static const char between[] = " \t\r,";
    const char *end = value + bytes;

    while (value < end && memchr(between, *value, sizeof between - 1))
        value++;
    while (end > value && memchr(between, end[-1], sizeof between - 1))
        end--;
    if (memchr(value, ' ', (size_t)(end - value))) // one path, if there is such a file
        mix_path(hasher, value, (size_t)(end - value));
    while (value < end) {
        const char *quote = *value == '"' || *value == '\'' ? value : NULL, *stop = value;

        if (quote)
            quote = memchr(value + 1, *value, (size_t)(end - value - 1));
        while (stop < end && !memchr(between, *stop, sizeof between - 1))
            stop++;
        stop = quote ? quote : stop;
        value += quote ? 1 : 0;
        mix_path(hasher, value, (size_t)(stop - value));
        value = stop + 1;
    }
}
