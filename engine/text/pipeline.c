/*
 * pipeline.c - the parts of tokenizer.json around its model: known, without effect, or refused.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/text/pipeline.h"

#include <stdio.h>
#include <string.h>

#include "base/text.h"

#include "base/invar_banned.h"

#define NAME_SIZE 512 /* for messages: where in the file */

typedef struct input {
    const json_t *root;
    const char *where;
} input;

static const char *quoted(char out[INVAR_TEXT_QUOTE_SIZE], const char *text)
{
    invar_text_quote(out, INVAR_TEXT_QUOTE_SIZE, text, strlen(text));
    return out;
}

static invar_status unknown(const input *in, const char *part, const char *what)
{
    char quote[INVAR_TEXT_QUOTE_SIZE];

    return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0, "%s: %s \"%s\" is not one that Invar knows",
                      in->where, part, quoted(quote, what));
}

/* The member "type" of a part; "" when the part is missing or null. */
static invar_status type_of(const char **out, const input *in, const json_t *part, const char *name)
{
    char where[NAME_SIZE];

    *out = "";
    if (!part || json_is_null(part))
        return INVAR_OK;
    (void)snprintf(where, sizeof where, "%s: %s", in->where, name);
    return invar_json_string(out, part, "type", where);
}

/* An optional switch. */
static invar_status flag(bool *out, const input *in, const json_t *object, const char *key,
                         bool fallback)
{
    *out = fallback;
    return invar_json_has(object, key) ? invar_json_bool(out, object, key, in->where) : INVAR_OK;
}

static invar_status must_be_null(const input *in, const char *key)
{
    if (invar_json_has(in->root, key))
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                          "%s: %s would change the tokens: set it to null in the file", in->where,
                          key);
    return INVAR_OK;
}

static invar_status read_normalizer(invar_pipeline *out, const input *in)
{
    const json_t *normalizer = json_object_get(in->root, "normalizer");
    const char *type;

    INVAR_TRY(type_of(&type, in, normalizer, "normalizer"));
    out->compose = strcmp(type, "NFC") == 0;
    return out->compose || !type[0] ? INVAR_OK : unknown(in, "normalizer", type);
}

/* ByteLevel; `alone`: not after a Split, where a prefix or its own expression would act on words */
static invar_status read_byte_level(invar_pipeline *out, const input *in, const json_t *part,
                                    bool alone)
{
    const char *type;
    bool use_regex;

    INVAR_TRY(type_of(&type, in, part, "pre_tokenizer"));
    if (strcmp(type, "ByteLevel") != 0)
        return unknown(in, "pre_tokenizer", type);
    INVAR_TRY(invar_json_bool(&out->prefix_space, part, "add_prefix_space", in->where));
    INVAR_TRY(flag(&use_regex, in, part, "use_regex", true));
    if (alone)
        out->pattern = use_regex ? INVAR_PATTERN_GPT2 : INVAR_PATTERN_WHOLE;
    else if (use_regex || out->prefix_space)
        return unknown(in, "pre_tokenizer", "Split and ByteLevel with use_regex or prefix space");
    return INVAR_OK;
}

static invar_status read_split(invar_pipeline *out, const input *in, const json_t *part)
{
    const char *type, *behavior, *regex;
    bool invert;

    INVAR_TRY(type_of(&type, in, part, "pre_tokenizer"));
    if (strcmp(type, "Split") != 0)
        return unknown(in, "pre_tokenizer", type);
    INVAR_TRY(invar_json_string(&behavior, part, "behavior", in->where));
    INVAR_TRY(invar_json_bool(&invert, part, "invert", in->where));
    // the known expressions match everything, so that these two come to the same
    if (strcmp(behavior, invert ? "Removed" : "Isolated") != 0)
        return unknown(in, "pre_tokenizer's behavior", behavior);
    INVAR_TRY(invar_json_string(&regex, json_object_get(part, "pattern"), "Regex", in->where));
    return invar_pattern_find(&out->pattern, regex) ? INVAR_OK
                                                    : unknown(in, "pre_tokenizer's pattern", regex);
}

static invar_status read_pre_tokenizer(invar_pipeline *out, const input *in)
{
    const json_t *part = json_object_get(in->root, "pre_tokenizer");
    const json_t *list = json_object_get(part, "pretokenizers");
    const char *type;

    INVAR_TRY(type_of(&type, in, part, "pre_tokenizer"));
    if (strcmp(type, "Sequence") != 0)
        return read_byte_level(out, in, part, true);
    if (json_array_size(list) != 2)
        return unknown(in, "pre_tokenizer", "a Sequence that is not Split and ByteLevel");
    INVAR_TRY(read_split(out, in, json_array_get(list, 0)));
    return read_byte_level(out, in, json_array_get(list, 1), false);
}

/* Without special tokens a template is without effect when it is the sequence, once. */
static invar_status check_template(const input *in, const json_t *part)
{
    const json_t *list = json_object_get(part, "single"), *item;
    int sequences = 0;
    size_t i;

    json_array_foreach(list, i, item)
    {
        bool sequence = json_object_get(item, "Sequence") != NULL;
        sequences += sequence;
        if (!sequence && !json_object_get(item, "SpecialToken"))
            return unknown(in, "post_processor", "TemplateProcessing with other pieces");
    }
    return sequences == 1 ? INVAR_OK
                          : unknown(in, "post_processor",
                                    "TemplateProcessing without the sequence, or with it twice");
}

static invar_status check_processor(const input *in, const json_t *part, bool nested)
{
    const json_t *list = json_object_get(part, "processors"), *item;
    const char *type;
    size_t i;

    INVAR_TRY(type_of(&type, in, part, "post_processor"));
    if (!type[0] || strcmp(type, "ByteLevel") == 0)
        return INVAR_OK;
    if (strcmp(type, "TemplateProcessing") == 0)
        return check_template(in, part);
    if (strcmp(type, "Sequence") != 0 || nested || !json_is_array(list))
        return unknown(in, "post_processor", type);
    json_array_foreach(list, i, item) INVAR_TRY(check_processor(in, item, true));
    return INVAR_OK;
}

invar_status invar_pipeline_read(invar_pipeline *out, const json_t *root, const char *where)
{
    const input in = {root, where};
    const char *decoder;

    *out = (invar_pipeline){.pattern = INVAR_PATTERN_WHOLE};
    if (!json_is_object(root))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: not a JSON object", where);
    INVAR_TRY(must_be_null(&in, "truncation"));
    INVAR_TRY(must_be_null(&in, "padding"));
    INVAR_TRY(read_normalizer(out, &in));
    INVAR_TRY(read_pre_tokenizer(out, &in));
    INVAR_TRY(check_processor(&in, json_object_get(root, "post_processor"), false));
    INVAR_TRY(type_of(&decoder, &in, json_object_get(root, "decoder"), "decoder"));
    return strcmp(decoder, "ByteLevel") == 0 ? INVAR_OK : unknown(&in, "decoder", decoder);
}
