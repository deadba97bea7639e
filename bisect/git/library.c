/*
 * library.c - loads libgit2 with dlopen on first use.
 *
 * Programs are not linked with libgit2: it pulls in libraries for HTTP, SSH, TLS and Kerberos,
 * which a training run does not need and which would enlarge its attack surface
 * (docs/adr/0013-libgit2-on-demand.md). The soname is that of the header used at compile time,
 * because other versions have other struct layouts.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

#include "bisect/git/git.h"

#include "base/invar_banned.h"

#define LIBRARY "libgit2.so." LIBGIT2_SOVERSION

invar_git_library invar_git_loaded;

static int start_code;
static char load_error[256]; /* error of dlopen or dlsym; empty after success */

/* Name of each libgit2 function and offset of its pointer in invar_git_library. */
static const struct {
    const char *name;
    size_t offset;
} functions[] = {
#define INVAR_GIT_FUNCTION(name) {"git_" #name, offsetof(invar_git_library, name)},
#include "bisect/git/library.def"
#undef INVAR_GIT_FUNCTION
};

static bool load_functions(void)
{
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL), *found = library;

    for (size_t i = 0; found && i < sizeof functions / sizeof *functions; i++) {
        found = dlsym(library, functions[i].name);
        memcpy((char *)&invar_git_loaded + functions[i].offset, &found, sizeof found);
    }
    if (!found)
        (void)snprintf(load_error, sizeof load_error, "%s", dlerror());
    return found;
}

static void start_once(void)
{
    // extensions without effect on a reader: promisor remote, per-worktree settings, no pruning,
    // relative paths of worktrees
    static const char *extensions[] = {"partialclone", "worktreeconfig", "preciousobjects",
                                       "relativeworktrees"};

    if (!load_functions())
        return;
    start_code = INVAR_GIT(libgit2_init)();
    if (start_code < 0)
        return;
    start_code = INVAR_GIT(libgit2_opts)(GIT_OPT_SET_EXTENSIONS, extensions,
                                         sizeof extensions / sizeof *extensions);
    if (start_code == 0)
        start_code = INVAR_GIT(libgit2_opts)(GIT_OPT_ENABLE_STRICT_HASH_VERIFICATION, 1);
}

invar_status invar_git_start(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    pthread_once(&once, start_once);
    if (load_error[0])
        return INVAR_FAIL(INVAR_E_GIT, 0,
                          "this verb needs libgit2 " LIBGIT2_SOVERSION
                          ", which cannot be loaded: %s; install it, or set LD_LIBRARY_PATH",
                          load_error);
    if (start_code < 0)
        return INVAR_FAIL(INVAR_E_GIT, start_code, "libgit2 cannot be started (code %d)",
                          start_code);
    return INVAR_OK;
}
