/*
 * read.c - reads a tokenizer from tokenizer.json and tokenizer_config.json.
 *
 * The files are untrusted: every size is bounded. Everything in them that may change a result must
 * be known; the rest is rejected by name. Ids are read first, then the added tokens, which need the
 * normalizer, and then the text of each token, which needs the decoder.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/minmax.h"
#include "base/text.h"
#include "engine/text/tokenizer/hf_tokenizer_config.h"
#include "engine/text/tokenizer/tokenizer_reader.h"
#include "engine/text/unicode.h"

#include "base/invar_banned.h"

#define JSON_MAX_BYTES ((size_t)64 << 20)
#define ID_MAX (1 << 22)

typedef invar_tokenizer_reader reader;

/* ---- ids and names --------------------------------------------------------------------------- */

static invar_status check_id(const reader *r, const char *name, const json_t *id)
{
    if (!json_is_integer(id) || json_integer_value(id) < 0 || json_integer_value(id) >= ID_MAX)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: the id of \"%s\" is not a number below %d",
                          r->where, INVAR_QUOTED(name), ID_MAX);
    if (strlen(name) > INVAR_TOKEN_MAX_BYTES)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: the token \"%s\" is longer than %d bytes",
                          r->where, INVAR_QUOTED(name), INVAR_TOKEN_MAX_BYTES);
    return INVAR_OK;
}

/* Returns the id that the tokenizers library gives to an added token, which the file must have. */
static int64_t library_id(const reader *r, const char *content, int64_t highest)
{
    const json_t *id = json_object_get(r->vocab, content);
    int64_t count = (int64_t)json_object_size(r->vocab);

    if (id)
        return json_integer_value(id);
    return highest >= count ? highest + 1 : count;
}

/* Counts the ids and checks that every added token has the id that the library gives it. */
static invar_status count_ids(reader *r)
{
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
        if (id != library_id(r, content, highest))
            return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                              "%s: added token \"%s\" has id %lld, where the tokenizers library "
                              "gives it %lld",
                              r->where, INVAR_QUOTED(content), (long long)id,
                              (long long)library_id(r, content, highest));
        highest = id > highest ? id : highest;
        r->size = id >= r->size ? id + 1 : r->size;
    }
    return INVAR_OK;
}

static invar_status set_name(reader *r, const char *name, int64_t id)
{
    if (r->names[id] && strcmp(r->names[id], name) == 0)
        return INVAR_OK;
    if (r->names[id])
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: \"%s\" has the id %lld of another token",
                          r->where, INVAR_QUOTED(name), (long long)id);
    r->names[id] = name;
    r->name_bytes += strlen(name);
    return INVAR_OK;
}

static invar_status name_ids(reader *r)
{
    const char *name;
    const json_t *value;
    size_t i;

    INVAR_TRY(INVAR_ALLOC_ZEROED(r->names, (size_t)r->size, "tokens"));
    json_object_foreach((json_t *)r->vocab, name, value)
        INVAR_TRY(set_name(r, name, json_integer_value(value)));
    json_array_foreach(r->added, i, value)
        INVAR_TRY(set_name(r, json_string_value(json_object_get(value, "content")),
                           json_integer_value(json_object_get(value, "id"))));
    return INVAR_OK;
}

/* ---- tokens ---------------------------------------------------------------------------------- */

static invar_status append_text(reader *r, int64_t id, const char *text, size_t bytes)
{
    invar_tokenizer *t = r->t;
    int64_t used = (int64_t)t->begins[id];

    INVAR_TRY(INVAR_GROW(t->text, r->text_capacity, used,
                         invar_max_i64(used + (int64_t)bytes, (int64_t)r->name_bytes + 1),
                         "tokens"));
    memcpy(t->text + used, text, bytes);
    t->begins[id + 1] = (size_t)used + bytes;
    return INVAR_OK;
}

static invar_status fill_tokens(reader *r)
{
    invar_status status;
    bool is_byte;
    size_t bytes;
    char *text;

    for (int64_t id = 0; id < r->size; id++) {
        const char *name = r->normal[id] ? r->normal[id] : r->names[id];
        if (!name) {
            INVAR_TRY(append_text(r, id, "", 0));
            continue;
        }
        INVAR_TRY(
            invar_text_decoder_token(&text, &bytes, &is_byte, &r->pipeline.decoder, &r->map, name));
        status = append_text(r, id, text, bytes);
        invar_free(text);
        INVAR_TRY(status);
        r->t->flags[id] |= INVAR_TOKEN_IS_THERE | (is_byte ? INVAR_TOKEN_IS_BYTE : 0);
    }
    return INVAR_OK;
}

/* Finds tokens that do not stand for bytes, for decoders that respell the joined text as bytes. */
static invar_status find_plain_tokens(reader *r)
{
    for (int64_t id = 0; id < r->size && r->pipeline.decoder.respell; id++) {
        invar_text_stream stream = {0};
        invar_status status = invar_text_stream_push(&stream, r->t, (int32_t)id, false);
        bool plain = stream.plain || r->t->flags[id] & INVAR_TOKEN_IS_BYTE;
        invar_text_stream_release(&stream);
        INVAR_TRY(status);
        r->t->plain[0] |= plain;
        r->t->plain[1] |= plain && !invar_tokenizer_special(r->t, (int32_t)id);
    }
    return INVAR_OK;
}

/*
 * Finds the longest text that one token stands for. A token stands for at most the bytes of its
 * name: merges join names, and text that is not in the vocabulary has a token for each byte.
 * Otherwise text may be dropped, or many characters may become one unknown token; then there is no
 * limit.
 */
static void find_longest_token(reader *r)
{
    const invar_symbols *s = &r->t->symbols;
    bool complete = !r->drops_text;
    size_t longest = 0;

    for (int b = 0; b < 256 && complete; b++)
        complete = s->byte_level ? s->low[s->spelt.chars[b]] >= 0 : s->fallback[b] >= 0;
    for (int64_t id = 0; id < r->size && complete; id++) {
        const char *spellings[] = {r->names[id], r->normal[id]};

        for (int i = 0; i < 2; i++) {
            size_t bytes = spellings[i] ? strlen(spellings[i]) : 0;
            longest = bytes > longest ? bytes : longest;
        }
    }
    r->t->longest = longest;
}

/* ---- added tokens ---------------------------------------------------------------------------- */

/*
 * Normalizes the content of an added token, with a NUL at the end. *out is NULL if it does not
 * change.
 */
static invar_status normalize_token(char **out, const reader *r, const char *content)
{
    size_t bytes;
    char *normal;

    *out = NULL;
    INVAR_TRY(invar_normalize(&normal, &bytes, &r->pipeline.normalizer, content, strlen(content)));
    if (!normal || (bytes == strlen(content) && memcmp(normal, content, bytes) == 0)) {
        invar_free(normal);
        return INVAR_OK;
    }
    if (INVAR_ALLOC(*out, bytes + 1, "a token") == INVAR_OK) {
        memcpy(*out, normal, bytes);
        (*out)[bytes] = '\0';
    }
    invar_free(normal);
    return *out ? INVAR_OK : invar_error_last()->status;
}

/* Returns the entry of an added token in tokenizer_config.json, or NULL. */
static const json_t *find_config_token(const reader *r, int32_t id)
{
    char key[16];

    (void)snprintf(key, sizeof key, "%d", id);
    return json_object_get(json_object_get(r->config, "added_tokens_decoder"), key);
}

/*
 * Reads a switch of an added token. As in transformers, tokenizer_config.json overrides
 * tokenizer.json.
 */
static invar_status read_token_switch(bool *out, reader *r, const json_t *item, int32_t id,
                                      const char *key)
{
    const json_t *other = find_config_token(r, id);
    bool value;

    INVAR_TRY(invar_json_bool(out, item, key, r->where));
    if (!json_is_object(other) || !invar_json_has(other, key))
        return INVAR_OK;
    INVAR_TRY(invar_json_bool(&value, other, key, "tokenizer_config.json: added_tokens_decoder"));
    if (value == *out)
        return INVAR_OK;
    *out = value;
    r->flags_changed = true;
    invar_hasher_update(&r->flags, &id, sizeof id);
    invar_hasher_update(&r->flags, key, strlen(key) + 1);
    return INVAR_OK;
}

static invar_status add_token(reader *r, const json_t *item)
{
    invar_added_token token = {.id = (int32_t)json_integer_value(json_object_get(item, "id"))};
    bool normalized, special;

    token.content = json_string_value(json_object_get(item, "content"));
    INVAR_TRY(read_token_switch(&token.single_word, r, item, token.id, "single_word"));
    INVAR_TRY(read_token_switch(&token.lstrip, r, item, token.id, "lstrip"));
    INVAR_TRY(read_token_switch(&token.rstrip, r, item, token.id, "rstrip"));
    INVAR_TRY(read_token_switch(&normalized, r, item, token.id, "normalized"));
    INVAR_TRY(read_token_switch(&special, r, item, token.id, "special"));
    invar_free(r->normal[token.id]);
    r->normal[token.id] = NULL;
    if (normalized)
        INVAR_TRY(normalize_token(&r->normal[token.id], r, token.content));
    // the library finds special tokens by content and does not skip those whose text differs
    if (special && !r->normal[token.id])
        r->t->flags[token.id] |= INVAR_TOKEN_IS_SPECIAL;
    if (r->normal[token.id])
        token.content = r->normal[token.id];
    token.bytes = strlen(token.content);
    r->drops_text |= token.lstrip || token.rstrip;
    return invar_added_tokens_add(normalized ? r->t->normalized : r->t->raw, &token);
}

static invar_status fill_added_tokens(reader *r)
{
    const json_t *item;
    size_t i;

    INVAR_TRY(INVAR_ALLOC_ZEROED(r->normal, (size_t)r->size, "tokens"));
    INVAR_TRY(invar_added_tokens_new(&r->t->raw));
    INVAR_TRY(invar_added_tokens_new(&r->t->normalized));
    json_array_foreach(r->added, i, item) INVAR_TRY(add_token(r, item));
    return INVAR_OK;
}

/* ---- tokenizer_config.json ------------------------------------------------------------------- */

/* Returns the id of a token by its name, or -1. */
static int32_t find_token(const reader *r, const char *name)
{
    for (int64_t id = 0; id < r->size; id++)
        if (r->names[id] && strcmp(r->names[id], name) == 0)
            return (int32_t)id;
    return -1;
}

/* Returns the text of a token that is given as a string or as an object with "content". */
static const char *token_text(const json_t *value)
{
    return json_string_value(json_is_object(value) ? json_object_get(value, "content") : value);
}

static invar_status check_config_token(const reader *r, const char *key, const json_t *value)
{
    char *end;
    const char *text = token_text(value);
    long long id = strtoll(key, &end, 10);

    if (text && end != key && !*end && id >= 0 && id < r->size && r->names[id] &&
        strcmp(r->names[id], text) == 0)
        return INVAR_OK;
    return INVAR_FAIL(
        INVAR_E_UNSUPPORTED, 0,
        "%s: added token \"%s\" of tokenizer_config.json does not exist, or has another "
        "id",
        r->where, INVAR_QUOTED(text ? text : key));
}

static invar_status check_config(const reader *r)
{
    const json_t *value;
    const char *key;

    if (r->config && !json_is_object(r->config))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: tokenizer_config.json is not a JSON object",
                          r->where);
    json_object_foreach(json_object_get(r->config, "added_tokens_decoder"), key, value)
        INVAR_TRY(check_config_token(r, key, value));
    return INVAR_OK;
}

static invar_status read_eos(reader *r)
{
    const json_t *eos = json_object_get(r->config, "eos_token");

    if (!eos || json_is_null(eos))
        return INVAR_OK;
    r->t->eos = token_text(eos) ? find_token(r, token_text(eos)) : -1;
    if (r->t->eos < 0)
        return INVAR_FAIL(
            INVAR_E_INVALID, 0,
            "%s: eos_token \"%s\" of tokenizer_config.json (or special_tokens_map.json) is no "
            "token",
            r->where, INVAR_QUOTED(token_text(eos) ? token_text(eos) : ""));
    return INVAR_OK;
}

/* ---- files ----------------------------------------------------------------------------------- */

static void hash_source(reader *r, const invar_tokenizer_source *source)
{
    const char *version = invar_unicode_version();
    invar_hasher hasher;
    char eos[24];

    (void)snprintf(eos, sizeof eos, "%d", r->t->eos);
    invar_hasher_init(&hasher);
    invar_hasher_update(&hasher, version, strlen(version) + 1);
    invar_hasher_update(&hasher, eos, strlen(eos) + 1);
    invar_hasher_update(&hasher, source->json, source->json_bytes);
    if (r->flags_changed) {
        invar_digest flags;
        invar_hasher_final(&flags, &r->flags);
        invar_hasher_update(&hasher, &flags, sizeof flags);
    }
    invar_hasher_final(&r->t->hash, &hasher);
}

static invar_status build_tokenizer(reader *r, const invar_tokenizer_source *source)
{
    invar_byte_chars_init(&r->map);
    invar_hasher_init(&r->flags);
    INVAR_TRY(invar_tokenizer_read_model(r));
    INVAR_TRY(invar_text_pipeline_read(&r->pipeline, r->root, r->where));
    r->added = json_object_get(r->root, "added_tokens");
    INVAR_TRY(count_ids(r));
    INVAR_TRY(name_ids(r));
    INVAR_TRY(check_config(r));
    INVAR_TRY(invar_tokenizer_new(&r->t, r->size));
    r->t->pipeline = r->pipeline;
    INVAR_TRY(fill_added_tokens(r));
    INVAR_TRY(fill_tokens(r));
    INVAR_TRY(invar_tokenizer_fill_model(r));
    find_longest_token(r);
    INVAR_TRY(find_plain_tokens(r));
    INVAR_TRY(read_eos(r));
    hash_source(r, source);
    return INVAR_OK;
}

invar_status invar_tokenizer_parse(invar_tokenizer **out, const invar_tokenizer_source *source)
{
    reader r = {.where = source->where};
    json_t *root, *config = NULL;
    invar_status status = INVAR_OK;

    *out = NULL;
    INVAR_TRY(invar_unicode_check());
    INVAR_TRY(invar_json_parse(&root, source->where, source->json, source->json_bytes));
    if (source->config)
        status = invar_json_parse(&config, "tokenizer_config.json", source->config,
                                  source->config_bytes);
    r.root = root;
    r.config = config;
    if (status == INVAR_OK)
        status = build_tokenizer(&r, source);
    json_decref(config);
    for (int64_t id = 0; r.normal && id < r.size; id++)
        invar_free(r.normal[id]);
    invar_free(r.normal);
    invar_free(r.names);
    json_decref(root);
    if (status == INVAR_OK)
        *out = r.t;
    else
        invar_tokenizer_free(r.t);
    return status;
}

static invar_status read_config(char **out, size_t *bytes_out, const char *dir)
{
    INVAR_AUTO_JSON json_t *config = NULL;

    INVAR_TRY(invar_tokenizer_config_read(&config, dir));
    return config ? invar_json_dump(out, bytes_out, config, JSON_COMPACT, "tokenizer_config.json")
                  : INVAR_OK;
}

/* Reads both files; the second may not exist. The caller frees the texts, also after a failure. */
static invar_status read_source_files(char **json, char **config, invar_tokenizer_source *source,
                                      char shown[INVAR_PATH_SHOWN_SIZE], const char *dir)
{
    char path[INVAR_PATH_SIZE];

    INVAR_TRY(read_config(config, &source->config_bytes, dir));
    INVAR_TRY(invar_path_join(path, sizeof path, dir, "tokenizer.json"));
    invar_path_show(shown, path);
    if (!invar_path_exists(path))
        return INVAR_FAIL(
            INVAR_E_NOTFOUND, 0,
            "%s: it does not exist, and no other file of a tokenizer is read: write it with "
            "transformers, AutoTokenizer.from_pretrained(...).save_pretrained(...)",
            shown);
    return invar_file_read(json, &source->json_bytes, path, JSON_MAX_BYTES);
}

invar_status invar_tokenizer_read(invar_tokenizer **out, const char *dir)
{
    INVAR_AUTO_FREE char *json = NULL;
    INVAR_AUTO_FREE char *config = NULL;
    char shown[INVAR_PATH_SHOWN_SIZE];
    invar_tokenizer_source source = {.where = shown};

    *out = NULL;
    INVAR_TRY(read_source_files(&json, &config, &source, shown, dir));
    source.json = json;
    source.config = config;
    return invar_tokenizer_parse(out, &source);
}
