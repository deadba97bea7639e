/*
 * child.h - runs a command as a child process with limits on time and output.
 *
 * The child has its own process group. When the wait ends, the group is killed. Processes that have
 * left the group (process_tag.h) are killed too, if this process ended the child or they still hold
 * its output open. Both output streams go to a log of bounded size: beginning and end are kept, the
 * middle is counted and dropped. If this process dies, the kernel kills the child. `lock` is
 * inherited by the child and everything that it starts, so the lock is held as long as one of them
 * lives (workspace.h). Standard input is empty, signals have their default actions, and no other
 * descriptor is inherited. Several threads may run children at the same time.
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

#define INVAR_CHILD_LOG_BYTES                                                                      \
    (2u << 20) /* largest log size in bytes: half for the beginning, half
                                            for the end */
#define INVAR_CHILD_WORDS_SIZE INVAR_PROCESS_TAIL_BYTES

typedef struct invar_child_request {
    const char *const *words;          /* argv, NULL-terminated; the program is searched in PATH */
    const char *folder;                /* working folder; NULL for the current one */
    const char *const *environment;    /* environment words, NULL-terminated, or NULL; "NAME=VALUE"
                                          adds a variable, "NAME" or "PREFIX*" removes variables;
                                          later words win */
    const char *log;                   /* log file, overwritten; NULL to drop the output */
    int lock;                          /* descriptor that the child inherits, or -1 */
    double timeout;                    /* time limit in seconds; 0 for no limit */
    const volatile sig_atomic_t *stop; /* the child is ended if this is nonzero; may be NULL */
    /*
     * Polled about every 20 ms while the child runs, and once after its end. Return true to end the
     * child: SIGTERM, then SIGKILL after kill_grace_s seconds. May be NULL.
     */
    bool (*should_stop)(void *payload);
    void *payload;
    double kill_grace_s; /* grace period in seconds, for `timeout` and `stop` too */
    bool same_addresses; /* disable address space randomization if the kernel allows it */
} invar_child_request;

typedef enum invar_child_end {
    INVAR_CHILD_EXITED,    /* the child exited; `code` is its exit code */
    INVAR_CHILD_SIGNALLED, /* the child died from signal `code` */
    INVAR_CHILD_TIMED_OUT,
    INVAR_CHILD_STOPPED,     /* ended because of `stop` */
    INVAR_CHILD_ENDED_EARLY, /* ended because should_stop returned true */
    INVAR_CHILD_MISSING      /* nothing ran: the program does not exist or cannot be executed */
} invar_child_end;

typedef struct invar_child_result {
    invar_child_end end;
    int code;    /* exit code; SIGNALLED: signal number; 128 + signal number if the child died after
                    this process ended it; MISSING: errno */
    bool killed; /* killed after the grace period; files that it was writing may be incomplete */
    double seconds;
    int64_t peak_bytes;                      /* peak memory of its largest process */
    int64_t output_bytes;                    /* size of the output, kept or not */
    char last_words[INVAR_CHILD_WORDS_SIZE]; /* last non-blank line of output, escaped */
} invar_child_result;

/*
 * Runs a child and waits for it. Fails only if the child cannot be started or waited for, or the
 * log cannot be written.
 */
invar_status invar_child_run(invar_child_result *out,
                             const invar_child_request *request) INVAR_MUST_USE;

#define INVAR_CHILD_REASON_SIZE (INVAR_CHILD_WORDS_SIZE + 256)

/* Describes the end of a child: "exit code 2: LAST LINE", "no end within 60 s" and so on. */
void invar_child_describe(char out[INVAR_CHILD_REASON_SIZE], const invar_child_result *result,
                          double timeout);

#endif
