/*
 * open_ranks.c - opens the ranks of a launch with a time limit. SIGALRM ends the process, because
 * nothing else interrupts a thread that waits inside MPI.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/open_ranks.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/process/process.h"

#include "base/invar_banned.h"

#define MAX_SECONDS 1000000000.0 /* seconds; larger values mean no limit */

static char line[200];

static void handle_alarm(int number)
{
    (void)number;
    (void)!write(STDERR_FILENO, line, strlen(line));
    _exit(INVAR_EXIT_TROUBLE);
}

/*
 * Returns how many seconds this process waits before it prints an error. A launcher ends the other
 * processes some seconds after the first one has exited, so only one of them prints.
 */
static unsigned print_delay_s(void)
{
    const char *rank = getenv("PMIX_RANK");

    if (!rank)
        rank = getenv("PMI_RANK");
    return !rank || strcmp(rank, "0") == 0 ? 0 : strcmp(rank, "1") == 0 ? 3 : 6;
}

void invar_open_ranks_queue(void)
{
    (void)sleep(print_delay_s());
}

invar_status invar_open_ranks(invar_launch *out, double seconds, int64_t ranks)
{
    struct sigaction before, action = {.sa_handler = handle_alarm};
    invar_status status;

    if (seconds <= 0.0 || seconds > MAX_SECONDS)
        return invar_launch_open(out, seconds, ranks);
    (void)snprintf(line, sizeof line,
                   "invar: not all ranks have come in %.0f s: see that the launcher starts this "
                   "program for each of them, and that their hosts reach each other\n",
                   seconds);
    (void)sigaction(SIGALRM, &action, &before);
    (void)alarm((unsigned)seconds + print_delay_s());
    status = invar_launch_open(out, seconds, ranks);
    (void)alarm(0);
    (void)sigaction(SIGALRM, &before, NULL);
    return status;
}
