/*
 * remote_reward.h - a reward model that is asked over HTTP.
 *
 * As Miles asks one: each sample is a POST of {"prompt", "response", "label"}, and the body of the
 * answer is the reward, a number or an object of named parts. The answers of a call become one line
 * in the form of a program's reply, which the ledger keeps.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_EXT_SERVER_REMOTE_REWARD_H
#define INVAR_ENGINE_EXT_SERVER_REMOTE_REWARD_H

#include "engine/ext/http/http.h"
#include "engine/ext/plugin_call.h"

#ifdef __cplusplus
extern "C" {
#endif

/* `name` is for messages; `timeout`: seconds that a call may take, 0: no limit. */
invar_status invar_remote_reward_open(invar_http **out, const char *name, const char *url,
                                      double timeout) INVAR_MUST_USE;

/* Asks for all samples of the call; `line_out` is the reply. */
invar_status invar_remote_reward_ask(invar_json_text *line_out, invar_http *server,
                                     const invar_plugin_call *call) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
