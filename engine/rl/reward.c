/*
 * reward.c - which rule judges a response, and the rules that need a line or two.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/rl/reward.h"

#include <stdio.h>
#include <string.h>

#include "base/json/json.h"
#include "base/text.h"
#include "engine/rl/rules.h"
#include "ledger/sha256.h"

#include "base/invar_banned.h"

static const char *const names[INVAR_REWARD_COUNT] = {
    [INVAR_REWARD_NONE] = "none",   [INVAR_REWARD_MATH] = "math",
    [INVAR_REWARD_DAPO] = "dapo",   [INVAR_REWARD_F1] = "f1",
    [INVAR_REWARD_GPQA] = "gpqa",   [INVAR_REWARD_DETERMINISTIC_RANDOM] = "deterministic_random",
    [INVAR_REWARD_EXACT] = "exact", [INVAR_REWARD_OVERLAP] = "overlap",
};

const char *invar_reward_name(invar_reward reward)
{
    return (size_t)reward < INVAR_REWARD_COUNT ? names[reward] : "unknown";
}

invar_status invar_reward_parse(invar_reward *out, bool *boxed_out, const char *name)
{
    static const char prefix[] = "boxed_";
    bool boxed = strncmp(name, prefix, sizeof prefix - 1) == 0;
    const char *rest = boxed ? name + sizeof prefix - 1 : name;
    char quoted[INVAR_TEXT_QUOTE_SIZE];

    for (int i = 0; i < INVAR_REWARD_COUNT; i++) {
        if (strcmp(rest, names[i]) == 0) {
            *out = (invar_reward)i;
            *boxed_out = boxed;
            return INVAR_OK;
        }
    }
    invar_text_quote(quoted, sizeof quoted, name, strlen(name));
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "is \"%s\", which is no reward; there are math, dapo, f1, gpqa, "
                      "deterministic_random, exact and overlap, each also with boxed_ before it",
                      quoted);
}

bool invar_reward_needs_label(invar_reward reward)
{
    return reward == INVAR_REWARD_MATH || reward == INVAR_REWARD_DAPO ||
           reward == INVAR_REWARD_F1 || reward == INVAR_REWARD_EXACT ||
           reward == INVAR_REWARD_OVERLAP;
}

/* The bits of a coin thrown by tokens and text: SHA-256 of "[1, 2, 3]" and the response. */
static double deterministic_random(const invar_rl_sample *sample, invar_piece response)
{
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
    invar_sha256_update(&sha, response.text, response.length);
    invar_sha256_final(digest, &sha);
    return digest[0] % 2;
}

static double exact(invar_piece response, invar_piece label)
{
    invar_piece a = invar_piece_trim(response), b = invar_piece_trim(label);

    return a.length == b.length && memcmp(a.text, b.text, a.length) == 0 ? 1.0 : 0.0;
}

/* Bytes of the character at `at`: its first and those that continue it. */
static size_t char_bytes(invar_piece p, size_t at)
{
    size_t end = at + 1;

    while (end < p.length && (p.text[end] & 0xC0) == 0x80)
        end++;
    return end - at;
}

static double overlap(invar_piece response, invar_piece label)
{
    invar_piece a = invar_piece_trim(response), b = invar_piece_trim(label);
    size_t i = 0, same = 0, all = 0;

    for (size_t j = 0; j < b.length; all++) {
        size_t size = char_bytes(b, j), other = i < a.length ? char_bytes(a, i) : 0;
        same += size == other && memcmp(a.text + i, b.text + j, size) == 0;
        i += other;
        j += size;
    }
    if (all == 0)
        return a.length == 0 ? 1.0 : 0.0;
    return (double)same / (double)all;
}

/* What GSM8K's labels have after their solution, "#### 72" as a line; else the label. */
static invar_piece final_answer(invar_piece label)
{
    for (size_t at = label.length; at-- > 0;) {
        bool begins = at == 0 || label.text[at - 1] == '\n';
        if (begins && label.length - at >= 4 && memcmp(label.text + at, "####", 4) == 0)
            return invar_piece_trim((invar_piece){label.text + at + 4, label.length - at - 4});
    }
    return label;
}

static invar_status apply(double *out, invar_reward reward, invar_piece response,
                          const invar_rl_sample *sample)
{
    invar_piece label = {sample->label, strlen(sample->label)};

    switch (reward) {
    case INVAR_REWARD_MATH: *out = invar_rule_math(response, final_answer(label)); return INVAR_OK;
    case INVAR_REWARD_DAPO: *out = invar_rule_dapo(response, final_answer(label)); return INVAR_OK;
    case INVAR_REWARD_F1: return invar_rule_f1(out, response, label);
    case INVAR_REWARD_GPQA: return invar_rule_gpqa(out, response, label, sample->metadata);
    case INVAR_REWARD_DETERMINISTIC_RANDOM:
        *out = deterministic_random(sample, response);
        return INVAR_OK;
    case INVAR_REWARD_EXACT: *out = exact(response, label); return INVAR_OK;
    case INVAR_REWARD_OVERLAP: *out = overlap(response, label); return INVAR_OK;
    case INVAR_REWARD_NONE:
    case INVAR_REWARD_COUNT: break;
    }
    *out = 0.0;
    return INVAR_OK;
}

/* metadata.rm_type goes before the recipe's; most samples have none. */
static invar_status override(invar_reward *reward, bool *boxed, const char *metadata)
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

invar_status invar_reward_of(double *out, invar_reward reward, bool boxed,
                             const invar_rl_sample *sample)
{
    invar_piece response = {sample->response ? sample->response : "", sample->response_bytes};

    INVAR_TRY(override(&reward, &boxed, sample->metadata));
    boxed = boxed && reward != INVAR_REWARD_MATH; // which looks for the box itself
    if (boxed && !invar_piece_boxed(&response, response))
        response = (invar_piece){"", 0};
    return apply(out, reward, response, sample);
}
