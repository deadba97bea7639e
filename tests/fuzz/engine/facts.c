/*
 * facts.c - fuzz target: the facts of INVAR_FACTS on any bytes.
 *
 * Whatever the bytes are, they are refused with a proper message or accepted; what was accepted,
 * written again, is the same text but for a last line end.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/user_facts.h"

#include <string.h>

#include "tests/fuzz/fuzz.h"

static void check_refusal(invar_status status)
{
    const char *message = invar_error_last()->message;

    INVAR_CHECK(status == INVAR_E_INVALID);
    INVAR_CHECK(strncmp(message, "INVAR_FACTS", 11) == 0);
    for (; *message; message++)
        INVAR_CHECK((unsigned char)*message >= 0x20 && *message != 0x7F);
}

/* Takes `word` off the text. */
static void expect(const char **at, const char *end, const char *word)
{
    size_t bytes = strlen(word);

    INVAR_CHECK((size_t)(end - *at) >= bytes && memcmp(*at, word, bytes) == 0);
    *at += bytes;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *at = (const char *)data, *end = at + size;
    invar_user_facts facts;
    invar_status status = invar_user_facts_parse(&facts, at, size);

    if (status != INVAR_OK) {
        check_refusal(status);
        return 0;
    }
    INVAR_CHECK(facts.count <= INVAR_USER_FACTS_MAX);
    for (size_t i = 0; i < facts.count; i++) {
        if (i > 0)
            expect(&at, end, "\n");
        expect(&at, end, facts.items[i].scope);
        expect(&at, end, ".");
        expect(&at, end, facts.items[i].key);
        expect(&at, end, "=");
        expect(&at, end, facts.items[i].value);
    }
    INVAR_CHECK(at == end || (at + 1 == end && *at == '\n'));
    invar_user_facts_release(&facts);
    return 0;
}
