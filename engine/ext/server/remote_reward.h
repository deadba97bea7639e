/*
 * remote_reward.h - reward model behind an HTTP server.
 *
 * The protocol is that of Miles: each sample is a POST of {"prompt", "response", "label"}, and the
 * body of the response is the reward, a number or an object of named parts. The responses of a call
 * become one line in the form of a program's reply, which the ledger keeps.
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

/*
 * Opens a client. `name` is used in error messages; `timeout` is the time limit of a request in
 * seconds, 0 for no limit.
 */
invar_status invar_remote_reward_open(invar_http **out, const char *name, const char *url,
                                      double timeout) INVAR_MUST_USE;

/* Requests the rewards of all samples of a call; `line_out` gets the reply line. */
invar_status invar_remote_reward_ask(invar_json_text *line_out, invar_http *server,
                                     const invar_plugin_call *call) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
