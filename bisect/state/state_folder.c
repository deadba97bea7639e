/*
 * state_folder.c - finds the newest bisect state of a workspace, and removes all of them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <dirent.h>
#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "bisect/state/state_internal.h"

#include "base/invar_banned.h"

/* Calls `take` with the folder of each state below `folder`. */
static invar_status for_each_state(const char *folder,
                                   invar_status (*take)(void *payload, const char *state),
                                   void *payload)
{
    invar_status status = INVAR_OK;
    DIR *dir = opendir(folder);

    if (!dir && errno != ENOENT)
        return invar_path_fail(folder, "cannot be listed");
    for (struct dirent *entry; dir && status == INVAR_OK && (entry = readdir(dir));) {
        char path[INVAR_PATH_SIZE];
        if (entry->d_name[0] == '.')
            continue;
        status = invar_path_join(path, sizeof path, folder, entry->d_name);
        if (status == INVAR_OK)
            status = take(payload, path);
    }
    if (dir)
        closedir(dir);
    return status;
}

static invar_status remove_state(void *payload, const char *folder)
{
    invar_bisect_state state = {.fd = -1};
    int64_t *count = payload;
    invar_status status = INVAR_OK;

    INVAR_TRY(invar_path_join(state.path, sizeof state.path, folder, INVAR_BISECT_STATE_FILE));
    if (invar_path_exists(state.path))
        status = invar_bisect_state_lock(&state);
    if (status == INVAR_OK)
        status = invar_held_folder_remove(folder);
    if (state.fd >= 0)
        close(state.fd);
    *count += status == INVAR_OK;
    return status;
}

invar_status invar_bisect_state_remove_all(int64_t *count_out, const char *folder)
{
    *count_out = 0;
    return for_each_state(folder, remove_state, count_out);
}

typedef struct newest_state {
    char path[INVAR_PATH_SIZE];
    struct timespec changed;
} newest_state;

static invar_status keep_newest(void *payload, const char *folder)
{
    newest_state *n = payload;
    char path[INVAR_PATH_SIZE];
    struct stat found;

    INVAR_TRY(invar_path_join(path, sizeof path, folder, INVAR_BISECT_STATE_FILE));
    if (stat(path, &found) != 0)
        return INVAR_OK;
    if (!n->path[0] || found.st_mtim.tv_sec > n->changed.tv_sec ||
        (found.st_mtim.tv_sec == n->changed.tv_sec && found.st_mtim.tv_nsec > n->changed.tv_nsec)) {
        memcpy(n->path, path, sizeof path);
        n->changed = found.st_mtim;
    }
    return INVAR_OK;
}

invar_status invar_bisect_state_newest(char out[INVAR_PATH_SIZE], const char *folder)
{
    newest_state n = {.path = ""};

    INVAR_TRY(for_each_state(folder, keep_newest, &n));
    memcpy(out, n.path, sizeof n.path);
    if (out[0])
        return INVAR_OK;
    return INVAR_FAIL(
        INVAR_E_NOTFOUND, 0,
        "there is no bisect of this repository yet: invar bisect --good REV --bad REV "
        "RECIPE begins one");
}
