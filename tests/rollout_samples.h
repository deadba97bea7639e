/*
 * rollout_samples.h - a small rollout with everything that a rollout file can contain.
 *
 * The values are edge cases: text with NUL bytes and non-ASCII characters, log-probs of -0 and
 * subnormal numbers, and samples with and without routing, reward parts, turns and a label.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#ifndef INVAR_TESTS_ROLLOUT_SAMPLES_H
#define INVAR_TESTS_ROLLOUT_SAMPLES_H

#include <string.h>

#include "base/alloc.h"
#include "engine/sample/rollout/file/rollout_file.h"
#include "tests/support.h"

static const int32_t rollout_stop_ids[2] = {2, 151645};
static const char *const rollout_stops[2] = {"\n\n", "</answer>"};

static inline invar_rollout_header rollout_header(void)
{
    return (invar_rollout_header){.rollout = 3,
                                  .run = {{1}},
                                  .weights = 7,
                                  .weights_hash = {{2}},
                                  .tokenizer = {{3}},
                                  .n_samples_per_prompt = 2,
                                  .filters = true,
                                  .filtered = 4,
                                  .sampling = {.seed = 4294967295u,
                                               .purpose = INVAR_PURPOSE_TRAIN,
                                               .temperature = 0.7f,
                                               .top_k = -1,
                                               .top_p = 1.0f / 3.0f,
                                               .max_response = 64,
                                               .stop_ids = rollout_stop_ids,
                                               .n_stop_ids = 2,
                                               .stop = rollout_stops,
                                               .n_stop = 2,
                                               .skip_special = true},
                                  .policy = {"bf16", "ieee", {{4}}}};
}

/*
 * Makes `count` samples in groups of two, each with three prompt tokens and `response` response
 * tokens.
 */
static inline void make_rollout(invar_rl_samples *out, int count, int64_t response)
{
    static const char text[] = "x = \"7\"\\\n\0\xc3\xa9\xf0\x9f\x98\x80";

    memset(out, 0, sizeof *out);
    for (int i = 0; i < count; i++) {
        invar_rl_sample *s;
        uint64_t seed = (uint64_t)i + 5;
        assert_ok(invar_rl_samples_append(&s, out));
        s->index = 1000 + i;
        s->group = 500 + i / 2;
        s->data.line = 1017 - i / 2; // not ascending
        s->rollout = 3;
        s->draw_index = (uint32_t)i;
        s->prompt_tokens = 3;
        s->n_tokens = 3 + response;
        s->route_size = i % 2 ? 0 : 2;
        assert_ok(INVAR_ALLOC_SIZED(s->tokens, (size_t)s->n_tokens, 4, "tokens"));
        assert_ok(INVAR_ALLOC_SIZED(s->logp, (size_t)response, 4, "logp"));
        assert_ok(INVAR_ALLOC(s->mask, (size_t)response, "mask"));
        for (int64_t t = 0; t < s->n_tokens; t++)
            s->tokens[t] = (int32_t)(invar_test_random(seed, (uint64_t)t) % 151936);
        for (int64_t t = 0; t < response; t++) {
            uint32_t bits = invar_test_random(seed + 100, (uint64_t)t) | UINT32_C(0x80000000);
            bits &= ~UINT32_C(0x00800000); // finite
            bits = t == 0 ? UINT32_C(0x80000000) : t == 1 ? UINT32_C(0x80000001) : bits;
            memcpy(&s->logp[t], &bits, sizeof bits);
            s->mask[t] = t % 3 != 0;
        }
        if (s->route_size) {
            size_t routes = (size_t)((s->n_tokens - 1) * s->route_size);
            assert_ok(INVAR_ALLOC_SIZED(s->routing, routes, 4, "routing"));
            for (size_t r = 0; r < routes; r++)
                s->routing[r] = (int32_t)(invar_test_random(seed + 200, r) & 0xFFFF);
        }
        s->response_bytes = sizeof text - 1;
        assert_ok(INVAR_ALLOC(s->response, sizeof text, "text"));
        memcpy(s->response, text, sizeof text);
        s->data.prompt = "3+4=\t";
        s->data.label = i ? "7" : "";
        s->data.metadata = i ? "{\"a\":[0.10000000000000001,null],\"b\":\"\\u0001\"}" : "{}";
        s->finish = i % 2 ? INVAR_FINISH_STOP : INVAR_FINISH_LENGTH;
        s->weights.last = 7;
        s->weights.first = i == 1 ? 5 : 7;
        s->weights.hash = (invar_digest){{2}};
        s->data.hash = (invar_digest){{0xfe, (uint8_t)i}};
        s->reward = i ? 0.1 * i : -0.0;
        if (i == 1) {
            assert_ok(invar_reward_parts_add(&s->parts, "right", 5, 0.1, "test"));
            assert_ok(invar_reward_parts_add(&s->parts, "form@t-1.2_", 11, -0.0, "test"));
        }
        s->is_masked_out = i == 1;
        s->turns = i == 1 ? 3 : 0;
    }
}

#endif
