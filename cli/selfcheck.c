/*
 * selfcheck.c - invar selfcheck: compares the bits of every op on this machine with recorded
 * digests.
 *
 * Every op runs once in three configurations of storage type and numerics, and each output is
 * hashed. The recorded lines are "storage numerics op revision digest name"; --record prints such
 * lines. stdout has no paths of this machine, so that the output of two machines can be compared.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <string.h>

#include "base/console/term.h"
#include "base/json/result.h"
#include "base/process/argv0.h"
#include "cli/command.h"
#include "kernels-deterministic/selfcheck.h"

#include "base/invar_banned.h"

static struct {
    invar_option_choice device;
    int64_t threads;
    bool portable;
    bool json;
    bool record;
} asked = {.device = {&invar_device_kind_choices, INVAR_DEVICE_CPU}};

typedef struct configuration {
    invar_dtype storage;
    invar_numerics numerics;
} configuration;

/* f32 operands use fmaf under all numerics, so f32 with sm90 would repeat f32 with ieee */
static const configuration configurations[] = {
    {INVAR_DTYPE_F32, INVAR_NUMERICS_IEEE},
    {INVAR_DTYPE_BF16, INVAR_NUMERICS_IEEE},
    {INVAR_DTYPE_BF16, INVAR_NUMERICS_SM90},
};
enum { CONFIGURATIONS = sizeof configurations / sizeof *configurations };

typedef enum verdict { VERDICT_NONE, VERDICT_OK, VERDICT_MISSING, VERDICT_DIFFERENT } verdict;

/* Result of one op in one configuration: worst verdict, and a digest over all its digests. */
typedef struct cell {
    verdict verdict;
    invar_digest digest;
} cell;

typedef struct report {
    const invar_backend *backend; /* backend of the device */
    json_t *results;
    configuration now;
    int index; /* index of the configuration */
    cell cells[INVAR_OP_COUNT][CONFIGURATIONS];
    int values;
    int different;
    int missing;
} report;

/* Formats the key of a recorded line. The output name is the rest of that line. */
static void golden_key(char *out, size_t size, const configuration *c, invar_op op)
{
    snprintf(out, size, "%s %s %s %d ", invar_dtype_name(c->storage),
             invar_numerics_name(c->numerics), invar_op_name(op), invar_op_revision(op));
}

static verdict compare_with_recorded(const configuration *c, invar_op op, const char *what,
                                     const char *hex)
{
    char key[96];
    size_t length;

    golden_key(key, sizeof key, c, op);
    length = strlen(key);
    for (const char *const *line = invar_selfcheck_golden; *line; line++) {
        const char *digest = *line + length;
        if (strncmp(*line, key, length) == 0 && strlen(digest) > 33 &&
            strcmp(digest + 33, what) == 0)
            return strncmp(digest, hex, 32) == 0 ? VERDICT_OK : VERDICT_DIFFERENT;
    }
    return VERDICT_MISSING;
}

static const char *verdict_name(verdict v)
{
    static const char *const names[] = {
        [VERDICT_NONE] = "none",
        [VERDICT_OK] = "ok",
        [VERDICT_MISSING] = "missing",
        [VERDICT_DIFFERENT] = "different",
    };

    return names[v];
}

#define VALUE                                                                                      \
    "{storage text, numerics text, op text, revision int, value text, digest hex32, verdict text}"
#define RESULT "{results [" VALUE "], values int, different int, missing int, error~ text}"

static invar_status print_json(const report *r, invar_status status)
{
    return invar_json_write(stdout,
                            INVAR_RESULT(RESULT, r->results, r->values, r->different, r->missing,
                                         status == INVAR_OK ? NULL : invar_error_last()->message));
}

static invar_status add_result(void *payload, invar_op op, const char *what,
                               const invar_digest *digest)
{
    report *r = payload;
    cell *at = &r->cells[op][r->index];
    char hex[INVAR_DIGEST_HEX_SIZE], key[96];
    verdict v;

    invar_digest_format(hex, digest);
    v = compare_with_recorded(&r->now, op, what, hex);
    if (v > at->verdict)
        at->verdict = v;
    invar_digest_chain(&at->digest, digest);
    r->different += v == VERDICT_DIFFERENT;
    r->missing += v == VERDICT_MISSING;
    if (asked.record) {
        golden_key(key, sizeof key, &r->now, op);
        printf("%s%s %s\n", key, hex, what);
    } else if (asked.json) {
        (void)json_array_append_new(
            r->results, INVAR_RESULT(VALUE, invar_dtype_name(r->now.storage),
                                     invar_numerics_name(r->now.numerics), invar_op_name(op),
                                     invar_op_revision(op), what, digest, verdict_name(v)));
    } else if (v == VERDICT_DIFFERENT || v == VERDICT_MISSING) {
        fprintf(stderr, "invar: %s %s: %s %s: %s %s\n", invar_dtype_name(r->now.storage),
                invar_numerics_name(r->now.numerics), invar_op_name(op), what, hex,
                v == VERDICT_MISSING ? "has no recorded value at this revision"
                                     : "differs from the recorded value");
    }
    r->values++;
    return INVAR_OK;
}

static invar_status run_configuration(report *r)
{
    invar_device dev = {.backend = r->backend,
                        .numerics = r->now.numerics,
                        .cpu_path = asked.portable ? INVAR_CPU_PATH_PORTABLE : INVAR_CPU_PATH_SIMD};
    invar_status status;

    INVAR_TRY(invar_pool_new(&dev.pool, (int)asked.threads));
    status = invar_device_open(&dev);
    if (status == INVAR_OK)
        status = invar_device_arena(&dev.scratch, &dev, "selfcheck");
    if (status == INVAR_OK)
        status = invar_arena_plan_scratch(dev.scratch, invar_selfcheck_scratch((int)asked.threads));
    if (status == INVAR_OK)
        status = invar_arena_reserve(dev.scratch);
    if (status == INVAR_OK)
        status = invar_selfcheck_run(&dev, r->now.storage, add_result, r);
    invar_arena_free(dev.scratch);
    invar_device_close(&dev);
    invar_pool_free(dev.pool);
    return status;
}

enum { OP_COLUMNS = 22, CELL_COLUMNS = 22 }; // columns of the table

static void print_cell(const cell *c, bool color)
{
    char hex[INVAR_DIGEST_HEX_SIZE];
    invar_term_style style =
        c->verdict == VERDICT_OK ? INVAR_TERM_STYLE_GREEN : INVAR_TERM_STYLE_RED;

    if (c->verdict == VERDICT_NONE) {
        printf("  %-*s", CELL_COLUMNS, "");
        return;
    }
    invar_digest_format(hex, &c->digest);
    printf("  %.12s %s%-9s%s", hex, invar_term_escape(color, style), verdict_name(c->verdict),
           invar_term_escape(color, INVAR_TERM_STYLE_PLAIN));
}

static void print_title(int c, int width)
{
    char title[32];

    snprintf(title, sizeof title, "%s %s", invar_dtype_name(configurations[c].storage),
             invar_numerics_name(configurations[c].numerics));
    printf("  %-*s", width, title);
}

static void print_head(bool color)
{
    printf("%s%-18s rev", invar_term_escape(color, INVAR_TERM_STYLE_BOLD), "op");
    for (int c = 0; c < CONFIGURATIONS; c++)
        print_title(c, CELL_COLUMNS);
    printf("%s\n", invar_term_escape(color, INVAR_TERM_STYLE_PLAIN));
}

/* Prints an op as one row, or on a narrow terminal with a line for each cell. */
static void print_op(const cell *cells, int op, bool color, bool narrow)
{
    printf("%-18s %3d", invar_op_name((invar_op)op), invar_op_revision((invar_op)op));
    for (int c = 0; c < CONFIGURATIONS; c++) {
        if (narrow && cells[c].verdict == VERDICT_NONE)
            continue;
        if (narrow) {
            printf("\n");
            print_title(c, 9);
        }
        print_cell(&cells[c], color);
    }
    printf("\n");
}

static void print_table(const report *r)
{
    bool color = invar_term_has_color(stdout);
    bool narrow = invar_term_live(stdout) &&
                  invar_term_width(stdout) < OP_COLUMNS + CONFIGURATIONS * (2 + CELL_COLUMNS);

    if (!narrow)
        print_head(color);
    for (int op = 0; op < INVAR_OP_COUNT; op++)
        // the tree hash has no row: all other ops are checked through it
        if (r->cells[op][0].verdict != VERDICT_NONE || r->cells[op][1].verdict != VERDICT_NONE)
            print_op(r->cells[op], op, color, narrow);
}

/* Prints a summary of the text, or the JSON of the values so far, and returns the exit code. */
static int print_summary(const report *r, invar_status status)
{
    bool right = r->different + r->missing == 0;

    if (asked.json && print_json(r, status) != INVAR_OK)
        status = INVAR_E_NOMEM;
    if (status != INVAR_OK)
        return invar_report_error();
    if (asked.record)
        return INVAR_EXIT_OK;
    if (!asked.json) {
        print_table(r);
        printf("\n%d values: %d identical, %d different, %d not recorded\n", r->values,
               r->values - r->different - r->missing, r->different, r->missing);
        // stdout must not differ between machines, so the path of the program goes to stderr
        fprintf(stderr, "next: %s %s --device %s%s\n", invar_argv0(), right ? "bench" : "selfcheck",
                invar_device_kind_choices.words[asked.device.value], right ? "" : " --json");
    }
    if (r->different > 0)
        return INVAR_EXIT_DIFFERENT;
    return r->missing > 0 ? INVAR_EXIT_GOLDEN : INVAR_EXIT_OK;
}

static const invar_option options[] = {
    {"device", INVAR_OPTION_WORD, &asked.device, "DEVICE", "where to run", 0, 0},
    INVAR_OPTION_THREADS(&asked.threads, "number of threads (all cores)"),
    {"portable", INVAR_OPTION_FLAG, &asked.portable, NULL, "use plain C instead of SIMD", 0, 0},
    {"json", INVAR_OPTION_FLAG, &asked.json, NULL, "print every value as JSON", 0, 0},
    {"record", INVAR_OPTION_FLAG, &asked.record, NULL,
     "print lines for the golden file instead of comparing", 0, 0},
    {0}};

static int cmd_selfcheck(int argc, char **argv)
{
    report r = {.index = 0};
    invar_status status = INVAR_OK;

    (void)argc, (void)argv;
    if (asked.threads == 0)
        asked.threads = invar_default_threads();
    if (asked.json && asked.record) {
        fprintf(stderr, "invar: --json and --record do not go together\n");
        return INVAR_EXIT_USAGE;
    }
    if (invar_backend_find(&r.backend, (invar_device_kind)asked.device.value) != INVAR_OK)
        return invar_report_error();
    r.results = json_array();
    for (; r.index < CONFIGURATIONS && status == INVAR_OK; r.index++) {
        r.now = configurations[r.index];
        status = run_configuration(&r);
    }
    return print_summary(&r, status);
}

const invar_cli_command invar_cmd_selfcheck = {
    .name = "selfcheck",
    .summary = "run every op once and compare its bits with recorded ones",
    .run = cmd_selfcheck,
    .about =
        "Runs every op once on fixed data and compares the hash of each result with the recorded\n"
        "one. Use it to check a new machine, compiler or GPU.\n"
        "\n"
        "Exit codes:\n"
        "  0    identical\n"
        "  1    different\n"
        "  4    an op has no recorded hash\n"
        "  125  no such device here\n",
    .options = options,
    .words = "argument",
    .result = RESULT,
    .multi_process = true};
