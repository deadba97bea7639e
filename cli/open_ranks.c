/*
 * open_ranks.c - the ranks of a launch, in bounded time.
 *
 * A signal ends the process: it is the only thing that comes through to a thread within MPI.
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

#define MOST 1000000000.0 /* seconds: for ever */

static char line[200];

static void give_up(int number)
{
    (void)number;
    (void)!write(STDERR_FILENO, line, strlen(line));
    _exit(INVAR_EXIT_TROUBLE);
}

/* One is to speak: a launcher ends the others when it has ended, within some seconds. */
static unsigned later(void)
{
    const char *rank = getenv("PMIX_RANK");

    if (!rank)
        rank = getenv("PMI_RANK");
    return !rank || strcmp(rank, "0") == 0 ? 0 : strcmp(rank, "1") == 0 ? 3 : 6;
}

void invar_open_ranks_queue(void)
{
    (void)sleep(later());
}

invar_status invar_open_ranks(invar_launch *out, double seconds, int64_t ranks)
{
    struct sigaction before, action = {.sa_handler = give_up};
    invar_status status;

    if (seconds <= 0.0 || seconds > MOST)
        return invar_launch_open(out, seconds, ranks);
    (void)snprintf(line, sizeof line,
                   "invar: not all ranks have come in %.0f s: see that the launcher starts this "
                   "program for each of them, and that their hosts reach each other\n",
                   seconds);
    (void)sigaction(SIGALRM, &action, &before);
    (void)alarm((unsigned)seconds + later());
    status = invar_launch_open(out, seconds, ranks);
    (void)alarm(0);
    (void)sigaction(SIGALRM, &before, NULL);
    return status;
}
