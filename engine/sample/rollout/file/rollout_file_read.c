/*
 * rollout_file_read.c - reads and validates rollout files, whose content is untrusted.
 *
 * The trailer is checked first, so that a truncated or changed file is rejected before anything
 * else in it is used. All lines before it must have the members that rollout_file.c writes, in any
 * order: none missing or unknown, every number in its range, and every array of the length that the
 * other members imply.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json/json.h"
#include "engine/sample/rollout/file/rollout_file.h"
#include "engine/sample/rollout/file/trailer.h"
#include "kernels-deterministic/math/philox.h"

#include "base/invar_banned.h"

#define MAX_BYTES ((size_t)64 << 30)
#define MAX_ROUTE_SIZE (INT64_C(1) << 31)
#define WHERE_SIZE (INVAR_PATH_SHOWN_SIZE + 24)

/* The line being parsed. */
typedef struct file_line {
    char where[WHERE_SIZE]; /* path and line number, for messages */
    const json_t *object;   /* borrowed */
    size_t members;         /* number of members read so far */
} file_line;

/* ---- members --------------------------------------------------------------------------------- */

static invar_status read_int(int64_t *out, file_line *l, const char *key, int64_t low, int64_t high)
{
    l->members++;
    return invar_json_as_corrupt(invar_json_int(out, l->object, key, l->where, low, high));
}

static invar_status read_u32(uint32_t *out, file_line *l, const char *key)
{
    int64_t value;

    INVAR_TRY(read_int(&value, l, key, 0, UINT32_MAX));
    *out = (uint32_t)value;
    return INVAR_OK;
}

static invar_status read_f64(double *out, file_line *l, const char *key)
{
    l->members++;
    return invar_json_as_corrupt(invar_json_real(out, l->object, key, l->where));
}

static invar_status read_f32(float *out, file_line *l, const char *key)
{
    double value;

    INVAR_TRY(read_f64(&value, l, key));
    *out = (float)value;
    if (!isfinite(*out))
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: \"%s\" is too large", l->where, key);
    return INVAR_OK;
}

static invar_status read_bool(bool *out, file_line *l, const char *key)
{
    l->members++;
    return invar_json_as_corrupt(invar_json_bool(out, l->object, key, l->where));
}

/* *out = string member, borrowed from the line. Fails if it contains a NUL. */
static invar_status read_string(const char **out, file_line *l, const char *key)
{
    l->members++;
    INVAR_TRY(invar_json_as_corrupt(invar_json_string(out, l->object, key, l->where)));
    if (strlen(*out) != json_string_length(json_object_get(l->object, key)))
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: \"%s\" has a NUL", l->where, key);
    return INVAR_OK;
}

static invar_status read_digest(invar_digest *out, file_line *l, const char *key)
{
    const char *hex;

    INVAR_TRY(read_string(&hex, l, key));
    if (invar_digest_read(out, hex) != INVAR_OK)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: \"%s\" is no hash of 32 lower-case digits",
                          l->where, key);
    return INVAR_OK;
}

/* *out = list member, borrowed; NULL if the value is null. */
static invar_status read_list(const json_t **out, file_line *l, const char *key)
{
    const json_t *value = json_object_get(l->object, key);

    l->members++;
    *out = json_is_null(value) ? NULL : value;
    if (!json_is_null(value) && !json_is_array(value))
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: \"%s\" is no list", l->where, key);
    return INVAR_OK;
}

static invar_status check_length(const file_line *l, const char *key, const json_t *list,
                                 int64_t count)
{
    if ((int64_t)json_array_size(list) == count)
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: \"%s\" has %zu values, expected %" PRId64, l->where,
                      key, json_array_size(list), count);
}

static invar_status wrong_value(const file_line *l, const char *key, size_t i)
{
    return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: value %zu of \"%s\" is not an allowed value",
                      l->where, i, key);
}

/* Fails if the line has members that were not read. */
static invar_status check_no_more_members(const file_line *l)
{
    if (json_object_size(l->object) == l->members)
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: %zu members, %zu are known", l->where,
                      json_object_size(l->object), l->members);
}

/* ---- arrays ---------------------------------------------------------------------------------- */

/* Reads a list of token ids of any length. The caller frees *out with invar_free. */
static invar_status read_ints(int32_t **out, int64_t *count_out, file_line *l, const char *key)
{
    const json_t *list;
    size_t count;

    INVAR_TRY(read_list(&list, l, key));
    if (!list)
        return wrong_value(l, key, 0);
    count = json_array_size(list);
    INVAR_TRY(INVAR_ALLOC(*out, count, "token ids"));
    *count_out = (int64_t)count;
    for (size_t i = 0; i < count; i++) {
        const json_t *value = json_array_get(list, i);
        json_int_t id = json_integer_value(value);
        if (!json_is_integer(value) || id < 0 || id > INT32_MAX)
            return wrong_value(l, key, i);
        (*out)[i] = (int32_t)id;
    }
    return INVAR_OK;
}

static invar_status read_logprobs(invar_rl_sample *s, file_line *l)
{
    int64_t count = invar_rl_sample_response(s);
    const json_t *list;

    INVAR_TRY(read_list(&list, l, "logprobs"));
    if (!list)
        return INVAR_OK;
    INVAR_TRY(check_length(l, "logprobs", list, count));
    INVAR_TRY(INVAR_ALLOC(s->logp, (size_t)count, "log-probs"));
    for (size_t i = 0; i < (size_t)count; i++) {
        const json_t *value = json_array_get(list, i);
        s->logp[i] = (float)json_number_value(value);
        if (!json_is_number(value) || !isfinite(s->logp[i]))
            return wrong_value(l, "logprobs", i);
    }
    return INVAR_OK;
}

static invar_status read_mask(invar_rl_sample *s, file_line *l)
{
    int64_t count = invar_rl_sample_response(s);
    const json_t *list;

    INVAR_TRY(read_list(&list, l, "mask"));
    if (!list)
        return INVAR_OK;
    INVAR_TRY(check_length(l, "mask", list, count));
    INVAR_TRY(INVAR_ALLOC(s->mask, (size_t)count, "a mask"));
    for (size_t i = 0; i < (size_t)count; i++) {
        const json_t *value = json_array_get(list, i);
        json_int_t bit = json_integer_value(value);
        if (!json_is_integer(value) || bit < 0 || bit > 1)
            return wrong_value(l, "mask", i);
        s->mask[i] = (uint8_t)bit;
    }
    return INVAR_OK;
}

static int hex_digit(char c)
{
    if (c >= '0' && c <= '9')
        return c - '0';
    return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

static invar_status read_routing(invar_rl_sample *s, file_line *l)
{
    static const int shift[4] = {4, 0, 12, 8};
    size_t count = (size_t)((s->n_tokens - 1) * s->route_size);
    const char *hex;

    if (json_is_null(json_object_get(l->object, "routing"))) {
        l->members++;
        return INVAR_OK;
    }
    INVAR_TRY(read_string(&hex, l, "routing"));
    if (strlen(hex) != 4 * count)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: \"routing\" has %zu digits, expected %zu",
                          l->where, strlen(hex), 4 * count);
    INVAR_TRY(INVAR_ALLOC(s->routing, count, "routing"));
    for (size_t i = 0; i < count; i++) {
        s->routing[i] = 0;
        for (int j = 0; j < 4; j++) {
            int digit = hex_digit(hex[4 * i + (size_t)j]);
            if (digit < 0)
                return wrong_value(l, "routing", i);
            s->routing[i] |= digit << shift[j];
        }
    }
    return INVAR_OK;
}

/* ---- memory that header and samples borrow --------------------------------------------------- */

/* Allocates a block that is freed with the rollout file. */
static invar_status alloc_held(void **out, invar_rollout_file *data, size_t count, size_t size,
                               const char *what)
{
    INVAR_TRY(
        INVAR_GROW(data->memory, data->capacity, data->n_memory, data->n_memory + 1, "texts"));
    INVAR_TRY(invar_alloc(out, count, size, what));
    data->memory[data->n_memory++] = *out;
    return INVAR_OK;
}

static invar_status hold_text(const char **out, invar_rollout_file *data, const char *text)
{
    size_t bytes = strlen(text) + 1;
    void *copy = NULL;

    INVAR_TRY(alloc_held(&copy, data, bytes, 1, "a text"));
    memcpy(copy, text, bytes);
    *out = copy;
    return INVAR_OK;
}

static invar_status read_text(const char **out, invar_rollout_file *data, file_line *l,
                              const char *key)
{
    const char *text;

    INVAR_TRY(read_string(&text, l, key));
    return hold_text(out, data, text);
}

/* Stores metadata in the form of the data set: compact JSON with sorted keys. */
static invar_status read_metadata(invar_rl_sample *s, invar_rollout_file *data, file_line *l)
{
    const json_t *value = json_object_get(l->object, "metadata");
    invar_status status;
    size_t bytes;
    char *text;

    l->members++;
    if (!json_is_object(value))
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: \"metadata\" is no object", l->where);
    INVAR_TRY(invar_json_dump(&text, &bytes, value, JSON_COMPACT | JSON_SORT_KEYS, "metadata"));
    status = hold_text(&s->data.metadata, data, text);
    invar_free(text);
    return status;
}

/* Reads the response text, which may contain NULs. */
static invar_status read_response(invar_rl_sample *s, file_line *l)
{
    const json_t *value = json_object_get(l->object, "response");

    l->members++;
    if (!json_is_string(value))
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: \"response\" is no text", l->where);
    s->response_bytes = json_string_length(value);
    INVAR_TRY(INVAR_ALLOC(s->response, s->response_bytes + 1, "a response"));
    memcpy(s->response, json_string_value(value), s->response_bytes + 1);
    return INVAR_OK;
}

/* ---- lines ----------------------------------------------------------------------------------- */

static invar_status read_stops(invar_sampling_params *s, invar_rollout_file *data, file_line *l)
{
    const json_t *list;
    const char **stop;
    int32_t *ids = NULL;
    invar_status status = read_ints(&ids, &s->n_stop_ids, l, "stop_ids");
    void *copy = NULL;

    if (status == INVAR_OK)
        status = alloc_held(&copy, data, (size_t)s->n_stop_ids, sizeof *ids, "stop ids");
    if (status == INVAR_OK)
        memcpy(copy, ids, (size_t)s->n_stop_ids * sizeof *ids);
    s->stop_ids = copy;
    invar_free(ids);
    INVAR_TRY(status);
    INVAR_TRY(read_list(&list, l, "stop"));
    if (!list)
        return wrong_value(l, "stop", 0);
    s->n_stop = (int64_t)json_array_size(list);
    INVAR_TRY(alloc_held((void **)&stop, data, (size_t)s->n_stop, sizeof *stop, "stop strings"));
    s->stop = stop;
    for (size_t i = 0; i < (size_t)s->n_stop; i++) {
        const json_t *value = json_array_get(list, i);
        const char *text = json_string_value(value);
        if (!text || strlen(text) != json_string_length(value))
            return wrong_value(l, "stop", i);
        INVAR_TRY(hold_text(&stop[i], data, text));
    }
    return INVAR_OK;
}

static invar_status read_sampling(invar_sampling_params *s, invar_rollout_file *data,
                                  file_line *header)
{
    file_line l = {.object = json_object_get(header->object, "sampling")};
    int64_t purpose, top_k;

    header->members++;
    memcpy(l.where, header->where, sizeof l.where);
    INVAR_TRY(read_u32(&s->seed, &l, "seed"));
    INVAR_TRY(read_int(&purpose, &l, "purpose", 0, INVAR_PHILOX_PURPOSES - 1));
    s->purpose = (uint32_t)purpose;
    INVAR_TRY(read_f32(&s->temperature, &l, "temperature"));
    INVAR_TRY(read_int(&top_k, &l, "top_k", INT32_MIN, INT32_MAX));
    s->top_k = (int32_t)top_k;
    INVAR_TRY(read_f32(&s->top_p, &l, "top_p"));
    INVAR_TRY(read_f32(&s->min_p, &l, "min_p"));
    INVAR_TRY(read_int(&s->max_response, &l, "max_response", 0, INT64_MAX));
    INVAR_TRY(read_int(&s->max_context, &l, "max_context", 0, INT64_MAX));
    INVAR_TRY(read_int(&s->min_response, &l, "min_response", 0, INT64_MAX));
    INVAR_TRY(read_stops(s, data, &l));
    INVAR_TRY(read_bool(&s->skip_special, &l, "skip_special"));
    return check_no_more_members(&l);
}

static invar_status read_policy(invar_rollout_policy *out, invar_rollout_file *data, file_line *l)
{
    INVAR_TRY(read_text(&out->dtype, data, l, "dtype"));
    INVAR_TRY(read_text(&out->numerics, data, l, "numerics"));
    return read_digest(&out->model, l, "model");
}

static invar_status read_header(invar_rollout_file *data, file_line *l)
{
    invar_rollout_header *h = &data->header;
    const char *format;
    int64_t version;

    INVAR_TRY(read_string(&format, l, "format"));
    if (strcmp(format, "invar-rollout") != 0)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: no rollout file", l->where);
    INVAR_TRY(read_int(&version, l, "version", 1, INT64_MAX));
    if (version > INVAR_ROLLOUT_FILE_VERSION)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0,
                          "%s: version %" PRId64 " of the format, this engine reads 1 to %d",
                          l->where, version, INVAR_ROLLOUT_FILE_VERSION);
    INVAR_TRY(read_int(&h->rollout, l, "rollout", 0, INT64_MAX));
    INVAR_TRY(read_digest(&h->run, l, "run"));
    INVAR_TRY(read_int(&h->weights, l, "weights", 0, INT64_MAX));
    INVAR_TRY(read_digest(&h->weights_hash, l, "weights_hash"));
    INVAR_TRY(read_digest(&h->tokenizer, l, "tokenizer"));
    INVAR_TRY(read_int(&h->n_samples_per_prompt, l, "n_samples_per_prompt", 1, INT64_MAX));
    h->filters = json_object_get(l->object, "filtered_groups") != NULL;
    if (h->filters)
        INVAR_TRY(read_int(&h->filtered, l, "filtered_groups", 0, INT64_MAX));
    INVAR_TRY(read_sampling(&h->sampling, data, l));
    if (version > 1)
        INVAR_TRY(read_policy(&h->policy, data, l));
    return check_no_more_members(l);
}

static invar_status read_finish(invar_finish *out, file_line *l)
{
    const char *name;

    INVAR_TRY(read_string(&name, l, "finish"));
    for (int i = INVAR_FINISH_NONE; i <= INVAR_FINISH_ABORT; i++) {
        if (strcmp(name, invar_finish_name((invar_finish)i)) == 0) {
            *out = (invar_finish)i;
            return INVAR_OK;
        }
    }
    return wrong_value(l, "finish", 0);
}

static invar_status read_tokens(invar_rl_sample *s, file_line *l)
{
    INVAR_TRY(read_ints(&s->tokens, &s->n_tokens, l, "tokens"));
    INVAR_TRY(read_int(&s->prompt_tokens, l, "prompt_tokens", 1, s->n_tokens));
    INVAR_TRY(read_logprobs(s, l));
    INVAR_TRY(read_mask(s, l));
    INVAR_TRY(read_int(&s->route_size, l, "route_size", 0, MAX_ROUTE_SIZE));
    return read_routing(s, l);
}

/* Reads the reward parts; a reward without parts has no such member. */
static invar_status read_reward_parts(invar_reward_parts *out, file_line *l)
{
    json_t *object = json_object_get(l->object, "parts"), *value;
    const char *name;

    if (!object)
        return INVAR_OK;
    l->members++;
    if (json_object_size(object) == 0)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: \"parts\" is no object, or empty", l->where);
    json_object_foreach(object, name, value)
    {
        if (!json_is_number(value))
            return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: \"parts\" has no number", l->where);
        INVAR_TRY(
            invar_reward_parts_add(out, name, strlen(name), json_number_value(value), l->where));
    }
    return INVAR_OK;
}

/*
 * Reads the weight versions; that of the first token is only present if it differs from the last.
 */
static invar_status read_weight_versions(invar_rl_sample *s, file_line *l)
{
    INVAR_TRY(read_int(&s->weights.last, l, "weights", 0, INT64_MAX));
    s->weights.first = s->weights.last;
    if (!json_object_get(l->object, "weights_first"))
        return INVAR_OK;
    return read_int(&s->weights.first, l, "weights_first", 0, s->weights.last);
}

static invar_status read_sample(invar_rl_sample *s, invar_rollout_file *data, file_line *l)
{
    INVAR_TRY(read_int(&s->index, l, "index", 0, INT64_MAX));
    INVAR_TRY(read_int(&s->group, l, "group", 0, INT64_MAX));
    INVAR_TRY(read_int(&s->data.line, l, "prompt", 0, INT64_MAX));
    INVAR_TRY(read_u32(&s->rollout, l, "rollout"));
    INVAR_TRY(read_u32(&s->draw_index, l, "draw"));
    INVAR_TRY(read_text(&s->data.prompt, data, l, "prompt_text"));
    INVAR_TRY(read_text(&s->data.label, data, l, "label"));
    INVAR_TRY(read_metadata(s, data, l));
    INVAR_TRY(read_tokens(s, l));
    INVAR_TRY(read_response(s, l));
    INVAR_TRY(read_finish(&s->finish, l));
    INVAR_TRY(read_weight_versions(s, l));
    INVAR_TRY(read_digest(&s->weights.hash, l, "weights_hash"));
    INVAR_TRY(read_digest(&s->data.hash, l, "prompt_hash"));
    INVAR_TRY(read_f64(&s->reward, l, "reward"));
    INVAR_TRY(read_reward_parts(&s->parts, l));
    INVAR_TRY(read_bool(&s->is_masked_out, l, "removed"));
    if (json_object_get(l->object, "turns"))
        INVAR_TRY(read_int(&s->turns, l, "turns", 1, INT64_MAX));
    return check_no_more_members(l);
}

/* Fails unless samples are in order of index and the samples of a group are adjacent. */
static invar_status check_order(const invar_rl_samples *samples, const file_line *l)
{
    const invar_rl_sample *s = &samples->items[samples->count - 1], *before = s - 1;

    if (samples->count == 1 || (before->index < s->index && before->group <= s->group))
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                      "%s: sample %" PRId64 " of group %" PRId64 " after sample %" PRId64
                      " of group %" PRId64,
                      l->where, s->index, s->group, before->index, before->group);
}

/* Parses line `number`: the header is line 1, samples follow. */
static invar_status parse_line(invar_rollout_file *data, const char *where, int64_t number,
                               const char *text, size_t bytes)
{
    file_line l = {.members = 0};
    invar_rl_sample *sample;
    invar_status status;
    json_t *object;

    snprintf(l.where, sizeof l.where, "%.1000s:%" PRId64, where, number);
    INVAR_TRY(invar_json_as_corrupt(invar_json_parse_raw(&object, l.where, text, bytes)));
    l.object = object;
    if (number == 1) {
        status = read_header(data, &l);
    } else {
        status = invar_rl_samples_append(&sample, &data->samples);
        if (status == INVAR_OK)
            status = read_sample(sample, data, &l);
        if (status == INVAR_OK)
            status = check_order(&data->samples, &l);
    }
    json_decref(object);
    return status;
}

/* ---- the file -------------------------------------------------------------------------------- */

/* Returns the offset of the last line; `bytes` if the text does not end with a newline. */
static size_t find_last_line(const char *text, size_t bytes)
{
    size_t at = bytes;

    if (bytes == 0 || text[bytes - 1] != '\n')
        return bytes;
    for (at = bytes - 1; at > 0 && text[at - 1] != '\n'; at--)
        continue;
    return at;
}

/*
 * Fails unless the last line, at offset `at`, is the trailer of the text before it. *samples_out =
 * number of lines before it, without the header.
 */
static invar_status check_trailer(int64_t *samples_out, const char *where, const char *text,
                                  size_t bytes, size_t at)
{
    char end[INVAR_ROLLOUT_FILE_TRAILER_SIZE];
    int64_t lines = 0;
    invar_sha256 sha;

    for (size_t i = 0; i < at; i++)
        lines += text[i] == '\n';
    *samples_out = lines - 1;
    invar_sha256_init(&sha);
    invar_sha256_update(&sha, text, at);
    invar_rollout_file_format_trailer(end, lines - 1, &sha);
    if (lines > 0 && strlen(end) == bytes - at && memcmp(end, text + at, bytes - at) == 0)
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                      "%.1000s: cut off or changed: the last line does not end what is before it",
                      where);
}

/* Checks the trailer and parses the first `most` lines into `out`, which must be zeroed. */
static invar_status parse_lines(invar_rollout_file *out, int64_t *samples_out, const char *where,
                                const char *text, size_t bytes, int64_t most)
{
    size_t end = find_last_line(text, bytes), at = 0;
    invar_status status;

    invar_hash_bytes(&out->content, text, bytes);
    status = check_trailer(samples_out, where, text, bytes, end);
    for (int64_t number = 1; at < end && number <= most && status == INVAR_OK; number++) {
        const char *newline = memchr(text + at, '\n', end - at);
        size_t length = (size_t)(newline - (text + at));
        status = parse_line(out, where, number, text + at, length);
        at += length + 1;
    }
    if (status != INVAR_OK)
        invar_rollout_file_release(out);
    return status;
}

static invar_status read_lines(invar_rollout_file *out, int64_t *samples_out, const char *path,
                               int64_t most)
{
    char *text, shown[INVAR_PATH_SHOWN_SIZE];
    invar_status status;
    size_t bytes;

    *out = (invar_rollout_file){0};
    INVAR_TRY(invar_file_read(&text, &bytes, path, MAX_BYTES));
    invar_path_show(shown, path);
    status = parse_lines(out, samples_out, shown, text, bytes, most);
    invar_free(text);
    return status;
}

invar_status invar_rollout_file_parse(invar_rollout_file *out, const char *where, const char *text,
                                      size_t bytes)
{
    int64_t samples;

    *out = (invar_rollout_file){0};
    return parse_lines(out, &samples, where, text, bytes, INT64_MAX);
}

invar_status invar_rollout_file_read(invar_rollout_file *out, const char *path)
{
    int64_t samples;

    return read_lines(out, &samples, path, INT64_MAX);
}

invar_status invar_rollout_file_head(invar_rollout_file *out, int64_t *samples_out,
                                     const char *path)
{
    return read_lines(out, samples_out, path, 2);
}

void invar_rollout_file_release(invar_rollout_file *data)
{
    invar_rl_samples_reset(&data->samples);
    for (int64_t i = 0; i < data->n_memory; i++)
        invar_free(data->memory[i]);
    invar_free(data->memory);
    memset(data, 0, sizeof *data);
}
