/*
 * bug_report.c - invar bug-report: packs everything that a maintainer needs to know about a run.
 *
 * Each member of the archive is the output of another command in a child process, or a bounded part
 * of a file of the run folder. A damaged ledger therefore affects only the members that need it;
 * their error message is recorded. Weights and data are never included, prompts and responses only
 * on request. Links are not followed, and every member passes the masking of secrets that reports
 * use.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/console/progress.h"
#include "base/console/term.h"
#include "base/file.h"
#include "base/text.h"
#include "cli/ledger/ledger.h"
#include "cli/safe_text.h"
#include "engine/ext/subprocess.h"
#include "engine/files/tar.h"
#include "ledger/view/report/report.h"

#include "base/invar_banned.h"

enum {
    TAIL_BYTES = 64 << 10, /* largest part of one file of the run */
    MAX_BYTES = 4 << 20,   /* largest member, except the report */
    PAGE_BYTES = 16 << 20, /* largest report */
    MAX_FILES = 1000,      /* most files that files.txt names */
    MAX_DEPTH = 4,         /* deepest folder in the run's folder that files.txt names */
    MAX_MEMBERS = 16,
    NOTE_BYTES = 300,
    WAIT_MS = 300000, /* longest time of one command */
    SHOW_MS = 1000    /* interval between updates of the progress line */
};

typedef struct settings {
    const char *out;
    bool samples;
    bool json;
} settings;

typedef struct report_member {
    const char *name, *about;
    size_t bytes;
    char note[NOTE_BYTES]; /* reason why the member is missing or cut; empty if it is complete */
} report_member;

/* A member that is the output of another command. */
typedef struct command_member {
    const char *name, *about;
    const char *words[6]; /* command line after the program; NULL after the last word */
    size_t most;          /* largest size, in bytes */
    bool step;            /* the command needs a last step */
} command_member;

typedef struct report_bundle {
    invar_tar_writer *tar;
    const char *word; /* RUN as the user gave it */
    char program[INVAR_PATH_SIZE];
    char folder[INVAR_PATH_SIZE]; /* folder of the run */
    char path[INVAR_PATH_SIZE];   /* path of the archive */
    char *buffer;                 /* (PAGE_BYTES) */
    int64_t last;                 /* last step; -1 if it is unknown */
    invar_progress *progress;     /* progress line on a terminal; NULL if no command runs */
    report_member members[MAX_MEMBERS];
    int count;
} report_bundle;

/* ---- members --------------------------------------------------------------------------------- */

static report_member *start_member(report_bundle *b, const char *name, const char *about)
{
    report_member *m = &b->members[b->count++];

    INVAR_CHECK(b->count <= MAX_MEMBERS);
    *m = (report_member){.name = name, .about = about};
    return m;
}

/* Writes a member into the archive, except an empty one, whose note has the reason. */
static invar_status write_member(report_bundle *b, report_member *m, const char *text, size_t bytes)
{
    char *masked = NULL;
    invar_status status = invar_report_mask(&masked, &bytes, text, bytes);

    if (status == INVAR_OK && bytes > 0)
        status = invar_tar_add(b->tar, m->name, masked ? masked : text, bytes);
    m->bytes = bytes;
    invar_free(masked);
    return status;
}

/* ---- output of commands ---------------------------------------------------------------------- */

/*
 * Reads up to `most` bytes that the child prints into the buffer. Returns false if the child prints
 * more, or takes too long.
 */
static bool read_output(size_t *bytes_out, report_bundle *b, size_t most, int fd, int64_t until)
{
    struct pollfd from = {.fd = fd, .events = POLLIN};
    size_t used = 0;

    for (;;) {
        int64_t left = until - invar_process_clock_ms();
        invar_progress_update(b->progress, 0, NULL);
        int ready = left > 0 ? poll(&from, 1, left < SHOW_MS ? (int)left : SHOW_MS) : 0;
        ssize_t got = ready > 0 ? read(fd, b->buffer + used, most - used) : 0;
        *bytes_out = used;
        if (((ready < 0 || got < 0) && errno == EINTR) || (ready == 0 && left > SHOW_MS))
            continue;
        if (ready > 0 && got == 0 && used < most)
            return true;
        if (ready <= 0 || got <= 0)
            return false;
        used += (size_t)got;
    }
}

static void describe_end(report_member *m, const invar_subprocess *child, const char *text,
                         size_t bytes, const char *limit)
{
    int code = WIFEXITED(child->wait_status) ? WEXITSTATUS(child->wait_status) : -1;
    char words[NOTE_BYTES - 40];
    invar_process_tail tail = {0};

    if (limit) {
        (void)snprintf(m->note, sizeof m->note, "only what was printed before a limit of %s",
                       limit);
    } else if (code != INVAR_EXIT_OK && code != INVAR_EXIT_DIFFERENT) {
        invar_process_tail_add(&tail, text, bytes);
        invar_process_last_output_line(words, sizeof words, &tail);
        (void)snprintf(m->note, sizeof m->note, "exit code %d: %s", code, words);
    }
}

/* Runs this program with the words and keeps what it prints, on both streams. */
static invar_status run_program(report_bundle *b, report_member *m, char *const *words, size_t most)
{
    int ends[2], streams[3] = {-1}, rc = invar_process_pipe(ends);
    invar_subprocess child = {0};
    invar_status status;
    size_t bytes = 0;
    bool whole;

    if (rc != 0)
        return INVAR_FAIL(INVAR_E_IO, rc, "%s: cannot open a pipe: %s", m->name, strerror(rc));
    streams[0] = invar_process_fd_above_stdio(open("/dev/null", O_RDONLY | O_CLOEXEC));
    streams[1] = streams[2] = ends[1];
    status = invar_subprocess_start(&child, m->name, words, streams);
    (void)close(ends[1]);
    if (streams[0] >= 0)
        (void)close(streams[0]);
    if (status == INVAR_OK) {
        int64_t until = invar_process_clock_ms() + WAIT_MS;
        whole = read_output(&bytes, b, most, ends[0], until);
        while (whole && !invar_subprocess_ended(&child) && invar_process_clock_ms() < until)
            (void)poll(NULL, 0, 1);
        invar_subprocess_kill(&child);
        describe_end(m, &child, b->buffer, bytes, whole ? NULL : bytes == most ? "size" : "time");
        status = write_member(b, m, b->buffer, bytes);
    }
    (void)close(ends[0]);
    return status;
}

static invar_status add_command(report_bundle *b, const command_member *v)
{
    report_member *m = start_member(b, v->name, v->about);
    char *words[8] = {b->program};

    if (v->step && b->last < 0) {
        (void)snprintf(m->note, sizeof m->note, "the ledger names no step");
        return INVAR_OK;
    }
    for (int i = 0; i < 6 && v->words[i]; i++)
        words[i + 1] = (char *)(uintptr_t)v->words[i]; // execve takes non-const words
    return run_program(b, m, words, v->most);
}

/* Adds the members that are outputs of commands. On a terminal a line shows the current one. */
static invar_status add_commands(report_bundle *b, const settings *s)
{
    const char *no_samples = s->samples ? NULL : "--no-samples";
    char step[24];
    const command_member verbs[] = {
        {"version.txt", "program: commit, compiler, ops", {"version"}, MAX_BYTES, false},
        {"doctor.txt", "machine", {"doctor"}, MAX_BYTES, false},
        {"run.txt",
         "identity, keys, provenance, events",
         {"ledger", "show", b->word, "--all"},
         MAX_BYTES,
         false},
        {"last-step.txt",
         "last recorded step: hashes, metrics, timings",
         {"ledger", "show", b->word, "--step", step, no_samples},
         MAX_BYTES,
         true},
        {"verify.txt",
         "verification of the ledger",
         {"ledger", "verify", b->word},
         MAX_BYTES,
         false},
        {"triage.txt", "findings", {"triage", b->word}, MAX_BYTES, false},
        {"report.html",
         s->samples ? "report, with prompts and responses" : "report",
         {"ledger", "report", b->word, "--out", "-", no_samples},
         PAGE_BYTES,
         false},
    };
    const int64_t count = sizeof verbs / sizeof *verbs;
    const invar_progress_options o = {.stream = stderr,
                                      .title = "bug-report",
                                      .unit = "parts",
                                      .total = count,
                                      .mode = invar_term_live(stderr) ? INVAR_PROGRESS_MODE_AUTO
                                                                      : INVAR_PROGRESS_MODE_SILENT};
    invar_status status = invar_progress_new(&b->progress, &o);

    (void)snprintf(step, sizeof step, "%" PRId64, b->last);
    for (int64_t i = 0; i < count && status == INVAR_OK; i++) {
        invar_progress_update(b->progress, i, verbs[i].name);
        status = add_command(b, &verbs[i]);
    }
    if (status == INVAR_OK)
        invar_progress_update(b->progress, count, "");
    invar_progress_free(b->progress);
    b->progress = NULL;
    return status;
}

/* ---- files of the run ------------------------------------------------------------------------ */

/* Returns the text after a word and its digits; NULL if the text does not begin so. */
static const char *text_after(const char *text, const char *word)
{
    size_t bytes = strlen(word), digits;

    if (!text || strncmp(text, word, bytes) != 0)
        return NULL;
    digits = strspn(text + bytes, "0123456789");
    return digits ? text + bytes + digits : NULL;
}

/*
 * True if a line of the log is "TIME rollout 3, sample 24: ..." (engine/run/progress.c). A log that
 * a shell has redirected has "invar:" instead of the time.
 */
static bool shows_sample(const char *line, size_t bytes)
{
    char head[80];
    const char *at;

    (void)snprintf(head, sizeof head, "%.*s", bytes < sizeof head ? (int)bytes : 79, line);
    at = text_after(text_after(strchr(head, ' '), " rollout "), ", sample ");
    return at && *at == ':';
}

/* Removes the lines that show samples; returns the bytes that are left. */
static size_t drop_samples(char *text, size_t bytes)
{
    size_t used = 0;

    for (size_t at = 0, length; at < bytes; at += length) {
        const char *end = memchr(text + at, '\n', bytes - at);
        length = end ? (size_t)(end + 1 - text) - at : bytes - at;
        if (shows_sample(text + at, length))
            continue;
        memmove(text + used, text + at, length);
        used += length;
    }
    return used;
}

/* Adds the last TAIL_BYTES of a plain file, from the beginning of a line. */
static invar_status add_tail(report_bundle *b, const char *name, const char *about, bool samples)
{
    report_member *m = start_member(b, name, about);
    char path[INVAR_PATH_SIZE], *text = b->buffer;
    struct stat st = {0};
    ssize_t got = -1;
    off_t from;
    int fd;

    INVAR_TRY(invar_path_join(path, sizeof path, b->folder, name));
    fd = invar_fd_open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, 0);
    if (fd >= 0 && fstat(fd, &st) == 0 && S_ISREG(st.st_mode)) {
        from = st.st_size > TAIL_BYTES ? st.st_size - TAIL_BYTES : 0;
        got = pread(fd, text, TAIL_BYTES, from);
        char *line = from > 0 && got > 0 ? memchr(text, '\n', (size_t)got) : NULL;
        if (line) {
            got -= line + 1 - text;
            text = line + 1;
        }
        if (from > 0)
            (void)snprintf(m->note, sizeof m->note, "the last %zd of %lld bytes", got,
                           (long long)st.st_size);
    } else if (fd >= 0) {
        (void)snprintf(m->note, sizeof m->note, "not a plain file");
    }
    if (got < 0 && !m->note[0])
        (void)snprintf(m->note, sizeof m->note, "%s",
                       errno == ELOOP ? "a link, not followed" : strerror(errno));
    if (fd >= 0)
        (void)close(fd);
    if (got > 0 && !samples)
        got = (ssize_t)drop_samples(text, (size_t)got);
    return write_member(b, m, text, got > 0 ? (size_t)got : 0);
}

typedef struct file_listing {
    FILE *out;
    int files;
    bool cut;
} file_listing;

static void list_folder(file_listing *l, int parent, const char *name, const char *shown,
                        int depth);

static void list_entry(file_listing *l, int folder, const char *name, const char *shown, int depth)
{
    char path[INVAR_PATH_SIZE];
    struct stat st;

    if (++l->files > MAX_FILES) {
        l->cut = true;
        return;
    }
    (void)snprintf(path, sizeof path, "%s%s", shown, name);
    if (fstatat(folder, name, &st, AT_SYMLINK_NOFOLLOW) != 0)
        return; // the file was removed meanwhile
    fprintf(l->out, "%14lld  ", (long long)st.st_size);
    invar_safe_text_print(l->out, path);
    fprintf(l->out, "%s\n",
            S_ISDIR(st.st_mode)   ? "/"
            : S_ISREG(st.st_mode) ? ""
            : S_ISLNK(st.st_mode) ? "  (a link, not followed)"
                                  : "  (not a file)");
    if (S_ISDIR(st.st_mode) && depth < MAX_DEPTH) {
        (void)snprintf(path, sizeof path, "%s%s/", shown, name);
        list_folder(l, folder, name, path, depth + 1);
    }
}

static void list_folder(file_listing *l, int parent, const char *name, const char *shown, int depth)
{
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC | (depth ? O_NOFOLLOW : 0));
    DIR *folder = fd >= 0 ? fdopendir(fd) : NULL;

    if (!folder && fd >= 0)
        (void)close(fd);
    if (!folder)
        return;
    for (struct dirent *entry; !l->cut && (entry = readdir(folder)) != NULL;)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            list_entry(l, fd, entry->d_name, shown, depth);
    (void)closedir(folder);
}

/*
 * Adds sizes and names of all files, so that even what the archive omits, such as weights, is
 * listed.
 */
static invar_status add_listing(report_bundle *b)
{
    report_member *m = start_member(b, "files.txt", "sizes and names of the run's files");
    file_listing l = {.out = fmemopen(b->buffer, PAGE_BYTES, "w")};
    long bytes;

    if (!l.out)
        return INVAR_FAIL(INVAR_E_NOMEM, errno, "no memory for a list of files");
    list_folder(&l, AT_FDCWD, b->folder, "", 0);
    if (l.cut)
        (void)snprintf(m->note, sizeof m->note, "the first %d files", MAX_FILES);
    bytes = ftell(l.out);
    (void)fclose(l.out);
    return write_member(b, m, b->buffer, bytes > 0 ? (size_t)bytes : 0);
}

/* ---- the archive ----------------------------------------------------------------------------- */

/* "bug-report-NAME.tar", with the name of the run's folder. */
static void name_archive(report_bundle *b)
{
    const char *name = b->folder;
    int bytes = (int)invar_path_length(b->folder);

    for (int i = 0; i + 1 < bytes; i++)
        if (b->folder[i] == '/')
            name = b->folder + i + 1;
    bytes -= (int)(name - b->folder);
    if (bytes == 0 || *name == '.' || *name == '/')
        (void)snprintf(b->path, sizeof b->path, "bug-report.tar");
    else
        (void)snprintf(b->path, sizeof b->path, "bug-report-%.*s.tar", bytes < 200 ? bytes : 200,
                       name);
}

/* True if a folder has a file that every run writes; its ledger may be unreadable. */
static bool is_run(const char *folder)
{
    static const char *const files[] = {"ledger.db", "recipe.ini", "train.log"};
    char path[INVAR_PATH_SIZE];

    for (size_t i = 0; i < sizeof files / sizeof *files; i++)
        if (snprintf(path, sizeof path, "%s/%s", folder, files[i]) < INVAR_PATH_SIZE &&
            invar_path_exists(path))
            return true;
    return false;
}

/* Finds the folder of the run, even if its ledger cannot be read. */
static invar_status find_run(report_bundle *b)
{
    invar_located located = {.ledger = NULL};
    struct stat st;
    invar_status status = invar_locate_run(&located, b->word, NULL);

    b->last = -1;
    if (status == INVAR_OK) {
        b->last = located.run.last_step;
        status = invar_path_folder(b->folder, located.path);
    } else if (stat(b->word, &st) == 0) {
        if (S_ISDIR(st.st_mode))
            (void)snprintf(b->folder, sizeof b->folder, "%s", b->word);
        if ((S_ISDIR(st.st_mode) || invar_path_folder(b->folder, b->word) == INVAR_OK) &&
            is_run(b->folder)) {
            invar_error_clear();
            status = INVAR_OK;
        }
    }
    invar_located_close(&located);
    return status;
}

static void print_members(FILE *out, const report_bundle *b)
{
    for (const report_member *m = b->members; m < b->members + b->count; m++) {
        fprintf(out, "  %-14s %9zu  %s", m->name, m->bytes, m->about);
        if (m->note[0]) {
            fputs(m->bytes ? " (" : ": missing (", out);
            invar_safe_text_print(out, m->note);
            fputc(')', out);
        }
        fputc('\n', out);
    }
}

/* Adds the list of members, including missing ones. Must be last, when all others are known. */
static invar_status add_contents(report_bundle *b)
{
    FILE *out = fmemopen(b->buffer, PAGE_BYTES, "w");
    report_member *m;
    long bytes;

    if (!out)
        return INVAR_FAIL(INVAR_E_NOMEM, errno, "no memory for a list of contents");
    fputs("Report of a problem, made by invar bug-report. Bytes of each file:\n\n", out);
    print_members(out, b);
    bytes = ftell(out);
    (void)fclose(out);
    m = start_member(b, "contents.txt", "this list");
    return write_member(b, m, b->buffer, bytes > 0 ? (size_t)bytes : 0);
}

static invar_status write_members(report_bundle *b, const settings *s)
{
    INVAR_TRY(add_commands(b, s));
    INVAR_TRY(add_tail(b, "recipe.ini", "resolved recipe", true));
    INVAR_TRY(add_tail(b, "train.log",
                       s->samples ? "end of the log" : "end of the log, without samples",
                       s->samples));
    INVAR_TRY(add_listing(b));
    INVAR_TRY(add_contents(b));
    return invar_tar_commit(b->tar);
}

#define MEMBER                                                                                     \
    "{name text, about text, bytes int (0: the member is missing),"                                \
    " note text? (why it is missing, or a part)}"
#define RESULT "{file text, members [" MEMBER "]}"

/* Returns a text in which other bytes than printable UTF-8 are \xNN. */
static json_t *escaped_json(const char *text)
{
    char escaped[4 * INVAR_PATH_SIZE + 1];

    invar_text_escape(escaped, sizeof escaped, text, strlen(text));
    return json_string(escaped);
}

static json_t *member_json(const void *item)
{
    const report_member *m = item;

    return INVAR_RESULT(MEMBER, m->name, m->about, m->bytes,
                        m->note[0] ? escaped_json(m->note) : json_null());
}

static invar_status print_result(const report_bundle *b, const settings *s)
{
    if (s->json) {
        json_t *result = INVAR_RESULT(
            RESULT, escaped_json(b->path),
            invar_result_list(b->members, (size_t)b->count, sizeof *b->members, member_json));
        bool written = json_dumpf(result, stdout, 0) == 0 && putchar('\n') != EOF;
        json_decref(result);
        return written || ferror(stdout)
                   ? INVAR_OK // main reports a failure of standard output
                   : INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for a JSON value");
    }
    print_members(stdout, b);
    fputs("\nwritten   ", stdout);
    invar_safe_text_print(stdout, b->path);
    printf("\nnot in it: weights, data%s, and what looks like a secret\n",
           s->samples ? "" : ", prompts and responses");
    fputs("look at it before you send it: tar xf ", stdout);
    invar_text_print_shell_word(stdout, b->path);
    puts(" --one-top-level=bug-report");
    return INVAR_OK;
}

static invar_status write_report(report_bundle *b, const settings *s)
{
    ssize_t length = readlink("/proc/self/exe", b->program, sizeof b->program - 1);

    if (length < 0)
        return INVAR_FAIL(INVAR_E_IO, errno, "the path of this program cannot be read: %s",
                          strerror(errno));
    INVAR_TRY(find_run(b));
    name_archive(b);
    if (s->out)
        (void)snprintf(b->path, sizeof b->path, "%s", s->out);
    INVAR_TRY(INVAR_ALLOC(b->buffer, PAGE_BYTES, "a member of the archive"));
    INVAR_TRY(invar_tar_writer_open(&b->tar, b->path));
    return write_members(b, s);
}

/* ---- the command ----------------------------------------------------------------------------- */

static settings given;

static const invar_option options[] = {
    {.name = "out",
     .type = INVAR_OPTION_TEXT,
     .value = &given.out,
     .metavar = "FILE",
     .help = "archive to write (bug-report-NAME.tar)"},
    {.name = "samples",
     .value = &given.samples,
     .help = "also pack prompts and responses that the ledger keeps"},
    INVAR_OPTION_JSON(&given.json),
    {0},
};

static int cmd_bug_report(int argc, char **argv)
{
    report_bundle *b;
    invar_status status = INVAR_ALLOC_ZEROED(b, 1, "a report of a problem");

    (void)argc;
    if (status == INVAR_OK) {
        b->word = argv[0];
        status = write_report(b, &given);
        invar_tar_writer_close(b->tar);
        invar_free(b->buffer);
        if (status == INVAR_OK)
            status = print_result(b, &given);
    }
    invar_free(b);
    return invar_exit(status);
}

const invar_cli_command invar_cmd_bug_report = {
    .name = "bug-report",
    .summary = "pack what a maintainer asks about a run into one file",
    .run = cmd_bug_report,
    .about =
        "Packs what a maintainer asks about a run into one tar archive: program and machine, the\n"
        "recipe, the run with its provenance and events, its last step, the verification of its\n"
        "ledger, findings, the report, the end of the log, and sizes of its files. A member that\n"
        "cannot be had, as of a damaged ledger, is named with the reason. The run may be in\n"
        "progress, and may have died before its first step.\n"
        "\n"
        "Weights and data are not packed; prompts and responses are with --samples. What looks\n"
        "like a secret is masked. No mask knows every secret: look at the files before you send\n"
        "them.\n",
    .options = options,
    .words = "RUN",
    .min_words = 1,
    .max_words = 1,
    .result = RESULT,
    .arguments = "RUN [--out FILE] [--samples] [--json]"};
