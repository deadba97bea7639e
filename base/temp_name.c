/*
 * temp_name.c - temporary names beside an output that is being written.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "base/temp_name.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/invar_banned.h"

/* True for the number of a process that does not exist, or of this one, which starts over. */
static bool is_gone(const char *digits)
{
    char *end;
    long pid;

    if (*digits < '1' || *digits > '9')
        return false;
    errno = 0;
    pid = strtol(digits, &end, 10);
    if (*end != '\0' || errno != 0 || pid != (pid_t)pid)
        return false;
    return pid == getpid() || (kill((pid_t)pid, 0) != 0 && errno == ESRCH);
}

static void remove_one(const char *path)
{
    struct stat info;

    if (lstat(path, &info) != 0)
        return;
    if (!S_ISDIR(info.st_mode))
        unlink(path);
    else if (invar_held_folder_remove(path) != INVAR_OK)
        invar_error_clear(); // the leftover is harmless
}

/* Removes entries that are named `name` and the number of a process that does not exist. */
static void remove_stale_files(const char *folder, const char *name)
{
    char path[INVAR_PATH_SIZE];
    const struct dirent *entry;
    DIR *dir = opendir(folder);

    if (!dir)
        return; // creating the file will fail with the reason
    while ((entry = readdir(dir)) != NULL)
        if (strncmp(entry->d_name, name, strlen(name)) == 0 &&
            is_gone(entry->d_name + strlen(name)) &&
            (size_t)snprintf(path, sizeof path, "%s/%s", folder, entry->d_name) < sizeof path)
            remove_one(path);
    closedir(dir);
}

invar_status invar_temp_name(char out[INVAR_PATH_SIZE], const char *path, const char *word)
{
    char folder[INVAR_PATH_SIZE];
    int used = snprintf(out, INVAR_PATH_SIZE, "%s.%s-", path, word);
    char *slash;

    if (used < 0 || used + 24 > INVAR_PATH_SIZE)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: the path is longer than %d bytes",
                          INVAR_SHOWN_PATH(path), INVAR_PATH_SIZE - 64);
    memcpy(folder, out, (size_t)used + 1);
    slash = strrchr(folder, '/');
    if (!slash)
        remove_stale_files(".", out);
    else {
        *slash = '\0';
        remove_stale_files(slash == folder ? "/" : folder, slash + 1);
    }
    (void)snprintf(out + used, (size_t)(INVAR_PATH_SIZE - used), "%ld", (long)getpid());
    return INVAR_OK;
}
