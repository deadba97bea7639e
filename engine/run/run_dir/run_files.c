/*
 * run_files.c - writes the files of a run folder that are for users: recipe.ini and train.log.
 *
 * recipe.ini is the resolved recipe: every key with its value, so that it can be read, compared and
 * started again. train.log has the printed lines with times. No run reads these files, and none of
 * their content is in the ledger. Existing files are never lost: the log is appended to, an earlier
 * recipe of the run gets a number, and a file of another origin stays as it is.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/json/text.h"
#include "base/number.h"
#include "base/process/process.h"
#include "base/text.h"
#include "engine/config/config.h"
#include "engine/run/run_storage.h"

#include "base/invar_banned.h"

#define RECIPE "recipe.ini"
#define LOG "train.log"
#define MARK "# invar: the recipe of this run, resolved\n"
#define STEP_MS 1000 /* between two lines about steps; the ledger has all steps */

/* ---- lines of the log ------------------------------------------------------------------------ */

#define LINE_SIZE (INVAR_ERROR_MESSAGE_SIZE + INVAR_PATH_SIZE)

/*
 * Writes "2026-01-31T12:00:00Z TEXT" with control characters replaced by spaces. One call per line,
 * since the sampling thread may print, too. Errors are ignored.
 */
static void write_line(FILE *file, const char *text)
{
    char line[LINE_SIZE], date[32];
    struct timespec now;
    struct tm utc;

    (void)clock_gettime(CLOCK_REALTIME, &now);
    if (!gmtime_r(&now.tv_sec, &utc) || !strftime(date, sizeof date, "%Y-%m-%dT%H:%M:%SZ", &utc))
        date[0] = '\0';
    (void)snprintf(line, sizeof line, "%s", text);
    for (char *c = line; *c; c++)
        *c = (unsigned char)*c < 0x20 || *c == 0x7F ? ' ' : *c;
    fprintf(file, "%s %s\n", date, line);
    fflush(file);
}

/* Writes a line to train.log; does nothing if no log is open. */
static void log_line(const invar_run_storage *storage, const char *fmt, ...)
{
    char line[LINE_SIZE];
    va_list rest;

    if (!storage->log.file)
        return;
    va_start(rest, fmt);
    (void)vsnprintf(line, sizeof line, fmt, rest);
    va_end(rest);
    write_line(storage->log.file, line);
}

/* ---- the recipe ------------------------------------------------------------------------------ */

static void append_text(invar_json_text *s, const char *text)
{
    invar_json_text_append(s, text, strlen(text));
}

static void append_entry(invar_json_text *s, const invar_run_storage *storage,
                         const invar_recipe_entry *e)
{
    char shown[INVAR_TEXT_URL_SIZE];
    const char *text = e->text;

    if (e->key == &invar_config_schema()->keys[INVAR_KEY_NAME] && !text[0])
        text = storage->dirs.paths.name; // without it, this file would name the next run
    if (strstr(text, "://")) {
        invar_text_redact_url(shown, sizeof shown, text);
        if (strcmp(shown, text) != 0)
            append_text(s, "# without the values of the URL, which may be secrets\n");
        text = shown;
    }
    append_text(s, e->key->name);
    append_text(s, text[0] ? " = " : " =");
    append_text(s, text);
    append_text(s, "\n");
}

static void append_recipe(invar_json_text *s, const invar_run_storage *storage)
{
    const char *section = "";

    append_text(s, MARK);
    for (int i = 0; i < INVAR_KEY_COUNT; i++) {
        invar_recipe_entry e;

        invar_recipe_entry_get(&e, storage->job->config->recipe, i);
        if (!e.text)
            continue;
        if (strcmp(section, e.key->section) != 0) {
            append_text(s, section[0] ? "\n[" : "[");
            append_text(s, e.key->section);
            append_text(s, "]\n");
        }
        section = e.key->section;
        append_entry(s, storage, &e);
    }
}

/* Renames the recipe of an earlier start to recipe.1.ini, or the next free number. */
static invar_status rename_old_recipe(invar_run_storage *storage, const char *path)
{
    char name[32], to[INVAR_PATH_SIZE], shown[INVAR_PATH_SHOWN_SIZE];
    int n = 0;

    do {
        (void)snprintf(name, sizeof name, "recipe.%d.ini", ++n);
        INVAR_TRY(invar_path_join(to, sizeof to, storage->dirs.paths.run, name));
    } while (invar_path_exists(to));
    if (rename(path, to) != 0) {
        int code = errno;
        invar_path_show(shown, path);
        return INVAR_FAIL(INVAR_E_IO, code, "%s cannot be renamed: %s", shown, strerror(code));
    }
    log_line(storage, RECIPE " has changed: the earlier one is %s", name);
    return INVAR_OK;
}

/*
 * Makes way for recipe.ini. *out is true if an existing file must stay: it is not ours, or it is
 * equal.
 */
static invar_status check_existing(bool *out, invar_run_storage *storage, const char *path,
                                   const invar_json_text *s)
{
    invar_status status;
    bool ours, same;
    size_t bytes;
    char *there;

    *out = false;
    status = invar_file_read(&there, &bytes, path, 2 * INVAR_RECIPE_MAX_BYTES);
    if (status == INVAR_E_NOTFOUND) {
        invar_error_clear();
        return INVAR_OK;
    }
    if (status == INVAR_E_NOMEM)
        return status;
    ours = status == INVAR_OK && strncmp(there, MARK, sizeof MARK - 1) == 0;
    same = ours && bytes == s->bytes && memcmp(there, s->data, bytes) == 0;
    if (status == INVAR_OK)
        invar_free(there);
    else
        invar_error_clear(); // a folder or an unreadable file is not ours
    *out = !ours || same;
    if (!ours)
        log_line(storage, RECIPE " is not of this run and stays as it is");
    return *out ? INVAR_OK : rename_old_recipe(storage, path);
}

static invar_status keep_recipe(invar_run_storage *storage)
{
    char path[INVAR_PATH_SIZE];
    invar_status status;
    invar_json_text s = {0};
    bool stays = false;

    INVAR_TRY(invar_path_join(path, sizeof path, storage->dirs.paths.run, RECIPE));
    append_recipe(&s, storage);
    status = s.status;
    if (status == INVAR_OK)
        status = check_existing(&stays, storage, path, &s);
    if (status == INVAR_OK && !stays)
        status = invar_file_write(path, s.data, s.bytes);
    invar_json_text_release(&s);
    return status;
}

/* ---- the log --------------------------------------------------------------------------------- */

/* Lines printed before the log is open are kept in log->early and written once it is. */
void invar_run_print(void *payload, const char *line)
{
    invar_run_storage *storage = payload;
    invar_train_log *log = &storage->log;
    size_t bytes = strlen(line) + 1;

    if (log->file)
        write_line(log->file, line);
    else if (!log->ended && bytes < sizeof log->early - log->early_bytes) {
        memcpy(log->early + log->early_bytes, line, bytes);
        log->early_bytes += bytes;
    }
    if (storage->job->options->say)
        storage->job->options->say(storage->job->options->payload, line);
}

void invar_run_log_step(invar_run_storage *storage, const invar_train_progress *p)
{
    int64_t now = invar_process_clock_ms();
    char norm[INVAR_NUMBER_SIZE], result[48], diff[48] = "  logp not compared";

    if (!storage->log.file || (storage->log.next_ms && now < storage->log.next_ms))
        return;
    storage->log.next_ms = now + STEP_MS;
    if (p->compared)
        (void)snprintf(diff, sizeof diff, "  logp diff %g", p->logp_diff_max);
    invar_number_round(norm, p->grad_norm, 3);
    invar_train_format_result(result, sizeof result, p);
    log_line(storage, "step %" PRId64 ", rollout %" PRId64 " of %" PRId64 ": %slen %.1f  |g| %s%s",
             p->step - 1, p->rollout + 1, p->rollouts, result, p->response_len, norm,
             p->supervised ? "" : diff);
}

static invar_status fail_log(const char *path, int code, const char *why)
{
    char shown[INVAR_PATH_SHOWN_SIZE];

    invar_path_show(shown, path);
    return INVAR_FAIL(INVAR_E_IO, code, "%s: %s; move it away, or give another --run", shown, why);
}

static invar_status open_log(invar_run_storage *storage)
{
    char path[INVAR_PATH_SIZE];
    struct stat info;
    int fd, code;

    INVAR_TRY(invar_path_join(path, sizeof path, storage->dirs.paths.run, LOG));
    fd = invar_fd_open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW,
                       0666);
    if (fd < 0 && errno == ELOOP)
        return fail_log(path, ELOOP, "it is a link, and the log is not written through one");
    if (fd < 0) {
        code = errno;
        return fail_log(path, code, strerror(code));
    }
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        close(fd);
        return fail_log(path, 0, "it is no file");
    }
    // our output is redirected to this file, so every line is in it already
    if (invar_run_is_output(&info)) {
        close(fd);
        return INVAR_OK;
    }
    storage->log.file = fdopen(fd, "a");
    if (storage->log.file)
        return INVAR_OK;
    code = errno;
    close(fd);
    return fail_log(path, code, strerror(code));
}

invar_status invar_run_write_run_files(invar_run_storage *storage)
{
    invar_train_log *log = &storage->log;
    char hex[INVAR_DIGEST_HEX_SIZE];

    if (storage->job->options->replay)
        return INVAR_OK;
    INVAR_TRY(open_log(storage));
    invar_digest_format(hex, &storage->identity.digest);
    log_line(storage, "run %s, %s, identity %s", storage->dirs.paths.name, storage->recorder.uuid,
             hex);
    if (storage->position.step > 0)
        log_line(storage, "goes on after step %" PRId64, storage->position.step - 1);
    for (size_t at = 0; at < log->early_bytes; at += strlen(log->early + at) + 1)
        log_line(storage, "%s", log->early + at);
    log->early_bytes = 0;
    log->ended = true;
    return keep_recipe(storage);
}

void invar_run_log_end(invar_run_storage *storage, invar_status status)
{
    const invar_train_summary *sum = storage->summary;
    char hex[INVAR_DIGEST_HEX_SIZE];

    if (!storage->log.file)
        return;
    invar_digest_format(hex, &sum->chain);
    if (status != INVAR_OK)
        log_line(storage, "failed: %s", invar_error_last()->message);
    log_line(storage, "%s: %" PRId64 " step%s, the last is %" PRId64 ", chain %s",
             status != INVAR_OK ? "ended"
             : sum->stopped     ? "stopped"
                                : "done",
             sum->steps, invar_text_plural(sum->steps), sum->last_step, hex);
    fclose(storage->log.file);
    storage->log.file = NULL;
}
