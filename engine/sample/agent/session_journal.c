/*
 * session_journal.c - write-ahead journal of the agent sessions of one rollout.
 *
 * Opening reads the file only; invar_session_journal_begin then replaces it by a new file with the
 * complete sessions, and each later line is appended and synced. Only the first line of a file of
 * another rollout is read, because such a file may be large.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/sample/agent/session_journal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "engine/files/journal.h"

#include "base/invar_banned.h"

#define KIND "invar_sessions"
#define MAX_HEADER_BYTES 1024 // limit of the first line, in bytes

struct invar_session_journal {
    invar_session_journal_id rollout;
    char path[INVAR_PATH_SIZE];
    invar_journal *file; /* NULL before invar_session_journal_begin */
    invar_journal_contents contents;
    invar_json_text line;
};

/* ---- reading --------------------------------------------------------------------------------- */

void invar_journal_contents_release(invar_journal_contents *contents)
{
    for (int64_t i = 0; i < contents->count; i++)
        invar_agent_session_release(&contents->items[i].session);
    invar_free(contents->items);
    *contents = (invar_journal_contents){0};
}

static invar_status find_or_add_session(invar_agent_session **out, invar_journal_contents *to,
                                        int64_t sample)
{
    for (int64_t i = 0; i < to->count; i++)
        if (to->items[i].sample == sample) {
            *out = &to->items[i].session;
            return INVAR_OK;
        }
    INVAR_TRY(INVAR_GROW(to->items, to->capacity, to->count, to->count + 1, "sessions"));
    memset(&to->items[to->count], 0, sizeof *to->items);
    to->items[to->count].sample = sample;
    *out = &to->items[to->count++].session;
    return INVAR_OK;
}

static bool is_same_rollout(const invar_session_journal_id *a, const invar_session_journal_id *b)
{
    return a->number == b->number && invar_digest_equal(&a->run, &b->run) &&
           invar_digest_equal(&a->weights, &b->weights);
}

static bool has_digest(const invar_digest *digest)
{
    static const invar_digest unknown = {{0}};

    return !invar_digest_equal(digest, &unknown);
}

/*
 * Fails if the file belongs to another run: a run of the same recipe may have other sessions of the
 * same rollout.
 */
static invar_status check_run(const invar_digest *uuid, const invar_session_journal_id *rollout,
                              const char *where)
{
    char hex[INVAR_DIGEST_HEX_SIZE];

    if (!has_digest(uuid) || !has_digest(&rollout->uuid) ||
        invar_digest_equal(uuid, &rollout->uuid))
        return INVAR_OK;
    invar_digest_format(hex, uuid);
    return INVAR_FAIL(INVAR_E_STATE, 0,
                      "%s: the sessions belong to run %.8s, not to this run: put this run's file "
                      "back, or remove the file, and the rollout's sessions begin anew",
                      where, hex);
}

/* Reads the first line. *ours_out reports whether the file belongs to this rollout. */
static invar_status read_header(invar_journal_contents *to, bool *ours_out, const json_t *line,
                                const invar_session_journal_id *rollout, const char *where)
{
    invar_session_journal_id is = {0};

    INVAR_TRY(invar_json_int(&is.number, line, "rollout", where, 0, INT64_MAX));
    INVAR_TRY(invar_journal_digest(&is.run, line, "run", where));
    INVAR_TRY(invar_journal_digest(&is.weights, line, "weights", where));
    if (json_object_get(line, "uuid"))
        INVAR_TRY(invar_journal_digest(&is.uuid, line, "uuid", where));
    if (json_object_get(line, "agent"))
        INVAR_TRY(invar_journal_digest(&is.agent, line, "agent", where));
    INVAR_TRY(check_run(&is.uuid, rollout, where));
    to->agent = is.agent;
    *ours_out = is_same_rollout(&is, rollout);
    return INVAR_OK;
}

static invar_status read_line(invar_journal_contents *to, const json_t *line,
                              const invar_agent_limits *limits, const char *where)
{
    const json_t *call = json_object_get(line, "call"), *end = json_object_get(line, "end");
    invar_agent_session *session;
    int64_t sample;

    INVAR_TRY(invar_json_int(&sample, line, "sample", where, 0, INT64_MAX));
    INVAR_TRY(find_or_add_session(&session, to, sample));
    if (session->end || !call == !end)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                          "%s: neither a call nor the end of a session in progress", where);
    return call ? invar_agent_call_read(session, call, limits, where)
                : invar_agent_end_read(session, end, limits, where);
}

/*
 * Reads the next line. *more_out is false after the last line, or if the file belongs to another
 * rollout.
 */
static invar_status read_next_line(invar_journal_contents *to, bool *more_out,
                                   invar_journal_reader *reader,
                                   const invar_session_journal_id *rollout,
                                   const invar_agent_limits *limits)
{
    json_t *line;
    invar_status status;

    INVAR_TRY(invar_journal_next(&line, reader));
    *more_out = line != NULL;
    if (!line)
        return INVAR_OK;
    status = reader->line == 1 ? read_header(to, more_out, line, rollout, reader->where)
                               : read_line(to, line, limits, reader->where);
    json_decref(line);
    return invar_json_as_corrupt(status);
}

invar_status invar_journal_contents_read(invar_journal_contents *out, const char *text,
                                         size_t bytes, const invar_session_journal_id *rollout,
                                         const invar_agent_limits *limits, const char *where)
{
    invar_journal_reader reader;
    bool more = true;

    invar_journal_read(&reader, KIND, text, bytes, where);
    while (more)
        INVAR_TRY(read_next_line(out, &more, &reader, rollout, limits));
    out->unchecked = out->count > 0 && !reader.checked;
    return INVAR_OK;
}

static invar_status fail_io(const invar_session_journal *journal, const char *what)
{
    char shown[INVAR_PATH_SHOWN_SIZE];

    invar_path_show(shown, journal->path);
    return INVAR_FAIL(INVAR_E_IO, errno, "%s: cannot %s: %s", shown, what, strerror(errno));
}

/* Reads the first line of the file and reports whether it belongs to this rollout. */
static invar_status read_first_line(bool *ours_out, invar_session_journal *journal,
                                    const invar_agent_limits *limits, const char *where)
{
    int fd = invar_fd_open(journal->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK, 0);
    invar_journal_reader reader;
    char text[MAX_HEADER_BYTES];
    ssize_t bytes;

    if (fd < 0)
        return fail_io(journal, "open it");
    bytes = pread(fd, text, sizeof text, 0);
    if (bytes < 0) {
        invar_status status = fail_io(journal, "read it");
        (void)close(fd);
        return status;
    }
    (void)close(fd);
    if (bytes == MAX_HEADER_BYTES && !memchr(text, '\n', MAX_HEADER_BYTES))
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s:1: the line is longer than %d bytes", where,
                          MAX_HEADER_BYTES);
    invar_journal_read(&reader, KIND, text, (size_t)bytes, where);
    return read_next_line(&journal->contents, ours_out, &reader, &journal->rollout, limits);
}

static invar_status read_sessions(invar_session_journal *journal, const invar_agent_limits *limits,
                                  const char *where)
{
    char *text = NULL;
    size_t bytes;
    invar_status status;

    INVAR_TRY(invar_file_read(&text, &bytes, journal->path, SIZE_MAX - 1));
    status = invar_journal_contents_read(&journal->contents, text, bytes, &journal->rollout, limits,
                                         where);
    invar_free(text);
    return status;
}

static invar_status read_file(invar_session_journal *journal, const invar_agent_limits *limits)
{
    char where[INVAR_PATH_SHOWN_SIZE];
    bool ours = false;
    invar_status status;

    if (!invar_path_exists(journal->path))
        return INVAR_OK;
    invar_path_show(where, journal->path);
    status = read_first_line(&ours, journal, limits, where);
    if (status == INVAR_OK && ours)
        status = read_sessions(journal, limits, where);
    return invar_error_advise(status, INVAR_E_CORRUPT,
                              "remove the file, and the rollout's sessions begin anew");
}

/* Fails if another agent has completed sessions: a rollout must not mix sessions of two agents. */
static invar_status check_agent(const invar_session_journal *journal)
{
    const invar_digest *is = &journal->rollout.agent, *had = &journal->contents.agent;
    char now[INVAR_DIGEST_HEX_SIZE], was[INVAR_DIGEST_HEX_SIZE], shown[INVAR_PATH_SHOWN_SIZE];
    int64_t ended = 0;

    if (!has_digest(is) || !has_digest(had) || invar_digest_equal(is, had))
        return INVAR_OK;
    for (int64_t i = 0; i < journal->contents.count; i++)
        ended += journal->contents.items[i].session.end != NULL;
    if (ended == 0)
        return INVAR_OK;
    invar_digest_format(now, is);
    invar_digest_format(was, had);
    invar_path_show(shown, journal->path);
    return INVAR_FAIL(INVAR_E_STATE, 0,
                      "%s: the agent has changed (hash %.8s, was %.8s) and %" PRId64
                      " sessions of rollout %" PRId64 " are the old one's; put that back, or "
                      "remove the file to have all of them led by the new one",
                      shown, now, was, ended, journal->rollout.number);
}

/* ---- writing --------------------------------------------------------------------------------- */

static void write_header(invar_json_text *text, const invar_session_journal_id *rollout)
{
    invar_json_text_open(text, '{');
    invar_json_text_put_int(text, KIND, INVAR_JOURNAL_VERSION);
    invar_json_text_put_int(text, "rollout", rollout->number);
    invar_json_text_put_digest(text, "run", &rollout->run);
    invar_json_text_put_digest(text, "weights", &rollout->weights);
    if (has_digest(&rollout->uuid)) {
        invar_json_text_put_digest(text, "uuid", &rollout->uuid);
    }
    if (has_digest(&rollout->agent)) {
        invar_json_text_put_digest(text, "agent", &rollout->agent);
    }
    invar_json_text_close(text, '}');
    invar_json_text_newline(text);
}

static void begin_line(invar_json_text *text, int64_t sample, const char *key)
{
    invar_json_text_open(text, '{');
    invar_json_text_put_int(text, "sample", sample);
    invar_json_text_key(text, key);
}

static void end_line(invar_json_text *text)
{
    invar_json_text_close(text, '}');
    invar_json_text_newline(text);
}

static void write_call(invar_json_text *text, int64_t sample, const invar_agent_call *call)
{
    begin_line(text, sample, "call");
    invar_agent_call_write(text, call);
    end_line(text);
}

static void write_end(invar_json_text *text, int64_t sample, const invar_agent_session *session)
{
    begin_line(text, sample, "end");
    invar_json_text_value(text, session->end, session->end_bytes);
    end_line(text);
}

invar_status invar_session_journal_begin(invar_session_journal *journal)
{
    write_header(&journal->line, &journal->rollout);
    for (int64_t i = 0; i < journal->contents.count; i++) {
        const invar_agent_session *s = &journal->contents.items[i].session;

        for (int64_t k = 0; s->end && k < s->n_calls; k++)
            write_call(&journal->line, journal->contents.items[i].sample, s->calls[k]);
        if (s->end)
            write_end(&journal->line, journal->contents.items[i].sample, s);
    }
    INVAR_TRY(journal->line.status);
    return invar_journal_create(&journal->file, journal->path, journal->line.data,
                                journal->line.bytes);
}

static invar_status append_line(invar_session_journal *journal)
{
    INVAR_TRY(journal->line.status);
    return invar_journal_append(journal->file, journal->line.data, journal->line.bytes);
}

invar_status invar_session_journal_call(invar_session_journal *journal, int64_t sample,
                                        const invar_agent_call *call)
{
    invar_json_text_reset(&journal->line);
    write_call(&journal->line, sample, call);
    return append_line(journal);
}

invar_status invar_session_journal_end(invar_session_journal *journal, int64_t sample,
                                       const invar_agent_session *session)
{
    invar_json_text_reset(&journal->line);
    write_end(&journal->line, sample, session);
    return append_line(journal);
}

/* ---- creation -------------------------------------------------------------------------------- */

invar_status invar_session_journal_open(invar_session_journal **out, const char *path,
                                        const invar_session_journal_id *rollout,
                                        const invar_agent_limits *limits)
{
    invar_session_journal *journal = NULL;
    invar_status status;

    *out = NULL;
    INVAR_TRY(INVAR_ALLOC_ZEROED(journal, 1, "a log of sessions"));
    journal->rollout = *rollout;
    status = strlen(path) < sizeof journal->path
                 ? INVAR_OK
                 : INVAR_FAIL(INVAR_E_INVALID, 0, "the path of the sessions is too long");
    if (status == INVAR_OK) {
        memcpy(journal->path, path, strlen(path) + 1);
        status = read_file(journal, limits);
    }
    if (status == INVAR_OK)
        status = check_agent(journal);
    if (status != INVAR_OK) {
        invar_session_journal_close(journal);
        return status;
    }
    *out = journal;
    return INVAR_OK;
}

void invar_session_journal_close(invar_session_journal *journal)
{
    if (!journal)
        return;
    invar_journal_close(journal->file);
    invar_journal_contents_release(&journal->contents);
    invar_json_text_release(&journal->line);
    invar_free(journal);
}

bool invar_session_journal_unchecked(const invar_session_journal *journal)
{
    return journal->contents.unchecked;
}

bool invar_session_journal_matches(const invar_session_journal *journal,
                                   const invar_session_journal_id *rollout)
{
    return is_same_rollout(&journal->rollout, rollout);
}

bool invar_session_journal_take_session(invar_agent_session *out, invar_session_journal *journal,
                                        int64_t sample)
{
    for (int64_t i = 0; i < journal->contents.count; i++)
        if (journal->contents.items[i].sample == sample && journal->contents.items[i].session.end) {
            *out = journal->contents.items[i].session;
            journal->contents.items[i].session = (invar_agent_session){0};
            return true;
        }
    return false;
}
