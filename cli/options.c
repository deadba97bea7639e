/*
 * options.c - command-line options, strictly read.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/pool.h"
#include "cli/verb.h"

#include "base/invar_banned.h"

static const invar_option *find(const invar_option *options, const char *name, size_t length)
{
    for (; options->name; options++)
        if (strlen(options->name) == length && strncmp(options->name, name, length) == 0)
            return options;
    return NULL;
}

static invar_status set_int(const invar_option *option, const char *text)
{
    char *end;
    long long value;

    errno = 0;
    value = strtoll(text, &end, 10);
    if (end == text || *end != '\0' || (errno != 0 && errno != ERANGE))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "--%s: '%s' is not a whole number", option->name,
                          text);
    if (errno == ERANGE || value < option->low || value > option->high)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "--%s: %s; expected %" PRId64 " to %" PRId64,
                          option->name, text, option->low, option->high);
    *(int64_t *)option->value = value;
    return INVAR_OK;
}

invar_option invar_option_threads(int64_t *value, const char *help)
{
    return (invar_option){.name = "threads",
                          .type = INVAR_OPTION_INT,
                          .value = value,
                          .metavar = "N",
                          .help = help,
                          .low = 1,
                          .high = INVAR_POOL_MAX_THREADS};
}

invar_status invar_options_parse(const invar_option *options, int argc, char **argv)
{
    for (int i = 0; i < argc; i++) {
        const char *name = argv[i], *value, *equals;
        const invar_option *option;
        size_t length;

        if (strncmp(name, "--", 2) != 0 || name[2] == '\0')
            return INVAR_FAIL(INVAR_E_INVALID, 0, "unexpected argument '%s'", name);
        name += 2;
        equals = strchr(name, '=');
        length = equals ? (size_t)(equals - name) : strlen(name);
        option = find(options, name, length);
        if (!option)
            return INVAR_FAIL(INVAR_E_INVALID, 0, "unknown option '%s'", argv[i]);
        if (option->type == INVAR_OPTION_FLAG) {
            if (equals)
                return INVAR_FAIL(INVAR_E_INVALID, 0, "--%s takes no value", option->name);
            *(bool *)option->value = true;
            continue;
        }
        value = equals ? equals + 1 : i + 1 < argc ? argv[++i] : NULL;
        if (!value)
            return INVAR_FAIL(INVAR_E_INVALID, 0, "--%s needs a value", option->name);
        if (option->type == INVAR_OPTION_INT)
            INVAR_TRY(set_int(option, value));
        else
            *(const char **)option->value = value;
    }
    return INVAR_OK;
}

void invar_options_help(const invar_option *options)
{
    for (; options->name; options++)
        printf("  --%s%s%-*s %s\n", options->name, options->metavar ? " " : "",
               (int)(18 - strlen(options->name) - (options->metavar ? 1 : 0)),
               options->metavar ? options->metavar : "", options->help);
}

int invar_report_error(void)
{
    const invar_error *error = invar_error_last();

    fprintf(stderr, "invar: %s\n", error->message);
    switch (error->status) {
    case INVAR_E_INVALID: return INVAR_EXIT_USAGE;
    case INVAR_E_MISMATCH: return INVAR_EXIT_DIFFERENT;
    default: return INVAR_EXIT_TROUBLE;
    }
}

int64_t invar_default_threads(void)
{
    long n = sysconf(_SC_NPROCESSORS_ONLN);

    return n < 1 ? 1 : n > 256 ? 256 : n;
}
