/*
 * provenance.c - gathers facts about how the running program was built and where it runs.
 *
 * All input is untrusted: sizes are bounded, only regular files are read, and the value of a fact
 * is one line without control characters. The recipe reader checks this for the file of the build,
 * add_fact_printf for everything else.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "ledger/provenance.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>
#ifdef __GLIBC__
#include <gnu/libc-version.h>
#endif

#include "base/alloc.h"
#include "base/file.h"
#include "base/hash.h"
#include "base/process/module.h"
#include "base/recipe/recipe.h"
#include "base/text.h"

#include "base/invar_banned.h"

#define MAX_FACTS 32
#define VALUE_SIZE 256          /* bytes of a value that is not from the file of the build */
#define SYSTEM_FILE_BYTES 65536 /* bytes read of files like /proc/cpuinfo: one CPU is enough */

struct invar_provenance {
    invar_recipe *build; /* file of the build; owns the values of its facts */
    char *diff;
    invar_ledger_fact facts[MAX_FACTS];
    size_t n_facts;
    char values[MAX_FACTS][VALUE_SIZE]; /* values[i] is the buffer for the value of facts[i] */
    invar_ledger_object object;
    size_t n_objects;
};

/* ---- facts ----------------------------------------------------------------------------------- */

/* Adds a fact with a borrowed value, which must outlive `p`. */
static void add_fact(invar_provenance *p, const char *scope, const char *key, const char *value)
{
    INVAR_CHECK(p->n_facts < MAX_FACTS);
    p->facts[p->n_facts++] = (invar_ledger_fact){scope, key, value};
}

/* Adds a fact whose value is formatted into a buffer of `p`, with control characters escaped. */
static void add_fact_printf(invar_provenance *p, const char *scope, const char *key,
                            const char *fmt, ...) INVAR_PRINTF(4, 5);

static void add_fact_printf(invar_provenance *p, const char *scope, const char *key,
                            const char *fmt, ...)
{
    char value[VALUE_SIZE];
    va_list args;

    va_start(args, fmt);
    vsnprintf(value, sizeof value, fmt, args);
    va_end(args);
    INVAR_CHECK(p->n_facts < MAX_FACTS);
    invar_text_quote(p->values[p->n_facts], VALUE_SIZE, value, strlen(value));
    add_fact(p, scope, key, p->values[p->n_facts]);
}

/* ---- files ----------------------------------------------------------------------------------- */

/* Reads up to `size` bytes. *out = the number of bytes read. */
static invar_status read_bytes(size_t *out, int file, char *data, size_t size, const char *path)
{
    ssize_t count = 1;

    for (*out = 0; *out < size && count != 0;) {
        count = read(file, data + *out, size - *out);
        if (count < 0 && errno != EINTR)
            return INVAR_FAIL(INVAR_E_IO, errno, "%.160s: cannot be read: %s", path,
                              strerror(errno));
        *out += count > 0 ? (size_t)count : 0;
    }
    return INVAR_OK;
}

/*
 * Reads the first bytes of a regular file, at most `limit`, and appends a NUL; reading anything
 * else, such as a pipe or a device, might never end. *total_out = the size of the file. The caller
 * frees *out, which is NULL after a failure, with invar_free.
 */
static invar_status read_file_head(char **out, size_t *bytes_out, off_t *total_out,
                                   const char *path, size_t limit)
{
    int file = invar_fd_open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY, 0);
    struct stat about;
    invar_status status;

    *out = NULL;
    if (file < 0)
        return INVAR_FAIL(INVAR_E_IO, errno, "%.160s: cannot be opened: %s", path, strerror(errno));
    if (fstat(file, &about) != 0 || !S_ISREG(about.st_mode))
        status = INVAR_FAIL(INVAR_E_INVALID, 0, "%.160s: is not a file", path);
    else
        status = INVAR_ALLOC(*out, limit + 1, path);
    if (status == INVAR_OK)
        status = read_bytes(bytes_out, file, *out, limit, path);
    close(file);
    if (status != INVAR_OK) {
        invar_free(*out);
        *out = NULL;
        return status;
    }
    *total_out = about.st_size;
    (*out)[*bytes_out] = '\0';
    return INVAR_OK;
}

/* ---- the build ------------------------------------------------------------------------------- */

enum { COMMIT_TIME = 2, DIRTY = 5, BUILD_KEYS = 10 };

#define TEXT(key, text)                                                                            \
    {                                                                                              \
        .section = "build", .name = (key), .type = INVAR_RECIPE_TYPE_STRING, .default_text = "",   \
        .doc = (text)                                                                              \
    }

static const char *const dirty_words[] = {"clean", "untracked", "modified", "unknown"};
static const invar_choices dirty_choices = {dirty_words, sizeof dirty_words / sizeof *dirty_words};

static const invar_recipe_key build_keys[BUILD_KEYS] = {
    TEXT("commit", "the commit that was checked out"),
    TEXT("tree", "its tree"),
    TEXT("commit-time", "when it was committed, Unix time in seconds"),
    TEXT("author", "who wrote it"),
    TEXT("subject", "the first line of its message"),
    [DIRTY] = {.section = "build",
               .name = "dirty",
               .type = INVAR_RECIPE_TYPE_ENUM,
               .default_text = "unknown",
               .choices = &dirty_choices,
               .doc = "what the sources had beyond the commit"},
    TEXT("compiler", "name and version of the C compiler"),
    TEXT("flags", "its flags"),
    TEXT("version", "of the program"),
    TEXT("type", "of the build"),
};
static const invar_recipe_schema build_schema = {.keys = build_keys, .count = BUILD_KEYS};

static invar_status read_build(invar_provenance *p, const char *path)
{
    char *text;
    size_t bytes;
    off_t total;
    invar_status status;

    INVAR_TRY(invar_recipe_new(&p->build, &build_schema));
    INVAR_TRY(read_file_head(&text, &bytes, &total, path, INVAR_RECIPE_MAX_BYTES + 1));
    status = invar_recipe_parse(p->build, path, text, bytes);
    invar_free(text);
    return status;
}

/* Reads the diff between the sources and their commit, without which the commit would mislead. */
static invar_status read_diff(invar_provenance *p, const char *build)
{
    char path[INVAR_PATH_SIZE];
    size_t bytes;
    off_t total;

    if (snprintf(path, sizeof path, "%s.diff", build) >= (int)sizeof path)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%.160s...: the path is too long", build);
    INVAR_TRY(read_file_head(&p->diff, &bytes, &total, path, INVAR_PROVENANCE_DIFF_BYTES));
    p->object = (invar_ledger_object){"build", "diff", "text/x-diff", p->diff, bytes};
    p->n_objects = 1;
    if ((off_t)bytes < total)
        add_fact_printf(p, "build", "diff_truncated", "%zu of %" PRId64 " bytes", bytes,
                        (int64_t)total);
    return INVAR_OK;
}

/* Adds the facts of both files of the build, or, if one of them is not usable, of neither. */
static invar_status gather_build(invar_provenance *p, const char *path)
{
    invar_status status = read_build(p, path);
    invar_recipe_entry entry;

    if (status == INVAR_OK) {
        invar_recipe_entry_get(&entry, p->build, DIRTY);
        if (strcmp(entry.text, "untracked") == 0 || strcmp(entry.text, "modified") == 0)
            status = read_diff(p, path);
    }
    if (status == INVAR_E_NOMEM)
        return status;
    if (status != INVAR_OK) {
        // `dirty` is unknown, and this is why
        add_fact_printf(p, "build", "problem", "%s", invar_error_last()->message);
        invar_error_clear();
        add_fact(p, "build", "dirty", "unknown");
        return INVAR_OK;
    }
    for (int i = 0; i < BUILD_KEYS; i++) {
        invar_recipe_entry_get(&entry, p->build, i);
        add_fact(p, "build", i == COMMIT_TIME ? "commit_time" : build_keys[i].name, entry.text);
    }
    return INVAR_OK;
}

/* ---- the program ----------------------------------------------------------------------------- */

static invar_status gather_program(invar_provenance *p)
{
    static const char path[] = "/proc/self/exe";
    char hex[INVAR_DIGEST_HEX_SIZE];
    invar_digest digest;
    int64_t bytes;

    if (access(path, R_OK) != 0) // /proc is not mounted
        return INVAR_OK;
    INVAR_TRY(invar_file_hash(&digest, &bytes, path));
    invar_digest_format(hex, &digest);
    add_fact_printf(p, "build", "binary", "%s", hex);
    return INVAR_OK;
}

/* ---- the host -------------------------------------------------------------------------------- */

/* A part of a text; empty if it was not found. */
typedef struct span {
    const char *at;
    int length;
} span;

/* Returns the value of the first line "KEY<blanks>SIGN<blanks>value", without quotes around it. */
static span find_line(const char *text, const char *key, char sign)
{
    size_t length = strlen(key);

    for (const char *line = text; line; line = strchr(line, '\n')) {
        const char *value;

        line += *line == '\n';
        value = line + length;
        if (strncmp(line, key, length) != 0)
            continue;
        value += strspn(value, " \t");
        if (*value++ != sign)
            continue;
        value += strspn(value, " \t\"'");
        length = strcspn(value, "\n");
        while (length > 0 && strchr(" \t\"'", value[length - 1]))
            length--;
        return (span){value, (int)length};
    }
    return (span){"", 0};
}

static bool has_word(span words, const char *word)
{
    size_t length = strlen(word), step;

    for (const char *at = words.at, *end = at + words.length; at < end; at += step + 1) {
        step = strcspn(at, " \n");
        if (step == length && memcmp(at, word, length) == 0)
            return true;
    }
    return false;
}

static void add_cpu(invar_provenance *p, const char *info, const char *machine)
{
    span name = find_line(info, "model name", ':');
    span maker = find_line(info, "CPU implementer", ':');
    span part = find_line(info, "CPU part", ':');

    if (name.length > 0)
        add_fact_printf(p, "host", "cpu", "%.*s", name.length, name.at);
    else if (maker.length > 0)
        add_fact_printf(p, "host", "cpu", "implementer %.*s part %.*s", maker.length, maker.at,
                        part.length, part.at);
    else
        add_fact_printf(p, "host", "cpu", "%s", machine);
}

/* Adds the fact isa: the machine, and those CPU extensions that numerical code selects by. */
static void add_isa(invar_provenance *p, const char *info, const char *machine)
{
    static const char *const extensions[] = {
        "sse4_2",   "avx",      "f16c",     "fma",         "avx2",        "avx512f",
        "avx512bw", "avx512vl", "avx_vnni", "avx512_vnni", "avx512_bf16", "avx512_fp16",
        "amx_tile", "amx_int8", "amx_bf16", "asimd",       "asimdhp",     "asimddp",
        "asimdfhm", "i8mm",     "bf16",     "sve",         "sve2",        "sme"};
    char text[VALUE_SIZE];
    span flags = find_line(info, "flags", ':');
    size_t used = (size_t)snprintf(text, sizeof text, "%.64s", machine);

    if (flags.length == 0)
        flags = find_line(info, "Features", ':');
    for (size_t i = 0; i < sizeof extensions / sizeof extensions[0]; i++) {
        if (has_word(flags, extensions[i]) && used + strlen(extensions[i]) + 1 < sizeof text)
            used += (size_t)snprintf(text + used, sizeof text - used, " %s", extensions[i]);
    }
    add_fact_printf(p, "host", "isa", "%s", text);
}

/* Reads a file of the system; an empty text if it does not exist. */
static invar_status load_system(char **out, const char *path)
{
    size_t bytes;
    off_t total;
    invar_status status = read_file_head(out, &bytes, &total, path, SYSTEM_FILE_BYTES);

    if (status == INVAR_OK || status == INVAR_E_NOMEM)
        return status;
    invar_error_clear();
    INVAR_TRY(INVAR_ALLOC(*out, 1, path));
    (*out)[0] = '\0';
    return INVAR_OK;
}

static void add_system(invar_provenance *p, const struct utsname *system, const char *release)
{
    span os = find_line(release, "PRETTY_NAME", '=');

    add_fact_printf(p, "host", "name", "%s", system->nodename);
    add_fact_printf(p, "host", "cores", "%ld", sysconf(_SC_NPROCESSORS_ONLN));
    add_fact_printf(p, "host", "memory", "%" PRId64,
                    (int64_t)sysconf(_SC_PHYS_PAGES) * (int64_t)sysconf(_SC_PAGESIZE));
    add_fact_printf(p, "host", "os", "%.*s", os.length > 0 ? os.length : 7,
                    os.length > 0 ? os.at : "unknown");
    add_fact_printf(p, "host", "kernel", "%s %s", system->sysname, system->release);
#ifdef __GLIBC__
    add_fact_printf(p, "host", "libc", "glibc %s", gnu_get_libc_version());
#else
    add_fact_printf(p, "host", "libc", "unknown");
#endif
}

static invar_status gather_host(invar_provenance *p)
{
    struct utsname system;
    char *info = NULL, *release = NULL;
    invar_status status;

    if (uname(&system) != 0)
        return INVAR_FAIL(INVAR_E_IO, errno, "uname: %s", strerror(errno));
    status = load_system(&info, "/proc/cpuinfo");
    if (status == INVAR_OK)
        status = load_system(&release, "/etc/os-release");
    if (status == INVAR_OK) {
        add_cpu(p, info, system.machine);
        add_isa(p, info, system.machine);
        add_system(p, &system, release);
    }
    invar_free(info);
    invar_free(release);
    return status;
}

/* ---- the GPUs -------------------------------------------------------------------------------- */

#define NVIDIA "/proc/driver/nvidia"

/* Returns the version in "NVRM version: NVIDIA UNIX ... for x86_64  580.159.04  Release Build". */
static span find_driver(const char *text)
{
    for (const char *at = text; *at && *at != '\n'; at += strcspn(at, " \n"), at += *at == ' ') {
        int length = (int)strspn(at, "0123456789.");
        if (length > 0 && (at[length] == ' ' || at[length] == '\n'))
            return (span){at, length};
    }
    return (span){"", 0};
}

/* Returns the number of GPUs, and in `first` the path of the file that describes the first. */
static int count_gpus(char first[INVAR_PATH_SIZE])
{
    struct dirent *entry;
    DIR *folder = opendir(NVIDIA "/gpus");
    int count = 0;

    if (!folder)
        return 0;
    while ((entry = readdir(folder)) != NULL) {
        char path[INVAR_PATH_SIZE];
        if (entry->d_name[0] == '.')
            continue;
        snprintf(path, sizeof path, NVIDIA "/gpus/%s/information", entry->d_name);
        // readdir returns folders in any order; the first by name is always the same
        if (count++ == 0 || strcmp(path, first) < 0)
            memcpy(first, path, sizeof path);
    }
    closedir(folder);
    return count;
}

/* Adds facts about driver and GPUs; a trainer that uses only some of them can add better ones. */
static invar_status gather_gpus(invar_provenance *p)
{
    char first[INVAR_PATH_SIZE], *version = NULL, *information = NULL;
    int count = count_gpus(first);
    invar_status status;

    if (count == 0)
        return INVAR_OK;
    status = load_system(&version, NVIDIA "/version");
    if (status == INVAR_OK)
        status = load_system(&information, first);
    if (status == INVAR_OK) {
        span driver = find_driver(version), name = find_line(information, "Model", ':');
        span uuid = find_line(information, "GPU UUID", ':');
        add_fact_printf(p, "gpu", "count", "%d", count);
        add_fact_printf(p, "gpu", "driver", "%.*s", driver.length, driver.at);
        add_fact_printf(p, "gpu", "name", "%.*s", name.length, name.at);
        if (count == 1)
            add_fact_printf(p, "gpu", "uuid", "%.*s", uuid.length, uuid.at);
    }
    invar_free(version);
    invar_free(information);
    return status;
}

/* ---- public functions ------------------------------------------------------------------------ */

invar_status invar_provenance_gather(invar_provenance **out, const char *build)
{
    char own[INVAR_PATH_SIZE] = "", program[INVAR_PATH_SIZE];
    ssize_t length = readlink("/proc/self/exe", program, sizeof program - 1);
    invar_provenance *p;
    invar_status status = INVAR_OK;

    *out = NULL;
    INVAR_TRY(INVAR_ALLOC_ZEROED(p, 1, "provenance"));
    // a program whose file was replaced is called "PROGRAM (deleted)", and has no PROGRAM.build
    program[length > 0 ? length : 0] = '\0';
    if (!build && length > 0)
        invar_module_record(own, program, ".build");
    if (!build || *build) {
        status = gather_build(p, build ? build : own);
        if (status == INVAR_OK)
            status = gather_program(p);
    }
    if (status == INVAR_OK)
        status = gather_host(p);
    if (status == INVAR_OK)
        status = gather_gpus(p);
    if (status != INVAR_OK) {
        invar_provenance_free(p);
        return status;
    }
    *out = p;
    return INVAR_OK;
}

void invar_provenance_free(invar_provenance *provenance)
{
    if (!provenance)
        return;
    invar_recipe_free(provenance->build);
    invar_free(provenance->diff);
    invar_free(provenance);
}

const invar_ledger_fact *invar_provenance_facts(size_t *count_out,
                                                const invar_provenance *provenance)
{
    *count_out = provenance->n_facts;
    return provenance->facts;
}

const invar_ledger_object *invar_provenance_objects(size_t *count_out,
                                                    const invar_provenance *provenance)
{
    *count_out = provenance->n_objects;
    return &provenance->object;
}
