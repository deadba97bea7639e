/*
 * process.h - exit codes, clocks, usable cores, descriptors, and the last output of child
 * processes.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_BASE_PROCESS_PROCESS_H
#define INVAR_BASE_PROCESS_PROCESS_H

#include <stddef.h>
#include <stdint.h>
#include <time.h>

#include "base/status.h"

/*
 * Exit codes, as of diff and cmp: 0 equal, 1 different, 2 trouble; the others are special troubles.
 * invar_exit_codes (cli/command.h) explains them to users. invar_process_stop_code has the codes
 * after a signal.
 */
enum {
    INVAR_EXIT_OK = 0,
    INVAR_EXIT_DIFFERENT = 1,
    INVAR_EXIT_TROUBLE = 2,
    INVAR_EXIT_NONDETERMINISTIC = 3,
    INVAR_EXIT_GOLDEN = 4,       /* the golden is missing, obsolete, or of another recipe */
    INVAR_EXIT_NOTHING = 6,      /* nothing was compared */
    INVAR_EXIT_UNTESTABLE = 125, /* this machine has no such device; git bisect skips the commit */
    INVAR_EXIT_USAGE = 129
};

/* Returns the exit code of a program that ends with this status. */
int invar_process_exit_code(invar_status status);

/*
 * Returns the number of cores per rank, at least 1, if `process` ranks are in this process and
 * `host` ranks on this host. It is bounded by the cores to which taskset, cpusets or mpirun bind
 * the process.
 */
int64_t invar_process_cores(int process, int host);

/* Returns milliseconds of the monotonic clock, for deadlines. */
int64_t invar_process_clock_ms(void);

/* Returns nanoseconds of a system clock; CLOCK_REALTIME counts from 1970. */
int64_t invar_process_clock_ns(clockid_t clock);

/*
 * Creates a pipe whose ends are closed by exec. Their numbers are above the standard streams, even
 * if some of these are closed. Returns 0 or errno.
 */
int invar_process_pipe(int ends[2]);

/*
 * Returns the descriptor, duplicated above the standard streams and closed below if necessary. -1
 * stays -1, with its errno.
 */
int invar_process_fd_above_stdio(int fd);

/*
 * Returns the exit code of a program that a signal ended in order: 128 + number, as in shells; for
 * SIGHUP that of SIGTERM, 143, because 129 means wrong arguments.
 */
int invar_process_stop_code(int number);

#define INVAR_PROCESS_TAIL_BYTES 1024 /* capacity for a message and the paths in it */

/* The end of a program's output, for a message about its failure. Zero-initialize before use. */
typedef struct invar_process_tail {
    size_t used;                          /* number of bytes */
    char bytes[INVAR_PROCESS_TAIL_BYTES]; /* (used) last bytes of the output */
} invar_process_tail;

/* Appends a block of output and drops the oldest bytes. */
void invar_process_tail_add(invar_process_tail *tail, const char *block, size_t bytes);

/*
 * Writes the last non-blank line of the tail to `out`, with '?' for unprintable bytes; empty if
 * there is no such line. `size` is the capacity of `out`, at least 4.
 */
void invar_process_last_output_line(char *out, size_t size, const invar_process_tail *tail);

#endif
