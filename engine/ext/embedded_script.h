/*
 * embedded_script.h - Python scripts embedded in the executable, run as child processes.
 *
 * A script reads one JSON object per line and answers each with one line (line_process.h).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_EXT_EMBEDDED_SCRIPT_H
#define INVAR_ENGINE_EXT_EMBEDDED_SCRIPT_H

#include <jansson.h>

#include "base/json/text.h"
#include "engine/ext/line_process.h"

/*
 * Starts python3 with the embedded scripts `files`, the names of files between blanks, which
 * follow each other as one text; the first is script_loop.py. -I ignores the current folder and
 * the user's settings. `name` is used in error messages, and borrowed. `seconds` is the time limit
 * of each answer.
 */
invar_status invar_embedded_script_open(invar_line_process **out, const char *name,
                                        const char *files, double seconds) INVAR_MUST_USE;

/*
 * Makes the command that starts python3 with the embedded scripts `files` only: the `spec` of an
 * embedded plug-in. The caller frees *out with invar_free.
 */
invar_status invar_embedded_script_command(char **out, const char *files) INVAR_MUST_USE;

/*
 * Ends the line, sends it, and empties it. The caller releases the answer *out with json_decref. An
 * "error" in it is returned as INVAR_E_INVALID, "NAME: TEXT". If `raw`, its strings may contain
 * NUL.
 */
invar_status invar_embedded_script_ask(json_t **out, invar_line_process *program, const char *name,
                                       invar_json_text *line, bool raw) INVAR_MUST_USE;

#endif
