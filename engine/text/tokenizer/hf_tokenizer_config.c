/*
 * hf_tokenizer_config.c - reads tokenizer_config.json and special_tokens_map.json of transformers.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/text/tokenizer/hf_tokenizer_config.h"

#include "base/file.h"

#include "base/invar_banned.h"

#define MAX_BYTES ((size_t)8 << 20)

static invar_status read_config_file(json_t **out, const char *dir, const char *name)
{
    char path[INVAR_PATH_SIZE];

    *out = NULL;
    INVAR_TRY(invar_path_join(path, sizeof path, dir, name));
    return invar_path_exists(path) ? invar_json_read(out, path, MAX_BYTES) : INVAR_OK;
}

static invar_status override_special_tokens(json_t **config, json_t *special, const char *dir)
{
    if (!*config)
        *config = json_object();
    if (!json_is_object(special))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s/special_tokens_map.json: not a JSON object",
                          INVAR_SHOWN_PATH(dir));
    if (!*config || json_object_update(*config, special) != 0)
        return INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for special tokens");
    return INVAR_OK;
}

invar_status invar_tokenizer_config_read(json_t **out, const char *dir)
{
    INVAR_AUTO_JSON json_t *config = NULL;
    INVAR_AUTO_JSON json_t *special = NULL;

    *out = NULL;
    INVAR_TRY(read_config_file(&config, dir, "tokenizer_config.json"));
    if (!config || (json_is_object(config) && !json_object_get(config, "added_tokens_decoder")))
        INVAR_TRY(read_config_file(&special, dir, "special_tokens_map.json"));
    if (special)
        INVAR_TRY(override_special_tokens(&config, special, dir));
    *out = config;
    config = NULL;
    return INVAR_OK;
}
