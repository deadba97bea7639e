/*
 * process.h - what every part that starts programs needs, and how programs end.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_PROCESS_PROCESS_H
#define INVAR_BASE_PROCESS_PROCESS_H

#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "base/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Exit codes. As diff and cmp: 0 same, 1 different, 2 trouble; the others say which trouble. What
   they mean to users is in invar_exit_codes (cli/command.h); what a signal stopped has its own. */
enum {
    INVAR_EXIT_OK = 0,
    INVAR_EXIT_DIFFERENT = 1,
    INVAR_EXIT_TROUBLE = 2,
    INVAR_EXIT_NONDETERMINISTIC = 3,
    INVAR_EXIT_GOLDEN = 4,       /* missing, obsolete, or of another recipe */
    INVAR_EXIT_NOTHING = 6,      /* nothing was compared */
    INVAR_EXIT_UNTESTABLE = 125, /* not here: no such device; git bisect skips it */
    INVAR_EXIT_USAGE = 129
};

/* The exit code of what ended with this status. */
int invar_process_exit_code(invar_status status);

/*
 * Cores for each of the ranks of a job, of which `process` are in this process and `host` on this
 * host; at least 1. No more than the process may use: taskset, cpusets and mpirun bind it to some.
 */
int64_t invar_process_cores(int process, int host);

/* Milliseconds of a clock that nobody sets; for deadlines. */
int64_t invar_process_clock_ms(void);

/* Nanoseconds of a clock of the system; that of CLOCK_REALTIME begins in 1970. */
int64_t invar_process_clock_ns(clockid_t clock);

/* A pipe whose ends are above the standard streams, whatever of those is closed, and are closed by
   exec. Returns 0 or errno. */
int invar_process_pipe(int ends[2]);

/* The descriptor moved above the standard streams in the same way; -1 stays -1, with its errno. */
int invar_process_fd_above_stdio(int fd);

/* The exit code of what a signal ended in order: 128 and its number, as shells count; 143, that of
   SIGTERM, for SIGHUP, whose 129 means wrong arguments. */
int invar_process_stop_code(int number);

#define INVAR_PROCESS_TAIL_BYTES 1024 /* room for a message and the paths in it */

/* The end of what a program says, for a message about its death. Zeroed by the caller. */
typedef struct invar_process_tail {
    size_t used;
    char bytes[INVAR_PROCESS_TAIL_BYTES];
} invar_process_tail;

void invar_process_tail_add(invar_process_tail *tail, const char *block, size_t bytes);

/* Its last line that is not blank, as one harmless line; "": none. `size` is the room, >= 4. */
void invar_process_last_output_line(char *out, size_t size, const invar_process_tail *tail);

#ifdef __cplusplus
}
#endif
#endif
