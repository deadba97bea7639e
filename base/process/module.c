/*
 * module.c - modules, found and loaded.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#define _GNU_SOURCE 1 // dladdr1

#include "base/process/module.h"

#include <dlfcn.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"

#include "base/invar_banned.h"

const char *const invar_module_names[] = {INVAR_MODULE_CUDA, INVAR_MODULE_MPI,   INVAR_MODULE_NCCL,
                                          INVAR_MODULE_HTTP, INVAR_MODULE_SERVE, NULL};

bool invar_module_find(char out[INVAR_PATH_SIZE], const char *folder, const char *name)
{
    static const char *const places[] = {"", "/../lib/invar"};

    for (size_t i = 0; i < sizeof places / sizeof *places; i++)
        if (snprintf(out, INVAR_PATH_SIZE, "%s%s/%s", folder, places[i], name) < INVAR_PATH_SIZE &&
            access(out, F_OK) == 0)
            return true;
    return false;
}

void invar_module_record(char out[INVAR_PATH_SIZE], const char *program, const char *ending)
{
    char folder[INVAR_PATH_SIZE], name[INVAR_PATH_SIZE];
    const char *slash = strrchr(program, '/');

    (void)snprintf(folder, sizeof folder, "%.*s", slash ? (int)(slash - program) : 1,
                   slash ? program : ".");
    (void)snprintf(name, sizeof name, "%s%s", slash ? slash + 1 : program, ending);
    if (!invar_module_find(out, folder, name))
        (void)snprintf(out, INVAR_PATH_SIZE, "%s%s", program, ending);
}

/* The file of the shared library that this code is part of; NULL: it is the program's. */
static const char *own_library(void)
{
    struct link_map *map;
    Dl_info info;

    if (dladdr1(invar_module_names, &info, (void **)&map, RTLD_DL_LINKMAP) == 0)
        return NULL;
    return map->l_name[0] ? map->l_name : NULL; // the program's name is empty here
}

/* The folder of this program, or of this library; "": nobody knows. */
static void own_folder(char out[INVAR_PATH_SIZE / 2])
{
    const char *library = own_library();
    ssize_t length;
    char *slash;

    if (library)
        length = snprintf(out, INVAR_PATH_SIZE / 2, "%s", library);
    else
        length = readlink("/proc/self/exe", out, INVAR_PATH_SIZE / 2 - 1);
    out[length > 0 && length < INVAR_PATH_SIZE / 2 ? length : 0] = '\0';
    slash = strrchr(out, '/');
    out[slash ? slash - out : 0] = '\0';
}

invar_status invar_module_path(char out[INVAR_PATH_SIZE], const char *file)
{
    char folder[INVAR_PATH_SIZE / 2];
    const char *asked = getenv("INVAR_MODULES");
    const char *place = own_library() ? "beside the library" : "beside the program";

    if (strchr(file, '/')) {
        place = "there";
        if (snprintf(out, INVAR_PATH_SIZE, "%s", file) < INVAR_PATH_SIZE && access(out, F_OK) == 0)
            return INVAR_OK;
    } else if (asked && asked[0]) {
        place = "in the folder INVAR_MODULES";
        if (invar_module_find(out, asked, file))
            return INVAR_OK;
    } else {
        own_folder(folder);
        if (invar_module_find(out, folder, file))
            return INVAR_OK;
    }
    return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0, "the module %.200s is not %s", file, place);
}

invar_status invar_module_load(const void **out, const char *file, const char *symbol, bool global)
{
    char path[INVAR_PATH_SIZE], why[INVAR_TEXT_QUOTE_SIZE * 4];
    const char *text;
    void *library;

    *out = NULL;
    INVAR_TRY(invar_module_path(path, file));
    // a module finds the program's functions by itself, but those of a library only if all may
    if (own_library())
        (void)dlopen(own_library(), RTLD_NOW | RTLD_NOLOAD | RTLD_GLOBAL);
    library = dlopen(path, RTLD_NOW | (global ? RTLD_GLOBAL : RTLD_LOCAL));
    *out = library ? dlsym(library, symbol) : NULL;
    if (*out)
        return INVAR_OK;
    text = dlerror();
    invar_text_quote(why, sizeof why, text ? text : "", text ? strlen(text) : 0);
    return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0, "the module %.200s cannot be loaded: %s", file, why);
}

/* Where the module of a program, or of this one, is; false: a program without it is another one. */
static bool belongs(char out[INVAR_PATH_SIZE], const char *folder, const char *name)
{
    if (folder)
        return invar_module_find(out, folder, name);
    if (invar_module_path(out, name) == INVAR_OK)
        return true;
    invar_error_clear();
    return false;
}

invar_status invar_module_hash_program(invar_digest *out, const char *program)
{
    char folder[INVAR_PATH_SIZE], path[INVAR_PATH_SIZE];
    invar_hasher hasher;
    invar_digest digest;
    bool any = false;
    int64_t bytes;

    if (program)
        INVAR_TRY(invar_path_folder(folder, program));
    INVAR_TRY(invar_file_hash(out, &bytes, program ? program : "/proc/self/exe"));
    invar_hasher_init(&hasher);
    invar_hasher_update(&hasher, out, sizeof *out);
    for (const char *const *name = invar_module_names; *name; name++) {
        if (!belongs(path, program ? folder : NULL, *name))
            continue;
        INVAR_TRY(invar_file_hash(&digest, &bytes, path));
        invar_hasher_update(&hasher, *name, strlen(*name) + 1);
        invar_hasher_update(&hasher, &digest, sizeof digest);
        any = true;
    }
    if (any)
        invar_hasher_final(out, &hasher);
    return INVAR_OK;
}
