/*
 * ledger_make.c - makes a ledger for a shell test: tests/ledger.h from the command line.
 *
 *     ledger_make PATH [KEY=VALUE ...]
 *       steps=N name=TEXT kind=TEXT seed=N crash=N resume=N parent=UUID fork=N
 *       killed=1 finer=1       as in the spec
 *       fault=KIND:STEP[:POINT-OR-OTHER[:VALUE]]   fault=diverges:57:layer.1.mlp.out
 *       add=1                  one more run in a file that may exist
 *       series=ci|ab           the runs of a CI case or an experiment; add=1 is meant
 *       changes=1              with a series: with what there is to be found in it
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/ledger.h"

typedef struct request {
    invar_test_ledger spec;
    size_t n_faults;
    int64_t add, changes, killed, finer, seed;
    const char *series;
} request;

/*
 * Splits the text at its first colon. Returns the part after the colon, or an empty text if there
 * is none.
 */
static char *split_at_colon(char *text)
{
    char *colon = strchr(text, ':');

    if (!colon)
        return text + strlen(text);
    *colon = '\0';
    return colon + 1;
}

static invar_status parse_fault(request *to, char *text)
{
    char *step = split_at_colon(text), *location = split_at_colon(step),
         *value = split_at_colon(location), *end;
    invar_test_fault *target = &to->spec.faults[to->n_faults];

    if (to->n_faults++ == INVAR_TEST_LEDGER_FAULTS)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "more than %d faults", INVAR_TEST_LEDGER_FAULTS);
    INVAR_TRY(invar_test_fault_parse(&target->kind, text));
    target->step = strtoll(step, NULL, 10);
    target->other = strtoll(location, &end, 10);
    if (*end)
        target->point = location;
    target->value = strtod(value, NULL);
    return INVAR_OK;
}

static invar_status parse_argument(request *to, char *argument)
{
    char *value = strchr(argument, '=');
    const struct {
        const char *key;
        int64_t *number;
        const char **text;
    } keys[] = {{"steps", &to->spec.steps, NULL},   {"crash", &to->spec.crash, NULL},
                {"resume", &to->spec.resume, NULL}, {"fork", &to->spec.fork_step, NULL},
                {"seed", &to->seed, NULL},          {"killed", &to->killed, NULL},
                {"finer", &to->finer, NULL},        {"add", &to->add, NULL},
                {"changes", &to->changes, NULL},    {"name", NULL, &to->spec.name},
                {"kind", NULL, &to->spec.kind},     {"parent", NULL, &to->spec.parent},
                {"series", NULL, &to->series}};

    if (!value)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "'%s': expected KEY=VALUE", argument);
    *value++ = '\0';
    if (strcmp(argument, "fault") == 0)
        return parse_fault(to, value);
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        if (strcmp(argument, keys[i].key) != 0)
            continue;
        if (keys[i].number)
            *keys[i].number = strtoll(value, NULL, 10);
        else
            *keys[i].text = value;
        return INVAR_OK;
    }
    return INVAR_FAIL(INVAR_E_INVALID, 0, "no key '%s'", argument);
}

static invar_status write_ledger(const char *path, request *from)
{
    invar_test_ledger *spec = &from->spec;

    spec->seed = (uint64_t)from->seed;
    spec->killed = from->killed != 0;
    spec->finer = from->finer != 0;
    if (from->series && strcmp(from->series, "ci") == 0)
        return invar_test_ledger_ci(path, spec->steps, from->changes != 0);
    if (from->series && strcmp(from->series, "ab") == 0)
        return invar_test_ledger_ab(path, spec->steps, from->changes != 0);
    if (from->series)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "no series '%s'", from->series);
    return from->add ? invar_test_ledger_add(path, spec) : invar_test_ledger_write(path, spec);
}

int main(int argc, char **argv)
{
    request options = {.spec = {.steps = 100}};
    invar_status status = INVAR_OK;

    if (argc < 2) {
        fprintf(stderr, "usage: ledger_make PATH [KEY=VALUE ...]\n");
        return 129;
    }
    for (int i = 2; i < argc && status == INVAR_OK; i++)
        status = parse_argument(&options, argv[i]);
    if (status == INVAR_OK)
        status = write_ledger(argv[1], &options);
    if (status == INVAR_OK)
        return 0;
    fprintf(stderr, "ledger_make: %s\n", invar_error_last()->message);
    return 2;
}
