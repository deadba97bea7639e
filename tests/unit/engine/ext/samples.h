/*
 * samples.h - fixed samples and loss inputs for the tests of plug-ins.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_UNIT_ENGINE_EXT_SAMPLES_H
#define INVAR_TESTS_UNIT_ENGINE_EXT_SAMPLES_H

#include <string.h>

#include "base/alloc.h"
#include "engine/rl/loss.h"
#include "engine/rl/sample.h"
#include "tests/support.h"

/*
 * Appends six samples with indices 100 to 105 in three groups of two. Their responses are "is 7",
 * "8" and "7" in turn, with 3, 2 and 1 tokens; the label is 7, so "8" is wrong. Release with
 * invar_rl_samples_reset.
 */
static inline void make_samples(invar_rl_samples *out)
{
    static const char *const responses[3] = {"is 7", "8", "7"};

    memset(out, 0, sizeof *out);
    for (int i = 0; i < 6; i++) {
        invar_rl_sample *s;
        const char *response = responses[i % 3];
        assert_ok(invar_rl_samples_append(&s, out));
        s->index = 100 + i;
        s->group = 50 + i / 2;
        s->prompt_tokens = 2;
        s->n_tokens = 2 + 3 - i % 3;
        assert_ok(INVAR_ALLOC(s->tokens, 8, "tokens"));
        for (int t = 0; t < 8; t++)
            s->tokens[t] = 10 * i + t;
        s->response_bytes = strlen(response);
        assert_ok(INVAR_ALLOC(s->response, s->response_bytes + 1, "text"));
        memcpy(s->response, response, s->response_bytes + 1);
        s->data.prompt = "3+4=";
        s->data.label = "7";
        s->data.metadata = "{}";
        s->finish = INVAR_FINISH_STOP;
    }
}

/* Returns storage for the reward parts of six samples, for plug-ins that return no parts. */
static inline invar_reward_parts *no_parts(void)
{
    static invar_reward_parts none[6];

    return none;
}

/*
 * Returns the loss input of three tokens with floats that are hard to print: subnormal, not exact
 * in decimal, above 2^24. `ref` (3) are reference log-probs; it may be NULL.
 */
static inline invar_loss_sample loss_sample(const float *ref)
{
    static const float logp[3] = {-0.1f, -0x1.fffffep-3f, -1e-38f};
    static const float old[3] = {-0.3f, -16777217.0f, -0x1p-149f};
    static const float advantage[3] = {0.7f, -0.0f, 1.0f / 3.0f};
    static const uint8_t mask[3] = {1, 0, 1};

    return (invar_loss_sample){.sample = 4,
                               .tokens = 3,
                               .mask = mask,
                               .logp = logp,
                               .old_logp = old,
                               .ref_logp = ref,
                               .advantage = advantage};
}

#endif
