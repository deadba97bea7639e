/*
 * chat_template.c - tests of chat templates: sources, environment, sandbox, and failures of
 * python3.
 *
 * Expected texts are literals. The comparison with transformers is in tokenizer/oracle.c.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/text/chat/chat_template.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/alloc.h"
#include "base/file.h"
#include "tests/support.h"

#define WORK INVAR_TEST_WORK "/template"

static const char hello[] = "[{\"role\": \"user\", \"content\": \"hello\"}]";

static void write_file(const char *dir, const char *name, const char *text)
{
    char path[INVAR_PATH_SIZE];

    assert_ok(invar_held_folder_make(dir));
    assert_ok(invar_path_join(path, sizeof path, dir, name));
    assert_ok(invar_file_write(path, text, strlen(text)));
}

/* Returns a new folder with these files, each of which may be NULL. */
static const char *new_folder(const char *jinja, const char *config)
{
    static char path[INVAR_PATH_SIZE];
    static int number;

    snprintf(path, sizeof path, WORK "/%d-%d", (int)getpid(), number++);
    assert_ok(invar_held_folder_make(path));
    if (jinja)
        write_file(path, "chat_template.jinja", jinja);
    if (config)
        write_file(path, "tokenizer_config.json", config);
    return path;
}

static invar_chat_template *open_text(const char *jinja, const char *kwargs)
{
    invar_chat_template *chat;

    assert_ok(invar_chat_template_open(&chat, new_folder(jinja, NULL), "", kwargs));
    return chat;
}

static void expect_render(invar_chat_template *chat, const char *messages, const char *tools,
                          bool prompt, const char *expected)
{
    size_t bytes;
    char *text;

    assert_ok(invar_chat_template_render(&text, &bytes, chat, messages, tools, prompt));
    assert_string_equal(text, expected);
    assert_int_equal(bytes, strlen(expected));
    invar_free(text);
}

/* Renders a template once and compares the text. */
static void expect_text(const char *jinja, const char *kwargs, const char *messages,
                        const char *expected)
{
    invar_chat_template *chat = open_text(jinja, kwargs);

    expect_render(chat, messages, "", false, expected);
    invar_chat_template_close(chat);
}

static void test_chat_template_open__precedence_of_sources(void **state)
{
    static const char config[] = "{\"chat_template\": \"config\", \"eos_token\": \"E\"}";
    static const char several[] =
        "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"{{ tools|length }} tools\"},"
        " {\"name\": \"default\", \"template\": \"default\"}]}";
    char path[INVAR_PATH_SIZE];
    invar_chat_template *chat;

    (void)state;
    assert_ok(invar_chat_template_open(&chat, new_folder(NULL, config), "", ""));
    expect_render(chat, hello, "", false, "config");
    invar_chat_template_close(chat);
    assert_ok(invar_chat_template_open(&chat, new_folder("file {{ eos_token }}", config), "", ""));
    expect_render(chat, hello, "", false, "file E");
    invar_chat_template_close(chat);
    assert_ok(invar_path_join(path, sizeof path, new_folder("path {{ eos_token }}", NULL),
                              "chat_template.jinja"));
    assert_ok(invar_chat_template_open(&chat, new_folder("file", config), path, ""));
    expect_render(chat, hello, "", false, "path E");
    invar_chat_template_close(chat);
    assert_ok(invar_chat_template_open(&chat, "", path, "{\"eos_token\": \"K\"}"));
    expect_render(chat, hello, "", false, "path K");
    invar_chat_template_close(chat);
    assert_ok(invar_chat_template_open(&chat, new_folder(NULL, several), "", ""));
    expect_render(chat, hello, "", false, "default");
    expect_render(chat, hello, "[{}, {}]", false, "2 tools");
    invar_chat_template_close(chat);
}

/* Folders written by transformers before 4.34 have special tokens in special_tokens_map.json. */
static void test_chat_template_open__reads_special_tokens_map(void **state)
{
    static const struct {
        const char *config, *text;
    } cases[] = {
        {NULL, "<B E>"},
        {"{\"bos_token\": \"C\", \"eos_token\": null}", "<B E>"},
        {"{\"bos_token\": \"C\", \"added_tokens_decoder\": {}}", "<C >"},
    };
    invar_chat_template *chat;
    const char *dir;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        dir = new_folder("<{{ bos_token }} {{ eos_token }}>", cases[i].config);
        write_file(dir, "special_tokens_map.json",
                   "{\"bos_token\": \"B\", \"eos_token\": {\"content\": \"E\"}}");
        assert_ok(invar_chat_template_open(&chat, dir, "", ""));
        expect_render(chat, hello, "", false, cases[i].text);
        invar_chat_template_close(chat);
    }
    dir = new_folder("x", NULL);
    write_file(dir, "special_tokens_map.json", "[]");
    assert_fails(invar_chat_template_open(&chat, dir, "", ""), INVAR_E_INVALID,
                 "special_tokens_map.json: not a JSON object");
}

/* Several templates in additional_chat_templates, as transformers writes them since 4.51. */
static void test_chat_template_open__reads_additional_templates(void **state)
{
    static const char config[] = "{\"chat_template\": \"config\"}";
    char additional[INVAR_PATH_SIZE];
    const char *dir;
    invar_chat_template *chat;

    (void)state;
    dir = new_folder("file", config);
    assert_ok(invar_path_join(additional, sizeof additional, dir, "additional_chat_templates"));
    write_file(additional, "rag.jinja", "rag");
    write_file(additional, "tool_use.jinja", "{{ tools|length }} tools");
    assert_ok(invar_chat_template_open(&chat, dir, "", ""));
    expect_render(chat, hello, "", false, "file");
    expect_render(chat, hello, "[{}, {}]", false, "2 tools");
    invar_chat_template_close(chat);
    write_file(additional, "default.jinja", "more");
    assert_ok(invar_chat_template_open(&chat, dir, "", ""));
    expect_render(chat, hello, "", false, "more");
    invar_chat_template_close(chat);
    // template files replace those of the config, so that there is no template without tools
    dir = new_folder(NULL, config);
    assert_ok(invar_path_join(additional, sizeof additional, dir, "additional_chat_templates"));
    write_file(additional, "tool_use.jinja", "tools");
    assert_fails(invar_chat_template_open(&chat, dir, "", ""), INVAR_E_NOTFOUND,
                 "no chat template");
}

static void test_chat_template_open__refuses_invalid_templates(void **state)
{
    invar_chat_template *chat;

    (void)state;
    assert_fails(invar_chat_template_open(&chat, new_folder(NULL, NULL), "", ""), INVAR_E_NOTFOUND,
                 "no chat template");
    assert_null(chat);
    assert_fails(invar_chat_template_open(&chat, new_folder(NULL, "{}"), "", ""), INVAR_E_NOTFOUND,
                 "no chat template");
    assert_fails(invar_chat_template_open(&chat, "", "/no/such/file", ""), INVAR_E_NOTFOUND,
                 "chat-template-path: /no/such/file: cannot be opened");
    assert_fails(invar_chat_template_open(&chat, new_folder(NULL, "{"), "", ""), INVAR_E_INVALID,
                 "tokenizer_config.json");
    assert_fails(
        invar_chat_template_open(&chat, new_folder(NULL, "{\"chat_template\": [1]}"), "", ""),
        INVAR_E_INVALID, "chat_template");
    assert_fails(invar_chat_template_open(&chat, new_folder("a\n{% if %}", NULL), "", ""),
                 INVAR_E_INVALID, "chat template: TemplateSyntaxError in line 2");
    assert_fails(invar_chat_template_open(&chat, new_folder("\xFF", NULL), "", ""), INVAR_E_INVALID,
                 "UTF-8");
    assert_fails(invar_chat_template_open(&chat, new_folder("x", NULL), "", "[]"), INVAR_E_INVALID,
                 "kwargs: not a JSON object");
    assert_fails(invar_chat_template_open(&chat, new_folder("x", NULL), "", "{\"tools\": 1}"),
                 INVAR_E_INVALID, "\"tools\" is set by Invar");
}

static void test_chat_template_render__has_the_environment_of_transformers(void **state)
{
    (void)state;
    // trim_blocks and lstrip_blocks
    expect_text("a\n  {% if true %}\nb\n  {% endif %}\nc\n"
                "{% for i in range(9) %}{% if i == 3 %}{% break %}{% endif %}{{ i }}{% endfor %}|"
                "{{ {'b': '<\xC3\xA9>', 'a': [1, 2.5]} | tojson }}|"
                "{% set ns = namespace(n=1) %}{% set ns.n = 5 %}{{ ns.n }}|"
                "{% generation %}x{% endgeneration %}{{ dict(a=1).a }}|"
                "{{ documents is none }}{{ tools is none }}{{ no_such is defined }}",
                "", hello,
                "a\nb\nc\n012|{\"b\": \"<\xC3\xA9>\", \"a\": [1, 2.5]}|5|x1|TrueTrueFalse");
    expect_text("{{ enable_thinking }} {{ n }}", "{\"enable_thinking\": false, \"n\": 1.5}", hello,
                "False 1.5");
    expect_text("{{ messages[0].reasoning_content }}", "",
                "[{\"role\": \"assistant\", \"reasoning\": \"why\"}]", "why");
    // JSON on several lines, and Unicode line separators within a string
    expect_text("{{ messages[0].content }}", "",
                "[\n{\"content\":\r\n\"a\\nb\xE2\x80\xA8\xC2\x85\xF0\x9F\x99\x82\"}]\n",
                "a\nb\xE2\x80\xA8\xC2\x85\xF0\x9F\x99\x82");
}

static void test_chat_template_render__recovers_from_errors_of_the_template(void **state)
{
    invar_chat_template *chat =
        open_text("{% if messages|length > 1 %}{{ raise_exception('only one "
                  "message') }}{% endif %}{{ messages[0].content + '!' }}",
                  "");
    size_t bytes;
    char *text;

    (void)state;
    assert_fails(invar_chat_template_render(&text, &bytes, chat, "[{}, {}]", "", false),
                 INVAR_E_INVALID, "chat template: TemplateError: only one message");
    assert_null(text);
    expect_render(chat, hello, "", false, "hello!");
    assert_fails(invar_chat_template_render(&text, &bytes, chat, "[{}]", "", false),
                 INVAR_E_INVALID, "chat template: UndefinedError");
    assert_fails(invar_chat_template_render(&text, &bytes, chat, "[]", "", false), INVAR_E_INVALID,
                 "at least one");
    assert_fails(invar_chat_template_render(&text, &bytes, chat, "[1]", "", false), INVAR_E_INVALID,
                 "not an object");
    assert_fails(invar_chat_template_render(&text, &bytes, chat, "{}", "", false), INVAR_E_INVALID,
                 "messages: not a JSON list");
    assert_fails(invar_chat_template_render(&text, &bytes, chat, "[{}", "", false), INVAR_E_INVALID,
                 "messages");
    assert_fails(invar_chat_template_render(&text, &bytes, chat, hello, "{}", false),
                 INVAR_E_INVALID, "tools: not a JSON list");
    expect_render(chat, hello, "", false, "hello!");
    invar_chat_template_close(chat);
}

static void test_chat_template_render__refuses_clock_and_chance(void **state)
{
    invar_chat_template *chat = open_text("{{ strftime_now('%Y') }}", "");
    size_t bytes;
    char *text;

    (void)state;
    assert_fails(invar_chat_template_render(&text, &bytes, chat, hello, "", false), INVAR_E_INVALID,
                 "strftime_now reads the clock");
    invar_chat_template_close(chat);
    assert_fails(invar_chat_template_open(&chat, new_folder("{{ [1, 2] | random }}", NULL), "", ""),
                 INVAR_E_INVALID, "random");
    chat = open_text("{{ lipsum() }}", "");
    assert_fails(invar_chat_template_render(&text, &bytes, chat, hello, "", false), INVAR_E_INVALID,
                 "lipsum");
    invar_chat_template_close(chat);
}

/* Objects are rejected because their text has addresses, which differ between runs. */
static void test_chat_template_render__refuses_objects(void **state)
{
    static const char *const cases[][2] = {
        {"{{ messages|map(attribute='content') }}", "a generator, which is no data"},
        {"{{ [messages|select] }}", "a list, which is no data"},
        {"{{ messages[0].items }}", "which is no data"},
        {"{{ 'a' ~ (messages|map(attribute='content')) }}", "the address of an object"},
        {"{{ messages[0].items|string }}", "the address of an object"},
        {"{{ '%s'|format(messages|select) }}", "the address of an object"},
    };
    static const char messages[] = "[{\"role\": \"user\", \"content\": \"<f at 0x7f00beef>\"}]";
    invar_chat_template *chat;
    size_t bytes;
    char *text;

    (void)state;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        chat = open_text(cases[i][0], "");
        assert_fails(invar_chat_template_render(&text, &bytes, chat, hello, "", false),
                     INVAR_E_INVALID, cases[i][1]);
        invar_chat_template_close(chat);
    }
    chat = open_text("{{ messages|map(attribute='content')|join }} {{ none }} {{ nothing }}"
                     "{{ [1, 2.5, {'a': (true, none)}] }} at 0xabcdef",
                     "");
    expect_render(chat, messages, "", false,
                  "<f at 0x7f00beef> None [1, 2.5, {'a': (True, None)}] at 0xabcdef");
    invar_chat_template_close(chat);
}

static void test_chat_template_render__keeps_templates_in_the_sandbox(void **state)
{
    static const char *const escapes[] = {
        "{{ ''.__class__.__mro__ }}", "{{ cycler.__init__.__globals__ }}",
        "{{ messages.append(1) }}",   "{% set ns = namespace() %}{% set ns._x = 1 %}",
        "{{ 'a' * 1099511627776 }}",
    };

    (void)state;
    for (size_t i = 0; i < sizeof escapes / sizeof escapes[0]; i++) {
        invar_chat_template *chat = open_text(escapes[i], "");
        size_t bytes;
        char *text = NULL;
        invar_status status = invar_chat_template_render(&text, &bytes, chat, hello, "", false);
        // unsafe attributes are undefined values, which print as nothing
        assert_true(status == INVAR_E_INVALID || (status == INVAR_OK && bytes == 0));
        invar_free(text);
        invar_chat_template_close(chat);
    }
}

static void assert_no_children(void)
{
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
}

static void test_chat_template_render__ends_a_child_that_hangs(void **state)
{
    static const char slow[] = "{% for a in range(9999) %}{% for b in range(9999) %}"
                               "{% for c in range(9999) %}{% endfor %}{% endfor %}{% endfor %}";
    invar_chat_template *chat;
    size_t bytes;
    char *text;

    (void)state;
    assert_ok(invar_chat_template_open_within(&chat, new_folder(slow, NULL), "", "", 3));
    assert_fails(invar_chat_template_render(&text, &bytes, chat, hello, "", false), INVAR_E_IO,
                 "chat template: no reply within 3 s");
    assert_no_children();
    assert_fails(invar_chat_template_render(&text, &bytes, chat, hello, "", false), INVAR_E_STATE,
                 "chat template");
    invar_chat_template_close(chat);
}

/* Calls `check` with a PATH that only has `script` as python3, or no python3 if it is NULL. */
static void with_python(const char *script, void (*check)(const char *dir))
{
    const char *old_path = getenv("PATH");
    char bin[INVAR_PATH_SIZE], path[INVAR_PATH_SIZE], *kept = old_path ? strdup(old_path) : NULL;

    snprintf(bin, sizeof bin, "%s", new_folder("x", NULL));
    if (script) {
        write_file(bin, "python3", script);
        assert_ok(invar_path_join(path, sizeof path, bin, "python3"));
        assert_int_equal(chmod(path, 0755), 0);
    }
    assert_int_equal(setenv("PATH", bin, 1), 0);
    check(bin);
    if (kept)
        assert_int_equal(setenv("PATH", kept, 1), 0);
    free(kept);
}

static void check_missing(const char *dir)
{
    invar_chat_template *chat;

    assert_fails(invar_chat_template_open(&chat, dir, "", ""), INVAR_E_IO,
                 INVAR_TEST_CANNOT_START("python3"));
    assert_null(chat);
}

static void check_dies(const char *dir)
{
    invar_chat_template *chat;

    assert_fails(invar_chat_template_open(&chat, dir, "", ""), INVAR_E_IO,
                 "chat template: it ended with exit code 3: no module");
    assert_null(chat);
}

static void check_invalid_reply(const char *dir)
{
    invar_chat_template *chat;

    assert_fails(invar_chat_template_open(&chat, dir, "", ""), INVAR_E_INVALID, "is not JSON");
    assert_null(chat);
}

static void check_no_jinja(const char *dir)
{
    invar_chat_template *chat;

    assert_fails(invar_chat_template_open(&chat, dir, "", ""), INVAR_E_INVALID,
                 "install python3-jinja2");
    assert_null(chat);
}

static void check_opens(const char *dir)
{
    invar_chat_template *chat;

    assert_ok(invar_chat_template_open(&chat, dir, "", ""));
    invar_chat_template_close(chat);
}

/* Like with_python, with a script that runs shell commands and then the system's python3. */
static void with_real_python(const char *commands, const char *options,
                             void (*check)(const char *dir))
{
    char script[INVAR_PATH_SIZE + 100], real[INVAR_PATH_SIZE] = "";
    FILE *which = popen("command -v python3", "r");

    assert_non_null(which);
    assert_non_null(fgets(real, sizeof real, which));
    pclose(which);
    real[strcspn(real, "\n")] = '\0';
    snprintf(script, sizeof script, "#!/bin/sh\n%s\nPATH=/bin:/usr/bin exec %s %s \"$@\"\n",
             commands, real, options);
    with_python(script, check);
}

static void test_chat_template_open__names_what_is_wrong_with_python(void **state)
{
    (void)state;
    with_python(NULL, check_missing);
    with_python("#!/bin/sh\necho no module >&2\nexit 3\n", check_dies);
    with_python("#!/bin/sh\nread -r line\necho rubbish\nread -r line\n", check_invalid_reply);
    with_real_python("", "-S", check_no_jinja); // -S: without site-packages
    assert_no_children();
}

/* The child works under a lower memory limit of the user, which it cannot raise. */
static void test_chat_template_open__works_under_a_lower_limit(void **state)
{
    (void)state;
    with_real_python("ulimit -v 600000", "", check_opens);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_chat_template_open__precedence_of_sources),
        cmocka_unit_test(test_chat_template_open__reads_special_tokens_map),
        cmocka_unit_test(test_chat_template_open__reads_additional_templates),
        cmocka_unit_test(test_chat_template_open__refuses_invalid_templates),
        cmocka_unit_test(test_chat_template_render__has_the_environment_of_transformers),
        cmocka_unit_test(test_chat_template_render__recovers_from_errors_of_the_template),
        cmocka_unit_test(test_chat_template_render__refuses_clock_and_chance),
        cmocka_unit_test(test_chat_template_render__refuses_objects),
        cmocka_unit_test(test_chat_template_render__keeps_templates_in_the_sandbox),
        cmocka_unit_test(test_chat_template_render__ends_a_child_that_hangs),
        cmocka_unit_test(test_chat_template_open__names_what_is_wrong_with_python),
        cmocka_unit_test(test_chat_template_open__works_under_a_lower_limit),
    };
    int failed = cmocka_run_group_tests(tests, NULL, NULL);

    (void)!invar_held_folder_remove(WORK);
    return failed;
}
