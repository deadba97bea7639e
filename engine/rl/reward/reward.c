/*
 * reward.c - selects the reward function of a sample, and contains the shortest ones.
 *
 * The table comes from rewards.def. metadata.rm_type of a sample overrides the function and the
 * boxed_ prefix. Metadata are untrusted: unknown words are errors.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/rl/reward/reward.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/json/json.h"
#include "base/text.h"
#include "engine/rl/reward/reward_functions.h"
#include "ledger/sha256.h"

#include "base/invar_banned.h"

/* ---- reward functions ------------------------------------------------------------------------ */

static invar_status compute_none(double *out, const invar_reward_input *c)
{
    (void)c;
    *out = 0.0;
    return INVAR_OK;
}

/*
 * Function of external rewards. A plug-in computes them, so this is called only if the metadata of
 * a sample name one, which is an error.
 */
static invar_status compute_elsewhere(double *out, const invar_reward_input *c)
{
    *out = 0.0;
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "metadata of sample %" PRId64
                      ": \"rm_type\" is a reward that only a recipe's rm-type can name",
                      c->sample->index);
}

/* Returns the first byte of SHA-256 over "[1, 2, 3]", the tokens, and the response, modulo 2. */
static invar_status deterministic_random(double *out, const invar_reward_input *c)
{
    const invar_rl_sample *sample = c->sample;
    uint8_t digest[INVAR_SHA256_BYTES];
    invar_sha256 sha;
    char text[16];

    invar_sha256_init(&sha);
    invar_sha256_update(&sha, "[", 1);
    for (int64_t i = 0; i < sample->n_tokens; i++) {
        int length = snprintf(text, sizeof text, i > 0 ? ", %d" : "%d", (int)sample->tokens[i]);
        invar_sha256_update(&sha, text, (size_t)length);
    }
    invar_sha256_update(&sha, "]", 1);
    invar_sha256_update(&sha, c->response.text, c->response.length);
    invar_sha256_final(digest, &sha);
    *out = digest[0] % 2;
    return INVAR_OK;
}

/* Returns 1 if response and label are equal without blanks at their ends. */
static invar_status compute_exact(double *out, const invar_reward_input *c)
{
    invar_str_view a = invar_str_view_trim(c->response), b = invar_str_view_trim(c->label);

    *out = a.length == b.length && memcmp(a.text, b.text, a.length) == 0 ? 1.0 : 0.0;
    return INVAR_OK;
}

/* Returns the share of the label's characters that the response has at the same position. */
static invar_status compute_overlap(double *out, const invar_reward_input *c)
{
    invar_str_view a = invar_str_view_trim(c->response), b = invar_str_view_trim(c->label);
    size_t i = 0, same = 0, all = 0;

    for (size_t j = 0; j < b.length; all++) {
        size_t size = invar_str_view_character(b, j),
               other = i < a.length ? invar_str_view_character(a, i) : 0;
        same += size == other && memcmp(a.text + i, b.text + j, size) == 0;
        i += other;
        j += size;
    }
    *out = all == 0 ? (a.length == 0 ? 1.0 : 0.0) : (double)same / (double)all;
    return INVAR_OK;
}

/* ---- table ----------------------------------------------------------------------------------- */

static const invar_reward_traits reward_traits[INVAR_REWARD_COUNT] = {
#define INVAR_REWARD(ID, NAME, ...) [INVAR_REWARD_##ID] = {__VA_ARGS__},
#include "engine/rl/reward/rewards.def"
#undef INVAR_REWARD
};

static const char *const names[INVAR_REWARD_COUNT] = {
#define INVAR_REWARD(ID, NAME, ...) [INVAR_REWARD_##ID] = (NAME),
#include "engine/rl/reward/rewards.def"
#undef INVAR_REWARD
};

const invar_choices invar_reward_choices = {names, INVAR_REWARD_COUNT};

invar_status invar_reward_parse(invar_reward *out, bool *boxed_out, const char *name)
{
    static const char prefix[] = "boxed_";
    bool boxed = strncmp(name, prefix, sizeof prefix - 1) == 0;
    const char *rest = boxed ? name + sizeof prefix - 1 : name;
    char quoted[INVAR_TEXT_QUOTE_SIZE], known[INVAR_CHOICES_TEXT_SIZE];
    int reward = invar_choices_find(&invar_reward_choices, rest, strlen(rest));

    if (reward < 0) {
        invar_text_quote(quoted, sizeof quoted, name, strlen(name));
        invar_choices_text(known, sizeof known, &invar_reward_choices, ", ", " or ");
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "is \"%s\", which is no reward; expected %s, each also with boxed_ "
                          "before it",
                          quoted, known);
    }
    *out = (invar_reward)reward;
    *boxed_out = boxed;
    return INVAR_OK;
}

bool invar_reward_needs_label(invar_reward reward)
{
    return reward_traits[reward].needs_label;
}

bool invar_reward_is_external(invar_reward reward)
{
    return reward_traits[reward].is_external;
}

bool invar_reward_has_parts(invar_reward reward)
{
    return reward_traits[reward].has_parts;
}

/* ---- one sample ------------------------------------------------------------------------------ */

/* Returns the text after the last line start "####", as in labels of GSM8K; else the label. */
static invar_str_view final_answer(invar_str_view label)
{
    for (size_t at = label.length; at-- > 0;) {
        bool begins = at == 0 || label.text[at - 1] == '\n';
        if (begins && label.length - at >= 4 && memcmp(label.text + at, "####", 4) == 0)
            return invar_str_view_trim(
                (invar_str_view){label.text + at + 4, label.length - at - 4});
    }
    return label;
}

/* Applies metadata.rm_type, which takes precedence over the recipe; most samples have none. */
static invar_status apply_rm_type(invar_reward *reward, bool *boxed, const char *metadata)
{
    json_t *object;
    invar_status status;
    const char *name;

    if (!strstr(metadata, "\"rm_type\""))
        return INVAR_OK;
    INVAR_TRY(invar_json_parse(&object, "metadata of a sample", metadata, strlen(metadata)));
    name = json_string_value(json_object_get(object, "rm_type"));
    status = name && *name ? invar_reward_parse(reward, boxed, name) : INVAR_OK;
    json_decref(object);
    if (status != INVAR_OK)
        return INVAR_FAIL(status, 0, "metadata of a sample: \"rm_type\" %s",
                          invar_error_last()->message);
    return INVAR_OK;
}

invar_status invar_reward_has_function(bool *out, invar_reward reward,
                                       const invar_rl_sample *sample)
{
    bool boxed = false;

    INVAR_TRY(apply_rm_type(&reward, &boxed, sample->data.metadata));
    *out = reward != INVAR_REWARD_NONE;
    return INVAR_OK;
}

static invar_status evaluate_sample(double *out, invar_reward_parts *parts_out,
                                    const invar_rl_sample *sample, invar_reward reward, bool boxed,
                                    const char *key)
{
    invar_reward_input c = {
        .response = {sample->response ? sample->response : "", sample->response_bytes},
        .label = {sample->data.label, strlen(sample->data.label)},
        .sample = sample,
        .parts = parts_out};
    invar_status status;

    INVAR_TRY(apply_rm_type(&reward, &boxed, sample->data.metadata));
    if (boxed && !reward_traits[reward].finds_box && !invar_str_view_boxed(&c.response, c.response))
        c.response = (invar_str_view){"", 0};
    if (reward_traits[reward].final_answer)
        c.label = final_answer(c.label);
    status = reward_traits[reward].compute(out, &c);
    if (reward_traits[reward].parts_by_key && !key)
        invar_reward_parts_release(parts_out);
    return status;
}

invar_status invar_reward_of(double *out, invar_reward reward, bool boxed,
                             const invar_rl_sample *sample)
{
    invar_reward_parts parts = {NULL, 0};
    invar_status status = evaluate_sample(out, &parts, sample, reward, boxed, NULL);

    invar_reward_parts_release(&parts);
    return status;
}

invar_status invar_reward_compute(invar_rl_sample *sample, invar_reward reward, bool boxed,
                                  const char *key)
{
    invar_reward_parts_release(&sample->parts);
    INVAR_TRY(evaluate_sample(&sample->reward, &sample->parts, sample, reward, boxed, key));
    return invar_reward_select_part(sample, key);
}

invar_status invar_reward_select_part(invar_rl_sample *sample, const char *key)
{
    const invar_reward_part *part;

    if (!key)
        return INVAR_OK;
    part = invar_reward_parts_find(&sample->parts, key);
    if (!part)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "reward-key = %.80s: the reward of sample %" PRId64 " has no such part",
                          key, sample->index);
    sample->reward = part->value;
    return INVAR_OK;
}
