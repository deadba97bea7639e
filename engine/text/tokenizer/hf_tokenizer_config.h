/*
 * hf_tokenizer_config.h - what transformers knows of a tokenizer beside tokenizer.json.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_TEXT_TOKENIZER_HF_TOKENIZER_CONFIG_H
#define INVAR_ENGINE_TEXT_TOKENIZER_HF_TOKENIZER_CONFIG_H

#include "base/json/json.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * DIR/tokenizer_config.json. Where it lists no added tokens (added_tokens_decoder), as before
 * transformers 4.34, or is not there, the tokens of DIR/special_tokens_map.json go before its own,
 * as they do in transformers.
 * The caller owns *out (json_decref); NULL where neither file is there.
 */
invar_status invar_tokenizer_config_read(json_t **out, const char *dir) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
