/*
 * dataset_chat.c - tests of data sets with a chat template: prompts, tools, answers for SFT.
 *
 * The test writes a byte-level tokenizer with two special tokens and small templates, so that each
 * expected text can be read off. Tokens in the loss are shown in brackets.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "tests/unit/engine/files/data/options.h"
#include "tests/unit/engine/files/data/parsed.h"

#define SCRATCH INVAR_TEST_WORK "/engine_dataset_chat"

enum { START = 256, END = 257 };

/* Like the template of Qwen, with a newline after the end of a message. */
static const char template[] =
    "{%- if tools %}{{ tools | length }} tools{% endif %}"
    "{%- for m in messages %}{{ '<|start|>' + m.role + ':' + m.content + "
    "'<|end|>\n' }}{%- endfor %}"
    "{%- if add_generation_prompt %}{{ '<|start|>assistant:' }}{%- endif %}"
    "{%- if mark is defined %}{{ mark }}{%- endif %}";

/* Renders only the role, so that a missing member does not fail in the template. */
static const char lenient[] = "{% for m in messages %}{{ m.role }};{% endfor %}";

/* Writes a tokenizer.json with one token per byte and the special tokens START and END. */
static void write_tokenizer(void)
{
    static char text[16384];
    size_t used = 0;
    unsigned remapped = 0x100;

    used += (size_t)snprintf(text, sizeof text, "{\"model\": {\"type\": \"BPE\", \"vocab\": {");
    for (unsigned byte = 0; byte < 256; byte++) {
        bool plain = (byte >= 0x21 && byte <= 0x7E) || (byte >= 0xA1 && byte != 0xAD);
        used += (size_t)snprintf(text + used, sizeof text - used, "%s\"\\u%04x\": %u",
                                 byte ? ", " : "", plain ? byte : remapped++, byte);
    }
    used += (size_t)snprintf(
        text + used, sizeof text - used,
        "}, \"merges\": []}, \"pre_tokenizer\": {\"type\": \"ByteLevel\", \"add_prefix_space\": "
        "false, \"trim_offsets\": true, \"use_regex\": true}, \"decoder\": {\"type\": "
        "\"ByteLevel\", \"add_prefix_space\": false, \"trim_offsets\": true, \"use_regex\": true}, "
        "\"added_tokens\": [");
    for (int i = 0; i < 2; i++)
        used += (size_t)snprintf(text + used, sizeof text - used,
                                 "%s{\"id\": %d, \"content\": \"%s\", \"single_word\": false, "
                                 "\"lstrip\": false, \"rstrip\": false, \"normalized\": false, "
                                 "\"special\": true}",
                                 i ? ", " : "", i ? END : START, i ? "<|end|>" : "<|start|>");
    used += (size_t)snprintf(text + used, sizeof text - used, "]}");
    assert_true(used < sizeof text);
    assert_ok(invar_file_write(SCRATCH "/tokenizer.json", text, used));
}

static int set_up(void **state)
{
    (void)state;
    assert_ok(invar_held_folder_make(SCRATCH));
    write_tokenizer();
    assert_ok(invar_file_write(SCRATCH "/chat_template.jinja", template, sizeof template - 1));
    assert_ok(invar_file_write(SCRATCH "/lenient.jinja", lenient, sizeof lenient - 1));
    assert_ok(invar_tokenizer_read(&tokenizer, SCRATCH));
    return 0;
}

static int tear_down(void **state)
{
    (void)state;
    invar_tokenizer_free(tokenizer);
    return invar_held_folder_remove(SCRATCH) == INVAR_OK ? 0 : -1;
}

static invar_dataset_options chat_options(void)
{
    invar_dataset_options options = dataset_options("d.jsonl", "");

    options.apply_chat_template = true;
    options.hf_dir = SCRATCH;
    return options;
}

static void test_dataset_chat__renders_prompts(void **state)
{
    static const char *const expected[] = {
        "<|start|>user:hi<|end|>\n<|start|>assistant:",
        "<|start|>system:s<|end|>\n<|start|>user:u<|end|>\n<|start|>assistant:",
        "2 tools<|start|>user:x<|end|>\n<|start|>assistant:",
        "1 tools<|start|>user:x<|end|>\n<|start|>assistant:",
    };
    invar_dataset_options options = chat_options();
    invar_dataset *dataset = parse_dataset(
        &options, "{\"input\": \"hi\"}\n"
                  "{\"input\": [{\"role\": \"system\", \"content\": \"s\"}, {\"role\": \"user\", "
                  "\"content\": \"u\"}], \"tools\": null}\n"
                  "{\"input\": \"x\", \"tools\": [{\"name\": 1}, {\"name\": 2}]}\n"
                  "{\"input\": \"x\", \"tools\": \"[{}]\"}\n");
    (void)state;

    assert_int_equal(invar_dataset_size(dataset), 4);
    for (int i = 0; i < 4; i++) {
        const invar_prompt *p = invar_dataset_prompt(dataset, i);
        char *text;
        size_t bytes;

        assert_string_equal(p->text, expected[i]);
        assert_ok(invar_tokenizer_decode(&text, &bytes, tokenizer, p->tokens, p->n_tokens, false));
        assert_string_equal(text, expected[i]);
        assert_null(p->answer);
        invar_free(text);
    }
    assert_int_equal(invar_dataset_prompt(dataset, 0)->tokens[0], START);
    invar_dataset_close(dataset);
}

/* A message with tool calls needs no content; a content may be empty or a list of parts. */
static void test_dataset_chat__content_may_be_absent_or_a_list(void **state)
{
    invar_dataset_options options = chat_options();
    invar_dataset *dataset;
    (void)state;

    options.chat_template_path = SCRATCH "/lenient.jinja";
    dataset = parse_dataset(
        &options, "{\"input\": [{\"role\": \"system\", \"content\": \"\"}, {\"role\": \"user\", "
                  "\"content\": [{\"type\": \"text\"}]}, {\"role\": \"assistant\", \"content\": "
                  "null, \"tool_calls\": [{}]}, {\"role\": \"assistant\", \"tool_calls\": [{}]}]}");
    assert_string_equal(invar_dataset_prompt(dataset, 0)->text, "system;user;assistant;assistant;");
    invar_dataset_close(dataset);
}

static void test_dataset_chat__variables(void **state)
{
    invar_dataset_options options = chat_options();
    invar_dataset *dataset;
    (void)state;

    options.chat_template_kwargs = "{\"mark\": \"!\"}";
    dataset = parse_dataset(&options, "{\"input\": \"hi\"}");
    assert_string_equal(invar_dataset_prompt(dataset, 0)->text,
                        "<|start|>user:hi<|end|>\n<|start|>assistant:!");
    invar_dataset_close(dataset);
}

static void test_dataset_chat__refuses(void **state)
{
    invar_dataset_options options = chat_options();
    invar_dataset *dataset;
    (void)state;

    assert_rejected(&options, "{\"input\": []}", "d.jsonl:1: \"input\" has no message");
    assert_rejected(&options, "{\"input\": \"a\"}\n{\"input\": [5]}",
                    "d.jsonl:2: \"input\" has a message");
    assert_rejected(&options, "{\"input\": \"a\", \"tools\": 5}",
                    "\"tools\" is not a list of tools");
    assert_rejected(&options, "{\"input\": \"a\", \"tools\": \"[\"}", "d.jsonl:1: ");
    assert_rejected(&options, "{\"input\": \"a\"}\n{\"input\": [{\"role\": \"user\"}]}",
                    "d.jsonl:2: \"input\" has no \"content\" in message 0");
    // the template renders nothing for a missing member, as most templates do
    options.chat_template_path = SCRATCH "/lenient.jinja";
    assert_rejected(&options,
                    "{\"input\": \"a\"}\n{\"input\": [{\"from\": \"human\", \"value\": \"2+2?\"}]}",
                    "d.jsonl:2: \"input\" has no \"role\" in message 0");
    assert_rejected(&options,
                    "{\"input\": [{\"role\": \"user\", \"content\": \"a\"}, {\"content\": \"b\"}]}",
                    "has no \"role\" in message 1");
    assert_rejected(&options, "{\"input\": [{\"role\": \"\", \"content\": \"a\"}]}",
                    "has no \"role\"");
    assert_rejected(&options, "{\"input\": [{\"role\": 1, \"content\": \"a\"}]}",
                    "has no \"role\"");
    assert_rejected(&options, "{\"input\": [{\"role\": \"user\", \"content\": null}]}",
                    "has no \"content\"");
    assert_rejected(&options,
                    "{\"input\": [{\"role\": \"user\", \"content\": null, \"tool_calls\": null}]}",
                    "has no \"content\"");
    options.chat_template_path = "";
    options.sft = true;
    assert_rejected(&options, "{\"input\": \"a\"}",
                    "\"input\" does not end with the assistant's message");
    assert_rejected(&options, "{\"input\": [{\"role\": \"assistant\", \"content\": \"a\"}]}",
                    "has an answer but no prompt");
    options.hf_dir = SCRATCH "/nowhere";
    assert_fails(invar_dataset_parse(&dataset, &options, tokenizer, "{}", 2), INVAR_E_NOTFOUND,
                 "template");
}

/* Compares the text of the answer, with brackets around the tokens that are in the loss. */
static void check_answer(const invar_prompt *p, const char *expected)
{
    char marked[512] = "";

    for (int64_t i = 0; i < p->n_answer; i++) {
        bool learned = p->answer_mask[i], learned_before = i > 0 && p->answer_mask[i - 1];
        char *text;
        size_t bytes;

        assert_ok(invar_tokenizer_decode(&text, &bytes, tokenizer, p->answer + i, 1, false));
        (void)snprintf(marked + strlen(marked), sizeof marked - strlen(marked), "%s%s",
                       learned && !learned_before   ? "["
                       : !learned && learned_before ? "]"
                                                    : "",
                       text);
        invar_free(text);
    }
    assert_true(p->answer_mask[p->n_answer - 1]); // the answer ends with its last learned token
    (void)snprintf(marked + strlen(marked), sizeof marked - strlen(marked), "]");
    assert_string_equal(marked, expected);
}

/*
 * The answer, as in Miles, is everything that the template renders after the generation prompt,
 * including the newline.
 */
static void test_dataset_chat__answers(void **state)
{
    invar_dataset_options options = chat_options();
    invar_dataset *dataset;
    (void)state;

    options.sft = true;
    dataset =
        parse_dataset(&options, "{\"input\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": "
                                "\"assistant\", \"content\": \"yes\"}]}");
    assert_string_equal(invar_dataset_prompt(dataset, 0)->text,
                        "<|start|>user:q<|end|>\n<|start|>assistant:");
    check_answer(invar_dataset_prompt(dataset, 0), "[yes<|end|>\n]");
    assert_int_equal(invar_dataset_prompt(dataset, 0)->answer[3], END);
    invar_dataset_close(dataset);

    options.label_key = "l";
    options.max_total_tokens = 60;
    dataset = parse_dataset(&options, "{\"input\": \"q\", \"l\": 42}\n{\"input\": \"q\", \"l\": "
                                      "\"123456789 123456789 123456789 123456789 \"}");
    assert_int_equal(invar_dataset_size(dataset), 1);
    assert_int_equal(invar_dataset_dropped_count(dataset), 1);
    check_answer(invar_dataset_prompt(dataset, 0), "[42<|end|>\n]");
    invar_dataset_close(dataset);
}

/* JSON of a message, and of an assistant's message with its step_loss_mask. */
#define SAYS(role, text) "{\"role\": \"" role "\", \"content\": \"" text "\"}"
#define MASKED(text, mask)                                                                         \
    "{\"role\": \"assistant\", \"content\": \"" text "\", \"step_loss_mask\": " mask "}"

static void test_dataset_chat__every_turn_is_learned(void **state)
{
    static const struct {
        const char *conversation, *prompt, *answer;
    } cases[] = {
        {SAYS("system", "s") ", " SAYS("user", "q") ", " SAYS("assistant", "yes") ", " SAYS(
             "user", "r") ", " SAYS("assistant", "no"),
         "<|start|>system:s<|end|>\n<|start|>user:q<|end|>\n<|start|>assistant:",
         "[yes<|end|>\n]<|start|>user:r<|end|>\n<|start|>assistant:[no<|end|>\n]"},
        {SAYS("user", "q") ", " MASKED("yes", "0") ", " SAYS("user", "r") ", " MASKED("no", "1"),
         "<|start|>user:q<|end|>\n<|start|>assistant:yes<|end|>\n<|start|>user:r<|end|>\n"
         "<|start|>assistant:",
         "[no<|end|>\n]"},
        {SAYS("user", "q") ", " MASKED("yes", "true") ", " SAYS("tool", "r") ", " MASKED(
             "so", "false") ", " SAYS("user", "t") ", " SAYS("assistant", "no"),
         "<|start|>user:q<|end|>\n<|start|>assistant:",
         "[yes<|end|>\n]<|start|>tool:r<|end|>\n<|start|>assistant:so<|end|>\n"
         "<|start|>user:t<|end|>\n<|start|>assistant:[no<|end|>\n]"},
        {SAYS("user", "q") ", " SAYS("assistant", "yes") ", " MASKED("no", "0"),
         "<|start|>user:q<|end|>\n<|start|>assistant:", "[yes<|end|>\n]"},
    };
    invar_dataset_options options = chat_options();
    (void)state;

    options.sft = true;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char line[1024];
        invar_dataset *dataset;

        (void)snprintf(line, sizeof line, "{\"input\": [%s]}", cases[i].conversation);
        dataset = parse_dataset(&options, line);
        assert_string_equal(invar_dataset_prompt(dataset, 0)->text, cases[i].prompt);
        check_answer(invar_dataset_prompt(dataset, 0), cases[i].answer);
        invar_dataset_close(dataset);
    }
    assert_rejected(&options, "{\"input\": [" SAYS("user", "q") ", " MASKED("yes", "0") "]}",
                    "d.jsonl:1: \"input\" has nothing to learn");
    assert_rejected(&options, "{\"input\": [" SAYS("user", "q") ", " MASKED("yes", "2") "]}",
                    "step_loss_mask is neither 0 nor 1");
    assert_rejected(&options, "{\"input\": [" SAYS("user", "q") ", " MASKED("yes", "\"1\"") "]}",
                    "step_loss_mask is neither 0 nor 1");
}

/* The template renders the reasoning of the last answer only, like the one of Qwen3. */
static void test_dataset_chat__earlier_thoughts_are_left_out(void **state)
{
    static const char last_reasoning_only[] =
        "{%- for m in messages %}<|start|>{{ m.role }}:"
        "{%- if m.role == 'assistant' and loop.last %}(aab){% endif %}"
        "{{ m.content }}<|end|>{% endfor %}"
        "{%- if add_generation_prompt %}<|start|>assistant:{% endif %}";
    invar_dataset_options options = chat_options();
    invar_dataset *dataset;
    (void)state;

    options.sft = true;
    options.chat_template_path = SCRATCH "/thoughtful.jinja";
    assert_ok(invar_file_write(options.chat_template_path, last_reasoning_only,
                               sizeof last_reasoning_only - 1));
    dataset = parse_dataset(
        &options, "{\"input\": [" SAYS("user", "q") ", " SAYS("assistant", "aabaac") ", " SAYS(
                      "user", "r") ", " SAYS("assistant", "no") "]}");
    check_answer(invar_dataset_prompt(dataset, 0),
                 "[aabaac<|end|>]<|start|>user:r<|end|><|start|>assistant:[(aab)no<|end|>]");
    invar_dataset_close(dataset);
}

/*
 * The answer is defined only if the rendered prompt is a prefix of the rendered conversation; other
 * templates are rejected.
 */
static void test_dataset_chat__prompt_must_be_a_prefix(void **state)
{
    static const char conversation[] =
        "{\"input\": [{\"role\": \"user\", \"content\": \"q\"}, {\"role\": "
        "\"assistant\", \"content\": \"yes\"}]}";
    static const char not_a_prefix[] = "{{ messages | length }}{{ messages[-1].content }}";
    static const char open_end[] = "{%- for m in messages %}{{ m.content }}.{%- endfor %}";
    invar_dataset_options options = chat_options();
    invar_dataset *dataset;
    (void)state;

    options.sft = true;
    options.chat_template_path = SCRATCH "/turned.jinja";
    assert_ok(invar_file_write(options.chat_template_path, not_a_prefix, sizeof not_a_prefix - 1));
    assert_rejected(&options, conversation,
                    "d.jsonl:1: the chat template renders the prompt with an answer");

    // control: a prefix, without special tokens; the answer is all of the rest
    options.chat_template_path = SCRATCH "/open.jinja";
    assert_ok(invar_file_write(options.chat_template_path, open_end, sizeof open_end - 1));
    dataset = parse_dataset(&options, conversation);
    check_answer(invar_dataset_prompt(dataset, 0), "[yes.]");
    invar_dataset_close(dataset);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_dataset_chat__renders_prompts),
        cmocka_unit_test(test_dataset_chat__content_may_be_absent_or_a_list),
        cmocka_unit_test(test_dataset_chat__variables),
        cmocka_unit_test(test_dataset_chat__refuses),
        cmocka_unit_test(test_dataset_chat__answers),
        cmocka_unit_test(test_dataset_chat__every_turn_is_learned),
        cmocka_unit_test(test_dataset_chat__earlier_thoughts_are_left_out),
        cmocka_unit_test(test_dataset_chat__prompt_must_be_a_prefix),
    };

    return cmocka_run_group_tests(tests, set_up, tear_down);
}
