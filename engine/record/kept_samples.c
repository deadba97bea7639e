/*
 * kept_samples.c - samples that the ledger keeps with their text.
 *
 * A sample is one line of JSON, compressed with gzip (docs/formats.md). The text of a token is what
 * it adds to the settled text before it, so a character of several tokens belongs to the last of
 * them.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/record/kept_samples.h"

#include <math.h>
#include <string.h>

#include "base/alloc.h"
#include "base/json/text.h"
#include "base/sort.h"
#include "base/zip/gzip.h"
#include "engine/text/tokenizer/tokenizer.h"

#include "base/invar_banned.h"

enum {
    LEVELS = 16
}; // one level has 1/16 of the bytes, and records half as many steps as the previous level

bool invar_kept_samples_wants(int64_t step, uint64_t bytes)
{
    uint64_t level = bytes / (INVAR_KEPT_SAMPLES_BYTES / LEVELS);

    return level < LEVELS && ((uint64_t)step & (((uint64_t)1 << level) - 1)) == 0;
}

/* ---- choice ---------------------------------------------------------------------------------- */

/* Orders samples by reward, then by index; a reward that is not a number comes first. */
static int by_reward(const void *a, const void *b)
{
    const invar_rl_sample *x = a, *y = b;

    if (isnan(x->reward) != isnan(y->reward))
        return isnan(x->reward) ? -1 : 1;
    if (x->reward < y->reward || x->reward > y->reward)
        return x->reward < y->reward ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

/*
 * Marks `keep` samples, evenly from the lowest reward to the highest, in `chosen` (step->count),
 * which the caller has zeroed.
 */
static invar_status choose_samples(bool *chosen, const invar_step_report *step, int64_t keep)
{
    const invar_rl_sample *samples = step->samples + step->first;
    const void **order;

    if (keep > step->count)
        keep = step->count;
    INVAR_TRY(INVAR_ALLOC(order, (size_t)step->count, "samples to keep"));
    for (int64_t i = 0; i < step->count; i++)
        order[i] = &samples[i];
    invar_status status = invar_sort(order, (size_t)step->count, by_reward);
    for (int64_t i = 0; i < keep && status == INVAR_OK; i++) {
        int64_t place = keep > 1 ? i * (step->count - 1) / (keep - 1) : 0;
        chosen[(const invar_rl_sample *)order[place] - samples] = true;
    }
    invar_free(order);
    return status;
}

/* ---- a sample as JSON ------------------------------------------------------------------------ */

/* Writes numbers; those that are not finite become null. */
static void put_numbers(invar_json_text *out, const char *key, const float *values, int64_t count)
{
    invar_json_text_put_open(out, key, '[');
    for (int64_t i = 0; i < count; i++) {
        if (isfinite(values[i]))
            invar_json_text_f32(out, values[i]);
        else
            invar_json_text_null(out);
    }
    invar_json_text_close(out, ']');
}

static invar_status put_prompt(invar_json_text *out, const invar_tokenizer *tokenizer,
                               const invar_rl_sample *s)
{
    size_t bytes;
    char *text;

    INVAR_TRY(invar_tokenizer_decode(&text, &bytes, tokenizer, s->tokens, s->prompt_tokens, false));
    invar_json_text_key(out, "prompt");
    invar_json_text_string(out, text, bytes);
    invar_free(text);
    return INVAR_OK;
}

/* Writes the label. A long one is truncated, so that it leaves space for samples of later steps. */
static void put_label(invar_json_text *out, const invar_rl_sample *s)
{
    const char *label = s->data.label
                            ? s->data.label
                            : ""; // samples from files of other programs may have no label
    size_t bytes = strlen(label), kept = bytes;

    if (bytes > INVAR_KEPT_SAMPLES_LABEL_BYTES) {
        kept = INVAR_KEPT_SAMPLES_LABEL_BYTES;
        while (kept > 0 &&
               ((unsigned char)label[kept] & 0xC0) == 0x80) // not within a UTF-8 character
            kept--;
        invar_json_text_put_int(out, "label_bytes", (int64_t)bytes);
    }
    invar_json_text_key(out, "label");
    invar_json_text_string(out, label, kept);
}

/* Writes the text of each token of the response. */
static invar_status put_response(invar_json_text *out, const invar_tokenizer *tokenizer,
                                 const invar_rl_sample *s)
{
    invar_text_stream stream = {0};
    invar_status status = INVAR_OK;
    size_t written = 0;

    invar_json_text_put_open(out, "response", '[');
    for (int64_t i = s->prompt_tokens; i < s->n_tokens && status == INVAR_OK; i++) {
        bool last = i + 1 == s->n_tokens;

        status = invar_text_stream_push(&stream, tokenizer, s->tokens[i], false);
        if (status == INVAR_OK && last)
            status = invar_text_stream_flush(&stream, tokenizer);
        size_t end = last ? stream.bytes : stream.stable_bytes;
        if (status != INVAR_OK)
            break;
        invar_json_text_string(out, end > written ? stream.text + written : "",
                               end > written ? end - written : 0);
        written = end > written ? end : written;
    }
    invar_json_text_close(out, ']');
    invar_text_stream_release(&stream);
    return status;
}

static invar_status put_sample(invar_json_text *out, const invar_recorder *r,
                               const invar_step_report *step, int64_t at)
{
    const invar_rl_sample *s = &step->samples[at];
    const invar_token_arrays *f = step->flat;
    int64_t first = f->offsets[at], count = f->offsets[at + 1] - first;

    invar_json_text_open(out, '{');
    invar_json_text_put_int(out, "group", s->group);
    put_label(out, s);
    INVAR_TRY(put_prompt(out, r->options.tokenizer, s));
    invar_json_text_put_ints(out, "prompt_tokens", s->tokens, s->prompt_tokens);
    INVAR_TRY(put_response(out, r->options.tokenizer, s));
    invar_json_text_put_ints(out, "tokens", s->tokens + s->prompt_tokens, count);
    put_numbers(out, "logp", f->rollout_logp + first, count);
    put_numbers(out, "advantage", f->advantage + first, count);
    invar_json_text_put_bytes(out, "drawn", f->sampled_mask + first, count);
    invar_json_text_close(out, '}');
    return out->status;
}

/* ---- samples of a step ----------------------------------------------------------------------- */

/* Compresses a sample. Leaves out one that exceeds the reader's limit, or the `room` bytes left. */
static invar_status pack_sample(invar_kept_samples *out, const invar_json_text *text,
                                int64_t sample, uint64_t room)
{
    invar_ledger_kept_sample *item = &out->items[out->count];
    char *data;

    if (text->bytes > INVAR_LEDGER_KEPT_SAMPLE_BYTES)
        return INVAR_OK;
    INVAR_TRY(invar_gzip_pack(&data, &item->bytes, text->data, text->bytes));
    if (item->bytes > room - out->bytes) {
        invar_free(data);
        return INVAR_OK;
    }
    out->bytes += item->bytes;
    item->sample = sample;
    item->data = data;
    out->count++;
    return INVAR_OK;
}

static invar_status pack_chosen(invar_kept_samples *out, const invar_recorder *r,
                                const invar_step_report *step, bool *chosen)
{
    invar_json_text text = {0};

    memset(chosen, 0, (size_t)step->count * sizeof *chosen);
    invar_status status = choose_samples(chosen, step, r->options.n_keep_samples);
    for (int64_t i = 0; i < step->count && status == INVAR_OK; i++) {
        if (!chosen[i])
            continue;
        invar_json_text_reset(&text);
        status = put_sample(&text, r, step, step->first + i);
        if (status == INVAR_OK)
            status = pack_sample(out, &text, i, INVAR_KEPT_SAMPLES_BYTES - r->kept_bytes);
    }
    invar_json_text_release(&text);
    return status;
}

invar_status invar_kept_samples_make(invar_kept_samples *out, const invar_recorder *recorder,
                                     const invar_step_report *step)
{
    const invar_recorder_options *o = &recorder->options;
    bool *chosen;

    *out = (invar_kept_samples){0};
    if (!recorder->ledger || o->n_keep_samples == 0 || !o->tokenizer || step->count == 0 ||
        !invar_kept_samples_wants(step->number, recorder->kept_bytes))
        return INVAR_OK;
    INVAR_TRY(INVAR_ALLOC(out->items, (size_t)o->n_keep_samples, "samples that are kept"));
    INVAR_TRY(INVAR_ALLOC(chosen, (size_t)step->count, "samples that are kept"));
    invar_status status = pack_chosen(out, recorder, step, chosen);
    invar_free(chosen);
    return status;
}

void invar_kept_samples_release(invar_kept_samples *kept)
{
    for (size_t i = 0; i < kept->count; i++)
        invar_free((void *)(uintptr_t)kept->items[i].data);
    invar_free(kept->items);
    *kept = (invar_kept_samples){0};
}

static invar_status on_byte_count(void *payload, const char *const *columns,
                                  const invar_ledger_value *values, int count)
{
    (void)columns;
    (void)count;
    if (values)
        *(uint64_t *)payload = (uint64_t)values[0].integer;
    return INVAR_OK;
}

invar_status invar_kept_samples_measure(uint64_t *out, invar_ledger *ledger, int64_t run)
{
    const invar_ledger_argument argument = {"run", {.type = INVAR_LEDGER_TYPE_INT, .integer = run}};

    *out = 0;
    return invar_ledger_select(
        ledger, &(invar_ledger_select_request){.sql = "SELECT CAST(total(length(data)) AS INTEGER)"
                                                      " FROM kept_sample WHERE run = :run",
                                               .arguments = &argument,
                                               .n_arguments = 1,
                                               .row = on_byte_count,
                                               .payload = out});
}
