/*
 * golden.c - fuzz target: the reader of goldens on any bytes.
 *
 * The bytes are rejected with a proper message, or are exactly the text that is written for their
 * content. An accepted golden is compared with itself and gets one more acceptance.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "ledger/view/golden/golden.h"

#include <string.h>

#include "base/alloc.h"
#include "tests/fuzz/fuzz.h"

static void check_refusal(invar_status status)
{
    const char *message = invar_error_last()->message;

    INVAR_CHECK(status == INVAR_E_CORRUPT || status == INVAR_E_UNSUPPORTED);
    INVAR_CHECK(strncmp(message, "fuzz", 4) == 0 && strstr(message, "record it again"));
    for (; *message; message++)
        INVAR_CHECK((unsigned char)*message >= 0x20 && *message != 0x7F);
}

static void check_golden(const invar_golden *golden, const uint8_t *data, size_t size)
{
    invar_golden_comparison c;
    invar_golden *accepted;
    char *text;
    size_t bytes;

    INVAR_CHECK(invar_golden_print(&text, &bytes, golden) == INVAR_OK);
    INVAR_CHECK(bytes == size && memcmp(text, data, size) == 0);
    invar_free(text);
    invar_golden_compare(&c, golden, golden);
    INVAR_CHECK(c.verdict == (golden->n_steps ? INVAR_GOLDEN_SAME : INVAR_GOLDEN_NOTHING));
    INVAR_CHECK(c.ops_differ == 0 && c.same_identity && c.same_manifest);
    if (golden->n_accepted == INVAR_GOLDEN_ACCEPTED)
        return;
    INVAR_CHECK(invar_golden_accept(&accepted, golden, golden, "somebody") == INVAR_OK);
    INVAR_CHECK(accepted->n_accepted == golden->n_accepted + 1);
    INVAR_CHECK(accepted->first_line == golden->first_line + 1 &&
                accepted->n_steps == golden->n_steps);
    invar_golden_free(accepted);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    invar_golden *golden;
    invar_status status = invar_golden_parse(&golden, "fuzz", (const char *)data, size);

    if (status != INVAR_OK) {
        check_refusal(status);
        return 0;
    }
    check_golden(golden, data, size);
    invar_golden_free(golden);
    return 0;
}
