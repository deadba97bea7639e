/*
 * chat_template.c - renders messages as one text with the chat template of a model, by Jinja2
 * itself.
 *
 * The child process runs chat_template.py. Its first line has the template and the variables; each
 * further line has messages and is answered by a text. Which of several templates of a model folder
 * is used follows transformers.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include "engine/text/chat/chat_template.h"

#include <string.h>

#include "base/alloc.h"
#include "base/file.h"
#include "base/json/json.h"
#include "base/text.h"
#include "engine/ext/embedded_script.h"
#include "engine/text/tokenizer/hf_tokenizer_config.h"

#include "base/invar_banned.h"

#define TEMPLATE_MAX_BYTES ((size_t)4 << 20)
#define NAME "chat template"

struct invar_chat_template {
    invar_line_process *program;
    invar_json_text line; /* request to the child */
};

/* Template and variables that the child is started with. */
typedef struct template_source {
    char *file; /* text of a template in a file of its own; NULL if tokenizer_config.json has it */
    char *tool_file;
    json_t *config; /* tokenizer_config.json; NULL if it does not exist */
    json_t *variables;
    const char *text;
    const char *tool_text; /* template for requests with tools; NULL if it is `text` */
} template_source;

/* ---- choice of the template ------------------------------------------------------------------ */

/* Reads a template. The caller frees *out with invar_free. */
static invar_status read_template_file(char **out, const char *path)
{
    size_t bytes;

    INVAR_TRY(invar_file_read(out, &bytes, path, TEMPLATE_MAX_BYTES));
    if (!memchr(*out, '\0', bytes))
        return INVAR_OK;
    invar_free(*out);
    *out = NULL;
    return INVAR_FAIL(INVAR_E_INVALID, 0, "%s: a NUL in a template", INVAR_SHOWN_PATH(path));
}

/* Replaces *out by the text of a file in the folder, if the file exists. */
static invar_status read_file_if_exists(char **out, const char *hf_dir, const char *name)
{
    char place[INVAR_PATH_SIZE], *text;

    INVAR_TRY(invar_path_join(place, sizeof place, hf_dir, name));
    if (!invar_path_exists(place))
        return INVAR_OK;
    INVAR_TRY(read_template_file(&text, place));
    invar_free(*out);
    *out = text;
    return INVAR_OK;
}

/*
 * Template files have priority over tokenizer_config.json, and additional_chat_templates over
 * chat_template.jinja.
 */
static invar_status read_template_files(template_source *b, const char *hf_dir)
{
    INVAR_TRY(read_file_if_exists(&b->file, hf_dir, "chat_template.jinja"));
    INVAR_TRY(read_file_if_exists(&b->file, hf_dir, "additional_chat_templates/default.jinja"));
    INVAR_TRY(
        read_file_if_exists(&b->tool_file, hf_dir, "additional_chat_templates/tool_use.jinja"));
    b->text = b->file;
    b->tool_text = b->tool_file;
    return INVAR_OK;
}

/* Reads the member chat_template: a string, or a list of objects with name and template. */
static invar_status choose_config_template(template_source *b)
{
    const json_t *value = json_object_get(b->config, "chat_template"), *item;
    const char *name, *text;
    size_t i;

    b->text = json_string_value(value);
    json_array_foreach(value, i, item)
    {
        INVAR_TRY(invar_json_string(&name, item, "name", "tokenizer_config.json: chat_template"));
        INVAR_TRY(
            invar_json_string(&text, item, "template", "tokenizer_config.json: chat_template"));
        if (strcmp(name, "default") == 0)
            b->text = text;
        if (strcmp(name, "tool_use") == 0)
            b->tool_text = text;
    }
    return INVAR_OK;
}

static invar_status find_template(template_source *b, const char *hf_dir, const char *path)
{
    if (*hf_dir)
        INVAR_TRY(invar_tokenizer_config_read(&b->config, hf_dir));
    if (*path) {
        INVAR_TRY(invar_error_of_key(read_template_file(&b->file, path), "chat-template-path"));
        b->text = b->file;
        return INVAR_OK;
    }
    if (*hf_dir)
        INVAR_TRY(read_template_files(b, hf_dir));
    if (!b->file && !b->tool_file)
        INVAR_TRY(choose_config_template(b));
    if (b->text)
        return INVAR_OK;
    return INVAR_FAIL(
        INVAR_E_NOTFOUND, 0,
        "%s: no chat template: neither chat_template.jinja nor a default chat_template in "
        "tokenizer_config.json; name a file with chat-template-path, or use prompts that are plain "
        "text",
        INVAR_SHOWN_PATH(*hf_dir ? hf_dir : "no folder"));
}

/* ---- variables ------------------------------------------------------------------------------- */

static invar_status no_memory(void)
{
    return INVAR_FAIL(INVAR_E_NOMEM, 0, "no memory for a template's variables");
}

static invar_status add_special_tokens(template_source *b)
{
    static const char *const names[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                        "pad_token", "cls_token", "mask_token"};

    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++) {
        json_t *token = json_object_get(b->config, names[i]);
        token = json_is_object(token) ? json_object_get(token, "content") : token;
        if (json_is_string(token) && json_object_set(b->variables, names[i], token) != 0)
            return no_memory();
    }
    return INVAR_OK;
}

static invar_status add_kwargs(template_source *b, const char *kwargs)
{
    static const char *const taken[] = {"messages", "tools", "documents", "add_generation_prompt"};
    INVAR_AUTO_JSON json_t *object = NULL;

    if (!*kwargs)
        return INVAR_OK;
    INVAR_TRY(invar_json_parse(&object, "apply-chat-template-kwargs", kwargs, strlen(kwargs)));
    if (!json_is_object(object))
        return INVAR_FAIL(INVAR_E_INVALID, 0, "apply-chat-template-kwargs: not a JSON object");
    for (size_t i = 0; i < sizeof taken / sizeof taken[0]; i++)
        if (json_object_get(object, taken[i]))
            return INVAR_FAIL(INVAR_E_INVALID, 0,
                              "apply-chat-template-kwargs: \"%s\" is set by Invar itself",
                              taken[i]);
    return json_object_update(b->variables, object) == 0 ? INVAR_OK : no_memory();
}

/* ---- child process --------------------------------------------------------------------------- */

/*
 * Appends JSON from outside as a value. A request is one line, so line ends within the JSON become
 * spaces.
 */
static void append_value(invar_json_text *line, const char *json, size_t bytes)
{
    size_t begin;

    invar_json_text_value(line, json, bytes);
    if (line->status != INVAR_OK)
        return;
    begin = line->bytes - bytes;
    for (size_t i = begin; i < line->bytes; i++)
        if (line->data[i] == '\n' || line->data[i] == '\r')
            line->data[i] = ' ';
}

static invar_status handshake(invar_chat_template *chat, const template_source *b)
{
    INVAR_AUTO_JSON json_t *answer = NULL;
    INVAR_AUTO_FREE char *variables = NULL;
    const char *tool_text = b->tool_text ? b->tool_text : "";
    invar_json_text *line = &chat->line;
    size_t bytes;

    INVAR_TRY(invar_json_dump(&variables, &bytes, b->variables,
                              JSON_COMPACT | JSON_SORT_KEYS | JSON_ENSURE_ASCII,
                              "a template's variables"));
    invar_json_text_open(line, '{');
    invar_json_text_key(line, "template");
    invar_json_text_string(line, b->text, strlen(b->text));
    invar_json_text_key(line, "tool_template");
    invar_json_text_string(line, tool_text, strlen(tool_text));
    invar_json_text_key(line, "variables");
    invar_json_text_value(line, variables, bytes);
    invar_json_text_close(line, '}');
    return invar_embedded_script_ask(&answer, chat->program, NAME, line, true);
}

/* ---- creation -------------------------------------------------------------------------------- */

static invar_status prepare_source(template_source *b, const char *hf_dir, const char *path,
                                   const char *kwargs)
{
    INVAR_TRY(find_template(b, hf_dir, path));
    b->variables = json_object();
    if (!b->variables)
        return no_memory();
    INVAR_TRY(add_special_tokens(b));
    return add_kwargs(b, kwargs);
}

invar_status invar_chat_template_open_within(invar_chat_template **out, const char *hf_dir,
                                             const char *path, const char *kwargs, double seconds)
{
    invar_chat_template *chat = NULL;
    template_source b = {0};
    invar_status status;

    *out = NULL;
    status = prepare_source(&b, hf_dir, path, kwargs);
    if (status == INVAR_OK)
        status = INVAR_ALLOC(chat, 1, "a chat template");
    if (status == INVAR_OK) {
        memset(chat, 0, sizeof *chat);
        status = invar_embedded_script_open(&chat->program, NAME, "script_loop.py chat_template.py",
                                            seconds);
    }
    if (status == INVAR_OK)
        status = handshake(chat, &b);
    invar_free(b.file);
    invar_free(b.tool_file);
    json_decref(b.config);
    json_decref(b.variables);
    if (status == INVAR_OK)
        *out = chat;
    else
        invar_chat_template_close(chat);
    return status;
}

invar_status invar_chat_template_open(invar_chat_template **out, const char *hf_dir,
                                      const char *path, const char *kwargs)
{
    return invar_chat_template_open_within(out, hf_dir, path, kwargs, INVAR_CHAT_TEMPLATE_SECONDS);
}

void invar_chat_template_close(invar_chat_template *chat)
{
    if (!chat)
        return;
    invar_line_process_close(chat->program);
    invar_json_text_release(&chat->line);
    invar_free(chat);
}

/* ---- rendering ------------------------------------------------------------------------------- */

/* Fails unless the text is a JSON list, because it goes to the child unchanged. */
static invar_status check_list(const char *name, const char *json, size_t bytes)
{
    INVAR_AUTO_JSON json_t *value = NULL;

    INVAR_TRY(invar_json_parse_raw(&value, name, json, bytes));
    return json_is_array(value) ? INVAR_OK
                                : INVAR_FAIL(INVAR_E_INVALID, 0, "%s: not a JSON list", name);
}

invar_status invar_chat_template_render(char **out, size_t *bytes_out, invar_chat_template *chat,
                                        const char *messages, const char *tools,
                                        bool add_generation_prompt)
{
    invar_json_text *line = &chat->line;
    INVAR_AUTO_JSON json_t *answer = NULL;
    const json_t *text;

    *out = NULL;
    *bytes_out = 0;
    INVAR_TRY(check_list("messages", messages, strlen(messages)));
    if (*tools)
        INVAR_TRY(check_list("tools", tools, strlen(tools)));
    invar_json_text_reset(line);
    invar_json_text_open(line, '{');
    invar_json_text_key(line, "messages");
    append_value(line, messages, strlen(messages));
    invar_json_text_key(line, "tools");
    append_value(line, *tools ? tools : "null", *tools ? strlen(tools) : 4);
    invar_json_text_key(line, "add_generation_prompt");
    invar_json_text_bool(line, add_generation_prompt);
    invar_json_text_close(line, '}');
    INVAR_TRY(invar_embedded_script_ask(&answer, chat->program, NAME, line, true));
    text = json_object_get(answer, "text");
    if (!json_is_string(text))
        return INVAR_FAIL(INVAR_E_CORRUPT, 0, "chat template: an answer without a text");
    INVAR_TRY(INVAR_ALLOC(*out, json_string_length(text) + 1, "text"));
    *bytes_out = json_string_length(text);
    memcpy(*out, json_string_value(text), *bytes_out + 1);
    return INVAR_OK;
}
