/*
 * schedule_log.c - log of recorded ticks: in memory, and as JSON lines.
 *
 * Events are appended strictly in order: the batch of a tick, then its unfinished samples. Every
 * append is validated, also when the text of a file or of the ledger is parsed, so that a log in
 * memory is always consistent. A caller that trims the log must keep the previous tick, because the
 * next append is compared with it.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/source/schedule_log.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "engine/files/journal.h"

#include "base/invar_banned.h"

#define KIND "invar_schedule"

/* ---- in memory ------------------------------------------------------------------------------- */

static void release_tick(invar_schedule_tick *tick)
{
    invar_free(tick->groups);
    invar_free(tick->unfinished);
}

void invar_schedule_log_release(invar_schedule_log *log)
{
    for (int64_t i = 0; i < log->count; i++)
        release_tick(&log->items[i]);
    invar_free(log->items);
    *log = (invar_schedule_log){0};
}

const invar_schedule_tick *invar_schedule_log_find(const invar_schedule_log *log, int64_t tick)
{
    int64_t place = tick - log->first;

    return place >= 0 && place < log->count ? &log->items[place] : NULL;
}

void invar_schedule_log_trim(invar_schedule_log *log, int64_t before)
{
    int64_t gone = before - log->first;

    if (gone <= 0 || gone >= log->count)
        return;
    for (int64_t i = 0; i < gone; i++)
        release_tick(&log->items[i]);
    log->count -= gone;
    log->first = before;
    memmove(log->items, log->items + gone, (size_t)log->count * sizeof *log->items);
}

static invar_schedule_tick *last_tick(const invar_schedule_log *log)
{
    return log->count > 0 ? &log->items[log->count - 1] : NULL;
}

int64_t invar_schedule_log_end(const invar_schedule_log *log)
{
    const invar_schedule_tick *last = last_tick(log);

    return log->first + log->count - (last && !last->has_unfinished);
}

/* Appends a tick, whose number is that of the first one in an empty log. Takes its arrays over. */
static invar_status append_tick(invar_schedule_log *log, int64_t number, invar_schedule_tick tick)
{
    invar_status status =
        INVAR_GROW(log->items, log->capacity, log->count, log->count + 1, "recorded ticks");

    if (status != INVAR_OK) {
        release_tick(&tick);
        return status;
    }
    if (log->count == 0)
        log->first = number;
    log->items[log->count++] = tick;
    return INVAR_OK;
}

static invar_status copy_array(void **out, const void *from, int64_t count, size_t size,
                               const char *what)
{
    INVAR_TRY(invar_alloc(out, (size_t)count + 1, size,
                          what)); // one more, so that the copy of an empty array is not NULL
    if (count)
        memcpy(*out, from, (size_t)count * size);
    return INVAR_OK;
}

static invar_status fail_out_of_order(const invar_schedule_log *log, int64_t tick,
                                      const char *where)
{
    const invar_schedule_tick *last = last_tick(log);
    bool half = last && !last->has_unfinished;

    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "%s: an event of tick %" PRId64 "; expected \"%s\" of tick %" PRId64, where,
                      tick, half ? "drawn" : "batch", log->first + log->count - half);
}

invar_status invar_schedule_log_add_batch(invar_schedule_log *log, int64_t tick,
                                          const int64_t *groups, int64_t count, const char *where)
{
    const invar_schedule_tick *last = last_tick(log);
    invar_schedule_tick new = {.has_batch = true, .n_groups = count};

    if (last ? !last->has_unfinished || tick != log->first + log->count : tick < 0)
        return fail_out_of_order(log, tick, where);
    for (int64_t i = 0; i < count; i++)
        if (groups[i] < 0 || (i > 0 && groups[i] <= groups[i - 1]))
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "%s: group %" PRId64 " of tick %" PRId64 " is out of order", where,
                              groups[i], tick);
    INVAR_TRY(copy_array((void **)&new.groups, groups, count, sizeof *groups,
                         "the groups of a recorded tick"));
    return append_tick(log, tick, new);
}

/* Fails unless samples ascend and none has fewer tokens than in the previous tick. */
static invar_status check_left(const invar_schedule_tick *before,
                               const invar_unfinished_sample *left, int64_t count, int64_t tick,
                               const char *where)
{
    for (int64_t i = 0, k = 0; i < count; i++) {
        const invar_unfinished_sample *was = NULL;

        while (before && k < before->n_unfinished && before->unfinished[k].sample < left[i].sample)
            k++;
        if (before && k < before->n_unfinished && before->unfinished[k].sample == left[i].sample)
            was = &before->unfinished[k];
        if (left[i].sample < 0 || (i > 0 && left[i].sample <= left[i - 1].sample))
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "%s: sample %" PRId64 " of tick %" PRId64 " is out of order", where,
                              left[i].sample, tick);
        if (left[i].tokens < (was ? was->tokens : 0))
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "%s: sample %" PRId64 " has %" PRId64 " tokens after tick %" PRId64
                              ", and had %" PRId64 " before",
                              where, left[i].sample, left[i].tokens, tick, was ? was->tokens : 0);
    }
    return INVAR_OK;
}

invar_status invar_schedule_log_add_drawn(invar_schedule_log *log, int64_t tick,
                                          const invar_unfinished_sample *unfinished, int64_t count,
                                          const char *where)
{
    invar_schedule_tick *last = last_tick(log);

    if (!last || last->has_unfinished || tick != log->first + log->count - 1)
        return fail_out_of_order(log, tick, where);
    INVAR_TRY(check_left(log->count > 1 ? last - 1 : NULL, unfinished, count, tick, where));
    INVAR_TRY(copy_array((void **)&last->unfinished, unfinished, count, sizeof *unfinished,
                         "the samples of a recorded tick"));
    last->n_unfinished = count;
    last->has_unfinished = true;
    return INVAR_OK;
}

/* ---- writing --------------------------------------------------------------------------------- */

static void write_head(invar_json_text *text, const invar_digest *run, const invar_digest *uuid)
{
    invar_json_text_open(text, '{');
    invar_json_text_put_int(text, KIND, INVAR_JOURNAL_VERSION);
    invar_json_text_put_digest(text, "run", run);
    invar_json_text_put_digest(text, "uuid", uuid);
    invar_json_text_close(text, '}');
    invar_json_text_newline(text);
}

static void begin_line(invar_json_text *text, int64_t number, const char *event)
{
    invar_json_text_open(text, '{');
    invar_json_text_put_int(text, "tick", number);
    invar_json_text_put_open(text, event, '[');
}

static void end_line(invar_json_text *text)
{
    invar_json_text_close(text, ']');
    invar_json_text_close(text, '}');
    invar_json_text_newline(text);
}

void invar_schedule_log_write_batch(invar_json_text *text, int64_t number,
                                    const invar_schedule_tick *tick)
{
    begin_line(text, number, "batch");
    for (int64_t i = 0; i < tick->n_groups; i++)
        invar_json_text_int(text, tick->groups[i]);
    end_line(text);
}

void invar_schedule_log_write_drawn(invar_json_text *text, int64_t number,
                                    const invar_schedule_tick *tick)
{
    begin_line(text, number, "drawn");
    for (int64_t i = 0; i < tick->n_unfinished; i++) {
        invar_json_text_open(text, '[');
        invar_json_text_int(text, tick->unfinished[i].sample);
        invar_json_text_int(text, tick->unfinished[i].tokens);
        invar_json_text_close(text, ']');
    }
    end_line(text);
}

void invar_schedule_log_write(invar_json_text *text, const invar_schedule_log *log,
                              const invar_digest *run, const invar_digest *uuid)
{
    write_head(text, run, uuid);
    for (int64_t i = 0; i < log->count; i++) {
        invar_schedule_log_write_batch(text, log->first + i, &log->items[i]);
        if (log->items[i].has_unfinished)
            invar_schedule_log_write_drawn(text, log->first + i, &log->items[i]);
    }
}

/* ---- reading --------------------------------------------------------------------------------- */

static invar_status fail_not_a_number(const char *event, size_t place, const char *where)
{
    return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: item %zu of \"%s\" is invalid", where, place, event);
}

static invar_status parse_batch(invar_schedule_log *to, int64_t tick, const json_t *list,
                                const char *where)
{
    size_t count = json_array_size(list);
    int64_t *groups = NULL;
    invar_status status = INVAR_OK;

    INVAR_TRY(INVAR_ALLOC(groups, count + 1, "groups of a line"));
    for (size_t i = 0; i < count && status == INVAR_OK; i++) {
        const json_t *item = json_array_get(list, i);

        groups[i] = json_integer_value(item);
        if (!json_is_integer(item))
            status = fail_not_a_number("batch", i, where);
    }
    if (status == INVAR_OK)
        status = invar_schedule_log_add_batch(to, tick, groups, (int64_t)count, where);
    invar_free(groups);
    return status;
}

/* Parses a "drawn" event. With `before`, it may be the first event, without its batch. */
static invar_status parse_drawn(invar_schedule_log *to, int64_t tick, const json_t *list,
                                bool before, const char *where)
{
    size_t count = json_array_size(list);
    invar_unfinished_sample *left = NULL;
    invar_status status = INVAR_OK;

    INVAR_TRY(INVAR_ALLOC(left, count + 1, "samples of a line"));
    for (size_t i = 0; i < count && status == INVAR_OK; i++) {
        const json_t *pair = json_array_get(list, i);
        const json_t *sample = json_array_get(pair, 0), *tokens = json_array_get(pair, 1);

        left[i] = (invar_unfinished_sample){json_integer_value(sample), json_integer_value(tokens)};
        if (json_array_size(pair) != 2 || !json_is_integer(sample) || !json_is_integer(tokens))
            status = fail_not_a_number("drawn", i, where);
    }
    if (status == INVAR_OK && before && to->count == 0) // its batch is unknown
        status = append_tick(to, tick, (invar_schedule_tick){.has_batch = false});
    if (status == INVAR_OK)
        status = invar_schedule_log_add_drawn(to, tick, left, (int64_t)count, where);
    invar_free(left);
    return status;
}

static invar_status parse_event(invar_schedule_log *to, const json_t *line, bool before,
                                const char *where)
{
    const json_t *batch = json_object_get(line, "batch"), *drawn = json_object_get(line, "drawn");
    int64_t tick;

    INVAR_TRY(invar_json_int(&tick, line, "tick", where, 0, UINT32_MAX));
    if (json_is_array(batch) && !drawn)
        return parse_batch(to, tick, batch, where);
    if (json_is_array(drawn) && !batch)
        return parse_drawn(to, tick, drawn, before, where);
    return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                      "%s: expected a list \"batch\", or a list \"drawn\", of tick %" PRId64, where,
                      tick);
}

static invar_status parse_header(invar_schedule_log_head *out, const json_t *line,
                                 const invar_journal_reader *reader)
{
    out->found = true;
    out->checked = reader->checked;
    INVAR_TRY(invar_journal_digest(&out->run, line, "run", reader->where));
    return out->checked ? invar_journal_digest(&out->uuid, line, "uuid", reader->where) : INVAR_OK;
}

/*
 * Parses the first line into *head_out, all others as events. If head_out is NULL, all are events.
 */
static invar_status read_lines(invar_schedule_log *to, invar_schedule_log_head *head_out,
                               invar_journal_reader *reader)
{
    json_t *line;

    INVAR_TRY(invar_journal_next(&line, reader));
    while (line) {
        invar_status status = head_out && reader->line == 1
                                  ? parse_header(head_out, line, reader)
                                  : parse_event(to, line, !head_out, reader->where);

        json_decref(line);
        INVAR_TRY(invar_json_as_corrupt(status));
        INVAR_TRY(invar_journal_next(&line, reader));
    }
    return INVAR_OK;
}

invar_status invar_schedule_log_read(invar_schedule_log *to, const char *text, size_t bytes,
                                     const char *where)
{
    invar_journal_reader reader;

    invar_journal_read(&reader, NULL, text, bytes, where);
    INVAR_TRY(read_lines(to, NULL, &reader));
    if (reader.position < reader.end)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: the last line has no end", where);
    return INVAR_OK;
}

invar_status invar_schedule_log_read_file(invar_schedule_log *to, invar_schedule_log_head *head_out,
                                          const char *text, size_t bytes, const char *where)
{
    invar_journal_reader reader;

    *head_out = (invar_schedule_log_head){.found = false};
    invar_journal_read(&reader, KIND, text, bytes, where);
    return read_lines(to, head_out, &reader);
}
