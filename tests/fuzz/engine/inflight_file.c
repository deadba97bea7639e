/*
 * inflight_file.c - fuzz target: the file of in-flight samples, with a valid trailer.
 *
 * The reader is a run with rollout-lag = 2 at rollout 3. Each input is read for a dense model and
 * for one with experts, with and without surplus groups, for multi-turn samples, and for a run with
 * a recorded schedule. An accepted file has samples that this run can continue, and is written and
 * read again to the same bytes. After a rejection nothing is in flight. The corpus has files of the
 * run
 *
 *     invar train --prompt-data task:max --task-size 5 --rollout-batch-size 2
 *         --n-samples-per-prompt 2 --rollout-max-response-len 9 --rollout-lag 2
 *         --rollout-segment-tokens 3 --num-rollout 3 ...
 *
 * with surplus (--rm-type deterministic_random --dynamic-sampling-filter nonzero_std
 * --over-sampling-keep-surplus true) or a recorded schedule (--rollout-schedule recorded
 * --rollout-segment-tokens 0).
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/source/inflight.h"

#include "tests/fuzz/engine/rollout_text.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/scratch.h"
#include "tests/unit/engine/files/data/options.h"

enum {
    FIRST = 3,
    LAG = 2,
    DELAY = 2,
    PROMPTS = 2,
    PER_PROMPT = 2,
    VOCABULARY = 13,
    CONTEXT = 32,
    RESPONSE = 9
};
enum { MAX_GROUPS = 40 }; /* more groups than the rollouts have, because of the surplus */

static invar_model_spec spec = {.vocab = VOCABULARY, .max_positions = CONTEXT};

/* Returns the expectation of the run; its data set is made once. */
static invar_inflight_expectation expectation_of(int64_t route_size, bool surplus, bool multi_turn,
                                                 bool recorded)
{
    static invar_inflight_expectation expected;
    invar_dataset_options options = dataset_options("task:max", "label");
    invar_tokenizer *tokenizer;
    invar_dataset *data;

    if (!expected.data) {
        options.task_size = 5;
        options.seed = 42;
        INVAR_CHECK(invar_tokenizer_alphabet(&tokenizer, invar_builtin_task_alphabet("max")) ==
                    INVAR_OK);
        INVAR_CHECK(invar_dataset_open(&data, &options, tokenizer) == INVAR_OK);
        expected = (invar_inflight_expectation){.where = "fuzz",
                                                .data = data,
                                                .spec = &spec,
                                                .sampling = {.max_response = RESPONSE},
                                                .first = FIRST,
                                                .weights = FIRST,
                                                .samples = MAX_GROUPS * PER_PROMPT,
                                                .groups = MAX_GROUPS,
                                                .round = PROMPTS,
                                                .per_prompt = PER_PROMPT,
                                                .schedule.lag = LAG,
                                                .schedule.max_delay = DELAY};
        invar_tokenizer_hash(&expected.tokenizer, tokenizer);
        invar_tokenizer_free(tokenizer);
    }
    expected.route_size = route_size;
    expected.schedule.surplus = surplus;
    expected.multi_turn = multi_turn;
    expected.schedule.recorded = recorded;
    return expected;
}

static void check_sample(const invar_rl_sample *s, const invar_inflight_expectation *expected)
{
    bool bare = s->n_tokens == s->prompt_tokens;

    INVAR_CHECK(s->prompt_tokens >= 1 && s->n_tokens >= s->prompt_tokens);
    INVAR_CHECK(!bare || (expected->schedule.recorded && s->finish == INVAR_FINISH_NONE));
    INVAR_CHECK(s->n_tokens <= s->prompt_tokens + RESPONSE && s->n_tokens <= CONTEXT);
    INVAR_CHECK(s->weights.last_from == s->n_tokens && !s->logp == bare && !s->mask == bare);
    INVAR_CHECK((s->finish == INVAR_FINISH_NONE) == !s->response);
    INVAR_CHECK(s->index >= 0 && s->index < expected->samples);
    INVAR_CHECK(s->weights.first >= 0 && s->weights.first <= s->weights.last &&
                s->weights.last <= FIRST);
    INVAR_CHECK(s->route_size == (bare ? 0 : expected->route_size));
    INVAR_CHECK(s->route_size == 0 || s->routing);
    for (int64_t i = 0; i < s->n_tokens; i++)
        INVAR_CHECK(s->tokens[i] >= 0 && s->tokens[i] < VOCABULARY);
}

static void format_file(char **text, size_t *bytes, const invar_inflight *inflight,
                        const invar_inflight_expectation *expected)
{
    invar_rollout_header header = {.rollout = FIRST,
                                   .weights = FIRST,
                                   .tokenizer = expected->tokenizer,
                                   .n_samples_per_prompt = PER_PROMPT,
                                   .sampling = expected->sampling};

    INVAR_CHECK(invar_inflight_format(text, bytes, inflight, &header) == INVAR_OK);
}

static void check_inflight(const invar_inflight *inflight,
                           const invar_inflight_expectation *expected)
{
    invar_inflight reread = {.count = 0};
    char *first, *second;
    size_t first_bytes, second_bytes;

    INVAR_CHECK(inflight->count >= 0 && inflight->count <= INVAR_LAG_MAX);
    INVAR_CHECK(inflight->first == FIRST || expected->schedule.recorded);
    if (expected->schedule.recorded)
        INVAR_CHECK(inflight->first >= FIRST - DELAY &&
                    inflight->first + inflight->count == FIRST + LAG);
    INVAR_CHECK(expected->schedule.surplus || inflight->surplus.count == 0);
    INVAR_CHECK(inflight->count > 0 || inflight->surplus.count > 0);
    for (int64_t i = 0; i < inflight->surplus.count; i++) {
        check_sample(&inflight->surplus.items[i], expected);
        INVAR_CHECK(inflight->surplus.items[i].finish != INVAR_FINISH_NONE);
        INVAR_CHECK(inflight->surplus.items[i].rollout < FIRST);
    }
    for (int64_t r = 0; r < inflight->count; r++) {
        INVAR_CHECK(inflight->started[r].count <= PROMPTS * PER_PROMPT);
        INVAR_CHECK(expected->schedule.recorded ||
                    inflight->started[r].count >=
                        (expected->schedule.surplus ? PER_PROMPT : PROMPTS * PER_PROMPT));
        for (int64_t i = 0; i < inflight->started[r].count; i++)
            check_sample(&inflight->started[r].items[i], expected);
    }
    format_file(&first, &first_bytes, inflight, expected);
    INVAR_CHECK(invar_inflight_parse(&reread, first, first_bytes, expected) == INVAR_OK);
    format_file(&second, &second_bytes, &reread, expected);
    INVAR_CHECK(first_bytes == second_bytes && memcmp(first, second, first_bytes) == 0);
    invar_inflight_release(&reread);
    invar_free(first);
    invar_free(second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t bytes;
    char *text = rollout_text(&bytes, data, size);

    for (int kind = 0; kind < 10; kind++) {
        const bool recorded = kind >= 8;
        const invar_inflight_expectation expected =
            recorded ? expectation_of(2 * (kind & 1), false, false, true)
                     : expectation_of(kind & 2, kind & 1, kind & 4, false);
        invar_inflight inflight = {.count = 0};
        invar_status status = invar_inflight_parse(&inflight, text, bytes, &expected);

        if (status == INVAR_OK) {
            check_inflight(&inflight, &expected);
        } else {
            INVAR_CHECK(status == INVAR_E_CORRUPT || status == INVAR_E_INVALID ||
                        status == INVAR_E_UNSUPPORTED);
            INVAR_CHECK(strncmp(invar_error_last()->message, "fuzz", 4) == 0);
            fuzz_check_failure(status);
            for (int64_t r = 0; r <= INVAR_LAG_MAX; r++)
                INVAR_CHECK(inflight.count == 0 && inflight.started[r].count == 0);
            INVAR_CHECK(inflight.surplus.count == 0);
        }
        invar_inflight_release(&inflight);
    }
    invar_free(text);
    return 0;
}
