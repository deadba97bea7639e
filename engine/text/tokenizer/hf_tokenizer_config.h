/*
 * hf_tokenizer_config.h - reads tokenizer_config.json and special_tokens_map.json of transformers.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TEXT_TOKENIZER_HF_TOKENIZER_CONFIG_H
#define INVAR_ENGINE_TEXT_TOKENIZER_HF_TOKENIZER_CONFIG_H

#include "base/json/json.h"

/*
 * Reads DIR/tokenizer_config.json. If it does not exist, or lists no added tokens
 * (added_tokens_decoder), as before transformers 4.34, the tokens of DIR/special_tokens_map.json
 * override its own, as in transformers. The caller frees *out with json_decref; *out is NULL if
 * neither file exists.
 */
invar_status invar_tokenizer_config_read(json_t **out, const char *dir) INVAR_MUST_USE;

#endif
