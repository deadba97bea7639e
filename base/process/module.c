/*
 * module.c - finds and loads modules of the program.
 *
 * The folder of the program, or of the shared library that has this code, is that of its modules.
 * A module that does not exist is no failure of the program: the message names the command that
 * makes or installs the module, in a build folder and in an installation.
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

/* The words of a message about a missing module. */
typedef struct facts {
    const char *file;
    const char *target;  /* target of CMake */
    const char *package; /* package that has the module */
    const char *purpose; /* clause that names the user of the module */
    const char *setup;   /* command that installs the library for building the module */
    const char *option;  /* option of CMake that the module needs to be built; may be empty */
} facts;

static const facts all_facts[] = {
    {INVAR_MODULE_CUDA, "invar_cuda", "invar-cuda", "a GPU needs it", "scripts/setup build cuda",
     "-DINVAR_CUDA=ON "},
    {INVAR_MODULE_MPI, "invar_mpi", "invar-mpi", "ranks over MPI need it", "scripts/setup mpi",
     "-DINVAR_MPI=ON "},
    {INVAR_MODULE_NCCL, "invar_nccl", "invar-nccl", "NCCL between GPUs needs it",
     "apt-get install libnccl-dev", "-DINVAR_CUDA=ON -DINVAR_NCCL=ON "},
    {INVAR_MODULE_HTTP, "invar_http", "invar", "servers are asked through it",
     "scripts/setup build", ""},
    {INVAR_MODULE_SERVE, "invar_serve", "invar", "HTTP goes through it", "scripts/setup build", ""},
};

/* Returns the words for a module; `file` is one of invar_module_names. */
static const facts *facts_of(const char *file)
{
    size_t i = 0;

    while (strcmp(all_facts[i].file, file) != 0) {
        i++;
        INVAR_CHECK(i < sizeof all_facts / sizeof *all_facts);
    }
    return &all_facts[i];
}

/* True if the build of this code makes a module: INVAR_MODULES_MADE is like "mpi,http,serve". */
static bool is_made(const char *file)
{
    const char *cursor = INVAR_MODULES_MADE, *item;
    char name[32];
    size_t bytes;

    while (invar_text_item(&item, &bytes, &cursor, ',')) {
        (void)snprintf(name, sizeof name, "invar-%.*s.so", (int)bytes, item);
        if (strcmp(name, file) == 0)
            return true;
    }
    return false;
}

/* Writes a folder as one shell word. */
static void print_folder(char out[INVAR_PATH_SIZE], const char *folder)
{
    FILE *text = fmemopen(out, INVAR_PATH_SIZE, "w");

    out[0] = '\0';
    if (!text)
        return;
    invar_text_print_shell_word(text, folder);
    (void)fclose(text);
    out[INVAR_PATH_SIZE - 1] = '\0';
}

void invar_module_remedy(char *out, size_t size, const char *folder, const char *name, bool made)
{
    const facts *f = facts_of(name);
    char cache[INVAR_PATH_SIZE], build[INVAR_PATH_SIZE];
    bool in_build;

    (void)snprintf(cache, sizeof cache, "%s/CMakeCache.txt", folder);
    in_build = access(cache, F_OK) == 0;
    print_folder(build, folder);
    if (in_build && made)
        (void)snprintf(out, size, "run cmake --build %s --target %s", build, f->target);
    else if (in_build)
        (void)snprintf(out, size, "run %s && cmake %s%s && cmake --build %s --target invar",
                       f->setup, f->option, build, build);
    else if (made)
        (void)snprintf(out, size, "install the package %s of the build of this program",
                       f->package);
    else
        (void)snprintf(out, size,
                       "this program was built without it: in Invar's source tree run %s && cmake "
                       "--preset cpu %s&& cmake --build --preset cpu, and install what that makes",
                       f->setup, f->option);
}

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

/* Returns the file of the shared library that has this code, or NULL if the program has it. */
static const char *own_library(void)
{
    struct link_map *map;
    Dl_info info;

    if (dladdr1(invar_module_names, &info, (void **)&map, RTLD_DL_LINKMAP) == 0)
        return NULL;
    return map->l_name[0] ? map->l_name : NULL; // the program's name is empty here
}

/* Writes the folder of this program or library; empty if it is unknown. */
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
    char folder[INVAR_PATH_SIZE / 2], remedy[INVAR_PATH_SIZE];
    const char *asked = getenv("INVAR_MODULES");

    if (strchr(file, '/')) {
        if (snprintf(out, INVAR_PATH_SIZE, "%s", file) < INVAR_PATH_SIZE && access(out, F_OK) == 0)
            return INVAR_OK;
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0, "the module %.200s does not exist", file);
    }
    if (asked && asked[0]) {
        if (invar_module_find(out, asked, file))
            return INVAR_OK;
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                          "the module %.200s is not in the folder INVAR_MODULES; %s: unset "
                          "INVAR_MODULES, or let it name a folder that has the module",
                          file, facts_of(file)->purpose);
    }
    own_folder(folder);
    if (invar_module_find(out, folder, file))
        return INVAR_OK;
    invar_module_remedy(remedy, sizeof remedy, folder, file, is_made(file));
    return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0, "the module %.200s is not beside the %s; %s: %s",
                      file, own_library() ? "library" : "program", facts_of(file)->purpose, remedy);
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
    return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                      "the module %.200s cannot be loaded: %s; install the library that is named "
                      "there, or build the program with its modules again",
                      file, why);
}

/*
 * Finds the module of the program in `folder`, or of this one if `folder` is NULL. Returns false if
 * the program has no such module.
 */
static bool find_module_of(char out[INVAR_PATH_SIZE], const char *folder, const char *name)
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
        if (!find_module_of(path, program ? folder : NULL, *name))
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
