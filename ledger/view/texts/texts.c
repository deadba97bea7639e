/*
 * texts.c - expands and checks the kept samples of a ledger, whose data are untrusted.
 *
 * The data are JSON in gzip, as docs/formats.md describes. A sample that differs from that
 * description is damaged: readers name it and continue with the next one.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "ledger/view/texts/texts.h"

#include "base/alloc.h"
#include "base/zip/gzip.h"

#include "base/invar_banned.h"

enum { GZIP_RATIO = 1032 }; // largest ratio of expanded to compressed bytes

/*
 * Parses twice: jansson leaves bytes out of a string that it has no memory for, without an error.
 * *out is NULL if the text is not JSON.
 */
static invar_status parse_twice(json_t **out, const char *text, size_t bytes)
{
    const size_t flags = JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL;
    json_t *again = json_loadb(text, bytes, flags, NULL);

    *out = json_loadb(text, bytes, flags, NULL);
    bool same = again == *out || json_equal(again, *out); // both are NULL
    json_decref(again);
    if (same)
        return INVAR_OK;
    json_decref(*out);
    *out = NULL;
    return INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for a kept sample");
}

/* Lists with one element per token of the response, and the list of the prompt's tokens. */
static const struct {
    const char *key;
    json_type type; /* JSON_REAL stands for any number and null */
} lists[] = {{"response", JSON_STRING}, {"tokens", JSON_INTEGER}, {"logp", JSON_REAL},
             {"advantage", JSON_REAL},  {"drawn", JSON_INTEGER},  {"prompt_tokens", JSON_INTEGER}};

static bool is_list(const json_t *list, json_type type)
{
    json_t *value;
    size_t i;

    json_array_foreach(list, i, value)
    {
        if (json_typeof(value) != type &&
            (type != JSON_REAL || (!json_is_number(value) && !json_is_null(value))))
            return false;
    }
    return json_is_array(list);
}

static bool is_sample(const json_t *members)
{
    const json_t *label = json_object_get(members, "label");
    const json_t *label_bytes = json_object_get(members, "label_bytes");
    const json_t *group = json_object_get(members, "group");
    size_t count = json_array_size(json_object_get(members, lists[0].key));

    for (size_t k = 0; k < sizeof lists / sizeof *lists; k++) {
        const json_t *list = json_object_get(members, lists[k].key);
        bool response = k + 1 < sizeof lists / sizeof *lists;
        if (!is_list(list, lists[k].type) || (response && json_array_size(list) != count))
            return false;
    }
    return json_is_string(json_object_get(members, "prompt")) &&
           (!label || json_is_string(label)) && (!label_bytes || json_is_integer(label_bytes)) &&
           (!group || json_is_integer(group));
}

invar_status invar_texts_read(invar_texts_sample *out, const void *data, size_t bytes)
{
    *out = (invar_texts_sample){0};
    invar_status status = invar_gzip_expand(&out->text, &out->bytes, "a kept sample", data, bytes,
                                            INVAR_LEDGER_KEPT_SAMPLE_BYTES);
    if (status == INVAR_E_INVALID) {
        bool bounded = bytes < INVAR_LEDGER_KEPT_SAMPLE_BYTES / GZIP_RATIO;
        out->bytes = bounded ? bytes * GZIP_RATIO : INVAR_LEDGER_KEPT_SAMPLE_BYTES;
        out->why = "is no gzip data, or too much";
        invar_error_clear();
        return INVAR_OK;
    }
    if (status == INVAR_OK)
        status = parse_twice(&out->members, out->text, out->bytes);
    if (status == INVAR_OK && is_sample(out->members))
        return INVAR_OK;
    const char *why = out->members ? "is no sample" : "is no JSON";
    size_t expanded = out->bytes;
    invar_texts_release(out);
    *out = (invar_texts_sample){.bytes = expanded, .why = why};
    return status;
}

void invar_texts_release(invar_texts_sample *sample)
{
    json_decref(sample->members);
    invar_free(sample->text);
    *sample = (invar_texts_sample){0};
}
