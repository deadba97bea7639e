/*
 * ledger_build.c - fuzz target: the provenance files of a program, with any bytes.
 *
 * The input is both PROGRAM.build and PROGRAM.build.diff. Reading them must never fail. Each fact
 * has a unique key and is one line of text; a diff is stored only if the build is known.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdbool.h>
#include <string.h>

#include "base/text.h"
#include "ledger/provenance.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/scratch.h"

static void check_facts(const invar_provenance *p, bool *known_out)
{
    size_t count;
    const invar_ledger_fact *facts = invar_provenance_facts(&count, p);
    bool dirty = false, problem = false;

    for (size_t i = 0; i < count; i++) {
        bool build = strcmp(facts[i].scope, "build") == 0;

        INVAR_CHECK(build || strcmp(facts[i].scope, "host") == 0 ||
                    strcmp(facts[i].scope, "gpu") == 0);
        for (size_t j = 0; j < i; j++)
            INVAR_CHECK(strcmp(facts[j].scope, facts[i].scope) != 0 ||
                        strcmp(facts[j].key, facts[i].key) != 0);
        for (const char *c = facts[i].value; *c; c += invar_text_char(c, strlen(c)))
            INVAR_CHECK(invar_text_char(c, strlen(c)) > 0);
        dirty = dirty || (build && strcmp(facts[i].key, "dirty") == 0);
        problem = problem || (build && strcmp(facts[i].key, "problem") == 0);
    }
    INVAR_CHECK(dirty);
    *known_out = !problem;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char build[FUZZ_PATH_SIZE], diff[FUZZ_PATH_SIZE];
    const invar_ledger_object *object;
    invar_provenance *p;
    size_t objects;
    bool known;

    fuzz_path(build, "program.build");
    fuzz_path(diff, "program.build.diff");
    fuzz_write(build, data, size);
    fuzz_write(diff, data, size);
    INVAR_CHECK(invar_provenance_gather(&p, build) == INVAR_OK);
    check_facts(p, &known);
    object = invar_provenance_objects(&objects, p);
    INVAR_CHECK(objects == 0 || known);
    if (objects > 0)
        INVAR_CHECK(object->bytes == size && memcmp(object->data, data, size) == 0);
    invar_provenance_free(p);
    return 0;
}
