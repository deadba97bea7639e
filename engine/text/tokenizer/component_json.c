/*
 * component_json.c - reads members of the components of tokenizer.json.
 *
 * All errors name the file and the kind of the component, so that a user finds the place in the
 * file.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/text/tokenizer/component_json.h"

#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/text.h"
#include "engine/text/unicode.h"

#include "base/invar_banned.h"

#define NAME_SIZE (INVAR_PATH_SHOWN_SIZE + 128) /* file name and kind of a component */

invar_status invar_component_type(const char **out, const invar_tokenizer_component *part)
{
    char where[NAME_SIZE];

    *out = "";
    if (!part->json || json_is_null(part->json))
        return INVAR_OK;
    (void)snprintf(where, sizeof where, "%s: %s", part->where, part->name);
    return invar_json_string(out, part->json, "type", where);
}

invar_status invar_component_unknown(const invar_tokenizer_component *part, const char *what)
{
    return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                      "%s: %s \"%s\" is not one that Invar knows; docs/models.md lists those",
                      part->where, part->name, INVAR_QUOTED(what));
}

invar_status invar_component_flag(bool *out, const invar_tokenizer_component *part, const char *key,
                                  bool fallback)
{
    *out = fallback;
    return invar_json_has(part->json, key) ? invar_json_bool(out, part->json, key, part->where)
                                           : INVAR_OK;
}

invar_status invar_component_literal(invar_literal *out, const invar_tokenizer_component *part,
                                     const char *key)
{
    const char *text;

    INVAR_TRY(invar_json_string(&text, part->json, key, part->where));
    if (!invar_literal_set(out, text))
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0, "%s: %s: \"%s\" has more than %d bytes",
                          part->where, part->name, key, INVAR_LITERAL_MAX);
    return INVAR_OK;
}

invar_status invar_component_char(invar_literal *out, const invar_tokenizer_component *part,
                                  const char *key)
{
    uint32_t point;

    INVAR_TRY(invar_component_literal(out, part, key));
    if (out->bytes == 0 || invar_text_utf8(&point, out->text, out->bytes) != out->bytes)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: %s: \"%s\" is not one character", part->where,
                          part->name, key);
    return INVAR_OK;
}

invar_status invar_component_pattern(const char **regex_out, invar_literal *out,
                                     const invar_tokenizer_component *part)
{
    const json_t *pattern = json_object_get(part->json, "pattern");
    const invar_tokenizer_component inner = {part->where, part->name, pattern};

    *regex_out = NULL;
    if (invar_json_has(pattern, "Regex"))
        return invar_json_string(regex_out, pattern, "Regex", part->where);
    INVAR_TRY(invar_component_literal(out, &inner, "String"));
    return out->bytes ? INVAR_OK : invar_component_unknown(part, "an empty pattern");
}

static invar_status read_components(void *out, const invar_tokenizer_component *part,
                                    const char *list, invar_component_reader_fn *read, bool last)
{
    const json_t *items = json_object_get(part->json, list);
    const char *type;
    size_t count = json_array_size(items);

    INVAR_TRY(invar_component_type(&type, part));
    if (strcmp(type, "Sequence") != 0)
        return read(out, part, type, last);
    if (!json_is_array(items))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: %s: a Sequence without the list \"%s\"",
                          part->where, part->name, list);
    for (size_t i = 0; i < count; i++) {
        const invar_tokenizer_component item = {part->where, part->name, json_array_get(items, i)};
        INVAR_TRY(read_components(out, &item, list, read, last && i + 1 == count));
    }
    return INVAR_OK;
}

invar_status invar_component_each(void *out, const invar_tokenizer_component *part,
                                  const char *list, invar_component_reader_fn *read)
{
    return read_components(out, part, list, read, true);
}
