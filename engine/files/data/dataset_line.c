/*
 * dataset_line.c - parses one record of a data set, applies the chat template and tokenizes it.
 *
 * For SFT on a conversation the loss mask must match the tokens that the template produces. The
 * whole conversation is rendered and tokenized once. A learned message is located by rendering the
 * messages before it with the generation prompt; both renderings and their tokens must agree there,
 * otherwise the record is an error.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/files/data/dataset_line.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "base/alloc.h"
#include "base/json/json.h"
#include "base/number.h"
#include "base/text.h"

#include "base/invar_banned.h"

void invar_dataset_record_release(invar_dataset_record *line)
{
    invar_free(line->text);
    invar_free(line->label);
    invar_free(line->metadata);
    invar_free(line->tokens);
    invar_free(line->answer);
    invar_free(line->mask);
    *line = (invar_dataset_record){0};
}

/* ---- text ------------------------------------------------------------------------------------ */

/* Prefixes an error of the tokenizer or the template with the line, which they do not know. */
static invar_status prefix_error(invar_status status, const char *where)
{
    invar_error reason;

    if (status == INVAR_OK)
        return INVAR_OK;
    invar_error_take(&reason);
    return INVAR_FAIL(reason.status, reason.native, "%s: %s", where, reason.message);
}

static invar_status copy_bytes(char **out, const char *text, size_t bytes)
{
    INVAR_TRY(INVAR_ALLOC(*out, bytes + 1, "data set"));
    memcpy(*out, text, bytes);
    (*out)[bytes] = '\0';
    return INVAR_OK;
}

static invar_status copy_text(char **out, const char *text)
{
    return copy_bytes(out, text, strlen(text));
}

static invar_status dump_json(char **out, const json_t *value, size_t flags)
{
    size_t bytes;

    return invar_json_dump(out, &bytes, value, flags, "a value of a data set");
}

static invar_status encode_text(int32_t **out, int64_t *count_out,
                                const invar_record_reader *reader, const char *text,
                                const char *where)
{
    return prefix_error(
        invar_tokenizer_encode(out, count_out, reader->tokenizer, text, strlen(text)), where);
}

/* ---- keys ------------------------------------------------------------------------------------ */

/* A line as JSON text and parsed. */
typedef struct source_line {
    const char *json;
    size_t bytes;
    json_t *object;
} source_line;

static invar_status fail_member(const char *where, const char *key, const char *why)
{
    return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: \"%s\" %s", where, INVAR_QUOTED(key), why);
}

/* Formats a number as a user would write it: 60.0 is "60", not "6e+01". */
static invar_status format_real(char out[INVAR_NUMBER_SIZE], double value)
{
    if (value > -0x1p53 && value < 0x1p53 && value == (double)(int64_t)value) {
        snprintf(out, INVAR_NUMBER_SIZE, "%" PRId64, (int64_t)value);
        return INVAR_OK;
    }
    return invar_number_format(out, value);
}

/* Formats a number that is not a 64-bit integer; larger integers keep their digits. */
static invar_status copy_real(char **out, const json_t *value, const source_line *line)
{
    char number[INVAR_NUMBER_SIZE];
    const char *digits;
    size_t bytes;

    if (invar_json_digits(&digits, &bytes, line->object, value, line->json, line->bytes))
        return copy_bytes(out, digits, bytes);
    INVAR_TRY(format_real(number, json_real_value(value)));
    return copy_text(out, number);
}

/* Reads a scalar as text: a string unchanged, true, 42, 0.5. */
static invar_status read_label(char **out, const source_line *line, const char *key,
                               const char *where)
{
    const json_t *value = key[0] != '\0' ? json_object_get(line->object, key) : NULL;
    char number[INVAR_NUMBER_SIZE];

    if (key[0] == '\0')
        return copy_text(out, "");
    if (!value)
        return fail_member(where, key, "is missing (label-key)");
    switch (json_typeof(value)) {
    case JSON_STRING: return copy_text(out, json_string_value(value));
    case JSON_INTEGER:
        snprintf(number, sizeof number, "%" PRId64, (int64_t)json_integer_value(value));
        return copy_text(out, number);
    case JSON_REAL: return copy_real(out, value, line);
    case JSON_TRUE:
    case JSON_FALSE: return copy_text(out, json_is_true(value) ? "true" : "false");
    default:
        return fail_member(where, key, "is no label: it must be a string, a number, true or false");
    }
}

static invar_status read_metadata(char **out, const json_t *object, const char *key,
                                  const char *where)
{
    const json_t *value = key[0] != '\0' ? json_object_get(object, key) : NULL;

    if (!value || json_is_null(value))
        return copy_text(out, "{}");
    if (!json_is_object(value))
        return fail_member(where, key, "is not an object (metadata-key)");
    return dump_json(out, value, JSON_COMPACT | JSON_SORT_KEYS);
}

/* Reads a list, or a string that contains one. */
static invar_status read_tools(char **out, const json_t *object, const char *key, const char *where)
{
    INVAR_AUTO_JSON json_t *parsed = NULL;
    const json_t *value = key[0] != '\0' ? json_object_get(object, key) : NULL;

    if (!value || json_is_null(value))
        return copy_text(out, "");
    if (json_is_string(value)) {
        INVAR_TRY(
            invar_json_parse(&parsed, where, json_string_value(value), json_string_length(value)));
        value = parsed;
    }
    if (!json_is_array(value))
        return fail_member(where, key, "is not a list of tools (tool-key)");
    return dump_json(out, value, JSON_COMPACT);
}

/* ---- prompts --------------------------------------------------------------------------------- */

static invar_status append_message(json_t *messages, const char *role, const char *content)
{
    if (json_array_append_new(messages, json_pack("{ssss}", "role", role, "content", content)) != 0)
        return INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for a message of a data set");
    return INVAR_OK;
}

static bool has_member(const json_t *message, const char *member)
{
    const json_t *value = json_object_get(message, member);

    return value && !json_is_null(value);
}

/*
 * Checks the required members, because a template silently renders nothing for a missing one. Only
 * a message that calls a tool needs no content; the form of the content is left to the template.
 */
static invar_status check_message(const json_t *message, size_t i, const char *key,
                                  const char *where)
{
    const char *role = json_string_value(json_object_get(message, "role")), *missing;
    char why[128];

    if (!json_is_object(message))
        return fail_member(where, key, "has a message that is not an object");
    if (role && role[0] &&
        (has_member(message, "content") || has_member(message, "tool_calls") ||
         has_member(message, "function_call")))
        return INVAR_OK;
    missing = role && role[0] ? "content" : "role";
    snprintf(why, sizeof why,
             "has no \"%s\" in message %zu (from 0); a message is "
             "{\"role\": \"user\", \"content\": \"...\"}",
             missing, i);
    return fail_member(where, key, why);
}

/* Makes the list of messages: the input's messages, or the input as a single user message. */
static invar_status make_conversation(json_t **out, json_t *input, const char *key,
                                      const char *where)
{
    const char *text = json_string_value(input);

    for (size_t i = 0; i < json_array_size(input); i++)
        INVAR_TRY(check_message(json_array_get(input, i), i, key, where));
    if (!text && json_array_size(input) == 0)
        return fail_member(where, key, "has no message");
    *out = text ? json_array() : json_copy(input);
    if (!*out)
        return INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for a message of a data set");
    return text ? append_message(*out, "user", text) : INVAR_OK;
}

static invar_status render_messages(char **out, const invar_record_reader *reader,
                                    const json_t *conversation, const char *tools, bool generation,
                                    const char *where)
{
    INVAR_AUTO_FREE char *messages = NULL;
    size_t bytes;

    INVAR_TRY(dump_json(&messages, conversation, JSON_COMPACT));
    INVAR_TRY(prefix_error(
        invar_chat_template_render(out, &bytes, reader->chat, messages, tools, generation), where));
    if (strlen(*out) == bytes)
        return INVAR_OK;
    invar_free(*out);
    *out = NULL;
    return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: the chat template wrote a NUL", where);
}

/* Makes the answer from the label and the end of text. */
static invar_status make_plain_answer(invar_dataset_record *line, const invar_record_reader *reader,
                                      const char *where)
{
    INVAR_AUTO_FREE int32_t *tokens = NULL;
    int32_t eos = invar_tokenizer_eos(reader->tokenizer);
    int64_t count;

    INVAR_TRY(encode_text(&tokens, &count, reader, line->label, where));
    INVAR_TRY(INVAR_ALLOC(line->answer, (size_t)count + 1, "data set"));
    if (count > 0)
        memcpy(line->answer, tokens, (size_t)count * sizeof *tokens);
    line->answer[count] = eos;
    line->n_answer = count + (eos >= 0);
    if (line->n_answer == 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: the answer is empty", where);
    return INVAR_OK;
}

static invar_status encode_prompt(invar_dataset_record *line, const invar_record_reader *reader,
                                  const char *where)
{
    INVAR_TRY(encode_text(&line->tokens, &line->n_tokens, reader, line->text, where));
    if (line->n_tokens == 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: the prompt is empty", where);
    return INVAR_OK;
}

/* ---- SFT answers ----------------------------------------------------------------------------- */

/* State while the learned messages of a conversation are located. */
typedef struct sft_builder {
    const invar_record_reader *reader;
    const json_t *conversation;
    const char *tools, *where;
    char *rendered; /* rendering of all messages */
    int32_t *tokens;
    int64_t count;
    uint8_t *mask; /* (count) loss mask */
    /*
     * token range from the first to the last learned message; end is 0 if there is no such message
     * yet
     */
    int64_t first, end;
    size_t prompt; /* bytes of `rendered` before the first learned message */
} sft_builder;

static bool is_answer(const json_t *message)
{
    const char *role = json_string_value(json_object_get(message, "role"));

    return role && strcmp(role, "assistant") == 0;
}

/*
 * Returns true for messages that are learned: a step_loss_mask of 0 excludes an answer, as in
 * Miles.
 */
static invar_status is_learned(bool *out, const sft_builder *l, const json_t *message)
{
    const json_t *value = json_object_get(message, "step_loss_mask");
    bool zero = json_is_false(value) || (json_is_integer(value) && json_integer_value(value) == 0);
    bool one = json_is_true(value) || (json_is_integer(value) && json_integer_value(value) == 1);

    *out = is_answer(message) && !zero;
    if (!value || zero || one)
        return INVAR_OK;
    return fail_member(l->where, l->reader->options->input_key,
                       "has a message whose step_loss_mask is neither 0 nor 1");
}

/* Renders the first `count` messages. */
static invar_status render_part(char **out, const sft_builder *l, size_t count, bool generation)
{
    INVAR_AUTO_JSON json_t *part = json_array();
    bool failed = !part;

    for (size_t i = 0; i < count && !failed; i++)
        failed = json_array_append(part, json_array_get(l->conversation, i)) != 0;
    if (failed)
        return INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for messages of a data set");
    return render_messages(out, l->reader, part, l->tools, generation, l->where);
}

/* Length of the longest suffix of `text` that is a prefix of `rest` (Knuth-Morris-Pratt). */
static invar_status find_overlap(size_t *out, const char *text, const char *rest)
{
    INVAR_AUTO_FREE size_t *back = NULL;
    size_t bytes = strlen(text), most = strlen(rest), at = 0;

    if (strncmp(rest, text, bytes) == 0) { // fast path, nearly always taken
        *out = bytes;
        return INVAR_OK;
    }
    most = most < bytes ? most : bytes;
    INVAR_TRY(INVAR_ALLOC(back, most + 1, "an answer of a data set"));
    back[0] = 0;
    for (size_t i = 1; i < most; i++) {
        while (at > 0 && rest[i] != rest[at])
            at = back[at - 1];
        back[i] = at += rest[i] == rest[at];
    }
    at = 0;
    for (size_t i = 0; i < bytes; i++) {
        while (at > 0 && (at == most || text[i] != rest[at]))
            at = back[at - 1];
        at += at < most && text[i] == rest[at];
    }
    *out = at;
    return INVAR_OK;
}

/*
 * Locates message k in the rendering: after the generation prompt. A template may omit the
 * beginning of an earlier answer, such as its reasoning.
 */
static invar_status find_turn(size_t *begin_out, size_t *end_out, const sft_builder *l, size_t k)
{
    INVAR_AUTO_FREE char *prompt = NULL;
    INVAR_AUTO_FREE char *said = NULL;
    size_t begin, length = 0;

    INVAR_TRY(render_part(&prompt, l, k, true));
    INVAR_TRY(render_part(&said, l, k + 1, false));
    begin = strlen(prompt);
    if (strncmp(l->rendered, prompt, begin) == 0 && strncmp(said, prompt, begin) == 0)
        INVAR_TRY(find_overlap(&length, said + begin, l->rendered + begin));
    if (length == 0)
        return INVAR_FAIL(INVAR_E_INVALID, 0,
                          "%s: the chat template renders the prompt with an answer differently "
                          "than without, so what to learn is not defined (message %zu)",
                          l->where, k);
    *begin_out = begin;
    *end_out = begin + length;
    return INVAR_OK;
}

/*
 * Number of tokens of the first `bytes` bytes of the rendering; fails if they are not its first
 * tokens.
 */
static invar_status count_tokens_before(int64_t *out, const sft_builder *l, size_t bytes)
{
    INVAR_AUTO_FREE int32_t *tokens = NULL;

    INVAR_TRY(prefix_error(
        invar_tokenizer_encode(&tokens, out, l->reader->tokenizer, l->rendered, bytes), l->where));
    if (*out <= l->count &&
        (*out == 0 || memcmp(tokens, l->tokens, (size_t)*out * sizeof *tokens) == 0))
        return INVAR_OK;
    return INVAR_FAIL(INVAR_E_INVALID, 0,
                      "%s: the tokens of prompt and answer do not begin with the prompt's",
                      l->where);
}

static invar_status learn_turn(sft_builder *l, size_t k)
{
    size_t begin, end;
    int64_t first, last;

    if (k == 0)
        return fail_member(l->where, l->reader->options->input_key, "has an answer but no prompt");
    INVAR_TRY(find_turn(&begin, &end, l, k));
    INVAR_TRY(count_tokens_before(&first, l, begin));
    INVAR_TRY(count_tokens_before(&last, l, end));
    if (first == 0 || last == first)
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: the prompt or the answer is empty", l->where);
    memset(l->mask + first, 1, (size_t)(last - first));
    if (l->end == 0) {
        l->first = first;
        l->prompt = begin;
    }
    l->end = last;
    return INVAR_OK;
}

static invar_status learn_turns(sft_builder *l)
{
    INVAR_TRY(encode_text(&l->tokens, &l->count, l->reader, l->rendered, l->where));
    INVAR_TRY(INVAR_ALLOC(l->mask, (size_t)l->count, "data set"));
    memset(l->mask, 0, (size_t)l->count);
    for (size_t k = 0; k < json_array_size(l->conversation); k++) {
        bool taken;
        INVAR_TRY(is_learned(&taken, l, json_array_get(l->conversation, k)));
        if (taken)
            INVAR_TRY(learn_turn(l, k));
    }
    if (l->end == 0)
        return fail_member(l->where, l->reader->options->input_key,
                           "has nothing to learn: step_loss_mask is 0 for every answer");
    return INVAR_OK;
}

/*
 * Fills the record: the prompt ends before the first learned message, the answer after the last
 * one.
 */
static invar_status fill_sft_record(invar_dataset_record *line, sft_builder *l)
{
    size_t prompt = (size_t)l->first * sizeof *l->tokens;

    INVAR_TRY(copy_bytes(&line->text, l->rendered, l->prompt));
    INVAR_TRY(INVAR_ALLOC_SIZED(line->tokens, prompt, 1, "data set"));
    memcpy(line->tokens, l->tokens, prompt);
    line->n_tokens = l->first;
    line->n_answer = l->end - l->first;
    memmove(l->tokens, l->tokens + l->first, (size_t)line->n_answer * sizeof *l->tokens);
    memmove(l->mask, l->mask + l->first, (size_t)line->n_answer);
    line->answer = l->tokens;
    line->mask = l->mask;
    l->tokens = NULL;
    l->mask = NULL;
    return INVAR_OK;
}

static invar_status read_sft_record(invar_dataset_record *line, const invar_record_reader *reader,
                                    json_t *conversation, const char *tools, const char *where)
{
    sft_builder l = {
        .reader = reader, .conversation = conversation, .tools = tools, .where = where};
    invar_status status;

    if (reader->options->label_key[0] != '\0')
        INVAR_TRY(append_message(conversation, "assistant", line->label));
    if (!is_answer(json_array_get(conversation, json_array_size(conversation) - 1)))
        return fail_member(where, reader->options->input_key,
                           "does not end with the assistant's message, nor is there a label");
    INVAR_TRY(render_messages(&l.rendered, reader, conversation, tools, false, where));
    status = learn_turns(&l);
    if (status == INVAR_OK)
        status = fill_sft_record(line, &l);
    invar_free(l.rendered);
    invar_free(l.tokens);
    invar_free(l.mask);
    return status;
}

static invar_status read_chat(invar_dataset_record *line, const invar_record_reader *reader,
                              const json_t *object, json_t *input, const char *where)
{
    const invar_dataset_options *options = reader->options;
    INVAR_AUTO_JSON json_t *conversation = NULL;
    INVAR_AUTO_FREE char *tools = NULL;

    INVAR_TRY(read_tools(&tools, object, options->tool_key, where));
    INVAR_TRY(make_conversation(&conversation, input, options->input_key, where));
    if (options->sft)
        return read_sft_record(line, reader, conversation, tools, where);
    INVAR_TRY(render_messages(&line->text, reader, conversation, tools, true, where));
    return encode_prompt(line, reader, where);
}

invar_status invar_dataset_record_plain(invar_dataset_record *out,
                                        const invar_record_reader *reader, const char *where,
                                        const char *prompt, const char *label)
{
    if (!out->label)
        INVAR_TRY(copy_text(&out->label, label));
    if (!out->metadata)
        INVAR_TRY(copy_text(&out->metadata, "{}"));
    INVAR_TRY(copy_text(&out->text, prompt));
    INVAR_TRY(encode_prompt(out, reader, where));
    return reader->options->sft ? make_plain_answer(out, reader, where) : INVAR_OK;
}

static invar_status read_object(invar_dataset_record *line, const invar_record_reader *reader,
                                const source_line *given, const char *where)
{
    const invar_dataset_options *options = reader->options;
    json_t *object = given->object, *input = json_object_get(object, options->input_key);

    if (!json_is_object(object))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: the line is not a JSON object", where);
    if (!input)
        return fail_member(where, options->input_key, "is missing (input-key)");
    if (!json_is_string(input) && !json_is_array(input))
        return fail_member(where, options->input_key, "is neither a string nor a list of messages");
    INVAR_TRY(read_label(&line->label, given, options->label_key, where));
    INVAR_TRY(read_metadata(&line->metadata, object, options->metadata_key, where));
    if (reader->chat)
        return read_chat(line, reader, object, input, where);
    if (json_is_array(input))
        return fail_member(where, options->input_key,
                           "is a list of messages: set apply-chat-template");
    return invar_dataset_record_plain(line, reader, where, json_string_value(input), line->label);
}

invar_status invar_dataset_record_read(invar_dataset_record *out, const invar_record_reader *reader,
                                       const char *where, const char *json, size_t bytes)
{
    INVAR_AUTO_JSON json_t *object = NULL;

    INVAR_TRY(invar_json_parse(&object, where, json, bytes));
    return read_object(out, reader, &(source_line){json, bytes, object}, where);
}
