/*
 * kept_sample.c - fuzz target: the stored bytes of a sample, as the report reads them.
 *
 * They become lists of bounded and equal length, or are rejected with a reason. Bytes that do not
 * begin like gzip are packed first, so that mutations reach the JSON inside.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <string.h>

#include "base/alloc.h"
#include "base/zip/gzip.h"
#include "ledger/view/report/internal.h"
#include "tests/fuzz/fuzz.h"

enum { TOKENS = 6, TEXT_BYTES = 256 };

static void check_lists(const json_t *object)
{
    static const char *const names[] = {"response", "logp", "credit"};
    size_t count = json_array_size(json_object_get(object, names[0])), i;
    json_t *value;

    INVAR_CHECK(count <= TOKENS);
    for (size_t k = 0; k < sizeof names / sizeof *names; k++) {
        const json_t *list = json_object_get(object, names[k]);
        INVAR_CHECK(json_is_array(list) && json_array_size(list) == count);
        json_array_foreach(list, i, value)
        {
            INVAR_CHECK(k == 0 ? json_is_string(value) && json_string_length(value) < TEXT_BYTES
                               : json_is_integer(value) || json_is_null(value));
        }
    }
    json_array_foreach(json_object_get(object, "inserted"), i, value)
    {
        INVAR_CHECK((size_t)json_integer_value(value) < count);
    }
    INVAR_CHECK(json_string_length(json_object_get(object, "text")) < TEXT_BYTES);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    json_t *object = json_object();
    const char *bytes = (const char *)data, *reason;
    size_t expanded;
    char *packed_bytes = NULL;

    if (!invar_gzip_is(bytes, size)) {
        INVAR_CHECK(invar_gzip_pack(&packed_bytes, &size, bytes, size) == INVAR_OK);
        bytes = packed_bytes;
    }
    INVAR_CHECK(object);
    INVAR_CHECK(invar_report_add_kept(object, &reason, &expanded, bytes, size, TOKENS) == INVAR_OK);
    if (reason)
        INVAR_CHECK(json_object_size(object) == 0);
    else
        check_lists(object);
    json_decref(object);
    invar_free(packed_bytes);
    return 0;
}
