/*
 * child.h - a command as a child process: bounded in time, in output and in what it leaves.
 *
 * It runs in a process group of its own; whatever ends the wait ends the group, and what has left
 * the group with it (process_tag.h). Both output streams go into a log of bounded size: its
 * beginning and its end are kept, what is between is counted and dropped. When we die, so does the
 * child (the kernel sees to it), and `lock`, which the child and all that it starts inherit, stays
 * locked as long as one of them lives: see workspace.h. Its standard input is empty, its signals
 * are as a login shell's, and of our descriptors it has none but the lock. Threads may run children
 * at a time.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BISECT_WORKSPACE_CHILD_H
#define INVAR_BISECT_WORKSPACE_CHILD_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "base/process/process.h"
#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define INVAR_CHILD_LOG_BYTES (2u << 20) /* of a log: half from the beginning, half from the end */
#define INVAR_CHILD_WORDS_SIZE INVAR_PROCESS_TAIL_BYTES

typedef struct invar_child_request {
    const char *const *words;       /* argv, ended by NULL; the program is found as a shell does */
    const char *folder;             /* to run in; NULL: ours */
    const char *const *environment; /* "NAME=VALUE" beyond ours, "NAME" or "PREFIX*": without;
                                       the later word counts; ended by NULL; NULL: just ours */
    const char *log;                /* file for its output, made anew; NULL: dropped */
    int lock;                       /* descriptor that it inherits; -1: none */
    double timeout;                 /* seconds; 0: none */
    const volatile sig_atomic_t *stop; /* nonzero: end it; may be NULL */
    /*
     * Called about every 20 ms while it runs, and once after its end; true: end it (SIGTERM, then
     * after `grace` seconds SIGKILL). May be NULL.
     */
    bool (*should_stop)(void *payload);
    void *payload;
    double kill_grace_s; /* also after `timeout` and `stop` */
    bool same_addresses; /* without address space randomisation, where the kernel allows that */
} invar_child_request;

typedef enum invar_child_end {
    INVAR_CHILD_EXITED,    /* by itself: `code` */
    INVAR_CHILD_SIGNALLED, /* by itself, of the signal `code` */
    INVAR_CHILD_TIMED_OUT,
    INVAR_CHILD_STOPPED,     /* because of `stop` */
    INVAR_CHILD_ENDED_EARLY, /* because `watch` had seen enough */
    INVAR_CHILD_MISSING      /* there is no such program, or it is none: nothing ran */
} invar_child_end;

typedef struct invar_child_result {
    invar_child_end end;
    int code;    /* when we ended it: its exit code all the same, or 128 + the signal; of a program
                 that is MISSING errno */
    bool killed; /* it did not end within `grace`: what it was writing is half written */
    double seconds;
    int64_t peak_bytes;                      /* of memory, the largest process of it */
    int64_t output_bytes;                    /* that it wrote, kept or not */
    char last_words[INVAR_CHILD_WORDS_SIZE]; /* the last line of output that is not blank, safe */
} invar_child_result;

/* Fails only when the child could not be started or waited for, or the log not be written. */
invar_status invar_child_run(invar_child_result *out,
                             const invar_child_request *request) INVAR_MUST_USE;

#define INVAR_CHILD_REASON_SIZE (INVAR_CHILD_WORDS_SIZE + 256)

/* How it ended, in words: "exit code 2: LAST WORDS", "no end within 60 s", ... */
void invar_child_tell(char out[INVAR_CHILD_REASON_SIZE], const invar_child_result *result,
                      double timeout);

#ifdef __cplusplus
}
#endif
#endif
