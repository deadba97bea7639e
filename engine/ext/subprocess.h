/*
 * subprocess.h - a child process that does not outlive us; where we end it, nor do its descendants.
 *
 * It leads a process group, has none of our descriptors but its three streams, and is killed by the
 * kernel when the thread that started it ends. Its descendants carry a mark in their environment,
 * by which _kill finds them wherever they have gone: into another session, or away from their
 * parent. Where we are killed ourselves (SIGKILL), nobody looks for them: the kernel's signal
 * reaches the child alone. They see the end of what was our end of their input.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_EXT_SUBPROCESS_H
#define INVAR_ENGINE_EXT_SUBPROCESS_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_subprocess {
    pid_t pid;       /* 0: none, or ended and reaped */
    int wait_status; /* of one that was reaped */
    char mark[64];   /* NAME=VALUE */
} invar_subprocess;

/*
 * Starts words[0], found as a shell finds it; words ends with a NULL. `streams` are the child's
 * ends of its standard streams. `name` is the plug-in's, for messages.
 */
invar_status invar_subprocess_start(invar_subprocess *out, const char *name, char *const *words,
                                    const int streams[3]) INVAR_MUST_USE;

/*
 * write(2) to a child's input, which a closed pipe makes fail and not deadly, whatever the process
 * does with SIGPIPE.
 */
ssize_t invar_subprocess_write(int fd, const char *data, size_t bytes);

/* True when it has ended by itself; it is not reaped yet. */
bool invar_subprocess_ended(const invar_subprocess *child);

/* Kills it and its descendants and reaps it. */
void invar_subprocess_kill(invar_subprocess *child);

#ifdef __cplusplus
}
#endif
#endif
