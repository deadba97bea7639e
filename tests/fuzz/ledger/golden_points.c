/*
 * golden_points.c - fuzz target: the reader of a golden's points on any bytes.
 *
 * The bytes are rejected with a proper message, or are exactly the text that is written for their
 * content. A comparison of the points with themselves finds no difference.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/alloc.h"
#include "ledger/view/golden/golden.h"
#include "tests/fuzz/fuzz.h"

static void check_points(const invar_golden_points *points, const uint8_t *data, size_t size)
{
    invar_golden_divergence divergence;
    char *text;
    size_t bytes;

    INVAR_CHECK(invar_golden_points_print(&text, &bytes, points) == INVAR_OK);
    INVAR_CHECK(bytes == size && memcmp(text, data, size) == 0);
    invar_free(text);
    INVAR_CHECK(invar_golden_localize(&divergence, points, points, 0) == INVAR_OK);
    INVAR_CHECK(!divergence.known && divergence.n_changes == 0 && divergence.different == 0);
    INVAR_CHECK(divergence.equal == (points->n_values ? (int64_t)points->n_points : 0));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    invar_golden_points *points;
    invar_status status = invar_golden_points_parse(&points, "fuzz", (const char *)data, size);

    if (status != INVAR_OK) {
        INVAR_CHECK(status == INVAR_E_CORRUPT || status == INVAR_E_UNSUPPORTED);
        INVAR_CHECK(strncmp(invar_error_last()->message, "fuzz", 4) == 0);
        return 0;
    }
    check_points(points, data, size);
    invar_golden_points_free(points);
    return 0;
}
