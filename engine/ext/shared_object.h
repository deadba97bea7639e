/*
 * shared_object.h - plug-ins that are C shared objects.
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

/* Loads a file and opens the plug-in in it. `name` is used in error messages, and borrowed. */
invar_status invar_shared_object_open(invar_shared_object **out, const char *name,
                                      const char *path) INVAR_MUST_USE;
void invar_shared_object_close(invar_shared_object *object);

/* Kinds that the plug-in offers, as a mask, and the name that it reports. */
uint32_t invar_shared_object_kinds(const invar_shared_object *object);
const char *invar_shared_object_title(const invar_shared_object *object);

/*
 * Calls the function of the call's kind, which writes its answer into the buffers of the call. The
 * answer is not checked yet.
 */
invar_status invar_shared_object_call(invar_shared_object *object,
                                      const invar_plugin_call *call) INVAR_MUST_USE;

/* Calls the report function of a hook and writes its report as a line of JSON, not parsed yet. */
invar_status invar_shared_object_report(invar_json_text *line_out, invar_shared_object *object,
                                        const invar_plugin_call *call) INVAR_MUST_USE;

/*
 * Calls the generate function and writes its actions as the line that a program would send, not
 * parsed yet.
 */
invar_status invar_shared_object_turns(invar_json_text *line_out, invar_shared_object *object,
                                       const invar_plugin_call *call) INVAR_MUST_USE;

#ifdef __cplusplus
}
#endif
#endif
