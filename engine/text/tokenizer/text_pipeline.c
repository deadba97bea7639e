/*
 * text_pipeline.c - reads normalizer, pre-tokenizer, post-processor and decoder of tokenizer.json.
 *
 * Each component is translated to steps that reproduce the tokenizers library exactly, is known to
 * have no effect, or is rejected by name.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/text/tokenizer/text_pipeline.h"

#include <string.h>

#include "engine/text/tokenizer/component_json.h"

#include "base/invar_banned.h"

/* ---- normalizers ----------------------------------------------------------------------------- */

static bool find_form(invar_unicode_form *out, const char *type)
{
    static const char *const names[] = {
        [INVAR_UNICODE_NFC] = "NFC",
        [INVAR_UNICODE_NFD] = "NFD",
        [INVAR_UNICODE_NFKC] = "NFKC",
        [INVAR_UNICODE_NFKD] = "NFKD",
    };

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(type, names[i]) == 0) {
            *out = (invar_unicode_form)i;
            return true;
        }
    return false;
}

static invar_status read_normal_step(invar_normal_step *out, const invar_tokenizer_component *part,
                                     const char *type)
{
    const char *regex;

    if (find_form(&out->form, type)) {
        out->kind = INVAR_NORMAL_FORM;
    } else if (strcmp(type, "Lowercase") == 0) {
        out->kind = INVAR_NORMAL_LOWERCASE;
    } else if (strcmp(type, "StripAccents") == 0) {
        out->kind = INVAR_NORMAL_STRIP_ACCENTS;
    } else if (strcmp(type, "Strip") == 0) {
        out->kind = INVAR_NORMAL_STRIP;
        INVAR_TRY(invar_json_bool(&out->left, part->json, "strip_left", part->where));
        INVAR_TRY(invar_json_bool(&out->right, part->json, "strip_right", part->where));
    } else if (strcmp(type, "Prepend") == 0) {
        out->kind = INVAR_NORMAL_PREPEND;
        INVAR_TRY(invar_component_literal(&out->to, part, "prepend"));
    } else if (strcmp(type, "Replace") == 0) {
        out->kind = INVAR_NORMAL_REPLACE;
        INVAR_TRY(invar_component_pattern(&regex, &out->from, part));
        if (regex)
            return invar_component_unknown(part, regex);
        INVAR_TRY(invar_component_literal(&out->to, part, "content"));
    } else {
        return invar_component_unknown(part, type);
    }
    return INVAR_OK;
}

static invar_status read_normalizer(void *out, const invar_tokenizer_component *part,
                                    const char *type, bool last)
{
    invar_normalizer *normalizer = out;
    invar_normal_step step = {.kind = INVAR_NORMAL_FORM};

    (void)last;
    if (!type[0])
        return INVAR_OK;
    if (normalizer->n_steps == INVAR_NORMAL_STEPS_MAX)
        return invar_component_unknown(part, "a Sequence of so many");
    INVAR_TRY(read_normal_step(&step, part, type));
    normalizer->steps[normalizer->n_steps++] = step;
    return INVAR_OK;
}

/* ---- pre-tokenizers -------------------------------------------------------------------------- */

static invar_status add_step(invar_text_pipeline *out, const invar_tokenizer_component *part,
                             invar_pre_step step)
{
    if (out->n_steps == INVAR_PRE_STEPS_MAX)
        return invar_component_unknown(part, "a Sequence of so many");
    out->steps[out->n_steps++] = step;
    return INVAR_OK;
}

static invar_status add_splitter(invar_text_pipeline *out, const invar_tokenizer_component *part,
                                 invar_splitter splitter)
{
    return add_step(out, part,
                    (invar_pre_step){.kind = INVAR_PRE_STEP_SPLIT, .splitter = splitter});
}

static invar_status read_byte_level(invar_text_pipeline *out, const invar_tokenizer_component *part)
{
    const invar_pre_step prefix = {.kind = INVAR_PRE_STEP_PREFIX, .literal = {" ", 1}};
    bool prefix_space, use_regex;

    out->byte_level = true;
    INVAR_TRY(invar_json_bool(&prefix_space, part->json, "add_prefix_space", part->where));
    INVAR_TRY(invar_component_flag(&use_regex, part, "use_regex", true));
    if (prefix_space)
        INVAR_TRY(add_step(out, part, prefix));
    return use_regex ? add_splitter(out, part,
                                    (invar_splitter){.pattern = INVAR_PATTERN_GPT2,
                                                     .behavior = INVAR_BEHAVIOR_ISOLATED})
                     : INVAR_OK;
}

static invar_status read_behavior(invar_behavior *out, const invar_tokenizer_component *part)
{
    const char *name;

    INVAR_TRY(invar_json_string(&name, part->json, "behavior", part->where));
    return invar_behavior_find(out, name) ? INVAR_OK : invar_component_unknown(part, name);
}

static invar_status read_split(invar_text_pipeline *out, const invar_tokenizer_component *part)
{
    invar_splitter splitter = {.pattern = INVAR_PATTERN_LITERAL};
    const char *regex;

    INVAR_TRY(read_behavior(&splitter.behavior, part));
    INVAR_TRY(invar_json_bool(&splitter.invert, part->json, "invert", part->where));
    INVAR_TRY(invar_component_pattern(&regex, &splitter.literal, part));
    if (regex && !invar_pattern_find(&splitter.pattern, regex))
        return invar_component_unknown(part, regex);
    return add_splitter(out, part, splitter);
}

static invar_status read_digits(invar_text_pipeline *out, const invar_tokenizer_component *part)
{
    invar_splitter splitter = {.pattern = INVAR_PATTERN_DIGIT};
    bool individual;

    INVAR_TRY(invar_json_bool(&individual, part->json, "individual_digits", part->where));
    splitter.behavior = individual ? INVAR_BEHAVIOR_ISOLATED : INVAR_BEHAVIOR_CONTIGUOUS;
    return add_splitter(out, part, splitter);
}

static invar_status read_punctuation(invar_text_pipeline *out,
                                     const invar_tokenizer_component *part)
{
    invar_splitter splitter = {.pattern = INVAR_PATTERN_PUNCTUATION,
                               .behavior = INVAR_BEHAVIOR_ISOLATED};

    if (invar_json_has(part->json, "behavior"))
        INVAR_TRY(read_behavior(&splitter.behavior, part));
    return add_splitter(out, part, splitter);
}

/* Reads prepend_scheme. Files of earlier releases have add_prefix_space instead. */
static invar_status read_scheme(invar_prepend *out, const invar_tokenizer_component *part)
{
    const char *scheme = "always";
    bool prefix;

    INVAR_TRY(invar_component_flag(&prefix, part, "add_prefix_space", true));
    if (!prefix)
        scheme = "never";
    if (invar_json_has(part->json, "prepend_scheme"))
        INVAR_TRY(invar_json_string(&scheme, part->json, "prepend_scheme", part->where));
    if (!prefix && strcmp(scheme, "never") != 0)
        return invar_component_unknown(part, "a prepend_scheme without add_prefix_space");
    *out = strcmp(scheme, "always") == 0  ? INVAR_PREPEND_ALWAYS
           : strcmp(scheme, "first") == 0 ? INVAR_PREPEND_FIRST
                                          : INVAR_PREPEND_NEVER;
    return *out == INVAR_PREPEND_NEVER && strcmp(scheme, "never") != 0
               ? invar_component_unknown(part, scheme)
               : INVAR_OK;
}

static bool has_metaspace(const invar_text_pipeline *pipeline)
{
    for (size_t i = 0; i < pipeline->n_steps; i++)
        if (pipeline->steps[i].kind == INVAR_PRE_STEP_METASPACE)
            return true;
    return false;
}

static invar_status read_metaspace(invar_text_pipeline *out, const invar_tokenizer_component *part)
{
    invar_pre_step step = {.kind = INVAR_PRE_STEP_METASPACE};
    bool split;

    INVAR_TRY(invar_component_char(&step.literal, part, "replacement"));
    INVAR_TRY(read_scheme(&step.prepend, part));
    INVAR_TRY(invar_component_flag(&split, part, "split", true));
    // the library uses the position in the original text, which is not known after a normalizer
    if (step.prepend == INVAR_PREPEND_FIRST && out->normalizer.n_steps > 0)
        return invar_component_unknown(part, "first, after a normalizer");
    if (has_metaspace(out))
        return invar_component_unknown(part, "Metaspace twice");
    INVAR_TRY(add_step(out, part, step));
    return split ? add_splitter(out, part,
                                (invar_splitter){.pattern = INVAR_PATTERN_LITERAL,
                                                 .literal = step.literal,
                                                 .behavior = INVAR_BEHAVIOR_MERGED_WITH_NEXT})
                 : INVAR_OK;
}

static invar_status read_pre_tokenizer(void *out, const invar_tokenizer_component *part,
                                       const char *type, bool last)
{
    if (!type[0])
        return INVAR_OK;
    // ByteLevel replaces bytes by characters, which later steps would see
    if (strcmp(type, "ByteLevel") == 0)
        return last ? read_byte_level(out, part)
                    : invar_component_unknown(part, "ByteLevel before others");
    if (strcmp(type, "Split") == 0)
        return read_split(out, part);
    if (strcmp(type, "Digits") == 0)
        return read_digits(out, part);
    if (strcmp(type, "Punctuation") == 0)
        return read_punctuation(out, part);
    if (strcmp(type, "Metaspace") == 0)
        return read_metaspace(out, part);
    return invar_component_unknown(part, type);
}

/* ---- post-processors ------------------------------------------------------------------------- */

/* Without special tokens, a template has no effect if it contains the sequence exactly once. */
static invar_status check_template(const invar_tokenizer_component *part)
{
    const json_t *list = json_object_get(part->json, "single"), *item;
    int sequences = 0;
    size_t i;

    json_array_foreach(list, i, item)
    {
        bool sequence = json_object_get(item, "Sequence") != NULL;
        sequences += sequence;
        if (!sequence && !json_object_get(item, "SpecialToken"))
            return invar_component_unknown(part, "TemplateProcessing with other pieces");
    }
    return sequences == 1 ? INVAR_OK
                          : invar_component_unknown(
                                part, "TemplateProcessing without the sequence, or with it twice");
}

/*
 * Accepts processors that add special tokens, which are not wanted, or change offsets, which are
 * not used.
 */
static invar_status check_processor(void *out, const invar_tokenizer_component *part,
                                    const char *type, bool last)
{
    static const char *const harmless[] = {"", "ByteLevel", "BertProcessing", "RobertaProcessing"};

    (void)out;
    (void)last;
    for (size_t i = 0; i < sizeof harmless / sizeof harmless[0]; i++)
        if (strcmp(type, harmless[i]) == 0)
            return INVAR_OK;
    return strcmp(type, "TemplateProcessing") == 0 ? check_template(part)
                                                   : invar_component_unknown(part, type);
}

/* ---- file ------------------------------------------------------------------------------------ */

static invar_status must_be_null(const json_t *root, const char *where, const char *key)
{
    if (invar_json_has(root, key))
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                          "%s: %s would change the tokens: set it to null in the file", where, key);
    return INVAR_OK;
}

static invar_status read_component(void *out, const json_t *root, const char *where,
                                   const char *name, const char *list,
                                   invar_component_reader_fn *read)
{
    const invar_tokenizer_component part = {where, name, json_object_get(root, name)};

    return invar_component_each(out, &part, list, read);
}

invar_status invar_text_pipeline_read(invar_text_pipeline *out, const json_t *root,
                                      const char *where)
{
    *out = (invar_text_pipeline){0};
    if (!json_is_object(root))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: not a JSON object", where);
    INVAR_TRY(must_be_null(root, where, "truncation"));
    INVAR_TRY(must_be_null(root, where, "padding"));
    INVAR_TRY(read_component(&out->normalizer, root, where, "normalizer", "normalizers",
                             read_normalizer));
    INVAR_TRY(
        read_component(out, root, where, "pre_tokenizer", "pretokenizers", read_pre_tokenizer));
    INVAR_TRY(read_component(NULL, root, where, "post_processor", "processors", check_processor));
    return invar_text_decoder_read(&out->decoder, json_object_get(root, "decoder"), where);
}
