/*
 * save_dir.c - lists, marks, prunes and cleans the checkpoints in SAVE/.
 *
 *     iter_0000005          a checkpoint
 *     iter_0000005.tmp      being written or removed: readers ignore it
 *     iter_0000005.old      being replaced: used if iter_0000005 does not exist
 *     iter_0000005.by-time  an empty file: that checkpoint was saved by time
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/text.h"
#include "engine/files/checkpoint/format.h"

#include "base/invar_banned.h"

#define PREFIX "iter_"
#define LATEST "latest_checkpointed_iteration.txt"
#define BY_TIME ".by-time"

static invar_status io_error(const char *path, const char *what)
{
    int code = errno;
    char whole[INVAR_PATH_HINT_SIZE];

    invar_path_absolute_hint(whole, path);
    return INVAR_FAIL(code == ENOENT ? INVAR_E_NOTFOUND : INVAR_E_IO, code, "%s: %s: %s%s",
                      INVAR_SHOWN_PATH(path), what, strerror(code), code == ENOENT ? whole : "");
}

invar_status invar_checkpoint_folder(char out[INVAR_PATH_SIZE], const char *save, int64_t step,
                                     const char *suffix)
{
    char name[64];

    snprintf(name, sizeof name, PREFIX "%07" PRId64 "%s", step, suffix);
    return invar_path_join(out, INVAR_PATH_SIZE, save, name);
}

/* ---- listing --------------------------------------------------------------------------------- */

/* Parses a step; returns false if it is invalid. At most 18 digits cannot overflow. */
static bool parse_step(int64_t *out, const char *digits, size_t count)
{
    *out = 0;
    if (count == 0 || count > 18)
        return false;
    for (size_t i = 0; i < count; i++) {
        if (digits[i] < '0' || digits[i] > '9')
            return false;
        *out = *out * 10 + (digits[i] - '0');
    }
    return true;
}

/* Parses iter_STEP and iter_STEP.SUFFIX; accepts only names that a writer makes. */
static bool parse_name(int64_t *step, const char **suffix, const char *name)
{
    char again[64];
    size_t digits;

    if (strncmp(name, PREFIX, strlen(PREFIX)) != 0)
        return false;
    digits = strspn(name + strlen(PREFIX), "0123456789");
    if (!parse_step(step, name + strlen(PREFIX), digits))
        return false;
    *suffix = name + strlen(PREFIX) + digits;
    snprintf(again, sizeof again, PREFIX "%07" PRId64, *step);
    return strlen(again) == strlen(PREFIX) + digits;
}

/* Steps, ascending and unique. */
typedef struct step_list {
    int64_t *items;
    int64_t count, capacity;
} step_list;

static void release_steps(step_list *list)
{
    invar_free(list->items);
}

static invar_status add_step(step_list *list, int64_t step)
{
    int64_t at = list->count;

    INVAR_TRY(INVAR_GROW(list->items, list->capacity, at, at + 1, "checkpoints"));
    while (at > 0 && list->items[at - 1] > step)
        at--;
    if (at > 0 && list->items[at - 1] == step)
        return INVAR_OK;
    memmove(&list->items[at + 1], &list->items[at],
            (size_t)(list->count - at) * sizeof *list->items);
    list->items[at] = step;
    list->count++;
    return INVAR_OK;
}

/* Adds the steps of all folder entries with this suffix. */
static invar_status scan_steps(step_list *list, const char *save, const char *suffix)
{
    DIR *stream = opendir(save);
    invar_status status = INVAR_OK;
    struct dirent *entry;
    const char *end;
    int64_t step;

    if (!stream)
        return io_error(save, "the folder of checkpoints cannot be read");
    while (status == INVAR_OK && (errno = 0, entry = readdir(stream)) != NULL)
        if (parse_name(&step, &end, entry->d_name) && strcmp(end, suffix) == 0)
            status = add_step(list, step);
    if (status == INVAR_OK && errno != 0)
        status = io_error(save, "the folder of checkpoints cannot be read");
    closedir(stream);
    return status;
}

invar_status invar_checkpoint_list(int64_t **out, int64_t *count_out, const char *save)
{
    step_list list = {0};
    invar_status status = scan_steps(&list, save, "");

    if (status == INVAR_OK)
        status = scan_steps(&list, save, ".old");
    if (status != INVAR_OK) {
        invar_free(list.items);
        list = (step_list){0};
    }
    *out = list.items;
    *count_out = list.count;
    return status;
}

/* ---- saved by time --------------------------------------------------------------------------- */

bool invar_checkpoint_is_marked(const char *save, int64_t step)
{
    char path[INVAR_PATH_SIZE];

    if (invar_checkpoint_folder(path, save, step, BY_TIME) == INVAR_OK)
        return invar_path_exists(path);
    invar_error_clear();
    return false;
}

invar_status invar_checkpoint_mark(const char *save, int64_t step, bool by_time)
{
    char path[INVAR_PATH_SIZE];
    int fd;

    if (invar_checkpoint_is_marked(save, step) == by_time)
        return INVAR_OK;
    INVAR_TRY(invar_checkpoint_folder(path, save, step, BY_TIME));
    if (!by_time) {
        if (unlink(path) != 0)
            return io_error(path, "cannot be removed");
        return invar_held_folder_sync(save);
    }
    fd = invar_fd_open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return io_error(path, "cannot be written");
    close(fd);
    return invar_held_folder_sync(save);
}

invar_status invar_checkpoint_count(int64_t *by_time_out, int64_t *others_out, const char *save)
{
    INVAR_AUTO_FREE int64_t *items = NULL;
    int64_t count = 0;

    *by_time_out = *others_out = 0;
    if (!invar_path_exists(save))
        return INVAR_OK;
    INVAR_TRY(invar_checkpoint_list(&items, &count, save));
    for (int64_t i = 0; i < count; i++)
        *(invar_checkpoint_is_marked(save, items[i]) ? by_time_out : others_out) += 1;
    return INVAR_OK;
}

/* ---- pruning --------------------------------------------------------------------------------- */

/*
 * Removes a checkpoint. It is renamed first, so that readers ignore it even if the power fails
 * while its files are removed.
 */
static invar_status remove_checkpoint(const char *save, int64_t step)
{
    char path[INVAR_PATH_SIZE], partial[INVAR_PATH_SIZE];

    INVAR_TRY(invar_checkpoint_folder(path, save, step, ""));
    INVAR_TRY(invar_checkpoint_folder(partial, save, step, ".tmp"));
    if (rename(path, partial) != 0)
        return io_error(path, "cannot be renamed");
    INVAR_TRY(invar_held_folder_sync(save));
    INVAR_TRY(invar_held_folder_remove(partial));
    return invar_checkpoint_mark(save, step, false);
}

invar_status invar_checkpoint_prune(const char *save, int64_t step, int64_t keep, int64_t by_time)
{
    INVAR_AUTO_FREE int64_t *items = NULL;
    int64_t count, kept = 0, marked = 0;

    INVAR_TRY(invar_checkpoint_list(&items, &count, save));
    for (int64_t i = count - 1; i >= 0; i--) {
        bool many;
        if (items[i] > step)
            continue;
        many = invar_checkpoint_is_marked(save, items[i]) ? ++marked > by_time
                                                          : keep > 0 && ++kept > keep;
        if (many && items[i] < step)
            INVAR_TRY(remove_checkpoint(save, items[i]));
    }
    return INVAR_OK;
}

/*
 * Prunes checkpoints saved by time: a killed writer may have left one too many. Does nothing if
 * there is no `latest`.
 */
static invar_status prune_by_time(const char *save)
{
    int64_t step;

    if (invar_checkpoint_latest(&step, save) == INVAR_OK)
        return invar_checkpoint_prune(save, step, 0, INVAR_CHECKPOINT_KEPT_BY_TIME);
    invar_error_clear();
    return INVAR_OK;
}

/* ---- leftovers ------------------------------------------------------------------------------- */

static invar_status remove_all(const char *save, const step_list *list, const char *suffix)
{
    char path[INVAR_PATH_SIZE];

    for (int64_t i = 0; i < list->count; i++) {
        INVAR_TRY(invar_checkpoint_folder(path, save, list->items[i], suffix));
        INVAR_TRY(invar_held_folder_remove(path));
    }
    return INVAR_OK;
}

/* Restores replaced checkpoints whose successor was not completed. */
static invar_status restore_replaced(const char *save, const step_list *list)
{
    char path[INVAR_PATH_SIZE], old[INVAR_PATH_SIZE];

    for (int64_t i = 0; i < list->count; i++) {
        INVAR_TRY(invar_checkpoint_folder(path, save, list->items[i], ""));
        INVAR_TRY(invar_checkpoint_folder(old, save, list->items[i], ".old"));
        if (!invar_path_exists(path) && rename(old, path) != 0)
            return io_error(old, "cannot be renamed");
    }
    return INVAR_OK;
}

/* Removes marks without a checkpoint. */
static invar_status remove_marks(const char *save, const step_list *list)
{
    char path[INVAR_PATH_SIZE];

    for (int64_t i = 0; i < list->count; i++) {
        INVAR_TRY(invar_checkpoint_folder(path, save, list->items[i], ""));
        if (!invar_path_exists(path))
            INVAR_TRY(invar_checkpoint_mark(save, list->items[i], false));
    }
    return INVAR_OK;
}

invar_status invar_checkpoint_remove_leftovers(const char *save)
{
    INVAR_AUTO(release_steps) step_list partial = {0};
    INVAR_AUTO(release_steps) step_list old = {0};
    INVAR_AUTO(release_steps) step_list marks = {0};

    INVAR_TRY(scan_steps(&partial, save, ".tmp"));
    INVAR_TRY(remove_all(save, &partial, ".tmp"));
    INVAR_TRY(scan_steps(&old, save, ".old"));
    INVAR_TRY(restore_replaced(save, &old));
    INVAR_TRY(remove_all(save, &old, ".old"));
    INVAR_TRY(scan_steps(&marks, save, BY_TIME));
    INVAR_TRY(remove_marks(save, &marks));
    return prune_by_time(save);
}

/* ---- latest ---------------------------------------------------------------------------------- */

invar_status invar_checkpoint_latest_write(const char *save, int64_t step)
{
    char path[INVAR_PATH_SIZE], text[32];

    INVAR_TRY(invar_path_join(path, sizeof path, save, LATEST));
    snprintf(text, sizeof text, "%" PRId64 "\n", step);
    return invar_file_write(path, text, strlen(text));
}

invar_status invar_checkpoint_latest(int64_t *step_out, const char *save)
{
    char path[INVAR_PATH_SIZE], quote[INVAR_TEXT_QUOTE_SIZE], *text;
    size_t bytes, length;
    bool good;

    INVAR_TRY(invar_path_join(path, sizeof path, save, LATEST));
    INVAR_TRY(invar_file_read(&text, &bytes, path, 4096));
    length = strspn(text, "0123456789");
    good = parse_step(step_out, text, length) && length + strspn(text + length, "\r\n ") == bytes;
    invar_text_quote(quote, sizeof quote, text, bytes);
    invar_free(text);
    if (!good)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: \"%s\" is not the number of a checkpoint",
                          INVAR_SHOWN_PATH(path), quote);
    return INVAR_OK;
}

bool invar_checkpoint_has_hash(const char *folder, const invar_digest *hash)
{
    char path[INVAR_PATH_SIZE];
    invar_digest found;
    int64_t bytes;

    if (invar_path_join(path, sizeof path, folder, INVAR_CHECKPOINT_HASHES) != INVAR_OK ||
        invar_file_hash(&found, &bytes, path) != INVAR_OK) {
        invar_error_clear();
        return false;
    }
    return invar_digest_equal(&found, hash);
}

void invar_checkpoint_hint(char out[INVAR_CHECKPOINT_HINT_SIZE], const char *folder)
{
    char below[INVAR_PATH_SIZE], latest[INVAR_PATH_SIZE];

    out[0] = '\0';
    if (invar_path_join(below, sizeof below, folder, "checkpoints") != INVAR_OK ||
        invar_path_join(latest, sizeof latest, below, LATEST) != INVAR_OK) {
        invar_error_clear();
        return;
    }
    if (!invar_path_exists(latest))
        return;
    (void)snprintf(out, INVAR_CHECKPOINT_HINT_SIZE,
                   ": it is the folder of a run, which keeps them in %s", INVAR_SHOWN_PATH(below));
}
