/*
 * subprocess.h - child process that dies with us, and is killed with all its descendants.
 *
 * The child leads a process group, inherits no descriptors except its three streams, and is killed
 * by the kernel when the thread that started it ends. Its descendants carry a mark in their
 * environment, by which invar_subprocess_kill finds them in other sessions and after their parent
 * has exited. If this process is killed with SIGKILL, the kernel kills the child only; descendants
 * see the end of their input.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_EXT_SUBPROCESS_H
#define INVAR_ENGINE_EXT_SUBPROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"

typedef struct invar_subprocess {
    pid_t pid;       /* 0 if there is no child, or after it was reaped */
    int wait_status; /* wait status of a child that was reaped */
    char mark[64];   /* NAME=VALUE in the environment of the child */
} invar_subprocess;

/*
 * Starts words[0], searched in PATH as by a shell; `words` ends with a NULL. `streams` are the
 * child's ends of its standard streams; the caller closes them. `name` is used in error messages
 * only.
 */
invar_status invar_subprocess_start(invar_subprocess *out, const char *name, char *const *words,
                                    const int streams[3]) INVAR_MUST_USE;

/* Like write(2), to the input of a child; a closed pipe fails with EPIPE and raises no SIGPIPE. */
ssize_t invar_subprocess_write(int fd, const char *data, size_t bytes);

/* Returns true if the child has exited; does not reap it. */
bool invar_subprocess_ended(const invar_subprocess *child);

/* Kills the child and its descendants, and reaps it. */
void invar_subprocess_kill(invar_subprocess *child);

#endif
