/*
 * merge.c - copies runs of several ledgers into one temporary ledger, for queries over all of them.
 *
 * The temporary file is unlinked before it is filled, so a signal at any time leaves nothing
 * behind. A run may occur only once, because a modified copy would be taken for the run itself.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/ledger/merge.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

#include "base/invar_banned.h"

enum { FOLDER_SIZE = INVAR_LOCATE_PATH_SIZE - 64 };

static invar_status make_folder(char out[FOLDER_SIZE])
{
    const char *parent = getenv("TMPDIR");
    int length = snprintf(out, FOLDER_SIZE, "%s/invar-XXXXXX",
                          parent && parent[0] != '\0' ? parent : "/tmp");

    if (length >= FOLDER_SIZE || !mkdtemp(out))
        return INVAR_FAIL(INVAR_E_IO, errno, "no folder for a merged ledger: %.1000s: %s", out,
                          strerror(errno));
    return INVAR_OK;
}

/* Removes the folder of the temporary ledger, which contains only files. */
static void remove_folder(const char *folder)
{
    DIR *list = opendir(folder);
    char path[INVAR_LOCATE_PATH_SIZE + 256];

    for (struct dirent *entry; list && (entry = readdir(list));) {
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        unlink(path); // unlink fails for "." and ".."
    }
    if (list)
        closedir(list);
    rmdir(folder);
}

static invar_status ignore_run(void *payload, const invar_ledger_summary *run)
{
    (void)payload;
    (void)run;
    return INVAR_OK;
}

/* Opens a temporary ledger and unlinks its files before it is filled. */
static invar_status open_unlinked(invar_ledger **out)
{
    char folder[FOLDER_SIZE], path[INVAR_LOCATE_PATH_SIZE];
    invar_status status;

    INVAR_TRY(make_folder(folder));
    snprintf(path, sizeof path, "%s/ledger.db", folder);
    status = invar_ledger_open(out, path, &(invar_ledger_options){.create = true});
    if (status == INVAR_OK) // SQLite opens the last of its files at the first read
        status = invar_ledger_runs(*out, ignore_run, NULL);
    remove_folder(folder);
    return status;
}

/* Rejects two ledgers with the same run: a modified copy would be taken for the run itself. */
static invar_status check_copies(const invar_located *runs, int count)
{
    for (int i = 1; i < count; i++)
        for (int k = 0; k < i; k++)
            if (strcmp(runs[i].run.uuid, runs[k].run.uuid) == 0 &&
                !invar_path_same(runs[i].path, runs[k].path))
                return INVAR_FAIL(
                    INVAR_E_INVALID, 0,
                    "%.1000s and %.1000s hold the same run, %.8s; invar diff compares them",
                    runs[k].path, runs[i].path, runs[i].run.uuid);
    return INVAR_OK;
}

invar_status invar_merge(invar_ledger **out, invar_ledger **owned_out, const invar_located *runs,
                         int count, int64_t *numbers)
{
    invar_ledger_summary found;
    bool one = true;

    *out = runs[0].ledger;
    *owned_out = NULL;
    for (int i = 0; i < count; i++) {
        numbers[i] = runs[i].run.run;
        one = one && invar_path_same(runs[0].path, runs[i].path);
    }
    if (one)
        return INVAR_OK;
    INVAR_TRY(check_copies(runs, count));
    INVAR_TRY(open_unlinked(owned_out));
    *out = *owned_out;
    for (int i = 0; i < count; i++) {
        INVAR_TRY(invar_ledger_import_run(*out, runs[i].ledger, runs[i].run.run));
        INVAR_TRY(invar_ledger_find(&found, *out, runs[i].run.uuid));
        numbers[i] = found.run;
    }
    return INVAR_OK;
}
