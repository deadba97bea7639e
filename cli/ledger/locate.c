/*
 * locate.c - finds the ledger and the run that a RUN argument names.
 *
 * The forms are tried in the order of locate.h. Ledgers below runs/ that cannot be read are skipped
 * with a message. If several ledgers have copies of the run, the one with the most entries is used
 * and named on stderr.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "cli/ledger/locate.h"

#include <errno.h>
#include <glob.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "cli/safe_text.h"
#include "engine/files/checkpoint/checkpoint.h"

#include "base/invar_banned.h"

#define LAST "@last"

enum { LIST_SIZE = 1024 };

const char *invar_locate_given(const char *ledger)
{
    const char *fallback = getenv("INVAR_LEDGER");

    if (ledger)
        return ledger;
    return fallback && fallback[0] != '\0' ? fallback : NULL;
}

/*
 * Makes a glob pattern for the ledgers below a folder. Special characters of its name are escaped.
 */
static invar_status make_pattern(char out[INVAR_LOCATE_PATH_SIZE], const char *folder)
{
    size_t used = 0;

    for (const char *c = folder; *c && used + 32 < INVAR_LOCATE_PATH_SIZE; c++) {
        if (strchr("*?[\\", *c))
            out[used++] = '\\';
        out[used++] = *c;
    }
    if (used + 32 >= INVAR_LOCATE_PATH_SIZE)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "the path is too long: %.1000s", folder);
    snprintf(out + used, INVAR_LOCATE_PATH_SIZE - used, "/*/ledger.db");
    return INVAR_OK;
}

invar_status invar_locate_below(const char *folder,
                                invar_status (*take)(void *payload, const char *path),
                                void *payload)
{
    char pattern[INVAR_LOCATE_PATH_SIZE];
    invar_status status = INVAR_OK;
    glob_t found;

    INVAR_TRY(make_pattern(pattern, folder));
    switch (glob(pattern, 0, NULL, &found)) {
    case 0: break;
    case GLOB_NOSPACE: return INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for the list of runs");
    default: return INVAR_OK;
    }
    for (size_t i = 0; i < found.gl_pathc && status == INVAR_OK; i++)
        status = take(payload, found.gl_pathv[i]);
    globfree(&found);
    return status;
}

/* ---- searching ------------------------------------------------------------------------------- */

typedef struct run_search {
    const char *prefix;                 /* prefix of the uuid; NULL to find the newest run */
    const char *path;                   /* ledger that is being read */
    char found[INVAR_LOCATE_PATH_SIZE]; /* ledger of the best match so far; empty if there was no
                                           match */
    invar_ledger_summary run;
    bool several;
    char list[LIST_SIZE];   /* all matching runs, if there are several */
    char copies[LIST_SIZE]; /* ledgers that contain `run`, if there are several */
} run_search;

/* Appends to a list, with a comma unless it is the first element; what does not fit is cut off. */
static void INVAR_PRINTF(2, 3) append_to_list(char list[LIST_SIZE], const char *format, ...)
{
    size_t used = strlen(list);
    va_list arguments;

    used += (size_t)snprintf(list + used, LIST_SIZE - used, "%s", used > 0 ? ", " : "");
    va_start(arguments, format);
    if (used < LIST_SIZE)
        (void)vsnprintf(list + used, LIST_SIZE - used, format, arguments);
    va_end(arguments);
}

static void store_match(run_search *s, const invar_ledger_summary *run)
{
    if (strcmp(s->run.uuid, run->uuid) != 0)
        s->copies[0] = '\0';
    snprintf(s->found, sizeof s->found, "%s", s->path);
    s->run = *run;
}

static invar_status consider_run(void *payload, const invar_ledger_summary *run)
{
    run_search *s = payload;
    bool first = s->found[0] == '\0';

    if (s->prefix && strncmp(run->uuid, s->prefix, strlen(s->prefix)) != 0)
        return INVAR_OK;
    if (first) {
        store_match(s, run);
        // a copy of the same run: prefer the one with more entries
    } else if (strcmp(s->run.uuid, run->uuid) == 0) {
        if (s->copies[0] == '\0')
            append_to_list(s->copies, "%.1000s", s->found);
        append_to_list(s->copies, "%s", s->path);
        if (run->entries > s->run.entries)
            store_match(s, run);
    } else if (!s->prefix) {
        if (run->created_ns > s->run.created_ns)
            store_match(s, run);
    } else {
        if (!s->several)
            append_to_list(s->list, "%.12s in %s", s->run.uuid, s->found);
        append_to_list(s->list, "%.12s in %s", run->uuid, s->path);
        s->several = true;
    }
    return INVAR_OK;
}

static invar_status search_file(run_search *s, const char *path)
{
    invar_ledger *ledger;
    invar_status status;

    s->path = path;
    INVAR_TRY(invar_ledger_open(&ledger, path, &(invar_ledger_options){0}));
    status = invar_ledger_runs(ledger, consider_run, s);
    invar_ledger_close(ledger);
    return status;
}

/* Searches one ledger of many. An unreadable one is reported and skipped. */
static invar_status search_or_skip(void *payload, const char *path)
{
    if (search_file(payload, path) != INVAR_OK) {
        fputs("invar: left out: ", stderr);
        invar_safe_text_print(stderr, invar_error_last()->message);
        fputc('\n', stderr);
        invar_error_clear();
    }
    return INVAR_OK;
}

static invar_status check_result(const run_search *s, const char *word)
{
    if (s->several)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "'%.40s' fits several runs: %s", word, s->list);
    if (s->found[0] == '\0')
        return INVAR_FAIL(INVAR_E_NOTFOUND, 0,
                          "no run '%.1000s': it is no folder, no file and no uuid of a run below "
                          "runs/; 'invar ledger ls' lists those",
                          word);
    if (s->copies[0]) {
        fprintf(stderr, "invar: run %.8s is in several ledgers: ", s->run.uuid);
        invar_safe_text_print(stderr, s->copies);
        fputs("; taken is ", stderr);
        invar_safe_text_print(stderr, s->found);
        fputs("; to choose another give its path\n", stderr);
    }
    return INVAR_OK;
}

/* ---- one run --------------------------------------------------------------------------------- */

/* Computes the ledger path of a file or folder. Returns false if neither exists. */
static bool ledger_at(char out[INVAR_LOCATE_PATH_SIZE], const char *word)
{
    struct stat info;

    if (strlen(word) + sizeof "/ledger.db" > INVAR_LOCATE_PATH_SIZE) {
        errno = ENAMETOOLONG;
        return false;
    }
    if (stat(word, &info) != 0)
        return false;
    snprintf(out, INVAR_LOCATE_PATH_SIZE, S_ISDIR(info.st_mode) ? "%s/ledger.db" : "%s", word);
    return true;
}

invar_status invar_locate_file(char out[INVAR_LOCATE_PATH_SIZE], const char *word)
{
    return ledger_at(out, word)
               ? INVAR_OK
               : INVAR_FAIL(INVAR_E_NOTFOUND, errno, "%.1000s: %s", word, strerror(errno));
}

/* A ledger and one of its runs. */
typedef struct run_location {
    char path[INVAR_LOCATE_PATH_SIZE];
    const char *which; /* NULL if the ledger has only one run */
    char uuid[INVAR_LEDGER_UUID_SIZE];
} run_location;

/* Splits FILE:WHICH at its last colon. */
static bool split_file_and_run(run_location *out, const char *word)
{
    const char *colon = strrchr(word, ':');
    char before[INVAR_LOCATE_PATH_SIZE];

    if (!colon || (size_t)(colon - word) >= sizeof before)
        return false;
    snprintf(before, sizeof before, "%.*s", (int)(colon - word), word);
    out->which = colon + 1;
    return ledger_at(out->path, before);
}

static void locate_given(char out[INVAR_LOCATE_PATH_SIZE], const char *ledger)
{
    if (!ledger_at(out, ledger)) // opening the ledger reports the error
        snprintf(out, INVAR_LOCATE_PATH_SIZE, "%s", ledger);
}

static invar_status resolve_location(run_location *out, const char *word, const char *ledger)
{
    run_search s = {.prefix = NULL};
    size_t digits = word ? strspn(word, "0123456789abcdef") : 0;

    out->which = NULL;
    if (ledger) {
        locate_given(out->path, ledger);
        out->which = word;
        if (!word || strcmp(word, LAST) != 0)
            return INVAR_OK;
        INVAR_TRY(search_file(&s, out->path));
    } else if (strcmp(word, LAST) == 0) {
        INVAR_TRY(invar_locate_below(INVAR_LOCATE_RUNS, search_or_skip, &s));
    } else if (ledger_at(out->path, word) || split_file_and_run(out, word)) {
        return INVAR_OK;
    } else if (digits >= 4 && digits < INVAR_LEDGER_UUID_SIZE && word[digits] == '\0') {
        s.prefix = word;
        INVAR_TRY(invar_locate_below(INVAR_LOCATE_RUNS, search_or_skip, &s));
    }
    INVAR_TRY(check_result(&s, word));
    snprintf(out->path, sizeof out->path, "%s", s.found);
    snprintf(out->uuid, sizeof out->uuid, "%s", s.run.uuid);
    out->which = out->uuid;
    return INVAR_OK;
}

typedef struct candidate_list {
    const char *which; /* NULL matches all runs */
    char list[LIST_SIZE];
} candidate_list;

static invar_status add_candidate(void *payload, const invar_ledger_summary *run)
{
    candidate_list *c = payload;

    if (!c->which || strcmp(c->which, run->name) == 0 ||
        strncmp(c->which, run->uuid, strlen(c->which)) == 0)
        append_to_list(c->list, "%.12s (%.40s)", run->uuid, run->name);
    return INVAR_OK;
}

/* Fails because several runs of the file match, with a list of them. */
static invar_status fail_several_runs(const invar_located *at, const char *which)
{
    candidate_list c = {.which = which};

    INVAR_TRY(invar_ledger_runs(at->ledger, add_candidate, &c));
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "%.1000s has several: %s; say FILE:RUN or --ledger FILE RUN", at->path,
                      c.list);
}

invar_status invar_locate_run(invar_located *out, const char *word, const char *ledger)
{
    invar_status status;
    run_location at;

    *out = (invar_located){.ledger = NULL};
    ledger = invar_locate_given(ledger);
    if (!word && !ledger)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "which run? say RUN, as in runs/NAME or @last, or --ledger FILE");
    INVAR_TRY(resolve_location(&at, word, ledger));
    snprintf(out->path, sizeof out->path, "%s", at.path);
    INVAR_TRY(invar_ledger_open(&out->ledger, out->path, &(invar_ledger_options){0}));
    status = invar_ledger_find(&out->run, out->ledger, at.which);
    if (status == INVAR_E_INVALID)
        status = fail_several_runs(out, at.which);
    if (status != INVAR_OK)
        invar_located_close(out);
    return status;
}

void invar_located_close(invar_located *located)
{
    invar_ledger_close(located->ledger);
    located->ledger = NULL;
}

invar_status invar_locate_ledger(invar_located *out, const char *word, const char *ledger)
{
    *out = (invar_located){.ledger = NULL};
    ledger = invar_locate_given(ledger);
    if (!word && !ledger)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "which ledger? say a file, a folder or a RUN, or --ledger FILE");
    if (!word)
        locate_given(out->path, ledger);
    else if (ledger || !ledger_at(out->path, word))
        return invar_locate_run(out, word, ledger);
    return invar_ledger_open(&out->ledger, out->path, &(invar_ledger_options){0});
}

/* ---- checkpoints ----------------------------------------------------------------------------- */

/*
 * Finds the checkpoint next to the ledger: tries the tails of "a/b/c", the longest first, as in
 * FOLDER/b/c. Writes the path to `buffer`.
 */
static bool find_beside(char buffer[INVAR_LOCATE_PATH_SIZE], const char *ledger,
                        const invar_ledger_value *path, const invar_digest *hash)
{
    const char *slash = strrchr(ledger, '/'), *begin = path->data, *end = begin + path->bytes;
    int folder = slash ? (int)(slash - ledger) + 1 : 0;

    for (const char *at = begin; at < end; at++) {
        int length;
        if (*at == '/' || (at > begin && at[-1] != '/'))
            continue;
        length = snprintf(buffer, INVAR_LOCATE_PATH_SIZE, "%.*s%.*s", folder, ledger,
                          (int)(end - at), at);
        if (length > 0 && length < INVAR_LOCATE_PATH_SIZE &&
            invar_checkpoint_has_hash(buffer, hash))
            return true;
    }
    return false;
}

/* Parses the hash of a column. Returns false if the column has no hash. */
static bool read_hash(invar_digest *out, const invar_ledger_value *value)
{
    char hex[INVAR_DIGEST_HEX_SIZE];

    if (value->bytes != sizeof hex - 1)
        return false;
    snprintf(hex, sizeof hex, "%s", (const char *)value->data);
    if (invar_digest_parse(out, hex) == INVAR_OK)
        return true;
    invar_error_clear();
    return false;
}

void invar_locate_checkpoint(invar_ledger_value *values, char buffer[INVAR_LOCATE_PATH_SIZE],
                             const char *const *columns, int count, const char *ledger)
{
    invar_ledger_value *path = NULL;
    bool known = false;
    invar_digest hash;

    for (int i = 0; i < count; i++) {
        if (values[i].type != INVAR_LEDGER_TYPE_TEXT)
            continue;
        if (strcmp(columns[i], "path") == 0 || strcmp(columns[i], "checkpoint") == 0)
            path = &values[i];
        else if (strcmp(columns[i], "hash") == 0 || strcmp(columns[i], "checkpoint_hash") == 0)
            known = read_hash(&hash, &values[i]);
    }
    if (!path || !known)
        return;
    snprintf(buffer, INVAR_LOCATE_PATH_SIZE, "%.*s", (int)path->bytes, (const char *)path->data);
    if (invar_checkpoint_has_hash(buffer, &hash) || !find_beside(buffer, ledger, path, &hash))
        return;
    path->data = buffer;
    path->bytes = strlen(buffer);
}
