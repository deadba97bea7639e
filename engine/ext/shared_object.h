/*
 * shared_object.h - a plug-in that is a shared object.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_EXT_SHARED_OBJECT_H
#define INVAR_ENGINE_EXT_SHARED_OBJECT_H

#include "engine/ext/plugin_call.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct invar_shared_object invar_shared_object;

/* Loads a file and opens the plug-in in it. `name` is for messages and borrowed. */
invar_status invar_shared_object_open(invar_shared_object **out, const char *name,
                                      const char *path) INVAR_MUST_USE;
void invar_shared_object_close(invar_shared_object *object);

/* What it offers, as a mask, and the name it has given itself. */
uint32_t invar_shared_object_kinds(const invar_shared_object *object);
const char *invar_shared_object_title(const invar_shared_object *object);

/* Answers into the arrays of the call; what it wrote there is not checked yet. */
invar_status invar_shared_object_call(invar_shared_object *object,
                                      const invar_plugin_call *call) INVAR_MUST_USE;

/* What it reports of a hook that was told, likewise. */
invar_status invar_shared_object_report(invar_json_text *line_out, invar_shared_object *object,
                                        const invar_plugin_call *call) INVAR_MUST_USE;

/* The same for turns, as the line of a program; what it says is not checked yet. */
invar_status invar_shared_object_turns(invar_json_text *line_out, invar_shared_object *object,
                                       const invar_plugin_call *call) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
