/*
 * flight_file.c - fuzz target: samples in flight, in a file whose last line fits.
 *
 * The run that reads it has rollout-lag = 2 and is at rollout 3. It reads each input with a dense
 * model and with one that has experts, with and without surplus groups, and as a run with a
 * recorded schedule: such files are in the corpus, as
 *
 *     invar train --prompt-data task:max --task-size 5 --rollout-batch-size 2
 *         --n-samples-per-prompt 2 --rollout-max-response-len 9 --rollout-lag 2
 *         --rollout-segment-tokens 3 --num-rollout 3 ... (surplus: --rm-type deterministic_random
 *         --dynamic-sampling-filter nonzero_std --over-sampling-keep-surplus true; recorded:
 *         --rollout-schedule recorded --rollout-segment-tokens 0)
 *
 * has written them. What is accepted can be in flight in that run, is written and read again, and
 * must be the same. After a refusal nothing is in flight.
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
    EACH = 2,
    VOCABULARY = 13,
    CONTEXT = 32,
    RESPONSE = 9
};
enum { MOST_GROUPS = 40 }; /* with surplus more than rollouts have */

static invar_model_spec spec = {.vocab = VOCABULARY, .max_positions = CONTEXT};

/* What the run knows: made once, with the data of its task. */
static invar_inflight_expectation wants_of(int64_t route_size, bool surplus, bool led,
                                           bool recorded)
{
    static invar_inflight_expectation wants;
    invar_dataset_options options = dataset_options("task:max", "label");
    invar_tokenizer *tokenizer;
    invar_dataset *data;

    if (!wants.data) {
        options.task_size = 5;
        options.seed = 42;
        INVAR_CHECK(invar_tokenizer_alphabet(&tokenizer, invar_builtin_task_alphabet("max")) ==
                    INVAR_OK);
        INVAR_CHECK(invar_dataset_open(&data, &options, tokenizer) == INVAR_OK);
        wants = (invar_inflight_expectation){.where = "fuzz",
                                             .data = data,
                                             .spec = &spec,
                                             .sampling = {.max_response = RESPONSE},
                                             .first = FIRST,
                                             .weights = FIRST,
                                             .samples = MOST_GROUPS * EACH,
                                             .groups = MOST_GROUPS,
                                             .round = PROMPTS,
                                             .per_prompt = EACH,
                                             .lag = LAG,
                                             .delay = DELAY};
        invar_tokenizer_hash(&wants.tokenizer, tokenizer);
        invar_tokenizer_free(tokenizer);
    }
    wants.route_size = route_size;
    wants.surplus = surplus;
    wants.led = led;
    wants.recorded = recorded;
    return wants;
}

static void check_sample(const invar_rl_sample *s, const invar_inflight_expectation *wants)
{
    bool bare = s->n_tokens == s->prompt_tokens;

    INVAR_CHECK(s->prompt_tokens >= 1 && s->n_tokens >= s->prompt_tokens);
    INVAR_CHECK(!bare || (wants->recorded && s->finish == INVAR_FINISH_NONE));
    INVAR_CHECK(s->n_tokens <= s->prompt_tokens + RESPONSE && s->n_tokens <= CONTEXT);
    INVAR_CHECK(s->current_version_from == s->n_tokens && !s->logp == bare && !s->mask == bare);
    INVAR_CHECK((s->finish == INVAR_FINISH_NONE) == !s->response);
    INVAR_CHECK(s->index >= 0 && s->index < wants->samples);
    INVAR_CHECK(s->first_version >= 0 && s->first_version <= s->last_version &&
                s->last_version <= FIRST);
    INVAR_CHECK(s->route_size == (bare ? 0 : wants->route_size));
    INVAR_CHECK(s->route_size == 0 || s->routing);
    for (int64_t i = 0; i < s->n_tokens; i++)
        INVAR_CHECK(s->tokens[i] >= 0 && s->tokens[i] < VOCABULARY);
}

static void format(char **text, size_t *bytes, const invar_inflight *flight,
                   const invar_inflight_expectation *wants)
{
    invar_rollout_header header = {.rollout = FIRST,
                                   .weights = FIRST,
                                   .tokenizer = wants->tokenizer,
                                   .n_samples_per_prompt = EACH,
                                   .sampling = wants->sampling};

    INVAR_CHECK(invar_inflight_format(text, bytes, flight, &header) == INVAR_OK);
}

static void check_flight(const invar_inflight *flight, const invar_inflight_expectation *wants)
{
    invar_inflight again = {.count = 0};
    char *first, *second;
    size_t first_bytes, second_bytes;

    INVAR_CHECK(flight->count >= 0 && flight->count <= INVAR_LAG_MAX);
    INVAR_CHECK(flight->first == FIRST || wants->recorded);
    if (wants->recorded)
        INVAR_CHECK(flight->first >= FIRST - DELAY && flight->first + flight->count == FIRST + LAG);
    INVAR_CHECK(wants->surplus || flight->surplus.count == 0);
    INVAR_CHECK(flight->count > 0 || flight->surplus.count > 0);
    for (int64_t i = 0; i < flight->surplus.count; i++) {
        check_sample(&flight->surplus.items[i], wants);
        INVAR_CHECK(flight->surplus.items[i].finish != INVAR_FINISH_NONE);
        INVAR_CHECK(flight->surplus.items[i].rollout < FIRST);
    }
    for (int64_t r = 0; r < flight->count; r++) {
        INVAR_CHECK(flight->started[r].count <= PROMPTS * EACH);
        INVAR_CHECK(wants->recorded ||
                    flight->started[r].count >= (wants->surplus ? EACH : PROMPTS * EACH));
        for (int64_t i = 0; i < flight->started[r].count; i++)
            check_sample(&flight->started[r].items[i], wants);
    }
    format(&first, &first_bytes, flight, wants);
    INVAR_CHECK(invar_inflight_parse(&again, first, first_bytes, wants) == INVAR_OK);
    format(&second, &second_bytes, &again, wants);
    INVAR_CHECK(first_bytes == second_bytes && memcmp(first, second, first_bytes) == 0);
    invar_inflight_release(&again);
    invar_free(first);
    invar_free(second);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t bytes;
    char *text = rollout_text(&bytes, data, size);

    for (int kind = 0; kind < 10; kind++) {
        const bool recorded = kind >= 8;
        const invar_inflight_expectation wants =
            recorded ? wants_of(2 * (kind & 1), false, false, true)
                     : wants_of(kind & 2, kind & 1, kind & 4, false);
        invar_inflight flight = {.count = 0};
        invar_status status = invar_inflight_parse(&flight, text, bytes, &wants);

        if (status == INVAR_OK) {
            check_flight(&flight, &wants);
        } else {
            INVAR_CHECK(status == INVAR_E_CORRUPT || status == INVAR_E_INVALID ||
                        status == INVAR_E_UNSUPPORTED);
            INVAR_CHECK(strncmp(invar_error_last()->message, "fuzz", 4) == 0);
            fuzz_check_failure(status);
            for (int64_t r = 0; r <= INVAR_LAG_MAX; r++)
                INVAR_CHECK(flight.count == 0 && flight.started[r].count == 0);
            INVAR_CHECK(flight.surplus.count == 0);
        }
        invar_inflight_release(&flight);
    }
    invar_free(text);
    return 0;
}
