/*
 * dataset.c - loads prompt data sets, and iterates over them in a reproducible order.
 *
 * Each prompt is one allocation that holds its tokens and texts. Lines outside of a slice are
 * counted but not parsed. The digest of a data set covers everything that training can see, in line
 * order; the shuffle is a pure function of seed and epoch.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/files/data/dataset.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/sort.h"
#include "base/text.h"
#include "base/zip/gzip.h"
#include "engine/files/data/dataset_line.h"
#include "engine/files/data/parquet.h"
#include "kernels-deterministic/math/philox.h"

#include "base/invar_banned.h"

#define MAX_FILE ((size_t)1 << 32)
#define MAX_LINE ((size_t)1 << 26)
#define MAX_PROMPTS INT32_MAX
#define WHERE_SIZE (INVAR_PATH_SHOWN_SIZE + 24)
#define PURPOSE_SHUFFLE 3

struct invar_dataset {
    invar_prompt *prompts; /* (count); `tokens` points to the start of a prompt's allocation */
    int64_t count;
    int64_t capacity;
    int64_t dropped;
    int32_t *order; /* (count) order of one epoch */
    int64_t order_epoch;
    uint32_t order_seed; /* valid, like order_epoch, if `ordered` */
    bool ordered;
};

/* ---- prompts --------------------------------------------------------------------------------- */

static void *append_to_block(char **at, const void *from, size_t bytes)
{
    void *to = *at;

    if (bytes > 0)
        memcpy(to, from, bytes);
    *at += bytes;
    return to;
}

/* Packs a record into one allocation; tokens come first because of their alignment. */
static invar_status append_prompt(invar_dataset *dataset, int64_t number,
                                  const invar_dataset_record *line)
{
    const size_t tokens = (size_t)line->n_tokens * sizeof *line->tokens;
    const size_t answer = (size_t)line->n_answer * sizeof *line->answer;
    const size_t text = strlen(line->text) + 1, label = strlen(line->label) + 1;
    const size_t metadata = strlen(line->metadata) + 1, mask = (size_t)line->n_answer;
    invar_prompt p = {.line = number, .n_tokens = line->n_tokens, .n_answer = line->n_answer};
    char *at;

    if (dataset->count == MAX_PROMPTS)
        return INVAR_FAIL(INVAR_E_UNSUPPORTED, 0, "data set: more than %d prompts", MAX_PROMPTS);
    INVAR_TRY(INVAR_GROW(dataset->prompts, dataset->capacity, dataset->count, dataset->count + 1,
                         "data set"));
    INVAR_TRY(INVAR_ALLOC(at, tokens + answer + mask + text + label + metadata, "data set"));
    p.tokens = append_to_block(&at, line->tokens, tokens);
    if (line->answer) {
        p.answer = append_to_block(&at, line->answer, answer);
        if (line->mask)
            memcpy(at, line->mask, mask);
        else
            memset(at, 1, mask);
        p.answer_mask = (const uint8_t *)at;
        at += mask;
    }
    p.text = append_to_block(&at, line->text, text);
    p.label = append_to_block(&at, line->label, label);
    p.metadata = append_to_block(&at, line->metadata, metadata);
    invar_hash_bytes(&p.hash, p.tokens, tokens);
    dataset->prompts[dataset->count++] = p;
    return INVAR_OK;
}

static bool too_long(const invar_dataset_record *line, const invar_dataset_options *options)
{
    return (options->max_prompt_tokens > 0 && line->n_tokens > options->max_prompt_tokens) ||
           (options->max_total_tokens > 0 && line->answer &&
            line->n_tokens + line->n_answer > options->max_total_tokens);
}

/* ---- lines ----------------------------------------------------------------------------------- */

typedef struct line_slice {
    bool has_first, has_end;
    int64_t first, end; /* negative counts from the end, as in Python */
} line_slice;

/* Parses an optional integer; stops at the first other character. */
static bool read_bound(int64_t *out, bool *has_out, const char **at)
{
    const char *c = *at + (**at == '-');
    int64_t value = 0;
    int digits = 0;

    for (; *c >= '0' && *c <= '9' && digits < 18; c++, digits++)
        value = value * 10 + (*c - '0');
    *out = **at == '-' ? -value : value;
    *has_out = digits > 0;
    if (digits == 0 && **at == '-')
        return false;
    *at = c;
    return true;
}

/* Splits "@[a:b]" off the path. */
static invar_status split_path(char path[INVAR_PATH_SIZE], line_slice *out, const char *given)
{
    const char *start = NULL, *at;
    size_t length = strlen(given);

    *out = (line_slice){0};
    for (const char *next = strstr(given, "@["); next; next = strstr(next + 1, "@["))
        start = next;
    if (!start || given[length - 1] != ']')
        start = NULL;
    if (start) {
        at = start + 2;
        if (!read_bound(&out->first, &out->has_first, &at) || *at++ != ':' ||
            !read_bound(&out->end, &out->has_end, &at) || strcmp(at, "]") != 0)
            return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: expected a slice of lines as @[10:20]",
                              INVAR_SHOWN_PATH(given));
        length = (size_t)(start - given);
    }
    if (length >= INVAR_PATH_SIZE)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: the path is too long", INVAR_SHOWN_PATH(given));
    memcpy(path, given, length);
    path[length] = '\0';
    return INVAR_OK;
}

/* Bound of a slice of n items, by the rules of Python. */
static int64_t clamp_bound(bool has, int64_t bound, int64_t fallback, int64_t n)
{
    int64_t at = has ? bound : fallback;

    at = at < 0 ? at + n : at;
    at = at < 0 ? 0 : at;
    return at > n ? n : at;
}

static bool is_blank(char c)
{
    return c == ' ' || c == '\t' || c == '\r' || c == '\n';
}

static int64_t count_lines(const char *text, size_t bytes)
{
    int64_t lines = bytes > 0;

    for (size_t i = 0; i < bytes; i++)
        lines += text[i] == '\n';
    return lines;
}

/* Appends a record, or drops it if it is too long. */
static invar_status keep_record(invar_dataset *dataset, const invar_record_reader *reader,
                                int64_t number, const invar_dataset_record *line)
{
    if (!too_long(line, reader->options))
        return append_prompt(dataset, number, line);
    dataset->dropped++;
    return INVAR_OK;
}

static invar_status read_line(invar_dataset *dataset, const invar_record_reader *reader,
                              const char *where, int64_t number, const char *at, size_t bytes)
{
    INVAR_AUTO(invar_dataset_record_release) invar_dataset_record line = {0};

    if (bytes > MAX_LINE)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: the line has more than %zu bytes", where,
                          MAX_LINE);
    INVAR_TRY(invar_dataset_record_read(&line, reader, where, at, bytes));
    return keep_record(dataset, reader, number, &line);
}

/* Reads the lines of a slice. `file` is the path without the slice. */
static invar_status read_lines(invar_dataset *dataset, const invar_record_reader *reader,
                               const char *file, const line_slice *part, const char *text,
                               size_t bytes)
{
    const char *at = text, *end;
    char where[WHERE_SIZE], shown[INVAR_PATH_SHOWN_SIZE];
    int64_t lines, first, last;

    while (bytes > 0 && is_blank(text[bytes - 1])) // strip the end of the last line and empty lines
        bytes--;
    end = text + bytes;
    lines = count_lines(text, bytes);
    first = clamp_bound(part->has_first, part->first, 0, lines);
    last = clamp_bound(part->has_end, part->end, lines, lines);
    invar_path_show(shown, file);
    if (lines == 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: it is empty; add at least one line", shown);
    if (first >= last)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: the slice takes none of its %" PRId64 " line%s",
                          shown, lines, invar_text_plural(lines));
    for (int64_t i = 0; i < last; i++) {
        const char *newline = memchr(at, '\n', (size_t)(end - at));
        const char *stop = newline ? newline : end;

        snprintf(where, sizeof where, "%s:%" PRId64, shown, i + 1);
        if (i >= first)
            INVAR_TRY(read_line(dataset, reader, where, i, at, (size_t)(stop - at)));
        at = newline ? newline + 1 : end;
    }
    return INVAR_OK;
}

static invar_status read_task(invar_dataset *dataset, const invar_record_reader *reader,
                              const char *name)
{
    for (int64_t i = 0; i < reader->options->task_size; i++) {
        INVAR_AUTO(invar_dataset_record_release) invar_dataset_record line = {0};
        invar_builtin_task_item item;

        INVAR_TRY(invar_builtin_task_make(&item, name, reader->options->seed, (uint32_t)i));
        INVAR_TRY(invar_dataset_record_plain(&line, reader, reader->options->path, item.prompt,
                                             item.answer));
        INVAR_TRY(keep_record(dataset, reader, i, &line));
    }
    return INVAR_OK;
}

/* ---- open and close -------------------------------------------------------------------------- */

/* Completes a data set after all prompts were read. */
static invar_status finish_dataset(invar_dataset *dataset, const invar_dataset_options *options)
{
    const char *shown = INVAR_SHOWN_PATH(options->path);

    if (dataset->count == 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%s: no prompt is left: all %" PRId64 " are longer than allowed (%" PRId64
                          " tokens, rollout-max-prompt-len)",
                          shown, dataset->dropped, options->max_prompt_tokens);
    return INVAR_ALLOC(dataset->order, (size_t)dataset->count, shown);
}

static invar_status check_options(const invar_dataset_options *options)
{
    bool task = strncmp(options->path, "task:", 5) == 0;
    const char *shown = INVAR_SHOWN_PATH(options->path);

    if (options->sft && !options->apply_chat_template && !task && options->label_key[0] == '\0')
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%s: sft_loss needs answers: give label-key, or apply-chat-template and "
                          "messages",
                          shown);
    if (task && (options->task_size < 1 || options->task_size > MAX_PROMPTS))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: task-size %" PRId64 " is not in 1 to %d", shown,
                          options->task_size, MAX_PROMPTS);
    return INVAR_OK;
}

/* Replaces compressed or Parquet data by the lines in it. */
static invar_status unpack_text(char **text, size_t *bytes, const char *path,
                                const invar_dataset_options *options)
{
    const char *const columns[] = {options->input_key, options->label_key, options->metadata_key,
                                   options->tool_key, NULL};
    char *packed = *text;
    invar_status status = INVAR_OK;

    if (invar_gzip_is(packed, *bytes))
        status = invar_gzip_expand(text, bytes, INVAR_SHOWN_PATH(path), packed, *bytes, MAX_FILE);
    else if (invar_parquet_is(packed, *bytes))
        status = invar_parquet_read(text, bytes, path, columns, MAX_FILE);
    if (*text != packed)
        invar_free(packed);
    return status;
}

static invar_status read_file(invar_dataset *dataset, const invar_record_reader *reader)
{
    INVAR_AUTO_FREE char *text = NULL;
    char path[INVAR_PATH_SIZE];
    line_slice part;
    size_t bytes;

    INVAR_TRY(split_path(path, &part, reader->options->path));
    INVAR_TRY(invar_file_read(&text, &bytes, path, MAX_FILE));
    INVAR_TRY(unpack_text(&text, &bytes, path, reader->options));
    return read_lines(dataset, reader, path, &part, text, bytes);
}

/* Loads from `text`, or from the path if `text` is NULL. */
static invar_status load_dataset(invar_dataset **out, const invar_dataset_options *options,
                                 const invar_tokenizer *tokenizer, const char *text, size_t bytes)
{
    invar_record_reader reader = {options, tokenizer, NULL};
    const line_slice all = {0};
    invar_dataset *dataset;
    invar_status status;

    *out = NULL;
    INVAR_TRY(check_options(options));
    INVAR_TRY(INVAR_ALLOC_ZEROED(dataset, 1, "data set"));
    status = options->apply_chat_template ? invar_chat_template_open(&reader.chat, options->hf_dir,
                                                                     options->chat_template_path,
                                                                     options->chat_template_kwargs)
                                          : INVAR_OK;
    if (status != INVAR_OK)
        goto done;
    if (text)
        status = read_lines(dataset, &reader, options->path, &all, text, bytes);
    else if (strncmp(options->path, "task:", 5) == 0)
        status = read_task(dataset, &reader, options->path + 5);
    else
        status = read_file(dataset, &reader);
    if (status == INVAR_OK)
        status = finish_dataset(dataset, options);
done:
    invar_chat_template_close(reader.chat);
    if (status == INVAR_OK)
        *out = dataset;
    else
        invar_dataset_close(dataset);
    return status;
}

invar_status invar_dataset_open(invar_dataset **out, const invar_dataset_options *options,
                                const invar_tokenizer *tokenizer)
{
    return load_dataset(out, options, tokenizer, NULL, 0);
}

invar_status invar_dataset_parse(invar_dataset **out, const invar_dataset_options *options,
                                 const invar_tokenizer *tokenizer, const char *text, size_t bytes)
{
    return load_dataset(out, options, tokenizer, text ? text : "", bytes);
}

void invar_dataset_close(invar_dataset *dataset)
{
    if (!dataset)
        return;
    for (int64_t i = 0; i < dataset->count; i++)
        invar_free((void *)(uintptr_t)dataset->prompts[i].tokens); // start of the allocation
    invar_free(dataset->prompts);
    invar_free(dataset->order);
    invar_free(dataset);
}

/* ---- getters --------------------------------------------------------------------------------- */

int64_t invar_dataset_size(const invar_dataset *dataset)
{
    return dataset->count;
}

int64_t invar_dataset_dropped_count(const invar_dataset *dataset)
{
    return dataset->dropped;
}

const invar_prompt *invar_dataset_prompt(const invar_dataset *dataset, int64_t i)
{
    INVAR_CHECK(i >= 0 && i < dataset->count);
    return &dataset->prompts[i];
}

const invar_prompt *invar_dataset_find(const invar_dataset *dataset, int64_t line)
{
    int64_t i = invar_binary_search(dataset->prompts, dataset->count, sizeof *dataset->prompts,
                                    offsetof(invar_prompt, line), line);

    return i < 0 ? NULL : &dataset->prompts[i];
}

/* Hashes a value after its length, so that different lists of values never give the same bytes. */
static void hash_value(invar_hasher *hasher, const void *data, size_t bytes)
{
    uint8_t length[8];

    for (int i = 0; i < 8; i++)
        length[i] = (uint8_t)((uint64_t)bytes >> (8 * i));
    invar_hasher_update(hasher, length, sizeof length);
    invar_hasher_update(hasher, data, bytes);
}

void invar_dataset_hash(invar_digest *out, const invar_dataset *dataset)
{
    invar_hasher hasher;

    invar_hasher_init(&hasher);
    for (int64_t i = 0; i < dataset->count; i++) {
        const invar_prompt *p = &dataset->prompts[i];

        hash_value(&hasher, p->text, strlen(p->text));
        hash_value(&hasher, p->tokens, (size_t)p->n_tokens * sizeof *p->tokens);
        hash_value(&hasher, p->label, strlen(p->label));
        hash_value(&hasher, p->metadata, strlen(p->metadata));
        hash_value(&hasher, p->answer, (size_t)p->n_answer * sizeof *p->answer);
        hash_value(&hasher, p->answer_mask, (size_t)p->n_answer);
    }
    invar_hasher_final(out, &hasher);
}

/* ---- order ----------------------------------------------------------------------------------- */

void invar_dataset_shuffle(int32_t *order, int64_t count, uint32_t seed, int64_t epoch)
{
    for (int64_t i = 0; i < count; i++)
        order[i] = (int32_t)i;
    for (int64_t i = count - 1; i > 0; i--) {
        uint32_t counter[4] = {(uint32_t)i, (uint32_t)epoch, (uint32_t)((uint64_t)epoch >> 32), 0};
        uint32_t key[2] = {seed, invar_philox_purpose(PURPOSE_SHUFFLE, 0)}, word[4];
        uint64_t n = (uint64_t)i + 1;
        int32_t last = order[i];
        int64_t j;

        invar_philox4x32(word, counter, key);
        j = (int64_t)((word[1] * n + (word[0] * n >> 32)) >> 32); // n < 2^32: no overflow
        order[i] = order[j];
        order[j] = last;
    }
}

const invar_prompt *invar_dataset_next(invar_dataset *dataset, invar_data_cursor *cursor,
                                       bool shuffle, uint32_t seed)
{
    int64_t at;

    INVAR_CHECK(cursor->epoch >= 0 && cursor->offset >= 0);
    if (cursor->offset >= dataset->count) {
        cursor->epoch++;
        cursor->offset = 0;
    }
    at = cursor->offset++;
    if (!shuffle)
        return &dataset->prompts[at];
    if (!dataset->ordered || dataset->order_epoch != cursor->epoch || dataset->order_seed != seed) {
        invar_dataset_shuffle(dataset->order, dataset->count, seed, cursor->epoch);
        dataset->ordered = true;
        dataset->order_epoch = cursor->epoch;
        dataset->order_seed = seed;
    }
    return &dataset->prompts[dataset->order[at]];
}
