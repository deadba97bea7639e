/*
 * recorded_replies.h - replies of plug-ins read from the ledger, for steps that are executed again.
 *
 * A step may be in several segments of a run; the newest one that has the step is used.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_ENGINE_EXT_RECORDED_REPLIES_H
#define INVAR_ENGINE_EXT_RECORDED_REPLIES_H

#include "engine/ext/plugin.h"

/*
 * Recorded replies of one step. Zero-initialize before use; release with
 * invar_recorded_replies_release.
 */
typedef struct invar_recorded_replies {
    bool found; /* the ledger has the step, with or without replies */
    /* replies of all plug-ins, ordered by name and call; view of `list` */
    invar_plugin_replies replies;
    invar_plugin_reply_list list;
} invar_recorded_replies;

/*
 * Reads the replies of a step from the newest segment that has it, and discards earlier content.
 * Returns INVAR_E_CORRUPT if a row of the ledger does not match its checksum.
 */
invar_status invar_recorded_replies_read(invar_recorded_replies *out, invar_ledger *ledger,
                                         int64_t run, int64_t step) INVAR_MUST_USE;
void invar_recorded_replies_release(invar_recorded_replies *stored);

/*
 * Writes the hash of the plug-in's files (invar_plugin_hash) in the newest segment that has the
 * step; empty if unknown.
 */
invar_status invar_recorded_replies_plugin_hash(char out[INVAR_DIGEST_HEX_SIZE],
                                                const invar_plugin *plugin, invar_ledger *ledger,
                                                int64_t run, int64_t step) INVAR_MUST_USE;

/*
 * Returns INVAR_E_STATE if the replies of a step were given by a plug-in with other files
 * (invar_plugin_hash). Does nothing if the files of either are unknown.
 */
invar_status invar_recorded_replies_check(const invar_plugin *plugin, invar_ledger *ledger,
                                          int64_t run, int64_t step) INVAR_MUST_USE;

/*
 * Checks a hook without a recorded reply: returns INVAR_E_NOTFOUND if the metrics of the step show
 * that it gave a factor for the loss. A shortened ledger keeps metrics and omits replies.
 */
invar_status invar_recorded_replies_check_factor(const invar_plugin *plugin, invar_ledger *ledger,
                                                 int64_t run, int64_t step) INVAR_MUST_USE;

#endif
