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

/* ---- pre-tokenizers -------------------------------------------------------------------------- */

static invar_status add_step(invar_pipeline *out, const input *in, invar_pre_step step)
{
    if (out->n_steps == INVAR_PRE_STEPS_MAX)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0, "%s: more than %d pre-tokenizers", in->where,
                          INVAR_PRE_STEPS_MAX);
    out->steps[out->n_steps++] = step;
    return INVAR_OK;
}

static invar_status add_splitter(invar_pipeline *out, const input *in, invar_pattern pattern,
                                 bool invert, invar_behavior behavior)
{
    return add_step(out, in, (invar_pre_step){INVAR_PRE_STEP_SPLIT, {pattern, invert, behavior}});
}

static invar_status read_byte_level(invar_pipeline *out, const input *in, const json_t *part)
{
    bool prefix_space, use_regex;

    INVAR_TRY(invar_json_bool(&prefix_space, part, "add_prefix_space", in->where));
    INVAR_TRY(flag(&use_regex, in, part, "use_regex", true));
    if (prefix_space)
        INVAR_TRY(add_step(out, in, (invar_pre_step){.kind = INVAR_PRE_STEP_SPACE}));
    return use_regex ? add_splitter(out, in, INVAR_PATTERN_GPT2, false, INVAR_BEHAVIOR_ISOLATED)
                     : INVAR_OK;
}

static invar_status read_split(invar_pipeline *out, const input *in, const json_t *part)
{
    const char *name, *regex;
    invar_behavior behavior;
    invar_pattern pattern;
    bool invert;

    INVAR_TRY(invar_json_string(&name, part, "behavior", in->where));
    if (!invar_behavior_find(&behavior, name))
        return unknown(in, "pre_tokenizer's behavior", name);
    INVAR_TRY(invar_json_bool(&invert, part, "invert", in->where));
    INVAR_TRY(invar_json_string(&regex, json_object_get(part, "pattern"), "Regex", in->where));
    if (!invar_pattern_find(&pattern, regex))
        return unknown(in, "pre_tokenizer's pattern", regex);
    return add_splitter(out, in, pattern, invert, behavior);
}

static invar_status read_digits(invar_pipeline *out, const input *in, const json_t *part)
{
    bool individual;

    INVAR_TRY(invar_json_bool(&individual, part, "individual_digits", in->where));
    return add_splitter(out, in, INVAR_PATTERN_DIGIT, false,
                        individual ? INVAR_BEHAVIOR_ISOLATED : INVAR_BEHAVIOR_CONTIGUOUS);
}

/* ByteLevel must come last: it spells bytes as characters, which the steps after it would see. */
static invar_status read_pre_tokenizer(invar_pipeline *out, const input *in, const json_t *part,
                                       bool last)
{
    const json_t *list = json_object_get(part, "pretokenizers");
    const char *type;
    size_t count = json_array_size(list);

    INVAR_TRY(type_of(&type, in, part, "pre_tokenizer"));
    if (strcmp(type, "ByteLevel") == 0 && last)
        return read_byte_level(out, in, part);
    if (strcmp(type, "Split") == 0 && !last)
        return read_split(out, in, part);
    if (strcmp(type, "Digits") == 0 && !last)
        return read_digits(out, in, part);
    if (strcmp(type, "Sequence") != 0 || count == 0)
        return unknown(in, last ? "the last pre_tokenizer" : "pre_tokenizer", type);
    for (size_t i = 0; i < count; i++)
        INVAR_TRY(read_pre_tokenizer(out, in, json_array_get(list, i), last && i + 1 == count));
    return INVAR_OK;
}

/* ---- post-processors ------------------------------------------------------------------------- */

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

    *out = (invar_pipeline){0};
    if (!json_is_object(root))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: not a JSON object", where);
    INVAR_TRY(must_be_null(&in, "truncation"));
    INVAR_TRY(must_be_null(&in, "padding"));
    INVAR_TRY(read_normalizer(out, &in));
    INVAR_TRY(read_pre_tokenizer(out, &in, json_object_get(root, "pre_tokenizer"), true));
    INVAR_TRY(check_processor(&in, json_object_get(root, "post_processor"), false));
    INVAR_TRY(type_of(&decoder, &in, json_object_get(root, "decoder"), "decoder"));
    return strcmp(decoder, "ByteLevel") == 0 ? INVAR_OK : unknown(&in, "decoder", decoder);
}
