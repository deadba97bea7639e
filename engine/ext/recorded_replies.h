/*
 * recorded_replies.h - replies of plug-ins out of a ledger, for steps that are executed again.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_EXT_RECORDED_REPLIES_H
#define INVAR_ENGINE_EXT_RECORDED_REPLIES_H

#include "engine/ext/plugin.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Zeroed at first; release. */
typedef struct invar_recorded_replies {
    bool found;                       /* the ledger has the step, with or without replies */
    invar_plugin_replies replies;     /* of all plug-ins, by name and call */
    invar_ledger_plugin_reply *items; /* the same, with owned names and data */
    size_t count, capacity;
} invar_recorded_replies;

/*
 * Reads the replies of a step as it counts: those of the newest segment that has the step. Forgets
 * earlier ones. Returns INVAR_E_CORRUPT if a row of the ledger does not have the values of its sum.
 */
invar_status invar_recorded_replies_read(invar_recorded_replies *out, invar_ledger *ledger,
                                         int64_t run, int64_t step) INVAR_MUST_USE;
void invar_recorded_replies_release(invar_recorded_replies *stored);

/*
 * The hash that the plug-in's files had (invar_plugin_hash) when a step, as it counts, was done;
 * "": it is not known.
 */
invar_status invar_recorded_replies_maker(char out[INVAR_DIGEST_HEX_SIZE],
                                          const invar_plugin *plugin, invar_ledger *ledger,
                                          int64_t run, int64_t step) INVAR_MUST_USE;

/*
 * INVAR_E_STATE when the replies of a step, as it counts, were given by a plug-in with other files
 * (invar_plugin_hash). Where the files of either are not known, nothing is refused.
 */
invar_status invar_recorded_replies_check(const invar_plugin *plugin, invar_ledger *ledger,
                                          int64_t run, int64_t step) INVAR_MUST_USE;

/*
 * Of a hook without a stored reply: INVAR_E_NOTFOUND when the metrics of the step, as it counts,
 * say that it gave a factor for the loss. A shortened ledger keeps metrics, and leaves out replies.
 */
invar_status invar_recorded_replies_check_factor(const invar_plugin *plugin, invar_ledger *ledger,
                                                 int64_t run, int64_t step) INVAR_MUST_USE;

/* What invar_plugin_begin_step takes: NULL for a step that the ledger does not have. Borrowed. */
const invar_plugin_replies *invar_recorded_replies_replies(const invar_recorded_replies *stored);

#ifdef __cplusplus
}
#endif
#endif
