/*
 * interactive.c - clean stop on signals, and messages and questions of long-running commands.
 *
 * The first SIGINT, SIGTERM, SIGHUP or SIGXFSZ sets a flag that the command polls; a second one
 * ends the process by the default action. The handler uses only async-signal-safe calls: the
 * message is formatted beforehand, and `caught` is written after `first` with release order,
 * because other threads read it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/interactive.h"

#include <errno.h>
#include <stdbool.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "cli/safe_text.h"

#include "base/invar_banned.h"

/* `timeout` and a closing terminal send a request twice, within this time */
#define TOGETHER_NS 200000000

static volatile sig_atomic_t caught;
static struct timespec first; // written before `caught`
static char message[256];
static size_t message_bytes;

static bool is_second_request(void)
{
    struct timespec now;

    (void)clock_gettime(CLOCK_MONOTONIC, &now);
    return (now.tv_sec - first.tv_sec) * 1000000000 + (now.tv_nsec - first.tv_nsec) > TOGETHER_NS;
}

/* Ends the process by the default action once the handler has returned. */
static void raise_default_signal(int number)
{
    (void)signal(number, SIG_DFL);
    (void)raise(number);
}

static void handle_signal(int number)
{
    static const char limit[] = "invar: a file has reached the size that is allowed (ulimit -f)\n";
    int before = errno; // errno of the interrupted code

    if (invar_interactive_caught()) {
        if (number != SIGXFSZ && is_second_request())
            raise_default_signal(number);
        return;
    }
    (void)clock_gettime(CLOCK_MONOTONIC, &first);
    __atomic_store_n(&caught, number, __ATOMIC_RELEASE); // other threads read the flag
    if ((number != SIGXFSZ || write(STDERR_FILENO, limit, sizeof limit - 1) >= 0) &&
        write(STDERR_FILENO, message, message_bytes) >= 0)
        return;
    errno = before; // no reader; the interrupted code must see its errno
}

/* Keeps a signal ignored if the parent process ignored it, as nohup does. */
static void catch_unless_ignored(int number, const struct sigaction *action)
{
    struct sigaction before;

    if (sigaction(number, NULL, &before) == 0 && before.sa_handler != SIG_IGN)
        (void)sigaction(number, action, NULL);
}

const volatile sig_atomic_t *invar_interactive_catch_signals(const char *what)
{
    // no SA_RESTART, so that a signal interrupts the wait for an answer
    const struct sigaction action = {.sa_handler = handle_signal};
    int bytes =
        what ? snprintf(message, sizeof message, "%sinvar: %s; a second Ctrl-C ends at once\n",
                        isatty(STDERR_FILENO) ? "\n" : "", what)
             : 0;

    message_bytes = (size_t)bytes < sizeof message ? (size_t)bytes : sizeof message - 1;
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    catch_unless_ignored(SIGHUP, &action);
    catch_unless_ignored(SIGXFSZ, &action);
    (void)signal(SIGPIPE, SIG_IGN);
    // children cannot be waited for if the parent process ignored SIGCHLD
    (void)signal(SIGCHLD, SIG_DFL);
    return &caught;
}

void invar_interactive_release(void)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP};
    struct sigaction now;

    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (sigaction(numbers[i], NULL, &now) == 0 && now.sa_handler == handle_signal)
            (void)signal(numbers[i], SIG_DFL);
}

int invar_interactive_caught(void)
{
    return __atomic_load_n(&caught, __ATOMIC_ACQUIRE);
}

void invar_interactive_print(void *payload, const char *line)
{
    (void)payload;
    fputs("invar: ", stderr);
    invar_safe_text_print(stderr, line);
    fputc('\n', stderr);
}

bool invar_interactive_ask(char *out, size_t size, FILE *shown, const char *question)
{
    fputs(question, shown);
    fflush(shown);
    if (!fgets(out, (int)size, stdin))
        return false;
    out[strcspn(out, "\n")] = '\0';
    return true;
}
