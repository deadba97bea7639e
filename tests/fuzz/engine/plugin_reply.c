/*
 * plugin_reply.c - fuzz target: lines of a plug-in program, and replies that a ledger has stored.
 *
 * The input is read as the greeting and as the reply to each kind of call, live and stored. It is
 * rejected with one printable line that names the plug-in, or all its values are finite and in
 * range. Accepted values are packed and read back the same.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/ext/plugin.h"
#include "engine/ext/plugin_call.h"
#include "tests/fuzz/fuzz.h"

enum { COUNT = 3, LINES = 40 };

static void check_refusal(invar_status status)
{
    const char *message = invar_error_last()->message;

    INVAR_CHECK(status == INVAR_E_CORRUPT || status == INVAR_E_UNSUPPORTED ||
                status == INVAR_E_STATE);
    INVAR_CHECK(strncmp(message, "plug-in judge: ", 15) == 0);
    for (; *message; message++)
        INVAR_CHECK((unsigned char)*message >= 0x20 && *message != 0x7F);
}

typedef struct reply {
    double reward[COUNT];
    invar_reward_parts parts[COUNT];
    uint8_t verdict[COUNT];
    float dlogp[COUNT], loss[COUNT];
    int64_t lines[COUNT];
} reply;

static void release_parts(reply *a)
{
    for (int i = 0; i < COUNT; i++)
        invar_reward_parts_release(&a->parts[i]);
}

static void check_parts(const invar_reward_parts *parts)
{
    INVAR_CHECK(parts->count <= INVAR_REWARD_PARTS);
    for (int64_t i = 0; i < parts->count; i++) {
        INVAR_CHECK(isfinite(parts->items[i].value) && parts->items[i].name[0]);
        INVAR_CHECK(!parts->items[i].name[INVAR_REWARD_NAME_SIZE - 1]);
        INVAR_CHECK(i == 0 || strcmp(parts->items[i - 1].name, parts->items[i].name) < 0);
    }
}

static void check_reply(const invar_plugin_call *call)
{
    for (int i = 0; i < COUNT; i++) {
        INVAR_CHECK(!call->reward || isfinite(call->reward[i]));
        if (call->parts)
            check_parts(&call->parts[i]);
        INVAR_CHECK(!call->verdict || call->verdict[i] <= INVAR_PLUGIN_DROP);
        INVAR_CHECK(!call->lines || (call->lines[i] >= 0 && call->lines[i] < LINES));
        INVAR_CHECK(!call->dlogp || (isfinite(call->dlogp[i]) && isfinite(call->loss[i])));
    }
}

/* Packs the reply and reads it into other arrays: every value must be the same. */
static void check_round_trip(const invar_plugin_call *call, const reply *first)
{
    reply reread = {.reward = {0}};
    invar_plugin_call second = *call;
    invar_json_text packed = {0};

    second.reward = call->reward ? reread.reward : NULL;
    second.parts = call->parts ? reread.parts : NULL;
    second.verdict = call->verdict ? reread.verdict : NULL;
    second.dlogp = call->dlogp ? reread.dlogp : NULL;
    second.loss = call->loss ? reread.loss : NULL;
    second.lines = call->lines ? reread.lines : NULL;
    INVAR_CHECK(invar_plugin_call_pack(&packed, call) == INVAR_OK);
    INVAR_CHECK(invar_plugin_call_read(&second, packed.data, packed.bytes, false) == INVAR_OK);
    INVAR_CHECK(memcmp(first->reward, reread.reward, sizeof reread.reward) == 0);
    for (int i = 0; i < COUNT; i++)
        INVAR_CHECK(invar_reward_parts_equal(&first->parts[i], &reread.parts[i]));
    release_parts(&reread);
    INVAR_CHECK(memcmp(first->verdict, reread.verdict, sizeof reread.verdict) == 0);
    INVAR_CHECK(memcmp(first->dlogp, reread.dlogp, sizeof reread.dlogp) == 0);
    INVAR_CHECK(memcmp(first->loss, reread.loss, sizeof reread.loss) == 0);
    INVAR_CHECK(memcmp(first->lines, reread.lines, sizeof reread.lines) == 0);
    invar_json_text_release(&packed);
}

static void fuzz_reply(uint32_t kind, bool live, const char *data, size_t size)
{
    static const invar_plugin_sample samples[COUNT];
    const invar_plugin_tokens tokens = {.count = COUNT};
    static const int64_t since[COUNT];
    const invar_plugin_buffer buffer = {.rollout = 2, .wanted = 1, .since = since};
    const invar_plugin_wanted wanted = {.count = COUNT, .lines = LINES};
    const bool filters = (kind & (INVAR_PLUGIN_KIND_FILTER | INVAR_PLUGIN_KIND_BUFFER_FILTER)) != 0;
    const invar_plugin_event event = {.hook = INVAR_PLUGIN_BEFORE_TRAIN_STEP};
    reply result = {.reward = {0}};
    double factor = 1.0;
    invar_plugin_call call = {.plugin = "judge", .kind = kind, .step = 1, .id = 7};
    invar_status status;

    if (kind == INVAR_PLUGIN_KIND_LOSS) {
        call.tokens = &tokens;
        call.dlogp = result.dlogp;
        call.loss = result.loss;
    } else if (kind == INVAR_PLUGIN_KIND_PROMPTS) {
        call.prompt_request = &wanted;
        call.lines = result.lines;
    } else if (kind != INVAR_PLUGIN_KIND_HOOK) {
        call.samples = samples;
        call.count = COUNT;
        call.buffer = kind == INVAR_PLUGIN_KIND_BUFFER_FILTER ? &buffer : NULL;
        call.verdict = filters ? result.verdict : NULL;
        call.reward = filters ? NULL : result.reward;
        call.parts = call.reward ? result.parts : NULL;
    }
    call.measures = kind == INVAR_PLUGIN_KIND_HOOK ? result.parts : NULL;
    call.factor = &factor;
    call.event = kind == INVAR_PLUGIN_KIND_HOOK ? &event : NULL;
    status = invar_plugin_call_read(&call, data, size, live);
    if (status == INVAR_OK) {
        check_parts(&result.parts[0]);
        INVAR_CHECK(isfinite((float)factor));
        check_reply(&call);
        check_round_trip(&call, &result);
    } else
        check_refusal(status);
    release_parts(&result);
}

static void fuzz_greeting(const char *data, size_t size)
{
    char title[INVAR_PLUGIN_TITLE_SIZE];
    uint32_t kinds;
    invar_status status = invar_plugin_greet_read(title, &kinds, "judge", data, size);

    if (status != INVAR_OK) {
        check_refusal(status);
        return;
    }
    INVAR_CHECK(strlen(title) < sizeof title && kinds <= INVAR_PLUGIN_KINDS);
}

/*
 * Checks the action after a turn: it is an end or an insertion, never both, and its fields are
 * valid.
 */
static void check_turn_action(const invar_turn_action *next)
{
    INVAR_CHECK(!next->end || (!next->text && !next->tokens && next->max_tokens == 0));
    INVAR_CHECK(next->end || (!next->text != !next->tokens && !next->rewarded));
    INVAR_CHECK(isfinite(next->reward) && next->max_tokens >= 0 && next->n_tokens >= 0);
    INVAR_CHECK(!next->text || !next->text[next->text_bytes]);
    for (int64_t i = 0; i < next->n_tokens; i++)
        INVAR_CHECK(next->tokens[i] >= 0);
    INVAR_CHECK(!next->end || !next->stop);
    for (int64_t i = 0; next->stop && i < next->stop->count; i++)
        INVAR_CHECK(next->stop->strings[i][0]);
    check_parts(&next->parts);
}

static void fuzz_turn_actions(bool live, const char *data, size_t size)
{
    invar_turn_action next[COUNT] = {{.end = false}};
    const invar_plugin_call call = {.plugin = "judge",
                                    .kind = INVAR_PLUGIN_KIND_GENERATE,
                                    .id = 7,
                                    .count = COUNT,
                                    .next = next};
    invar_status status = invar_plugin_call_read(&call, data, size, live);

    if (status != INVAR_OK)
        check_refusal(status);
    for (int i = 0; i < COUNT; i++) {
        if (status == INVAR_OK)
            check_turn_action(&next[i]);
        invar_turn_action_release(&next[i]);
    }
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    fuzz_greeting((const char *)data, size);
    for (uint32_t kind = 1; kind <= INVAR_PLUGIN_KIND_PROMPTS; kind <<= 1) {
        if (kind & (INVAR_PLUGIN_KIND_GENERATE | INVAR_PLUGIN_KIND_TEACHER))
            continue;
        fuzz_reply(kind, true, (const char *)data, size);
        fuzz_reply(kind, false, (const char *)data, size);
    }
    fuzz_turn_actions(true, (const char *)data, size);
    fuzz_turn_actions(false, (const char *)data, size);
    return 0;
}
