/*
 * model.c - reads the member "model" of tokenizer.json: vocabulary, merges, first symbols.
 *
 * Only BPE without options that change the result is accepted. Ids are checked by read.c before the
 * merges are filled.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/text.h"
#include "engine/text/tokenizer/tokenizer_reader.h"
#include "engine/text/unicode.h"

#include "base/invar_banned.h"

typedef invar_tokenizer_reader reader;

/* ---- switches -------------------------------------------------------------------------------- */

/* Fails unless the option is absent, null, false, zero or empty. */
static invar_status must_be_off(const reader *r, const json_t *model, const char *key)
{
    const json_t *value = json_object_get(model, key);

    if (!value || json_is_null(value) || json_is_false(value) ||
        (json_is_number(value) && json_number_value(value) == 0) ||
        (json_is_string(value) && json_string_length(value) == 0))
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0, "%s: the model's %s is set, which Invar does not do",
                      r->where, key);
}

/* Reads a switch of the model; an absent one is false. */
static invar_status read_switch(bool *out, const reader *r, const json_t *model, const char *key)
{
    *out = false;
    return invar_json_has(model, key) ? invar_json_bool(out, model, key, r->where) : INVAR_OK;
}

invar_status invar_tokenizer_read_model(reader *r)
{
    static const char *const off[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix"};
    const json_t *model = json_object_get(r->root, "model");
    const char *type = "BPE"; // early files do not have the member

    if (!json_is_object(model))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: \"model\" is missing", r->where);
    if (invar_json_has(model, "type"))
        INVAR_TRY(invar_json_string(&type, model, "type", r->where));
    if (strcmp(type, "BPE") != 0)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                          "%s: the model is \"%s\"; BPE is read, byte-level or with byte_fallback",
                          r->where, INVAR_QUOTED(type));
    for (size_t i = 0; i < sizeof off / sizeof off[0]; i++)
        INVAR_TRY(must_be_off(r, model, off[i]));
    INVAR_TRY(read_switch(&r->ignore_merges, r, model, "ignore_merges"));
    INVAR_TRY(read_switch(&r->byte_fallback, r, model, "byte_fallback"));
    INVAR_TRY(read_switch(&r->fuse_unknown, r, model, "fuse_unk"));
    if (invar_json_has(model, "unk_token"))
        INVAR_TRY(invar_json_string(&r->unknown, model, "unk_token", r->where));
    r->vocab = json_object_get(model, "vocab");
    r->merges = json_object_get(model, "merges");
    if (!json_is_object(r->vocab) || !json_is_array(r->merges))
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%s: the model has no object \"vocab\" or no list "
                          "\"merges\"",
                          r->where);
    return INVAR_OK;
}

/* ---- merges ---------------------------------------------------------------------------------- */

static invar_status fail_merge(const reader *r, size_t rank, const char *why)
{
    return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: merge %zu %s", r->where, rank, why);
}

/* Splits a merge, ["a", "b"] or "a b", into its two names, which are not terminated. */
static bool merge_names(const char *names[2], size_t lengths[2], const json_t *item)
{
    const char *text = json_string_value(item);
    const char *space = text ? strchr(text, ' ') : NULL;

    if (space && !strchr(space + 1, ' ')) {
        names[0] = text;
        names[1] = space + 1;
        lengths[0] = (size_t)(space - text);
        lengths[1] = strlen(space + 1);
        return true;
    }
    if (json_array_size(item) != 2)
        return false;
    for (size_t i = 0; i < 2; i++) {
        const json_t *name = json_array_get(item, i);
        if (!json_is_string(name))
            return false;
        names[i] = json_string_value(name);
        lengths[i] = json_string_length(name);
    }
    return true;
}

static int32_t find_id(const reader *r, char *room, const char *name, size_t length)
{
    const json_t *id;

    memcpy(room, name, length);
    room[length] = '\0';
    id = json_object_get(r->vocab, room);
    return id ? (int32_t)json_integer_value(id) : -1;
}

static invar_status add_merge(reader *r, size_t rank, const json_t *item, char *room)
{
    const char *names[2];
    size_t lengths[2];
    int32_t ids[3];

    if (json_is_string(item) && strncmp(json_string_value(item), "#version", 8) == 0)
        return INVAR_OK; // first line of a merges.txt that was converted
    if (!merge_names(names, lengths, item))
        return fail_merge(r, rank, "is not two tokens");
    if (lengths[0] > INVAR_TOKEN_MAX_BYTES || lengths[1] > INVAR_TOKEN_MAX_BYTES)
        return fail_merge(r, rank, "is too long");
    ids[0] = find_id(r, room, names[0], lengths[0]);
    ids[1] = find_id(r, room, names[1], lengths[1]);
    memcpy(room, names[0], lengths[0]);
    memcpy(room + lengths[0], names[1], lengths[1]);
    ids[2] = find_id(r, room, room, lengths[0] + lengths[1]);
    if (ids[0] < 0 || ids[1] < 0 || ids[2] < 0)
        return fail_merge(r, rank, "has a token that is not in the vocabulary");
    invar_bpe_add(r->t->bpe, ids[0], ids[1], (int32_t)rank, ids[2]);
    return INVAR_OK;
}

static invar_status fill_merges(reader *r)
{
    INVAR_AUTO_FREE char *room = NULL;
    const json_t *item;
    size_t i;

    INVAR_TRY(invar_bpe_new(&r->t->bpe, json_array_size(r->merges)));
    INVAR_TRY(INVAR_ALLOC(room, 2 * INVAR_TOKEN_MAX_BYTES + 1, "a merge"));
    json_array_foreach(r->merges, i, item) INVAR_TRY(add_merge(r, i, item, room));
    return INVAR_OK;
}

/* ---- symbols --------------------------------------------------------------------------------- */

/* Returns whether the name is one character. */
static bool is_one_character(uint32_t *point_out, const char *name)
{
    size_t bytes = strlen(name);

    return bytes > 0 && invar_text_utf8(point_out, name, bytes) == bytes;
}

/* Fills the tokens of one character, from which words begin. */
static invar_status fill_chars(reader *r)
{
    invar_symbols *s = &r->t->symbols;
    size_t count = 0;
    const char *name;
    const json_t *id;
    uint32_t point;

    json_object_foreach((json_t *)r->vocab, name, id) count += is_one_character(&point, name);
    INVAR_TRY(invar_token_map_new(&s->chars, count, 4 * count));
    memset(s->low, -1, sizeof s->low);
    json_object_foreach((json_t *)r->vocab, name, id)
    {
        if (!is_one_character(&point, name))
            continue;
        if (point < INVAR_BYTE_CHARS_END)
            s->low[point] = (int32_t)json_integer_value(id);
        else
            invar_token_map_add(s->chars, name, strlen(name), (int32_t)json_integer_value(id));
    }
    return INVAR_OK;
}

static invar_status fill_symbols(reader *r)
{
    invar_symbols *s = &r->t->symbols;

    INVAR_TRY(fill_chars(r));
    s->byte_level = r->pipeline.byte_level;
    s->spelt = r->map;
    for (unsigned b = 0; b < 256; b++) {
        char code[8], room[8];
        (void)snprintf(code, sizeof code, "<0x%02X>", b);
        s->fallback[b] = r->byte_fallback ? find_id(r, room, code, strlen(code)) : -1;
    }
    s->fuse_unknown = r->fuse_unknown;
    s->unknown = INVAR_UNKNOWN_DROPPED;
    if (r->unknown) {
        const json_t *id = json_object_get(r->vocab, r->unknown);
        s->unknown = id ? (int32_t)json_integer_value(id) : INVAR_UNKNOWN_MISSING;
    }
    return INVAR_OK;
}

/* ---- words ----------------------------------------------------------------------------------- */

/* Fills the words that are one token; in a byte-level vocabulary, those that stand for bytes. */
static invar_status fill_words(reader *r)
{
    INVAR_AUTO_FREE char *room = NULL;
    const char *name;
    const json_t *id;
    size_t bytes;

    INVAR_TRY(invar_token_map_new(&r->t->words, json_object_size(r->vocab), r->name_bytes));
    INVAR_TRY(INVAR_ALLOC(room, INVAR_TOKEN_MAX_BYTES, "a word"));
    json_object_foreach((json_t *)r->vocab, name, id)
    {
        const char *word = name;
        bytes = strlen(name);
        if (r->pipeline.byte_level) {
            word = room;
            if (!invar_byte_chars_read(room, &bytes, &r->map, name, bytes))
                continue;
        }
        invar_token_map_add(r->t->words, word, bytes, (int32_t)json_integer_value(id));
    }
    return INVAR_OK;
}

invar_status invar_tokenizer_fill_model(reader *r)
{
    INVAR_TRY(fill_merges(r));
    INVAR_TRY(fill_symbols(r));
    return r->ignore_merges ? fill_words(r) : INVAR_OK;
}
