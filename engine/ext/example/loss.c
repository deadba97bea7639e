/*
 * loss.c - example of a loss in a shared object: REINFORCE, without ratio or clip.
 *
 *     loss-type = custom_loss
 *     custom-loss-function-path = build/plugins/loss.so
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ext/invar_plugin.h"

static int reinforce_loss(void *self, const invar_plugin_tokens *tokens, float *dlogp, float *loss,
                          char *error)
{
    (void)self;
    (void)error;
    for (int64_t i = 0; i < tokens->count; i++) {
        loss[i] = -(tokens->advantage[i] * tokens->logp[i]);
        dlogp[i] = -tokens->advantage[i];
    }
    return 0;
}

const invar_plugin_table invar_plugin_v1 = {INVAR_PLUGIN_HEAD("reinforce"), .loss = reinforce_loss};
