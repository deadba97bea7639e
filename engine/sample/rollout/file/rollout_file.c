/*
 * rollout_file.c - writes rollout files.
 *
 * Lines are formatted one at a time, hashed, and either written to a temporary file that replaces
 * the old one, or kept in memory. Order and format of all members are fixed, because equal rollouts
 * must give equal bytes. rollout_file_read.c accepts the members in any order.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/rollout/file/rollout_file.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json/text.h"
#include "engine/sample/rollout/file/trailer.h"

#include "base/invar_banned.h"

#define PLACE "{rollout_id}"
#define FORMAT "invar-rollout"
#define MARK "{\"format\":\"" FORMAT "\"," /* first bytes of every rollout file */

invar_status invar_rollout_file_path(char *out, size_t size, const char *pattern, int64_t rollout)
{
    size_t used = 0;

    while (*pattern) {
        const char *place = strstr(pattern, PLACE);
        size_t plain = place ? (size_t)(place - pattern) : strlen(pattern);
        int more;
        if (plain > size || used > size - plain)
            break;
        memcpy(out + used, pattern, plain);
        used += plain;
        pattern += plain;
        if (!place)
            continue;
        more = snprintf(out + used, size - used, "%" PRId64, rollout);
        used += more > 0 ? (size_t)more : 0;
        if (used >= size)
            break;
        pattern += sizeof PLACE - 1;
    }
    if (*pattern || used >= size)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "the name of a rollout file has more than %zu bytes",
                          size - 1);
    out[used] = '\0';
    return INVAR_OK;
}

/* ---- lines ----------------------------------------------------------------------------------- */

static void put_f32(invar_json_text *text, const char *key, float value)
{
    invar_json_text_key(text, key);
    invar_json_text_f32(text, value);
}

static void put_sampling(invar_json_text *text, const invar_sampling_params *s)
{
    invar_json_text_put_open(text, "sampling", '{');
    invar_json_text_put_int(text, "seed", s->seed);
    invar_json_text_put_int(text, "purpose", s->purpose);
    put_f32(text, "temperature", s->temperature);
    invar_json_text_put_int(text, "top_k", s->top_k);
    put_f32(text, "top_p", s->top_p);
    put_f32(text, "min_p", s->min_p);
    invar_json_text_put_int(text, "max_response", s->max_response);
    invar_json_text_put_int(text, "max_context", s->max_context);
    invar_json_text_put_int(text, "min_response", s->min_response);
    invar_json_text_put_open(text, "stop_ids", '[');
    for (int64_t i = 0; i < s->n_stop_ids; i++)
        invar_json_text_int(text, s->stop_ids[i]);
    invar_json_text_close(text, ']');
    invar_json_text_put_open(text, "stop", '[');
    for (int64_t i = 0; i < s->n_stop; i++)
        invar_json_text_string(text, s->stop[i], strlen(s->stop[i]));
    invar_json_text_close(text, ']');
    invar_json_text_put_bool(text, "skip_special", s->skip_special);
    invar_json_text_close(text, '}');
}

static void put_header(invar_json_text *text, const invar_rollout_header *header)
{
    const invar_rollout_policy *policy = &header->policy;

    invar_json_text_open(text, '{');
    invar_json_text_put_string(text, "format", FORMAT);
    invar_json_text_put_int(text, "version", policy->dtype ? INVAR_ROLLOUT_FILE_VERSION : 1);
    invar_json_text_put_int(text, "rollout", header->rollout);
    invar_json_text_put_digest(text, "run", &header->run);
    invar_json_text_put_int(text, "weights", header->weights);
    invar_json_text_put_digest(text, "weights_hash", &header->weights_hash);
    invar_json_text_put_digest(text, "tokenizer", &header->tokenizer);
    invar_json_text_put_int(text, "n_samples_per_prompt", header->n_samples_per_prompt);
    if (header->filters)
        invar_json_text_put_int(text, "filtered_groups", header->filtered);
    put_sampling(text, &header->sampling);
    if (policy->dtype) {
        invar_json_text_put_string(text, "dtype", policy->dtype);
        invar_json_text_put_string(text, "numerics", policy->numerics ? policy->numerics : "");
        invar_json_text_put_digest(text, "model", &policy->model);
    }
    invar_json_text_close(text, '}');
    invar_json_text_newline(text);
}

/* Writes the routing: each expert id as four hexadecimal digits, low byte first. */
static invar_status put_routing(invar_json_text *text, const invar_rl_sample *s)
{
    static const char digits[] = "0123456789abcdef";
    int64_t count = s->routing ? (s->n_tokens - 1) * s->route_size : 0;
    char hex[1024];

    invar_json_text_key(text, "routing");
    if (!s->routing) {
        invar_json_text_null(text);
        return INVAR_OK;
    }
    invar_json_text_value(text, "\"", 1);
    for (int64_t i = 0; i < count;) {
        size_t used = 0;
        for (; i < count && used < sizeof hex; i++) {
            int32_t expert = s->routing[i];
            if (expert < 0 || expert > UINT16_MAX)
                return INVAR_FAIL(INVAR_E_INVALID, 0,
                                  "sample %" PRId64 " was routed to expert %" PRId32
                                  ", which a rollout file cannot hold",
                                  s->index, expert);
            hex[used++] = digits[expert >> 4 & 15];
            hex[used++] = digits[expert & 15];
            hex[used++] = digits[expert >> 12 & 15];
            hex[used++] = digits[expert >> 8 & 15];
        }
        invar_json_text_append(text, hex, used);
    }
    invar_json_text_append(text, "\"", 1);
    return INVAR_OK;
}

/* Writes the reward parts, if the reward has any. */
static void put_parts(invar_json_text *text, const invar_reward_parts *parts)
{
    if (parts->count == 0)
        return;
    invar_json_text_put_open(text, "parts", '{');
    for (int64_t i = 0; i < parts->count; i++) {
        invar_json_text_put_f64(text, parts->items[i].name, parts->items[i].value);
    }
    invar_json_text_close(text, '}');
}

static invar_status put_sample(invar_json_text *text, const invar_rl_sample *s)
{
    invar_json_text_open(text, '{');
    invar_json_text_put_int(text, "index", s->index);
    invar_json_text_put_int(text, "group", s->group);
    invar_json_text_put_int(text, "prompt", s->data.line);
    invar_json_text_put_int(text, "rollout", s->rollout);
    invar_json_text_put_int(text, "draw", s->draw_index);
    invar_json_text_put_string(text, "prompt_text", s->data.prompt ? s->data.prompt : "");
    invar_json_text_put_string(text, "label", s->data.label ? s->data.label : "");
    invar_json_text_key(text, "metadata");
    invar_json_text_value(text, s->data.metadata ? s->data.metadata : "{}",
                          s->data.metadata ? strlen(s->data.metadata) : 2);
    invar_json_text_put_int(text, "prompt_tokens", s->prompt_tokens);
    invar_json_text_put_ints(text, "tokens", s->tokens, s->n_tokens);
    invar_json_text_key(text, "logprobs");
    invar_json_text_f32s(text, s->logp, invar_rl_sample_response(s));
    invar_json_text_put_bytes(text, "mask", s->mask, invar_rl_sample_response(s));
    invar_json_text_put_int(text, "route_size", s->route_size);
    INVAR_TRY(put_routing(text, s));
    invar_json_text_key(text, "response");
    invar_json_text_string(text, s->response ? s->response : "", s->response_bytes);
    invar_json_text_put_string(text, "finish", invar_finish_name(s->finish));
    invar_json_text_put_int(text, "weights", s->weights.last);
    if (s->weights.first != s->weights.last)
        invar_json_text_put_int(text, "weights_first", s->weights.first);
    invar_json_text_put_digest(text, "weights_hash", &s->weights.hash);
    invar_json_text_put_digest(text, "prompt_hash", &s->data.hash);
    invar_json_text_put_f64(text, "reward", s->reward);
    put_parts(text, &s->parts);
    invar_json_text_put_bool(text, "removed", s->is_masked_out);
    if (s->turns)
        invar_json_text_put_int(text, "turns", s->turns);
    invar_json_text_close(text, '}');
    invar_json_text_newline(text);
    return text->status;
}

void invar_rollout_file_format_trailer(char out[INVAR_ROLLOUT_FILE_TRAILER_SIZE], int64_t samples,
                                       invar_sha256 *sha)
{
    uint8_t sum[INVAR_SHA256_BYTES];
    int used = snprintf(out, INVAR_ROLLOUT_FILE_TRAILER_SIZE,
                        "{\"end\":true,\"samples\":%" PRId64 ",\"sha256\":\"", samples);

    invar_sha256_final(sum, sha);
    for (size_t i = 0; i < sizeof sum; i++)
        used +=
            snprintf(out + used, INVAR_ROLLOUT_FILE_TRAILER_SIZE - (size_t)used, "%02x", sum[i]);
    snprintf(out + used, INVAR_ROLLOUT_FILE_TRAILER_SIZE - (size_t)used, "\"}\n");
}

/* ---- the file -------------------------------------------------------------------------------- */

typedef struct file_output {
    invar_file_writer *writer; /* file to write; NULL to keep all lines in `text` */
    invar_json_text text;
    size_t hashed;    /* bytes of `text` that are hashed already */
    invar_sha256 sha; /* hash of all lines so far */
} file_output;

static invar_status flush_line(file_output *out)
{
    INVAR_TRY(out->text.status);
    invar_sha256_update(&out->sha, out->text.data + out->hashed, out->text.bytes - out->hashed);
    out->hashed = out->text.bytes;
    if (!out->writer)
        return INVAR_OK;
    INVAR_TRY(invar_file_writer_put(out->writer, out->text.data, out->text.bytes));
    invar_json_text_reset(&out->text);
    out->hashed = 0;
    return INVAR_OK;
}

static invar_status put_file(file_output *out, const invar_rollout_header *header,
                             const invar_rl_sample *samples, int64_t count)
{
    char end[INVAR_ROLLOUT_FILE_TRAILER_SIZE];

    invar_sha256_init(&out->sha);
    put_header(&out->text, header);
    INVAR_TRY(flush_line(out));
    for (int64_t i = 0; i < count; i++) {
        INVAR_TRY(put_sample(&out->text, &samples[i]));
        INVAR_TRY(flush_line(out));
    }
    invar_rollout_file_format_trailer(end, count, &out->sha);
    invar_json_text_append(&out->text, end, strlen(end));
    return flush_line(out);
}

invar_status invar_rollout_file_format(char **out, size_t *bytes_out,
                                       const invar_rollout_header *header,
                                       const invar_rl_sample *samples, int64_t count)
{
    file_output all = {0};
    invar_status status = put_file(&all, header, samples, count);

    *out = status == INVAR_OK ? all.text.data : NULL;
    *bytes_out = status == INVAR_OK ? all.text.bytes : 0;
    if (status != INVAR_OK)
        invar_json_text_release(&all.text);
    return status;
}

static invar_status make_folder(const char *path)
{
    const char *slash = strrchr(path, '/');
    char folder[INVAR_PATH_SIZE];

    if (!slash || slash == path)
        return INVAR_OK;
    if ((size_t)(slash - path) >= sizeof folder)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "the path of a rollout file is too long");
    memcpy(folder, path, (size_t)(slash - path));
    folder[slash - path] = '\0';
    return invar_held_folder_make(folder);
}

invar_status invar_rollout_file_check(const char *pattern, int64_t count)
{
    char path[INVAR_PATH_SIZE];

    for (int64_t i = 0; i < count; i++) {
        INVAR_TRY(invar_rollout_file_path(path, sizeof path, pattern, i));
        INVAR_TRY(invar_path_check_output(path, MARK, 0));
        INVAR_TRY(invar_path_check_creatable(path));
    }
    return INVAR_OK;
}

invar_status invar_rollout_file_write(const char *path, const invar_rollout_header *header,
                                      const invar_rl_sample *samples, int64_t count)
{
    file_output out = {0};
    invar_status status;

    INVAR_TRY(make_folder(path));
    INVAR_TRY(invar_path_check_output(path, MARK, 0));
    INVAR_TRY(invar_file_writer_open(&out.writer, path));
    status = put_file(&out, header, samples, count);
    if (status == INVAR_OK)
        status = invar_file_writer_commit(out.writer);
    invar_file_writer_close(out.writer);
    invar_json_text_release(&out.text);
    return status;
}
