/*
 * library.c - libgit2, loaded by the first call that needs it.
 *
 * Programs are not linked with it: with libgit2 come libraries for HTTP, SSH, TLS and Kerberos,
 * which a training run has no use for and which would only widen what can be attacked in it
 * (docs/adr/0013-libgit2-on-demand.md). The version is the one of the header that we were compiled
 * with; another one has other structures.
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
static char why[256]; /* it could not be loaded; "": it could */

/* Where a pointer to a function that the library has is kept, and its name. */
static const struct {
    const char *name;
    size_t offset;
} functions[] = {
#define INVAR_GIT_FUNCTION(name) {"git_" #name, offsetof(invar_git_library, name)},
#include "bisect/git/library.def"
#undef INVAR_GIT_FUNCTION
};

static bool load(void)
{
    void *library = dlopen(LIBRARY, RTLD_NOW | RTLD_LOCAL), *found = library;

    for (size_t i = 0; found && i < sizeof functions / sizeof *functions; i++) {
        found = dlsym(library, functions[i].name);
        memcpy((char *)&invar_git_loaded + functions[i].offset, &found, sizeof found);
    }
    if (!found)
        (void)snprintf(why, sizeof why, "%s", dlerror());
    return found;
}

static void start_once(void)
{
    // known to be harmless to a reader: who fetches what, where settings and work trees lie,
    // that nothing may be pruned
    static const char *extensions[] = {"partialclone", "worktreeconfig", "preciousobjects",
                                       "relativeworktrees"};

    if (!load())
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
    if (why[0])
        return INVAR_FAIL(INVAR_E_GIT, 0,
                          "this verb needs libgit2 " LIBGIT2_SOVERSION
                          ", which cannot be loaded: %s; install it, or set LD_LIBRARY_PATH",
                          why);
    if (start_code < 0)
        return INVAR_FAIL(INVAR_E_GIT, start_code, "libgit2 cannot be started (code %d)",
                          start_code);
    return INVAR_OK;
}
