/*
 * provenance.c - tests of the facts that are gathered about build, program and host.
 *
 *     PROGRAM [FILE.build | own]   with an argument: prints the facts of FILE.build or of itself
 *
 * Invalid build files must give dirty = unknown with a reason, never a failure. The digest of the
 * binary is compared with the program xxhsum, the host with uname. tests/e2e/builds/provenance.sh
 * runs the program with an argument, on a file that scripts/provenance has written.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "ledger/provenance.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "base/text.h"
#include "tests/fault/faulty.h"

#define COMMIT "0123456789abcdef0123456789abcdef01234567"

static char folder[] = INVAR_TEST_WORK "/provenance-XXXXXX";
static char build_path[sizeof folder + 32], diff_path[sizeof folder + 32];

static int set_up(void **state)
{
    (void)state;
    if (!mkdtemp(folder)) {
        print_error("%s cannot be created\n", folder);
        return -1;
    }
    snprintf(build_path, sizeof build_path, "%s/program.build", folder);
    snprintf(diff_path, sizeof diff_path, "%s/program.build.diff", folder);
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    remove(build_path);
    remove(diff_path);
    return rmdir(folder);
}

static void write_bytes(const char *path, const void *data, size_t bytes)
{
    FILE *stream = fopen(path, "wb");

    assert_non_null(stream);
    assert_int_equal(fwrite(data, 1, bytes, stream), bytes);
    assert_int_equal(fclose(stream), 0);
}

static void write_text(const char *path, const char *text)
{
    write_bytes(path, text, strlen(text));
}

/* Returns the value of a fact, or NULL if there is none. */
static const char *find_fact(const invar_provenance *p, const char *scope, const char *key)
{
    size_t count;
    const invar_ledger_fact *facts = invar_provenance_facts(&count, p);

    for (size_t i = 0; i < count; i++) {
        if (strcmp(facts[i].scope, scope) == 0 && strcmp(facts[i].key, key) == 0)
            return facts[i].value;
    }
    return NULL;
}

static void assert_fact(const invar_provenance *p, const char *key, const char *value)
{
    const char *found = find_fact(p, "build", key);

    assert_non_null(found);
    assert_string_equal(found, value);
}

/* Asserts that keys are unique and values are one line of printable text, as a ledger requires. */
static void assert_sound(const invar_provenance *p)
{
    size_t count, step;
    const invar_ledger_fact *facts = invar_provenance_facts(&count, p);

    for (size_t i = 0; i < count; i++) {
        assert_ptr_equal(find_fact(p, facts[i].scope, facts[i].key), facts[i].value);
        for (const char *c = facts[i].value; *c; c += step) {
            step = invar_text_char(c, strlen(c));
            assert_int_not_equal(step, 0);
        }
    }
    assert_null(strchr(find_fact(p, "build", "binary"), '?'));
}

/* Asserts that the build file `path` is not used, for a reason that contains `why`. */
static void assert_unknown(const char *path, const char *why)
{
    invar_provenance *p;
    size_t objects;

    assert_ok(invar_provenance_gather(&p, path));
    assert_int_equal(invar_error_last()->status, INVAR_OK);
    assert_sound(p);
    assert_fact(p, "dirty", "unknown");
    assert_null(find_fact(p, "build", "commit"));
    assert_non_null(find_fact(p, "build", "problem"));
    if (!strstr(find_fact(p, "build", "problem"), why))
        fail_msg("\"%s\" does not contain \"%s\"", find_fact(p, "build", "problem"), why);
    assert_non_null(find_fact(p, "host", "cpu"));
    (void)invar_provenance_objects(&objects, p);
    assert_int_equal(objects, 0);
    invar_provenance_free(p);
}

/* ---- the build ------------------------------------------------------------------------------- */

static void test_ledger_provenance__reads_the_build(void **state)
{
    static const char text[] = "[build]\ncommit = " COMMIT "\ntree = f00d\n"
                               "commit-time = 1767319445\n"
                               "author = J\xC3\xB6rg \"J\" <j@example.org>\n"
                               "subject = say \"a; b\" [c] = 'd' # e\n"
                               "dirty = modified\ncompiler = GNU 12.2.0\nflags = -O3 -std=c11\n"
                               "version = 1.2.3\ntype = Release\n";
    static const char change[] = "diff --git a/x b/x\n\xFF\0binary";
    const invar_ledger_object *object;
    invar_provenance *p;
    size_t objects;

    (void)state;
    write_text(build_path, text);
    write_bytes(diff_path, change, sizeof change);
    assert_ok(invar_provenance_gather(&p, build_path));
    assert_sound(p);
    assert_fact(p, "commit", COMMIT);
    assert_fact(p, "tree", "f00d");
    assert_fact(p, "commit_time", "1767319445");
    assert_fact(p, "author", "J\xC3\xB6rg \"J\" <j@example.org>");
    assert_fact(p, "subject", "say \"a; b\" [c] = 'd' # e");
    assert_fact(p, "dirty", "modified");
    assert_fact(p, "compiler", "GNU 12.2.0");
    assert_fact(p, "flags", "-O3 -std=c11");
    assert_fact(p, "version", "1.2.3");
    assert_fact(p, "type", "Release");
    assert_null(find_fact(p, "build", "problem"));
    assert_null(find_fact(p, "build", "diff_truncated"));
    object = invar_provenance_objects(&objects, p);
    assert_int_equal(objects, 1);
    assert_string_equal(object->scope, "build");
    assert_string_equal(object->key, "diff");
    assert_string_equal(object->kind, "text/x-diff");
    assert_int_equal(object->bytes, sizeof change);
    assert_memory_equal(object->data, change, sizeof change);
    invar_provenance_free(p);
}

static void test_ledger_provenance__clean_has_no_diff(void **state)
{
    invar_provenance *p;
    size_t objects;

    (void)state;
    write_text(diff_path, "of an earlier build");
    write_text(build_path, "[build]\ncommit = " COMMIT "\ndirty = clean\n");
    assert_ok(invar_provenance_gather(&p, build_path));
    assert_sound(p);
    assert_fact(p, "dirty", "clean");
    assert_fact(p, "commit", COMMIT);
    assert_fact(p, "author", "");
    (void)invar_provenance_objects(&objects, p);
    assert_int_equal(objects, 0);
    invar_provenance_free(p);
}

static void test_ledger_provenance__long_diff_is_cut_and_said_to_be(void **state)
{
    const invar_ledger_object *object;
    invar_provenance *p;
    size_t objects;

    (void)state;
    write_text(build_path, "[build]\ndirty = untracked\n");
    write_text(diff_path, "x");
    for (int longer = 0; longer <= 1; longer++) {
        assert_int_equal(truncate(diff_path, INVAR_PROVENANCE_DIFF_BYTES + 5 * longer), 0);
        assert_ok(invar_provenance_gather(&p, build_path));
        assert_sound(p);
        assert_fact(p, "dirty", "untracked");
        object = invar_provenance_objects(&objects, p);
        assert_int_equal(objects, 1);
        assert_int_equal(object->bytes, INVAR_PROVENANCE_DIFF_BYTES);
        if (longer)
            assert_fact(p, "diff_truncated", "16777216 of 16777221 bytes");
        else
            assert_null(find_fact(p, "build", "diff_truncated"));
        invar_provenance_free(p);
    }
    remove(diff_path);
}

/* ---- rejected build files -------------------------------------------------------------------- */

static void test_ledger_provenance__missing_files(void **state)
{
    static char path[5000];

    (void)state;
    remove(build_path);
    assert_unknown(build_path, "cannot be opened");
    write_text(build_path, "[build]\ndirty = modified\n");
    remove(diff_path);
    assert_unknown(build_path, "program.build.diff: cannot be opened");
    memset(path, 'a', sizeof path - 1);
    assert_unknown(path, "cannot be opened");
    assert_unknown("/", "is not a file");
    assert_unknown("/dev/zero", "is not a file");
    remove(build_path);
    assert_int_equal(mkfifo(build_path, 0600), 0);
    assert_unknown(build_path, "is not a file");
    remove(build_path);
}

/* An empty path gathers facts of the host only: a script has no build file of its own. */
static void test_ledger_provenance__of_a_script_is_the_host(void **state)
{
    invar_provenance *p;
    const invar_ledger_fact *facts;
    size_t count;

    (void)state;
    assert_ok(invar_provenance_gather(&p, ""));
    facts = invar_provenance_facts(&count, p);
    assert_non_null(find_fact(p, "host", "cpu"));
    for (size_t i = 0; i < count; i++)
        assert_string_not_equal(facts[i].scope, "build");
    invar_provenance_free(p);
}

static void test_ledger_provenance__hostile_files(void **state)
{
    static const char *const texts[][2] = {
        {"commit = 1\n", "a key needs a [section]"},
        {"[built]\n", "unknown section"},
        {"[build]\nbranch = main\n", "unknown key 'branch'"},
        {"[build]\ncommit = 1\ncommit = 2\n", "already in line 2"},
        {"[build]\ndirty = perhaps\n", "expected one of"},
        {"[build]\nsubject = a\x1B[31mb\n", "control character"},
        {"[build]\nsubject = \xFF\xFE\n", "not UTF-8"},
        {"[build]\nsubject = \xC2\x85\n", "control character"},
        {"\xEF\xBB\xBF[build]\n", "byte order mark"},
        {" [build]\n", "indented"},
        {"[build]\n\x1B]0;title\x07 = 1\n", "a key is made of"},
    };
    enum { HUGE_BYTES = 3000000 };
    uint8_t *data;

    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        write_text(build_path, texts[i][0]);
        assert_unknown(build_path, texts[i][1]);
    }
    write_bytes(build_path, "[build]\nsubject = a\0b\n", 22);
    assert_unknown(build_path, "control character");
    assert_ok(INVAR_ALLOC(data, HUGE_BYTES, "data"));
    for (size_t i = 0; i < HUGE_BYTES; i++)
        data[i] = (uint8_t)(i * UINT64_C(0x9E3779B97F4A7C15) >> 56);
    write_bytes(build_path, data, 4096);
    assert_unknown(build_path, "program.build:");
    memset(data, '\n', HUGE_BYTES);
    write_bytes(build_path, data, HUGE_BYTES);
    assert_unknown(build_path, "larger than");
    memset(data, 'a', HUGE_BYTES);
    write_bytes(build_path, data, 900000);
    assert_unknown(build_path, "longer than");
    invar_free(data);
}

/* ---- program and host ------------------------------------------------------------------------ */

static void test_ledger_provenance__binary_is_what_xxhsum_says(void **state)
{
    char command[64], line[256];
    invar_provenance *p;
    FILE *stream;

    (void)state;
    assert_ok(invar_provenance_gather(&p, NULL));
    assert_sound(p);
    snprintf(command, sizeof command, "xxhsum -H2 < /proc/%ld/exe", (long)getpid());
    stream = popen(command, "r");
    assert_non_null(stream);
    assert_non_null(fgets(line, sizeof line, stream));
    assert_int_equal(pclose(stream), 0);
    line[32] = '\0';
    assert_fact(p, "binary", line);
    invar_provenance_free(p);
}

static void test_ledger_provenance__host(void **state)
{
    static const char *const keys[] = {"name",   "cpu", "isa",    "cores",
                                       "memory", "os",  "kernel", "libc"};
    struct utsname system;
    invar_provenance *p;
    char text[200];

    (void)state;
    assert_ok(invar_provenance_gather(&p, NULL));
    for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
        const char *value = find_fact(p, "host", keys[i]);
        assert_non_null(value);
        assert_true(strlen(value) > 0);
    }
    assert_int_equal(uname(&system), 0);
    assert_string_equal(find_fact(p, "host", "name"), system.nodename);
    snprintf(text, sizeof text, "%s %s", system.sysname, system.release);
    assert_string_equal(find_fact(p, "host", "kernel"), text);
    assert_int_equal(strncmp(find_fact(p, "host", "isa"), system.machine, strlen(system.machine)),
                     0);
    assert_true(strtol(find_fact(p, "host", "cores"), NULL, 10) >= 1);
    assert_true(strtoll(find_fact(p, "host", "memory"), NULL, 10) >= 1 << 24);
    invar_provenance_free(p);
}

/* ---- memory ---------------------------------------------------------------------------------- */

static invar_status gather_and_free(void)
{
    invar_provenance *p;

    INVAR_TRY(invar_provenance_gather(&p, build_path));
    invar_provenance_free(p);
    return INVAR_OK;
}

static void test_ledger_provenance__each_allocation_fails(void **state)
{
    (void)state;
    write_text(build_path, "[build]\ndirty = modified\n");
    write_text(diff_path, "a change");
    fail_each_allocation(gather_and_free);
}

/* ---- main ------------------------------------------------------------------------------------ */

static int print_facts(const char *path)
{
    const invar_ledger_object *objects;
    const invar_ledger_fact *facts;
    size_t n_facts, n_objects;
    invar_provenance *p;

    if (invar_provenance_gather(&p, path) != INVAR_OK) {
        fprintf(stderr, "%s\n", invar_error_last()->message);
        return 1;
    }
    facts = invar_provenance_facts(&n_facts, p);
    for (size_t i = 0; i < n_facts; i++)
        printf("%s %s %s\n", facts[i].scope, facts[i].key, facts[i].value);
    objects = invar_provenance_objects(&n_objects, p);
    if (n_objects == 1) {
        printf("object %s %s %s\n", objects->scope, objects->key, objects->kind);
        fwrite(objects->data, 1, objects->bytes, stdout);
    }
    invar_provenance_free(p);
    return 0;
}

int main(int argc, char **argv)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ledger_provenance__reads_the_build),
        cmocka_unit_test(test_ledger_provenance__clean_has_no_diff),
        cmocka_unit_test(test_ledger_provenance__long_diff_is_cut_and_said_to_be),
        cmocka_unit_test(test_ledger_provenance__missing_files),
        cmocka_unit_test(test_ledger_provenance__of_a_script_is_the_host),
        cmocka_unit_test(test_ledger_provenance__hostile_files),
        cmocka_unit_test(test_ledger_provenance__binary_is_what_xxhsum_says),
        cmocka_unit_test(test_ledger_provenance__host),
        cmocka_unit_test(test_ledger_provenance__each_allocation_fails),
    };

    if (argc > 1)
        return print_facts(strcmp(argv[1], "own") == 0 ? NULL : argv[1]);
    return cmocka_run_group_tests_name("ledger.provenance", tests, set_up, tear_down);
}
