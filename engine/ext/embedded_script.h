/*
 * embedded_script.h - Python scripts that are part of this program, each in a child process: one
 * JSON object a line is asked, one a line answers.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_EXT_EMBEDDED_SCRIPT_H
#define INVAR_ENGINE_EXT_EMBEDDED_SCRIPT_H

#include <jansson.h>

#include "base/json/text.h"
#include "engine/ext/line_process.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * Starts python3 with script_loop.py and the script of that file name as its argument; -I keeps it
 * from looking into the current folder and the user's settings. `name` is for messages and
 * borrowed; every answer must come within `seconds`.
 */
invar_status invar_embedded_script_open(invar_line_process **out, const char *name,
                                        const char *file, double seconds) INVAR_MUST_USE;

/* The command that starts python3 with the script of that file name alone: the `spec` of a plug-in
   that is part of this program. The caller owns *out (invar_free). */
invar_status invar_embedded_script_command(char **out, const char *file) INVAR_MUST_USE;

/*
 * Ends the line, sends it, and empties it. *out is the answer, and the caller's (json_decref). A
 * member "error" of it is ours: INVAR_E_INVALID, "NAME: TEXT". `raw`: its texts may have NUL.
 */
invar_status invar_embedded_script_ask(json_t **out, invar_line_process *program, const char *name,
                                       invar_json_text *line, bool raw) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
