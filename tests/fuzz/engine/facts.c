/*
 * facts.c - fuzz target: the environment variable INVAR_FACTS, on any bytes.
 *
 * The text is rejected with a proper message, or the accepted facts, written again, are the same
 * text except for a newline at the end.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/run/identity/user_facts.h"

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

/* Skips `word`, which must come next in the text. */
static void skip_word(const char **text, const char *end, const char *word)
{
    size_t bytes = strlen(word);

    INVAR_CHECK((size_t)(end - *text) >= bytes && memcmp(*text, word, bytes) == 0);
    *text += bytes;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data, *end = text + size;
    invar_user_facts facts;
    invar_status status = invar_user_facts_parse(&facts, text, size);

    if (status != INVAR_OK) {
        check_refusal(status);
        return 0;
    }
    INVAR_CHECK(facts.count <= INVAR_USER_FACTS_MAX);
    for (size_t i = 0; i < facts.count; i++) {
        if (i > 0)
            skip_word(&text, end, "\n");
        skip_word(&text, end, facts.items[i].scope);
        skip_word(&text, end, ".");
        skip_word(&text, end, facts.items[i].key);
        skip_word(&text, end, "=");
        skip_word(&text, end, facts.items[i].value);
    }
    INVAR_CHECK(text == end || (text + 1 == end && *text == '\n'));
    invar_user_facts_release(&facts);
    return 0;
}
