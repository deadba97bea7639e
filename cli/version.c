/*
 * version.c - invar version: prints what this program was built from, for bug reports.
 *
 * Commit and compiler come from the build file next to the program (ledger/provenance.h). Without
 * this file only the version and the compiler are known.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/json/result.h"
#include "cli/command.h"
#include "cli/safe_text.h"
#include "kernels-deterministic/device.h"
#include "ledger/provenance.h"

#include "base/invar_banned.h"

#define RESULT "{version text, commit text, compiler text, devices text, numerics text}"

enum { LINE = 1024 };

typedef struct build_summary {
    char commit[LINE], compiler[LINE], devices[LINE], numerics[LINE];
} build_summary;

static const char *find_build_fact(const invar_ledger_fact *facts, size_t count, const char *key)
{
    for (size_t i = 0; i < count; i++)
        if (strcmp(facts[i].scope, "build") == 0 && strcmp(facts[i].key, key) == 0)
            return facts[i].value;
    return NULL;
}

static invar_status read_build(build_summary *a)
{
    invar_provenance *found;
    const char *commit, *dirty, *compiler, *type, *flags;
    size_t count;

    INVAR_TRY(invar_provenance_gather(&found, NULL));
    const invar_ledger_fact *facts = invar_provenance_facts(&count, found);
    commit = find_build_fact(facts, count, "commit");
    dirty = find_build_fact(facts, count, "dirty");
    compiler = find_build_fact(facts, count, "compiler");
    type = find_build_fact(facts, count, "type");
    flags = find_build_fact(facts, count, "flags");
    if (commit && dirty)
        (void)snprintf(a->commit, LINE, "%s%s%s", commit, strcmp(dirty, "clean") == 0 ? "" : ", ",
                       strcmp(dirty, "clean") == 0 ? "" : dirty);
    if (compiler && type && flags)
        (void)snprintf(a->compiler, LINE, "%s, %s,%s%s", compiler, type, *flags == ' ' ? "" : " ",
                       flags);
    invar_provenance_free(found);
    return INVAR_OK;
}

/* Lists the devices that this build supports. `invar doctor` checks whether they exist and work. */
static void describe_devices(build_summary *a)
{
    struct utsname system;

    (void)snprintf(a->devices, LINE, "cpu (%s, %ld cores)%s",
                   uname(&system) == 0 ? system.machine : "unknown", sysconf(_SC_NPROCESSORS_ONLN),
                   invar_backend_cuda() ? ", cuda (sm_90a)" : "; no cuda: no module invar-cuda.so");
}

/* Lists the ops whose bits have changed since their first revision. */
static void describe_numerics(build_summary *a)
{
    int used, changed = 0;

    used = snprintf(a->numerics, LINE, "%s, %s; %d ops", invar_numerics_name(INVAR_NUMERICS_IEEE),
                    invar_numerics_name(INVAR_NUMERICS_SM90), (int)INVAR_OP_COUNT);
    for (int op = 0; op < INVAR_OP_COUNT && used < LINE; op++)
        if (invar_op_revision((invar_op)op) != 1)
            used += snprintf(a->numerics + used, (size_t)(LINE - used), "%s %s %d",
                             changed++ ? "," : " of revision 1, but", invar_op_name((invar_op)op),
                             invar_op_revision((invar_op)op));
    if (changed == 0 && used < LINE)
        (void)snprintf(a->numerics + used, (size_t)(LINE - used), " of revision 1");
}

static void print_summary(const build_summary *a)
{
    const struct {
        const char *name, *text;
    } lines[] = {{"commit", a->commit},
                 {"compiler", a->compiler},
                 {"devices", a->devices},
                 {"numerics", a->numerics}};

    printf("invar %s\n", INVAR_VERSION);
    for (size_t i = 0; i < sizeof lines / sizeof *lines; i++) {
        printf("%-9s ", lines[i].name);
        invar_safe_text_print(stdout, lines[i].text);
        putchar('\n');
    }
}

static bool json;
static const invar_option options[] = {
    {"json", INVAR_OPTION_FLAG, &json, NULL, "print it as JSON", 0, 0}, {0}};

static int cmd_version(int argc, char **argv)
{
    build_summary a = {.commit = "not known", .compiler = __VERSION__};

    (void)argc, (void)argv;
    if (read_build(&a) != INVAR_OK)
        return invar_report_error();
    describe_devices(&a);
    describe_numerics(&a);
    if (json)
        return invar_exit(
            invar_json_write(stdout, INVAR_RESULT(RESULT, INVAR_VERSION, a.commit, a.compiler,
                                                  a.devices, a.numerics)));
    print_summary(&a);
    return INVAR_EXIT_OK;
}

const invar_cli_command invar_cmd_version = {
    .name = "version",
    .summary = "show what this program was built from",
    .run = cmd_version,
    .about =
        "Shows the version, commit and compiler of this program, the devices that it can use, its\n"
        "numerics, and the revision of every op. Quote this in bug reports.\n",
    .options = options,
    .words = "argument",
    .result = RESULT,
    .multi_process = true};
