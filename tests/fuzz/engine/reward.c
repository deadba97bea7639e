/*
 * reward.c - fuzz target: every built-in reward on any response, label and metadata.
 *
 * The input is cut at its first two bytes 0x1E: response, label, metadata. Each reward is a number
 * in its range, or INVAR_E_INVALID with a proper message. The same input gives the same result, and
 * a boxed answer is right if it is also the label.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/rl/reward/reward.h"

#include <stdlib.h>
#include <string.h>

#include "engine/rl/reward/answer_text.h"
#include "tests/fuzz/fuzz.h"
#include "tests/fuzz/scratch.h"

/* Returns a NUL-terminated copy, for label and metadata. */
static char *copy_text(const uint8_t *data, size_t size)
{
    char *text = malloc(size + 1);

    INVAR_CHECK(text);
    memcpy(text, data, size);
    text[size] = '\0';
    return text;
}

static size_t part_length(const uint8_t *data, size_t size)
{
    const uint8_t *mark = size ? memchr(data, 0x1E, size) : NULL;

    return mark ? (size_t)(mark - data) : size;
}

static void check_rewards(const invar_rl_sample *sample)
{
    for (int i = 0; i < 2 * INVAR_REWARD_COUNT; i++) {
        double first = -9, second = -9;
        invar_status status = invar_reward_of(&first, (invar_reward)(i / 2), i % 2, sample);
        if (status != INVAR_OK) {
            INVAR_CHECK(status == INVAR_E_INVALID);
            fuzz_check_failure(status);
            invar_error_clear();
        }
        INVAR_CHECK(invar_reward_of(&second, (invar_reward)(i / 2), i % 2, sample) == status);
        invar_error_clear();
        if (status != INVAR_OK)
            continue;
        INVAR_CHECK(first >= -1.0 && first <= 1.0);
        INVAR_CHECK(first == second);
    }
}

/*
 * Uses the text of the box as the label, which must make the response right. Skips a box that is
 * empty, too long or cannot be a label.
 */
static void check_boxed_answer(const invar_rl_sample *sample)
{
    invar_str_view response = {sample->response, sample->response_bytes}, box;
    invar_rl_sample other = *sample;
    double value;
    char *label;

    if (!invar_str_view_boxed(&box, response) || box.length == 0 || box.length > 1000 ||
        memchr(box.text, '\0', box.length) || invar_str_view_find(box, 0, "\\boxed") < box.length)
        return;
    label = copy_text((const uint8_t *)box.text, box.length);
    other.data.label = label;
    other.data.metadata = "{}";
    INVAR_CHECK(invar_reward_of(&value, INVAR_REWARD_MATH, false, &other) == INVAR_OK);
    INVAR_CHECK(value == 1.0);
    free(label);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    size_t response = part_length(data, size), at = response < size ? response + 1 : size;
    size_t label = part_length(data + at, size - at),
           rest = at + label < size ? at + label + 1 : size;
    char *label_text = copy_text(data + at, label), *metadata = copy_text(data + rest, size - rest);
    int32_t tokens[] = {1, -2, 3};
    invar_rl_sample sample = {.tokens = tokens,
                              .n_tokens = 3,
                              .response = (char *)(uintptr_t)data,
                              .response_bytes = response,
                              .data.label = label_text,
                              .data.metadata = metadata[0] ? metadata : "{}"};

    check_rewards(&sample);
    check_boxed_answer(&sample);
    free(label_text);
    free(metadata);
    return 0;
}
