/*
 * ci_cases.c - finds the CI cases of a folder.
 *
 * A case is identified by NAME alone. Its five file names are derived from it, and it exists if
 * there is a recipe, a golden or a pending golden of that name.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/sort.h"
#include "base/text.h"
#include "bisect/ci/ci.h"

#include "base/invar_banned.h"

#define MAX_CASES 1024

static invar_status format_path(char out[INVAR_PATH_SIZE], const char *folder, const char *name,
                                const char *ending)
{
    char file[INVAR_GOLDEN_NAME + 16];

    (void)snprintf(file, sizeof file, "%s%s", name, ending);
    if (*folder == '\0') {
        (void)snprintf(out, INVAR_PATH_SIZE, "%s", file);
        return INVAR_OK;
    }
    return invar_path_join(out, INVAR_PATH_SIZE, folder, file);
}

/* Returns the length of the case name in a file name; 0 if the file does not belong to a case. */
static size_t name_length(const char *file)
{
    static const char *const endings[] = {".ini", ".golden", ".golden.new"};

    for (int i = 0; i < 3; i++)
        if (invar_text_has_suffix(file, endings[i]))
            return strlen(file) - strlen(endings[i]);
    return 0;
}

/* Fills a case from the first `length` bytes of `name`. An empty folder means the current one. */
static invar_status make_case(invar_ci_case *out, const char *folder, const char *name,
                              size_t length)
{
    if (length == 0 || length >= sizeof out->name)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "'%.1000s' is no name of a case", name);
    memcpy(out->name, name, length);
    out->name[length] = '\0';
    INVAR_TRY(format_path(out->recipe, folder, out->name, ".ini"));
    INVAR_TRY(format_path(out->golden, folder, out->name, ".golden"));
    INVAR_TRY(format_path(out->points, folder, out->name, ".points"));
    INVAR_TRY(format_path(out->new_golden, folder, out->name, ".golden.new"));
    return format_path(out->new_points, folder, out->name, ".points.new");
}

invar_status invar_ci_case_of(invar_ci_case *out, const char *folder, const char *word)
{
    const char *slash = strrchr(word, '/'), *name = slash ? slash + 1 : word;
    size_t length = name_length(name);
    char own[INVAR_PATH_SIZE] = "";

    if (!slash && length == 0)
        return make_case(out, folder, word, strlen(word));
    if (length == 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "'%.1000s' is no recipe: give NAME.ini or NAME.golden, or a name in "
                          "%.1000s",
                          word, folder);
    if (slash) {
        if ((size_t)(slash - word) >= sizeof own - 1)
            return INVAR_FAIL(INVAR_E_INVALID, 0, "the path is too long: %.1000s", word);
        memcpy(own, word, (size_t)(slash - word));
        own[slash - word] = '\0';
        if (slash == word)
            (void)snprintf(own, sizeof own, "/");
    }
    return make_case(out, own, name, length);
}

bool invar_ci_pending(const invar_ci_case *item)
{
    return invar_path_exists(item->new_golden);
}

/* ---- listing --------------------------------------------------------------------------------- */

typedef struct case_list {
    invar_ci_case *items;
    size_t count;
    const char *folder;
} case_list;

/* Adds the case of a file unless it is in the list already. */
static invar_status add_case_of_file(case_list *l, const char *file)
{
    size_t length = name_length(file);

    if (length == 0 || length >= INVAR_GOLDEN_NAME || file[0] == '.')
        return INVAR_OK;
    for (size_t i = 0; i < l->count; i++)
        if (strlen(l->items[i].name) == length && memcmp(l->items[i].name, file, length) == 0)
            return INVAR_OK;
    if (l->count == MAX_CASES)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%.1000s: more than %d cases", l->folder, MAX_CASES);
    return make_case(&l->items[l->count++], l->folder, file, length);
}

static int by_name(const void *a, const void *b)
{
    return strcmp(((const invar_ci_case *)a)->name, ((const invar_ci_case *)b)->name);
}

invar_status invar_ci_cases(invar_ci_case **out, size_t *count_out, const char *folder)
{
    case_list l = {.folder = folder};
    invar_status status;
    struct dirent *entry;
    DIR *dir = opendir(folder);

    if (!dir)
        return INVAR_FAIL(
            errno == ENOENT ? INVAR_E_NOTFOUND : INVAR_E_IO, errno,
            "the cases of %.1000s cannot be listed: %s; --cases DIR says where they are", folder,
            strerror(errno));
    status = INVAR_ALLOC(l.items, MAX_CASES, "cases");
    while (status == INVAR_OK && (entry = readdir(dir)))
        status = add_case_of_file(&l, entry->d_name);
    closedir(dir);
    if (status == INVAR_OK)
        status = invar_sort_items(l.items, l.count, sizeof *l.items, by_name);
    if (status != INVAR_OK) {
        invar_free(l.items);
        return status;
    }
    *out = l.items;
    *count_out = l.count;
    return INVAR_OK;
}
