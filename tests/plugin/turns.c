/*
 * turns.c - a plug-in that leads multi-turn samples of task:guess with hints, as text or as tokens.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/ext/invar_plugin.h"

static const char *const names[] = {"found", "turns", 0};

static int generate(void *self, const invar_plugin_turn *turns, size_t count,
                    invar_plugin_next *next, char *error)
{
    static const int32_t higher[] = {11};
    static const char *const stop[] = {"7", "<", 0};
    static double parts[1024][2];

    (void)self;
    (void)error;
    for (size_t i = 0; i < count && i < 1024; i++) {
        parts[i][0] = turns[i].text_bytes > 0 && turns[i].text[0] == turns[i].sample.label[0];
        parts[i][1] = (double)turns[i].turn;
        next[i] = (invar_plugin_next){.end = turns[i].last || parts[i][0] == 1.0,
                                      .rewarded = turns[i].sample.index % 3 != 0,
                                      .reward = parts[i][0],
                                      .parts = parts[i],
                                      .max_tokens = 2};
        if (turns[i].sample.index % 2) {
            next[i].text = "<";
            next[i].text_bytes = 1;
            next[i].stop = stop;
        } else {
            next[i].tokens = higher;
            next[i].n_tokens = 1;
        }
    }
    return 0;
}

const invar_plugin_table invar_plugin_v1 = {INVAR_PLUGIN_HEAD("turns"), .part_names = names,
                                            .generate = generate};
