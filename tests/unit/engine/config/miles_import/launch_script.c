/*
 * launch_script.c - tests of the reader of Miles launch scripts.
 *
 * The reader must find the same words as bash, without executing the script; bash itself is the
 * reference for scripts that depend on nothing outside their text. Words that only a shell could
 * compute must be marked. Hostile scripts must fail with a message before they use much memory.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/config/miles_import/launch_script.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support.h"

/*
 * Writes the words of a script to `out`, one "<WORD>" per line, with "?" after a word that only a
 * shell could compute.
 */
static void format_words(char *out, size_t size, const char *text)
{
    invar_launch_script script;
    size_t used = 0;

    assert_ok(invar_launch_script_parse(&script, "run.sh", text, strlen(text)));
    out[0] = '\0';
    for (int i = 0; i < script.count && used < size; i++)
        used += (size_t)snprintf(out + used, size - used, "<%s>%s\n", script.words[i].text,
                                 script.words[i].state == INVAR_LAUNCH_SCRIPT_PLAIN ? "" : "?");
    invar_launch_script_release(&script);
}

/* Scripts whose words depend on nothing outside their text. */
static const char *const plain_scripts[] = {
    "A_ARGS=(--a 1 --b)",
    "A_ARGS=( # comment\n --a 'x y' # --no\n\n   # --b\n --c \"d # e\"\n)",
    "X=5\nA_ARGS=(--a ${X} --b \"$X/y\" --c '$X' $X$X)",
    "X='a b'\nA_ARGS=(--a $X --b \"$X\" pre$X)",
    "A_ARGS=(--a \\\n 1 \\\n # gone\n --b\\ c \"q\\\"\\$\\\\\" 'a'\"b\"c)",
    "X=${X:-7}\nA_ARGS=(--a ${X} ${Y:-\"z\"} ${Z-w} \"${Q:-}\")",
    "X=\nA_ARGS=(${X:-8} \"${X-9}\")",
    "A_ARGS=(--a)\nA_ARGS+=(--b 2)\nA_ARGS+=()\nB_ARGS=(\"${A_ARGS[@]}\" --c)\nA_ARGS=(--d)",
    "export X=1 Y=2\nA_ARGS=($X$Y)",
    "X=1; Y=2 true; A_ARGS=(\"$X\" end)",
    "cat <<END >/dev/null\nA_ARGS=(--no)\nEND\nA_ARGS=(--yes) # it's",
    "cat <<-'EN' >/dev/null\n\tA_ARGS=(--no)\n\tEN\nA_ARGS=(--yes)",
    "A_ARGS=(--a=b=c -1 -- '' \"\")\nB_ARGS=()",
    "echo 2>&1 >/dev/null x; A_ARGS=(a)",
    "true && \\\n true\nA_ARGS=(\"a\nb\")",
};

/* Executes the script in bash and writes the words of A_ARGS and B_ARGS to `out`, as lines. */
static void format_bash_words(char *out, size_t size, const char *text)
{
    char path[] = INVAR_TEST_WORK "/script-XXXXXX", command[256];
    int fd = mkstemp(path);
    FILE *file = fdopen(fd, "w"), *pipe;

    assert_non_null(file);
    fprintf(file,
            "%s\nfor w in \"${A_ARGS[@]}\" \"${B_ARGS[@]}\"; do printf '<%%s>\\n' \"$w\"; done\n",
            text);
    fclose(file);
    (void)snprintf(command, sizeof command, "env -i bash %s 2>&1", path);
    pipe = popen(command, "r");
    assert_non_null(pipe);
    out[fread(out, 1, size - 1, pipe)] = '\0';
    assert_int_equal(pclose(pipe), 0);
    remove(path);
}

static void test_launch_script__words_are_those_of_bash(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof plain_scripts / sizeof *plain_scripts; i++) {
        char got[4096], expected[4096];
        format_words(got, sizeof got, plain_scripts[i]);
        format_bash_words(expected, sizeof expected, plain_scripts[i]);
        if (strcmp(got, strncmp(expected, "x\n", 2) == 0 ? expected + 2 : expected) != 0)
            fail_msg("%s\nis read as\n%sbash has\n%s", plain_scripts[i], got, expected);
    }
}

static void test_launch_script__what_only_a_shell_knows_is_marked(void **state)
{
    static const char *const cases[][2] = {
        {"A_ARGS=(--a $(nproc) `hostname` $((1 + 2)))", "<--a>\n<$(nproc)>?\n<`hostname`>?\n"
                                                        "<$((1 + 2))>?\n"},
        {"A_ARGS=(--a $HOME ${NOPE} \"x$1\" \"$@\")",
         "<--a>\n<$HOME>?\n<${NOPE}>?\n<\"x$1\">?\n<\"$@\">?\n"},
        {"X=$(date)\nA_ARGS=($X ${X%.*})", "<$X>?\n<${X%.*}>?\n"},
        {"if true; then X=1; fi\nA_ARGS=($X)", "<$X>?\n"},
        {"if true; then A_ARGS=(--a); else A_ARGS=(--b); fi", "<--a>?\n<--b>?\n"},
        {"A_ARGS=(--a)\nif true; then A_ARGS=(); fi", "<--a>?\n"},
        {"A_ARGS=(--a)\nfor i in 1 2; do A_ARGS+=(--b $i); done", "<--a>\n<--b>?\n<$i>?\n"},
        {"f() { A_ARGS=(--a); }\nB_ARGS=(--b)", "<--a>?\n<--b>\n"},
        {"case $X in a) A_ARGS=(--a);; (b) A_ARGS=(--b);; esac\nB_ARGS=(c)",
         "<--a>?\n<--b>?\n<c>\n"},
        {"true && X=1\nA_ARGS=(${X})", "<${X}>?\n"},
        {"(X=1)\nA_ARGS=(${X})", "<${X}>?\n"},
        {"X=1\nX+=2\nA_ARGS=(${X})", "<${X}>?\n"},
        {"X=1\nread -r X\nA_ARGS=($X)", "<$X>?\n"},
        {"X=1\nlet X=5\nA_ARGS=($X)", "<$X>?\n"},
        {"X=1\nprintf -v X 5\nA_ARGS=($X)", "<$X>?\n"},
        {"X=1\neval X=5\nA_ARGS=($X)", "<$X>?\n"},
        {"X=1 Y=2\nunset X\nA_ARGS=($X $Y)", "<$X>?\n<2>\n"},
        {"f() { X=5; }\nX=1\nf\nA_ARGS=($X)", "<$X>?\n"},
        {"f() { A_ARGS=(5); }\nA_ARGS=(1)\nf", "<5>?\n<1>?\n"},
        {"A_ARGS=(--a 1)\nA_ARGS[1]=5", "<--a>?\n<1>?\n"},
        {"A_ARGS=(--a)\nmapfile -t A_ARGS <flags", "<--a>?\n"},
        {"A_ARGS=(~/x '~/x' x~ /x/* \"*\" a?)", "<~/x>?\n<~/x>\n<x~>\n</x/*>?\n<*>\n<a?>?\n"},
    };
    char got[4096];
    (void)state;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        format_words(got, sizeof got, cases[i][0]);
        assert_string_equal(got, cases[i][1]);
    }
}

static void test_launch_script__train_command_selects_the_words(void **state)
{
    static const char text[] =
        "pkill -f train.py\n"
        "A_ARGS=(--a)\nB_ARGS=(--unused)\n"
        "ray job submit --env \"{\n \\\"a\\\": 1}\" -- python3 x/train_async.py \\\n"
        "  --b 2 ${A_ARGS[@]} ${C_ARGS[@]} 2>&1 | tee log\n";
    invar_launch_script script;
    char got[256];
    (void)state;

    format_words(got, sizeof got, text);
    assert_string_equal(got, "<--b>\n<2>\n<--a>\n<${C_ARGS[@]}>?\n");
    assert_ok(invar_launch_script_parse(&script, "run.sh", text, sizeof text - 1));
    assert_true(script.async);
    assert_int_equal(script.words[0].line, 6);
    assert_int_equal(script.words[2].line, 2);
    invar_launch_script_release(&script);
}

static void assert_rejected(const char *text, size_t bytes, const char *message)
{
    invar_launch_script script;

    assert_fails(invar_launch_script_parse(&script, "run.sh", text, bytes), INVAR_E_INVALID,
                 message);
    assert_null(script.store);
}

static void test_launch_script__refusals(void **state)
{
    static const char *const cases[][2] = {
        {"", "is it a launch script"},
        {"A_ARGS=()", "is it a launch script"},
        {"A_ARGS=(--a", "run.sh:1: the file ends within an array"},
        {"\nA_ARGS=(--a 'b", "run.sh:2: the file ends within a quote"},
        {"X=\"$(a", "the file ends within a bracket"},
        {"X=`a", "the file ends within backquotes"},
        {"A_ARGS=(a | b)", "an operator within an array"},
        {"python train.py --a\npython train.py --b", "run.sh:2: train.py is started a second time"},
    };
    (void)state;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        assert_rejected(cases[i][0], strlen(cases[i][0]), cases[i][1]);
    assert_rejected("a\0b", 3, "NUL byte");
}

/* 70 lines, each of which doubles the text or the words, or adds a level of nesting. */
static void test_launch_script__hostile_growth_is_bounded(void **state)
{
    static const struct {
        const char *head, *line, *message;
    } cases[] = {
        {"X=aaaaaaaaaaaaaaaa\n", "X=$X$X\n", "bytes of text"},
        {"A_ARGS=(a b c d)\n", "A_ARGS=(${A_ARGS[@]} ${A_ARGS[@]})\n", "words"},
        {"", "( ", "nested more than 64 deep"},
    };
    static char text[4096];
    (void)state;

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t used = (size_t)snprintf(text, sizeof text, "%s", cases[i].head);
        for (int k = 0; k < 70; k++)
            used += (size_t)snprintf(text + used, sizeof text - used, "%s", cases[i].line);
        assert_rejected(text, used, cases[i].message);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_launch_script__words_are_those_of_bash),
        cmocka_unit_test(test_launch_script__what_only_a_shell_knows_is_marked),
        cmocka_unit_test(test_launch_script__train_command_selects_the_words),
        cmocka_unit_test(test_launch_script__refusals),
        cmocka_unit_test(test_launch_script__hostile_growth_is_bounded),
    };

    return cmocka_run_group_tests_name("script", tests, NULL, NULL);
}
