/*
 * kept.c - kept samples of the ledgers that tests write; their texts contain markup.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/zip/gzip.h"
#include "tests/ledger/ledger_internal.h"

/* U+202E reverses the direction of the text after it; <!--, </script and & are markup in HTML. */
static const char form[] =
    "{\"group\":%" PRId64 ",\"label\":\"</b>42\\u0000\\u202e'\\\"\",\"prompt\":\"step %" PRId64
    " sample %d </script><script>alert(2)</script>"
    "\\u202etxt.exe\\n<b>&amp;\",\"prompt_tokens\":[1,2,3],"
    "\"response\":[\"<!--\",\" a\",\"\",\"\xC3\xA4\",\"</td>\"],\"tokens\":[4,5,6,7,8],"
    "\"logp\":[-0.125,-2.5,-0.0078125,null,-9.75],"
    "\"advantage\":[%d.5,%d.5,%d.5,%d.5,-1.25],\"drawn\":[1,1,1,0,1]}";

static const int samples[INVAR_TEST_KEPT] = {1, 6};

invar_status invar_test_kept_make(invar_test_kept *out, int64_t step)
{
    *out = (invar_test_kept){0};
    for (int i = 0; i < INVAR_TEST_KEPT; i++) {
        int n = (int)(step % 3);
        char text[1024], *data;
        size_t bytes =
            (size_t)snprintf(text, sizeof text, form, step / 2, step, samples[i], n, n, n, n);
        INVAR_TRY(invar_gzip_pack(&data, &out->items[i].bytes, text, bytes));
        out->items[i].sample = samples[i];
        out->items[i].data = data;
    }
    return INVAR_OK;
}

void invar_test_kept_release(invar_test_kept *kept)
{
    for (int i = 0; i < INVAR_TEST_KEPT; i++)
        invar_free((void *)(uintptr_t)kept->items[i].data);
}
