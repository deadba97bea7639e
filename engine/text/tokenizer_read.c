/*
 * tokenizer_read.c - a tokenizer from the bytes of tokenizer.json.
 *
 * The file may be hostile: every size in it is bounded, and what is not known to be without effect
 * is refused by name.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/text.h"
#include "engine/io/json.h"
#include "engine/text/byte_chars.h"
#include "engine/text/pipeline.h"
#include "engine/text/tokenizer_parts.h"
#include "engine/text/unicode.h"

#include "base/invar_banned.h"

#define JSON_MAX_BYTES ((size_t)64 << 20)
#define CONFIG_MAX_BYTES ((size_t)8 << 20)
#define ID_MAX (1 << 22)
#define TOKEN_MAX_BYTES 65536

typedef struct reader {
    const char *where; /* the file, for messages */
    const json_t *root, *vocab, *merges, *added;
    bool ignore_merges, byte_fallback, fuse_unknown;
    const char *unknown; /* NULL: none */
    int64_t size;        /* ids are below it */
    const char **names;  /* (size) as in the file; NULL: no token */
    size_t text_bytes;   /* of all names together */
    invar_pipeline pipeline;
    invar_tokenizer *t;
} reader;

static const char *quoted(char out[INVAR_TEXT_QUOTE_SIZE], const char *text)
{
    invar_text_quote(out, INVAR_TEXT_QUOTE_SIZE, text, strlen(text));
    return out;
}

/* ---- model: vocabulary and merges ------------------------------------------------------------ */

/* An option of the model that must be absent, null, false, zero or empty. */
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

/* One that is false where it is absent. */
static invar_status read_switch(bool *out, const reader *r, const json_t *model, const char *key)
{
    *out = false;
    return invar_json_has(model, key) ? invar_json_bool(out, model, key, r->where) : INVAR_OK;
}

static invar_status read_model(reader *r)
{
    static const char *const off[] = {"dropout", "continuing_subword_prefix", "end_of_word_suffix"};
    const json_t *model = json_object_get(r->root, "model");
    char quote[INVAR_TEXT_QUOTE_SIZE];
    const char *type = "BPE"; // files of the first years do not say it

    if (!json_is_object(model))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: \"model\" is missing", r->where);
    if (invar_json_has(model, "type"))
        INVAR_TRY(invar_json_string(&type, model, "type", r->where));
    if (strcmp(type, "BPE") != 0)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0, "%s: the model is \"%s\", not BPE", r->where,
                          quoted(quote, type));
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

static invar_status check_id(const reader *r, const char *name, const json_t *id)
{
    char quote[INVAR_TEXT_QUOTE_SIZE];

    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= ID_MAX)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: the id of \"%s\" is not a number below %d",
                          r->where, quoted(quote, name), ID_MAX);
    if (strlen(name) > TOKEN_MAX_BYTES)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: the token \"%s\" is longer than %d bytes",
                          r->where, quoted(quote, name), TOKEN_MAX_BYTES);
    return INVAR_OK;
}

/* The id that the library gives to the added token: the file's number must be that one. */
static int64_t expected_id(const reader *r, const char *content, int64_t highest)
{
    const json_t *id = json_object_get(r->vocab, content);
    int64_t count = (int64_t)json_object_size(r->vocab);

    if (id)
        return json_integer_value(id);
    return highest >= count ? highest + 1 : count;
}

/* Finds the number of ids, and that every added token has the right one. */
static invar_status measure(reader *r)
{
    char quote[INVAR_TEXT_QUOTE_SIZE];
    const char *name, *content;
    int64_t highest = -1, id;
    const json_t *value;
    size_t i;

    json_object_foreach((json_t *)r->vocab, name, value)
    {
        INVAR_TRY(check_id(r, name, value));
        id = json_integer_value(value);
        r->size = id >= r->size ? id + 1 : r->size;
    }
    json_array_foreach(r->added, i, value)
    {
        INVAR_TRY(invar_json_string(&content, value, "content", r->where));
        INVAR_TRY(check_id(r, content, json_object_get(value, "id")));
        id = json_integer_value(json_object_get(value, "id"));
        if (id != expected_id(r, content, highest))
            return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                              "%s: added token \"%s\" has id %lld, where the tokenizers library "
                              "gives it %lld",
                              r->where, quoted(quote, content), (long long)id,
                              (long long)expected_id(r, content, highest));
        highest = id > highest ? id : highest;
        r->size = id >= r->size ? id + 1 : r->size;
    }
    return INVAR_OK;
}

static invar_status set_name(reader *r, const char *name, int64_t id)
{
    char quote[INVAR_TEXT_QUOTE_SIZE];

    if (r->names[id] && strcmp(r->names[id], name) == 0)
        return INVAR_OK;
    if (r->names[id])
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: \"%s\" has the id %lld of another token",
                          r->where, quoted(quote, name), (long long)id);
    r->names[id] = name;
    r->text_bytes += strlen(name);
    return INVAR_OK;
}

static invar_status name_ids(reader *r)
{
    const char *name;
    const json_t *value;
    size_t i;

    INVAR_TRY(invar_alloc((void **)&r->names, (size_t)r->size, sizeof *r->names, "tokens"));
    memset(r->names, 0, (size_t)r->size * sizeof *r->names);
    json_object_foreach((json_t *)r->vocab, name, value)
        INVAR_TRY(set_name(r, name, json_integer_value(value)));
    json_array_foreach(r->added, i, value)
        INVAR_TRY(set_name(r, json_string_value(json_object_get(value, "content")),
                           json_integer_value(json_object_get(value, "id"))));
    return INVAR_OK;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static invar_status fill_tokens(reader *r, const invar_byte_chars *map)
{
    invar_tokenizer *t = r->t;

    if (r->ignore_merges)
        INVAR_TRY(invar_word_table_new(&t->words, (size_t)r->size, r->text_bytes));
    for (int64_t id = 0; id < r->size; id++) {
        char *text = t->text + t->begins[id];
        size_t bytes = 0;
        // of a name that does not spell bytes the text is the name itself
        if (r->names[id] &&
            !invar_byte_chars_read(text, &bytes, map, r->names[id], strlen(r->names[id]))) {
            bytes = strlen(r->names[id]);
            memcpy(text, r->names[id], bytes);
        } else if (r->names[id] && r->ignore_merges && json_object_get(r->vocab, r->names[id])) {
            invar_word_table_add(t->words, text, bytes, (int32_t)id);
        }
        t->begins[id + 1] = t->begins[id] + bytes;
    }
    return INVAR_OK;
}

/* ---- merges ---------------------------------------------------------------------------------- */

static invar_status bad_merge(const reader *r, size_t rank, const char *why)
{
    return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: merge %zu %s", r->where, rank, why);
}

/* The two names of a merge: ["a", "b"], or "a b". Not terminated. */
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

static int32_t id_of(const reader *r, char *room, const char *name, size_t length)
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

    if (!merge_names(names, lengths, item))
        return bad_merge(r, rank, "is not two tokens");
    if (lengths[0] > TOKEN_MAX_BYTES || lengths[1] > TOKEN_MAX_BYTES)
        return bad_merge(r, rank, "is too long");
    ids[0] = id_of(r, room, names[0], lengths[0]);
    ids[1] = id_of(r, room, names[1], lengths[1]);
    memcpy(room, names[0], lengths[0]);
    memcpy(room + lengths[0], names[1], lengths[1]);
    ids[2] = id_of(r, room, room, lengths[0] + lengths[1]);
    if (ids[0] < 0 || ids[1] < 0 || ids[2] < 0)
        return bad_merge(r, rank, "has a token that is not in the vocabulary");
    invar_bpe_add(r->t->bpe, ids[0], ids[1], (int32_t)rank, ids[2]);
    return INVAR_OK;
}

static invar_status fill_merges(reader *r)
{
    invar_status status = INVAR_OK;
    const json_t *item;
    char *room;
    size_t i;

    INVAR_TRY(invar_bpe_new(&r->t->bpe, json_array_size(r->merges)));
    INVAR_TRY(invar_alloc((void **)&room, 2 * TOKEN_MAX_BYTES + 1, 1, "a merge"));
    json_array_foreach(r->merges, i, item)
    {
        status = add_merge(r, i, item, room);
        if (status != INVAR_OK)
            break;
    }
    invar_free(room);
    return status;
}

/* ---- symbols --------------------------------------------------------------------------------- */

static void fill_symbols(reader *r, const invar_byte_chars *map)
{
    invar_symbols *s = &r->t->symbols;
    char room[8];

    for (unsigned b = 0; b < 256; b++) {
        char code[8];
        s->lengths[b] = (uint8_t)invar_unicode_write(s->names[b], map->chars[b]);
        s->bytes[b] = id_of(r, room, s->names[b], s->lengths[b]);
        (void)snprintf(code, sizeof code, "<0x%02X>", b);
        s->fallback[b] = r->byte_fallback ? id_of(r, room, code, strlen(code)) : -1;
    }
    s->fuse_unknown = r->fuse_unknown;
    s->unknown = INVAR_UNKNOWN_DROPPED;
    if (r->unknown) {
        const json_t *id = json_object_get(r->vocab, r->unknown);
        s->unknown = id ? (int32_t)json_integer_value(id) : INVAR_UNKNOWN_MISSING;
    }
}

/* ---- added tokens ---------------------------------------------------------------------------- */

/* A token that is sought in composed text and is not composed itself: releases differ on it. */
static invar_status check_composed(const reader *r, const invar_added_token *token)
{
    char *composed = NULL, quote[INVAR_TEXT_QUOTE_SIZE];
    bool same = true;
    size_t bytes = 0;

    if (r->pipeline.compose)
        INVAR_TRY(invar_unicode_compose(&composed, &bytes, token->content, token->bytes));
    if (composed)
        same = bytes == token->bytes && memcmp(composed, token->content, bytes) == 0;
    invar_free(composed);
    if (!same)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                          "%s: added token \"%s\" is normalized, but not in form C", r->where,
                          quoted(quote, token->content));
    return INVAR_OK;
}

static invar_status add_token(reader *r, const json_t *item)
{
    invar_added_token token = {0};
    bool single_word, normalized, special;
    char quote[INVAR_TEXT_QUOTE_SIZE];

    token.content = json_string_value(json_object_get(item, "content"));
    token.bytes = strlen(token.content);
    token.id = (int32_t)json_integer_value(json_object_get(item, "id"));
    INVAR_TRY(invar_json_bool(&single_word, item, "single_word", r->where));
    INVAR_TRY(invar_json_bool(&token.lstrip, item, "lstrip", r->where));
    INVAR_TRY(invar_json_bool(&token.rstrip, item, "rstrip", r->where));
    INVAR_TRY(invar_json_bool(&normalized, item, "normalized", r->where));
    INVAR_TRY(invar_json_bool(&special, item, "special", r->where));
    if (single_word)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                          "%s: added token \"%s\" has single_word, which Invar does not do",
                          r->where, quoted(quote, token.content));
    r->t->special[token.id] = special;
    if (!normalized)
        return invar_added_tokens_add(r->t->raw, &token);
    INVAR_TRY(check_composed(r, &token));
    return invar_added_tokens_add(r->t->normalized, &token);
}

static invar_status fill_added(reader *r)
{
    const json_t *item;
    size_t i;

    INVAR_TRY(invar_added_tokens_new(&r->t->raw));
    INVAR_TRY(invar_added_tokens_new(&r->t->normalized));
    json_array_foreach(r->added, i, item) INVAR_TRY(add_token(r, item));
    return INVAR_OK;
}

/* ---- tokenizer_config.json ------------------------------------------------------------------- */

/* The id of a token by its name, -1 when there is none. */
static int32_t find_token(const reader *r, const char *name)
{
    for (int64_t id = 0; id < r->size; id++)
        if (r->names[id] && strcmp(r->names[id], name) == 0)
            return (int32_t)id;
    return -1;
}

/* A token as text, or as an object with "content". */
static const char *token_text(const json_t *value)
{
    return json_string_value(json_is_object(value) ? json_object_get(value, "content") : value);
}

static invar_status check_config_token(const reader *r, const char *key, const json_t *value)
{
    char quote[INVAR_TEXT_QUOTE_SIZE], *end;
    const char *text = token_text(value);
    long long id = strtoll(key, &end, 10);

    if (text && end != key && !*end && id >= 0 && id < r->size && r->names[id] &&
        strcmp(r->names[id], text) == 0)
        return INVAR_OK;
    return INVAR_FAIL(
        INVAR_E_UNSUPPORTED, 0,
        "%s: added token \"%s\" of tokenizer_config.json is not there, or has another "
        "id",
        r->where, quoted(quote, text ? text : key));
}

static invar_status read_config(reader *r, const json_t *config)
{
    const json_t *eos = json_object_get(config, "eos_token"), *value;
    char quote[INVAR_TEXT_QUOTE_SIZE];
    const char *key;

    if (!json_is_object(config))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: tokenizer_config.json is not a JSON object",
                          r->where);
    json_object_foreach(json_object_get(config, "added_tokens_decoder"), key, value)
        INVAR_TRY(check_config_token(r, key, value));
    if (!eos || json_is_null(eos))
        return INVAR_OK;
    r->t->eos = token_text(eos) ? find_token(r, token_text(eos)) : -1;
    if (r->t->eos < 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%s: eos_token \"%s\" of tokenizer_config.json is no token", r->where,
                          quoted(quote, token_text(eos) ? token_text(eos) : ""));
    return INVAR_OK;
}

/* ---- all of it ------------------------------------------------------------------------------- */

static void hash(reader *r, const invar_tokenizer_source *source)
{
    const char *version = invar_unicode_version();
    invar_hasher hasher;
    char eos[24];

    (void)snprintf(eos, sizeof eos, "%d", r->t->eos);
    invar_hasher_init(&hasher);
    invar_hasher_update(&hasher, version, strlen(version) + 1);
    invar_hasher_update(&hasher, eos, strlen(eos) + 1);
    invar_hasher_update(&hasher, source->json, source->json_bytes);
    invar_hasher_final(&r->t->hash, &hasher);
}

static invar_status build(reader *r, const invar_tokenizer_source *source)
{
    json_t *config = NULL;
    invar_status status;
    invar_byte_chars map;

    invar_byte_chars_init(&map);
    INVAR_TRY(invar_pipeline_read(&r->pipeline, r->root, r->where));
    INVAR_TRY(read_model(r));
    r->added = json_object_get(r->root, "added_tokens");
    INVAR_TRY(measure(r));
    INVAR_TRY(name_ids(r));
    INVAR_TRY(invar_tokenizer_new(&r->t, r->size, r->text_bytes));
    r->t->pipeline = r->pipeline;
    INVAR_TRY(fill_tokens(r, &map));
    INVAR_TRY(fill_merges(r));
    fill_symbols(r, &map);
    INVAR_TRY(fill_added(r));
    if (source->config) {
        INVAR_TRY(invar_json_parse(&config, "tokenizer_config.json", source->config,
                                   source->config_bytes));
        status = read_config(r, config);
        json_decref(config);
        INVAR_TRY(status);
    }
    hash(r, source);
    return INVAR_OK;
}

invar_status invar_tokenizer_parse(invar_tokenizer **out, const invar_tokenizer_source *source)
{
    reader r = {.where = source->where};
    invar_status status;
    json_t *root;

    *out = NULL;
    INVAR_TRY(invar_unicode_check());
    INVAR_TRY(invar_json_parse(&root, source->where, source->json, source->json_bytes));
    r.root = root;
    status = build(&r, source);
    invar_free(r.names);
    json_decref(root);
    if (status != INVAR_OK) {
        invar_tokenizer_free(r.t);
        return status;
    }
    *out = r.t;
    return INVAR_OK;
}

invar_status invar_tokenizer_read(invar_tokenizer **out, const char *dir)
{
    char path[INVAR_PATH_SIZE], shown[INVAR_PATH_SHOWN_SIZE], *json, *config = NULL;
    invar_tokenizer_source source = {.where = shown};
    invar_status status;

    *out = NULL;
    INVAR_TRY(invar_path_join(path, sizeof path, dir, "tokenizer_config.json"));
    if (invar_path_exists(path))
        INVAR_TRY(invar_file_read(&config, &source.config_bytes, path, CONFIG_MAX_BYTES));
    status = invar_path_join(path, sizeof path, dir, "tokenizer.json");
    if (status == INVAR_OK)
        status = invar_file_read(&json, &source.json_bytes, path, JSON_MAX_BYTES);
    if (status == INVAR_OK) {
        invar_path_show(shown, path);
        source.json = json;
        source.config = config;
        status = invar_tokenizer_parse(out, &source);
        invar_free(json);
    }
    invar_free(config);
    return status;
}
