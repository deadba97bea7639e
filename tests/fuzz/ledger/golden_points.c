/*
 * golden_points.c - fuzz target: the reader of a golden's points on any bytes.
 *
 * Whatever the bytes are, they are refused with a proper message, or they are exactly what would be
 * written for their content, and differ nowhere from themselves.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/alloc.h"
#include "ledger/view/golden/golden.h"
#include "tests/fuzz/fuzz.h"

static void check_points(const invar_golden_points *points, const uint8_t *data, size_t size)
{
    invar_golden_divergence place;
    char *text;
    size_t bytes;

    INVAR_CHECK(invar_golden_points_print(&text, &bytes, points) == INVAR_OK);
    INVAR_CHECK(bytes == size && memcmp(text, data, size) == 0);
    invar_free(text);
    INVAR_CHECK(invar_golden_localise(&place, points, points, 0) == INVAR_OK);
    INVAR_CHECK(!place.known && place.n_changes == 0 && place.different == 0);
    INVAR_CHECK(place.equal == (points->n_values ? (int64_t)points->n_points : 0));
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
