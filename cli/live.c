/*
 * live.c - what verbs share that run for long.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/live.h"

#include <string.h>

#include "cli/plain.h"

#include "base/invar_banned.h"

static volatile sig_atomic_t interrupted;

static void interrupt(int signal)
{
    (void)signal;
    interrupted = 1;
}

const volatile sig_atomic_t *invar_live_catch(void)
{
    struct sigaction action = {.sa_handler = interrupt, .sa_flags = (int)SA_RESETHAND};

    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGCHLD, SIG_DFL); // ignored by a parent, no child could be waited for
    return &interrupted;
}

void invar_live_say(void *payload, const char *line)
{
    (void)payload;
    fputs("invar: ", stderr);
    invar_plain_print(stderr, line);
    fputc('\n', stderr);
}

bool invar_live_ask(char *out, size_t size, FILE *shown, const char *question)
{
    fputs(question, shown);
    fflush(shown);
    if (!fgets(out, (int)size, stdin))
        return false;
    out[strcspn(out, "\n")] = '\0';
    return true;
}
