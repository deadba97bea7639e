/*
 * journal.c - writes and checks line journals; the file format is in journal.h.
 *
 * The writer and the reader keep the sum of the last line, which links it to the next one.
 * After a failed append the journal is broken: nothing may follow a line that may be incomplete.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/files/journal.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/alloc.h"

#include "base/invar_banned.h"

struct invar_journal {
    char path[INVAR_PATH_SIZE];
    int fd;
    bool broken;          /* the last line of the file may be incomplete: nothing may follow */
    invar_digest sum;     /* sum of the last line */
    invar_json_text text; /* lines that are being written, with their sums */
};

/* ---- sums ------------------------------------------------------------------------------------ */

#define SUM_KEY ",\"sum\":\""
#define SUM_END "\"}"
enum {
    SUM_KEY_BYTES = sizeof SUM_KEY - 1,
    SUM_BYTES = SUM_KEY_BYTES + INVAR_DIGEST_HEX_SIZE - 1 + sizeof SUM_END - 1
};

/* Writes the end of a line whose other members are `bytes` at `line`, and moves the chain. */
static void make_sum(char out[SUM_BYTES + 1], invar_digest *chain, const char *line, size_t bytes)
{
    invar_hasher hasher;

    invar_hasher_init(&hasher);
    invar_hasher_update(&hasher, chain->bytes, sizeof chain->bytes);
    invar_hasher_update(&hasher, line, bytes);
    invar_hasher_final(chain, &hasher);
    (void)snprintf(out, SUM_BYTES + 1, "%s%s%s", SUM_KEY, INVAR_DIGEST_HEX(chain), SUM_END);
}

/* ---- writing --------------------------------------------------------------------------------- */

static invar_status fail_io(const char *path, const char *what)
{
    int why = errno;

    return INVAR_FAIL(INVAR_E_IO, why, "%s: cannot %s: %s", INVAR_SHOWN_PATH(path), what,
                      strerror(why));
}

invar_status invar_journal_add_sums(invar_json_text *out, invar_digest *chain, const char *lines,
                                    size_t bytes)
{
    const char *end = bytes ? lines + bytes : lines, *newline;
    char sum[SUM_BYTES + 1];

    for (; lines < end; lines = newline + 1) {
        newline = memchr(lines, '\n', (size_t)(end - lines));
        INVAR_CHECK(newline && newline - lines > 2 && newline[-1] == '}');
        make_sum(sum, chain, lines, (size_t)(newline - 1 - lines));
        invar_json_text_append(out, lines, (size_t)(newline - 1 - lines));
        invar_json_text_append(out, sum, SUM_BYTES);
        invar_json_text_append(out, "\n", 1);
    }
    return out->status;
}

static invar_status create_file(invar_journal *j, const char *path, const char *lines, size_t bytes)
{
    memcpy(j->path, path, strlen(path) + 1);
    INVAR_TRY(invar_journal_add_sums(&j->text, &j->sum, lines, bytes));
    INVAR_TRY(invar_file_write(path, j->text.data, j->text.bytes));
    j->fd = invar_fd_open(path, O_WRONLY | O_APPEND | O_CLOEXEC, 0);
    return j->fd < 0 ? fail_io(path, "open it") : INVAR_OK;
}

invar_status invar_journal_create(invar_journal **out, const char *path, const char *lines,
                                  size_t bytes)
{
    invar_journal *j = NULL;
    invar_status status;

    *out = NULL;
    if (strlen(path) >= sizeof j->path)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%.200s...: the path is too long", path);
    INVAR_TRY(INVAR_ALLOC(j, 1, "a journal"));
    *j = (invar_journal){.fd = -1};
    status = create_file(j, path, lines, bytes);
    if (status == INVAR_OK)
        *out = j;
    else
        invar_journal_close(j);
    return status;
}

/* Fails if the file was unlinked: its lines would be lost with the process. */
static invar_status check_name(const invar_journal *j)
{
    struct stat info;

    if (fstat(j->fd, &info) != 0)
        return fail_io(j->path, "look at it");
    if (info.st_nlink > 0)
        return INVAR_OK;
    return INVAR_FAIL(
        INVAR_E_STATE, 0,
        "%.1000s was removed while it was being written: nothing can continue from it", j->path);
}

invar_status invar_journal_append(invar_journal *j, const char *lines, size_t bytes)
{
    const char *at, *end;

    if (j->broken)
        return INVAR_FAIL(INVAR_E_STATE, 0, "%.1000s: nothing is written to it after a failure",
                          j->path);
    INVAR_TRY(check_name(j));
    j->broken = true;
    invar_json_text_reset(&j->text);
    INVAR_TRY(invar_journal_add_sums(&j->text, &j->sum, lines, bytes));
    at = j->text.data;
    end = at + j->text.bytes;
    while (at < end) {
        ssize_t put = write(j->fd, at, (size_t)(end - at));

        if (put < 0 && errno != EINTR)
            return fail_io(j->path, "write to it");
        at += put > 0 ? put : 0;
    }
    if (invar_fd_sync(j->fd) != 0)
        return fail_io(j->path, "sync it");
    j->broken = false;
    return INVAR_OK;
}

void invar_journal_close(invar_journal *j)
{
    if (!j)
        return;
    if (j->fd >= 0)
        (void)close(j->fd);
    invar_json_text_release(&j->text);
    invar_free(j);
}

/* ---- reading --------------------------------------------------------------------------------- */

void invar_journal_read(invar_journal_reader *out, const char *kind, const char *text, size_t bytes,
                        const char *file)
{
    *out = (invar_journal_reader){
        .position = text, .end = bytes ? text + bytes : text, .file = file, .kind = kind};
}

/* Returns true if the line ends with the text of a sum, right or wrong. */
static bool has_sum(const char *line, size_t bytes)
{
    return bytes > SUM_BYTES && memcmp(line + bytes - SUM_BYTES, SUM_KEY, SUM_KEY_BYTES) == 0 &&
           memcmp(line + bytes - 2, SUM_END, 2) == 0;
}

static invar_status check_sum(invar_journal_reader *r, const char *line, size_t bytes)
{
    char sum[SUM_BYTES + 1];

    if (has_sum(line, bytes)) {
        make_sum(sum, &r->sum, line, bytes - SUM_BYTES);
        if (memcmp(sum, line + bytes - SUM_BYTES, SUM_BYTES) == 0)
            return INVAR_OK;
    }
    return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                      "%s: the sum does not follow from this line and the line before it: a line "
                      "was changed, removed, added or moved",
                      r->where);
}

/*
 * Fails if the rest is a complete line whose newline is another byte: a killed writer cannot leave
 * that, only damage can.
 */
static invar_status check_tail(invar_journal_reader *r)
{
    size_t rest = (size_t)(r->end - r->position);
    char sum[SUM_BYTES + 1];

    if (rest <= SUM_BYTES + 1 || !has_sum(r->position, rest - 1))
        return INVAR_OK;
    make_sum(sum, &r->sum, r->position, rest - 1 - SUM_BYTES);
    if (memcmp(sum, r->end - 1 - SUM_BYTES, SUM_BYTES) != 0)
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                      "%.*s:%" PRId64 ": the newline after the line was changed",
                      INVAR_PATH_SHOWN_SIZE, r->file, r->line + 1);
}

static invar_status check_version(const invar_journal_reader *r, const json_t *head)
{
    int64_t version;

    INVAR_TRY(invar_json_int(&version, head, r->kind, r->where, 1, INVAR_JOURNAL_VERSION));
    if (r->checked == (version == INVAR_JOURNAL_VERSION))
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_CORRUPT, 0,
                      "%s: a journal of version %" PRId64 "%s: the line was changed", r->where,
                      version, r->checked ? " has no sums" : " has a sum in every line");
}

invar_status invar_journal_next(json_t **out, invar_journal_reader *r)
{
    size_t rest = (size_t)(r->end - r->position), bytes;
    const char *line = r->position, *newline = rest ? memchr(line, '\n', rest) : NULL;
    INVAR_AUTO_JSON json_t *parsed = NULL;

    *out = NULL;
    if (!newline)
        return check_tail(r);
    bytes = (size_t)(newline - line);
    r->position = newline + 1;
    r->line++;
    (void)snprintf(r->where, sizeof r->where, "%.*s:%" PRId64, INVAR_PATH_SHOWN_SIZE, r->file,
                   r->line);
    if (r->line == 1)
        r->checked = r->kind && has_sum(line, bytes);
    if (r->checked)
        INVAR_TRY(check_sum(r, line, bytes));
    INVAR_TRY(invar_json_as_corrupt(invar_json_parse(&parsed, r->where, line, bytes)));
    if (r->line == 1 && r->kind)
        INVAR_TRY(invar_json_as_corrupt(check_version(r, parsed)));
    *out = parsed;
    parsed = NULL;
    return INVAR_OK;
}

invar_status invar_journal_digest(invar_digest *out, const json_t *line, const char *key,
                                  const char *where)
{
    const char *text;

    INVAR_TRY(invar_json_string(&text, line, key, where));
    if (invar_digest_parse(out, text) != INVAR_OK)
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "%s: \"%s\" is no hash of 32 hexadecimal digits",
                          where, key);
    return INVAR_OK;
}
