/*
 * ledger_seal.c - fuzz target: the line of a seal, on any bytes.
 *
 * An input that begins with '+' is a list of changes (position, new byte) to the true seal of a
 * small ledger; any other input is the line itself. Only the true line may pass the check.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdlib.h>
#include <string.h>

#include "ledger/ledger.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/scratch.h"
#include "tests/ledger.h"

static invar_ledger *ledger;
static char seal[INVAR_LEDGER_SEAL_SIZE];

static void make_ledger(void)
{
    char path[FUZZ_PATH_SIZE];

    fuzz_path(path, "ledger.db");
    INVAR_CHECK(invar_test_ledger_write(path, &(invar_test_ledger){.steps = 2}) == INVAR_OK);
    INVAR_CHECK(invar_ledger_open(&ledger, path, NULL) == INVAR_OK);
    INVAR_CHECK(invar_ledger_seal(seal, ledger, 1) == INVAR_OK);
    INVAR_CHECK(invar_ledger_seal_check(ledger, seal) == INVAR_OK);
}

/* Returns true if `line` is the true seal, apart from white space at its end. */
static bool is_true_seal(const char *line)
{
    size_t length = strlen(seal);

    return strncmp(line, seal, length) == 0 &&
           strspn(line + length, "\r\n ") == strlen(line + length);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char *line = malloc(size + sizeof seal);
    invar_status status;

    if (!ledger)
        make_ledger();
    INVAR_CHECK(line);
    if (size > 0 && data[0] == '+') {
        memcpy(line, seal, sizeof seal);
        for (size_t i = 1; i + 1 < size; i += 2)
            line[data[i] % (sizeof seal - 1)] = (char)data[i + 1];
    } else {
        memcpy(line, data, size);
        line[size] = '\0';
    }
    status = invar_ledger_seal_check(ledger, line);
    INVAR_CHECK((status == INVAR_OK) == is_true_seal(line));
    if (status != INVAR_OK) {
        INVAR_CHECK(status == INVAR_E_INVALID || status == INVAR_E_NOTFOUND ||
                    status == INVAR_E_MISMATCH);
        fuzz_check_failure(status);
    }
    free(line);
    return 0;
}
